//go:build servers

package redisstream

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/queue"
)

func TestTmpHostile(t *testing.T) {
	overServers(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		done := make(chan struct{})
		fin := make(chan struct{})
		go func() {
			defer close(fin)
			for {
				select {
				case <-done:
					return
				default:
					_, _ = r.q.Destroy(r.Context(), r.s)
				}
			}
		}()
		var rd, cl, cr, n int
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); n++ {
			if _, err := r.q.Read(r.Context(), r.s, []queue.ReadParams{{Consumer: "a", Count: 1}}); err != nil {
				rd++
			}
			if _, err := r.q.Claim(r.Context(), queue.ClaimParams{Stream: r.s, Consumer: "a", Count: 1}); err != nil {
				cl++
			}
			if err := r.q.Create(r.Context(), r.s, []string{"a"}); err != nil {
				cr++
			}
		}
		close(done)
		<-fin
		t.Logf("rounds %d: Read %d Claim %d Create %d failed", n, rd, cl, cr)
	})
}
