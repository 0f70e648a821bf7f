package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Lookup is what the provider said about the key of a payout.
type Lookup struct {
	reward.Ref
	// Found: SUCCEEDED with TransactionKey, whatever the state.
	Found          bool
	TransactionKey string
	// NotFound, with BeganAt ≥ SettleFrom + SettleAfter, decides a row that is
	// still UNKNOWN under this dispatch: FAILED, or CANCELLED in a CANCELLED
	// promotion. Otherwise, and when neither is set, it is looked up again at
	// NextAt, and the latest BeganAt is kept for Complete.
	NotFound bool
	BeganAt  time.Time
	NextAt   time.Time
	Attempt  *reward.Attempt // the answer to record; nil = none
}

// Terms are the durations that decide about lookups.
type Terms struct {
	// SettleAfter is how long after SettleFrom a lookup must begin for a "not
	// found" to be final: by then no charge can still be under way.
	SettleAfter time.Duration
	// AgainAfter is how long after a "not found" has decided a row one more lookup
	// confirms it. That one can find the charge (SUCCEEDED, as always), confirm it
	// (the row stays as it is), or have no answer (again at NextAt, which is the
	// row's only change). A lookup that began before the row was decided changes
	// nothing. 0 = no second lookup.
	AgainAfter time.Duration
}

// Settle applies a lookup to a row of promotion p. It returns the row after it
// and the attempts to record, whatever becomes of the row. A row that "not
// found" decides keeps what was recorded about it before.
func Settle(r Row, l Lookup, p reward.Promotion, t Terms, now time.Time) (Row, []reward.Attempt, Tally) {
	var attempts []reward.Attempt
	if l.Attempt != nil {
		attempts = sanitized([]reward.Attempt{*l.Attempt})
	}
	next, tally := settle(r, l, p, t, now)
	return next, attempts, tally
}

func settle(r Row, l Lookup, p reward.Promotion, t Terms, now time.Time) (Row, Tally) {
	next := r
	began := instant(l.BeganAt)
	switch {
	case l.Found && r.State == reward.Succeeded:
		return unchanged(r)
	case l.Found:
		next.succeed(l.TransactionKey, now)
	case r.Dispatch != l.Dispatch:
		return unchanged(r)
	case r.Again:
		if began.Before(r.UpdatedAt) {
			return unchanged(r)
		}
		next.Again = !l.NotFound
		if next.Again {
			next.DueAt = instant(l.NextAt)
		}
	case r.State != reward.Unknown:
		return unchanged(r)
	case !l.NotFound || began.Before(r.SettleFrom.Add(t.SettleAfter)):
		next.DueAt = instant(l.NextAt)
		if began.After(r.LookedAt) {
			next.LookedAt = began
		}
	default:
		state := reward.Failed
		if p.Status == reward.PromotionCancelled {
			state = reward.Cancelled
		}
		next.enter(state, 0, now)
		if t.AgainAfter > 0 {
			next.DueAt, next.Again = instant(now.Add(t.AgainAfter)), true
		}
		if r.ErrorCode == "" && r.ErrorMessage == "" && l.Attempt != nil {
			next.ErrorCode, next.ErrorMessage = reward.SanitizeText(l.Attempt.Code), reward.SanitizeText(l.Attempt.Message)
		}
	}
	return changed(r, next)
}

// Resolution is how an operator settles an UNKNOWN row.
type Resolution struct {
	Paid           bool // SUCCEEDED with TransactionKey; else FAILED
	TransactionKey string
	Note, By       string
}

// Resolve settles an UNKNOWN row as an operator says, also in a CANCELLED
// promotion. It returns the row after it and the attempt to record, which is
// not counted. What the provider said last stays with a row that becomes
// FAILED. A row in another state is CodeIllegalState.
func Resolve(r Row, s Resolution, now time.Time) (Row, reward.Attempt, Tally, error) {
	if r.State != reward.Unknown {
		return r, reward.Attempt{}, Tally{}, NotResolvable(r.Payout)
	}
	next := r
	if s.Paid {
		next.succeed(s.TransactionKey, now)
	} else {
		next.enter(reward.Failed, 0, now)
	}
	attempt := reward.Attempt{
		Dispatch: r.Dispatch, At: instant(now), Class: reward.AnswerResolved,
		Code: reward.SanitizeText(s.By), Message: reward.SanitizeText(s.Note),
	}
	next, tally := changed(r, next)
	return next, attempt, tally, nil
}

// NotResolvable is the error of a row that Resolve refuses.
func NotResolvable(p reward.Payout) error {
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"target %d of promotion %d is %s; only an UNKNOWN one can be resolved", p.TargetID, p.PromotionID, p.State)
}

// CheckRetry refuses, with CodeIllegalState, the retry of a promotion that is
// DRAFT or CANCELLED.
func CheckRetry(id reward.PromotionID, status reward.PromotionStatus) error {
	if status == reward.Draft || status == reward.PromotionCancelled {
		return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"promotion %d is %s, which does not allow a retry", id, status)
	}
	return nil
}

// Retry returns a FAILED row to READY with no attempts counted, if its error
// code is code; "" is any. Dispatch, flag, first dispatch and the last error
// stay.
func Retry(r Row, code string, now time.Time) (Row, Tally) {
	if r.State != reward.Failed || code != "" && r.ErrorCode != code {
		return unchanged(r)
	}
	next := r
	next.enter(reward.Ready, 0, now)
	next.Attempts = 0
	return changed(r, next)
}
