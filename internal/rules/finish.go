package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// OutcomeKind is how a dispatch ended for the consumer that held it.
type OutcomeKind int8

// The kinds, and what they do to the row. All but OutcomePaid expect a QUEUED
// row with the dispatch of the outcome, and do nothing to another one.
const (
	// OutcomePaid: SUCCEEDED, whatever the state and dispatch; one counted answer.
	OutcomePaid OutcomeKind = iota
	// OutcomeRefused: FAILED when the row is not flagged and Sent is false,
	// otherwise UNKNOWN; one counted answer.
	OutcomeRefused
	// OutcomeFailed: RETRYING, flagged, due at RetryAt, while attempts ≤ the
	// promotion's MaxRetries, otherwise UNKNOWN; one counted answer.
	OutcomeFailed
	// OutcomeNoAnswer: RETRYING, flagged, due at RetryAt; UNKNOWN when GiveUp. No
	// answer is counted.
	OutcomeNoAnswer
	// OutcomeNoLookup: UNKNOWN.
	OutcomeNoLookup
	// OutcomeCancelled: UNKNOWN when the row is flagged or Sent, otherwise
	// CANCELLED.
	OutcomeCancelled
)

// Outcome is the end of one dispatch. In a CANCELLED promotion what would
// become RETRYING becomes UNKNOWN.
type Outcome struct {
	reward.Ref
	Kind OutcomeKind
	// Sent reports whether this holder had sent the request before the answer
	// that ended it (a 503 counts as having sent).
	Sent           bool
	TransactionKey string
	Code, Message  string
	RetryAt        time.Time // zero = at once
	GiveUp         bool
	// Attempts are the answers to record as attempts, first-time success aside.
	Attempts []reward.Attempt
}

// Finish applies an outcome to a row of promotion p. It returns the row after
// it and the attempts to record, which are recorded in any case: also when the
// row has moved on and stays as it is.
func Finish(r Row, o Outcome, p reward.Promotion, lease time.Duration, now time.Time) (Row, []reward.Attempt, Tally) {
	next, tally := finish(r, o, p, lease, now)
	return next, sanitized(o.Attempts), tally
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
