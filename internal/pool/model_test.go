package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/reward"
)

// The model: one promotion's row, its stream, and two instances, to which
// anything happens in any order. Whatever it was, once nothing more happens and
// the instances follow the row, every dispatched entry is settled, and when the
// promotion is final neither stream nor consumer nor pool is left.
type model struct {
	t     *testing.T
	queue *queue.Memory
	names int // instances made so far

	mu            sync.Mutex // protects what follows
	open          map[reward.TargetID]int32
	mine          map[string]int // deliveries as new, by entry id
	final, paused bool
	next          reward.TargetID

	instances [2]*actor
	dead      []*actor
}

// actor is one instance: a manager, its view of the row, and a handler.
type actor struct {
	*Manager
	m *model
	q *severable

	mu    sync.Mutex // protects what follows
	holds bool       // delivered entries stay pending
	held  []*Item
}

// severable is a queue that can be cut off.
type severable struct {
	queuetest.Hooked
	wakes chan queue.Stream
	cut   atomic.Bool
}

func newSeverable(q queue.Queue) *severable {
	s := &severable{wakes: make(chan queue.Stream, 100)}
	s.Queue = q
	s.Before = func(context.Context, string, queue.Stream) error {
		if s.cut.Load() {
			return errors.New("model: cut off")
		}
		return nil
	}
	return s
}

// Wakes gives each instance its own hints, as a subscription does.
func (s *severable) Wakes() <-chan queue.Stream { return s.wakes }

func newModel(t *testing.T) *model {
	m := &model{t: t, queue: queue.NewMemory(), open: make(map[reward.TargetID]int32), mine: make(map[string]int)}
	for i := range m.instances {
		m.instances[i] = m.join()
	}
	return m
}

func (m *model) join() *actor {
	m.names++
	a := &actor{m: m, q: newSeverable(m.queue)}
	cfg := testConfig(a.q, a)
	cfg.Instance = fmt.Sprintf("host-%d", m.names)
	cfg.IdleTimeout, cfg.Lease, cfg.StopTimeout = 2*time.Second, 3*time.Second, time.Second
	a.Manager = NewManager(cfg)
	a.Run(m.t.Context())
	return a
}

// Handle does what the payout flow does: a settled dispatch is acknowledged; a
// claimed one is returned and dispatched again; one read as new is settled.
func (a *actor) Handle(_ context.Context, items []*Item) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, it := range items {
		if it.FirstDelivery {
			a.m.seen(it.ID)
		}
	}
	if a.holds {
		a.held = append(a.held, items...)
		return
	}
	for _, it := range items {
		go a.settle(it)
	}
}

func (a *actor) settle(it *Item) {
	defer it.Release()
	again := int32(0)
	a.m.mu.Lock()
	if d, open := a.m.open[it.TargetID]; open && d == it.Dispatch {
		if it.FirstDelivery {
			delete(a.m.open, it.TargetID)
		} else {
			again = d + 1
			a.m.open[it.TargetID] = again
		}
	}
	a.m.mu.Unlock()
	if a.q.Ack(context.Background(), stream, []string{it.ID}) != nil {
		return // claimed by a consumer that finds it settled
	}
	if again > 0 {
		a.m.add(it.TargetID, again, false)
	}
}

func (m *model) seen(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mine[id]++; m.mine[id] > 1 {
		m.t.Errorf("entry %s was given out as new %d times", id, m.mine[id])
	}
}

// add appends an entry; hint says whether the instances hear of it.
func (m *model) add(id reward.TargetID, dispatch int32, hint bool) {
	n, err := m.queue.Add(context.Background(), queue.AddParams{
		Stream: stream, MaxLen: 1000, Deadline: time.Now().Add(time.Hour),
		Entries: []queue.NewEntry{{TargetID: id, Dispatch: dispatch, Message: []byte("{}")}},
	})
	if err != nil || n != 1 {
		m.t.Errorf("Add = %d, %v", n, err)
	}
	if !hint {
		return
	}
	for _, a := range m.instances {
		a.q.wakes <- stream
	}
}

// dispatch makes work: the row first, then its entry.
func (m *model) dispatch(hint bool) {
	m.mu.Lock()
	m.next++
	id := m.next
	m.open[id], m.final = 1, false
	m.mu.Unlock()
	m.add(id, 1, hint)
}

func (m *model) spec() Spec {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Spec{Stream: stream, Total: 150, Work: len(m.open) > 0, Final: m.final, Paused: m.paused}
}

func (m *model) pause(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = yes
}

func (a *actor) converge() { a.Converge([]Spec{a.m.spec()}) }

func (a *actor) hold(yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds = yes
	for _, it := range a.held {
		if !yes {
			go a.settle(it)
		}
	}
	if !yes {
		a.held = nil
	}
}

// drop forgets the pending entries without a call.
func (a *actor) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, it := range a.held {
		it.Release()
	}
	a.held = nil
}

// crash cuts an instance off permanently; another one takes its place.
func (m *model) crash(i int) {
	old := m.instances[i]
	old.q.cut.Store(true)
	m.dead = append(m.dead, old)
	m.instances[i] = m.join()
}

// complete makes the promotion final, when it is drained.
func (m *model) complete() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.final = len(m.open) == 0
}

// sweep is what housekeeping does to the stream of a final promotion: destroy
// it, or acknowledge what is settled in it.
func (m *model) sweep() {
	if s := m.spec(); !s.Final || s.Work {
		return
	}
	ctx := context.Background()
	if gone, err := m.queue.Destroy(ctx, stream); err != nil || gone {
		return
	}
	entries, err := m.queue.Range(ctx, stream, 100)
	if err != nil {
		m.t.Error(err)
	}
	for _, e := range entries {
		if err := m.queue.Ack(ctx, stream, []string{e.ID}); err != nil {
			m.t.Error(err)
		}
	}
}

// steps are what can happen.
var steps = []struct {
	name string
	do   func(*model)
}{
	{"add", func(m *model) { m.dispatch(true) }},
	{"add unheard", func(m *model) { m.dispatch(false) }},
	{"add late", func(m *model) { m.add(m.next, 0, true) }}, // an older dispatch, settled long ago
	{"converge a", func(m *model) { m.instances[0].converge() }},
	{"converge b", func(m *model) { m.instances[1].converge() }},
	{"start a", func(m *model) { m.instances[0].Start(m.spec()) }},
	{"stop a", func(m *model) { go m.instances[0].Stop(stream.PromotionID) }},
	{"stop b", func(m *model) { go m.instances[1].Stop(stream.PromotionID) }},
	{"pause", func(m *model) { m.pause(true) }},
	{"resume", func(m *model) { m.pause(false) }},
	{"stale b", func(m *model) { m.instances[1].Converge([]Spec{{Stream: stream, Total: 1}}) }}, // as read before
	{"cut b", func(m *model) { m.instances[1].q.cut.Store(true) }},
	{"back b", func(m *model) { m.instances[1].q.cut.Store(false) }},
	{"hold a", func(m *model) { m.instances[0].hold(true) }},
	{"drop a", func(m *model) { m.instances[0].drop() }},
	{"crash a", func(m *model) { m.crash(0) }},
	{"complete", (*model).complete},
	{"sweep", (*model).sweep},
	{"a moment", func(*model) { time.Sleep(50 * time.Millisecond) }},
	{"idle", func(*model) { time.Sleep(3 * time.Second) }},
	{"lapse", func(*model) { time.Sleep(5 * time.Second) }},
}

// The places of the steps that begin work.
const (
	stepAdd      = 0
	stepConverge = 3
)

// end lets everything settle, and holds the model to its promise.
func (m *model) end() {
	follow := func(within time.Duration, over func() bool) bool {
		for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
			for _, a := range m.instances {
				a.converge()
			}
			m.sweep()
			if over() {
				return true
			}
		}
		return over()
	}
	ctx := m.t.Context()
	m.pause(false)
	for _, a := range m.instances {
		a.q.cut.Store(false)
		a.hold(false)
	}
	if !follow(time.Minute, func() bool { s := m.spec(); return !s.Work }) {
		info, err := m.queue.Info(ctx, stream)
		m.t.Errorf("stranded: %v is still open; the stream is %+v, %v", m.open, info, err)
	}
	m.complete()
	gone := follow(10*time.Second, func() bool {
		info, err := m.queue.Info(ctx, stream)
		return err == nil && !info.Exists && !m.instances[0].Active(stream.PromotionID) && !m.instances[1].Active(stream.PromotionID)
	})
	if !gone {
		info, err := m.queue.Info(ctx, stream)
		consumers, _ := m.queue.Consumers(ctx, stream)
		m.t.Errorf("left over: stream %+v, %v, consumers %v, pools %v and %v", info, err, consumers, m.instances[0].Pools(), m.instances[1].Pools())
	}
	for _, a := range append(m.dead, m.instances[:]...) {
		a.drop()
		a.hold(false)
		a.StopAll()
	}
	m.queue.Close()
}

func play(t *testing.T, which []int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t)
		for _, i := range which {
			steps[i].do(m)
		}
		m.end()
	})
	if t.Failed() {
		names := make([]string, len(which))
		for i, n := range which {
			names[i] = steps[n].name
		}
		t.Fatalf("after: %s", strings.Join(names, ", "))
	}
}

// TestNoOrderOfThreeStepsStrandsAnEntry plays every sequence of three steps
// after work was begun.
func TestNoOrderOfThreeStepsStrandsAnEntry(t *testing.T) {
	t.Parallel()
	for i := range steps {
		t.Run(steps[i].name, func(t *testing.T) {
			t.Parallel()
			for j := range steps {
				for k := range steps {
					play(t, []int{stepAdd, stepConverge, i, j, k})
				}
			}
		})
	}
}

// TestNoOrderOfStepsStrandsAnEntry plays long random sequences.
func TestNoOrderOfStepsStrandsAnEntry(t *testing.T) {
	t.Parallel()
	for i := range 16 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				which := rapid.SliceOfN(rapid.IntRange(0, len(steps)-1), 5, 60).Draw(rt, "steps")
				t.Run("", func(t *testing.T) { play(t, which) })
				if t.Failed() {
					rt.FailNow()
				}
			})
		})
	}
}
