package governor

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func TestFairness(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "WeightsHold", func(t *testing.T) {
		g := newTest(t, Config{MaxConcurrency: 20})
		v := newProvider(20 * time.Millisecond)
		jobs := []Job{{PromotionID: 1}, {PromotionID: 2, Weight: 2}, {PromotionID: 3, Weight: 5}, {PromotionID: 4, Weight: 1}}
		v.workFor(t, 20*time.Second, g, 50, jobs...)
		total := len(v.begun)
		for i, weight := range []int{1, 2, 5, 1} {
			share, want := float64(v.of[jobs[i].PromotionID])/float64(total), float64(weight)/9
			if share < 0.95*want || share > 1.05*want {
				t.Errorf("promotion %d got %.3f of %d calls, want %.3f", i+1, share, total, want)
			}
		}
	})

	fixture.OnFakeTime(t, "WhoWasIdleHasSavedNothingUp", func(t *testing.T) {
		g := newTest(t, Config{MaxConcurrency: 10})
		v := newProvider(10 * time.Millisecond)
		defer v.start(t, g, Job{PromotionID: 1}, 50)()
		defer v.start(t, g, Job{PromotionID: 2}, 50)()
		time.Sleep(10 * time.Second)
		before := v.callsOf(1)
		defer v.start(t, g, Job{PromotionID: 3}, 50)()
		time.Sleep(3 * time.Second)
		if got, late := v.callsOf(1)-before, v.callsOf(3); float64(got) < 0.95*float64(late) {
			t.Errorf("since the third came, the first got %d calls and the third %d", got, late)
		}
	})

	// No promotion starves, whichever others come and go: each of many small promotions
	// gets its turn while a heavy one never stops waiting.
	fixture.OnFakeTime(t, "NobodyStarves", func(t *testing.T) {
		g := newTest(t, Config{MaxConcurrency: 4})
		v := newProvider(10 * time.Millisecond)
		defer v.start(t, g, Job{PromotionID: 1, Weight: 50}, 200)()
		for i := range 500 {
			began := time.Now()
			p := acquire(t, g, Job{PromotionID: reward.PromotionID(2 + i)})
			if d := time.Since(began); d > 200*time.Millisecond {
				t.Fatalf("promotion %d waited %v", 2+i, d)
			}
			p.Done(v.call(2))
		}
		if n := len(g.flows); n > idleQueuesMax+10 {
			t.Errorf("%d promotions are remembered", n)
		}
	})
}
