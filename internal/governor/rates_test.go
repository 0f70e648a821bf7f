package governor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// distant is a Rates that takes a while and may be away.
type distant struct {
	LocalRates
	trip   time.Duration
	late   func(n int64) time.Duration // how much longer request n takes to arrive; nil: no longer
	away   atomic.Bool
	leases atomic.Int64
}

var errAway = errors.New("no server")

func (d *distant) Lease(ctx context.Context, p LeaseParams) (Run, error) {
	n := d.leases.Add(1)
	time.Sleep(d.trip / 2)
	if d.late != nil {
		time.Sleep(d.late(n))
	}
	if d.away.Load() {
		return Run{}, errAway
	}
	run, err := d.LocalRates.Lease(ctx, p)
	time.Sleep(d.trip - d.trip/2)
	return run, err
}

// wantRate checks the mean of a time and the busiest second of all.
func wantRate(t *testing.T, v *provider, from, to time.Duration, limit, least float64) {
	t.Helper()
	if mean := float64(v.calls(from, to)) / (to - from).Seconds(); mean < least*limit || mean > limit {
		t.Errorf("%.1f calls a second from %v to %v, the limit is %.0f", mean, from, to, limit)
	}
	if busiest := v.busiest(); float64(busiest) > 1.05*limit {
		t.Errorf("%d calls in the busiest second, the limit is %.0f", busiest, limit)
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	job := Job{PromotionID: 1}

	// Three instances share 500 calls per second; one crashes in the middle, and for a
	// while the others do not know.
	for name, trip := range map[string]time.Duration{"Near": 0, "Far": 5 * time.Millisecond, "VeryFar": 30 * time.Millisecond} {
		fixture.OnFakeTime(t, "SurvivesTheDeathOfAnInstance"+name, func(t *testing.T) {
			const limit = 500
			shared := &distant{trip: trip}
			v := newProvider(200 * time.Millisecond)
			var alive atomic.Int64
			alive.Store(3)
			instance := func() *Governor {
				return New(Config{RatePerSecond: limit, Rates: shared, Instances: func() int { return int(alive.Load()) }})
			}
			var group sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			all := []*Governor{instance(), instance(), instance()}
			for _, g := range all {
				group.Go(v.work(ctx, g, job, 300, 0))
			}
			time.Sleep(10 * time.Second)
			all[1].Close()
			time.Sleep(10 * time.Second)
			alive.Store(2)
			time.Sleep(10 * time.Second)
			cancel()
			group.Wait()
			for _, g := range all {
				g.Close()
			}
			for _, from := range []time.Duration{0, 10 * time.Second, 20 * time.Second} {
				wantRate(t, v, from, from+10*time.Second, limit, 0.92)
			}
			if n := shared.leases.Load(); n > 30*200 {
				t.Errorf("%d leases in 30 s", n)
			}
		})
	}

	for name, limit := range map[string]int{"Slow": 2, "Usual": 300, "Fast": 5000} {
		fixture.OnFakeTime(t, "HoldsARateAlone"+name, func(t *testing.T) {
			g := newTest(t, Config{RatePerSecond: limit})
			v := newProvider(50 * time.Millisecond)
			stop := v.start(t, g, job, 600)
			time.Sleep(22 * time.Second)
			stop()
			wantRate(t, v, 2*time.Second, 22*time.Second, float64(limit), 0.95)
		})
	}

	t.Run("MissedSendTimesLapse", func(t *testing.T) {
		t.Parallel()
		l := newLane("x", 100)
		l.take(1000*time.Millisecond, Run{In: 0, Every: 10 * time.Millisecond, Count: 5})
		l.take(1060*time.Millisecond, Run{In: 0, Every: 10 * time.Millisecond, Count: 2})
		for _, step := range []struct {
			at   time.Duration
			due  bool
			held int
		}{{999, false, 7}, {1000, true, 7}, {1020, true, 7}, {1021, true, 6}, {1041, true, 4}, {1061, true, 2}, {1090, true, 1}, {1091, false, 0}} {
			at := step.at * time.Millisecond
			if held, _ := l.held(at); l.due(at) != step.due || held != step.held {
				t.Errorf("at %v: due %v, %d held; want %v, %d", at, l.due(at), held, step.due, step.held)
			}
		}
	})

	fixture.OnFakeTime(t, "APromotionHasARateOfItsOwn", func(t *testing.T) {
		shared := &distant{trip: time.Millisecond}
		v := newProvider(100 * time.Millisecond)
		var group sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			g := newTest(t, Config{Rates: shared, Instances: func() int { return 2 }})
			group.Go(v.work(ctx, g, Job{PromotionID: 1, RatePerSecond: 50}, 100, 0))
			group.Go(v.work(ctx, g, Job{PromotionID: 2, RatePerSecond: 200}, 100, 0))
		}
		time.Sleep(20 * time.Second)
		cancel()
		group.Wait()
		for id, limit := range map[reward.PromotionID]float64{1: 50, 2: 200} {
			if rate := float64(v.of[id]) / 20; rate < 0.92*limit || rate > limit {
				t.Errorf("promotion %v: %.1f a second of %.0f", id, rate, limit)
			}
		}
	})

	// Both rates hold, and the shared one is made full use of, although one
	// instance has only a promotion that is slower than its share.
	for _, own := range []int{5, 100, 240} {
		fixture.OnFakeTime(t, fmt.Sprintf("AnOwnRateOf%dBesideASharedOne", own), func(t *testing.T) {
			const limit = 500
			v, cfg := newProvider(100*time.Millisecond), Config{RatePerSecond: limit}
			_, stop := fleetOf(t, v, &distant{trip: time.Millisecond}, 300, []Job{{PromotionID: 1, RatePerSecond: own}, {PromotionID: 2}}, cfg, cfg)
			time.Sleep(20 * time.Second)
			stop()
			wantRate(t, v, 2*time.Second, 20*time.Second, limit, 0.92)
			if rate := float64(v.of[1]) / 20; rate < 0.8*float64(own) || rate > float64(own) {
				t.Errorf("the one with a rate of its own: %.1f a second of %d", rate, own)
			}
		})
	}

	// Without shared rates, each instance uses its part, and none exceeds
	// the limit when it goes or comes back.
	fixture.OnFakeTime(t, "KeepsToItsPartWhileRatesAreAway", func(t *testing.T) {
		const limit = 300
		var text bytes.Buffer
		log := fixture.Must(obs.NewLog(&text, "info", "text"))(t)
		shared := &distant{trip: time.Millisecond}
		v := newProvider(100 * time.Millisecond)
		cfg := Config{RatePerSecond: limit}
		all, stop := fleetOf(t, v, shared, 200, []Job{job, job, job}, Config{RatePerSecond: limit, Troubles: obs.NewTroubles(nil, log)}, cfg, cfg)
		time.Sleep(10 * time.Second)
		shared.away.Store(true)
		time.Sleep(2 * time.Second)
		if !all[0].State().RatesUnshared {
			t.Error("the state does not say so")
		}
		time.Sleep(8 * time.Second)
		shared.away.Store(false)
		time.Sleep(10 * time.Second)
		if all[0].State().RatesUnshared {
			t.Error("the state still says so")
		}
		stop()
		wantRate(t, v, 1*time.Second, 10*time.Second, limit, 0.95)
		wantRate(t, v, 11*time.Second, 20*time.Second, limit, 0.92)
		wantRate(t, v, 20*time.Second, 30*time.Second, limit, 0.92)
		for _, message := range []string{`"instance degraded" part=rates`, `"instance no longer degraded" part=rates`} {
			if n := strings.Count(text.String(), message); n != 1 {
				t.Errorf("%d lines %s:\n%s", n, message, text.String())
			}
		}
	})
}
