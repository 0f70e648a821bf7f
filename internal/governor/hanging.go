package governor

import (
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	// hangingPart is the part of the limit that calls of payouts that hang may use:
	// one hangingPart-th, and at least one call.
	hangingPart = 10
	// silentToHang is the number of a promotion's calls in a row without an answer
	// after which all of its calls count as calls of payouts that hang, until one
	// is answered.
	silentToHang = 20
	// silentMax limits the promotions whose calls without an answer are counted.
	silentMax = 4096
)

// hanging holds what is known of payouts that hang: they got no answer several
// times, or no call of their promotion gets an answer. A call that hangs takes a
// place for as long as the call may take, so they use a bounded part of the limit.
// The governor's mutex protects it.
type hanging struct {
	ready   queueHeap // queues of such payouts whose first waiter may get the next permit
	waiting int       // waiters of such queues
	open    int       // permits of such queues

	// silent counts the calls in a row without an answer by promotion. A payout
	// counts once, and one that hangs itself does not count. It is dropped when it
	// is full.
	silent map[reward.PromotionID]int
}

func (h *hanging) room(limit, open int) int {
	return max(min(limit-open, max(limit/hangingPart, 1)-h.open), 0)
}

// hangs reports whether all calls of a promotion count as calls of payouts that hang.
func (g *Governor) hangs(id reward.PromotionID) bool { return g.hanging.silent[id] >= silentToHang }

// unanswered reports whether a call that was sent got no answer.
func (o Outcome) unanswered() bool { return o.Class == reward.AnswerUnknown && o.Status == 0 }

// result takes a call that has ended into account. counts is the result of the breaker.
func (h *hanging) result(g *Governor, p *Permit, o Outcome, counts bool, now time.Duration) {
	id := p.payee.promotion
	switch {
	case o.unanswered() && counts && !p.own:
		if h.silent == nil || len(h.silent) >= silentMax {
			h.silent = make(map[reward.PromotionID]int)
		}
		if h.silent[id]++; h.silent[id] == silentToHang {
			g.moveQueue(id, true, now)
		}
	case o.sign() == signAlive && h.silent[id] > 0:
		hung := g.hangs(id)
		delete(h.silent, id)
		if hung {
			g.moveQueue(id, false, now)
		}
	}
}

// moveQueue moves the waiters whose own payout does not hang to the other queue.
func (g *Governor) moveQueue(id reward.PromotionID, hangs bool, now time.Duration) {
	f := g.flows[queueKey{id, !hangs}]
	if f == nil {
		return
	}
	for w := f.first; w != nil; {
		next := w.next
		if !w.job.Hangs {
			g.remove(w, now)
			g.enqueue(w, now)
		}
		w = next
	}
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
	for _, ready := range [][]*promotionQueue{g.ready.queues, g.hanging.ready.queues} {
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
	for _, f := range g.hanging.ready.queues {
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
	case !b.opened, g.open >= g.limit.now(), g.takesTurns() && !b.turn:
		return false
	case len(b.probes) > 0:
		return len(b.probes) < probesMax && g.fresh > 0 && now >= b.begunAt+probePatience
	}
	return b.turn || g.wantsProbe(now)
}

// wantsProbe reports whether a call waits that would be a probe in this instance's turn.
func (g *Governor) wantsProbe(now time.Duration) bool {
	b := &g.breaker
	return g.fresh > 0 && now >= b.probeAt || g.waiting > 0 && now >= b.probeAt+probeGrace
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
	return (b.turn || now >= b.probeAt) && len(b.probes) < probesMax && g.open < g.limit.now() && g.pickProbe(now) != nil
}

// nextProbe returns the time at which a probe may start. It returns 0 if that
// depends on a call or on other instances.
func (g *Governor) nextProbe(now time.Duration) time.Duration {
	b := &g.breaker
	switch {
	case g.open >= g.limit.now(), g.takesTurns() && !b.turn:
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
