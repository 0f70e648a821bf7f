package redisstream

import (
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
)

// TestAnEntryThatNobodyHoldsIsClaimedALeaseLater makes orphans in each way that
// leaves some, next to entries that are in a living hand.
func TestAnEntryThatNobodyHoldsIsClaimedALeaseLater(t *testing.T) {
	t.Parallel()
	const lease = time.Hour
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		for name, orphan := range map[string]func(r *rig) (orphans, held []queue.Entry){
			"DelConsumer": func(r *rig) (orphans, held []queue.Entry) {
				orphans = r.readAs("b", 150) // more than one step looks at
				r.do("XGROUP", "DELCONSUMER", r.key(), r.group(), "b")
				return orphans, nil
			},
			"SetIDForward": func(r *rig) (orphans, held []queue.Entry) {
				all := fixture.Must(r.q.Range(r.Context(), r.s, 1000))(r)
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
				var ids []string
				for _, e := range append(held, more...) {
					ids = append(ids, e.ID)
				}
				adopt := func(minAge time.Duration) {
					t.Helper()
					for from, again := "", true; again; again = from != "" {
						from = fixture.Must(r.q.Adopt(t.Context(), queue.AdoptParams{Stream: r.s, Consumer: "c", MinAge: minAge, From: from}))(t)
					}
				}
				claim := func() []queue.Entry {
					t.Helper()
					return fixture.Must(r.q.Claim(t.Context(), queue.ClaimParams{Stream: r.s, Consumer: "c", MinIdle: lease, Count: 1000}))(t).Entries
				}
				adopt(lease)
				if consumers, err := r.q.Consumers(t.Context(), r.s); err != nil || slices.ContainsFunc(consumers, func(c queue.ConsumerInfo) bool { return c.Name == "c" }) {
					t.Fatalf("entries that are younger than a lease were adopted: %+v, %v", consumers, err)
				}
				adopt(0)
				if got := claim(); len(got) > 0 {
					t.Fatalf("claimed %d at once; whoever lost them has a lease of %v to end a call", len(got), lease)
				}
				r.age(r.s, 2*lease)
				if owned, err := r.q.Extend(t.Context(), r.s, "a", ids); err != nil || len(owned) != len(ids) {
					t.Fatalf("%d of %d entries are still in the living hand, %v", len(owned), len(ids), err)
				}
				for _, e := range claim() {
					if e.FirstDelivery || !want[e.ID] {
						t.Fatalf("claimed %+v", e)
					}
					delete(want, e.ID)
				}
				if len(want) > 0 {
					t.Errorf("%d of %d orphans were not claimed", len(want), len(orphans))
				}
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
