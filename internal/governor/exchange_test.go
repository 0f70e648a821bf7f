package governor

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// fleet runs instances that share what they know, each with n calls of its own
// promotion under way or waiting, until the function that it returns is called.
func fleet(t *testing.T, v *provider, rates Rates, n int, cfgs ...Config) (all []*Governor, stop func()) {
	t.Helper()
	jobs := make([]Job, len(cfgs))
	for i := range jobs {
		jobs[i].PromotionID = reward.PromotionID(i + 1)
	}
	return fleetOf(t, v, rates, n, jobs, cfgs...)
}

// fleetOf is a fleet whose instances have calls of given jobs, one job each.
func fleetOf(t *testing.T, v *provider, rates Rates, n int, jobs []Job, cfgs ...Config) (all []*Governor, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i, cfg := range cfgs {
		cfg.Rates, cfg.Instances = rates, func() int { return len(cfgs) }
		g := newTest(t, cfg)
		all = append(all, g)
		group.Go(v.work(ctx, g, jobs[i], n, 0))
	}
	return all, func() {
		cancel()
		group.Wait()
	}
}

func TestInstancesShareARetryAfter(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{"NoRate": {}, "ARateOfAllCalls": {RatePerSecond: 300}} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			const after, at = 5 * time.Second, 10 * time.Second
			v := newProvider(100 * time.Millisecond)
			// One instance gets it. Answers to calls from before take 100 ms.
			const throttles = 200 * time.Millisecond
			v.says = func(_ int, now time.Duration) Outcome {
				if now < at || now >= at+throttles || v.asks != 1 {
					return paid
				}
				return Outcome{Class: reward.AnswerThrottled, Status: 429, RetryAfter: after, Took: time.Millisecond}
			}
			rates := &distant{trip: time.Millisecond}
			_, stop := fleet(t, v, rates, 20, cfg, cfg, cfg)
			// One more makes its first call while the others are blocked.
			late := newTest(t, Config{Rates: rates, Instances: func() int { return 4 }})
			time.Sleep(at + 2*time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			wait := v.work(ctx, late, Job{PromotionID: 9}, 5, 5)
			time.Sleep(8 * time.Second)
			wait()
			stop()
			// News takes an interval and two trips. So do leased send times.
			told := at + throttles + exchangeInterval + 60*time.Millisecond
			if n := v.calls(told, at+after); n != 0 {
				t.Errorf("%d calls after the others heard of it, and before its end", n)
			}
			if n := v.calls(at+throttles+after, at+throttles+after+time.Second); n < 100 {
				t.Errorf("%d calls in the second after it", n)
			}
		})
	}
}

// An outage of a minute that three instances see costs few more calls than one that
// one instance sees, and all of them continue soon after it.
func TestInstancesShareProbes(t *testing.T) {
	t.Parallel()
	const from, outage = 10 * time.Second, 60 * time.Second
	for name, tc := range map[string]struct {
		dead Outcome
		rate int
	}{
		"Refused":     {dead: Outcome{Class: reward.AnswerNotSent, Took: time.Millisecond}},
		"5xx":         {dead: badGateway},
		"5xxAndARate": {dead: badGateway, rate: 400},
		"Unavailable": {dead: Outcome{Class: reward.AnswerThrottled, Status: 503, Took: 5 * time.Millisecond}},
		"Silent":      {dead: Outcome{Class: reward.AnswerUnknown, Took: 5 * time.Second}},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			v := newProvider(200 * time.Millisecond)
			v.says = downFrom(from, from+outage, tc.dead)
			var cfgs []Config
			for range 3 {
				cfgs = append(cfgs, Config{MaxConcurrency: 30, RatePerSecond: tc.rate, Troubles: obs.NewTroubles(nil, obs.Log{})})
			}
			all, stop := fleet(t, v, &distant{trip: time.Millisecond}, 200, cfgs...)
			time.Sleep(from + outage/2)
			reasons := ""
			for i, g := range all {
				troubles := cfgs[i].Troubles.List()
				reasons += fmt.Sprint(troubles)
				if s := g.State(); !s.BreakerOpen || len(troubles) != 1 || troubles[0].Part != obs.PartProvider || !strings.Contains(troubles[0].Reason, "does not respond") {
					t.Errorf("instance %d: %+v, troubles %v", i, s, troubles)
				}
			}
			if tc.dead.Status > 0 && !strings.Contains(reasons, strconv.Itoa(tc.dead.Status)) {
				t.Errorf("no reason has the status %d: %s", tc.dead.Status, reasons)
			}
			time.Sleep(outage/2 + 15*time.Second)
			for i, g := range all {
				troubles := cfgs[i].Troubles.List()
				if s := g.State(); s.BreakerOpen || s.Limit <= limitRestart || len(troubles) > 0 {
					t.Errorf("15 s later, instance %d: %+v, troubles %v", i, s, troubles)
				}
			}
			stop()
			opening, probes := v.calls(from, from+6*time.Second), v.calls(from+6*time.Second, from+outage)
			least, most := v.gaps(from+6*time.Second, from+outage)
			t.Logf("%d calls in the first 6 s, then %d probes, %v to %v apart", opening, probes, least, most)
			if opening > 3*45 || probes > 20 || probes < 5 {
				t.Errorf("%d calls in the first 6 s, then %d probes", opening, probes)
			}
			// A probe ends, or has been in flight for probePatience. Then the interval passes,
			// and a few exchanges pass the turn on.
			longest := min(tc.dead.Took, probePatience) + time.Duration(float64(probeIntervalMax)*(1+probeJitter)) + 4*exchangeInterval
			if least < time.Duration(float64(probeIntervalMin)*(1-probeJitter)) || most > longest {
				t.Errorf("probes are %v to %v apart, want at most %v", least, most, longest)
			}
			if n := v.calls(from+outage, from+outage+15*time.Second); n < 1500 {
				t.Errorf("%d calls in the 15 s after it", n)
			}
		})
	}
}

// downFrom answers with an outcome from one time to another.
func downFrom(from, to time.Duration, dead Outcome) func(int, time.Duration) Outcome {
	return func(_ int, at time.Duration) Outcome {
		if at >= from && at < to {
			return dead
		}
		return paid
	}
}

// badGateway is the outcome of a call to a provider that is down.
var badGateway = Outcome{Class: reward.AnswerFailed, Status: 502, Took: 5 * time.Millisecond}

// probesMost is the largest number of probes of all instances in a time that begins
// when at least two have failed: each one starts probeIntervalMax after the one before
// it, less the jitter.
func probesMost(d time.Duration) int {
	return int(d/time.Duration(float64(probeIntervalMax)*(1-probeJitter))) + 1
}

// TestLateNewsEndNoOutage has some exchanges arrive late, as they do when a server is
// busy. The last answers came a few milliseconds before the outage was found: news of
// them are no reason to believe that it is over.
func TestLateNewsEndNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const from, outage = 10 * time.Second, 60 * time.Second
		v := newProvider(20 * time.Millisecond)
		v.says = downFrom(from, from+outage, badGateway)
		rates := &distant{trip: time.Millisecond, late: func(n int64) time.Duration {
			if n%40 == 0 {
				return 100 * time.Millisecond
			}
			return 0
		}}
		cfg := Config{MaxConcurrency: 30}
		all, stop := fleet(t, v, rates, 200, cfg, cfg, cfg)
		time.Sleep(from + outage + 15*time.Second)
		for i, g := range all {
			if g.State().BreakerOpen {
				t.Errorf("the breaker of instance %d is still open 15 s after the outage", i)
			}
		}
		stop()
		opening, probes := v.calls(from, from+6*time.Second), v.calls(from+6*time.Second, from+outage)
		t.Logf("%d calls in the first 6 s, then %d probes", opening, probes)
		if opening > 3*45 || probes > probesMost(outage-6*time.Second) || probes < 5 {
			t.Errorf("%d calls in the first 6 s, then %d probes", opening, probes)
		}
	})
}

// TestAnAnswerFromBeforeTheOutage has an answer arrive, late, to a call from before the
// outage, on an instance whose own breaker is open. That breaker stays open, so the
// answer must not end the outage for the others either.
func TestAnAnswerFromBeforeTheOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const from, outage = 10 * time.Second, 60 * time.Second
		v := newProvider(20 * time.Millisecond)
		v.says = downFrom(from, from+outage, badGateway)
		cfg := Config{MaxConcurrency: 30}
		all, stop := fleet(t, v, &distant{trip: 40 * time.Millisecond}, 200, cfg, cfg, cfg)
		time.Sleep(from - time.Second)
		late := acquire(t, all[0], Job{PromotionID: 9})
		time.Sleep(21 * time.Second)
		for i, g := range all {
			g.mu.Lock()
			if !g.breaker.opened || g.breaker.adopted {
				t.Errorf("the breaker of instance %d did not open by itself: %+v", i, g.breaker)
			}
			g.mu.Unlock()
		}
		late.Done(paid)
		time.Sleep(outage - 20*time.Second + 15*time.Second)
		stop()
		probes := v.calls(from+6*time.Second, from+outage)
		t.Logf("%d probes", probes)
		if probes > probesMost(outage-6*time.Second) || probes < 5 {
			t.Errorf("%d probes", probes)
		}
	})
}

// TestAHungProbeHoldsOthersBackBriefly has a probe hang because of its payee, while the
// provider works again. Another instance must find that out soon.
func TestAHungProbeHoldsOthersBackBriefly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rates := &distant{trip: time.Millisecond}
		both := func() int { return 2 }
		first, second := newTest(t, Config{Rates: rates, Instances: both}), newTest(t, Config{Rates: rates, Instances: both})
		for i := range failuresToOpen {
			acquire(t, first, Job{PromotionID: 1, TargetID: reward.TargetID(i), HasTarget: true}).Done(Outcome{Class: reward.AnswerFailed, Status: 502})
		}
		hung := acquire(t, first, Job{PromotionID: 1})
		time.AfterFunc(time.Minute, func() { hung.Done(silence) })
		time.Sleep(10 * time.Millisecond)
		began := time.Now()
		probe := acquire(t, second, Job{PromotionID: 2})
		took := time.Since(began)
		t.Logf("the other instance probed %v after the one that hangs", took)
		// The probe counts as failed after probePatience, and the next one is due after
		// the interval that follows a first failed probe.
		if most := probePatience + time.Duration(2*float64(probeIntervalMin)*(1+probeJitter)) + 2*exchangeInterval; took > most || !probe.Probe() {
			t.Errorf("the other instance probed %v after the one that hangs, want at most %v", took, most)
		}
		probe.Done(paid)
		time.Sleep(2 * exchangeInterval)
		if second.State().BreakerOpen {
			t.Error("the breaker is open after an answer")
		}
		time.Sleep(time.Minute)
	})
}

// TestATurnHasProbesOfSeveralPromotions has a probe hang on an instance that has calls of
// other promotions. It keeps its turn for them.
func TestATurnHasProbesOfSeveralPromotions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rates := &distant{trip: time.Millisecond}
		both := func() int { return 2 }
		first, second := newTest(t, Config{Rates: rates, Instances: both}), newTest(t, Config{Rates: rates, Instances: both})
		for i := range failuresToOpen {
			acquire(t, first, Job{PromotionID: 1, TargetID: reward.TargetID(i), HasTarget: true}).Done(Outcome{Class: reward.AnswerFailed, Status: 502})
		}
		hung := acquire(t, first, Job{PromotionID: 1})
		out, others := make(chan ended, 10), make(chan ended, 10)
		for id := range reward.PromotionID(probesMax - 1) {
			line(t.Context(), first, Job{PromotionID: 2 + id}, 1, out)
		}
		line(t.Context(), second, Job{PromotionID: 9}, 1, others)
		began := time.Now()
		var probes []*Permit
		for len(probes) < probesMax-1 {
			probes = append(probes, (<-out).permit)
		}
		if took := time.Since(began); took > (probesMax-1)*probePatience+2*exchangeInterval || len(others) != 0 {
			t.Errorf("%d more promotions were probed after %v, and %d of the other instance", len(probes), took, len(others))
		}
		probes = append(probes, hung, (<-others).permit)
		for _, p := range probes {
			p.Done(silence)
		}
	})
}

// TestOnlyHangingPayoutsWait opens the breaker of instances that share it, and has
// only payouts wait that hung before. They must be probes too.
func TestOnlyHangingPayoutsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const from, outage = 5 * time.Second, 20 * time.Second
		v := newProvider(200 * time.Millisecond)
		v.says = downFrom(from, from+outage, Outcome{Class: reward.AnswerNotSent, Took: time.Millisecond})
		cfg := Config{MaxConcurrency: 30}
		all, stop := fleetOf(t, v, &distant{trip: time.Millisecond}, 20, []Job{{PromotionID: 1, Hangs: true}, {PromotionID: 2, Hangs: true}}, cfg, cfg)
		time.Sleep(from + outage/2)
		for i, g := range all {
			if !g.State().BreakerOpen {
				t.Errorf("the breaker of instance %d is closed during the outage", i)
			}
		}
		time.Sleep(outage/2 + 15*time.Second)
		for i, g := range all {
			if g.State().BreakerOpen {
				t.Errorf("the breaker of instance %d is still open 15 s after the outage", i)
			}
		}
		stop()
	})
}

// An instance that cannot reach the provider, although the others do, slows only
// itself.
func TestOneInstanceIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v, cut := newProvider(100*time.Millisecond), newProvider(20*time.Millisecond)
		cut.says = downFrom(20*time.Second, 80*time.Second, Outcome{Class: reward.AnswerNotSent, Took: time.Millisecond})
		rates := &distant{trip: time.Millisecond}
		all, stop := fleet(t, v, rates, 100, Config{MaxConcurrency: 50}, Config{MaxConcurrency: 50})
		alone, stopAlone := fleet(t, cut, rates, 100, Config{MaxConcurrency: 50})
		time.Sleep(80 * time.Second)
		if !alone[0].State().BreakerOpen || all[0].State().BreakerOpen || all[1].State().BreakerOpen {
			t.Errorf("states %+v, %+v, %+v", alone[0].State(), all[0].State(), all[1].State())
		}
		time.Sleep(10 * time.Second)
		if alone[0].State().BreakerOpen {
			t.Errorf("10 s after the cut: %+v", alone[0].State())
		}
		stop()
		stopAlone()
		before, during := v.calls(10*time.Second, 20*time.Second), v.calls(20*time.Second, 80*time.Second)
		if float64(during) < 0.9*6*float64(before) {
			t.Errorf("%d calls in 10 s before, %d in 60 s while one was cut off", before, during)
		}
		if n := cut.calls(20*time.Second, 80*time.Second); n > 150 {
			t.Errorf("the one that was cut off made %d calls", n)
		}
	})
}

// Without the shared state, each instance uses its own breaker, and says so.
func TestOwnBreakerWhileRatesAreAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const outage = 60 * time.Second
		v := newProvider(100 * time.Millisecond)
		v.says = downFrom(10*time.Second, 10*time.Second+outage, badGateway)
		rates, troubles := &distant{trip: time.Millisecond}, obs.NewTroubles(nil, obs.Log{})
		all, stop := fleet(t, v, rates, 50, Config{Troubles: troubles}, Config{}, Config{})
		time.Sleep(15 * time.Second)
		rates.away.Store(true)
		time.Sleep(15 * time.Second)
		parts := func() (out string) {
			for _, x := range troubles.List() {
				out += x.Part + " "
			}
			return out
		}
		if got := parts(); got != "provider rates " {
			t.Errorf("troubles: %s", got)
		}
		if n := v.calls(20*time.Second, 30*time.Second); n < 6 || n > 15 {
			t.Errorf("%d probes in 10 s, want those of three instances", n)
		}
		rates.away.Store(false)
		time.Sleep(15 * time.Second)
		if got := parts(); got != "provider " {
			t.Errorf("troubles: %s", got)
		}
		if n := v.calls(35*time.Second, 45*time.Second); n < 2 || n > 4 {
			t.Errorf("%d probes in 10 s, want those of one instance", n)
		}
		time.Sleep(outage)
		stop()
		if got := parts(); got != "" || all[0].State().BreakerOpen {
			t.Errorf("troubles: %s; %+v", got, all[0].State())
		}
	})
}

// An instance that makes calls exchanges what it knows 20 times per second, however
// many calls it makes, and one without calls never.
func TestExchangesCostLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v, rates := newProvider(10*time.Millisecond), &distant{trip: time.Millisecond}
		_, stop := fleet(t, v, rates, 100, Config{})
		time.Sleep(20 * time.Second)
		stop()
		if n, calls := rates.leases.Load(), v.calls(0, 20*time.Second); n < 350 || n > 420 || calls < 100_000 {
			t.Errorf("%d exchanges in 20 s with %d calls", n, calls)
		}
		time.Sleep(time.Second)
		before := rates.leases.Load()
		time.Sleep(time.Minute)
		if n := rates.leases.Load() - before; n != 0 {
			t.Errorf("%d exchanges in a minute without calls", n)
		}
	})
}

// Calls far apart cost one exchange each, right before the call.
func TestACallCostsOneExchange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const calls = 20
		rates := &distant{trip: time.Millisecond}
		g := newTest(t, Config{Rates: rates})
		for range calls {
			permit := fixture.Must(g.Acquire(t.Context(), Job{PromotionID: 1}))(t)
			time.Sleep(10 * time.Millisecond)
			permit.Done(paid)
			time.Sleep(time.Second)
		}
		if n := rates.leases.Load(); n != calls {
			t.Errorf("%d exchanges for %d calls", n, calls)
		}
	})
}

// unsharedRates is what instances have that share nothing.
type unsharedRates struct{}

func (unsharedRates) Lease(context.Context, LeaseParams) (Run, error) {
	return Run{}, fmt.Errorf("no server: %w", ErrUnshared)
}

// Instances that share nothing by their settings are no trouble.
func TestUnshared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log := fixture.Must(obs.NewLog(&text, "info", "text"))(t)
		v, troubles := newProvider(10*time.Millisecond), obs.NewTroubles(nil, obs.Log{})
		_, stop := fleet(t, v, unsharedRates{}, 10, Config{Log: log, Troubles: troubles})
		time.Sleep(time.Minute)
		stop()
		if n := v.calls(0, time.Minute); n < 10_000 {
			t.Errorf("%d calls", n)
		}
		if n := strings.Count(text.String(), "\n"); n != 1 || len(troubles.List()) != 0 {
			t.Errorf("%d lines, troubles %v:\n%s", n, troubles.List(), text.String())
		}
	})
}

// What the provider asks for is in the troubles until it is over.
func TestThrottlingIsReported(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Outcome{
		"RetryAfter": {Class: reward.AnswerThrottled, Status: 429, RetryAfter: 30 * time.Second},
		"Only429":    {Class: reward.AnswerThrottled, Status: 429},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			troubles := obs.NewTroubles(nil, obs.Log{})
			reason := func() string {
				all := troubles.List()
				if len(all) != 1 || all[0].Part != obs.PartProvider {
					return ""
				}
				return all[0].Reason
			}
			g := newTest(t, Config{Troubles: troubles})
			var permits []*Permit
			for i := range throttlesToReport {
				permits = append(permits, acquire(t, g, Job{PromotionID: 1, TargetID: reward.TargetID(i + 1), HasTarget: true}))
			}
			for _, p := range permits {
				p.Done(o)
			}
			if got := reason(); !strings.Contains(got, "asks for fewer calls") || o.RetryAfter > 0 && !strings.Contains(got, "429 for target 5 of promotion 1") {
				t.Errorf("reason %q", got)
			}
			time.Sleep(o.RetryAfter + throttleLinger + time.Second)
			if got := reason(); got != "" {
				t.Errorf("reason %q after it, without any call", got)
			}
		})
	}
}
