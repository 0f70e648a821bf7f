package engine

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// fakeWaits is a database whose clock is an hour ahead.
type fakeWaits struct {
	mu     sync.Mutex
	oldest store.OldestPayouts
	err    error
	reads  int
	public bool // a read was not for a viewer
}

// answer sets what the database answers from now on.
func (f *fakeWaits) answer(oldest store.OldestPayouts, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.oldest, f.err = oldest, err
}

func (f *fakeWaits) Clock(context.Context) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Add(time.Hour), f.err
}

func (f *fakeWaits) PayoutOldest(ctx context.Context) (store.OldestPayouts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	f.public = f.public || !store.IsForViewer(ctx)
	return f.oldest, f.err
}

func TestWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := &fakeWaits{}
		now, _ := rows.Clock(t.Context())
		rows.answer(store.OldestPayouts{ReadySince: now.Add(-10 * time.Minute), StalledSince: now.Add(-time.Minute)}, nil)
		m := obs.NewMetrics()
		var reported []error
		promotions := map[reward.PromotionID]*store.PromotionView{}
		for reason, p := range map[string]reward.Promotion{
			"a person's": {Status: reward.Paused, PausedBy: "ann", PauseReason: "paused by ann"}, "the provider's": {Status: reward.Paused, PauseReason: "401"}, "running": {Status: reward.Running, PauseReason: "401"},
			"rejected": {Status: reward.Paused, PauseReason: "rejected", RejectedBy: "kim"}, "not approved": {Status: reward.Paused, PauseReason: "waits", Type: reward.Voucher},
			"ended": {Status: reward.Paused, PauseReason: "ended", EndsAt: now, PausedAt: now},
		} {
			v := &store.PromotionView{Promotion: p}
			if v.Counts.Payouts[reward.Ready] = 1; reason == "not approved" {
				v.Counts.Amounts[reward.Ready] = 1001
			}
			promotions[reward.PromotionID(len(promotions)+1)] = v
		}
		w := &waits{
			rows: rows, promotions: func() map[reward.PromotionID]*store.PromotionView { return promotions }, approvalAbove: reward.Limits{Default: 1000}, metrics: m,
		}
		running := run(t, func(ctx context.Context) {
			every(ctx, waitsInterval, func(err error, _ ...any) { reported = append(reported, err) }, w.measure)
		})
		defer running.Stop()
		is := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			page := httptest.NewRecorder()
			m.Handler().ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
			for _, line := range want {
				if !strings.Contains(page.Body.String(), "\nlargesse_"+line+"\n") {
					t.Errorf("%s: no %q in %s", what, line, page.Body)
				}
			}
		}
		is("by the clock of the database", "oldest_ready_age_seconds 600", "dispatch_stalled_seconds 60", "oldest_unknown_age_seconds 0", "promotions_paused 1")
		rows.answer(store.OldestPayouts{}, errors.New("away"))
		time.Sleep(20 * time.Second)
		is("during an outage", "oldest_ready_age_seconds 620", "dispatch_stalled_seconds 80", "oldest_unknown_age_seconds 0")
		rows.answer(store.OldestPayouts{UnknownSince: now}, nil)
		time.Sleep(20 * time.Second)
		is("after it", "oldest_ready_age_seconds 0", "dispatch_stalled_seconds 0", "oldest_unknown_age_seconds 40")
		if rows.public || rows.reads < 2 || rows.reads > 4 {
			t.Errorf("%d reads within 40 s, not for a viewer: %v", rows.reads, rows.public)
		}
		if len(reported) < 3 || reported[0] != nil || reported[1] == nil || reported[len(reported)-1] != nil {
			t.Errorf("reported %v", reported)
		}
	})
}
