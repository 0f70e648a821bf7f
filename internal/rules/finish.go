package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// OutcomeKind is how a dispatch ended.
type OutcomeKind int8

// The kinds, and what they do to the row. Except for OutcomePaid, they expect a
// QUEUED row with the dispatch number of the outcome, and leave any other row as
// it is. A row is flagged if MaybeCalled is set.
const (
	// OutcomePaid: the provider confirmed the charge. The row becomes SUCCEEDED from
	// any other state and any dispatch, and one attempt is counted. A SUCCEEDED row
	// stays as it is. If it has another transaction key, that is a SecondCharge, and
	// an attempt records the new key.
	OutcomePaid OutcomeKind = iota
	// OutcomeRefused: the provider refused the charge. The row becomes FAILED, or
	// UNKNOWN if it is flagged or Sent is set. One attempt is counted.
	OutcomeRefused
	// OutcomeFailed: the provider answered with an error. The row becomes RETRYING,
	// flagged and due at RetryAt. If its attempts exceed the promotion's MaxRetries
	// it becomes UNKNOWN instead. One attempt is counted.
	OutcomeFailed
	// OutcomeNoAnswer: nothing conclusive is known. There was no response or an
	// inconclusive one, a throttled call that the consumer does not repeat, or an
	// inconclusive lookup before the charge. The row becomes RETRYING, flagged and due at RetryAt, or
	// UNKNOWN if GiveUp is set. No attempt is counted.
	OutcomeNoAnswer
	// OutcomeNoLookup: the payout is poison, so it is not charged again. The row
	// becomes UNKNOWN, and the settler looks it up. No attempt is counted.
	OutcomeNoLookup
	// OutcomeCancelled: the promotion was cancelled. The row becomes CANCELLED, or
	// UNKNOWN if it is flagged or Sent is set.
	OutcomeCancelled
)

// Outcome is the end of one dispatch. A CANCELLED promotion has UNKNOWN for RETRYING.
type Outcome struct {
	reward.Ref
	Kind OutcomeKind
	// Sent reports whether an earlier charge of the same dispatch may have taken
	// effect: it was answered with 503, or was a probe that failed. A charge that
	// was answered with 429 does not count.
	Sent           bool
	TransactionKey string
	Code, Message  string
	RetryAt        time.Time // zero means at once
	GiveUp         bool      // for OutcomeNoAnswer: do not retry
	// Attempts are the attempts to record. A charge answered "paid" has none.
	Attempts []reward.Attempt
}

// Finish applies an outcome to a row of promotion p. It returns the row
// afterwards and the attempts to record. These are recorded even if the row has
// moved on and stays as it is.
func Finish(r Row, o Outcome, p reward.Promotion, lease time.Duration, now time.Time) (Row, []reward.Attempt, Tally) {
	next, tally := finish(r, o, p, lease, now)
	attempts := sanitized(o.Attempts)
	if o.Kind == OutcomePaid && SecondCharge(r, o.TransactionKey) {
		attempts = append(attempts, secondCharge(o.Dispatch, o.TransactionKey, now))
	}
	return next, attempts, tally
}

// SecondCharge reports whether a confirmation with a transaction key proves that a
// row was charged twice: the row is SUCCEEDED with another transaction key. Without
// a key, a confirmation proves nothing.
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
