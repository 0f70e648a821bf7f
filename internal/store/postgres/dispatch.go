package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// These expressions are what the canary and the budget leave of promotion m
// with counts s for new QUEUED rows, by rules.Allowance. NULL means no limit.
const (
	canaryOpen = `m.canary_targets > 0 AND NOT m.canary_judged`
	// canaryCapacity is the number of rows that may be dispatched for the first
	// time.
	canaryCapacity = `CASE WHEN ` + canaryOpen + ` THEN greatest(0, m.canary_targets - m.canary_dispatched) END`
	// budgetUnspent is what the budget leaves, before READY rows are counted that
	// may have been charged.
	budgetUnspent = `(m.max_amount - (s.succeeded_amount + s.queued_amount + s.retrying_amount + s.unknown_amount))`
	// budgetCapacity is the amount of READY rows that may be queued if no
	// charge of them can have left. The budget counts all others already. It
	// reads each READY row that was dispatched before, so evaluate it once per
	// promotion, and only if budgetUnspent is less than all READY rows. The sum of
	// all amounts of a promotion fits in 63 bits, so these sums do too.
	budgetCapacity = budgetUnspent + `
      - coalesce((SELECT sum(b.amount)::int8 FROM payouts b
          WHERE b.promotion_id = m.id AND b.state = :READY AND b.dispatch > 0 AND b.maybe_called), 0)`
)

// worth is the amount of all payouts that the summary row s counts.
var worth = rows.Worth

// limit returns the limit of the currency of promotion m, in the row that the statement
// sees, from a parameter of rows.Limits.
func limit(param string) string { return dialect.Limit(param, `m.currency`) }

// approvalNeeded returns the condition rules.ApprovalNeeded for promotion m.
func approvalNeeded(worth, above string) string {
	return limit(above) + ` > 0 AND (m.unvalued_rounds > m.approved_rounds OR ` + worth + ` > greatest(least(` + limit(above) + `, m.day_granted), m.approved_amount))`
}

// dispatchSQL returns the statement that queues rows of from in the given
// order, within the capacity of the promotion. The caller holds the lock of the
// summary row, so no other transaction uses the capacity.
//
// Without canary, budget and needed approval the rows of picked are queued, and the
// rest of the statement is not executed. With an open canary, rows for their first
// dispatch and other rows are picked separately, so that many of the former do not
// hide the latter. So are approved rows: those for their first dispatch became due
// before the approval. The sum keeps the planner from the order of payouts_open. A row that exceeds the budget ends the batch. The budget
// counts RETRYING rows already.
func dispatchSQL(from, order string) string {
	pick := func(where, limit string) string {
		return `MATERIALIZED (
  SELECT p.promotion_id, p.target_id, p.due_at, CASE WHEN p.state = :READY AND NOT p.maybe_called THEN p.amount ELSE 0 END AS amount FROM ` + from + where + `
  ORDER BY ` + order + ` LIMIT coalesce((SELECT ` + limit + `), 0) FOR NO KEY UPDATE OF p SKIP LOCKED
)`
	}
	const approved = ` AND (SELECT approved IS NULL OR p.approval_round < approved FROM room)`
	return named(`WITH room AS MATERIALIZED (
  SELECT r.*, r.canary IS NULL AND r.approved IS NULL AS plain FROM (
  SELECT greatest(0, least($3::int8, $4::int8 - s.queued)) AS rows,
    CASE $2::int2 WHEN :READY THEN ` + canaryCapacity + ` END AS canary,
    CASE WHEN m.max_amount > 0 AND ` + budgetUnspent + ` < s.ready_amount THEN ` + budgetCapacity + ` END AS budget,
    CASE WHEN ` + approvalNeeded(worth, "$7") + ` THEN m.approved_rounds END AS approved,
    CASE WHEN ` + approvalNeeded(worth, "$7") + ` THEN coalesce(m.approved_until, '-infinity') ELSE 'infinity' END AS until
  FROM summaries s JOIN promotions m ON m.id = s.promotion_id
  WHERE s.promotion_id = $1 AND s.summary_id = 0 AND m.status = 'RUNNING') r
), picked AS ` + pick(``, `rows FROM room WHERE plain`) + `,
fresh AS ` + pick(` AND p.dispatch = 0 AND p.due_at <= (SELECT until FROM room)`+approved, `least(rows, canary) FROM room WHERE NOT plain`) + `,
back AS ` + pick(` AND p.state = :READY AND p.dispatch > 0`+approved, `rows FROM room WHERE NOT plain`) + `,
again AS ` + pick(` AND p.state + 0 = :RETRYING`+approved, `rows FROM room WHERE NOT plain`) + `,
allowed AS (
  SELECT promotion_id, target_id FROM picked WHERE (SELECT budget IS NULL FROM room)
  UNION ALL
  SELECT promotion_id, target_id FROM (
    SELECT p.promotion_id, p.target_id, row_number() OVER front AS place, sum(p.amount) OVER front AS worth
    FROM (TABLE picked UNION ALL TABLE fresh UNION ALL TABLE back UNION ALL TABLE again) p
    WINDOW front AS (ORDER BY ` + order + ` ROWS UNBOUNDED PRECEDING)
  ) f
  WHERE (SELECT NOT plain OR budget IS NOT NULL FROM room)
    AND place <= (SELECT rows FROM room) AND coalesce(worth <= (SELECT budget FROM room), true)
), queued AS (
  UPDATE payouts p SET state = :QUEUED, dispatch = p.dispatch + 1, due_at = $5::timestamptz, updated_at = $5::timestamptz,
    first_dispatched_at = coalesce(p.first_dispatched_at, least($5::timestamptz, clock_timestamp()))
  FROM allowed k WHERE p.promotion_id = k.promotion_id AND p.target_id = k.target_id
  RETURNING ` + payoutColumns + `
), moved AS MATERIALIZED (
  SELECT promotion_id, summary_id, amount, $2::int2 AS was, state AS became, 0 AS answers FROM queued
), ` + tally("moved") + `, noted AS (
  UPDATE promotions m SET last_dispatched_at = greatest(m.last_dispatched_at, $5::timestamptz), stream_gone = false,
    canary_dispatched = m.canary_dispatched
      + CASE WHEN ` + canaryOpen + ` THEN (SELECT count(*) FROM queued WHERE dispatch = 1) ELSE 0 END
  WHERE m.id = $1 AND EXISTS (SELECT 1 FROM moved)
)
SELECT ` + payoutColumns + `, (SELECT rows FROM room), (SELECT max(due_at) FROM picked WHERE (SELECT budget IS NULL FROM room))
FROM queued p`)
}

var (
	dispatchDue = dispatchSQL(`payouts p
  WHERE p.promotion_id = $1 AND p.state = $2::int2 AND p.state < :SUCCEEDED AND p.due_at BETWEEN $8::timestamptz AND $6::timestamptz`,
		`p.due_at, p.target_id`)
	dispatchNamed = dispatchSQL(`(SELECT $1::int8 AS promotion_id, $2::int2 AS state, n.* FROM unnest($8::int8[], $9::int4[]) AS n(target_id, dispatch) OFFSET 0) i
  JOIN payouts p ON p.promotion_id = i.promotion_id AND p.target_id = i.target_id
  WHERE p.state = i.state AND p.dispatch = i.dispatch AND p.due_at <= $6::timestamptz`, `p.target_id`)
)

// PayoutDispatch moves due payouts to QUEUED. It takes READY rows from the
// low-water mark of the promotion on. If there are fewer than it may take, it
// continues with those below the mark.
func (s *Store) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) ([]reward.Payout, error) {
	switch {
	case p.From != reward.Ready && p.From != reward.Retrying:
		return nil, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "payouts in state %s cannot be dispatched; use READY or RETRYING", p.From)
	case p.From != reward.Ready || p.Refs != nil:
		d, err := s.dispatch(ctx, p, time.Time{})
		return d.rows, err
	}
	low := s.low.get(p.PromotionID)
	d, err := s.dispatch(ctx, p, low)
	if err != nil {
		return nil, err
	}
	if !low.IsZero() && (len(d.rows) == 0 || len(d.rows) < d.room) {
		taken := d.rows
		p.Limit -= len(taken)
		if d, err = s.dispatch(ctx, p, time.Time{}); err != nil && len(taken) == 0 {
			return nil, err
		}
		d.rows = append(taken, d.rows...)
	}
	s.low.dispatched(p.PromotionID, len(d.rows), d.last)
	return d.rows, nil
}

// dispatched is what one transaction moved to QUEUED.
type dispatched struct {
	rows []reward.Payout
	room int       // how many it could have moved
	last time.Time // the highest DueAt before, if no row up to there is left; or zero
}

// dispatch moves due payouts whose DueAt is not below low.
func (s *Store) dispatch(ctx context.Context, p store.PayoutDispatchParams, low time.Time) (dispatched, error) {
	now := instant(p.Now)
	due := pgtype.Timestamptz{Time: now, Valid: true}
	if p.From == reward.Ready { // READY rows are always due, even if another clock saved them later than Now
		due = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	sql := dispatchDue
	args := []any{int64(p.PromotionID), int16(p.From), int64(max(p.Limit, 0)), int64(p.MaxLen), now, due, rows.Limits(p.ApprovalAbove)}
	if p.Refs == nil {
		from := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		if !low.IsZero() {
			from = pgtype.Timestamptz{Time: low, Valid: true}
		}
		args = append(args, from)
	} else {
		targets, dispatches := make([]int64, 0, len(p.Refs)), make([]int32, 0, len(p.Refs))
		seen := make(map[reward.Ref]bool, len(p.Refs))
		for _, r := range p.Refs {
			if r.PromotionID == p.PromotionID && !seen[r] {
				seen[r] = true
				targets, dispatches = append(targets, int64(r.TargetID)), append(dispatches, r.Dispatch)
			}
		}
		if len(targets) == 0 {
			return dispatched{}, nil
		}
		sql, args = dispatchNamed, append(args, targets, dispatches)
	}
	var d dispatched
	err := s.send(ctx, "dispatch payouts", func(b *pgx.Batch) {
		d = dispatched{rows: make([]reward.Payout, 0, min(max(p.Limit, 0), store.BatchMax))}
		var last *time.Time
		b.Queue(lockTotals, []int64{int64(p.PromotionID)})
		b.Queue(sql, args...).Query(each(func(rows pgx.Rows) error {
			row, err := scanPayout(rows, &d.room, &last)
			d.rows, d.last = append(d.rows, row), timeOf(last)
			return err
		}))
	})
	if err != nil {
		return dispatched{}, err
	}
	return d, nil
}

// claimLookupsSQL claims UNKNOWN rows and rows with a second lookup, the oldest
// of both first. Neither kind can starve the other.
var claimLookupsSQL = named(`WITH unknown AS MATERIALIZED (
  SELECT p.promotion_id, p.target_id, p.due_at FROM payouts p WHERE p.state = :UNKNOWN AND p.due_at <= $1::timestamptz
  ORDER BY p.due_at LIMIT $2::int8 FOR NO KEY UPDATE OF p SKIP LOCKED
), again AS MATERIALIZED (
  SELECT p.promotion_id, p.target_id, p.due_at FROM payouts p WHERE p.again AND p.due_at <= $1::timestamptz
  ORDER BY p.due_at LIMIT $2::int8 FOR NO KEY UPDATE OF p SKIP LOCKED
), picked AS MATERIALIZED (
  TABLE unknown UNION ALL TABLE again ORDER BY due_at LIMIT $2::int8
)
UPDATE payouts p SET due_at = $3::timestamptz
FROM picked k WHERE p.promotion_id = k.promotion_id AND p.target_id = k.target_id
RETURNING ` + payoutColumns)
