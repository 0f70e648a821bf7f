package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// WithdrawalKind is why a row leaves its state without an outcome.
type WithdrawalKind int8

// The kinds, and what they do to the row. A row is flagged if MaybeCalled is set.
// A row that is not as expected stays as it is.
const (
	// WithdrawReturn expects a QUEUED row with the dispatch number of the
	// withdrawal. The row becomes READY. In a CANCELLED promotion it becomes UNKNOWN
	// if it was flagged before or Withdrawal.MaybeCalled flags it, otherwise
	// CANCELLED.
	WithdrawReturn WithdrawalKind = iota
	// WithdrawSweep expects a QUEUED row that was dispatched before Before. The row
	// becomes READY and flagged, or UNKNOWN in a CANCELLED promotion.
	WithdrawSweep
	// WithdrawCancel expects a READY or RETRYING row of a CANCELLED promotion. The
	// row becomes CANCELLED if it is READY and not flagged, otherwise UNKNOWN.
	WithdrawCancel
)

// Withdrawal says why a row leaves its state without an outcome.
type Withdrawal struct {
	Kind     WithdrawalKind
	Dispatch int32     // for WithdrawReturn
	Before   time.Time // for WithdrawSweep
	// MaybeCalled is for WithdrawReturn. It reports whether the provider may have
	// been called for this dispatch. It flags the row.
	MaybeCalled bool
	// DeliveryFailed is for WithdrawReturn. It reports whether the consumer ended
	// without an outcome, which counts as a failed delivery.
	DeliveryFailed bool
}

// Withdraw takes a row of promotion p out of its state.
func Withdraw(r Row, why Withdrawal, p reward.Promotion, lease time.Duration, now time.Time) (Row, Tally) {
	cancelled := p.Status == reward.PromotionCancelled
	next := r
	state := reward.Ready
	switch why.Kind {
	case WithdrawReturn:
		if r.State != reward.Queued || r.Dispatch != why.Dispatch {
			return unchanged(r)
		}
		next.MaybeCalled = r.MaybeCalled || why.MaybeCalled
		if why.DeliveryFailed {
			next.FailedDeliveries = min(r.FailedDeliveries+1, FailedDeliveriesMax)
		}
		switch {
		case cancelled && next.MaybeCalled:
			state = reward.Unknown
		case cancelled:
			state = reward.Cancelled
		}
	case WithdrawSweep:
		if r.State != reward.Queued || !r.DueAt.Before(why.Before) {
			return unchanged(r)
		}
		next.MaybeCalled = true
		if cancelled {
			state = reward.Unknown
		}
	case WithdrawCancel:
		if !cancelled || r.State != reward.Ready && r.State != reward.Retrying {
			return unchanged(r)
		}
		state = reward.Unknown
		if r.State == reward.Ready && !r.MaybeCalled {
			state = reward.Cancelled
		}
	default:
		return unchanged(r)
	}
	next.enter(state, lease, now)
	return changed(r, next)
}
