package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { fixture.Main(m) }

func TestConsumerCount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		total           int64
		lowest, highest int
		want            int
	}{
		{0, 1, 32, 1},
		{100, 1, 32, 1},
		{101, 1, 32, 2},
		{1_000, 1, 32, 2},
		{1_001, 1, 32, 4},
		{10_000, 1, 32, 4},
		{10_001, 1, 32, 8},
		{100_000, 1, 32, 8},
		{100_001, 1, 32, 16},
		{500_000, 1, 32, 16},
		{500_001, 1, 32, 32},
		{1_000_001, 1, 32, 32},
		{1_000_001, 1, 8, 8},
		{100_001, 1, 4, 4},
		{10, 8, 32, 8},
	} {
		if got := ConsumerCount(c.total, c.lowest, c.highest); got != c.want {
			t.Errorf("ConsumerCount(%d, %d, %d) = %d, want %d", c.total, c.lowest, c.highest, got, c.want)
		}
	}
}

var stream = queue.Stream{Type: reward.Point, PromotionID: 7}

// recorder handles items by keeping them; a test decides what becomes of them.
type recorder struct {
	mu    sync.Mutex
	items []*Item        // not taken yet
	open  map[*Item]bool // not released yet
}

func (r *recorder) Handle(_ context.Context, items []*Item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.items = append(r.items, items...)
	for _, it := range items {
		r.open[it] = true
	}
}

func (r *recorder) release(it *Item) {
	r.mu.Lock()
	delete(r.open, it)
	r.mu.Unlock()
	it.Release()
}

// releaseRest releases what a test still holds.
func (r *recorder) releaseRest() {
	r.mu.Lock()
	rest := slices.Collect(maps.Keys(r.open))
	r.mu.Unlock()
	for _, it := range rest {
		r.release(it)
	}
}

func (r *recorder) take() []*Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	items := r.items
	r.items = nil
	return items
}

type handler interface {
	Handle(ctx context.Context, items []*Item)
}

func testConfig(q queue.Queue, h handler) Config {
	return Config{
		Healthy: func() bool { return true }, AcceptsWork: func(reward.PromotionID) bool { return true },
		Refused: func(queue.Stream, error) {}, Changed: func() {},
		Queue: q, Handle: h.Handle, Instance: "host-1", MinConsumers: 1, MaxConsumers: 4, InFlight: 3, BatchSize: 2,
		PollInterval: 100 * time.Millisecond, IdleTimeout: 30 * time.Second, Lease: 15 * time.Second, StopTimeout: 5 * time.Second,
	}
}

func add(t *testing.T, q queue.Queue, from, n int) {
	t.Helper()
	entries := make([]queue.NewEntry, n)
	for i := range entries {
		entries[i] = queue.NewEntry{TargetID: reward.TargetID(from + i), Dispatch: 1, Message: fmt.Appendf(nil, `{"targetId":%d}`, from+i)}
	}
	added, err := q.Add(t.Context(), queue.AddParams{Stream: stream, MaxLen: 100_000, Deadline: time.Now().Add(time.Hour), Entries: entries})
	if err != nil || added != n {
		t.Fatalf("Add = %d, %v", added, err)
	}
}

func ack(t *testing.T, q queue.Queue, r *recorder, items []*Item) {
	t.Helper()
	for _, it := range items {
		fixture.OK(t, q.Ack(t.Context(), stream, []string{it.ID}))
		r.release(it)
	}
}

// bubble runs a subtest on fake time, with a queue and a manager that stop at its
// end.
func bubble(t *testing.T, name string, test func(t *testing.T, q queue.Queue, r *recorder, m *Manager)) {
	t.Helper()
	fixture.OnFakeTime(t, name, func(t *testing.T) {
		q := queue.NewMemory()
		r := &recorder{open: make(map[*Item]bool)}
		m := NewManager(testConfig(q, r))
		m.Run(t.Context())
		defer q.Close()
		defer m.StopAll()
		defer func() {
			m.Converge(nil) // no more reads
			synctest.Wait()
			r.releaseRest()
		}()
		test(t, q, r, m)
	})
}

// lateQueue is a queue whose replies to reads and claims are late.
type lateQueue struct {
	queue.Queue
	late time.Duration
}

func (q *lateQueue) Read(ctx context.Context, s queue.Stream, reads []queue.ReadParams) ([]queue.Entry, error) {
	defer time.Sleep(q.late)
	return q.Queue.Read(ctx, s, reads)
}

func (q *lateQueue) Claim(ctx context.Context, p queue.ClaimParams) (queue.Claimed, error) {
	defer time.Sleep(q.late)
	return q.Queue.Claim(ctx, p)
}

// leases records how much of its lease was left when an entry was handled, by
// whether it was claimed.
type leases struct {
	mu   sync.Mutex // protects left
	left map[bool]time.Duration
}

func (l *leases) Handle(_ context.Context, items []*Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range items {
		l.left[it.Claimed] = it.LeaseLeft()
		it.Release()
	}
}

func work(total int64) []Spec { return []Spec{{Stream: stream, Total: total, Work: true}} }

func TestManager(t *testing.T) {
	t.Parallel()
	bubble(t, "GrowsWithTheTargets", func(t *testing.T, q queue.Queue, _ *recorder, m *Manager) {
		add(t, q, 1, 1)
		m.Converge(work(10))
		synctest.Wait()
		began := m.Pools()[0].StartedAt
		time.Sleep(time.Second) // fake time
		m.Converge(work(10_000))
		m.Start(work(10)[0])    // a second start changes nothing
		time.Sleep(time.Second) // fake time: the poller rests at most 100 ms
		consumers, err := q.Consumers(t.Context(), stream)
		if err != nil || len(consumers) != 4 {
			t.Fatalf("Consumers = %v, %v", consumers, err)
		}
		if pools := m.Pools(); len(pools) != 1 || pools[0].StartedAt != began {
			t.Fatalf("the pool of %v is %+v", began, pools)
		}
	})
	bubble(t, "RegistersItsConsumersWhenTheStreamComes", func(t *testing.T, q queue.Queue, _ *recorder, m *Manager) {
		m.Converge(work(1000))
		time.Sleep(time.Second) // fake time
		if info, err := q.Info(t.Context(), stream); err != nil || info.Exists {
			t.Fatalf("Info = %+v, %v; a pool makes no stream", info, err)
		}
		add(t, q, 1, 1)
		time.Sleep(200 * time.Millisecond) // fake time: the poller rests at most 100 ms
		consumers, err := q.Consumers(t.Context(), stream)
		if err != nil || len(consumers) != 2 {
			t.Fatalf("Consumers = %v, %v", consumers, err)
		}
	})
	bubble(t, "AConsumerNeverHoldsMoreThanItsBound", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 50)
		m.Converge(work(1000))
		time.Sleep(time.Second)
		held := r.take()
		if len(held) != 6 { // 2 consumers × 3
			t.Fatalf("%d pending, want 6", len(held))
		}
		ack(t, q, r, held)
		time.Sleep(time.Second)
		if more := len(r.take()); more != 6 {
			t.Fatalf("%d after those were finished, want 6", more)
		}
	})
	bubble(t, "AnEndedCallMakesRoomForAnotherButNotForEver", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 50)
		m.Converge(work(1))
		var held []*Item
		for range 3 { // of one consumer × 3 calls
			time.Sleep(time.Second)
			got := r.take()
			for _, it := range got {
				it.CallEnded()
				it.CallEnded()
			}
			held = append(held, got...)
		}
		if len(held) != 6 {
			t.Fatalf("%d pending whose calls have ended, want twice 3", len(held))
		}
		ack(t, q, r, held[:1])
		time.Sleep(time.Second)
		if more := r.take(); len(more) != 1 {
			t.Fatalf("%d read after one was settled, want 1", len(more))
		}
	})
	bubble(t, "StopsWhenIdleAndStartsAgainOnWork", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 1)
		m.Converge(work(1))
		time.Sleep(time.Second)
		ack(t, q, r, r.take())
		for range 60 { // longer than the idle timeout
			m.Converge(work(1))
			time.Sleep(time.Second) // fake time
			if !m.Active(7) {
				t.Fatal("the pool ended although the promotion has dispatched payouts")
			}
		}
		m.Converge([]Spec{{Stream: stream, Total: 1}})
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if m.Active(7) {
			t.Fatal("the pool is still there after the idle time-out")
		}
		if consumers, err := q.Consumers(t.Context(), stream); err != nil || len(consumers) != 0 {
			t.Fatalf("Consumers = %v, %v", consumers, err)
		}
		add(t, q, 2, 1) // wakes the manager
		time.Sleep(time.Second)
		if got := r.take(); len(got) != 1 {
			t.Fatalf("%d handled after the wake, want 1", len(got))
		} else {
			ack(t, q, r, got)
		}
	})
	bubble(t, "ALateWakeStartsNoPoolOfAPromotionThatIsOver", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 1)
		m.Converge(work(1))
		time.Sleep(time.Second) // fake time
		ack(t, q, r, r.take())
		m.Converge([]Spec{{Stream: stream, Total: 1, Final: true}})
		synctest.Wait()
		m.Wake(stream)
		synctest.Wait()
		if m.Active(7) {
			t.Fatal("the wake has started a pool")
		}
		if info, err := q.Info(t.Context(), stream); err != nil || info.Exists {
			t.Fatalf("Info = %+v, %v; the stream is to be destroyed", info, err)
		}
	})
	bubble(t, "WhatIsLeftIsClaimedAfterItsLease", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 1)
		m.Converge(work(1))
		time.Sleep(time.Second)
		left := r.take()
		if len(left) != 1 || !left[0].FirstDelivery {
			t.Fatalf("read %v", left)
		}
		r.release(left[0])
		time.Sleep(20 * time.Second)
		again := r.take()
		if len(again) != 1 || again[0].FirstDelivery || again[0].ID != left[0].ID {
			t.Fatalf("claimed %v", again)
		}
		ack(t, q, r, again)
	})
	bubble(t, "RenewsTheLeaseOfWhatIsInHand", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 1)
		m.Converge(work(1))
		time.Sleep(time.Minute)
		held := r.take()
		if len(held) != 1 {
			t.Fatalf("handled %d times, want 1", len(held))
		}
		if left := held[0].LeaseLeft(); left < 5*time.Second {
			t.Fatalf("lease left %v", left)
		}
		ack(t, q, r, held)
	})
	fixture.OnFakeTime(t, "ALateReplyMakesNoLeaseLonger", func(t *testing.T) {
		const late = 4 * time.Second
		q := &lateQueue{Queue: queue.NewMemory(), late: late}
		defer q.Close()
		r := &leases{left: make(map[bool]time.Duration)}
		m := NewManager(testConfig(q, r))
		defer m.StopAll()
		// a consumer that crashes after its read
		add(t, q, 1, 1)
		fixture.Must(q.Queue.Create(t.Context(), stream, []string{"gone"}))(t)
		fixture.Must(q.Queue.Read(t.Context(), stream, []queue.ReadParams{{Consumer: "gone", Count: 1}}))(t)
		add(t, q, 2, 1)
		m.Converge(work(2))
		time.Sleep(40 * time.Second) // fake time
		m.Converge(nil)
		synctest.Wait()
		for _, claimed := range []bool{false, true} {
			if left := r.left[claimed]; left <= 0 || left > m.cfg.Lease-late {
				t.Errorf("claimed %v: lease left %v of %v, %v after the command", claimed, left, m.cfg.Lease, late)
			}
		}
	})
	bubble(t, "StopsWhatIsPausedAndKeepsItsEntries", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 10)
		m.Converge(work(10))
		time.Sleep(time.Second)
		m.Converge([]Spec{{Stream: stream, Total: 10, Work: true, Paused: true}})
		ack(t, q, r, r.take())
		time.Sleep(time.Second)
		if m.Active(7) {
			t.Fatal("the pool is still there")
		}
		info, err := q.Info(t.Context(), stream)
		if err != nil || info.Len != 7 || info.Pending != 0 {
			t.Fatalf("Info = %+v, %v", info, err)
		}
	})
	bubble(t, "AResumeDoesNotWaitForWhatIsInHand", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 9)
		m.Converge(work(10))
		synctest.Wait()
		old := r.take()
		m.Converge([]Spec{{Stream: stream, Total: 10, Work: true, Paused: true}})
		time.Sleep(time.Second) // fake time
		if len(old) != 3 || len(r.take()) != 0 {
			t.Fatalf("%d entries in hand", len(old))
		}
		m.Converge(work(10))
		synctest.Wait()
		fresh := r.take()
		if len(fresh) != 3 || fresh[0].ReadContext().Err() != nil || old[0].ReadContext().Err() == nil {
			t.Fatalf("%d new entries, while the old ones are in hand", len(fresh))
		}
		time.Sleep(20 * time.Second) // fake time: longer than the stop timeout and the lease
		if old[0].LeaseLeft() <= 0 || fresh[0].LeaseLeft() <= 0 {
			t.Errorf("leases %v and %v are left", old[0].LeaseLeft(), fresh[0].LeaseLeft())
		}
		ack(t, q, r, old)
		ack(t, q, r, fresh)
		synctest.Wait()
		ack(t, q, r, r.take())
		if info, err := q.Info(t.Context(), stream); err != nil || info.Len != 0 {
			t.Errorf("Info = %+v, %v", info, err)
		}
	})
	bubble(t, "AFinalPromotionWithEntriesKeepsItsStream", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		add(t, q, 1, 5)
		m.Converge(work(1))
		time.Sleep(time.Second)
		m.Converge([]Spec{{Stream: stream, Total: 1, Final: true}})
		for _, it := range r.take() {
			r.release(it)
		}
		time.Sleep(2 * time.Second)
		info, err := q.Info(t.Context(), stream)
		if err != nil || info.Len != 5 {
			t.Fatalf("Info = %+v, %v", info, err)
		}
	})
	bubble(t, "AStopRemovesOnlyItsOwnConsumers", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		cfg := testConfig(q, r)
		cfg.Instance = "host-2"
		other := NewManager(cfg)
		defer other.StopAll()
		add(t, q, 1, 6)
		m.Converge(work(101)) // two consumers each
		other.Converge(work(101))
		synctest.Wait()
		r.releaseRest() // without an acknowledgement
		m.Stop(7)
		list, err := q.Consumers(t.Context(), stream)
		if err != nil || len(list) != 2 || list[0].Name != "host-2-0" || list[1].Name != "host-2-1" || list[0].Pending+list[1].Pending != 6 {
			t.Fatalf("Consumers = %+v, %v", list, err)
		}
		other.Stop(7) // it has no heir for what is pending
		if info, err := q.Info(t.Context(), stream); err != nil || info.Len != 6 || info.Pending != 6 {
			t.Fatalf("Info = %+v, %v", info, err)
		}
	})
	bubble(t, "AStopWaitsForWhatIsInHandButNotForEver", func(t *testing.T, q queue.Queue, r *recorder, m *Manager) {
		stuck := &stuckHandler{released: make(chan struct{})}
		m2 := NewManager(testConfig(q, stuck))
		add(t, q, 1, 1)
		m2.Converge(work(1))
		time.Sleep(time.Second)
		began := time.Now()
		m2.StopAll()
		if took := time.Since(began); took != 5*time.Second {
			t.Fatalf("the stop took %v, want the 5 s of StopTimeout", took)
		}
		<-stuck.released
		if m2.Start(work(1)[0]); m2.Active(7) {
			t.Fatal("a pool started after the end")
		}
		time.Sleep(time.Minute) // fake time: longer than the lease
		m3 := NewManager(testConfig(q, &busyHandler{q: q, each: 2 * time.Second}))
		m3.Converge(work(1))
		synctest.Wait()
		began = time.Now()
		m3.StopAll()
		if info, err := q.Info(t.Context(), stream); err != nil || info.Len != 0 || time.Since(began) != 2*time.Second {
			t.Fatalf("the stop took %v, Info = %+v, %v", time.Since(began), info, err)
		}
	})
}

// TestAReadAndAClaimShareTheCapacity has a pool read and claim at the same time.
func TestAReadAndAClaimShareTheCapacity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		defer q.Close()
		add(t, q, 1, 100)
		if got, err := q.Read(t.Context(), stream, []queue.ReadParams{{Consumer: "dead", Count: 50}}); err != nil || len(got) != 50 {
			t.Fatal(len(got), err)
		}
		time.Sleep(time.Minute) // fake time: the leases of the dead consumer are over
		r := &recorder{open: make(map[*Item]bool)}
		cfg := testConfig(&queuetest.Hooked{Queue: q, Before: func(_ context.Context, call string, _ queue.Stream) error {
			if call == "Read" || call == "Claim" {
				time.Sleep(10 * time.Millisecond) // fake time
			}
			return nil
		}}, r)
		m := NewManager(cfg)
		m.Run(t.Context())
		defer m.StopAll()
		defer r.releaseRest()
		m.Converge([]Spec{{Stream: stream, Total: 1, Work: true}})
		time.Sleep(time.Minute) // fake time: many claims
		if got := m.Pools()[0].Pending; got != cfg.InFlight {
			t.Errorf("%d entries are pending, want %d", got, cfg.InFlight)
		}
	})
}

// busyHandler takes a while for each entry, and notes when it got a claimed one.
type busyHandler struct {
	q    queue.Queue
	each time.Duration

	mu      sync.Mutex // protects claimed
	claimed []time.Time
}

func (b *busyHandler) Handle(_ context.Context, items []*Item) {
	for _, it := range items {
		if it.Claimed {
			b.mu.Lock()
			b.claimed = append(b.claimed, time.Now())
			b.mu.Unlock()
		}
		go func() {
			time.Sleep(b.each) // fake time
			if b.q.Ack(context.Background(), it.Stream, []string{it.ID}) == nil {
				it.Release()
			}
		}()
	}
}

// callCounter acknowledges each entry after a call of 200 ms, and counts the calls.
type callCounter struct {
	q queue.Queue

	mu             sync.Mutex // protects what follows
	open, openMax  int
	ended, endedAt int // endedAt is ended at the latest since
}

func (c *callCounter) Handle(_ context.Context, items []*Item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += len(items)
	c.openMax = max(c.openMax, c.open)
	for _, it := range items {
		time.AfterFunc(200*time.Millisecond, func() { // fake time
			c.mu.Lock()
			c.open--
			c.ended++
			c.mu.Unlock()
			if c.q.Ack(context.Background(), it.Stream, []string{it.ID}) == nil {
				it.Release()
			}
		})
	}
}

// since returns the number of calls that have ended since it was called before.
func (c *callCounter) since() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.ended - c.endedAt
	c.endedAt = c.ended
	return n
}

// TestOneOpenCallPerConsumer: with one open call per consumer and calls of 200 ms, as in
// the original design, N consumers never have more than N calls open, and make exactly 5·N
// per second. Each instance does its share, also one that joins late.
func TestOneOpenCallPerConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const consumers = 8 // per instance
		q := queue.NewMemory()
		t.Cleanup(q.Close) // after the pools have stopped
		add(t, q, 1, 10_000)
		var all []*callCounter
		start := func() {
			c := &callCounter{q: q}
			cfg := testConfig(q, c)
			cfg.Instance, cfg.MinConsumers, cfg.MaxConsumers, cfg.InFlight = fmt.Sprintf("host-%d", len(all)), consumers, consumers, 1
			m := NewManager(cfg)
			m.Converge(work(1))
			t.Cleanup(m.StopAll)
			all = append(all, c)
			time.Sleep(310 * time.Millisecond) // calls end at other moments than a window
		}
		start()
		for range 2 {
			start()
			for _, c := range all {
				c.since()
			}
			time.Sleep(10 * time.Second)
			for i, c := range all {
				if n := c.since(); n != 10*5*consumers || c.openMax != consumers {
					t.Errorf("instance %d of %d made %d calls in 10 s, at most %d at once; want %d and %d", i, len(all), n, c.openMax, 10*5*consumers, consumers)
				}
			}
			if registered, err := q.Consumers(t.Context(), stream); err != nil || len(registered) != len(all)*consumers {
				t.Errorf("%d consumers are registered, %v", len(registered), err)
			}
		}
	})
}

// TestAWakeNeedsNoPoll: an entry is handled at the moment that it is added, however long
// the interval between polls.
func TestAWakeNeedsNoPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		defer q.Close()
		r := &recorder{open: make(map[*Item]bool)}
		cfg := testConfig(q, r)
		cfg.PollInterval, cfg.IdleTimeout = time.Hour, 24*time.Hour
		m := NewManager(cfg)
		m.Run(t.Context())
		defer m.StopAll()
		m.Converge(work(1))
		for i := range 5 {
			time.Sleep(cfg.PollInterval / 2) // between two polls
			add(t, q, 1+i, 1)
			synctest.Wait()
			got := r.take()
			if len(got) != 1 {
				t.Fatalf("%d entries are handled at the moment that one was added", len(got))
			}
			ack(t, q, r, got)
		}
		began := time.Now()
		if m.Stop(7); m.Active(7) || time.Since(began) != 0 {
			t.Errorf("a stop between two polls took %v", time.Since(began))
		}
	})
}

// TestABacklogHidesNoExpiredEntry: a consumer crashes while others have more to
// read than they have capacity for. Its entries are claimed a lease later, not when
// the backlog is done; and those who wait for them ask rarely.
func TestABacklogHidesNoExpiredEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const left, each = 5, 710 * time.Millisecond
		var asked atomic.Int64
		q := &queuetest.Hooked{Queue: queue.NewMemory(), Before: func(_ context.Context, call string, _ queue.Stream) error {
			if call == "Claim" {
				asked.Add(1)
			}
			return nil
		}}
		defer q.Close()
		add(t, q, 1, 2000) // 3 at once take 8 minutes
		if got, err := q.Read(t.Context(), stream, []queue.ReadParams{{Consumer: "dead", Count: left}}); err != nil || len(got) != left {
			t.Fatal(len(got), err)
		}
		crashed := time.Now()
		h := &busyHandler{q: q, each: each}
		cfg := testConfig(q, h)
		m := NewManager(cfg)
		m.Run(t.Context())
		defer m.StopAll()
		m.Converge(work(1))
		time.Sleep(4 * cfg.Lease) // fake time
		h.mu.Lock()
		claimed := slices.Clone(h.claimed)
		h.mu.Unlock()
		if len(claimed) != left {
			t.Fatalf("%d of %d expired entries were claimed", len(claimed), left)
		}
		if took, most := claimed[left-1].Sub(crashed), cfg.Lease+cfg.Lease/5+2*each; took > most {
			t.Errorf("the last expired entry was claimed after %v, want at most %v", took, most)
		}
		// One each lease/5, and one after each claim that found something.
		if claims := asked.Load(); claims < 4*5 || claims > 4*5+1+left {
			t.Errorf("%d claims in four leases, want about five in each", claims)
		}
	})
}

// stuckHandler holds items until its context ends.
type stuckHandler struct{ released chan struct{} }

func (s *stuckHandler) Handle(ctx context.Context, items []*Item) {
	go func() {
		<-ctx.Done()
		for _, it := range items {
			it.Release()
		}
		close(s.released)
	}()
}

// requestsQueue counts the requests of the latest reads.
type requestsQueue struct {
	queue.Queue
	mu       sync.Mutex // protects requests
	requests []int
}

func (q *requestsQueue) Read(ctx context.Context, s queue.Stream, reads []queue.ReadParams) ([]queue.Entry, error) {
	q.mu.Lock()
	q.requests = append(q.requests, len(reads))
	q.mu.Unlock()
	return q.Queue.Read(ctx, s, reads)
}

// TestOneRequestWithoutABacklog: a poll of an idle stream sends one request, and one of a
// backlog a request for each consumer, also if consumers have less room than a batch.
func TestOneRequestWithoutABacklog(t *testing.T) {
	t.Parallel()
	for inFlight, want := range map[int][]int{3: {1, 7, 5, 1}, 1: {1, 3}} {
		fixture.OnFakeTime(t, fmt.Sprintf("InFlight%d", inFlight), func(t *testing.T) {
			q := &requestsQueue{Queue: queue.NewMemory()}
			defer q.Close()
			r := &recorder{open: make(map[*Item]bool)}
			cfg := testConfig(q, r)
			cfg.InFlight = inFlight // of each of four consumers; a request is for two entries
			m := NewManager(cfg)
			m.Run(t.Context())
			defer m.StopAll()
			defer r.releaseRest()
			add(t, q.Queue, 1, 5)
			m.Converge(work(10_000))
			time.Sleep(time.Second) // fake time
			q.mu.Lock()
			defer q.mu.Unlock()
			if len(q.requests) < len(want) || !slices.Equal(q.requests[:len(want)], want) {
				t.Errorf("reads had %v requests, want %v at first", q.requests, want)
			}
		})
	}
}

// TestDivide: the pending entries of all pools are limited, and neither a
// small promotion nor a huge one is held short by the other.
func TestDivide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		consumers []int
		want      []int64 // per consumer
	}{
		"one":                   {[]int{32}, []int64{32}},
		"small beside huge":     {[]int{32, 2}, []int64{31, 256}},
		"huge beside many":      {[]int{32, 1, 1, 1, 1, 1, 1, 1}, []int64{27, 128, 128, 128, 128, 128, 128, 128}},
		"more than there is of": {slices.Repeat([]int{32}, 64), slices.Repeat([]int64{1}, 64)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := NewManager(Config{PendingMax: 2048, InFlight: 1000})
			var pools []*Pool
			for i, n := range c.consumers {
				p := newPool(m.cfg, queue.Stream{Type: reward.Point, PromotionID: reward.PromotionID(i + 1)}, n)
				m.pools[p.stream.PromotionID] = p
				pools = append(pools, p)
			}
			m.divide()
			for i, p := range pools {
				if got := p.share.Load(); got != c.want[i] {
					t.Errorf("pool %d with %d consumers: %d each, want %d", i, c.consumers[i], got, c.want[i])
				}
			}
		})
	}
}

// TestAnOutageIsLoggedOnceForAllPools checks that the lines about an outage do not grow
// with the promotions: the number of failures is in the line.
func TestAnOutageIsLoggedOnceForAllPools(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Bool
		q := &queuetest.Hooked{Queue: queue.NewMemory(), Before: func(_ context.Context, call string, _ queue.Stream) error {
			if call == "Create" && !back.Load() {
				return errors.New("away")
			}
			return nil
		}}
		defer q.Close()
		var lines fixture.Buffer
		cfg := testConfig(q, &recorder{open: make(map[*Item]bool)})
		cfg.Log = fixture.Must(obs.NewLog(&lines, "info", "text"))(t)
		m := NewManager(cfg)
		m.Run(t.Context())
		defer m.StopAll()
		var specs []Spec
		for id := range 100 {
			specs = append(specs, Spec{Stream: queue.Stream{Type: reward.Point, PromotionID: reward.PromotionID(id + 1)}, Total: 1, Work: true})
		}
		m.Converge(specs)
		time.Sleep(3 * time.Second)
		if n := strings.Count(lines.String(), "work queue unavailable"); n == 0 || n > 12 {
			t.Errorf("%d lines about one outage, of 100 pools", n)
		}
		back.Store(true)
		time.Sleep(5 * time.Second)
		if n := strings.Count(lines.String(), "work queue available again"); n == 0 || n > 3 {
			t.Errorf("%d lines say that it is back", n)
		}
	})
}
