package api

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

func TestEstimator(t *testing.T) {
	t.Parallel()
	e := newEstimator()
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	view := func(done int64) store.PromotionView {
		v := store.PromotionView{Promotion: reward.Promotion{ID: 1, Status: reward.Running}}
		v.Counts.Payouts[reward.Succeeded], v.Counts.Payouts[reward.Ready] = done, 1000-done
		return v
	}
	if got := e.seconds(view(0), now); got != nil {
		t.Errorf("one look gave %d", *got)
	}
	if got := e.seconds(view(100), now.Add(500*time.Millisecond)); got != nil {
		t.Errorf("two looks too close together gave %d", *got)
	}
	if got := e.seconds(view(100), now.Add(2*time.Second)); got == nil || *got != 18 {
		t.Errorf("100 in 2 s leave 900 for 18 s, not %v", got)
	}
	if got := e.seconds(view(150), now.Add(3*time.Minute)); got != nil {
		t.Errorf("an old look gave %d", *got)
	}
	again := now.Add(time.Hour)
	for _, tc := range []struct {
		after time.Duration
		done  int64
		want  int64 // -1 = none
	}{
		{0, 200, -1},
		{time.Second, 300, 7},
		{2 * time.Second, 300, 12}, // slower, as far as is known
		{3900 * time.Millisecond, 300, 20},
		{4 * time.Second, 300, -1}, // nothing for 3 s
		{30 * time.Second, 300, -1},
		{31 * time.Second, 400, 6}, // measured again
	} {
		got := e.seconds(view(tc.done), again.Add(tc.after))
		if got == nil && tc.want >= 0 || got != nil && *got != tc.want {
			t.Errorf("after %s, %d decided: %v, want %d", tc.after, tc.done, got, tc.want)
		}
	}
	paused := view(150)
	paused.Status = reward.Paused
	if got := e.seconds(paused, now.Add(3*time.Minute)); got != nil {
		t.Errorf("a paused promotion gave %d", *got)
	}
	for id := range reward.PromotionID(3 * tracksMax) {
		v := view(0)
		v.ID = id
		e.seconds(v, now)
	}
	if len(e.tracks) > tracksMax {
		t.Errorf("%d tracks", len(e.tracks))
	}
}
