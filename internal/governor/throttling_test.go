package governor

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// payeeOf is a call for one of a promotion's payouts.
func payeeOf(target int) Job {
	return Job{PromotionID: 1, TargetID: reward.TargetID(target), HasTarget: true}
}

// TestARetryAfterOfAPayeeHoldsForItAlone checks what a Retry-After stops: nothing, if
// only some payees get one; all calls, if payees in a row do, until one is answered.
func TestARetryAfterOfAPayeeHoldsForItAlone(t *testing.T) {
	t.Parallel()
	later := Outcome{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 24 * time.Hour}
	blocked := func(g *Governor) time.Duration {
		if until := g.State().BlockedUntil; !until.IsZero() {
			return time.Until(until).Round(time.Second)
		}
		return 0
	}
	block := func(t *testing.T, g *Governor) {
		t.Helper()
		for i := range payeesToBlock {
			if blocked(g) > 0 {
				t.Fatalf("blocked after %d payees", i)
			}
			acquire(t, g, payeeOf(i)).Done(later)
		}
	}
	fixture.OnFakeTime(t, "OnePayeeStopsNobodyHoweverOften", func(t *testing.T) {
		g := newTest(t, Config{})
		for range 20 {
			acquire(t, g, payeeOf(1)).Done(later)
			if a, b := acquire(t, g, payeeOf(2)), acquire(t, g, payeeOf(3)); blocked(g) > 0 {
				t.Fatalf("blocked for %v", blocked(g))
			} else {
				a.Done(Outcome{Local: true, Class: reward.AnswerNotSent})
				b.Done(Outcome{Local: true, Class: reward.AnswerNotSent})
			}
		}
	})
	fixture.OnFakeTime(t, "AnAnswerInBetweenEndsTheRow", func(t *testing.T) {
		g := newTest(t, Config{})
		for i := range 10 * payeesToBlock {
			acquire(t, g, payeeOf(i)).Done(later)
			if i%(payeesToBlock-1) == payeesToBlock-2 {
				acquire(t, g, payeeOf(1000+i)).Done(Outcome{Class: reward.AnswerRefused, Status: 422})
			}
			if blocked(g) > 0 {
				t.Fatalf("blocked after %d payees", i)
			}
		}
	})
	fixture.OnFakeTime(t, "OneCallAtATimeFindsOutWhetherItIsOver", func(t *testing.T) {
		g := newTest(t, Config{})
		block(t, g)
		for _, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, RetryAfterMax, RetryAfterMax} {
			if d := blocked(g); d != want {
				t.Errorf("blocked for %v, want %v", d, want)
			}
			p := acquire(t, g, payeeOf(9)) // at the end of the block
			out := make(chan ended, 1)
			line(t.Context(), g, payeeOf(10), 1, out)
			if len(out) != 0 {
				t.Fatal("a second call started before the first was answered")
			}
			p.Done(later)
			g.CancelWaiting(1)
			<-out
		}
		acquire(t, g, payeeOf(9)).Done(paid)
		for i := range 10 { // all at once
			acquire(t, g, payeeOf(i))
		}
		if blocked(g) > 0 {
			t.Errorf("blocked for %v after an answer", blocked(g))
		}
	})
	fixture.OnFakeTime(t, "APersonEndsABlockOnAllInstances", func(t *testing.T) {
		rates := &LocalRates{}
		var all []*Governor
		for range 3 {
			all = append(all, newTest(t, Config{Rates: rates, Instances: func() int { return 3 }}))
		}
		out := make(chan ended, 3)
		block(t, all[0])
		time.Sleep(time.Second)
		for i, g := range all { // each has a call, so each hears of the block
			line(t.Context(), g, payeeOf(200), 1, out)
			time.Sleep(time.Second)
			if blocked(g) == 0 {
				t.Errorf("instance %d is not blocked", i)
			}
		}
		began := time.Now()
		all[2].Unblock()
		for range all {
			e := <-out
			if e.err != nil {
				t.Fatal(e.err)
			}
			e.permit.Done(Outcome{Local: true, Class: reward.AnswerNotSent})
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("calls start %v after the end of the block", took)
		}
		// It takes as many payees again.
		block(t, all[1])
		if blocked(all[1]) == 0 {
			t.Error("payees in a row block no calls after it")
		}
	})
}
