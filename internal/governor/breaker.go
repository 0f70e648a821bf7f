package governor

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

const (
	failuresToOpen     = 20  // failures in a row that open the breaker, or the number of calls in flight if that is larger
	freshShare         = 0.6 // opens the breaker when this share of the recent calls failed, and at least failuresToOpen of them
	failuresToLimit    = 10  // after this many failures in a row, max(failuresToOpen − failures, 1) calls may be in flight
	probeIntervalMin   = time.Second
	probeIntervalMax   = 3500 * time.Millisecond
	probeRetryInterval = 100 * time.Millisecond // after a probe that said nothing about the provider
	probeJitter        = 0.2
	// probeGrace is how long a due probe waits for a payout that does not hang.
	probeGrace = time.Second
	// probePatience is how long a probe must have been in flight before another
	// one may start, and probesMax limits the probes in flight.
	probePatience = time.Second
	probesMax     = 3
)

// sign is what an outcome says about the provider.
type sign int

const (
	signNone  sign = iota // nothing: Largesse itself ended the call
	signAlive             // the provider responds and works
	signDead              // the provider does not respond, or fails
)

// sign returns what the outcome says about the provider. A provider that refuses
// a call or responds 429 is alive. One that responds 503 is not.
func (o Outcome) sign() sign {
	switch o.Class {
	case reward.AnswerPaid, reward.AnswerRefused, reward.AnswerMisconfigured:
		return signAlive
	case reward.AnswerFailed:
		return signDead
	case reward.AnswerThrottled:
		if o.Status == http.StatusServiceUnavailable {
			return signDead
		}
		return signAlive
	case reward.AnswerUnknown:
		if o.Status != 0 {
			return signAlive
		}
		return signDead
	case reward.AnswerNotSent:
		if !o.Local {
			return signDead
		}
	}
	return signNone
}

// throttles reports whether the provider asked for fewer calls.
func (o Outcome) throttles() bool {
	return o.Class == reward.AnswerThrottled || o.Status == http.StatusTooManyRequests || o.Status == http.StatusServiceUnavailable
}

// breaker is the circuit breaker: it stops the calls to a provider that does not
// respond. Failures are often faster than successful charges. So it does not open
// after failuresToOpen failures in a row if more calls than that are in flight: one
// of them may still succeed.
//
// It judges the provider, not a payee: of the failures in a row, those of one
// payout count once. A call without a connection says nothing about its payee, so
// it always counts.
type breaker struct {
	failures int // payouts that failed in a row

	// since is the number of the call whose failure began the count in fresh. fresh
	// counts that failure, and failures of calls with higher numbers. It is there for a
	// provider that has just crashed: responses to earlier calls still arrive and reset
	// failures, but not fresh.
	since uint64
	fresh int

	// Series of failures are numbered. row is the number of the series that
	// b.failures is counting now, and freshRow the number of the one that b.fresh is
	// counting. seen holds the
	// payouts that failed lately, each with row and freshRow as they were at its latest
	// failure. It is dropped when it is full: then a payout may count twice.
	seen          map[payee]counted
	row, freshRow uint64

	opened  bool
	adopted bool                 // it opened because another instance's breaker did
	allowAt time.Duration        // earliest time of the first probe
	probes  []reward.PromotionID // promotions of the probes in flight; see Governor.mayProbe
	begunAt time.Duration        // start of the latest probe
	tries   int                  // failed probes since the breaker opened, or since a probe with LookupAnswered
	probeAt time.Duration        // earliest time of the next probe

	told   bool        // the other instances know that it opened
	single bool        // the provider answers other instances, so this one probes without waiting for its turn
	turn   bool        // it is this instance's turn to probe
	ended  ProbeResult // of the latest turn, until the other instances know it
}

// payee identifies a payout, if it is known.
type payee struct {
	promotion reward.PromotionID
	target    reward.TargetID
	known     bool
}

// counted holds the series of failures in which a payout was last counted.
type counted struct{ row, freshRow uint64 }

// payeesMax limits the payouts that a breaker remembers.
const payeesMax = 8192

func (b *breaker) closed() bool { return !b.opened }

// callLimit returns how many calls of payouts that do not hang may be in flight.
func (b *breaker) callLimit() int {
	if b.failures < failuresToLimit {
		return math.MaxInt
	}
	return max(failuresToOpen-b.failures, 1)
}

// result takes a call that has ended into account. It reports whether the call counts: a
// payout that fails again in the same series of failures does not. calls is the number of
// permits ever granted.
func (b *breaker) result(now time.Duration, p *Permit, o Outcome, calls uint64, open int) (counts bool) {
	s := o.sign()
	switch {
	case b.opened && !p.probe: // it started before the breaker opened
	case p.probe && s == signAlive:
		*b = breaker{}
	case p.probe && s == signDead:
		b.tries++
		if o.LookupAnswered {
			b.tries = 0
		}
		b.probed(p, now+probeInterval(b.tries))
	case p.probe:
		b.unprobed(p, now)
	case s == signAlive:
		b.failures = 0
		b.row++
		if p.call >= b.since {
			b.fresh = 0
		}
		if b.fresh == 0 {
			b.seen = nil
		}
	case s == signDead:
		return b.dead(now, p, o.Class == reward.AnswerNotSent, calls, open)
	}
	return true
}

// dead takes a failed call into account. unconnected says that there was no connection to
// the provider.
func (b *breaker) dead(now time.Duration, p *Permit, unconnected bool, calls uint64, open int) (counts bool) {
	if b.fresh == 0 {
		b.since = p.call
		b.freshRow++
	}
	inRow, inFreshRow := true, p.call >= b.since
	if !unconnected && p.payee.known {
		before, known := b.seen[p.payee]
		inRow = !known || before.row != b.row
		inFreshRow = inFreshRow && (!known || before.freshRow != b.freshRow)
		if b.seen == nil || len(b.seen) >= payeesMax {
			b.seen = make(map[payee]counted)
		}
		b.seen[p.payee] = counted{b.row, b.freshRow}
	}
	if inRow {
		b.failures++
	}
	if inFreshRow {
		b.fresh++
	}
	begun := float64(calls - b.since + 1)
	if b.failures >= max(failuresToOpen, open) || b.fresh >= failuresToOpen && float64(b.fresh) >= freshShare*begun {
		b.open(now)
	}
	return inRow
}

// open opens the breaker.
func (b *breaker) open(now time.Duration) {
	at := now + probeInterval(0)
	*b = breaker{opened: true, allowAt: at, probeAt: at}
}

// unprobed ends a probe that said nothing about the provider.
func (b *breaker) unprobed(p *Permit, now time.Duration) {
	b.probed(p, now+service.Jitter(probeRetryInterval, probeJitter))
}

// probed ends a probe, and schedules the next one.
func (b *breaker) probed(p *Permit, next time.Duration) {
	if i := slices.Index(b.probes, p.payee.promotion); i >= 0 {
		b.probes = slices.Delete(b.probes, i, i+1)
	}
	b.probeAt = next
	if b.turn {
		b.turn, b.ended = false, ProbeResult{Ended: true, Tries: b.tries}
	}
}

// giveUp ends this instance's turn although its probe is in flight: for the other
// instances, it failed. If it succeeds after all, that ends the outage.
func (b *breaker) giveUp(now time.Duration) {
	b.tries++
	b.turn, b.ended, b.probeAt = false, ProbeResult{Ended: true, Tries: b.tries}, now+probeInterval(b.tries)
}

// probeInterval returns how long the breaker waits after n failed probes before the
// next one: 1 s, 2 s, then always 3.5 s, with jitter.
func probeInterval(n int) time.Duration {
	return service.Jitter(min(probeIntervalMin<<min(n, 8), probeIntervalMax), probeJitter)
}

// pickProbe returns the waiter that is the next probe, or nil. Payouts that do not hang,
// and promotions that were not probed for longest, go first: what a payee or a promotion
// does must not be taken for the provider. Probes are seconds apart, so this may look at
// all queues.
func (g *Governor) pickProbe(now time.Duration) *waiter {
	b := &g.breaker
	var best *promotionQueue
	look := func(f *promotionQueue) {
		if best == nil || f.probed < best.probed || f.probed == best.probed && byStart(f, best) {
			best = f
		}
	}
	for _, ready := range [][]*promotionQueue{g.kinds[0].ready.queues, g.kinds[1].ready.queues} {
		for _, f := range ready {
			if f.fresh > 0 && !slices.Contains(b.probes, f.id) {
				look(f)
			}
		}
	}
	if best != nil {
		for w := best.first; w != nil; w = w.next {
			if !w.job.Hangs {
				return w
			}
		}
	}
	if len(b.probes) > 0 || !b.turn && now < b.probeAt+probeGrace {
		return nil
	}
	for _, f := range g.kinds[1].ready.queues {
		look(f)
	}
	if best == nil {
		return nil
	}
	return best.first
}

// mayProbe reports whether a probe may start now. While a probe is in flight, this
// means one of another promotion; pickProbe checks that.
func (g *Governor) mayProbe(now time.Duration) bool {
	b := &g.breaker
	switch {
	case !b.opened, g.open() >= g.limit.now(), g.takesTurns() && !b.turn:
		return false
	case len(b.probes) > 0:
		return len(b.probes) < probesMax && g.fresh > 0 && now >= b.begunAt+probePatience
	}
	return b.turn || g.wantsProbe(now)
}

// wantsProbe reports whether a call waits that would be a probe in this instance's turn.
func (g *Governor) wantsProbe(now time.Duration) bool {
	b := &g.breaker
	return g.fresh > 0 && now >= b.probeAt || g.waiting() > 0 && now >= b.probeAt+probeGrace
}

// wantsTurn reports whether other instances should wait for a probe of this one. They
// wait for one in flight for probePatience. Then this instance needs the turn only for
// a probe of another promotion.
func (g *Governor) wantsTurn(now time.Duration) bool {
	b := &g.breaker
	switch {
	case len(b.probes) == 0:
		return g.wantsProbe(now)
	case now < b.begunAt+probePatience:
		return b.turn
	}
	return (b.turn || now >= b.probeAt) && len(b.probes) < probesMax && g.open() < g.limit.now() && g.pickProbe(now) != nil
}

// nextProbe returns the time at which a probe may start. It returns 0 if that
// depends on a call or on other instances.
func (g *Governor) nextProbe(now time.Duration) time.Duration {
	b := &g.breaker
	switch {
	case g.open() >= g.limit.now(), g.takesTurns() && !b.turn:
		return 0
	case len(b.probes) > 0:
		if len(b.probes) == probesMax || g.fresh == 0 {
			return 0
		}
		return max(b.begunAt+probePatience, now+timerMin)
	case g.fresh > 0 || now < b.probeAt:
		return max(b.probeAt, now+timerMin)
	}
	return b.probeAt + probeGrace
}

const (
	// payeesToLimit is the number of payees in a row that were answered with a
	// Retry-After, from which on one call at a time may start, and payeesToBlock the
	// number from which on none may.
	payeesToLimit = 2
	payeesToBlock = 5
	// blockMaxFirst limits the first block. Each further one that follows without an
	// answer in between may be twice as long, up to RetryAfterMax: the first call after a
	// block finds out whether the provider still throttles.
	blockMaxFirst = time.Minute
)

// throttling judges whether a Retry-After is meant for all calls, or for the payee
// of its call only. One payee says nothing about the others: the provider may limit each
// user. So a block needs several payees in a row, as the breaker does. Any other
// answer ends the row, unless calls are blocked: then it answers an earlier call.
type throttling struct {
	payees []payee // the row, each payee once; calls without a known payee count each
	// confirmed reports that the row was long enough, or that another instance's was. It
	// outlives the block, so that one call finds out whether the provider still throttles.
	confirmed bool
	blocks    int // since confirmed
}

// add takes a Retry-After into account, and reports whether it is meant for all calls.
func (t *throttling) add(p payee) bool {
	if len(t.payees) < payeesToBlock && (!p.known || !slices.Contains(t.payees, p)) {
		t.payees = append(t.payees, p)
	}
	t.confirmed = t.confirmed || len(t.payees) >= payeesToBlock
	return t.confirmed
}

// callLimit returns how many calls of payouts that do not hang may be in flight.
func (t *throttling) callLimit() int {
	if t.confirmed || len(t.payees) >= payeesToLimit {
		return 1
	}
	return math.MaxInt
}

// throttled takes a response that asks for fewer calls into account.
func (g *Governor) throttled(now time.Duration, p payee, o Outcome) {
	g.report.throttles++
	t := &g.throttling
	switch {
	case o.RetryAfter > 0 && t.add(p):
		if now >= g.blocked {
			t.blocks++
		}
		blockMax := min(blockMaxFirst<<min(max(t.blocks-1, 0), 8), RetryAfterMax)
		if until := now + min(o.RetryAfter, blockMax); until > g.blocked {
			g.blocked = until
			g.told.block = until
			g.told.news()
		}
		latest := strconv.Itoa(o.Status)
		if p.known {
			latest = fmt.Sprintf("%d for target %d of promotion %d", o.Status, p.target, p.promotion)
		}
		g.reportBlock(latest)
	case g.report.throttles >= throttlesToReport:
		g.report.until = max(g.report.until, now+throttleLinger)
	}
}

// Unblock ends a block by a Retry-After on all instances, because a person knows
// better. Calls start again at once; five further payees in a row that are answered
// with a Retry-After block them again.
func (g *Governor) Unblock() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unblocked()
	g.told.lift = true
	g.told.news()
	g.pump(g.now())
}

func (g *Governor) unblocked() {
	g.blocked, g.throttling, g.told.block = 0, throttling{}, 0
	g.report.throttles, g.report.until, g.report.block = 0, 0, ""
}

// reportBlock says what blocks all calls, and what to do. A later block that follows
// soon is no news.
func (g *Governor) reportBlock(latest string) {
	r := &g.report
	r.until = max(r.until, g.blocked+throttleLinger)
	if r.block == "" {
		r.block = fmt.Sprintf("the provider asks for fewer calls: it answered %d payees in a row with Retry-After (the latest: %s), so no call starts for "+
			"that time, at most 5 minutes; set money.rate-per-second to what it accepts. If it accepts calls again: largesse provider unblock", payeesToBlock, latest)
	}
}

const (
	// throttleLinger is how long after its end a provider that throttles is still
	// reported, so that short ends are no news.
	throttleLinger = 5 * time.Second
	// throttlesToReport is the number of responses in a row that throttle, without a
	// Retry-After, after which it is reported.
	throttlesToReport = 20
)

// report holds what to report about the provider. The governor's mutex protects it.
type report struct {
	reason    string        // reported reason; empty: none
	last      Outcome       // of the call that opened the breaker, or the latest probe
	throttles int           // responses in a row that throttle
	until     time.Duration // end of the report that the provider throttles; 0: none
	block     string        // reason while a Retry-After blocks all calls, and until then; empty: none
}

// tell reports the state of the provider if it has changed.
func (g *Governor) tell(now time.Duration) {
	r := &g.report
	reason := ""
	switch {
	case g.breaker.opened && g.breaker.adopted:
		reason = "another instance found that the provider does not respond, or fails: only one probe call is sent every few seconds; check the provider"
	case g.breaker.opened:
		reason = fmt.Sprintf("the provider does not respond, or fails (%s): only one probe call is sent every few seconds; check money.url and the provider", r.last)
	case now < r.until && r.block != "":
		reason = r.block
	case now < r.until:
		reason = "the provider asks for fewer calls (429 or 503), so calls wait; set money.rate-per-second to what it accepts"
	default:
		r.until, r.block = 0, ""
	}
	if reason == r.reason {
		return
	}
	r.reason = reason
	if reason == "" {
		g.cfg.Troubles.Clear(obs.PartProvider)
	} else {
		g.cfg.Troubles.Set(obs.PartProvider, reason)
	}
}

// String describes an outcome in a reason.
func (o Outcome) String() string {
	if o.Status != 0 {
		return fmt.Sprintf("the latest response was %d", o.Status)
	}
	if o.unanswered() {
		return "the latest call got no response"
	}
	return "the latest call got no connection"
}
