package pool_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// Most tests of this file are those of the two original designs (dynamic consumer
// management 7.1–7.8, custom polling loop 6.1–6.4), each under its own name. Where
// those expect the stream to be gone after a stop, both halves are held here: unfinished,
// all of it stays; drained and final, nothing is left.

var (
	voucher = queue.Stream{Type: reward.Voucher, PromotionID: 1}
	point   = queue.Stream{Type: reward.Point, PromotionID: 2}
)

// world is where instances run.
type world struct {
	*testing.T
	connect func() queue.Queue // of one instance
}

// onFakeTime runs a test in a synctest bubble, with a queue in memory.
func onFakeTime(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		t.Cleanup(q.Close)
		test(t, &world{T: t, connect: func() queue.Queue { return q }})
	})
}

// onRedis runs a test on Redis, on the real clock.
func onRedis(t *testing.T, test func(t *testing.T, w *world, url, prefix string)) {
	t.Helper()
	t.Parallel()
	url := fixture.Address(t, fleet.VariableRedis)
	prefix := fixture.Keys(t, url)
	test(t, &world{T: t, connect: func() queue.Queue {
		q, err := redisstream.Open(t.Context(), redisstream.Config{URL: url, KeyPrefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		return q
	}}, url, prefix)
}

// instance is a manager with a connection of its own, as in a process of its
// own, and a handler that acknowledges what it is given while it works.
type instance struct {
	*pool.Manager
	w *world
	q queue.Queue

	mu      sync.Mutex // protects what follows
	works   bool
	handled map[string]int // times handled, by entry id
	held    []*pool.Item   // not acknowledged while it does not work
}

func (w *world) instance(name string, change func(*pool.Config)) *instance {
	w.Helper()
	q := w.connect()
	in := &instance{w: w, q: q, works: true, handled: make(map[string]int)}
	cfg := pool.Config{
		Queue: q, Handler: in, Instance: name, MinConsumers: 1, MaxConsumers: 32, InFlight: 64, BatchSize: 10,
		PollInterval: 100 * time.Millisecond, IdleTimeout: 30 * time.Second, Lease: 15 * time.Second, StopTimeout: 5 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	in.Manager = pool.NewManager(cfg)
	in.Run(w.Context())
	w.Cleanup(func() {
		in.work(true)
		in.StopAll()
	})
	return in
}

// Handle implements pool.Handler.
func (in *instance) Handle(_ context.Context, items []*pool.Item) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, it := range items {
		in.handled[it.ID]++
	}
	if !in.works {
		in.held = append(in.held, items...)
		return
	}
	go in.settle(items)
}

func (in *instance) settle(items []*pool.Item) {
	for _, it := range items {
		if err := in.q.Ack(context.Background(), it.Stream, []string{it.ID}); err != nil {
			in.w.Errorf("acknowledge %s: %v", it.ID, err)
		}
		it.Release()
	}
}

// work makes the handler acknowledge, or hold, what it is given; what was held
// is acknowledged.
func (in *instance) work(yes bool) {
	in.mu.Lock()
	held := in.held
	in.works = yes
	if yes {
		in.held = nil
	}
	in.mu.Unlock()
	if yes {
		in.settle(held)
	}
}

// drop releases what is held without acknowledging it.
func (in *instance) drop() {
	in.mu.Lock()
	held := in.held
	in.held = nil
	in.mu.Unlock()
	for _, it := range held {
		it.Release()
	}
}

func (in *instance) count() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.handled)
}

func (in *instance) holds() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.held)
}

// enqueue adds n entries, as the producer of the payouts does.
func (w *world) enqueue(q queue.Queue, s queue.Stream, from, n int) {
	w.Helper()
	p := queue.AddParams{Stream: s, MaxLen: 100_000, Deadline: time.Now().Add(time.Minute)}
	for i := range n {
		p.Entries = append(p.Entries, queue.NewEntry{
			TargetID: reward.TargetID(from + i), Dispatch: 1,
			Message: fmt.Appendf(nil, `{"promotionId":%s,"targetId":%d}`, s.PromotionID, from+i),
		})
	}
	if added, err := q.Add(w.Context(), p); err != nil || added != n {
		w.Fatalf("added %d of %d: %v", added, n, err)
	}
}

// open makes an empty stream: only an add makes one.
func (w *world) open(q queue.Queue, s queue.Stream) {
	w.Helper()
	w.enqueue(q, s, 0, 1)
	entries, err := q.Range(w.Context(), s, 1)
	if err != nil || len(entries) != 1 {
		w.Fatal(entries, err)
	}
	if err := q.Ack(w.Context(), s, []string{entries[0].ID}); err != nil {
		w.Fatal(err)
	}
}

// info looks at a stream as another instance would.
func (w *world) info(in *instance, s queue.Stream) queue.Info {
	w.Helper()
	info, err := in.q.Info(w.Context(), s)
	if err != nil {
		w.Fatal(err)
	}
	return info
}

// consumers returns the names of the consumers of a stream.
func (w *world) consumers(in *instance, s queue.Stream) []string {
	w.Helper()
	list, err := in.q.Consumers(w.Context(), s)
	if err != nil {
		w.Fatal(err)
	}
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.Name
	}
	slices.Sort(names)
	return names
}

func spec(s queue.Stream, total int64) pool.Spec {
	return pool.Spec{Stream: s, Total: total, Work: true}
}

func final(s queue.Stream, total int64) pool.Spec {
	return pool.Spec{Stream: s, Total: total, Final: true}
}

// TestStartConsumers starts a pool: it is registered, its group exists with all
// its consumers, and added entries are handled and acknowledged.
func TestStartConsumers(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		w.open(in.q, voucher)
		in.Start(spec(voucher, 1000))
		if !in.Active(1) {
			t.Fatal("the pool is not registered")
		}
		fixture.Until(w, "both consumers are registered", func() bool {
			return slices.Equal(w.consumers(in, voucher), []string{"host-1-0", "host-1-1"})
		})
		w.enqueue(in.q, voucher, 0, 10)
		fixture.Until(w, "ten entries are handled", func() bool { return in.count() == 10 })
		fixture.Until(w, "nothing is pending", func() bool { return w.info(in, voucher).Pending == 0 && w.info(in, voucher).Len == 0 })
	})
}

// TestStopConsumers stops a pool and finds nothing of it left.
func TestStopConsumers(t *testing.T) {
	onRedis(t, func(t *testing.T, w *world, _, _ string) {
		in := w.instance("host-1", nil)
		in.Start(spec(voucher, 1000))
		w.enqueue(in.q, voucher, 0, 3)
		fixture.Until(w, "all is handled", func() bool { return in.count() == 3 && w.info(in, voucher).Len == 0 })
		in.Stop(1)
		if in.Active(1) {
			t.Fatal("the pool is still registered")
		}
		if left := w.consumers(in, voucher); len(left) > 0 {
			t.Fatalf("consumers are left: %v", left)
		}

		// Unfinished: what comes now is not received, and stays.
		w.enqueue(in.q, voucher, 3, 4)
		if !w.info(in, voucher).Exists || w.info(in, voucher).Len != 4 || in.count() != 3 {
			t.Fatalf("after the stop %d entries are left and %d were handled; want 4 and 3", w.info(in, voucher).Len, in.count())
		}
		in.Converge([]pool.Spec{spec(voucher, 1000)})
		fixture.Until(w, "the rows ask for a pool, and all is handled", func() bool { return in.count() == 7 && w.info(in, voucher).Len == 0 })

		// Drained and final: nothing is left.
		in.Converge([]pool.Spec{final(voucher, 1000)})
		fixture.Until(w, "the stream is gone", func() bool { return !in.Active(1) && !w.info(in, voucher).Exists })
	})
}

// TestStartConsumersTwice starts a pool twice: the second start changes
// nothing.
func TestStartConsumersTwice(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		w.open(in.q, voucher)
		in.Start(spec(voucher, 1000))
		fixture.Until(w, "the consumers are registered", func() bool { return len(w.consumers(in, voucher)) == 2 })
		before := in.Pools()
		in.Start(spec(voucher, 1_000_000))
		in.Start(spec(voucher, 1000))
		if after := in.Pools(); !in.Active(1) || len(after) != 1 || after[0].StartedAt != before[0].StartedAt || len(after[0].Consumers) != 2 {
			t.Fatalf("the pool was %+v and is %+v", before, after)
		}
	})
}

// TestCleanupStreamOfSeveralInstances stops two instances: each removes only its
// own consumers, and the last one destroys the stream when it may.
func TestCleanupStreamOfSeveralInstances(t *testing.T) {
	onRedis(t, func(t *testing.T, w *world, _, _ string) {
		a, b := w.instance("host-a", nil), w.instance("host-b", nil)
		w.open(a.q, voucher)
		a.Start(spec(voucher, 1000))
		b.Start(spec(voucher, 1000))
		both := []string{"host-a-0", "host-a-1", "host-b-0", "host-b-1"}
		fixture.Until(w, "all four consumers are registered", func() bool { return slices.Equal(w.consumers(a, voucher), both) })

		a.work(false)
		b.work(false)
		w.enqueue(a.q, voucher, 0, 6)
		fixture.Until(w, "all is in hand", func() bool { return a.holds()+b.holds() == 6 })
		a.drop()
		a.Stop(1)
		if left := w.consumers(a, voucher); !slices.Equal(left, both[2:]) {
			t.Fatalf("after one instance stopped the consumers are %v", left)
		}
		if w.info(a, voucher).Len != 6 || w.info(a, voucher).Pending != 6 {
			t.Fatalf("%d entries are left, %d of them pending; want 6 and 6", w.info(a, voucher).Len, w.info(a, voucher).Pending)
		}

		// Unfinished: also the last one leaves all of it.
		b.drop()
		b.Stop(1)
		if !w.info(a, voucher).Exists || w.info(a, voucher).Len != 6 || w.info(a, voucher).Pending != 6 {
			t.Fatalf("after the last instance stopped %d entries are left, %d of them pending; want 6 and 6", w.info(a, voucher).Len, w.info(a, voucher).Pending)
		}

		// Drained and final: nothing is left, whichever instance is last.
		ids, err := a.q.Range(t.Context(), voucher, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ids {
			if err := a.q.Ack(t.Context(), voucher, []string{e.ID}); err != nil {
				t.Fatal(err)
			}
		}
		a.Start(spec(voucher, 1000))
		b.Start(spec(voucher, 1000))
		fixture.Until(w, "both are back", func() bool { return len(w.consumers(a, voucher)) >= 4 })
		a.Converge([]pool.Spec{final(voucher, 1000)})
		b.Converge([]pool.Spec{final(voucher, 1000)})
		fixture.Until(w, "the stream is gone", func() bool { return !a.Active(1) && !b.Active(1) && !w.info(a, voucher).Exists })
	})
}

// TestShutdownAll stops all pools of an instance at once.
func TestShutdownAll(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		w.open(in.q, voucher)
		w.open(in.q, point)
		in.Converge([]pool.Spec{spec(voucher, 1000), spec(point, 5000)})
		fixture.Until(w, "both pools have their consumers", func() bool { return len(w.consumers(in, voucher)) == 2 && len(w.consumers(in, point)) == 4 })
		w.enqueue(in.q, voucher, 0, 5)
		fixture.Until(w, "all is handled", func() bool { return in.count() == 5 && w.info(in, voucher).Len == 0 })
		in.work(false)
		w.enqueue(in.q, point, 0, 5)
		fixture.Until(w, "all is in hand", func() bool { return in.holds() == 5 })
		in.drop()
		in.StopAll()
		if in.Active(1) || in.Active(2) {
			t.Fatal("a pool is still registered")
		}
		// Unfinished stays; of what is finished the consumers are gone.
		if w.info(in, point).Len != 5 || w.info(in, point).Pending != 5 || len(w.consumers(in, voucher)) != 0 {
			t.Fatalf("%d entries are left, %d pending, and consumers %v of the drained stream", w.info(in, point).Len, w.info(in, point).Pending, w.consumers(in, voucher))
		}
		in.Start(spec(voucher, 1000))
		if in.Active(1) {
			t.Fatal("a pool started after the end")
		}

		// Drained and final: an end takes the stream along.
		last := w.instance("host-2", nil)
		last.Converge([]pool.Spec{spec(voucher, 1000)})
		fixture.Until(w, "another instance is there", func() bool { return len(w.consumers(in, voucher)) == 2 })
		last.Converge([]pool.Spec{final(voucher, 1000)})
		last.StopAll()
		if w.info(in, voucher).Exists {
			t.Fatal("the stream of a drained and final promotion is left")
		}
	})
}

// TestProducerManagerConsumer adds entries, starts a pool that receives and
// acknowledges them, and stops it.
func TestProducerManagerConsumer(t *testing.T) {
	onRedis(t, func(t *testing.T, w *world, _, _ string) {
		in := w.instance("host-1", nil)
		in.Start(spec(voucher, 1000))
		for i := range 20 {
			w.enqueue(in.q, voucher, i, 1)
		}
		fixture.Until(w, "twenty entries are handled and acknowledged", func() bool { return in.count() == 20 && w.info(in, voucher).Len == 0 })
		if n := w.info(in, voucher).Pending; n != 0 {
			t.Fatalf("%d are pending", n)
		}
		for id, times := range in.handled {
			if times != 1 {
				t.Errorf("%s was handled %d times", id, times)
			}
		}
		in.Stop(1)
		if in.Active(1) || len(w.consumers(in, voucher)) != 0 {
			t.Fatalf("after the stop the consumers are %v", w.consumers(in, voucher))
		}
		in.Start(spec(voucher, 1000))
		in.Converge([]pool.Spec{final(voucher, 1000)})
		fixture.Until(w, "the stream is gone", func() bool { return !in.Active(1) && !w.info(in, voucher).Exists })
	})
}

// TestPollingLoop has a pool read and acknowledge what was added before.
func TestPollingLoop(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		w.enqueue(in.q, voucher, 0, 250)
		in.Start(spec(voucher, 10_000))
		fixture.Until(w, "all is handled", func() bool { return in.count() == 250 })
		fixture.Until(w, "nothing is left", func() bool { return w.info(in, voucher).Len == 0 && w.info(in, voucher).Pending == 0 })
	})
}

// TestIdleAutoStop waits until the pool of an idle promotion stops
// automatically. While payouts of it are dispatched anywhere, the pool stays.
func TestIdleAutoStop(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world) {
		brief := func(c *pool.Config) { c.IdleTimeout = 500 * time.Millisecond }
		a, b := w.instance("host-a", brief), w.instance("host-b", brief)
		for _, in := range []*instance{a, b} {
			in.Converge([]pool.Spec{spec(voucher, 1)})
		}
		w.enqueue(a.q, voucher, 0, 10)
		fixture.Until(w, "all is handled", func() bool { return a.count()+b.count() == 10 && w.info(a, voucher).Len == 0 })

		// The rows still say that something is dispatched: both stay.
		for range 15 { // longer than the idle timeout
			for _, in := range []*instance{a, b} {
				in.Converge([]pool.Spec{spec(voucher, 1)})
				if !in.Active(1) {
					t.Fatal("a pool ended although the promotion has work")
				}
			}
			time.Sleep(100 * time.Millisecond)
		}

		idle := []pool.Spec{{Stream: voucher, Total: 1}}
		a.Converge(idle)
		b.Converge(idle)
		fixture.Until(w, "both ended by themselves", func() bool { return !a.Active(1) && !b.Active(1) && len(w.consumers(a, voucher)) == 0 })

		// Unfinished: what comes later is not stranded.
		w.enqueue(a.q, voucher, 10, 1)
		fixture.Until(w, "the wake-up started a pool", func() bool { return a.count()+b.count() == 11 })
		fixture.Until(w, "idle again", func() bool { return !a.Active(1) && !b.Active(1) })
		a.Converge([]pool.Spec{spec(voucher, 1)})
		w.enqueue(a.q, voucher, 11, 1)
		fixture.Until(w, "the rows started the pool", func() bool { return a.count()+b.count() == 12 && w.info(a, voucher).Len == 0 })

		// Drained and final: nothing is left.
		a.Converge([]pool.Spec{final(voucher, 1)})
		b.Converge([]pool.Spec{final(voucher, 1)})
		fixture.Until(w, "the stream is gone", func() bool { return !a.Active(1) && !b.Active(1) && !w.info(a, voucher).Exists })
	})
}

// TestManualStop stops a pool: polling ends at once, however long the interval
// between polls.
func TestManualStop(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", func(c *pool.Config) { c.PollInterval = time.Hour })
		w.open(in.q, voucher)
		in.Start(spec(voucher, 100_000))
		fixture.Until(w, "the consumers are registered", func() bool { return len(w.consumers(in, voucher)) == 8 })
		began := time.Now()
		in.Stop(1)
		if took := time.Since(began); took != 0 {
			t.Fatalf("the stop took %v", took)
		}
		if in.Active(1) || len(w.consumers(in, voucher)) != 0 {
			t.Fatalf("after the stop the consumers are %v", w.consumers(in, voucher))
		}
	})
}

// TestGracefulShutdown checks that a stop waits for pending entries.
func TestGracefulShutdown(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		in.work(false)
		in.Converge([]pool.Spec{spec(voucher, 1000), spec(point, 1000)})
		w.enqueue(in.q, voucher, 0, 20)
		w.enqueue(in.q, point, 0, 20)
		fixture.Until(w, "all is in hand", func() bool { return in.holds() == 40 })
		stopped := make(chan struct{})
		go func() {
			in.StopAll()
			close(stopped)
		}()
		synctest.Wait()
		select {
		case <-stopped:
			t.Fatal("the stop did not wait for pending entries")
		default:
		}
		in.work(true)
		<-stopped
		if in.Active(1) || in.Active(2) || w.info(in, voucher).Len+w.info(in, point).Len != 0 {
			t.Fatalf("%d entries are left", w.info(in, voucher).Len+w.info(in, point).Len)
		}
	})
}

// TestConsumersComeBackAfterALoss: the stream is deleted with everything that
// Redis knew of the group; entries that come later are handled, and all
// consumers of all instances are registered again.
func TestConsumersComeBackAfterALoss(t *testing.T) {
	onRedis(t, func(t *testing.T, w *world, url, prefix string) {
		brief := func(c *pool.Config) { c.Lease = time.Second }
		a, b := w.instance("host-a", brief), w.instance("host-b", brief)
		w.open(a.q, voucher)
		a.Start(spec(voucher, 1000))
		b.Start(spec(voucher, 1000))
		all := []string{"host-a-0", "host-a-1", "host-b-0", "host-b-1"}
		fixture.Until(w, "all consumers are registered", func() bool { return slices.Equal(w.consumers(a, voucher), all) })
		fixture.DeleteKeys(t, url, prefix)
		w.enqueue(a.q, voucher, 0, 5)
		fixture.Until(w, "all is handled", func() bool { return a.count()+b.count() == 5 && w.info(a, voucher).Len == 0 })
		fixture.Until(w, "all consumers are registered again", func() bool { return slices.Equal(w.consumers(a, voucher), all) })
	})
}
