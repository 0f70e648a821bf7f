package rows

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// unknownPage ends the statements that read a page of UNKNOWN payouts, oldest
	// first.
	unknownPage = ` AND (p.updated_at, p.promotion_id, p.target_id) > ($1, $2, $3)
AND p.updated_at <= (SELECT :clock - CAST($4 AS interval)) ORDER BY p.updated_at, p.promotion_id, p.target_id LIMIT $5`

	// listUnknown walks the index of UNKNOWN payouts.
	listUnknown = `SELECT ` + PayoutColumns + ` FROM payouts p WHERE p.state = 3` + unknownPage

	// listUnknownOf reads the latest payouts of user $6. The sum keeps the planner
	// from that index, which has those of all users.
	listUnknownOf = `SELECT ` + PayoutColumns + ` FROM :payouts_of_user WHERE p.state + 0 = 3` + unknownPage

	// oldestPayouts reads since when the oldest READY payout of the first $1 RUNNING
	// promotions with any waits, since when the oldest UNKNOWN one since $2 does, and since when one
	// of these promotions has dispatched nothing. It leaves out those that may wait for the
	// outcomes of a canary, of what is within the budget, or of what is approved. Each payout
	// is the first entry of an index. The comparison p.state < 4 lets SQLite use the first.
	oldestPayouts = `SELECT min(r.due_at), (SELECT p.updated_at FROM payouts p WHERE p.state = 3 AND p.updated_at >= $2 ORDER BY p.updated_at LIMIT 1),
  min(CASE WHEN r.holds THEN NULL WHEN r.last_dispatched_at > r.due_at THEN r.last_dispatched_at ELSE r.due_at END)
FROM (
  SELECT m.last_dispatched_at, m.canary_targets > 0 AND NOT m.canary_judged AND m.canary_dispatched >= m.canary_targets
      OR m.max_amount > 0 AND m.max_amount - s.succeeded_amount - s.queued_amount - s.retrying_amount - s.unknown_amount < s.ready_amount
        AND s.queued + s.retrying + s.unknown > 0
      OR m.approved_rounds > 0 AND m.approved_count < s.ready + s.queued + s.retrying + s.unknown + s.succeeded + s.failed + s.cancelled
        AND s.queued + s.retrying > 0 AS holds,
    (SELECT p.due_at FROM payouts p WHERE p.promotion_id = m.id AND p.state = 0 AND p.state < 4 ORDER BY p.due_at LIMIT 1) AS due_at
  FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0
  WHERE m.status = 'RUNNING' AND s.ready > 0 ORDER BY m.id LIMIT $1
) r`

	// payoutErrors walks from one error code of promotion $1 to the next, at most $2,
	// and counts the payouts of each in three states, each up to $3. So it reads no
	// entry of the index for another state.
	payoutErrors = `WITH RECURSIVE codes (code, n) AS (
  SELECT (SELECT p.error_code FROM payouts p :by_code WHERE p.promotion_id = $1 AND p.error_code <> '' ORDER BY p.error_code LIMIT 1), 1
  UNION ALL
  SELECT (SELECT p.error_code FROM payouts p :by_code WHERE p.promotion_id = $1 AND p.error_code <> '' AND p.error_code > c.code
    ORDER BY p.error_code LIMIT 1), c.n + 1
  FROM codes c WHERE c.code IS NOT NULL AND c.n < $2
)
SELECT c.code, (:count5), (:count2), (:count3), coalesce((:first5), (:first3), (:first2))
FROM codes c WHERE c.code IS NOT NULL`

	countOfCode = `SELECT count(*) FROM (SELECT 1 FROM payouts p :by_code
    WHERE p.promotion_id = $1 AND p.error_code = c.code AND p.error_code <> '' AND p.state = :state LIMIT $3) counted`
	firstOfCode = `SELECT p.target_id FROM payouts p :by_code
    WHERE p.promotion_id = $1 AND p.error_code = c.code AND p.error_code <> '' AND p.state = :state ORDER BY p.target_id LIMIT 1`

	// exampleOfCode reads the message of a payout, and the class of its latest attempt
	// with its code.
	exampleOfCode = `SELECT p.error_message, coalesce((SELECT a.class FROM attempts a WHERE a.promotion_id = p.promotion_id
  AND a.target_id = p.target_id AND a.code = p.error_code ORDER BY a.at DESC, a.dispatch DESC, a.number DESC LIMIT 1), '')
FROM payouts p WHERE p.promotion_id = $1 AND p.target_id = $2`
)

// errorsSQL returns the text of payoutErrors.
func (d Dialect) errorsSQL() string {
	text := payoutErrors
	for _, state := range []string{"2", "3", "5"} {
		text = strings.NewReplacer(
			":count"+state, strings.ReplaceAll(countOfCode, ":state", state),
			":first"+state, strings.ReplaceAll(firstOfCode, ":state", state)).Replace(text)
	}
	return strings.ReplaceAll(text, ":by_code", d.Index("payouts_code"))
}

// scanPayout reads PayoutColumns.
func scanPayout(scan Scan, p *reward.Payout) error {
	var trace *string
	err := scan(
		(*int64)(&p.PromotionID), (*int64)(&p.TargetID), (*int64)(&p.SummaryID), &p.UserID, (*int64)(&p.Amount),
		&p.VoucherCode, (*int16)(&p.State), &p.Dispatch, &p.Attempts, &p.MaybeCalled, &p.FailedDeliveries, (*at)(&p.DueAt),
		(*at)(&p.FirstDispatchedAt), (*at)(&p.SettleFrom), &p.TransactionKey, &p.ErrorCode, &p.ErrorMessage, (*at)(&p.UpdatedAt), &trace,
	)
	if trace != nil {
		p.Trace = *trace
	}
	return err
}

// PayoutUnknown returns a page of the UNKNOWN payouts of all promotions, ordered by
// the time at which they became UNKNOWN, then by promotion and target.
func (t *Tables) PayoutUnknown(ctx context.Context, p store.PayoutUnknownParams) ([]reward.Payout, error) {
	after := p.After
	if after.Since.IsZero() {
		after.Since = time.Unix(0, 0)
	}
	args := []any{after.Since, int64(after.PromotionID), int64(after.TargetID), p.OlderThan, max(p.Limit, 0)}
	if p.UserID == "" {
		return list(ctx, t.db.ReadLong, "list UNKNOWN payouts", scanPayout, t.listUnknown, args...)
	}
	if len(store.StorableUsers([]string{p.UserID})) == 0 {
		return nil, nil // no payout can have this user ID
	}
	return list(ctx, t.db.ReadLong, "list UNKNOWN payouts of a user", scanPayout, t.listUnknownOf, append(args, p.UserID)...)
}

// PayoutOldest returns since when the oldest READY and UNKNOWN payouts wait, and since
// when READY ones wait without any dispatch. It looks for READY ones in the first
// store.OldestPromotionsMax RUNNING promotions that have any.
func (t *Tables) PayoutOldest(ctx context.Context) (store.OldestPayouts, error) {
	found, err := list(ctx, t.db.ReadLong, "find the oldest payouts", func(scan Scan, o *store.OldestPayouts) error {
		return scan((*at)(&o.ReadySince), (*at)(&o.UnknownSince), (*at)(&o.StalledSince))
	}, oldestPayouts, store.OldestPromotionsMax, time.Unix(0, 0))
	return first(found, err, nil)
}

// PayoutErrors counts the FAILED, RETRYING and UNKNOWN payouts of a promotion by
// their error code, most payouts first. It counts the first store.PayoutErrorsMax codes
// in alphabetical order.
func (t *Tables) PayoutErrors(ctx context.Context, id reward.PromotionID) ([]store.PayoutError, error) {
	found, err := list(ctx, t.db.ReadLong, "count error codes", func(scan Scan, e *store.PayoutError) error {
		var target *int64
		if err := scan(&e.Code, &e.Failed, &e.Retrying, &e.Unknown, &target); err != nil || target == nil {
			return err
		}
		e.TargetID = reward.TargetID(*target)
		return nil
	}, t.payoutErrors, int64(id), store.PayoutErrorsMax, store.PayoutErrorCountMax)
	if err != nil {
		return nil, err
	}
	// A code that only payouts in other states have is no error any more.
	found = slices.DeleteFunc(found, func(e store.PayoutError) bool { return e.Payouts() == 0 })
	slices.SortStableFunc(found, func(a, b store.PayoutError) int { return cmp.Compare(b.Payouts(), a.Payouts()) })
	for i := range found[:min(len(found), store.PayoutErrorExamples)] {
		e := &found[i]
		if err := t.db.Read(ctx, "read an example of an error", func() Statement {
			return Statement{SQL: exampleOfCode, Args: []any{int64(id), int64(e.TargetID)}, Row: func(scan Scan) error { return scan(&e.Message, &e.Class) }}
		}); err != nil {
			return nil, err
		}
	}
	return found, nil
}
