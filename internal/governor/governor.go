// Package governor decides when this instance calls the provider, for which
// promotion, and how many calls are in flight. It makes no calls itself: a caller
// acquires a Permit before a call and reports the Outcome afterwards.
//
// Its rules:
//   - No call starts while the calls in flight have reached the limit. The limit
//     adapts to the provider, and never exceeds Config.MaxConcurrency.
//   - Promotions that wait share the calls by weight. Within a promotion, the
//     call that has waited longest goes first. A promotion that was idle is not
//     preferred afterwards.
//   - A rate is a series of points in time, its send times. At each send time, one
//     instance may start one call. A send time that is not used is lost.
//   - After a response that throttles and has a Retry-After, no call starts for
//     that time, but for at most 5 minutes.
//   - While the provider does not respond, one call at a time may start: a probe.
//
// One mutex protects all state. A call that waits needs no goroutine but its
// caller's.
package governor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// The errors of Acquire, apart from those of its context.
var (
	ErrClosed        = errors.New("governor: closed")
	ErrWaitCancelled = errors.New("governor: the promotion was paused or cancelled while the call waited")
)

const (
	defaultMax    = 2048
	retryAfterMax = 5 * time.Minute  // a longer Retry-After counts as this
	timerMin      = time.Millisecond // shortest timer
	idleQueuesMax = 64               // about how many queues without waiters are kept
)

// Config sets the limits of the calls.
type Config struct {
	// MaxConcurrency limits the calls in flight on this instance. Zero means
	// 2048.
	MaxConcurrency int
	// RatePerSecond limits the calls of all instances together. Zero means no
	// limit.
	RatePerSecond int
	// Rates leases send times, each to one instance. Nil means that this is the
	// only instance.
	Rates Rates
	// Instances returns the number n of running instances, including this one.
	// An instance leases at most one nth of the next send times of the rate of all
	// calls. While Rates fails, it starts calls at one nth of each rate, by its own
	// clock. Instances must be quick and not call the Governor. Nil means 1.
	Instances func() int
	Metrics   *obs.Metrics
	Log       obs.Log
}

// Job says which promotion a call is for, and what limits the promotion's calls.
type Job struct {
	PromotionID reward.PromotionID
	// Weight is how many calls the promotion gets in relation to the weights of
	// other promotions that wait. A value below 1 counts as 1.
	Weight int
	// RatePerSecond limits this promotion's calls on all instances together.
	// Zero means no limit. The value of the latest call that waits applies.
	RatePerSecond int
}

// Governor limits the calls of one instance. It is safe for concurrent use.
type Governor struct {
	cfg    Config
	log    obs.Log
	born   time.Time // internal times are durations since then
	ctx    context.Context
	cancel context.CancelFunc
	own    sync.WaitGroup // counts the governor's goroutines

	mu      sync.Mutex // protects the fields below
	closed  bool
	open    int    // permits not returned: calls in flight
	calls   uint64 // number of permits ever granted
	limit   limiter
	breaker breaker
	blocked time.Duration // end of the Retry-After; 0: none

	waiting int // waiters of all queues
	plain   int // waiters of the queues without a rate of their own
	flows   map[reward.PromotionID]*promotionQueue
	ready   readyHeap  // queues whose first waiter may get the next permit
	parked  parkedHeap // queues whose own rate has no send time due
	virtual float64    // virtual time of start-time fair queueing; see promotionQueue

	all     *lane // send times of the rate of all calls; nil: no such rate
	sharing sharing

	timer *time.Timer
	armed time.Duration // time at which the timer fires; 0: not set
}

// New returns a Governor. Close releases its resources.
func New(cfg Config) *Governor {
	if cfg.MaxConcurrency <= 0 {
		cfg.MaxConcurrency = defaultMax
	}
	if cfg.Instances == nil {
		cfg.Instances = func() int { return 1 }
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &Governor{
		cfg: cfg, log: cfg.Log.For(obs.Governor), born: time.Now(), ctx: ctx, cancel: cancel,
		limit: newLimiter(cfg.MaxConcurrency), flows: make(map[reward.PromotionID]*promotionQueue),
		timer: time.NewTimer(time.Hour),
	}
	g.timer.Stop()
	if cfg.RatePerSecond > 0 {
		g.all = newLane(nameOfAll, cfg.RatePerSecond)
	}
	cfg.Metrics.GovernorFrom(g.figures)
	g.own.Go(g.loop)
	return g
}

// loop runs pump when the timer fires.
func (g *Governor) loop() {
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-g.timer.C:
			g.mu.Lock()
			g.armed = 0
			g.pump(g.now())
			g.mu.Unlock()
		}
	}
}

// now returns the time since the Governor was created. It is at least 1, because
// a time of 0 means "not set".
func (g *Governor) now() time.Duration { return time.Since(g.born) + 1 }

// Permit allows its caller one call. The caller gives it back with Done.
type Permit struct {
	g     *Governor
	call  uint64 // number of the call
	probe bool
	done  bool // protected by g.mu
}

// Probe reports whether this is the one call that an open breaker allows.
func (p *Permit) Probe() bool { return p.probe }

// Outcome is how a call ended.
type Outcome struct {
	Class      reward.AnswerClass
	Status     int           // HTTP status; 0: no response
	RetryAfter time.Duration // 0: not sent
	Took       time.Duration // from the start of the call to the end of the response
	// LookupAnswered reports whether the provider has just answered a lookup,
	// although this charge failed. The next probe then comes sooner.
	LookupAnswered bool
	// Local, with Class AnswerNotSent, reports whether Largesse itself ended the
	// call before it was sent, or its result must not count. The outcome then says
	// nothing about the provider. AnswerNotSent without Local means that there was
	// no connection to the provider.
	Local bool
}

// Acquire waits until one call may start, and returns a permit for it. The error
// is ErrClosed, ErrWaitCancelled or the error of the context.
func (g *Governor) Acquire(ctx context.Context, job Job) (*Permit, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	switch {
	case g.closed:
		g.mu.Unlock()
		return nil, ErrClosed
	case g.waiting == 0 && g.all == nil && job.RatePerSecond <= 0 && g.blocked == 0 && g.breaker.closed() && g.open < g.room():
		p := g.newPermit()
		g.mu.Unlock()
		return p, nil
	}
	now := g.now()
	w := g.enqueue(job, now)
	g.pump(now)
	p, err := w.permit, w.err
	g.mu.Unlock()
	if p != nil || err != nil {
		return p, err
	}
	select {
	case <-w.ready:
		return w.permit, w.err
	case <-ctx.Done():
		return nil, g.leave(w, ctx.Err())
	}
}

// leave removes a waiter from its queue, and returns the error for its caller. If
// the waiter was granted a permit at the same moment, leave gives it back.
func (g *Governor) leave(w *waiter, because error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	switch {
	case w.err != nil:
		return w.err
	case w.permit != nil:
		g.open--
		w.permit.done = true
		if w.permit.probe {
			g.breaker.unprobed(now)
		}
	default:
		g.remove(w, now)
	}
	g.pump(now)
	return because
}

// Done gives the permit back and reports how the call ended. A second Done does
// nothing.
func (p *Permit) Done(o Outcome) {
	g := p.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.done {
		return
	}
	p.done = true
	g.open--
	now := g.now()
	if o.throttles() && o.RetryAfter > 0 {
		g.blocked = max(g.blocked, now+min(o.RetryAfter, retryAfterMax))
	}
	wasOpen := g.breaker.opened
	g.breaker.result(now, p, o.sign(), o.LookupAnswered, g.calls, g.open)
	if wasOpen && !g.breaker.opened {
		g.limit.restart(now, g.open)
		g.log.Info("provider available again")
	} else {
		g.limit.result(now, g.open, o)
	}
	if !wasOpen && g.breaker.opened {
		g.log.Warn("provider unavailable", errNoLife, "status", o.Status, "class", string(o.Class))
	}
	if g.waiting > 0 {
		g.pump(now)
	}
}

// CancelWaiting makes the waiting calls of a promotion fail with ErrWaitCancelled,
// because the promotion was paused or cancelled. It is cheap if none wait.
func (g *Governor) CancelWaiting(id reward.PromotionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flows[id]; f != nil && f.waiting > 0 {
		g.cancelWaiting(f, ErrWaitCancelled)
		g.pump(g.now())
	}
}

// AcceptsWork reports whether consumers should read new entries. It is false while
// the breaker is open, unless a probe is due and no call waits to be it.
func (g *Governor) AcceptsWork() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.breaker.opened || g.waiting == 0 && g.breaker.probeDue(g.now())
}

// Close makes waiting calls fail with ErrClosed and waits for the governor's
// goroutines. It may be called twice. Permits stay valid.
func (g *Governor) Close() {
	g.mu.Lock()
	g.closed = true
	for _, f := range g.flows {
		g.cancelWaiting(f, ErrClosed)
	}
	g.timer.Stop()
	g.mu.Unlock()
	g.cancel()
	g.own.Wait()
}

// State is the current state of a Governor.
type State struct {
	Limit   int                        // maximum calls in flight
	Open    int                        // calls in flight; above Limit for a moment after Limit was lowered
	Waiting map[reward.PromotionID]int // waiting calls by promotion; no zeros
	// BreakerOpen reports whether the circuit breaker is open: the provider does
	// not respond, so that only probes start.
	BreakerOpen bool
	// BlockedUntil is the end of the Retry-After during which no call starts. It
	// is zero if there is none.
	BlockedUntil time.Time
	// RatesUnshared reports whether Config.Rates fails, so that this instance
	// starts calls at its part of each rate, by its own clock.
	RatesUnshared bool
}

// State returns the current state.
func (g *Governor) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := State{
		Limit: g.limit.now(), Open: g.open, Waiting: make(map[reward.PromotionID]int),
		BreakerOpen: g.breaker.opened, RatesUnshared: g.sharing.away,
	}
	if g.blocked > g.now() {
		s.BlockedUntil = g.born.Add(g.blocked)
	}
	for id, f := range g.flows {
		if f.waiting > 0 {
			s.Waiting[id] = f.waiting
		}
	}
	return s
}

func (g *Governor) figures() obs.GovernorFigures {
	g.mu.Lock()
	defer g.mu.Unlock()
	return obs.GovernorFigures{
		Limit: g.limit.now(), Waiting: g.waiting, BreakerOpen: g.breaker.opened, RatesUnshared: g.sharing.away,
	}
}

// room returns how many calls may be in flight while the breaker is closed.
func (g *Governor) room() int { return min(g.limit.now(), g.breaker.callLimit()) }

// places returns how many calls may start now if no rate limits them.
func (g *Governor) places(now time.Duration) int {
	switch {
	case now < g.blocked:
		return 0
	case !g.breaker.opened:
		return max(g.room()-g.open, 0)
	case g.breaker.probeDue(now) && g.open < g.limit.now():
		return 1
	}
	return 0
}

// soon returns how many calls may start within the duration Ahead if no rate
// limits them, and if the calls in flight take as long as usual.
func (g *Governor) soon(now time.Duration) int {
	places := g.places(now)
	if now < g.blocked || g.breaker.opened || g.limit.median == 0 {
		return places
	}
	return places + int(float64(g.open)*min(float64(Ahead)/float64(g.limit.median), 1))
}

func (g *Governor) newPermit() *Permit {
	g.open++
	g.calls++
	g.limit.opened(g.open)
	return &Permit{g: g, call: g.calls, probe: g.breaker.opened}
}

// pump grants permits to the calls that may start, requests missing send times, and
// sets the timer for the next change.
func (g *Governor) pump(now time.Duration) {
	if g.closed {
		return
	}
	if now >= g.blocked {
		g.blocked = 0
	}
	for {
		g.grant(now)
		if g.all == nil || g.waiting == 0 {
			break
		}
		demand := g.demand(now)
		if !g.ask(g.all, demand, 2*g.plain < demand, now) {
			break
		}
	}
	g.arm(now)
}

// grant grants permits until the limit is reached, no send time is due or no call
// waits.
func (g *Governor) grant(now time.Duration) {
	for g.waiting > 0 && g.places(now) > 0 {
		for len(g.parked) > 0 && g.parked[0].wakeAt <= now {
			g.place(g.parked[0], now)
		}
		if len(g.ready) == 0 || g.all != nil && !g.all.due(now) {
			return
		}
		f := g.ready[0]
		if f.lane != nil && !f.lane.due(now) {
			g.place(f, now)
			continue
		}
		if g.all != nil {
			g.all.use()
		}
		if f.lane != nil {
			f.lane.use()
		}
		w := f.first
		w.permit = g.newPermit()
		if w.permit.probe {
			g.breaker.probing = true
		}
		g.virtual = max(g.virtual, f.start)
		f.finish = f.start + 1/float64(w.weight)
		g.remove(w, now)
		w.ready <- struct{}{}
	}
}

// demand returns how many send times of the rate of all calls this instance could
// use soon. A call of a promotion with a rate of its own needs two send times: one
// of that rate and one of the rate of all calls. So demand counts no more calls of
// such a promotion than it has send times of its own that are due within
// g.all.lead.
func (g *Governor) demand(now time.Duration) int {
	most := g.soon(now)
	total := g.plain
	for _, flows := range [][]*promotionQueue{g.ready, g.parked} {
		for _, f := range flows {
			if total >= most {
				return most
			}
			if f.lane != nil {
				total += min(f.waiting, f.lane.dueBy(now, now+g.all.lead))
			}
		}
	}
	return min(total, most)
}

// arm sets the timer for the next change. A timer that fires early does no
// harm.
func (g *Governor) arm(now time.Duration) {
	at := g.next(now)
	if at == 0 {
		return
	}
	at = max(at, now+timerMin)
	if g.armed > now && g.armed <= at {
		return
	}
	g.armed = at
	g.timer.Reset(at - now)
}

// next returns the time at which pump must run again. It returns 0 if nothing
// changes until an Acquire, a Done or the result of a lease.
func (g *Governor) next(now time.Duration) time.Duration {
	switch {
	case g.waiting == 0:
		return 0
	case now < g.blocked:
		return g.blocked
	case g.breaker.opened && now < g.breaker.probeAt:
		return g.breaker.probeAt
	case g.places(now) == 0:
		return 0
	}
	var at time.Duration
	sooner := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	if len(g.parked) > 0 {
		sooner(g.parked[0].wakeAt)
	}
	if g.all != nil {
		if t, ok := g.all.first(); ok && len(g.ready) > 0 {
			sooner(t)
		}
		if !g.all.asking && g.all.askAt > now {
			sooner(g.all.askAt)
		}
	}
	return at
}
