package governor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

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
