package rules

import (
	"math"

	"github.com/largesse/largesse/internal/reward"
)

// unbounded is no bound.
const unbounded = math.MaxInt64

// Allowance says which rows of one promotion may become QUEUED. Two bounds
// hold. Budget: the amounts of SUCCEEDED, QUEUED, RETRYING and UNKNOWN rows, of
// READY rows that may have been charged, and of the rows that are taken are at
// most MaxAmount; no row after the first that would pass it is taken, so that
// none behind it is preferred. Where a late charge has passed it already no row
// is taken at all. Canary: until it is judged at most Targets rows are ever
// dispatched for the first time; rows that were dispatched before are not
// blocked by it.
type Allowance struct {
	capacity int64         // rows
	first    int64         // rows that were never dispatched
	budget   reward.Amount // of rows that are not counted in it yet; below 0: no row at all
}

// Allow returns what may be dispatched of promotion p with the counts c, at
// most capacity rows; flagged is the amount of its READY rows that may have been
// charged. Only a RUNNING promotion dispatches.
func Allow(p reward.Promotion, c reward.Counts, flagged reward.Amount, capacity int64) *Allowance {
	a := &Allowance{capacity: capacity, first: unbounded, budget: unbounded}
	if p.Status != reward.Running {
		a.capacity = 0
	}
	if CanaryOpen(p) {
		a.first = max(p.Canary.Targets-p.Canary.Dispatched, 0)
	}
	if p.MaxAmount > 0 {
		a.budget = p.MaxAmount - flagged
		for _, state := range []reward.State{reward.Succeeded, reward.Queued, reward.Retrying, reward.Unknown} {
			a.budget -= c.Amounts[state]
		}
	}
	return a
}

// Capacity is how many rows may be taken yet, budget and canary aside; 0 when
// the budget is passed.
func (a *Allowance) Capacity() int64 {
	if a.budget < 0 {
		return 0
	}
	return max(a.capacity, 0)
}

// FirstCapacity is how many rows that were never dispatched may be taken yet.
func (a *Allowance) FirstCapacity() int64 { return min(a.first, a.Capacity()) }

// Bounds reports whether Take may refuse rows of a state within the capacity.
// What is RETRYING is in the budget already, and was dispatched before.
func (a *Allowance) Bounds(from reward.State) bool {
	return from == reward.Ready && (a.first != unbounded || a.budget != unbounded)
}

// Take reports whether a READY or RETRYING row may become QUEUED, and counts it.
func (a *Allowance) Take(r Row) bool {
	first := r.State == reward.Ready && r.Dispatch == 0
	cost := Exposure(r)
	switch {
	case a.Capacity() == 0 || first && a.first == 0:
		return false
	case cost > a.budget:
		a.budget = -1
		return false
	}
	a.capacity--
	if first && a.first != unbounded {
		a.first--
	}
	if a.budget != unbounded {
		a.budget -= cost
	}
	return true
}

// Exposure is what dispatching a row adds to what the budget counts. A row that
// may have been charged is counted already.
func Exposure(r Row) reward.Amount {
	if r.State != reward.Ready || r.MaybeCalled {
		return 0
	}
	return r.Amount
}

// CanaryOpen reports whether the canary of a promotion limits its dispatches
// and counts them: it has one, and that was not judged yet.
func CanaryOpen(p reward.Promotion) bool { return p.Canary.Targets > 0 && !p.Canary.Judged }
