// Package pool runs consumers for promotions. A Manager starts and stops pools
// to match the database rows, a Registry holds the pools of this instance, and
// each Pool reads entries for all its consumers.
//
// A consumer never exceeds its limits of calls in flight and of pending
// entries. The handler gets an entry once per delivery. An unacknowledged entry
// stays in the stream, and another consumer claims it when its lease expires.
// Stopping a pool loses no entry.
package pool

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

// Handler processes entries. The pool's poller calls it, so Handle must not
// block for long: it takes ownership of the items and releases each of them
// later. ctx ends when the pool's grace period is over.
type Handler interface {
	Handle(ctx context.Context, items []*Item)
}

// Config configures the pools of an instance.
type Config struct {
	Queue    queue.Queue
	Handler  Handler
	Instance string // prefix of the consumers' names
	// MinConsumers and MaxConsumers limit the consumers of one promotion on
	// this instance.
	MinConsumers, MaxConsumers int
	// InFlight limits the calls in flight of one consumer. A consumer has at
	// most 2 × InFlight pending entries: those whose calls have ended stay
	// pending until their outcomes are written.
	InFlight int
	// BatchSize limits the entries that a consumer reads at once.
	BatchSize int
	// PollInterval limits the pause between empty polls.
	PollInterval time.Duration
	// IdleTimeout is the time without work after which a pool stops.
	IdleTimeout time.Duration
	// Lease is the time that a consumer owns an entry before others may claim
	// it. The pool renews it while the entry is processed.
	Lease time.Duration
	// StopTimeout limits how long a stopping pool waits for pending entries.
	StopTimeout time.Duration
	// Healthy reports whether this instance may keep its entries. While it
	// returns false, the pools neither read, claim nor renew, so that others
	// can take over. Nil means always.
	Healthy func() bool
	// AcceptsWork reports whether pools may read new entries. While it returns
	// false, they keep pending entries. Nil means always.
	AcceptsWork func() bool
	// PendingMax limits the pending entries of all pools together, but each
	// consumer may always have one call in flight. Zero means no limit.
	PendingMax int
	// Changed is called when a pool has started, grown or ended. It must not
	// block. Nil means no call.
	Changed func()
	Metrics *obs.Metrics
	Log     obs.Log
}

// Pool runs the consumers of one promotion on this instance. Its methods are
// safe for concurrent use.
type Pool struct {
	cfg       Config
	stream    queue.Stream
	startedAt time.Time

	wake service.Hint  // there may be work
	done chan struct{} // closed when the pool has ended

	// share limits a consumer's calls below InFlight if this instance has many
	// consumers; zero means no such limit.
	share atomic.Int64

	// final is true if the promotion is final or no longer active, and has no
	// work. When such a pool ends, it removes its consumers and then destroys
	// the stream.
	final atomic.Bool

	readCtx  context.Context    //nolint:containedctx // it ends when the pool stops reading; items pass it on
	stopRead context.CancelFunc // ends polling
	stopWork context.CancelFunc // ends handling

	mu       sync.Mutex // protects what follows
	names    []string   // consumer names, by index
	pending  []int      // number of pending entries, by consumer
	calls    []int      // of these, the entries whose call has not ended
	items    map[*Item]struct{}
	lastWork time.Time
	empty    *sync.Cond // signalled when items is empty
}

func newPool(cfg Config, s queue.Stream, consumers int) *Pool {
	p := &Pool{
		cfg: cfg, stream: s, startedAt: time.Now(),
		wake: service.NewHint(), done: make(chan struct{}),
		items: make(map[*Item]struct{}), lastWork: time.Now(),
	}
	p.empty = sync.NewCond(&p.mu)
	p.grow(consumers)
	return p
}

// grow adds consumers up to n, and reports whether it added any. A pool never
// shrinks.
func (p *Pool) grow(n int) (grown bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.names); i < n; i++ {
		p.names = append(p.names, consumerName(p.cfg.Instance, i))
		p.pending = append(p.pending, 0)
		p.calls = append(p.calls, 0)
		grown = true
	}
	return grown
}

// Consumers returns the names of the pool's consumers.
func (p *Pool) Consumers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names)
}

func (p *Pool) status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Status{Stream: p.stream, Consumers: slices.Clone(p.names), Pending: len(p.items), StartedAt: p.startedAt}
}

// touch records that the promotion has work, here or on another instance.
func (p *Pool) touch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastWork = time.Now()
}

// Wake hints that there may be work. It never blocks.
func (p *Pool) Wake() { p.wake.Give() }

// start runs the pool in the background until it is stopped or idle for too
// long. It calls ended last.
func (p *Pool) start(ended func()) {
	readCtx, stopRead := context.WithCancel(context.Background())
	workCtx, stopWork := context.WithCancel(context.Background())
	p.readCtx, p.stopRead, p.stopWork = readCtx, stopRead, stopWork
	go func() {
		defer close(p.done)
		defer ended()
		defer stopWork()
		defer stopRead()

		var maintaining sync.WaitGroup
		maintaining.Go(func() { p.maintain(workCtx) })
		p.poll(readCtx, workCtx)
		stopRead()
		p.finishPending()
		stopWork()
		maintaining.Wait()
		p.removeConsumers()
	}()
}

// stop makes the pool end, and does not wait for it. When the pool has ended,
// done is closed.
func (p *Pool) stop() { p.stopRead() }

// finishPending waits until no entry is pending. After StopTimeout it cancels
// the handlers and waits for the rest: entries without an outcome stay in the
// stream.
func (p *Pool) finishPending() {
	cut := time.AfterFunc(p.cfg.StopTimeout, p.stopWork)
	defer cut.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.items) > 0 {
		p.empty.Wait()
	}
}

func (p *Pool) acceptsWork() bool { return p.cfg.AcceptsWork == nil || p.cfg.AcceptsWork() }

func (p *Pool) healthy() bool { return p.cfg.Healthy == nil || p.cfg.Healthy() }

func (p *Pool) take(entries []queue.Entry, claimedBy string) []*Item {
	items := make([]*Item, len(entries))
	leaseEnd := int64(time.Since(p.startedAt) + p.cfg.Lease)
	p.mu.Lock()
	defer p.mu.Unlock()
	index := make(map[string]int, len(p.names))
	for i, name := range p.names {
		index[name] = i
	}
	for i, e := range entries {
		if claimedBy != "" {
			e.Consumer = claimedBy
		}
		it := &Item{Entry: e, Stream: p.stream, Claimed: claimedBy != "", pool: p, consumer: index[e.Consumer]}
		it.leaseEnd.Store(leaseEnd)
		p.items[it] = struct{}{}
		p.pending[it.consumer]++
		p.calls[it.consumer]++
		items[i] = it
	}
	p.lastWork = time.Now()
	return items
}

func (p *Pool) release(it *Item) {
	p.mu.Lock()
	if _, held := p.items[it]; !held {
		p.mu.Unlock()
		panic("pool: an item was released twice")
	}
	delete(p.items, it)
	p.pending[it.consumer]--
	p.endCallLocked(it)
	p.lastWork = time.Now()
	if len(p.items) == 0 {
		p.empty.Broadcast()
	}
	p.mu.Unlock()
	p.Wake()
}

// endCall frees the capacity of an item's call.
func (p *Pool) endCall(it *Item) {
	p.mu.Lock()
	p.endCallLocked(it)
	p.mu.Unlock()
	p.Wake()
}

func (p *Pool) endCallLocked(it *Item) {
	if !it.callEnded {
		it.callEnded = true
		p.calls[it.consumer]--
	}
}

// freeLocked returns how many more entries a consumer may read.
func (p *Pool) freeLocked(consumer int) int {
	inFlight := p.cfg.InFlight
	if share := int(p.share.Load()); share > 0 {
		inFlight = min(inFlight, share)
	}
	return min(inFlight-p.calls[consumer], 2*inFlight-p.pending[consumer])
}

// removeConsumers removes this pool's consumers from the stream's consumer
// group. Their pending entries go to a consumer of another instance. If there is
// none, a consumer with pending entries stays until another one claims them. If
// final is true, removeConsumers then destroys the stream.
func (p *Pool) removeConsumers() {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.StopTimeout)
	defer cancel()
	names := p.Consumers()
	own := make(map[string]bool, len(names))
	for _, name := range names {
		own[name] = true
	}
	all, err := p.cfg.Queue.Consumers(ctx, p.stream)
	if err != nil {
		p.cfg.Log.For(obs.Registry).Warn("listing consumers failed", err, "promotion_id", p.stream.PromotionID)
		return
	}
	heir := ""
	for _, c := range all {
		if !own[c.Name] {
			heir = c.Name
		}
	}
	for _, c := range all {
		if !own[c.Name] {
			continue
		}
		if _, err := p.cfg.Queue.RemoveConsumer(ctx, p.stream, c.Name, heir); err != nil {
			p.cfg.Log.For(obs.Registry).Warn("removing consumer failed", err, "promotion_id", p.stream.PromotionID, "consumer", c.Name)
			return
		}
	}
	if !p.final.Load() {
		return
	}
	// Destroy does nothing while the stream has an entry. If a late write creates
	// the stream again, the sweeper destroys it: the promotion's row does not say
	// yet that the stream is destroyed.
	if _, err := p.cfg.Queue.Destroy(ctx, p.stream); err != nil {
		p.cfg.Log.For(obs.Registry).Warn("destroying stream failed", err, "promotion_id", p.stream.PromotionID)
	}
}
