// Package governor decides how many calls to the provider an instance has
// open, for whom the next one is, and when. It sends nothing itself: who calls
// asks for a Permit first and tells afterwards what came of it.
//
// What it holds to:
//   - No more calls are opened than the limit, which follows what the provider
//     can take, and never more than Config.MaxConcurrency.
//   - Of the promotions that wait, each gets its weight's share, and first come
//     is first served within one. Waiting is all that counts: who was idle has
//     saved nothing up.
//   - Calls under a rate start at send times that all instances share. A send
//     time that was missed is lost, never caught up on.
//   - Nothing opens before a Retry-After is over.
//   - A provider that shows no sign of life is asked by one call at a time.
//
// Everything happens under one mutex, within Acquire, Done, the arrival of a
// lease or a timer; nobody has a goroutine for waiting.
package governor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// Why Acquire gave no permit, when it was not for its context.
var (
	ErrClosed = errors.New("governor: closed")
	ErrKicked = errors.New("governor: the promotion's waiters were sent away")
)

const (
	defaultMax     = 2048
	retryAfterMost = 5 * time.Minute  // a longer Retry-After counts as this
	shortestNap    = time.Millisecond // timers closer than this are one
	oldFlowsMost   = 64               // promotions remembered that no longer wait
)

// Config says what bounds the calls.
type Config struct {
	// MaxConcurrency is the hard bound of calls open on this instance. Default
	// 2048.
	MaxConcurrency int
	// RatePerSecond bounds the calls of all instances together; 0: no bound.
	RatePerSecond int
	// Rates is where rates are shared; nil: this process is alone.
	Rates Rates
	// Instances says how many instances are alive, this one included: each may
	// hold its part of the send times, and keeps to its part of the rates while
	// they cannot be shared. It must be quick and not call the Governor. Default:
	// 1.
	Instances func() int
	Metrics   *obs.Metrics
	Log       obs.Log
}

// Job is what a call is for.
type Job struct {
	PromotionID reward.PromotionID
	// Weight is the promotion's share beside that of others; below 1 is 1.
	Weight int
	// RatePerSecond bounds this promotion's calls on all instances together; 0:
	// no bound of its own. The latest one told holds.
	RatePerSecond int
}

// Governor is safe for concurrent use.
type Governor struct {
	cfg    Config
	log    obs.Log
	born   time.Time // times inside are durations since then
	ctx    context.Context
	cancel context.CancelFunc
	own    sync.WaitGroup // goroutines of its own

	mu      sync.Mutex // protects the rest
	closed  bool
	open    int
	calls   uint64 // how many were opened ever
	limit   limiter
	breaker breaker
	blocked time.Duration // nothing opens before

	waiting, plain int // who waits; those of them that have no rate of their own
	flows          map[reward.PromotionID]*flow
	ready          readyHeap  // flows that may have the next call
	parked         parkedHeap // flows that wait for their own rate
	virtual        float64    // the start tag of the latest call that had waited

	all     *lane // the rate of all calls, nil: none
	sharing sharing

	timer *time.Timer
	armed time.Duration // when the timer fires, 0: not set
}

// New makes a Governor; Close ends it.
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
		limit: newLimiter(cfg.MaxConcurrency), flows: make(map[reward.PromotionID]*flow),
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

// loop pumps when time alone has changed what may open.
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

// now is the time since the Governor was made. It is never 0, which stands for
// never.
func (g *Governor) now() time.Duration { return time.Since(g.born) + 1 }

// Permit is leave to open one call; Done gives it back.
type Permit struct {
	g     *Governor
	call  uint64 // its number among all calls
	probe bool
	done  bool // protected by g.mu
}

// Probe says that this is the one call let through an open breaker.
func (p *Permit) Probe() bool { return p.probe }

// Outcome is what came of a call.
type Outcome struct {
	Class      reward.AnswerClass
	Status     int           // HTTP status, 0 without an answer
	RetryAfter time.Duration // 0: not said
	Took       time.Duration // from the start of the call to the end of its answer
	// Knows marks a dead result of a provider that is there all the same: it
	// has just answered a look-up. It is probed more often.
	Knows bool
	// Ours marks an UNSENT that says nothing about the provider: our own check
	// kept the call from leaving, or its caller gave up. An UNSENT without it
	// could not connect.
	Ours bool
}

// Acquire waits for leave to open one call. Its errors are ErrClosed, ErrKicked
// and the context's.
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

// leave takes a waiter out of the line. What it was granted in the same moment
// goes back.
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

// Done gives the permit back and teaches the governor; a second Done does
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
		g.blocked = max(g.blocked, now+min(o.RetryAfter, retryAfterMost))
	}
	wasOpen := g.breaker.opened
	g.breaker.result(now, p, o.sign(), o.Knows, g.calls, g.open)
	if wasOpen && !g.breaker.opened {
		g.limit.restart(now, g.open)
		g.log.Info(obs.Recovered, "what", "provider")
	} else {
		g.limit.result(now, g.open, o)
	}
	if !wasOpen && g.breaker.opened {
		g.log.Warn(obs.Unavailable, errNoLife, "what", "provider", "status", o.Status, "class", string(o.Class))
	}
	if g.waiting > 0 {
		g.pump(now)
	}
}

// Kick sends the waiters of a promotion away with ErrKicked: it was paused or
// cancelled. It is cheap when there are none.
func (g *Governor) Kick(id reward.PromotionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flows[id]; f != nil && f.waiting > 0 {
		g.sendAway(f, ErrKicked)
		g.pump(g.now())
	}
}

// Taking says whether new work should be read. It is false while the breaker
// is open, unless a probe is due and nobody waits to be it.
func (g *Governor) Taking() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.breaker.opened || g.waiting == 0 && g.breaker.probeDue(g.now())
}

// Close sends all waiters away with ErrClosed and waits for its own
// goroutines. It may be called twice. Permits given before stay good.
func (g *Governor) Close() {
	g.mu.Lock()
	g.closed = true
	for _, f := range g.flows {
		g.sendAway(f, ErrClosed)
	}
	g.timer.Stop()
	g.mu.Unlock()
	g.cancel()
	g.own.Wait()
}

// State is how a Governor stands.
type State struct {
	Limit   int                        // calls that may be open
	Open    int                        // calls that are; above Limit when that has just fallen
	Waiting map[reward.PromotionID]int // those that wait, by promotion; no zeros
	// BreakerOpen says that the provider showed no sign of life and is only
	// probed.
	BreakerOpen bool
	// BlockedUntil is when the provider wants to be called again (Retry-After);
	// zero: now.
	BlockedUntil time.Time
	// RatesAway says that rates cannot be shared now: this instance keeps to its
	// part by its own clock.
	RatesAway bool
}

// State tells how the Governor stands.
func (g *Governor) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := State{
		Limit: g.limit.now(), Open: g.open, Waiting: make(map[reward.PromotionID]int),
		BreakerOpen: g.breaker.opened, RatesAway: g.sharing.away,
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
		Limit: g.limit.now(), Waiting: g.waiting, BreakerOpen: g.breaker.opened, RatesAway: g.sharing.away,
	}
}

// room is how many calls may be open now, while the breaker is closed.
func (g *Governor) room() int { return min(g.limit.now(), g.breaker.doubt()) }

// places is how many calls may be opened now, but for rates.
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

// soon is how many calls may be opened within Ahead, when those that are open
// take as long as usual.
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

// pump opens what may be opened, asks for the send times that are lacking, and
// sets the timer for what only time will change.
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

// grant opens calls until there is no place, no send time or nobody.
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

// demand is how many send times of all calls could be used soon. A promotion
// with a rate of its own can use one only at a send time of its own, so it
// counts what it has of these, as far ahead as the shared ones are given out.
func (g *Governor) demand(now time.Duration) int {
	most := g.soon(now)
	total := g.plain
	for _, flows := range [][]*flow{g.ready, g.parked} {
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

// arm sets the timer for the next moment that may change something. A timer
// that fires too early does no harm.
func (g *Governor) arm(now time.Duration) {
	at := g.next(now)
	if at == 0 {
		return
	}
	at = max(at, now+shortestNap)
	if g.armed > now && g.armed <= at {
		return
	}
	g.armed = at
	g.timer.Reset(at - now)
}

// next is that moment; 0 when only an Acquire, a Done or a lease will change
// anything.
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
