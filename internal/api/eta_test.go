package api

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// estimated shows a promotion of total targets at some times, with the payouts that
// are final then, and returns the estimates in seconds; -1 is none.
func estimated(e *estimator, total int64, done func(at time.Duration) int64, times ...time.Duration) []int64 {
	begin := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	out := make([]int64, len(times))
	for i, at := range times {
		v := store.PromotionView{Promotion: reward.Promotion{ID: 1, Status: reward.Running}}
		n := min(done(at), total)
		v.Counts.Payouts[reward.Succeeded], v.Counts.Payouts[reward.Ready] = n, total-n
		out[i] = -1
		if got := e.seconds(v, begin.Add(at)); got != nil {
			out[i] = *got
		}
	}
	return out
}

// every returns the times from 0 to end, in steps.
func every(step, end time.Duration) (times []time.Duration) {
	for at := time.Duration(0); at <= end; at += step {
		times = append(times, at)
	}
	return times
}

func TestEstimator(t *testing.T) {
	t.Parallel()
	steady := func(at time.Duration) int64 { return int64(50 * at.Seconds()) }
	for _, step := range []time.Duration{275 * time.Millisecond, time.Second, 2 * time.Second, 20 * time.Second} {
		times := every(step, 40*time.Second)
		for i, got := range estimated(newEstimator(), 10_000, steady, times...) {
			left := int64(200 - times[i].Seconds())
			if got < 0 && times[i] < 5*time.Second || got < 0 && i == 0 {
				continue
			}
			if got < left-3 || got > left+3 {
				t.Errorf("shown every %v: after %v %d s are left, not %d", step, times[i], left, got)
			}
		}
	}
	got := estimated(newEstimator(), 10_000, steady, 0, 2*time.Second, 5*time.Minute, 5*time.Minute+time.Second)
	for i, seconds := range got {
		if seconds != -1 {
			t.Errorf("look %d after too short or too long a time: %d", i, seconds)
		}
	}
}

// TestEstimatorAtTheStart: while the rate of a promotion still grows, nothing is
// promised that is far off.
func TestEstimatorAtTheStart(t *testing.T) {
	t.Parallel()
	// The rate doubles every second for eight seconds, and then stays.
	grows := func(at time.Duration) (n int64) {
		rate := 5.0
		for s := time.Second; s <= at; s += time.Second {
			n += int64(rate)
			if s < 8*time.Second {
				rate *= 2
			}
		}
		return n
	}
	end := 0 * time.Second
	for grows(end) < 20_000 {
		end += time.Second
	}
	times := every(time.Second, end)
	for i, got := range estimated(newEstimator(), 20_000, grows, times...) {
		if left := int64((end - times[i]).Seconds()); got > 3*left+3 {
			t.Errorf("after %v, at %.1f %%, %d s are left, not %d", times[i], float64(grows(times[i]))/200, left, got)
		}
	}
}

// TestEstimatorOfTheLast: the last payouts are those of a crashed instance. Until its
// lease ends they stay open, and "1 s left" is wrong.
func TestEstimatorOfTheLast(t *testing.T) {
	t.Parallel()
	for name, trickle := range map[string]float64{"nothing": 0, "a few": 1} {
		stuck := func(at time.Duration) int64 {
			if at <= 20*time.Second {
				return int64(500 * at.Seconds())
			}
			return 10_000 + int64(trickle*(at-20*time.Second).Seconds())
		}
		times := every(500*time.Millisecond, 32*time.Second)
		for i, got := range estimated(newEstimator(), 10_064, stuck, times...) {
			if late := times[i] - 20*time.Second; late > 4*time.Second && got >= 0 && got < 12 {
				t.Errorf("%s: %v after the last progress, %d s are left", name, late, got)
			}
		}
	}
}

func TestEstimatorForgets(t *testing.T) {
	t.Parallel()
	e := newEstimator()
	estimated(e, 1000, func(at time.Duration) int64 { return int64(at / time.Second) }, every(time.Second, 20*time.Second)...)
	paused := store.PromotionView{Promotion: reward.Promotion{ID: 1, Status: reward.Paused}}
	if got := e.seconds(paused, time.Now()); got != nil || len(e.tracks) != 0 {
		t.Errorf("a paused promotion gave %v", got)
	}
	for id := range reward.PromotionID(3 * tracksMax) {
		e.seconds(store.PromotionView{Promotion: reward.Promotion{ID: id, Status: reward.Running}}, time.Now())
	}
	if len(e.tracks) > tracksMax {
		t.Errorf("%d tracks", len(e.tracks))
	}
}

// TestEstimatorAfterAPause: two equal looks, a pause in the looks, and then progress,
// as clients see it on a busy machine.
func TestEstimatorAfterAPause(t *testing.T) {
	t.Parallel()
	stalls := func(at time.Duration) int64 {
		if at < 3*time.Second {
			return 100
		}
		return int64(100 * at.Seconds())
	}
	got := estimated(newEstimator(), 10_000, stalls, 0, time.Second, 3500*time.Millisecond, 6*time.Second, 9*time.Second)
	if want := []int64{-1, -1, -1, 94, 91}; !slices.Equal(got, want) {
		t.Errorf("the estimates are %d, not %d", got, want)
	}
}

// TestEstimatorOfAnyTimes: whatever the pace of the looks and of the payouts, the
// estimator answers with nothing or with a time that is not negative.
func TestEstimatorOfAnyTimes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e, total := newEstimator(), rapid.Int64Range(1, 1000).Draw(t, "total")
		var at time.Duration
		var done int64
		for range rapid.IntRange(1, 30).Draw(t, "looks") {
			pace := rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, 2 * time.Minute}).Draw(t, "pace")
			at += time.Duration(rapid.Int64Range(0, int64(pace)).Draw(t, "pause"))
			done = max(0, done+rapid.SampledFrom([]int64{0, 0, 1, 100, -50}).Draw(t, "progress"))
			for _, seconds := range estimated(e, total, func(time.Duration) int64 { return done }, at) {
				if seconds < -1 {
					t.Fatalf("after %v, %d s are left", at, seconds)
				}
			}
		}
	})
}
