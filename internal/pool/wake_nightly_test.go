//go:build nightly

package pool_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/pool"
)

// TestWakeUp: from XADD to the start of processing it takes at most 5 ms, 99
// times of 100, while the pools of two instances have nothing else to do and
// would look by themselves only 100 ms apart.
func TestWakeUp(t *testing.T) {
	const (
		rounds = 200
		series = 3 // a machine that was busy with something else gets another try
		limit  = 5 * time.Millisecond
	)
	overServers(t, func(t *testing.T, w *world) {
		a, b := w.instance("host-a", nil), w.instance("host-b", nil)
		w.open(a.q, voucher) // without a stream, no consumer can be registered
		a.Converge([]pool.Spec{spec(voucher, 1000)})
		b.Converge([]pool.Spec{spec(voucher, 1000)})
		w.until(patience, "both pools are there", func() bool { return len(w.consumers(voucher)) == 4 })
		added := 0
		for n := range series {
			var took []time.Duration
			for range rounds {
				at := time.Now()
				w.enqueue(a.q, voucher, added, 1)
				added++
				w.until(patience, "it is handled", func() bool { return a.count()+b.count() == added && w.length(voucher) == 0 })
				took = append(took, latest(a, b).Sub(at))
				// Long enough for the pause between polls to have grown, and never in
				// step with it.
				time.Sleep(60*time.Millisecond + rand.N(80*time.Millisecond))
			}
			slices.Sort(took)
			p99 := took[rounds*99/100-1]
			t.Logf("series %d: median %v, p99 %v, longest %v", n+1, took[rounds/2], p99, took[rounds-1])
			if p99 <= limit {
				return
			}
		}
		t.Errorf("p99 above %v in each of %d series", limit, series)
	})
}

// latest is when the latest entry was handled.
func latest(all ...*instance) time.Time {
	var out time.Time
	for _, in := range all {
		in.mu.Lock()
		if at := in.at[max(len(in.at)-1, 0):]; len(at) > 0 && at[0].After(out) {
			out = at[0]
		}
		in.mu.Unlock()
	}
	return out
}
