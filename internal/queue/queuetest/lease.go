package queuetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// long is an idle time that no entry of the suite reaches.
const long = time.Hour

func exerciseClaim(t *testing.T, b *bundle) {
	const lease = 150 * time.Millisecond
	b.add(0, 3)
	before := time.Now()
	b.read("a", 2)
	if got := b.claim("b", long, 10); len(got) != 0 {
		t.Fatalf("claimed before its time: %v", targets(got))
	}
	var claimed []queue.Entry
	b.until("two entries are idle", func() bool {
		claimed = append(claimed, b.claim("b", lease, 10)...)
		if len(claimed) > 0 && time.Since(before) < lease {
			t.Fatalf("claimed after %v, the lease is %v", time.Since(before), lease)
		}
		return len(claimed) >= 2
	})
	b.wantTargets(claimed, 0, 2) // but no unread entry
	for _, e := range claimed {
		if e.FirstDelivery || e.Consumer != "b" || !e.Readable || string(e.Message) != string(message(int(e.TargetID))) {
			t.Fatalf("claimed entry is %+v", e)
		}
	}
	b.wantPending("a", 0)
	b.wantPending("b", 2)
	if got := b.claim("c", long, 10); len(got) != 0 {
		t.Fatalf("claiming starts a new lease, yet %v were claimed again", targets(got))
	}
	b.wantInfo(3, 2)
}

func exerciseConcurrentClaims(t *testing.T, b *bundle) {
	const (
		total, claimers = 1000, 6
		lease           = time.Second // outlasts all claims, also on a busy machine
	)
	b.add(0, total)
	b.read("dead", total)
	b.until("all are idle", func() bool {
		c := must(b.q.Consumers(b.ctx, b.s))(t)
		return len(c) == 1 && c[0].Idle >= lease+10*time.Millisecond
	})
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
	const lease = 100 * time.Millisecond
	var got []queue.Entry
	b.until("the last entry is idle", func() bool {
		if owned := must(b.q.Extend(b.ctx, b.s, "a", ids(front)))(t); len(owned) != len(front) {
			t.Fatalf("%d of %d leases were renewed", len(owned), len(front))
		}
		for _, e := range b.claim("b", lease, 2) {
			if e.TargetID == 300 {
				got = append(got, e)
			} else {
				// The machine paused for longer than the lease.
				front = slices.DeleteFunc(front, func(f queue.Entry) bool { return f.ID == e.ID })
			}
		}
		return len(got) > 0
	})
	b.wantTargets(got, 300, 1)
}

func exerciseExtend(t *testing.T, b *bundle) {
	for try := 1; !b.extendKeepsALease(); try++ {
		if try == 5 {
			t.Fatal("this machine stands still too often to tell whether a lease is kept")
		}
	}
}

// extendKeepsALease reports false if the machine paused for so long that the
// lease may have expired.
func (b *bundle) extendKeepsALease() bool {
	b.Helper()
	const lease = 400 * time.Millisecond
	b.add(0, 2)
	got := b.read("a", 2)
	renewedAt, stoodStill := time.Now(), false
	var claimed []queue.Entry
	b.until("the entry that is not renewed is claimed", func() bool {
		owned := must(b.q.Extend(b.ctx, b.s, "a", ids(got[:1])))(b)
		claimed = b.claim("b", lease, 10)
		stoodStill = stoodStill || time.Since(renewedAt) > lease/2
		renewedAt = time.Now()
		if !stoodStill && !slices.Equal(owned, ids(got[:1])) {
			b.Fatalf("renewed %v, want %v", owned, ids(got[:1]))
		}
		return stoodStill || len(claimed) > 0
	})
	if stoodStill {
		b.ok(b.q.Ack(b.ctx, b.s, ids(got)))
		return false
	}
	b.wantTargets(claimed, 1, 1)
	b.wantPending("a", 1)
	return true
}

func exerciseExtendTaken(t *testing.T, b *bundle) {
	b.add(0, 4)
	got := b.read("a", 3)
	b.claim("b", 0, 1)
	b.ok(b.q.Ack(b.ctx, b.s, []string{got[2].ID}))
	unread := must(b.q.Range(b.ctx, b.s, 10))(t)[2]
	asked := append(ids(got), unread.ID, "1-1")
	owned := must(b.q.Extend(b.ctx, b.s, "a", asked))(t)
	if !slices.Equal(owned, ids(got[1:2])) {
		t.Fatalf("a owns %v, Extend renewed %v", ids(got[1:2]), owned)
	}
	b.wantPending("a", 1)
	b.wantPending("b", 1)
	if none := must(b.q.Extend(b.ctx, b.s, "a", nil))(t); len(none) != 0 {
		t.Fatalf("nothing was asked for, renewed %v", none)
	}
	// a's call has not renewed b's lease.
	b.until("b's entry is idle", func() bool {
		must(b.q.Extend(b.ctx, b.s, "a", asked))(t)
		return len(b.claim("c", 80*time.Millisecond, 10)) > 0
	})
	b.wantPending("b", 0)
}
