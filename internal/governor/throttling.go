package governor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
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

// add takes a Retry-After into account, and reports whether it is meant for all
// calls.
func (t *throttling) add(p payee) bool {
	if len(t.payees) < payeesToBlock && (!p.known || !slices.Contains(t.payees, p)) {
		t.payees = append(t.payees, p)
	}
	t.confirmed = t.confirmed || len(t.payees) >= payeesToBlock
	return t.confirmed
}

// blockMax returns the maximum length of the latest block.
func (t *throttling) blockMax() time.Duration {
	return min(blockMaxFirst<<min(max(t.blocks-1, 0), 8), RetryAfterMax)
}

// callLimit returns how many calls may be in flight, apart from those of payouts that
// hang.
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
		if until := now + min(o.RetryAfter, t.blockMax()); until > g.blocked {
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

// notThrottled takes any other response into account.
func (g *Governor) notThrottled(now time.Duration) {
	g.report.throttles = 0
	if now >= g.blocked {
		g.throttling = throttling{}
	}
}

// blockedElsewhere takes a block into account that another instance knows.
func (g *Governor) blockedElsewhere(until time.Duration) {
	g.blocked = max(g.blocked, until)
	g.throttling.confirmed = true
	g.reportBlock("on another instance")
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

// unblocked ends a block on this instance.
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
