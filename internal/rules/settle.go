package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Lookup is the result of a lookup: Found, NotFound, or else inconclusive.
type Lookup struct {
	reward.Ref
	// Found means that the provider confirmed the charge, with TransactionKey.
	Found          bool
	TransactionKey string
	// NotFound means that the provider never saw the idempotency key. It decides an
	// UNKNOWN row with this dispatch if BeganAt is not before SettleFrom + SettleAfter.
	// Any other lookup leaves the row UNKNOWN, due again at NextAt.
	NotFound bool
	// BeganAt is when the provider was asked; zero: it was not, and only NextAt counts.
	BeganAt time.Time
	NextAt  time.Time
	Attempt *reward.Attempt // the attempt to record; nil means none
}

// Terms are the durations that Settle uses.
type Terms struct {
	// SettleAfter is the time from SettleFrom to the first lookup whose "not found"
	// decides a row. By then no charge can be in flight.
	SettleAfter time.Duration
	// AgainAfter is the time from a decision by "not found" to a second lookup; zero
	// means none. Found makes the row SUCCEEDED, NotFound confirms the decision, and
	// after any other result the row is due again at NextAt. One that began before the
	// decision only counts if it is Found.
	AgainAfter time.Duration
}

// Settle applies a lookup to a row of promotion p. It returns the row afterwards and
// the attempts to record, even if the row stays as it is. A row that becomes FAILED or
// CANCELLED keeps its error, or gets that of the attempt.
func Settle(r Row, l Lookup, p reward.Promotion, t Terms, now time.Time) (Row, []reward.Attempt, Tally) {
	var attempts []reward.Attempt
	if l.Attempt != nil {
		attempts = sanitized([]reward.Attempt{*l.Attempt})
	}
	next, tally := settle(r, l, p, t, now)
	if l.Found && SecondCharge(r, l.TransactionKey) {
		attempts = append(attempts, secondCharge(l.Dispatch, l.TransactionKey, now))
	}
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

// Resolution is an operator's decision about an UNKNOWN row.
type Resolution struct {
	// Paid makes the row SUCCEEDED with TransactionKey, otherwise FAILED.
	Paid           bool
	TransactionKey string
	Note, By       string // why, and who decided
}

// Resolve settles an UNKNOWN row as an operator decided, and returns the attempt to
// record, which is not counted. Any other row is CodeIllegalState.
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

// NotResolvable returns the error for a row that Resolve refuses.
func NotResolvable(p reward.Payout) error {
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"target %d of promotion %d is %s; only UNKNOWN payouts can be resolved", p.TargetID, p.PromotionID, p.State)
}

// CheckRetry returns CodeIllegalState for a DRAFT or CANCELLED promotion.
func CheckRetry(id reward.PromotionID, status reward.PromotionStatus) error {
	if status == reward.Draft || status == reward.PromotionCancelled {
		return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"promotion %d is %s, which does not allow a retry", id, status)
	}
	return nil
}

// CheckArchived returns CodeArchived if a promotion is archived. It takes no targets
// and allows no retry: a removed target could be paid again.
func CheckArchived(id reward.PromotionID, archived bool) error {
	if archived {
		return reward.NewError(reward.KindConflict, reward.CodeArchived,
			"promotion %d is archived, and its payouts are removed (retention.payouts): use a new promotion", id)
	}
	return nil
}

// Retry moves a FAILED row with an error code ("": any) back to READY, and resets only
// its counted attempts.
func Retry(r Row, code string, now time.Time) (Row, Tally) {
	if r.State != reward.Failed || code != "" && r.ErrorCode != code {
		return unchanged(r)
	}
	next := r
	next.enter(reward.Ready, 0, now)
	next.Attempts = 0
	return changed(r, next)
}
