package pool_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// The tests of this file run on Redis; those of the rules of a pool run on fake time, in
// pool_test.go. Where the original designs expect the stream to be gone after a stop, both
// halves are checked here: unfinished, all of it stays; drained and final, nothing is left.

var voucher = queue.Stream{Type: reward.Voucher, PromotionID: 1}

// world is where instances run: Redis, on the real clock.
type world struct {
	*testing.T
	url, prefix string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	url := fixture.Address(t, fleet.VariableRedis)
	return &world{t, url, fixture.Keys(t, url)}
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

func (w *world) instance(name string, lease time.Duration) *instance {
	w.Helper()
	q := fixture.Must(redisstream.Open(w.Context(), redisstream.Config{URL: w.url, KeyPrefix: w.prefix}))(w)
	w.Cleanup(q.Close)
	in := &instance{w: w, q: q, works: true, handled: make(map[string]int)}
	cfg := pool.Config{
		Queue: q, Handler: in, Instance: name, MinConsumers: 1, MaxConsumers: 32, InFlight: 64, BatchSize: 10,
		PollInterval: 100 * time.Millisecond, IdleTimeout: 30 * time.Second, Lease: lease, StopTimeout: 5 * time.Second,
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
	fixture.OK(w, q.Ack(w.Context(), s, []string{entries[0].ID}))
}

// info looks at a stream as another instance would.
func (w *world) info(in *instance, s queue.Stream) queue.Info {
	w.Helper()
	return fixture.Must(in.q.Info(w.Context(), s))(w)
}

// consumers returns the names of the consumers of a stream.
func (w *world) consumers(in *instance, s queue.Stream) []string {
	w.Helper()
	list := fixture.Must(in.q.Consumers(w.Context(), s))(w)
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

// TestStopConsumers stops a pool and finds nothing of it left.
func TestStopConsumers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.instance("host-1", 15*time.Second)
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
}

// TestCleanupStreamOfSeveralInstances stops two instances: each removes only its
// own consumers, and the last one destroys the stream when it may.
func TestCleanupStreamOfSeveralInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.instance("host-a", 15*time.Second), w.instance("host-b", 15*time.Second)
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
	ids := fixture.Must(a.q.Range(t.Context(), voucher, 10))(t)
	for _, e := range ids {
		fixture.OK(t, a.q.Ack(t.Context(), voucher, []string{e.ID}))
	}
	a.Start(spec(voucher, 1000))
	b.Start(spec(voucher, 1000))
	fixture.Until(w, "both are back", func() bool { return len(w.consumers(a, voucher)) >= 4 })
	a.Converge([]pool.Spec{final(voucher, 1000)})
	b.Converge([]pool.Spec{final(voucher, 1000)})
	fixture.Until(w, "the stream is gone", func() bool { return !a.Active(1) && !b.Active(1) && !w.info(a, voucher).Exists })
}

// TestConsumersComeBackAfterALoss: the stream is deleted with everything that
// Redis knew of the group; entries that come later are handled, and all
// consumers of all instances are registered again.
func TestConsumersComeBackAfterALoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.instance("host-a", time.Second), w.instance("host-b", time.Second)
	w.open(a.q, voucher)
	a.Start(spec(voucher, 1000))
	b.Start(spec(voucher, 1000))
	all := []string{"host-a-0", "host-a-1", "host-b-0", "host-b-1"}
	fixture.Until(w, "all consumers are registered", func() bool { return slices.Equal(w.consumers(a, voucher), all) })
	fixture.DeleteKeys(t, w.url, w.prefix)
	w.enqueue(a.q, voucher, 0, 5)
	fixture.Until(w, "all is handled", func() bool { return a.count()+b.count() == 5 && w.info(a, voucher).Len == 0 })
	fixture.Until(w, "all consumers are registered again", func() bool { return slices.Equal(w.consumers(a, voucher), all) })
}
