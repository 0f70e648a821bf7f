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
//   - A response that throttles and has a Retry-After holds for its payee. If five
//     payees in a row get one, no call of any instance starts for that time, but for at
//     most a minute at first, and for at most 5 minutes. Then one call at a time finds
//     out whether the provider still throttles.
//   - While the provider does not respond, one call at a time may start, of all
//     instances together: a probe. A probe that hangs is not waited for if another
//     promotion or another instance has a call.
//   - Calls of payouts that hang use a tenth of the limit at most.
//
// What instances know of the provider they exchange through Config.Rates while they
// make calls. An instance that cannot exchange uses its own breaker and the
// Retry-After of its own calls.
//
// One mutex protects all state. A call that waits needs no goroutine but its
// caller's.
package governor

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// The errors of Acquire, apart from those of its context.
var (
	ErrClosed        = errors.New("governor: closed")
	ErrWaitCancelled = errors.New("governor: the promotion was paused or cancelled while the call waited")
)

const (
	defaultMax    = 2048
	timerMin      = time.Millisecond // shortest timer
	idleQueuesMax = 64               // about how many queues without waiters are kept
)

// Config sets the limits of the calls.
type Config struct {
	// MaxConcurrency limits the calls in flight on this instance. Zero means 2048.
	MaxConcurrency int
	// RatePerSecond limits the calls of all instances together. Zero means no limit.
	RatePerSecond int
	// Rates is what the instances share: send times, and what they know of the
	// provider. Nil means that this is the only instance.
	Rates Rates
	// Instances returns the number n of running instances, including this one. An
	// instance leases at most one nth of the next send times of the rate of all calls.
	// While Rates fails, it starts calls at one nth of each rate. Instances must be quick
	// and not call the Governor. Nil means 1.
	Instances func() int
	Metrics   *obs.Metrics
	// Troubles takes the state of the provider, and whether Rates fails.
	Troubles *obs.Troubles
	Log      obs.Log
}

// Job says what a call is for, and what limits the promotion's calls.
type Job struct {
	PromotionID reward.PromotionID
	// TargetID is the target of the call's payout, if HasTarget is set. The breaker
	// counts the failures of one payout in a row once; without a target, each counts.
	TargetID  reward.TargetID
	HasTarget bool
	// Hangs reports that several calls for this payout ended without an answer. Its
	// calls use a tenth of the limit at most, together with other such calls.
	Hangs bool
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

	mu         sync.Mutex // protects the fields below
	closed     bool
	calls      uint64 // number of permits ever granted
	limit      limiter
	breaker    breaker
	alive      time.Duration // time of the latest answer that shows that the provider works; 0: none
	throttling throttling
	blocked    time.Duration // end of the Retry-After that blocks all calls; 0: none
	// silent counts the calls in a row without an answer by promotion. A payout
	// counts once, and one that hangs itself does not count. It is dropped when it
	// is full.
	silent map[reward.PromotionID]int

	fresh   int     // waiters whose own payout does not hang
	kinds   [2]kind // calls of payouts that do not hang, and of those that do; by indexOf
	flows   map[queueKey]*promotionQueue
	parked  queueHeap // queues whose own rate has no send time due
	virtual float64   // virtual time of start-time fair queueing; see promotionQueue

	all     *lane // send times of the rate of all calls; nil: no such rate
	sharing sharing
	told    told
	report  report

	timer *time.Timer
	armed time.Duration // time at which the timer fires; 0: not set
}

// New returns a Governor. Close releases its resources.
func New(cfg Config) *Governor {
	if cfg.MaxConcurrency <= 0 {
		cfg.MaxConcurrency = defaultMax
	}
	alone := cfg.Rates == nil
	if alone || cfg.Instances == nil {
		cfg.Instances = func() int { return 1 }
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &Governor{
		cfg: cfg, log: cfg.Log.For(obs.Governor), born: time.Now(), ctx: ctx, cancel: cancel,
		limit: newLimiter(cfg.MaxConcurrency), flows: make(map[queueKey]*promotionQueue),
		kinds: [2]kind{{ready: queueHeap{before: byStart}}, {ready: queueHeap{before: byStart}}}, parked: queueHeap{before: byWakeAt},
		timer: time.NewTimer(time.Hour), told: told{instance: rand.Text(), wake: service.NewHint()},
		sharing: sharing{away: alone, unshared: alone},
	}
	g.timer.Stop()
	if cfg.RatePerSecond > 0 {
		g.all = newLane(NameOfAll, cfg.RatePerSecond)
	}
	cfg.Metrics.GovernorFrom(func() obs.GovernorFigures { return g.State().GovernorFigures })
	g.own.Go(g.loop)
	if !alone {
		g.own.Go(g.exchangeLoop)
	}
	return g
}

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

// now returns the time since the Governor was created: at least 1, because 0 means "not
// set".
func (g *Governor) now() time.Duration { return time.Since(g.born) + 1 }

// Permit allows its caller one call. The caller gives it back with Done.
type Permit struct {
	g     *Governor
	call  uint64 // number of the call
	payee payee
	hangs bool // the call uses the share of the payouts that hang
	own   bool // the payout itself hangs
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
	// Local, with Class AnswerNotSent, reports that Largesse itself ended the call before
	// it was sent, or that its result must not count. AnswerNotSent without Local means
	// that there was no connection to the provider.
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
	case g.waiting() == 0 && g.all == nil && job.RatePerSecond <= 0 && g.blocked == 0 && g.breaker.closed() && g.informed() &&
		!job.Hangs && !g.hangs(job.PromotionID) && g.room() > 0:
		p := g.newPermit(job, false)
		g.mu.Unlock()
		return p, nil
	}
	now := g.now()
	w := &waiter{job: job, ready: make(chan struct{}, 1)}
	g.enqueue(w, now)
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

// leave removes a waiter whose context has ended. It returns a permit that the waiter
// was granted at the same moment.
func (g *Governor) leave(w *waiter, because error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	switch {
	case w.err != nil:
		return w.err
	case w.permit != nil:
		g.returnPermit(w.permit)
		if w.permit.probe {
			g.breaker.unprobed(w.permit, now)
			g.told.news()
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
	g.returnPermit(p)
	now := g.now()
	if o.throttles() {
		g.throttled(now, p.payee, o)
	} else if o.Status != 0 {
		g.report.throttles = 0
		if now >= g.blocked {
			g.throttling = throttling{}
		}
	}
	wasOpen := g.breaker.opened
	// A breaker that this instance opened itself stays open after an answer to a call
	// from before that. So such an answer must not close those of the others.
	shows := o.sign() == signAlive && (!wasOpen || p.probe || g.breaker.adopted)
	counts := g.breaker.result(now, p, o, g.calls, g.open())
	if shows {
		g.alive = now
		if wasOpen {
			g.told.news() // another instance may believe that the provider is down
		}
	}
	switch {
	case wasOpen && !g.breaker.opened:
		g.limit.restart(now, g.open())
	case counts && (!p.hangs || !o.unanswered()):
		g.limit.result(now, g.open(), o)
	}
	g.noteSilence(p, o, counts, now)
	if p.probe || !wasOpen && g.breaker.opened {
		g.report.last = o
		g.told.news()
	}
	g.tell(now)
	if g.waiting() > 0 || g.report.until > now {
		g.pump(now)
	}
}

func (g *Governor) returnPermit(p *Permit) {
	p.done = true
	g.kinds[indexOf(p.hangs)].open--
}

// CancelWaiting makes the waiting calls of a paused or cancelled promotion fail with
// ErrWaitCancelled. It is cheap if none wait.
func (g *Governor) CancelWaiting(id reward.PromotionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cancelled := false
	for f := range g.waitingQueues(id) {
		g.cancelWaiting(f, ErrWaitCancelled)
		cancelled = true
	}
	if cancelled {
		g.pump(g.now())
	}
}

// waitingQueues returns the queues of a promotion that have waiters.
func (g *Governor) waitingQueues(id reward.PromotionID) iter.Seq[*promotionQueue] {
	return func(yield func(*promotionQueue) bool) {
		for _, hangs := range []bool{false, true} {
			if f := g.flows[queueKey{id, hangs}]; f != nil && f.waiting > 0 && !yield(f) {
				return
			}
		}
	}
}

// Update gives the waiting calls of a promotion another rate and weight, which would
// otherwise come with its next call only. It is cheap if none wait.
func (g *Governor) Update(job Job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, updated := g.now(), false
	for f := range g.waitingQueues(job.PromotionID) {
		if f.first.job.RatePerSecond == job.RatePerSecond && f.first.job.Weight == job.Weight {
			continue
		}
		for w := f.first; w != nil; w = w.next {
			w.job.RatePerSecond, w.job.Weight = job.RatePerSecond, job.Weight
		}
		g.setRate(f, job.RatePerSecond)
		g.place(f, now)
		updated = true
	}
	if updated {
		g.pump(now)
	}
}

// AcceptsWork reports whether consumers should read new entries of a promotion. While the
// breaker is open, these are the ones without a call that could be the probe: a probe
// must not depend on the promotions whose calls wait already.
func (g *Governor) AcceptsWork(id reward.PromotionID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := &g.breaker
	switch {
	case !b.opened:
		return true
	case g.now() < b.allowAt, slices.Contains(b.probes, id):
		return false
	}
	for f := range g.waitingQueues(id) {
		if f.fresh > 0 {
			return false
		}
	}
	return true
}

// Responds reports whether the provider responds, as far as the breaker knows.
func (g *Governor) Responds() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.breaker.closed()
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

// State is the current state of a Governor. Open is above Limit for a moment after Limit
// was lowered.
type State struct {
	obs.GovernorFigures
	Waiting map[reward.PromotionID]int // waiting calls by promotion; no zeros
}

// State returns the current state.
func (g *Governor) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := State{Waiting: make(map[reward.PromotionID]int)}
	s.GovernorFigures = obs.GovernorFigures{
		Limit: g.limit.now(), Open: g.open(), Waiting: g.waiting(),
		BreakerOpen: g.breaker.opened, RatesUnshared: g.sharing.away && g.cfg.Rates != nil,
	}
	if g.blocked > g.now() {
		s.BlockedUntil = g.born.Add(g.blocked)
	}
	for key, f := range g.flows {
		if f.waiting > 0 {
			s.Waiting[key.id] += f.waiting
		}
	}
	return s
}

// open returns the number of permits that were not returned: calls in flight.
func (g *Governor) open() int { return g.kinds[0].open + g.kinds[1].open }

// waiting returns the number of waiters of all queues.
func (g *Governor) waiting() int { return g.kinds[0].waiting + g.kinds[1].waiting }

// room returns how many calls may start while the breaker is closed, apart from
// those of payouts that hang.
func (g *Governor) room() int {
	return max(min(g.limit.now()-g.open(), min(g.breaker.callLimit(), g.throttling.callLimit())-g.kinds[0].open), 0)
}

// places returns how many calls may start now if no rate limits them, by indexOf.
func (g *Governor) places(now time.Duration) [2]int {
	switch {
	case !g.informed(), now < g.blocked: // the others may know that a person ended the block
		return [2]int{}
	case !g.breaker.opened:
		limit := g.limit.now()
		return [2]int{g.room(), max(min(limit-g.open(), max(limit/hangingPart, 1)-g.kinds[1].open), 0)}
	case g.mayProbe(now):
		return [2]int{1, 1}
	}
	return [2]int{}
}

// soon returns how many calls may start within Ahead if no rate limits them and the calls
// in flight take as long as usual, but no more than wait.
func (g *Governor) soon(now time.Duration) [2]int {
	places := g.places(now)
	if now >= g.blocked && !g.breaker.opened && g.limit.median > 0 {
		places[0] += int(float64(g.kinds[0].open) * min(float64(Ahead)/float64(g.limit.median), 1))
	}
	return [2]int{min(places[0], g.kinds[0].waiting), min(places[1], g.kinds[1].waiting)}
}

func (g *Governor) newPermit(job Job, hangs bool) *Permit {
	g.calls++
	g.kinds[indexOf(hangs)].open++
	g.limit.opened(g.open())
	return &Permit{
		g: g, call: g.calls, payee: payee{job.PromotionID, job.TargetID, job.HasTarget}, hangs: hangs, own: job.Hangs, probe: g.breaker.opened,
	}
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
	g.tell(now)
	for {
		g.grant(now)
		if g.all == nil || g.waiting() == 0 {
			break
		}
		demand := g.demand(now)
		if !g.ask(g.all, demand, 2*(g.kinds[0].plain+g.kinds[1].plain) < demand, now) {
			break
		}
	}
	g.arm(now)
}

// grant grants permits until the limit is reached, no send time is due or no call
// waits.
func (g *Governor) grant(now time.Duration) {
	for g.waiting() > 0 {
		w := g.pick(now)
		if w == nil {
			return
		}
		f := w.flow
		if g.all != nil {
			g.all.use()
		}
		if f.lane != nil {
			f.lane.use()
		}
		w.permit = g.newPermit(w.job, f.hangs)
		if w.permit.probe {
			b := &g.breaker
			b.probes, b.begunAt = append(b.probes, f.id), now
			f.probed = g.calls
		}
		g.virtual = max(g.virtual, f.start)
		f.finish = f.start + 1/float64(max(w.job.Weight, 1))
		g.remove(w, now)
		w.ready <- struct{}{}
	}
}

// pick returns the waiter that gets a permit now, or nil. The send times that it needs
// are due.
func (g *Governor) pick(now time.Duration) *waiter {
	for {
		places := g.places(now)
		if places == [2]int{} {
			return nil
		}
		for len(g.parked.queues) > 0 && g.parked.queues[0].wakeAt <= now {
			g.place(g.parked.queues[0], now)
		}
		if g.all != nil && !g.all.due(now) {
			return nil
		}
		w := g.first(places)
		if g.breaker.opened {
			w = g.pickProbe(now)
		}
		if w == nil || w.flow.lane == nil || w.flow.lane.due(now) {
			return w
		}
		g.place(w.flow, now)
	}
}

// first returns the first waiter of the queues that have places, or nil.
func (g *Governor) first(places [2]int) *waiter {
	var f *promotionQueue
	for i := range g.kinds {
		if ready := g.kinds[i].ready.queues; places[i] > 0 && len(ready) > 0 && (f == nil || byStart(ready[0], f)) {
			f = ready[0]
		}
	}
	if f == nil {
		return nil
	}
	return f.first
}

// demand returns how many send times of the rate of all calls this instance could use
// soon. A call of a promotion with a rate of its own needs a send time of both, so demand
// counts no more of these calls than have one of their own within g.all.lead.
func (g *Governor) demand(now time.Duration) int {
	left := g.soon(now)
	total := 0
	take := func(kind, n int) {
		n = min(n, left[kind])
		left[kind] -= n
		total += n
	}
	for i := range g.kinds {
		take(i, g.kinds[i].plain)
	}
	for _, flows := range [][]*promotionQueue{g.kinds[0].ready.queues, g.kinds[1].ready.queues, g.parked.queues} {
		for _, f := range flows {
			if left == [2]int{} {
				return total
			}
			if f.lane != nil {
				take(indexOf(f.hangs), min(f.waiting, f.lane.dueBy(now, now+g.all.lead)))
			}
		}
	}
	return total
}

// arm sets the timer for the next change. A timer that fires early does no harm.
func (g *Governor) arm(now time.Duration) {
	at := g.next(now)
	if until := g.report.until; until > now && (at == 0 || until < at) {
		at = until
	}
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
	case g.waiting() == 0:
		return 0
	case now < g.blocked:
		return g.blocked
	case g.breaker.opened && !g.mayProbe(now):
		return g.nextProbe(now)
	case g.places(now) == [2]int{}:
		return 0
	}
	var at time.Duration
	sooner := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	if len(g.parked.queues) > 0 {
		sooner(g.parked.queues[0].wakeAt)
	}
	if g.all != nil {
		if t, ok := g.all.first(); ok && g.kinds[0].ready.Len()+g.kinds[1].ready.Len() > 0 {
			sooner(t)
		}
		if !g.all.asking && g.all.askAt > now {
			sooner(g.all.askAt)
		}
	}
	return at
}
