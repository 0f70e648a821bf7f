// Package rules decides what may become of a row: what an outcome or a lookup
// does to a payout, when FAILED is final, what a cancel does, what may be
// dispatched, how a promotion ends, and what a batch of coupon requests yields.
//
// Its functions are pure. They take rows as they are and return rows as they
// have to be, and know no clock and no database. The SQLite driver calls them
// inside its transaction. The PostgreSQL driver states the same rules in SQL,
// and storetest.ExerciseRules compares the two over every case.
package rules

import (
	"math"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// FailedDeliveriesMax is where the failed deliveries of a payout stop being
// counted.
const FailedDeliveriesMax = math.MaxInt16

// Row is a payout with what only the store knows of it.
type Row struct {
	reward.Payout
	// Again reports whether the row is FAILED or CANCELLED because a lookup did
	// not find its charge, and one more lookup is to confirm that at DueAt.
	Again bool
	// LookedAt is when the latest lookup began that left the row UNKNOWN; zero
	// when there was none since the row became UNKNOWN.
	LookedAt time.Time
}

// Tally is what a change of one row does to the counts.
type Tally struct {
	Was, Became reward.State
	// Answers is added to the counted attempts; it is negative where a retry
	// starts counting anew.
	Answers int64
	// Changed reports whether the row has to be written. Was and Became may be
	// equal then: a lookup can move nothing but the time of the next one.
	Changed bool
}

// unchanged is the result of a rule that leaves the row as it is.
func unchanged(r Row) (Row, Tally) {
	return r, Tally{Was: r.State, Became: r.State}
}

// changed is the result of a rule that made next of r.
func changed(r, next Row) (Row, Tally) {
	return next, Tally{Was: r.State, Became: next.State, Answers: int64(next.Attempts - r.Attempts), Changed: true}
}

// enter moves a row to a state. An UNKNOWN row may have been charged, and is
// settled by lookups that begin after the lease of its holder.
func (r *Row) enter(state reward.State, lease time.Duration, now time.Time) {
	r.State, r.DueAt, r.UpdatedAt, r.Again = state, instant(now), instant(now), false
	if state == reward.Unknown {
		r.MaybeCalled, r.SettleFrom, r.LookedAt = true, instant(now.Add(lease)), time.Time{}
	}
}

// succeed moves a row to SUCCEEDED.
func (r *Row) succeed(transactionKey string, now time.Time) {
	r.enter(reward.Succeeded, 0, now)
	r.TransactionKey, r.ErrorCode, r.ErrorMessage = reward.SanitizeText(transactionKey), "", ""
}

// sanitized returns attempts with texts that every database can store.
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

// instant is a time as every database keeps it: microseconds, UTC.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
