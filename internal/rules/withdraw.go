package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// WithdrawalKind is why a row leaves its state without an outcome.
type WithdrawalKind int8

// The kinds. A row that is not as expected stays as it is.
const (
	WithdrawReturn WithdrawalKind = iota // of a QUEUED row with the dispatch number of the withdrawal
	WithdrawSweep                        // of a QUEUED row that was dispatched before Before
	WithdrawCancel                       // of a READY or RETRYING row of a CANCELLED promotion
)

// Withdrawal says why a row leaves its state without an outcome.
type Withdrawal struct {
	Kind     WithdrawalKind
	Dispatch int32     // for WithdrawReturn
	Before   time.Time // for WithdrawSweep
	// MaybeCalled, for WithdrawReturn, says that this dispatch may have called the
	// provider.
	MaybeCalled bool
	// DeliveryFailed, for WithdrawReturn, says that the consumer ended without an
	// outcome.
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
