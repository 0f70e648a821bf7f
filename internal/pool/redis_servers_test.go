package pool_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// The tests of this file are those of the two original designs (dynamic
// consumer management 7.1–7.8, custom polling loop 6.1–6.4), each under its own
// name, on real servers. Where those expect the stream to be gone after a stop,
// both halves are held here: unfinished, all of it stays; drained and final,
// nothing is left.

const patience = 20 * time.Second

var (
	voucher = queue.Stream{Type: reward.Voucher, PromotionID: 1}
	point   = queue.Stream{Type: reward.Point, PromotionID: 2}
)

// overServers runs a test on each real server.
func overServers(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	for name, variable := range map[string]string{
		"Redis": "LARGESSE_TEST_REDIS", "Valkey": "LARGESSE_TEST_VALKEY", "Cluster": "LARGESSE_TEST_REDIS_CLUSTER",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := os.Getenv(variable)
			if url == "" {
				t.Fatalf("%s names no server: run it by make test", variable)
			}
			w := &world{T: t, url: url, prefix: "pool-" + rand.Text()[:10] + ":"}
			option := rueidis.ClientOption{DisableCache: true}
			for part := range strings.SplitSeq(url, ",") {
				option.InitAddress = append(option.InitAddress, strings.TrimPrefix(part, "redis://"))
			}
			var err error
			if w.raw, err = rueidis.NewClient(option); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.raw.Close)
			test(t, w)
		})
	}
}

// world is a server, keys of its own on it, and a plain client to look with.
type world struct {
	*testing.T
	url, prefix string
	raw         rueidis.Client
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
	at      []time.Time    // when each was handled
}

func (w *world) instance(name string, change func(*pool.Config)) *instance {
	w.Helper()
	q, err := redisstream.Open(w.Context(), redisstream.Config{URL: w.url, KeyPrefix: w.prefix})
	if err != nil {
		w.Fatal(err)
	}
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
		for _, s := range []queue.Stream{voucher, point} {
			_ = w.raw.Do(context.Background(), w.raw.B().Del().Key(w.key(s)).Build()).Error()
		}
		q.Close()
	})
	return in
}

// Handle implements pool.Handler.
func (in *instance) Handle(_ context.Context, items []*pool.Item) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, it := range items {
		in.handled[it.ID]++
		in.at = append(in.at, time.Now())
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

func (w *world) key(s queue.Stream) string { return redisstream.StreamKey(w.prefix, s) }

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

// until waits for something that has to happen.
func (w *world) until(within time.Duration, what string, so func() bool) {
	w.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !so() {
		select {
		case <-look.C:
		case <-deadline.C:
			w.Fatalf("not within %v: %s", within, what)
		}
	}
}

func (w *world) exists(s queue.Stream) bool {
	w.Helper()
	yes, err := w.raw.Do(w.Context(), w.raw.B().Exists().Key(w.key(s)).Build()).AsBool()
	if err != nil {
		w.Fatal(err)
	}
	return yes
}

func (w *world) length(s queue.Stream) int64 {
	w.Helper()
	n, err := w.raw.Do(w.Context(), w.raw.B().Xlen().Key(w.key(s)).Build()).AsInt64()
	if err != nil {
		w.Fatal(err)
	}
	return n
}

// consumers is XINFO CONSUMERS, by name.
func (w *world) consumers(s queue.Stream) []string {
	w.Helper()
	rows, err := w.raw.Do(w.Context(), w.raw.B().XinfoConsumers().Key(w.key(s)).Group(redisstream.ConsumerGroup(w.prefix, s)).Build()).ToArray()
	if _, refused := rueidis.IsRedisErr(err); refused {
		return nil // no stream, or no group
	}
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for _, row := range rows {
		fields, err := row.AsMap()
		if err != nil {
			w.Fatal(err)
		}
		field := fields["name"]
		name, err := field.ToString()
		if err != nil {
			w.Fatal(err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *world) pending(s queue.Stream) int64 {
	w.Helper()
	reply, err := w.raw.Do(w.Context(), w.raw.B().Xpending().Key(w.key(s)).Group(redisstream.ConsumerGroup(w.prefix, s)).Build()).ToArray()
	if err != nil {
		w.Fatal(err)
	}
	n, err := reply[0].AsInt64()
	if err != nil {
		w.Fatal(err)
	}
	return n
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
	overServers(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		w.open(in.q, voucher)
		in.Start(spec(voucher, 1000))
		if !in.Active(1) {
			t.Fatal("the pool is not registered")
		}
		w.until(patience, "both consumers are registered", func() bool {
			return slices.Equal(w.consumers(voucher), []string{"host-1-0", "host-1-1"})
		})
		w.enqueue(in.q, voucher, 0, 10)
		w.until(patience, "ten entries are handled", func() bool { return in.count() == 10 })
		w.until(patience, "nothing is pending", func() bool { return w.pending(voucher) == 0 && w.length(voucher) == 0 })
	})
}

// TestStopConsumers stops a pool and finds nothing of it left.
func TestStopConsumers(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		in.Start(spec(voucher, 1000))
		w.enqueue(in.q, voucher, 0, 3)
		w.until(patience, "all is handled", func() bool { return in.count() == 3 && w.length(voucher) == 0 })
		in.Stop(1)
		if in.Active(1) {
			t.Fatal("the pool is still registered")
		}
		if left := w.consumers(voucher); len(left) > 0 {
			t.Fatalf("consumers are left: %v", left)
		}

		// Unfinished: what comes now is not received, and stays.
		w.enqueue(in.q, voucher, 3, 4)
		if !w.exists(voucher) || w.length(voucher) != 4 || in.count() != 3 {
			t.Fatalf("after the stop %d entries are left and %d were handled; want 4 and 3", w.length(voucher), in.count())
		}
		in.Converge([]pool.Spec{spec(voucher, 1000)})
		w.until(patience, "the rows ask for a pool, and all is handled", func() bool { return in.count() == 7 && w.length(voucher) == 0 })

		// Drained and final: nothing is left.
		in.Converge([]pool.Spec{final(voucher, 1000)})
		w.until(patience, "the stream is gone", func() bool { return !in.Active(1) && !w.exists(voucher) })
	})
}

// TestStartConsumersTwice starts a pool twice: the second start changes
// nothing.
func TestStartConsumersTwice(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		w.open(in.q, voucher)
		in.Start(spec(voucher, 1000))
		w.until(patience, "the consumers are registered", func() bool { return len(w.consumers(voucher)) == 2 })
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
	overServers(t, func(t *testing.T, w *world) {
		a, b := w.instance("host-a", nil), w.instance("host-b", nil)
		w.open(a.q, voucher)
		a.Start(spec(voucher, 1000))
		b.Start(spec(voucher, 1000))
		both := []string{"host-a-0", "host-a-1", "host-b-0", "host-b-1"}
		w.until(patience, "all four consumers are registered", func() bool { return slices.Equal(w.consumers(voucher), both) })

		a.work(false)
		b.work(false)
		w.enqueue(a.q, voucher, 0, 6)
		w.until(patience, "all is in hand", func() bool { return a.holds()+b.holds() == 6 })
		a.drop()
		a.Stop(1)
		if left := w.consumers(voucher); !slices.Equal(left, both[2:]) {
			t.Fatalf("after one instance stopped the consumers are %v", left)
		}
		if w.length(voucher) != 6 || w.pending(voucher) != 6 {
			t.Fatalf("%d entries are left, %d of them pending; want 6 and 6", w.length(voucher), w.pending(voucher))
		}

		// Unfinished: also the last one leaves all of it.
		b.drop()
		b.Stop(1)
		if !w.exists(voucher) || w.length(voucher) != 6 || w.pending(voucher) != 6 {
			t.Fatalf("after the last instance stopped %d entries are left, %d of them pending; want 6 and 6", w.length(voucher), w.pending(voucher))
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
		w.until(patience, "both are back", func() bool { return len(w.consumers(voucher)) >= 4 })
		a.Converge([]pool.Spec{final(voucher, 1000)})
		b.Converge([]pool.Spec{final(voucher, 1000)})
		w.until(patience, "the stream is gone", func() bool { return !a.Active(1) && !b.Active(1) && !w.exists(voucher) })
	})
}

// TestShutdownAll stops all pools of an instance at once.
func TestShutdownAll(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		w.open(in.q, voucher)
		w.open(in.q, point)
		in.Converge([]pool.Spec{spec(voucher, 1000), spec(point, 5000)})
		w.until(patience, "both pools have their consumers", func() bool { return len(w.consumers(voucher)) == 2 && len(w.consumers(point)) == 4 })
		w.enqueue(in.q, voucher, 0, 5)
		w.until(patience, "all is handled", func() bool { return in.count() == 5 && w.length(voucher) == 0 })
		in.work(false)
		w.enqueue(in.q, point, 0, 5)
		w.until(patience, "all is in hand", func() bool { return in.holds() == 5 })
		in.drop()
		in.StopAll()
		if in.Active(1) || in.Active(2) {
			t.Fatal("a pool is still registered")
		}
		// Unfinished stays; of what is finished the consumers are gone.
		if w.length(point) != 5 || w.pending(point) != 5 || len(w.consumers(voucher)) != 0 {
			t.Fatalf("%d entries are left, %d pending, and consumers %v of the drained stream", w.length(point), w.pending(point), w.consumers(voucher))
		}
		in.Start(spec(voucher, 1000))
		if in.Active(1) {
			t.Fatal("a pool started after the end")
		}

		// Drained and final: an end takes the stream along.
		last := w.instance("host-2", nil)
		last.Converge([]pool.Spec{spec(voucher, 1000)})
		w.until(patience, "another instance is there", func() bool { return len(w.consumers(voucher)) == 2 })
		last.Converge([]pool.Spec{final(voucher, 1000)})
		last.StopAll()
		if w.exists(voucher) {
			t.Fatal("the stream of a drained and final promotion is left")
		}
	})
}

// TestProducerManagerConsumer adds entries, starts a pool that receives and
// acknowledges them, and stops it.
func TestProducerManagerConsumer(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		in.Start(spec(voucher, 1000))
		for i := range 20 {
			w.enqueue(in.q, voucher, i, 1)
		}
		w.until(patience, "twenty entries are handled and acknowledged", func() bool { return in.count() == 20 && w.length(voucher) == 0 })
		if n := w.pending(voucher); n != 0 {
			t.Fatalf("%d are pending", n)
		}
		for id, times := range in.handled {
			if times != 1 {
				t.Errorf("%s was handled %d times", id, times)
			}
		}
		in.Stop(1)
		if in.Active(1) || len(w.consumers(voucher)) != 0 {
			t.Fatalf("after the stop the consumers are %v", w.consumers(voucher))
		}
		in.Start(spec(voucher, 1000))
		in.Converge([]pool.Spec{final(voucher, 1000)})
		w.until(patience, "the stream is gone", func() bool { return !in.Active(1) && !w.exists(voucher) })
	})
}

// TestPollingLoop has a pool read and acknowledge what was added before.
func TestPollingLoop(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		w.enqueue(in.q, voucher, 0, 250)
		in.Start(spec(voucher, 10_000))
		w.until(patience, "all is handled", func() bool { return in.count() == 250 })
		w.until(patience, "nothing is left", func() bool { return w.length(voucher) == 0 && w.pending(voucher) == 0 })
	})
}

// TestIdleAutoStop waits until the pool of an idle promotion stops
// automatically. While payouts of it are dispatched anywhere, the pool stays.
func TestIdleAutoStop(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		brief := func(c *pool.Config) { c.IdleTimeout = 500 * time.Millisecond }
		a, b := w.instance("host-a", brief), w.instance("host-b", brief)
		for _, in := range []*instance{a, b} {
			in.Converge([]pool.Spec{spec(voucher, 1)})
		}
		w.enqueue(a.q, voucher, 0, 10)
		w.until(patience, "all is handled", func() bool { return a.count()+b.count() == 10 && w.length(voucher) == 0 })

		// The rows still say that something is dispatched: both stay.
		began := time.Now()
		w.until(patience, "longer than the idle time-out", func() bool {
			for _, in := range []*instance{a, b} {
				in.Converge([]pool.Spec{spec(voucher, 1)})
				if !in.Active(1) {
					t.Fatal("a pool ended although the promotion has work")
				}
			}
			return time.Since(began) > 3*time.Second/2
		})

		idle := []pool.Spec{{Stream: voucher, Total: 1}}
		a.Converge(idle)
		b.Converge(idle)
		w.until(patience, "both ended by themselves", func() bool { return !a.Active(1) && !b.Active(1) && len(w.consumers(voucher)) == 0 })

		// Unfinished: what comes later is not stranded. A wake-up starts the pool
		// again; so do the rows, without any.
		w.enqueue(a.q, voucher, 10, 1)
		w.until(patience, "the wake-up started a pool", func() bool { return a.count()+b.count() == 11 })
		w.until(patience, "idle again", func() bool { return !a.Active(1) && !b.Active(1) })
		if err := w.raw.Do(t.Context(), w.raw.B().Xadd().Key(w.key(voucher)).Id("*").FieldValue().
			FieldValue("key", "11").FieldValue("message", "{}").FieldValue("dispatch", "1").Build()).Error(); err != nil {
			t.Fatal(err)
		}
		a.Converge([]pool.Spec{spec(voucher, 1)})
		w.until(patience, "the rows started the pool", func() bool { return a.count()+b.count() == 12 && w.length(voucher) == 0 })

		// Drained and final: nothing is left.
		a.Converge([]pool.Spec{final(voucher, 1)})
		b.Converge([]pool.Spec{final(voucher, 1)})
		w.until(patience, "the stream is gone", func() bool { return !a.Active(1) && !b.Active(1) && !w.exists(voucher) })
	})
}

// TestManualStop stops a pool: polling ends at once, however long the interval
// between polls.
func TestManualStop(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", func(c *pool.Config) { c.PollInterval = time.Hour })
		w.open(in.q, voucher)
		in.Start(spec(voucher, 100_000))
		w.until(patience, "the consumers are registered", func() bool { return len(w.consumers(voucher)) == 8 })
		stopped := make(chan struct{})
		go func() {
			in.Stop(1)
			close(stopped)
		}()
		select {
		case <-stopped:
		case <-time.After(patience):
			t.Fatal("the stop does not end")
		}
		if in.Active(1) || len(w.consumers(voucher)) != 0 {
			t.Fatalf("after the stop the consumers are %v", w.consumers(voucher))
		}
	})
}

// TestGracefulShutdown checks that a stop waits for pending entries.
func TestGracefulShutdown(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		in := w.instance("host-1", nil)
		in.work(false)
		in.Converge([]pool.Spec{spec(voucher, 1000), spec(point, 1000)})
		w.enqueue(in.q, voucher, 0, 20)
		w.enqueue(in.q, point, 0, 20)
		w.until(patience, "all is in hand", func() bool { return in.holds() == 40 })
		stopped := make(chan struct{})
		go func() {
			in.StopAll()
			close(stopped)
		}()
		select {
		case <-stopped:
			t.Fatal("the stop did not wait for pending entries")
		case <-time.After(200 * time.Millisecond):
		}
		in.work(true)
		select {
		case <-stopped:
		case <-time.After(patience):
			t.Fatal("the end does not end")
		}
		if in.Active(1) || in.Active(2) || w.length(voucher)+w.length(point) != 0 {
			t.Fatalf("%d entries are left", w.length(voucher)+w.length(point))
		}
	})
}

// TestConsumersComeBackAfterALoss: the stream is deleted with everything that
// Redis knew of the group; entries that come later are handled, and all
// consumers of all instances are registered again.
func TestConsumersComeBackAfterALoss(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		brief := func(c *pool.Config) { c.Lease = time.Second }
		a, b := w.instance("host-a", brief), w.instance("host-b", brief)
		w.open(a.q, voucher)
		a.Start(spec(voucher, 1000))
		b.Start(spec(voucher, 1000))
		all := []string{"host-a-0", "host-a-1", "host-b-0", "host-b-1"}
		w.until(patience, "all consumers are registered", func() bool { return slices.Equal(w.consumers(voucher), all) })
		if err := w.raw.Do(t.Context(), w.raw.B().Del().Key(w.key(voucher)).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		w.enqueue(a.q, voucher, 0, 5)
		w.until(patience, "all is handled", func() bool { return a.count()+b.count() == 5 && w.length(voucher) == 0 })
		w.until(patience, "all consumers are registered again", func() bool { return slices.Equal(w.consumers(voucher), all) })
	})
}

// busyProvider is a handler whose calls take a while, so that a backlog uses all of
// the capacity all the time.
type busyProvider struct {
	w *world
	q queue.Queue

	mu      sync.Mutex // protects what follows
	open    sync.WaitGroup
	claimed int
}

func (b *busyProvider) Handle(_ context.Context, items []*pool.Item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range items {
		if it.Claimed {
			b.claimed++
		}
		b.open.Add(1)
		time.AfterFunc(30*time.Millisecond, func() {
			defer b.open.Done()
			defer it.Release()
			if err := b.q.Ack(context.Background(), it.Stream, []string{it.ID}); err != nil {
				b.w.Errorf("acknowledge %s: %v", it.ID, err)
			}
		})
	}
}

// TestABacklogOnRedisHidesNoExpiredEntry: the entries of a consumer that crashed are
// claimed a lease later, although those that were not delivered yet take all capacity
// for long after that.
func TestABacklogOnRedisHidesNoExpiredEntry(t *testing.T) {
	overServers(t, func(t *testing.T, w *world) {
		const left, backlog = 5, 3000 // 3 calls of 30 ms at once: 30 s
		b := &busyProvider{w: w}
		in := w.instance("host-1", func(cfg *pool.Config) {
			cfg.Handler, cfg.InFlight, cfg.MaxConsumers, cfg.Lease = b, 3, 1, time.Second
		})
		b.q = in.q
		defer b.open.Wait()
		defer in.StopAll()
		w.enqueue(in.q, voucher, 0, left+backlog)
		if got, err := in.q.Read(t.Context(), voucher, []queue.ReadParams{{Consumer: "dead", Count: left}}); err != nil || len(got) != left {
			t.Fatal(len(got), err)
		}
		in.Start(spec(voucher, 1))
		w.until(patience, "the entries of the dead consumer are claimed", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.claimed >= left
		})
		info, err := in.q.Info(t.Context(), voucher)
		if err != nil || info.Lag() == 0 {
			t.Fatalf("Info = %+v, %v; the backlog was to outlast the claims", info, err)
		}
	})
}
