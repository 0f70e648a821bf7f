// Package rules defines how rows change: what outcomes, lookups and cancels do to
// payouts, which may be dispatched, when promotions end, and what coupon requests and
// coupons become.
//
// Its functions are pure: they use no clock and no database. Package rows calls them
// for both databases, and writes the result if the row is still as it was read. Where
// PostgreSQL still states a rule in SQL, storetest.ExerciseRules compares the two.
package rules

import (
	"math"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// FailedDeliveriesMax is the highest count of failed deliveries.
const FailedDeliveriesMax = math.MaxInt16

// Row is a payout with the fields that only the store uses.
type Row struct {
	reward.Payout
	// Again reports that the row is FAILED or CANCELLED because a lookup did not
	// find its charge, and that one more lookup at DueAt must confirm this.
	Again bool
	// LookedAt is when the latest lookup that left the row UNKNOWN began. It is
	// zero if there was none since the row became UNKNOWN.
	LookedAt time.Time
	// ApprovalRound is the round in which the row was saved; see reward.Approval.
	ApprovalRound int32
}

// Tally is what a change of one row does to the counts.
type Tally struct {
	Was, Became reward.State
	// Answers is added to the counted attempts. A retry makes it negative.
	Answers int64
	// Changed reports whether the row must be written. Was and Became may still be
	// equal: an inconclusive lookup only moves the time of the next one.
	Changed bool
}

// unchanged is the result of a rule that leaves the row as it is.
func unchanged(r Row) (Row, Tally) {
	return r, Tally{Was: r.State, Became: r.State}
}

// changed is the result of a rule that changed r to next.
func changed(r, next Row) (Row, Tally) {
	return next, Tally{Was: r.State, Became: next.State, Answers: int64(next.Attempts - r.Attempts), Changed: true}
}

// enter moves a row to a state. If that is UNKNOWN, it may have been charged until its
// consumer's lease ends at SettleFrom.
func (r *Row) enter(state reward.State, lease time.Duration, now time.Time) {
	r.State, r.DueAt, r.UpdatedAt, r.Again = state, instant(now), instant(now), false
	if state == reward.Unknown {
		r.MaybeCalled, r.SettleFrom, r.LookedAt = true, instant(now.Add(lease)), time.Time{}
	}
}

func (r *Row) succeed(transactionKey string, now time.Time) {
	r.enter(reward.Succeeded, 0, now)
	r.TransactionKey, r.ErrorCode, r.ErrorMessage = reward.SanitizeText(transactionKey), "", ""
}

// sanitized returns attempts whose texts every database can store.
func sanitized(attempts []reward.Attempt) []reward.Attempt {
	if len(attempts) == 0 {
		return nil
	}
	list := make([]reward.Attempt, len(attempts))
	for i, a := range attempts {
		a.At, a.Code, a.Message = instant(a.At), reward.SanitizeText(a.Code), reward.SanitizeText(a.Message)
		list[i] = a
	}
	return list
}

// instant returns t as every database stores it: UTC, in microseconds.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
