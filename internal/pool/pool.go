// Package pool runs the consumers of promotions. A Manager starts and stops pools to
// match the promotions' rows. A Pool reads entries for its consumers and passes them to a
// handler.
//
// A consumer gets no more entries, new or claimed, than its limits of calls in flight and
// of pending entries allow. The calls from before a pause count only as pending: they may
// hang, and must not delay a resumed promotion. An entry that is not acknowledged stays
// in the stream, and a consumer claims it when its lease expires.
package pool

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// Item is an entry that was delivered to a consumer. The handler calls Release
// exactly once: after it has acknowledged the entry, or to leave the entry pending
// until a consumer claims it.
type Item struct {
	queue.Entry
	Stream queue.Stream
	// Claimed reports whether a consumer got the entry by a claim, after an
	// earlier lease of the entry had expired.
	Claimed bool

	pool     *Pool
	readCtx  context.Context //nolint:containedctx // see ReadContext
	consumer int             // index within the pool
	// leaseEnd is the end of the lease, in nanoseconds by pool.sinceStart.
	leaseEnd  atomic.Int64
	callEnded bool // protected by pool.mu
}

// LeaseLeft returns how much longer no consumer may claim the entry.
func (it *Item) LeaseLeft() time.Duration {
	return time.Duration(it.leaseEnd.Load()) - it.pool.sinceStart()
}

// ReadContext returns a context that ends when the pool stops reading. The handler should
// then return the payouts of all items for which no call is in flight.
func (it *Item) ReadContext() context.Context { return it.readCtx }

// CallEnded says that the handler makes no more calls for this item, so that the consumer
// may start another one. It may be called more than once.
func (it *Item) CallEnded() {
	it.pool.mu.Lock()
	it.pool.endCallLocked(it)
	it.pool.mu.Unlock()
	it.pool.Wake()
}

// Release ends the handler's ownership of the item, and frees the capacity that
// the item used. A second Release panics.
func (it *Item) Release() { it.pool.release(it) }

// Config configures the pools of an instance.
type Config struct {
	Queue queue.Queue
	// Handle processes entries. It takes ownership of items and must release each
	// of them, now or later. The loops that read and claim entries call it, so it must
	// not block for long. ctx ends when the pool has ended, or StopTimeout after it
	// was stopped.
	Handle   func(ctx context.Context, items []*Item)
	Instance string // prefix of the consumers' names
	// MinConsumers and MaxConsumers limit the consumers of one promotion on
	// this instance.
	MinConsumers, MaxConsumers int
	// InFlight limits the calls in flight of one consumer. The consumer may have
	// twice as many pending entries, because outcomes are written after calls.
	InFlight int
	// BatchSize limits the entries of one read request. A poll may send several
	// requests for one consumer.
	BatchSize int
	// PollInterval limits the pause after an empty read.
	PollInterval time.Duration
	// IdleTimeout is the time without work after which a pool stops.
	IdleTimeout time.Duration
	// Lease is how long a consumer owns an entry before others may claim it. The
	// pool renews it until the entry is acknowledged or released.
	Lease time.Duration
	// StopTimeout is how long a stopping pool lets handlers finish pending
	// entries.
	StopTimeout time.Duration
	// Healthy reports whether this instance may keep its entries. While it returns false,
	// the pools read, claim and renew nothing, so that other instances can claim the
	// entries.
	Healthy func() bool
	// AcceptsWork reports whether the pool of a promotion may read new entries.
	// While it returns false, the pool still renews and claims.
	AcceptsWork func(id reward.PromotionID) bool
	// PendingMax limits the pending entries of this instance, but not strictly:
	// pools of different sizes together may have twice as many, and each consumer
	// may always make one call. Zero means no limit.
	PendingMax int
	// Refused is called when the queue has refused a command on a stream.
	Refused func(s queue.Stream, err error)
	// Changed is called when a pool has started, got more consumers or ended. It
	// must not block, nor call the Manager.
	Changed func()
	Metrics *obs.Metrics
	Log     obs.Log

	// away logs that the work queue is unavailable, once for all pools.
	away func(error, ...any)
}

// Pool runs the consumers of one promotion on this instance. Its methods are
// safe for concurrent use.
type Pool struct {
	cfg       Config
	stream    queue.Stream
	startedAt time.Time

	wake service.Hint  // there may be work
	done chan struct{} // closed when the pool has ended

	// share limits the calls in flight of one consumer, in addition to InFlight;
	// see Manager.divide. Zero means no such limit.
	share atomic.Int64

	stopWork context.CancelFunc // ends handling

	// fetch is a lock, held from counting the free capacity until the entries are counted
	// as pending, so that no two reads or claims fill the same capacity.
	fetch     chan struct{}
	claimFrom string      // where the next claim continues; protected by fetch
	backlog   bool        // the latest read found as much as a request may ask for; protected by fetch
	claimDue  atomic.Bool // poll claims before it reads: the latest claim lacked capacity, or maintain asks for one

	mu       sync.Mutex         // protects what follows
	readCtx  context.Context    //nolint:containedctx // ends when the pool stops reading; see Item.ReadContext
	stopRead context.CancelFunc // ends polling
	over     bool               // the pool ends: it cannot read again
	why      string             // it was asked to end
	// final makes the pool destroy the stream when it has removed its consumers,
	// because nothing is left to do for the promotion.
	final     bool
	consumers []consumer
	items     map[*Item]struct{}
	lastWork  time.Time
	empty     *sync.Cond // signalled when items is empty
}

type consumer struct {
	name    string
	pending int // entries
	calls   int // pending entries whose call may be in flight
}

func newPool(cfg Config, s queue.Stream, consumers int) *Pool {
	p := &Pool{
		cfg: cfg, stream: s, startedAt: time.Now(),
		wake: service.NewHint(), done: make(chan struct{}), fetch: make(chan struct{}, 1),
		items: make(map[*Item]struct{}), lastWork: time.Now(),
	}
	p.readCtx, p.stopRead = context.WithCancel(context.Background())
	p.empty = sync.NewCond(&p.mu)
	p.grow(consumers)
	return p
}

// grow adds consumers until the pool has n, and reports whether it added any.
func (p *Pool) grow(n int) (grown bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.consumers); i < n; i++ {
		p.consumers = append(p.consumers, consumer{name: consumerName(p.cfg.Instance, i)})
		grown = true
	}
	return grown
}

// Consumers returns the names of the pool's consumers.
func (p *Pool) Consumers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make([]string, len(p.consumers))
	for i, c := range p.consumers {
		names[i] = c.name
	}
	return names
}

func (p *Pool) status() Status {
	names := p.Consumers()
	p.mu.Lock()
	defer p.mu.Unlock()
	return Status{Stream: p.stream, Consumers: names, Pending: len(p.items), StartedAt: p.startedAt}
}

// touch records that the promotion has QUEUED payouts now, maybe in other instances, so
// that the pool is not idle.
func (p *Pool) touch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastWork = time.Now()
}

// Wake hints that the stream may have unread entries, or that a consumer has
// capacity again. It never blocks.
func (p *Pool) Wake() { p.wake.Give() }

// start starts the pool, which runs in the background until it is stopped or has
// been idle for IdleTimeout. It calls ended last.
func (p *Pool) start(ended func()) {
	workCtx, stopWork := context.WithCancel(context.Background())
	p.stopWork = stopWork
	go func() {
		defer close(p.done)
		defer ended()
		defer stopWork()

		var maintaining sync.WaitGroup
		maintaining.Go(func() { p.maintain(workCtx) })
		for resumed := true; resumed; {
			readCtx := p.reading()
			p.poll(readCtx, workCtx)
			if readCtx.Err() == nil { // it was idle
				p.stop(endIdle, false)
			}
			resumed = p.finishPending()
		}
		stopWork()
		maintaining.Wait()
		p.removeConsumers()
		why, _ := p.ending()
		p.cfg.Log.For(obs.Manager).Info("pool stopped", "promotion_id", p.stream.PromotionID, "reason", why)
	}()
}

func (p *Pool) reading() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.readCtx
}

// The reasons of a pool to end.
const (
	endCompleted = "promotion finished"
	endPaused    = "promotion paused"
	endStopped   = "instance stops"
	endIdle      = "idle"
)

// stop asks the pool to end, and does not wait. If final is set, the pool destroys the
// stream.
func (p *Pool) stop(why string, final bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why, p.final = why, p.final || final
	p.stopRead()
}

// ending returns why the pool ends, and whether it destroys the stream.
func (p *Pool) ending() (why string, final bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why, p.final
}

// resume makes a pool that was asked to end read again, if it still waits for pending
// entries, and reports whether it did. Their calls may hang, so they count only as
// pending.
func (p *Pool) resume() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.readCtx.Err() == nil {
		return false
	}
	p.readCtx, p.stopRead = context.WithCancel(context.Background())
	p.final = false
	for it := range p.items {
		p.endCallLocked(it)
	}
	p.empty.Broadcast()
	return true
}

// errStopTimeout is the reason to cut off calls.
var errStopTimeout = errors.New("their handlers did not end in time after the pool was stopped; another instance claims the entries when their lease has expired")

// finishPending returns false when every item is released, and true as soon as the pool
// is resumed. After StopTimeout it cancels the handlers' context, and the pool can no
// longer be resumed.
func (p *Pool) finishPending() (resumed bool) {
	cut := time.AfterFunc(p.cfg.StopTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.readCtx.Err() == nil || len(p.items) == 0 {
			return
		}
		p.over = true
		p.stopWork()
		p.cfg.Log.For(obs.Registry).Warn("cutting off calls in flight", errStopTimeout, "promotion_id", p.stream.PromotionID, "pending", len(p.items))
	})
	defer cut.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.items) > 0 && p.readCtx.Err() != nil {
		p.empty.Wait()
	}
	if p.readCtx.Err() == nil {
		return true
	}
	p.over = true
	return false
}

// sinceStart is the pool's own clock, for the ends of leases.
func (p *Pool) sinceStart() time.Duration { return time.Since(p.startedAt) }

// take counts entries as pending, and returns their items. Their leases begin when the
// command was sent, by sinceStart, so that this pool never believes that a lease lasts
// longer than the server does.
func (p *Pool) take(entries []queue.Entry, claimed bool, commanded time.Duration) []*Item {
	if len(entries) == 0 {
		return nil
	}
	items := make([]*Item, len(entries))
	leaseEnd := int64(commanded + p.cfg.Lease)
	p.mu.Lock()
	defer p.mu.Unlock()
	index := make(map[string]int, len(p.consumers))
	for i, c := range p.consumers {
		index[c.name] = i
	}
	for i, e := range entries {
		it := &Item{Entry: e, Stream: p.stream, Claimed: claimed, pool: p, readCtx: p.readCtx, consumer: index[e.Consumer]}
		it.leaseEnd.Store(leaseEnd)
		p.items[it] = struct{}{}
		c := &p.consumers[it.consumer]
		c.pending++
		c.calls++
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
	p.consumers[it.consumer].pending--
	p.endCallLocked(it)
	p.lastWork = time.Now()
	if len(p.items) == 0 {
		p.empty.Broadcast()
	}
	p.mu.Unlock()
	p.Wake()
}

func (p *Pool) endCallLocked(it *Item) {
	if !it.callEnded {
		it.callEnded = true
		p.consumers[it.consumer].calls--
	}
}

// freeLocked returns how many more entries a consumer may get. The caller holds mu.
func (p *Pool) freeLocked(c consumer) int {
	inFlight := p.cfg.InFlight
	if share := int(p.share.Load()); share > 0 {
		inFlight = min(inFlight, share)
	}
	return min(inFlight-c.calls, 2*inFlight-c.pending)
}

// removeConsumers removes this pool's consumers from the stream's group. Their pending
// entries go to a consumer of another instance; if there is none, the consumers that have
// any stay. If the end is final, it then destroys the stream, unless that has entries.
func (p *Pool) removeConsumers() {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.StopTimeout)
	defer cancel()
	own := make(map[string]bool)
	for _, name := range p.Consumers() {
		own[name] = true
	}
	log := p.cfg.Log.For(obs.Registry)
	all, err := p.cfg.Queue.Consumers(ctx, p.stream)
	if err != nil {
		log.Warn("listing consumers failed", err, "promotion_id", p.stream.PromotionID)
		return
	}
	heir, removed := "", 0
	for _, c := range all {
		if !own[c.Name] {
			heir = c.Name
		}
	}
	for _, c := range all {
		if !own[c.Name] {
			continue
		}
		gone, err := p.cfg.Queue.RemoveConsumer(ctx, p.stream, c.Name, heir)
		if err != nil {
			log.Warn("removing consumer failed", err, "promotion_id", p.stream.PromotionID, "consumer", c.Name)
			return
		}
		if gone {
			removed++
		}
	}
	if removed > 0 {
		log.Info("local consumers deleted", "promotion_id", p.stream.PromotionID, "consumers", removed, "others", len(all)-removed)
	}
	if _, final := p.ending(); !final {
		return
	}
	// A late add may create the stream again. The sweeper then destroys it, because the
	// promotion's row does not say yet that the stream is destroyed.
	if _, err := p.cfg.Queue.Destroy(ctx, p.stream); err != nil {
		log.Warn("destroying stream failed", err, "promotion_id", p.stream.PromotionID)
	}
}
