package rules

import (
	"math"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// unbounded stands for no limit.
const unbounded = math.MaxInt64

// Allowance decides which rows of one promotion may become QUEUED, up to the capacity:
//
//   - Time: none from EndsAt on.
//   - Approval: while ApprovalNeeded says so, only approved rows.
//   - Budget: MaxAmount limits what SUCCEEDED, QUEUED, RETRYING and UNKNOWN rows, READY rows
//     that may have been charged, and the rows taken add up to. No row overtakes the first
//     one that exceeds it. Nothing is taken if a late confirmation has exceeded it already.
//   - Canary: until it is judged, at most Targets rows for their first dispatch.
type Allowance struct {
	capacity int64            // rows that may be taken
	first    int64            // rows that may be taken for their first dispatch
	budget   reward.Amount    // that is left; below 0, no row may be taken
	approved *reward.Approval // rows must be covered by it; nil: they need no approval
}

// Allow returns the allowance of promotion p with counts c. flagged is the amount of
// its READY rows that may have been charged, approvedOnly the result of ApprovalNeeded.
func Allow(p reward.Promotion, c reward.Counts, flagged reward.Amount, approvedOnly bool, capacity int64, now time.Time) *Allowance {
	a := &Allowance{capacity: capacity, first: unbounded, budget: unbounded}
	if approvedOnly {
		a.approved = &p.Approval
	}
	if !Runs(&p, now) {
		a.capacity = 0
	}
	if CanaryOpen(p) {
		a.first = max(p.Canary.Targets-p.Canary.Dispatched, 0)
	}
	if p.MaxAmount > 0 {
		a.budget = p.MaxAmount - Spent(c, flagged)
	}
	return a
}

// Bounds are those within which every due row of a promotion may become QUEUED, whatever
// Allowance would say of it.
type Bounds struct {
	Worth     reward.Amount // of all its rows; below 0, Allowance decides
	Committed reward.Amount // of all its rows but FAILED and CANCELLED ones
}

// BoundsOf returns the bounds of a promotion. An approval beyond the limits above is not
// needed within them, nor does the budget run out. While a canary is open, there are none.
func BoundsOf(p reward.Promotion, above reward.Limits, now time.Time) Bounds {
	b := Bounds{Worth: WorthMax(p, above), Committed: unbounded}
	if !Runs(&p, now) || CanaryOpen(p) {
		b.Worth = -1
	}
	if p.MaxAmount > 0 {
		b.Committed = p.MaxAmount
	}
	return b
}

// Hold reports whether a promotion with counts c is within its bounds.
func (b Bounds) Hold(c reward.Counts) bool {
	return c.AmountTotal() <= b.Worth && Spent(c, c.Amounts[reward.Ready]) <= b.Committed
}

// Saved returns the state of a new row that is not QUEUED at once.
func Saved(p reward.Promotion) reward.State {
	if p.Status == reward.PromotionCancelled {
		return reward.Cancelled
	}
	return reward.Ready
}

// Spent returns what a promotion has paid or may have paid. flagged is as in Allow.
func Spent(c reward.Counts, flagged reward.Amount) reward.Amount {
	for _, state := range []reward.State{reward.Succeeded, reward.Queued, reward.Retrying, reward.Unknown} {
		flagged += c.Amounts[state]
	}
	return flagged
}

// Capacity returns how many more rows may be taken, if the budget allows any.
func (a *Allowance) Capacity() int64 {
	if a.budget < 0 {
		return 0
	}
	return max(a.capacity, 0)
}

// FirstCapacity returns how many more rows may be taken for their first dispatch.
func (a *Allowance) FirstCapacity() int64 { return min(a.first, a.Capacity()) }

// Take reports whether a READY or RETRYING row may become QUEUED, and deducts it.
func (a *Allowance) Take(r Row) bool {
	first := r.State == reward.Ready && r.Dispatch == 0
	cost := Exposure(r)
	switch {
	case a.Capacity() == 0 || first && a.first == 0 || a.approved != nil && !a.approved.Covers(r.ApprovalRound):
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

// Exposure returns what a dispatch of a row takes from the budget, which already counts
// a row that may have been charged.
func Exposure(r Row) reward.Amount {
	if r.State != reward.Ready || r.MaybeCalled {
		return 0
	}
	return r.Amount
}

// MayBePaid reports whether the provider may have paid a row that is not SUCCEEDED, so that
// nobody else must pay it: a charge may be in flight or may have taken effect without a final
// response, or one more lookup must confirm that there was none.
func MayBePaid(r Row) bool {
	switch r.State {
	case reward.Queued, reward.Retrying, reward.Unknown:
		return true
	case reward.Ready:
		return r.MaybeCalled
	case reward.Failed, reward.Cancelled:
		return r.Again
	}
	return false
}

// CanaryOpen reports whether a canary still limits and counts first dispatches.
func CanaryOpen(p reward.Promotion) bool { return p.Canary.Targets > 0 && !p.Canary.Judged }
