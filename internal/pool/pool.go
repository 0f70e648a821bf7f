// Package pool keeps consumers for the promotions that should be worked on: a
// manager that converges on what it is told, a registry of the pools of this
// instance, and per pool one poller that reads for all its consumers.
//
// What holds: a consumer never has more calls open, nor more entries in hand,
// than its bounds; an entry is given to the handler once per delivery; an entry that is not
// acknowledged stays in the stream and is claimed after its lease; stopping a
// pool loses nothing.
package pool

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
)

// Handler works on entries. It is called from the pool's poller and must not
// block it for long: it takes the items over and releases each of them later.
// ctx ends when the pool's grace period is over.
type Handler interface {
	Handle(ctx context.Context, items []*Item)
}

// Config is what pools are made with.
type Config struct {
	Queue    queue.Queue
	Handler  Handler
	Instance string // prefix of the consumer names
	// MinConsumers and MaxConsumers bound the size table, per instance.
	MinConsumers, MaxConsumers int
	// InFlight bounds the calls that one consumer has open. As many entries
	// again may be in its hand, whose calls have ended and whose outcomes are
	// being written.
	InFlight int
	// BatchSize is the COUNT of one read.
	BatchSize int
	// PollInterval is the longest pause between empty polls.
	PollInterval time.Duration
	// IdleTimeout ends a pool that has had nothing to do for so long.
	IdleTimeout time.Duration
	// Lease is how long an entry may be in hand before others claim it;
	// entries in progress are extended.
	Lease time.Duration
	// StopTimeout bounds how long a stop waits for entries in hand.
	StopTimeout time.Duration
	// Alive says whether this instance knows enough to hold on to entries:
	// while it does not, nothing is read, claimed or renewed, so that others
	// can take over. nil = always.
	Alive func() bool
	// Taking says whether new entries should be read at all; what is in hand is
	// held on to. nil = always.
	Taking func() bool
	// HandMost bounds the entries in hand over all pools of this instance, as
	// far as each consumer can still have one; 0 = no bound.
	HandMost int
	// Changed is called when a pool has started, grown or ended; it must not
	// block. nil = nobody asks.
	Changed func()
	Metrics *obs.Metrics
	Log     obs.Log
}

// Pool is the consumers of one promotion on this instance.
// [PromotionConsumerContext]
type Pool struct {
	cfg       Config
	stream    queue.Stream
	startedAt time.Time

	wake chan struct{} // of one place: a hint that there may be work
	done chan struct{} // closed when the pool has ended

	// share bounds a consumer's calls below InFlight when there are many
	// consumers on this instance; 0 = it does not.
	share atomic.Int64

	// final says that the promotion pays nothing more: the stream goes with
	// its last consumer.
	final atomic.Bool

	readCtx  context.Context    //nolint:containedctx // it is the pool's life, which items ask for
	stopRead context.CancelFunc // ends polling
	stopWork context.CancelFunc // ends handling

	mu       sync.Mutex // protects what follows
	names    []string   // consumer names, by index
	hands    []int      // entries in hand, by consumer
	calls    []int      // those of them whose call may be open
	items    map[*Item]struct{}
	lastWork time.Time
	empty    *sync.Cond // signalled when items is empty
}

func newPool(cfg Config, s queue.Stream, consumers int) *Pool {
	p := &Pool{
		cfg: cfg, stream: s, startedAt: time.Now(),
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		items: make(map[*Item]struct{}), lastWork: time.Now(),
	}
	p.empty = sync.NewCond(&p.mu)
	p.grow(consumers)
	return p
}

// grow adds consumers up to n; a pool never shrinks.
func (p *Pool) grow(n int) (grown bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.names); i < n; i++ {
		p.names = append(p.names, consumerName(p.cfg.Instance, i))
		p.hands = append(p.hands, 0)
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
	return Status{Stream: p.stream, Consumers: slices.Clone(p.names), InHand: len(p.items), StartedAt: p.startedAt}
}

// touch notes that the promotion has work, here or on another instance.
func (p *Pool) touch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastWork = time.Now()
}

// Wake hints that there may be work.
func (p *Pool) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// start runs the pool in the background until it is stopped, or idle for too
// long. ended is called at the very end.
func (p *Pool) start(ended func()) {
	readCtx, stopRead := context.WithCancel(context.Background())
	workCtx, stopWork := context.WithCancel(context.Background())
	p.readCtx, p.stopRead, p.stopWork = readCtx, stopRead, stopWork
	go func() {
		defer close(p.done)
		defer ended()
		defer stopWork()
		defer stopRead()

		var tending sync.WaitGroup
		tending.Go(func() { p.tend(workCtx) })
		p.poll(readCtx, workCtx)
		stopRead()
		p.finishInHand()
		stopWork()
		tending.Wait()
		p.removeConsumers()
	}()
}

// stop asks the pool to end and returns at once; done tells when it has.
func (p *Pool) stop() { p.stopRead() }

// finishInHand waits until nothing is in hand, at most StopTimeout, then cuts
// the work and waits for the rest: what was not settled stays in the stream.
func (p *Pool) finishInHand() {
	cut := time.AfterFunc(p.cfg.StopTimeout, p.stopWork)
	defer cut.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.items) > 0 {
		p.empty.Wait()
	}
}

func (p *Pool) taking() bool { return p.cfg.Taking == nil || p.cfg.Taking() }

func (p *Pool) alive() bool { return p.cfg.Alive == nil || p.cfg.Alive() }

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
		p.hands[it.consumer]++
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
	p.hands[it.consumer]--
	p.endCallLocked(it)
	p.lastWork = time.Now()
	if len(p.items) == 0 {
		p.empty.Broadcast()
	}
	p.mu.Unlock()
	p.Wake()
}

// endCall frees the place of an item's call for another one.
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

// freeLocked is how many entries a consumer may still take.
func (p *Pool) freeLocked(consumer int) int {
	inFlight := p.cfg.InFlight
	if share := int(p.share.Load()); share > 0 {
		inFlight = min(inFlight, share)
	}
	return min(inFlight-p.calls[consumer], 2*inFlight-p.hands[consumer])
}

// removeConsumers takes this pool's consumers out of the group. What they
// still have pending goes to a consumer of another instance; when there is
// none, the consumer stays, and with it its entries, until somebody claims
// them.
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
		p.cfg.Log.For(obs.Registry).Warn(obs.CleanupFailed, err, "promotion_id", p.stream.PromotionID)
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
			p.cfg.Log.For(obs.Registry).Warn(obs.CleanupFailed, err, "promotion_id", p.stream.PromotionID, "consumer", c.Name)
			return
		}
	}
	if !p.final.Load() {
		return
	}
	// Refused while anything is unfinished. A late XADD makes the stream anew;
	// it stays on the sweeper's list until its row says that it is gone.
	if _, err := p.cfg.Queue.Destroy(ctx, p.stream); err != nil {
		p.cfg.Log.For(obs.Registry).Warn(obs.CleanupFailed, err, "promotion_id", p.stream.PromotionID)
	}
}
