package governor

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// silence is the outcome of a call without an answer.
var silence = Outcome{Class: reward.AnswerUnknown, Took: 5 * time.Second}

// TestHangingPayoutsUseAPart checks that payouts that hang leave the others nine
// tenths of their throughput, whether or not it is known before that they hang.
func TestHangingPayoutsUseAPart(t *testing.T) {
	t.Parallel()
	for _, most := range []int{20, 200} {
		for name, hanging := range map[string]Job{"Known": {PromotionID: 2, Hangs: true}, "Unknown": {PromotionID: 2}, "WithARate": {PromotionID: 2, Hangs: true, RatePerSecond: 50}} {
			fixture.OnFakeTime(t, fmt.Sprint(name, most), func(t *testing.T) {
				g := newTest(t, Config{MaxConcurrency: most})
				healthy, hung := newProvider(100*time.Millisecond), newProvider(5*time.Second)
				hung.says = func(int, time.Duration) Outcome { return silence }
				defer healthy.start(t, g, Job{PromotionID: 1}, 2*most)()
				time.Sleep(20 * time.Second)
				defer hung.start(t, g, hanging, 5*most)()
				time.Sleep(40 * time.Second)
				before, among := healthy.calls(10*time.Second, 20*time.Second), healthy.calls(40*time.Second, 60*time.Second)
				if float64(among) < 0.9*2*float64(before) {
					t.Errorf("%d calls in 10 s alone, %d in 20 s next to payouts that hang", before, among)
				}
				if n := hung.calls(0, 40*time.Second); n < most/hangingPart*3 {
					t.Errorf("only %d calls of payouts that hang", n)
				}
				if n := hung.openNow(); n > most/hangingPart {
					t.Errorf("%d of %d calls in flight are of payouts that hang", n, most)
				}
				if n := hung.mostOpen(); hanging.Hangs && n > most/hangingPart {
					t.Errorf("%d of %d calls in flight were of payouts that hang", n, most)
				}
				if g.State().BreakerOpen {
					t.Errorf("state %+v", g.State())
				}
			})
		}
	}
}

// TestBreakerJudgesTheProvider checks that failures of few payouts do not open the
// breaker, however many they are, and that failures of many do.
func TestBreakerJudgesTheProvider(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		payees int
		o      Outcome
		opens  bool
	}{
		"FewSilent":      {failuresToOpen - 1, silence, false},
		"FewErrors":      {failuresToOpen - 1, Outcome{Class: reward.AnswerFailed, Status: 500}, false},
		"Few503":         {failuresToOpen - 1, Outcome{Class: reward.AnswerThrottled, Status: 503}, false},
		"ManySilent":     {failuresToOpen, silence, true},
		"FewUnconnected": {1, Outcome{Class: reward.AnswerNotSent}, true},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			g := newTest(t, Config{MaxConcurrency: 1})
			for i := range 50 * failuresToOpen {
				if g.State().BreakerOpen {
					break
				}
				acquire(t, g, Job{PromotionID: 1, TargetID: reward.TargetID(i % tc.payees), HasTarget: true}).Done(tc.o)
			}
			if s := g.State(); s.BreakerOpen != tc.opens {
				t.Errorf("state %+v", s)
			}
			if g.State().BreakerOpen {
				return
			}
			if room := g.room(); room != 1 {
				t.Errorf("%d calls may start", room)
			}
		})
	}
}

// TestBreakerForgets checks that what the breaker and the promotions' counts hold is
// bounded.
func TestBreakerForgets(t *testing.T) {
	t.Parallel()
	var b breaker
	g := &Governor{flows: map[queueKey]*promotionQueue{}}
	for i := range 3 * payeesMax {
		p := &Permit{call: uint64(i), payee: payee{reward.PromotionID(i + 1), reward.TargetID(i), true}}
		b.result(0, p, silence, uint64(10*i), 1<<30)
		g.noteSilence(p, silence, true, 0)
	}
	if len(b.seen) > payeesMax || len(g.silent) > silentMax || b.opened {
		t.Errorf("%d payees, %d promotions, opened %v", len(b.seen), len(g.silent), b.opened)
	}
	b.result(0, &Permit{call: 1 << 40}, paid, 1<<40, 0)
	if b.seen != nil {
		t.Errorf("%d payees are left after an answer", len(b.seen))
	}
}

// TestProbesGoToOthersFirst checks that a payout that hangs is no probe while another
// could be it, and that a promotion whose probe hangs does not keep others from
// theirs.
func TestProbesGoToOthersFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newTest(t, Config{})
		for i := range failuresToOpen {
			acquire(t, g, Job{PromotionID: 1, TargetID: reward.TargetID(i), HasTarget: true}).Done(silence)
		}
		out := make(chan ended, 10)
		next := func() ended {
			t.Helper()
			e := <-out
			if e.err != nil || !e.permit.Probe() {
				t.Fatalf("%+v", e)
			}
			return e
		}
		line(t.Context(), g, Job{PromotionID: 1, TargetID: 1, HasTarget: true, Hangs: true}, 2, out)
		line(t.Context(), g, Job{PromotionID: 1, TargetID: 30, HasTarget: true}, 3, out)
		first := next()
		if first.job.Hangs {
			t.Error("the first probe is of a payout that hangs")
		}
		time.Sleep(time.Minute)
		if len(out) != 0 || !g.AcceptsWork(2) || g.AcceptsWork(1) {
			t.Fatalf("%d more probes of the promotion that is probed; accepts %v, %v", len(out), g.AcceptsWork(1), g.AcceptsWork(2))
		}
		began := time.Now()
		line(t.Context(), g, Job{PromotionID: 2}, 1, out)
		line(t.Context(), g, Job{PromotionID: 3}, 1, out)
		line(t.Context(), g, Job{PromotionID: 4}, 1, out)
		others := []ended{next(), next()}
		if took := time.Since(began); took > 2*probePatience || g.State().Open != probesMax {
			t.Errorf("two other promotions were probed after %v; %d probes", took, g.State().Open)
		}
		first.permit.Done(silence)
		others[0].permit.Done(paid)
		others[1].permit.Done(silence)
		if g.State().BreakerOpen {
			t.Error("the breaker is open although a probe was answered")
		}
		for range 5 {
			e := <-out
			e.permit.Done(paid)
		}
	})
}
