package queuetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// lease is a time that no entry of the suite is idle for, unless it is made older.
const lease = time.Hour

func exerciseClaim(t *testing.T, b *bundle) {
	b.add(0, 3)
	b.read("a", 2)
	b.age(lease / 2)
	if got := b.claim("b", lease, 10); len(got) != 0 {
		t.Fatalf("claimed before its time: %v", targets(got))
	}
	b.age(lease / 2)
	claimed := b.claim("b", lease/2+lease/4, 10)
	b.wantTargets(claimed, 0, 2) // but no unread entry
	for _, e := range claimed {
		if e.FirstDelivery || e.Consumer != "b" || !e.Readable || string(e.Message) != string(message(int(e.TargetID))) {
			t.Fatalf("claimed entry is %+v", e)
		}
	}
	b.wantPending("a", 0)
	b.wantPending("b", 2)
	if got := b.claim("c", lease/2, 10); len(got) != 0 {
		t.Fatalf("claiming starts a new lease, yet %v were claimed again", targets(got))
	}
	b.wantInfo(3, 2)
}

func exerciseConcurrentClaims(t *testing.T, b *bundle) {
	const total, claimers = 1000, 6
	b.add(0, total)
	b.read("dead", total)
	b.age(2 * lease)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // protects seen
		seen = map[reward.TargetID]int{}
	)
	start := make(chan struct{})
	for i := range claimers {
		wg.Go(func() {
			<-start
			got, err := b.q.Claim(b.ctx, queue.ClaimParams{
				Stream: b.s, Consumer: fmt.Sprintf("c%d", i), MinIdle: lease, Count: total / claimers,
			})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, e := range got.Entries {
				seen[e.TargetID]++
			}
		})
	}
	close(start)
	wg.Wait()
	if len(seen) == 0 {
		t.Fatal("nothing was claimed")
	}
	for target, n := range seen {
		if n != 1 {
			t.Fatalf("target %d was claimed %d times", target, n)
		}
	}
	b.wantInfo(total, total)
}

func exerciseClaimBehindLeased(t *testing.T, b *bundle) {
	// 300 leased entries precede one idle entry, which the claim must find.
	b.add(0, 301)
	front := b.read("a", 300)
	b.read("dead", 1)
	b.age(2 * lease)
	if owned := fixture.Must(b.q.Extend(b.ctx, b.s, "a", ids(front)))(t); len(owned) != len(front) {
		t.Fatalf("%d of %d leases were renewed", len(owned), len(front))
	}
	b.wantTargets(b.claim("b", lease, 2), 300, 1)
}

func exerciseExtend(t *testing.T, b *bundle) {
	b.add(0, 2)
	got := b.read("a", 2)
	b.age(lease / 2)
	if owned := fixture.Must(b.q.Extend(b.ctx, b.s, "a", ids(got[:1])))(t); !slices.Equal(owned, ids(got[:1])) {
		t.Fatalf("renewed %v, want %v", owned, ids(got[:1]))
	}
	b.age(lease * 3 / 4)
	b.wantTargets(b.claim("b", lease, 10), 1, 1)
	b.wantPending("a", 1)
}

func exerciseExtendTaken(t *testing.T, b *bundle) {
	b.add(0, 4)
	got := b.read("a", 3)
	b.claim("b", 0, 1)
	fixture.OK(b, b.q.Ack(b.ctx, b.s, []string{got[2].ID}))
	unread := fixture.Must(b.q.Range(b.ctx, b.s, 10))(t)[2]
	asked := append(ids(got), unread.ID, "1-1")
	b.age(2 * lease)
	owned := fixture.Must(b.q.Extend(b.ctx, b.s, "a", asked))(t)
	if !slices.Equal(owned, ids(got[1:2])) {
		t.Fatalf("a owns %v, Extend renewed %v", ids(got[1:2]), owned)
	}
	b.wantPending("a", 1)
	b.wantPending("b", 1)
	if none := fixture.Must(b.q.Extend(b.ctx, b.s, "a", nil))(t); len(none) != 0 {
		t.Fatalf("nothing was asked for, renewed %v", none)
	}
	// a's call has not renewed b's lease.
	b.wantTargets(b.claim("c", lease, 10), 0, 1)
	b.wantPending("b", 0)
}
