package bustest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
)

var errRefused = errors.New("refused by the test")

func testRestart(t *testing.T, b *bench) {
	const total = 3000
	b.publish(t, 0, total)
	seen := newLog()
	for half := range 2 {
		enough := make(chan struct{})
		var once sync.Once
		// The first listener is stopped in the middle; the second one gets the rest.
		l := b.listen(t, b.open(t), func(ctx context.Context, records []bus.Record) error {
			defer func() {
				if seen.distinct() >= (half+1)*total/2 {
					once.Do(func() { close(enough) })
				}
			}()
			return seen.handle(ctx, records)
		}, nil, 100)
		<-enough
		b.wantStops(t, l.Stop)
	}
	if n := seen.distinct(); n != total {
		t.Errorf("%d of %d records were handled", n, total)
	}
	// Both stops were clean, so the second one continued from the commits.
	wantOrdered(t, seen.all())
	b.waitNoLag(t)
}

func testRetry(t *testing.T, b *bench) {
	const total, failures = 200, 3
	b.publish(t, 0, total)
	var mu sync.Mutex
	var tries [][]bus.Record
	failed := make(chan struct{})
	resume := make(chan struct{})
	seen := newLog()
	b.listen(t, b.client, func(ctx context.Context, records []bus.Record) error {
		mu.Lock()
		tries = append(tries, records)
		n := len(tries)
		mu.Unlock()
		if n < failures {
			return errRefused
		}
		if n == failures {
			close(failed)
			select {
			case <-resume:
			case <-ctx.Done():
			}
			return errRefused
		}
		return seen.handle(ctx, records)
	}, nil, 0)
	<-failed
	if lag := b.lag(t); lag != total {
		t.Errorf("the lag is %d while nothing was handled, %d was wanted", lag, total)
	}
	close(resume)
	seen.wait(t, total)
	b.waitNoLag(t)
	wantOrdered(t, seen.all())
	mu.Lock()
	defer mu.Unlock()
	for i := 1; i <= failures; i++ {
		fixture.Equal(t, tries[0], tries[i])
	}
}

func testShare(t *testing.T, b *bench) {
	a, z, both := newLog(), newLog(), newLog()
	first := b.listen(t, b.open(t), a.and(both), nil, 10)
	second := b.listen(t, b.open(t), z.and(both), nil, 10)
	total := 0
	fixture.Until(t, "both listeners were given records", func() bool {
		b.publish(t, total, 50)
		total += 50
		return a.distinct() > 0 && z.distinct() > 0
	})
	b.wantStops(t, first.Stop)
	b.publish(t, total, 300)
	total += 300
	both.wait(t, total)
	b.waitNoLag(t)
	parts := map[int32]bool{}
	for _, r := range z.all() {
		parts[r.Partition] = true
	}
	if len(parts) != partitions {
		t.Errorf("the listener that stayed was given partitions %v, all %d were wanted", parts, partitions)
	}
	b.wantStops(t, second.Stop)
}

func testFailingShare(t *testing.T, b *bench) {
	both, seen := newLog(), newLog()
	var mu sync.Mutex
	parts := map[int32]bool{} // partitions of the failing listener's last batch
	fails := false            // since it was given a batch of every partition
	failing := b.listen(t, b.open(t), func(ctx context.Context, records []bus.Record) error {
		mu.Lock()
		defer mu.Unlock()
		clear(parts)
		for _, r := range records {
			parts[r.Partition] = true
		}
		if fails = fails || len(parts) == partitions; fails {
			return errRefused
		}
		return both.handle(ctx, records)
	}, nil, 0)
	given := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(parts)
	}
	sent := 0
	fixture.Until(t, "the failing listener has every partition", func() bool {
		b.publish(t, sent, 50)
		sent += 50
		return given() == partitions
	})
	b.listen(t, b.open(t), seen.and(both), nil, 0)
	fixture.Until(t, "the other one has taken partitions over", func() bool {
		return seen.distinct() > 0 && given() < partitions
	})
	b.wantStops(t, failing.Stop)
	both.wait(t, sent)
	b.waitNoLag(t)
}

// testUnhealthy has a listener whose instance can handle nothing for a while. It
// must leave all partitions to the other one, and take some back afterwards.
func testUnhealthy(t *testing.T, b *bench) {
	const total = 600
	var sick atomic.Bool
	a, z, both := newLog(), newLog(), newLog()
	handle := a.and(both)
	first := fixture.Must(bus.NewListener(b.open(t), bus.ListenerConfig{
		Group: group, Topic: topic, Healthy: func() bool { return !sick.Load() },
		Handle: func(ctx context.Context, records []bus.Record) error {
			if sick.Load() {
				<-ctx.Done() // a database that hangs
				return ctx.Err()
			}
			return handle(ctx, records)
		},
	}))(t)
	first.Start(t.Context())
	t.Cleanup(first.Stop)
	b.listen(t, b.open(t), z.and(both), nil, 0)
	sent := 0
	share := func() {
		t.Helper()
		before := a.distinct()
		fixture.Until(t, "both listeners were given records", func() bool {
			b.publish(t, sent, 50)
			sent += 50
			return a.distinct() > before && z.distinct() > 0
		})
	}
	share()
	sick.Store(true)
	b.publish(t, sent, total)
	sent += total
	both.wait(t, sent)
	b.waitNoLag(t)
	sick.Store(false)
	share()
	both.wait(t, sent)
	b.wantStops(t, first.Stop)
}

// handleAll makes the group commit all records of the topic, and returns them.
func (b *bench) handleAll(t *testing.T, total int) []bus.Record {
	t.Helper()
	seen := newLog()
	l := b.listen(t, b.client, seen.handle, nil, 0)
	seen.wait(t, total)
	b.waitNoLag(t)
	l.Stop()
	return seen.all()
}

func testStoredOffsets(t *testing.T, b *bench) {
	const total = 300
	b.publish(t, 0, total)
	want := 0
	for _, r := range b.handleAll(t, total) {
		if r.Offset >= 10 && r.Partition != 2 {
			want++
		}
	}
	seen := newLog()
	l := b.listen(t, b.client, seen.handle, func(_ context.Context, name string) (map[int32]int64, error) {
		if name != topic {
			return nil, errors.New("asked for " + name)
		}
		// Partition 2 has no stored offset, so its commit counts.
		return map[int32]int64{0: 10, 1: 10}, nil
	}, 0)
	seen.wait(t, want)
	b.wantStops(t, l.Stop)
	for _, r := range seen.all() {
		if r.Partition == 2 || r.Offset < 10 {
			t.Errorf("partition %d offset %d was read, which lies before the stored offset", r.Partition, r.Offset)
		}
	}
	wantOrdered(t, seen.all())
}

func testOffsetsBeyond(t *testing.T, b *bench) {
	const total = 300
	b.publish(t, 0, total)
	trim := kadm.Offsets{}
	for p := range int32(partitions) {
		trim.AddOffset(b.prefix+topic, p, 5, -1)
	}
	trimmed := fixture.Must(b.admin(t).DeleteRecords(t.Context(), trim))(t)
	fixture.OK(t, trimmed.Error())
	seen := newLog()
	b.listen(t, b.client, seen.handle, func(context.Context, string) (map[int32]int64, error) {
		// One offset before the start, one after the end.
		return map[int32]int64{0: 2, 1: 1_000_000, 2: 5}, nil
	}, 0)
	seen.wait(t, total-5*partitions)
	b.publish(t, total, 100)
	seen.wait(t, total-5*partitions+100)
	wantOrdered(t, seen.all())
	b.waitNoLag(t)
}

func testOffsetsFail(t *testing.T, b *bench) {
	const total = 100
	b.publish(t, 0, total)
	b.handleAll(t, total)
	seen := newLog()
	asked := 0
	b.listen(t, b.client, seen.handle, func(context.Context, string) (map[int32]int64, error) {
		asked++
		if asked <= 2 {
			if n := seen.distinct(); n > 0 {
				t.Errorf("%d records were read before the offsets were known", n)
			}
			return nil, errRefused
		}
		return map[int32]int64{0: 0, 1: 0, 2: 0}, nil
	}, 0)
	seen.wait(t, total)
	wantOrdered(t, seen.all())
}

func testStopWhileFailing(t *testing.T, b *bench) {
	b.publish(t, 0, 10)
	signal := func() (func() error, <-chan struct{}) {
		called := make(chan struct{}, 1)
		return func() error {
			select {
			case called <- struct{}{}:
			default:
			}
			return errRefused
		}, called
	}
	for _, offsetsFail := range []bool{false, true} {
		fail, called := signal()
		offsets := bus.OffsetsFunc(nil)
		if offsetsFail {
			offsets = func(context.Context, string) (map[int32]int64, error) { return nil, fail() }
		}
		l := b.listen(t, b.open(t), func(context.Context, []bus.Record) error { return fail() }, offsets, 0)
		<-called
		<-called
		b.wantStops(t, l.Stop)
		l.Stop()
	}
	fail, called := signal()
	c := fixture.Must(bus.NewBroadcast(b.client, bus.BroadcastConfig{
		Topic: topic, Handle: func(context.Context, []bus.Record) error { return fail() },
	}))(t)
	c.Start(t.Context())
	<-called
	<-called
	b.wantStops(t, c.Stop)
	select {
	case <-c.Ready():
		t.Error("a broadcast that handled nothing says that it is ready")
	default:
	}
	if lag := b.lag(t); lag != 10 {
		t.Errorf("the lag is %d though nothing was handled, 10 was wanted", lag)
	}
}
