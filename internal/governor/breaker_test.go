package governor

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func TestBreaker(t *testing.T) {
	t.Parallel()
	job := Job{PromotionID: 1}

	// A minute's outage with 500 waiting, whatever it looks like and whenever it
	// comes, costs no more than 100 calls, and the work continues soon after.
	const outage = 60 * time.Second
	for name, dead := range map[string]Outcome{
		"Refused":     {Class: reward.AnswerNotSent, Took: time.Millisecond},
		"5xx":         {Class: reward.AnswerFailed, Status: 502, Took: 5 * time.Millisecond},
		"Unavailable": {Class: reward.AnswerThrottled, Status: 503, Took: 5 * time.Millisecond},
		"Silent":      {Class: reward.AnswerUnknown, Took: 5 * time.Second},
	} {
		for _, from := range []time.Duration{0, 10 * time.Second} {
			fixture.OnFakeTime(t, name+"From"+from.String(), func(t *testing.T) {
				// All that are open may be lost to a silent one.
				g := newTest(t, Config{MaxConcurrency: 70})
				v := newProvider(200 * time.Millisecond)
				v.says = downFrom(from, from+outage, dead)
				stop := v.start(t, g, job, 570)
				time.Sleep(from + 30*time.Second)
				if !g.State().BreakerOpen || g.AcceptsWork(1) {
					t.Errorf("state %+v, taking %v", g.State(), g.AcceptsWork(1))
				}
				// The last probe may have gone out just before the end.
				time.Sleep(outage + 15*time.Second - 30*time.Second)
				if s := g.State(); s.BreakerOpen || !g.AcceptsWork(1) || s.Limit <= limitRestart {
					t.Errorf("15 s later: %+v", s)
				}
				stop()
				if n := v.calls(from, from+outage); n > 100 || n < 15 {
					t.Errorf("the outage cost %d calls", n)
				}
				if n := v.calls(from+outage, from+outage+15*time.Second); n < 500 {
					t.Errorf("%d calls in the 15 s after it", n)
				}
			})
		}
	}

	// The same when far more are open than that: those that fail at once do not
	// hide behind the answers to older calls.
	fixture.OnFakeTime(t, "ManyOpenCallsHideNothing", func(t *testing.T) {
		g := newTest(t, Config{MaxConcurrency: 1000})
		v := newProvider(200 * time.Millisecond)
		v.says = func(_ int, at time.Duration) Outcome {
			if at >= 5*time.Second {
				return Outcome{Class: reward.AnswerNotSent, Took: time.Millisecond}
			}
			return Outcome{Class: reward.AnswerPaid, Status: 200, Took: time.Duration(150+len(v.begun)%100) * time.Millisecond}
		}
		v.workFor(t, 10*time.Second, g, 1500, job)
		if n := v.calls(5*time.Second, 10*time.Second); n > 150 {
			t.Errorf("%d calls", n)
		}
	})

	fixture.OnFakeTime(t, "StaysClosedBesideManyQuickFailures", func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 4))
		g := newTest(t, Config{MaxConcurrency: 500})
		v := newProvider(200 * time.Millisecond)
		v.says = func(int, time.Duration) Outcome {
			if random.IntN(100) < 30 {
				return Outcome{Class: reward.AnswerFailed, Status: 500, Took: time.Millisecond}
			}
			return paid
		}
		defer v.start(t, g, job, 1000)()
		for range 200 {
			time.Sleep(50 * time.Millisecond)
			if g.State().BreakerOpen {
				t.Fatal("the breaker opened")
			}
		}
	})

	fixture.OnFakeTime(t, "LetsOneProbeThroughAtATime", func(t *testing.T) {
		g := newTest(t, Config{})
		for range failuresToOpen {
			acquire(t, g, job).Done(Outcome{Class: reward.AnswerFailed, Status: 500})
		}
		if g.AcceptsWork(1) || !g.State().BreakerOpen {
			t.Fatal("the breaker is closed")
		}
		out := make(chan ended, 10)
		var gaps []time.Duration
		for range 6 {
			began := time.Now()
			go line(t.Context(), g, job, 1, out)
			e := <-out
			gaps = append(gaps, time.Since(began))
			if e.err != nil || !e.permit.Probe() {
				t.Fatalf("%+v", e)
			}
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err := g.Acquire(ctx, job); err == nil {
				t.Fatal("a second call during the probe")
			}
			cancel()
			e.permit.Done(Outcome{Class: reward.AnswerUnknown})
		}
		for i, want := range []time.Duration{10, 20, 35, 35, 35, 35} {
			if want *= 100 * time.Millisecond; gaps[i] < want*4/5 || gaps[i] > want*6/5 {
				t.Errorf("probe %d came after %v", i, gaps[i])
			}
		}
		// One that leaves before it was called, or reports nothing, is followed
		// by another soon.
		probe := acquire(t, g, job)
		began := time.Now()
		probe.Done(Outcome{Class: reward.AnswerNotSent, Local: true})
		probe = acquire(t, g, job)
		if d := time.Since(began); !probe.Probe() || d > time.Second {
			t.Errorf("the next probe (%v) after %v", probe.Probe(), d)
		}
		probe.Done(Outcome{Class: reward.AnswerRefused, Status: 400})
		if s := g.State(); s.BreakerOpen || s.Limit != limitRestart || !g.AcceptsWork(1) {
			t.Errorf("state %+v", s)
		}
	})

	// Otherwise no call would find out that the provider is available again.
	fixture.OnFakeTime(t, "TakesWorkForAProbeWhenNobodyWaits", func(t *testing.T) {
		g := newTest(t, Config{})
		for range failuresToOpen {
			acquire(t, g, job).Done(Outcome{Class: reward.AnswerFailed, Status: 500})
		}
		if g.AcceptsWork(1) {
			t.Error("takes at once")
		}
		time.Sleep(2 * time.Second)
		if !g.AcceptsWork(1) {
			t.Error("does not take when a probe is due")
		}
		p := acquire(t, g, job)
		if !p.Probe() || g.AcceptsWork(1) {
			t.Errorf("probe %v, taking %v", p.Probe(), g.AcceptsWork(1))
		}
		p.Done(paid)
	})
}

func TestSigns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		class  reward.AnswerClass
		status int
		ours   bool
		want   sign
		much   bool
	}{
		{reward.AnswerPaid, 200, false, signAlive, false},
		{reward.AnswerPaid, 409, false, signAlive, false},
		{reward.AnswerRefused, 422, false, signAlive, false},
		{reward.AnswerMisconfigured, 401, false, signAlive, false},
		{reward.AnswerFailed, 500, false, signDead, false},
		{reward.AnswerThrottled, 429, false, signAlive, true},
		{reward.AnswerThrottled, 503, false, signDead, true},
		{reward.AnswerUnknown, 0, false, signDead, true},
		{reward.AnswerUnknown, 408, false, signAlive, true},
		{reward.AnswerUnknown, 409, false, signAlive, false},
		{reward.AnswerNotSent, 0, false, signDead, false},
		{reward.AnswerNotSent, 0, true, signNone, false},
		{"", 0, false, signNone, false},
	} {
		o := Outcome{Class: c.class, Status: c.status, Local: c.ours}
		if o.sign() != c.want || o.congested() != c.much {
			t.Errorf("%+v: sign %v, congested %v", o, o.sign(), o.congested())
		}
	}
}
