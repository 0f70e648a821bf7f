package queuetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

func exerciseReadOnce(t *testing.T, b *bundle) {
	b.add(0, 5)
	b.wantTargets(b.read("a", 3), 0, 3)
	b.wantTargets(b.read("b", 10), 3, 2)
	if again := b.read("a", 10); len(again) != 0 {
		t.Fatalf("given out twice: %+v", again)
	}
	b.wantInfo(5, 5)
	b.add(5, 1)
	b.wantTargets(b.read("a", 10), 5, 1)
}

func exerciseReadSeveral(t *testing.T, b *bundle) {
	b.add(0, 10)
	got := fixture.Must(b.q.Read(b.ctx, b.s, []queue.ReadParams{
		{Consumer: "a", Count: 4}, {Consumer: "none", Count: 0}, {Consumer: "b", Count: 3}, {Consumer: "c", Count: 100},
	}))(t)
	b.wantTargets(got, 0, 10)
	for i, want := range "aaaabbbccc" {
		if got[i].Consumer != string(want) {
			t.Fatalf("entry %d went to %s, want %c", i, got[i].Consumer, want)
		}
	}
	b.wantPending("a", 4)
	b.wantPending("b", 3)
	b.wantPending("c", 3)
	b.wantPending("none", -1)
}

func exerciseOnlyAdd(t *testing.T, b *bundle) {
	// A pool that polls late finds the stream of a finished promotion destroyed.
	poll := func() {
		t.Helper()
		if fixture.Must(b.q.Create(b.ctx, b.s, []string{"a", "b"}))(t) {
			t.Fatal("Create says that a missing stream exists")
		}
		if got := b.read("a", 10); len(got) != 0 {
			t.Fatalf("a missing stream gave %+v", got)
		}
		if got := b.claim("a", 0, 10); len(got) != 0 {
			t.Fatalf("a missing stream gave %+v", got)
		}
		if b.info().Exists {
			t.Fatal("a stream exists that nobody added to")
		}
		b.wantPending("a", -1)
	}
	poll()
	b.add(0, 2)
	got := b.read("a", 10)
	b.wantTargets(got, 0, 2)
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got)))
	if !fixture.Must(b.q.Destroy(b.ctx, b.s))(t) {
		t.Fatal("an empty stream was not destroyed")
	}
	poll()
	b.add(2, 1)
	b.wantTargets(b.read("b", 10), 2, 1)
}

func exerciseConcurrentReaders(t *testing.T, b *bundle) {
	const readers, total, batch = 8, 20_000, 500
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // protects seen
		seen = map[reward.TargetID]int{}
	)
	defer wg.Wait()
	for i := range readers {
		wg.Go(func() {
			consumer := fmt.Sprintf("host-1-%d", i)
			for deadline := time.Now().Add(fixture.Patience); ; {
				got, err := b.q.Read(b.ctx, b.s, []queue.ReadParams{{Consumer: consumer, Count: 64}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, e := range got {
					seen[e.TargetID]++
				}
				done := len(seen) == total
				mu.Unlock()
				if err := b.q.Ack(b.ctx, b.s, ids(got)); err != nil {
					t.Error(err)
					return
				}
				if done {
					return
				}
				if time.Now().After(deadline) {
					t.Errorf("%s waits for entries that do not come", consumer)
					return
				}
			}
		})
	}
	for from := 0; from < total; from += batch {
		b.add(from, batch)
	}
	wg.Wait()
	for target, n := range seen {
		if n != 1 {
			t.Fatalf("target %d was given out %d times", target, n)
		}
	}
	if len(seen) != total {
		t.Fatalf("%d of %d entries were given out", len(seen), total)
	}
	b.wantInfo(0, 0)
}

func exerciseAck(t *testing.T, b *bundle) {
	b.add(0, 6)
	got := b.read("a", 2)
	all := fixture.Must(b.q.Range(b.ctx, b.s, 10))(t)
	// A delivered entry, the next unread one, a later one, and an unknown ID.
	fixture.OK(b, b.q.Ack(b.ctx, b.s, []string{got[0].ID, all[2].ID, all[4].ID, "1-1"}))
	fixture.OK(b, b.q.Ack(b.ctx, b.s, []string{got[0].ID}))
	fixture.OK(b, b.q.Ack(b.ctx, b.s, nil))
	b.wantInfo(3, 1)
	b.wantPending("a", 1)
	rest := b.read("b", 10)
	if len(rest) != 2 || rest[0].TargetID != 3 || rest[1].TargetID != 5 {
		t.Fatalf("read %v, want targets 3 and 5", targets(rest))
	}
	// Any consumer may acknowledge an entry.
	fixture.OK(b, b.q.Ack(b.ctx, b.s, append(ids(rest), got[1].ID)))
	b.wantInfo(0, 0)
	if claimed := b.claim("c", 0, 10); len(claimed) != 0 {
		t.Fatalf("acknowledged entries were claimed: %+v", claimed)
	}
}

func exerciseInfo(t *testing.T, b *bundle) {
	before := time.Now().Add(-time.Second)
	b.add(0, 4)
	for range 2 {
		b.wantTargets(fixture.Must(b.q.Range(b.ctx, b.s, 3))(t), 0, 3)
	}
	for _, e := range fixture.Must(b.q.Range(b.ctx, b.s, 10))(t) {
		if e.FirstDelivery || !e.Readable || e.Consumer != "" {
			t.Fatalf("Range takes nothing, so nothing of it is Mine: %+v", e)
		}
	}
	if none := fixture.Must(b.q.Range(b.ctx, b.s, 0))(t); len(none) != 0 {
		t.Fatalf("none was asked for, got %+v", none)
	}
	i := b.info()
	if !i.Exists || i.Len != 4 || i.Pending != 0 {
		t.Fatalf("Info is %+v", i)
	}
	if !i.OldestPendingAt.IsZero() || i.Lag() != 4 {
		t.Fatalf("nothing is pending, and Info is %+v", i)
	}
	if i.At.Before(i.OldestAt) || i.At.After(time.Now().Add(time.Second)) {
		t.Fatalf("the oldest was added at %v, and Info is of %v", i.OldestAt, i.At)
	}
	if i.OldestAt.Before(before) || i.OldestAt.After(time.Now().Add(time.Second)) {
		t.Fatalf("OldestAt is %v, it is now %v", i.OldestAt, time.Now())
	}
	got := b.read("a", 10)
	b.wantTargets(got, 0, 4)
	if again := b.info(); !again.OldestAt.Equal(i.OldestAt) || !again.OldestPendingAt.Equal(i.OldestAt) || again.Lag() != 0 {
		t.Fatalf("the oldest is still there, and pending; Info was %+v and is %+v", i, again)
	}
	b.add(4, 1)
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got[:2])))
	if i := b.info(); i.Pending != 2 || i.Lag() != 1 || i.OldestPendingAt.IsZero() {
		t.Fatalf("two are pending and one is unread, and Info is %+v", i)
	}
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got[2:])))
	if i := b.info(); i.Lag() != 1 || !i.OldestPendingAt.IsZero() {
		t.Fatalf("one is unread and none pending, and Info is %+v", i)
	}
	got = b.read("a", 10)
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got)))
	if i := b.info(); !i.Exists || !i.OldestAt.IsZero() {
		t.Fatalf("Info of a drained stream is %+v", i)
	}
}

func exerciseMissing(t *testing.T, b *bundle) {
	i := b.info()
	if i.At = (time.Time{}); i != (queue.Info{}) {
		t.Fatalf("Info is %+v", i)
	}
	if c := fixture.Must(b.q.Consumers(b.ctx, b.s))(t); len(c) != 0 {
		t.Fatalf("Consumers are %+v", c)
	}
	if r := fixture.Must(b.q.Range(b.ctx, b.s, 10))(t); len(r) != 0 {
		t.Fatalf("Range is %+v", r)
	}
	if e := fixture.Must(b.q.Extend(b.ctx, b.s, "a", []string{"1-1"}))(t); len(e) != 0 {
		t.Fatalf("Extend renewed %v", e)
	}
	fixture.OK(b, b.q.Ack(b.ctx, b.s, []string{"1-1"}))
	if !fixture.Must(b.q.RemoveConsumer(b.ctx, b.s, "a", ""))(t) {
		t.Fatal("a consumer of a missing stream counts as removed")
	}
	if !fixture.Must(b.q.Destroy(b.ctx, b.s))(t) {
		t.Fatal("a missing stream counts as destroyed")
	}
	if b.info().Exists {
		t.Fatal("looking has made a stream")
	}
}

func exerciseStreamsApart(_ *testing.T, b *bundle) {
	point := *b
	point.s.Type = reward.Point
	b.add(0, 2)
	point.add(10, 3)
	b.wantTargets(b.read("a", 10), 0, 2)
	got := point.read("a", 10)
	point.wantTargets(got, 10, 3)
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got[:1]))) // IDs of the other stream
	point.wantInfo(3, 3)
}
