package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// OutcomeKind is how a dispatch ended.
type OutcomeKind int8

// The kinds. Except for OutcomePaid, they leave a row as it is that is not QUEUED with
// the dispatch number of the outcome.
const (
	OutcomePaid    OutcomeKind = iota // the provider confirmed the charge
	OutcomeRefused                    // the provider refused the charge
	OutcomeFailed                     // the provider answered with an error
	// OutcomeNoAnswer: no or an inconclusive response, a throttled call that the
	// consumer does not repeat, or an inconclusive lookup before the charge.
	OutcomeNoAnswer
	OutcomeNoLookup  // the payout is poison: it is looked up, and not charged again
	OutcomeCancelled // the promotion was cancelled
)

// Outcome is the end of one dispatch. A CANCELLED promotion has UNKNOWN for RETRYING.
type Outcome struct {
	reward.Ref
	Kind OutcomeKind
	// Sent reports whether an earlier charge of the same dispatch may have taken
	// effect: it was answered with 503 (not 429), or was a probe that failed.
	Sent           bool
	TransactionKey string
	Code, Message  string
	RetryAt        time.Time // zero means at once
	GiveUp         bool      // for OutcomeNoAnswer: do not retry
	// Attempts are the attempts to record. A charge answered "paid" has none.
	Attempts []reward.Attempt
}

// Finish applies an outcome to a row of promotion p. It returns the row afterwards and
// the attempts to record, even if the row stays as it is.
func Finish(r Row, o Outcome, p reward.Promotion, lease time.Duration, now time.Time) (Row, []reward.Attempt, Tally) {
	next, tally := finish(r, o, p, lease, now)
	attempts := sanitized(o.Attempts)
	if o.Kind == OutcomePaid && SecondCharge(r, o.TransactionKey) {
		attempts = append(attempts, secondCharge(o.Dispatch, o.TransactionKey, now))
	}
	return next, attempts, tally
}

// SecondCharge reports whether a confirmation proves a second charge: the row is
// SUCCEEDED with another transaction key.
func SecondCharge(r Row, transactionKey string) bool {
	key := reward.SanitizeText(transactionKey)
	return r.State == reward.Succeeded && r.TransactionKey != "" && key != "" && key != r.TransactionKey
}

// secondCharge returns the attempt that keeps the second transaction key.
func secondCharge(dispatch int32, transactionKey string, now time.Time) reward.Attempt {
	return reward.Attempt{
		Dispatch: dispatch, At: instant(now), Class: reward.AnswerPaid, Code: reward.CodeSecondCharge, Message: reward.SanitizeText(transactionKey),
	}
}

func finish(r Row, o Outcome, p reward.Promotion, lease time.Duration, now time.Time) (Row, Tally) {
	next := r
	next.FailedDeliveries = 0
	if o.Kind == OutcomePaid {
		if r.State == reward.Succeeded {
			return unchanged(r)
		}
		next.succeed(o.TransactionKey, now)
		next.Attempts++
		return changed(r, next)
	}
	if r.State != reward.Queued || r.Dispatch != o.Dispatch {
		return unchanged(r)
	}
	called := r.MaybeCalled || o.Sent
	live := p.Status != reward.PromotionCancelled
	state := reward.Unknown
	switch o.Kind {
	case OutcomeRefused:
		next.Attempts++
		if !called {
			state = reward.Failed
		}
	case OutcomeFailed:
		next.Attempts++
		if live && int(next.Attempts) <= p.MaxRetries {
			state = reward.Retrying
		}
	case OutcomeNoAnswer:
		if live && !o.GiveUp {
			state = reward.Retrying
		}
	case OutcomeNoLookup:
	case OutcomeCancelled:
		if !called {
			state = reward.Cancelled
		}
	default:
		return unchanged(r)
	}
	next.enter(state, lease, now)
	if state == reward.Retrying {
		next.MaybeCalled = true
		if !o.RetryAt.IsZero() {
			next.DueAt = instant(o.RetryAt)
		}
	}
	if o.Code != "" || o.Message != "" {
		next.ErrorCode, next.ErrorMessage = reward.SanitizeText(o.Code), reward.SanitizeText(o.Message)
	}
	return changed(r, next)
}
