package queuetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

func exerciseCreate(t *testing.T, b *bundle) {
	names := []string{"host-1-0", "host-1-1", "host-1-2"}
	b.add(0, 2)
	for range 2 { // the second call changes nothing
		fixture.Must(b.q.Create(b.ctx, b.s, names))(t)
	}
	var got []string
	for _, c := range fixture.Must(b.q.Consumers(b.ctx, b.s))(t) {
		got = append(got, c.Name)
		if c.Pending != 0 || c.Idle < 0 || c.Idle > lease {
			t.Fatalf("a new consumer is %+v", c)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, names) {
		t.Fatalf("consumers are %v, want %v", got, names)
	}
	b.read("host-1-0", 1)
	fixture.Must(b.q.Create(b.ctx, b.s, nil))(t) // the group keeps its position
	b.wantTargets(b.read("host-1-1", 10), 1, 1)
}

func exerciseRemoveConsumer(t *testing.T, b *bundle) {
	const pending = 1250 // more than one step of any implementation
	b.add(0, pending+2)
	b.read("a", pending)
	b.read("b", 1)
	if !fixture.Must(b.q.RemoveConsumer(b.ctx, b.s, "a", "heir"))(t) {
		t.Fatal("a has an heir and was not removed")
	}
	b.wantPending("a", -1)
	b.wantPending("b", 1)
	b.wantPending("heir", pending)
	b.wantInfo(pending+2, pending+1)
	got := b.claim("c", 0, pending+1)
	if len(got) != pending+1 {
		t.Fatalf("%d of %d entries can be claimed", len(got), pending+1)
	}
	b.wantTargets(b.read("c", 10), pending+1, 1)

	if !fixture.Must(b.q.RemoveConsumer(b.ctx, b.s, "a", "heir"))(t) {
		t.Fatal("what is removed counts as removed")
	}
	_, err := b.q.RemoveConsumer(b.ctx, b.s, "c", "c")
	b.wantError("RemoveConsumer with itself as heir", err)
	b.wantPending("c", pending+2)
}

func exerciseRemoveConsumerIdle(t *testing.T, b *bundle) {
	b.add(0, 1)
	b.read("a", 1)
	b.age(2 * lease)
	fixture.Must(b.q.RemoveConsumer(b.ctx, b.s, "a", "heir"))(t)
	if got := b.claim("b", lease, 1); len(got) != 1 {
		t.Fatal("handing an entry on has begun a new lease")
	}
}

func exerciseRemoveConsumerNoHeir(t *testing.T, b *bundle) {
	b.add(0, 3)
	got := b.read("a", 3)
	if fixture.Must(b.q.RemoveConsumer(b.ctx, b.s, "a", ""))(t) {
		t.Fatal("a consumer was removed with what it had pending")
	}
	b.wantPending("a", 3)
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got)))
	if !fixture.Must(b.q.RemoveConsumer(b.ctx, b.s, "a", ""))(t) {
		t.Fatal("a consumer with nothing pending was not removed")
	}
	b.wantPending("a", -1)
}

func exerciseDestroy(t *testing.T, b *bundle) {
	b.add(0, 1)
	fixture.Must(b.q.Create(b.ctx, b.s, []string{"a"}))(t)
	if fixture.Must(b.q.Destroy(b.ctx, b.s))(t) {
		t.Fatal("an unread entry was destroyed")
	}
	got := b.read("a", 1)
	if fixture.Must(b.q.Destroy(b.ctx, b.s))(t) {
		t.Fatal("a pending entry was destroyed")
	}
	b.wantInfo(1, 1)
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got)))
	for range 2 {
		if !fixture.Must(b.q.Destroy(b.ctx, b.s))(t) {
			t.Fatal("an empty stream was not destroyed")
		}
	}
	if i := b.info(); i.Exists {
		t.Fatalf("Info of a destroyed stream is %+v", i)
	}
	// A late Add creates the stream and its group again.
	b.add(5, 2)
	again := b.read("a", 10)
	b.wantTargets(again, 5, 2)
	if !again[0].FirstDelivery {
		t.Fatal("a new entry of a stream that was created again is Mine")
	}
}

func exerciseDestroyRace(t *testing.T, b *bundle) {
	const rounds = 300
	var (
		wg   sync.WaitGroup
		done = make(chan struct{})
		seen = map[reward.TargetID]int{}
	)
	stop := sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
	defer stop()
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := b.q.Destroy(b.ctx, b.s); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range rounds {
		b.add(i, 1)
		got := b.read("a", 10)
		for _, e := range got {
			seen[e.TargetID]++
		}
		fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got)))
	}
	stop()
	for i := range rounds {
		if seen[reward.TargetID(i)] != 1 {
			t.Fatalf("target %d was given out %d times", i, seen[reward.TargetID(i)])
		}
	}
}

func exerciseClocks(t *testing.T, b *bundle) {
	clocks := fixture.Must(b.q.Clocks(b.ctx))(t)
	for _, c := range []service.Clock{clocks.Worst, clocks.Of(b.s)} {
		if c.Skew() > 500*time.Millisecond || c.RoundTrip < 0 { // the servers are on this machine
			t.Fatalf("a clock is %+v", c)
		}
	}
}

func exerciseWakes(_ *testing.T, b *bundle) {
	b.add(0, 2)
	b.wantWake(b.s)
	other := *b
	other.s = queue.Stream{Type: reward.Point, PromotionID: 9}
	other.add(0, 1)
	b.wantWake(other.s)
	got := b.read("a", 10)
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got)))
	b.add(2, 1) // empty again, so there is a hint again
	b.wantWake(b.s)
	b.read("a", 10)
	b.add(3, 1) // an entry is pending, but every entry was read
	b.wantWake(b.s)
}

func (b *bundle) wantWake(s queue.Stream) {
	b.Helper()
	for got := (queue.Stream{}); got != s; {
		var open bool
		if got, open = b.nextWake(); !open {
			b.Fatal("the channel of wakes is closed")
		}
	}
}

// Calls returns every method that can fail, by name.
func Calls(ctx context.Context, q queue.Queue, s queue.Stream) map[string]func() error {
	return map[string]func() error{
		"Add": func() error {
			_, err := q.Add(ctx, queue.AddParams{Stream: s, MaxLen: 9, Deadline: time.Now().Add(time.Minute), Entries: newEntries(0, 1)})
			return err
		},
		"Create": func() error { _, err := q.Create(ctx, s, []string{"a"}); return err },
		"Read": func() error {
			_, err := q.Read(ctx, s, []queue.ReadParams{{Consumer: "a", Count: 1}})
			return err
		},
		"Claim": func() error {
			_, err := q.Claim(ctx, queue.ClaimParams{Stream: s, Consumer: "a", Count: 1})
			return err
		},
		"Adopt": func() error {
			_, err := q.Adopt(ctx, queue.AdoptParams{Stream: s, Consumer: "a"})
			return err
		},
		"Extend":         func() error { _, err := q.Extend(ctx, s, "a", []string{"1-1"}); return err },
		"Ack":            func() error { return q.Ack(ctx, s, []string{"1-1"}) },
		"RemoveConsumer": func() error { _, err := q.RemoveConsumer(ctx, s, "a", ""); return err },
		"Destroy":        func() error { _, err := q.Destroy(ctx, s); return err },
		"Consumers":      func() error { _, err := q.Consumers(ctx, s); return err },
		"Info":           func() error { _, err := q.Info(ctx, s); return err },
		"Range":          func() error { _, err := q.Range(ctx, s, 1); return err },
		"Clocks":         func() error { _, err := q.Clocks(ctx); return err },
		"Ping":           func() error { return q.Ping(ctx) },
	}
}

func exerciseCancelled(_ *testing.T, b *bundle) {
	b.add(0, 1)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	for name, call := range Calls(ctx, b.q, b.s) {
		b.wantError(fmt.Sprintf("%s under a cancelled context", name), call())
	}
	b.wantInfo(1, 0)
	b.wantTargets(b.read("a", 10), 0, 1)
}

func exerciseClose(_ *testing.T, b *bundle) {
	fixture.OK(b, b.q.Ping(b.ctx))
	b.q.Close()
	b.q.Close()
	for open := true; open; {
		_, open = b.nextWake()
	}
	for name, call := range Calls(b.ctx, b.q, b.s) {
		b.wantError(name+" after Close", call())
	}
}
