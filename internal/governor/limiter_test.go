package governor

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	job := Job{PromotionID: 1}

	// A provider without a limit is used to the full, and stays so, although
	// some of its answers get lost or are failures.
	for name, faults := range map[string]float64{"Steady": 0, "WithFewFaults": 0.05} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			const most, latency = 512, 200 * time.Millisecond
			random := rand.New(rand.NewPCG(1, 2))
			g := newTest(t, Config{MaxConcurrency: most})
			v := newProvider(latency)
			v.says = func(n int, _ time.Duration) Outcome {
				switch f := random.Float64(); {
				case f >= faults:
					return Outcome{Class: reward.AnswerPaid, Status: 200, Took: latency * time.Duration(90+random.IntN(21)) / 100}
				case n%2 == 0:
					return Outcome{Class: reward.AnswerFailed, Status: 500, Took: 2 * time.Millisecond}
				}
				return Outcome{Class: reward.AnswerUnknown, Took: time.Second}
			}
			defer v.start(t, g, job, 1000)()
			for at := 5 * time.Second; at < 20*time.Second; at += time.Second / 2 {
				time.Sleep(at - time.Since(v.born))
				if limit := g.State().Limit; limit != most {
					t.Errorf("after %v the limit is %d", at, limit)
				}
			}
			if n := v.mostOpen(); n > most {
				t.Errorf("%d calls open", n)
			}
			full := float64(most) / latency.Seconds()
			if rate := float64(v.calls(5*time.Second, 15*time.Second)) / 10; rate < 0.95*full*(1-faults) {
				t.Errorf("%.0f calls a second of %.0f", rate, full)
			}
		})
	}

	fixture.OnFakeTime(t, "FollowsAProviderThatQueues", func(t *testing.T) {
		g := newTest(t, Config{})
		v := newProvider(0)
		v.takes = func(open int) time.Duration { // 100 at once, 50 ms each
			return 50 * time.Millisecond * time.Duration(max(open, 100)) / 100
		}
		v.workFor(t, 20*time.Second, g, 3000, job)
		if limit := g.State().Limit; limit < 80 || limit > 400 {
			t.Errorf("the limit is %d where 100 are served at once", limit)
		}
		if n := v.calls(10*time.Second, 20*time.Second); n < 18_000 {
			t.Errorf("%d calls in 10 s, want about 20,000", n)
		}
	})

	fixture.OnFakeTime(t, "GivesWayToAProviderThatRefuses", func(t *testing.T) {
		g := newTest(t, Config{})
		v := newProvider(50 * time.Millisecond)
		refused := 0
		v.says = func(_ int, at time.Duration) Outcome {
			if v.open < 100 {
				return paid
			}
			if at > 10*time.Second {
				refused++
			}
			return Outcome{Class: reward.AnswerThrottled, Status: 429, Took: 5 * time.Millisecond}
		}
		v.workFor(t, 20*time.Second, g, 3000, job)
		if limit := g.State().Limit; limit < 50 || limit > 150 {
			t.Errorf("the limit is %d where 100 are let in", limit)
		}
		if n := v.calls(10*time.Second, 20*time.Second); float64(refused) > 0.35*float64(n) || n-refused < 15_000 {
			t.Errorf("%d of %d calls refused", refused, n)
		}
	})

	// Being slower is no reason to hold back when fewer calls are no quicker.
	fixture.OnFakeTime(t, "LearnsThatTheProviderHasBecomeSlower", func(t *testing.T) {
		const most = 256
		g := newTest(t, Config{MaxConcurrency: most})
		v := newProvider(20 * time.Millisecond)
		v.workFor(t, 5*time.Second, g, 500, job)
		v.takes = func(int) time.Duration { return 200 * time.Millisecond }
		v.workFor(t, 15*time.Second, g, 500, job)
		if limit := g.State().Limit; limit != most {
			t.Errorf("the limit is %d", limit)
		}
	})

	fixture.OnFakeTime(t, "GrowsOnlyByUse", func(t *testing.T) {
		g := newTest(t, Config{})
		v := newProvider(50 * time.Millisecond)
		v.workFor(t, 10*time.Second, g, 20, job)
		if limit := g.State().Limit; limit != limitFirst {
			t.Errorf("the limit is %d", limit)
		}
	})

	t.Run("HasAFloor", func(t *testing.T) {
		t.Parallel()
		for most, want := range map[int]int{100: limitFloor, 3: 3} {
			synctest.Test(t, func(t *testing.T) {
				g := newTest(t, Config{MaxConcurrency: most})
				v := newProvider(10 * time.Millisecond)
				v.says = func(int, time.Duration) Outcome { return Outcome{Class: reward.AnswerThrottled, Status: 429} }
				v.workFor(t, 10*time.Second, g, 200, job)
				if limit := g.State().Limit; limit != want {
					t.Errorf("the limit is %d, want %d", limit, want)
				}
			})
		}
	})
}

func TestBaseline(t *testing.T) {
	t.Parallel()
	var b baseline
	for _, step := range []struct{ at, median, want time.Duration }{
		{0, 300, 300},
		{time.Second, 200, 200},
		{2 * time.Second, 400, 200},
		{20 * time.Second, 250, 200},
		{59 * time.Second, 500, 200},
		{61 * time.Second, 500, 250},
		{81 * time.Second, 600, 500},
		{time.Hour, 900, 900},
	} {
		if got := b.note(step.at, step.median); got != step.want {
			t.Errorf("at %v the lowest is %d, want %d", step.at, got, step.want)
		}
	}
}
