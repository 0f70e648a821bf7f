package redisstream

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/queue"
)

// TestAnEntryThatNobodyHoldsIsClaimedALeaseLater makes orphans in each way that
// leaves some, next to entries that are in a living hand.
func TestAnEntryThatNobodyHoldsIsClaimedALeaseLater(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second // a busy machine must not take as long between an Extend and a Claim
	overServers(t, func(t *testing.T, url string) {
		for name, orphan := range map[string]func(r *rig) (orphans, held []queue.Entry){
			"DelConsumer": func(r *rig) (orphans, held []queue.Entry) {
				orphans = r.readAs("b", 150) // more than one step looks at
				r.do("XGROUP", "DELCONSUMER", r.key(), r.group(), "b")
				return orphans, nil
			},
			"SetIDForward": func(r *rig) (orphans, held []queue.Entry) {
				all, err := r.q.Range(r.Context(), r.s, 1000)
				if err != nil {
					r.Fatal(err)
				}
				r.do("XGROUP", "SETID", r.key(), r.group(), all[159].ID)
				return all[10:160], nil
			},
			// What is deleted and still pending cuts the reply about a page of 100
			// entries short, before the living ones at its end.
			"BeforeDeleted": func(r *rig) (orphans, held []queue.Entry) {
				for _, e := range r.readAs("a", 95) {
					r.do("XDEL", r.key(), e.ID)
				}
				orphans = r.readAs("b", 80)
				held = r.readAs("a", 10)
				r.do("XGROUP", "DELCONSUMER", r.key(), r.group(), "b")
				return orphans, held
			},
			// More living entries than one step looks at are older than the orphans.
			"BehindLiving": func(r *rig) (orphans, held []queue.Entry) {
				held = r.readAs("a", 1200)
				orphans = r.readAs("b", 20)
				r.do("XGROUP", "DELCONSUMER", r.key(), r.group(), "b")
				return orphans, held
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, url)
				r.add(0, 1400)
				held := r.readAs("a", 10)
				orphans, more := orphan(r)
				want := map[string]bool{}
				for _, e := range orphans {
					want[e.ID] = true
				}
				from := ""
				claim := func(minIdle time.Duration) []queue.Entry {
					t.Helper()
					next, err := r.q.Adopt(t.Context(), queue.AdoptParams{Stream: r.s, Consumer: "c", MinAge: minIdle, From: from})
					if err != nil {
						t.Fatal(err)
					}
					from = next
					got, err := r.q.Claim(t.Context(), queue.ClaimParams{Stream: r.s, Consumer: "c", MinIdle: minIdle, Count: 1000})
					if err != nil {
						t.Fatal(err)
					}
					return got.Entries
				}
				var ids []string
				for _, e := range append(held, more...) {
					ids = append(ids, e.ID)
				}
				began := time.Now()
				claimed := map[string]bool{}
				r.until("all orphans are claimed", func() bool {
					if owned, err := r.q.Extend(t.Context(), r.s, "a", ids); err != nil || len(owned) != len(ids) {
						t.Fatalf("%d of %d entries are still in the living hand, %v", len(owned), len(ids), err)
					}
					for _, e := range claim(lease) {
						if e.FirstDelivery || !want[e.ID] {
							t.Fatalf("claimed %+v", e)
						}
						claimed[e.ID] = true
					}
					if len(claimed) > 0 && time.Since(began) < lease {
						t.Fatalf("claimed after %v; whoever lost it has a lease of %v to end a call", time.Since(began), lease)
					}
					return len(claimed) == len(want)
				})
			})
		}
	})
}

func (r *rig) readAs(consumer string, n int) []queue.Entry {
	r.Helper()
	got, err := r.q.Read(r.Context(), r.s, []queue.ReadParams{{Consumer: consumer, Count: n}})
	if err != nil || len(got) != n {
		r.Fatalf("read %d of %d, %v", len(got), n, err)
	}
	return got
}
