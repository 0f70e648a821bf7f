package governor

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestUpdate: calls that wait for a rate get another one, although no further call
// brings it.
func TestUpdate(t *testing.T) {
	t.Parallel()
	const calls = 100
	for name, tc := range map[string]struct {
		to        Job
		instances int
	}{
		"Faster":               {Job{PromotionID: 1, RatePerSecond: 1000}, 1},
		"WithoutARate":         {Job{PromotionID: 1}, 1},
		"FasterOnTwoInstances": {Job{PromotionID: 1, RatePerSecond: 1000}, 2},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			shared := &distant{trip: time.Millisecond}
			var all []*Governor
			var group sync.WaitGroup
			for range tc.instances {
				g := newTest(t, Config{Rates: shared, Instances: func() int { return tc.instances }})
				all = append(all, g)
				for range calls {
					group.Go(func() { acquire(t, g, Job{PromotionID: 1, RatePerSecond: 1}).Done(Outcome{}) })
				}
			}
			time.Sleep(5 * time.Second)
			for _, g := range all {
				if n := g.State().Waiting[1]; n < calls-6 {
					t.Errorf("%d calls wait at one call per second", n)
				}
				g.Update(tc.to)
			}
			began := time.Now()
			group.Wait()
			if took := time.Since(began); took > 1500*time.Millisecond {
				t.Errorf("the waiting calls took %s with the new rate", took)
			}
		})
	}
	fixture.OnFakeTime(t, "Slower", func(t *testing.T) {
		g := newTest(t, Config{MaxConcurrency: 1})
		first := acquire(t, g, Job{PromotionID: 1})
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() { acquire(t, g, Job{PromotionID: 1}).Done(Outcome{}) })
		}
		synctest.Wait()
		g.Update(Job{PromotionID: 1, RatePerSecond: 1})
		began := time.Now()
		first.Done(Outcome{})
		group.Wait()
		if took := time.Since(began); took < 1900*time.Millisecond {
			t.Errorf("three waiting calls took %s at one call per second", took)
		}
	})
}
