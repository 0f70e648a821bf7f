package postgres

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
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

// startsEarly returns the condition rules.StartsEarly for promotion m.
func startsEarly(above, now string) string {
	return `(` + limit(above) + ` > 0 AND m.status = 'DRAFT' AND coalesce(m.starts_at > ` + now + `::timestamptz, false)
  AND (m.unvalued_rounds > 0 OR ` + worth + ` > least(` + limit(above) + `, m.day_granted)))`
}

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

// withdrawSQL returns the statement that takes the rows of the CTE found out of
// their state, by rules.Withdraw. next is the state that follows, and failures
// is added to the failed deliveries. $1 is the current time and $2 the
// SettleFrom of rows that become UNKNOWN. The statement returns how many rows
// moved, and the columns of result.
func withdrawSQL(found, next, maybeCalled, failures, result string) string {
	return named(`WITH found AS MATERIALIZED (` + found + `
), moved AS MATERIALIZED (
  SELECT f.promotion_id, f.target_id, f.summary_id, f.amount, f.was, (` + next + `)::int2 AS became, 0 AS answers,
    ` + maybeCalled + ` AS maybe_called
  FROM found f JOIN promotions m ON m.id = f.promotion_id
), written AS (
  UPDATE payouts p SET state = v.became, due_at = $1::timestamptz, updated_at = $1::timestamptz,
    maybe_called = p.maybe_called OR v.maybe_called OR v.became = :UNKNOWN,
    settle_from = CASE v.became WHEN :UNKNOWN THEN $2::timestamptz ELSE p.settle_from END,
    looked_at = CASE v.became WHEN :UNKNOWN THEN NULL ELSE p.looked_at END,
    handovers = least(p.handovers + ` + failures + `, ` + strconv.Itoa(rules.FailedDeliveriesMax) + `)
  FROM moved v WHERE p.promotion_id = v.promotion_id AND p.target_id = v.target_id
), ` + tally("moved") + `, ` + payoutEventsSQL() + `
SELECT (SELECT count(*) FROM moved)` + result)
}

const withdrawn = `p.promotion_id, p.target_id, p.summary_id, p.amount, p.state AS was, p.maybe_called`

var (
	returnSQL = withdrawSQL(`
  SELECT `+withdrawn+` FROM (
    SELECT n.*, :QUEUED AS state FROM unnest($3::int8[], $4::int8[], $5::int4[]) AS n(promotion_id, target_id, dispatch) OFFSET 0) i
  JOIN payouts p ON p.promotion_id = i.promotion_id AND p.target_id = i.target_id
  WHERE p.state = i.state AND p.dispatch = i.dispatch
  ORDER BY p.promotion_id, p.target_id FOR NO KEY UPDATE OF p`,
		`CASE WHEN m.status <> 'CANCELLED' THEN :READY WHEN f.maybe_called OR $6::bool THEN :UNKNOWN ELSE :CANCELLED END`, `$6::bool`, `$7::int`, ``)

	sweepSQL = withdrawSQL(`
  SELECT `+withdrawn+` FROM payouts p
  WHERE p.promotion_id = $3 AND p.state = :QUEUED AND p.state < :SUCCEEDED AND p.due_at < $4::timestamptz
  ORDER BY p.due_at, p.target_id LIMIT $5::int8 FOR NO KEY UPDATE OF p SKIP LOCKED`,
		`CASE m.status WHEN 'CANCELLED' THEN :UNKNOWN ELSE :READY END`, `true`, `0`, ``)

	// Two scans, each in the order of its index; READY rows first. The result ends
	// with the last row; see marks.
	cancelSQL = withdrawSQL(`
  SELECT `+withdrawn+`, p.due_at FROM payouts p JOIN promotions m ON m.id = p.promotion_id AND m.status = 'CANCELLED'
  WHERE p.promotion_id = $3 AND p.state = $4::int2 AND p.state < :SUCCEEDED AND (p.due_at, p.target_id) > ($6::timestamptz, $7::int8)
  ORDER BY p.due_at, p.target_id LIMIT $5::int8 FOR NO KEY UPDATE OF p SKIP LOCKED`,
		`CASE WHEN f.was = :READY AND NOT f.maybe_called THEN :CANCELLED ELSE :UNKNOWN END`, `false`, `0`,
		`, l.due_at, l.target_id FROM found l ORDER BY l.due_at DESC, l.target_id DESC LIMIT 1`)
)

// sender is send or sendShared.
type sender func(ctx context.Context, what string, build func(b *pgx.Batch)) error

func withdraw(ctx context.Context, send sender, what, sql string, now time.Time, lease time.Duration, args ...any) (int, error) {
	var n int
	now = instant(now)
	args = append([]any{now, instant(now.Add(lease))}, args...)
	err := send(ctx, what, func(b *pgx.Batch) {
		b.Queue(sql, args...).Query(each(func(rows pgx.Rows) error { return rows.Scan(&n) }))
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// PayoutReturn returns QUEUED rows to READY.
func (s *Store) PayoutReturn(ctx context.Context, p store.PayoutReturnParams) (int, error) {
	promotions, targets := make([]int64, 0, len(p.Refs)), make([]int64, 0, len(p.Refs))
	dispatches := make([]int32, 0, len(p.Refs))
	seen := make(map[reward.Ref]bool, len(p.Refs))
	for _, r := range p.Refs {
		if seen[r] {
			continue
		}
		seen[r] = true
		promotions, targets = append(promotions, int64(r.PromotionID)), append(targets, int64(r.TargetID))
		dispatches = append(dispatches, r.Dispatch)
	}
	if len(targets) == 0 {
		return 0, nil
	}
	handovers := 0
	if p.DeliveryFailed {
		handovers = 1
	}
	return withdraw(ctx, s.sendShared, "return payouts", returnSQL, p.Now, p.Lease,
		promotions, targets, dispatches, p.MaybeCalled, handovers)
}

// PayoutSweep returns QUEUED rows that no stream has to READY.
func (s *Store) PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (int, error) {
	return withdraw(ctx, s.send, "sweep payouts", sweepSQL, p.Now, p.Lease,
		int64(p.PromotionID), instant(p.Before), int64(store.BatchMax))
}

// PayoutCancelStep takes READY and RETRYING rows of a CANCELLED promotion out of
// the work, READY rows first.
func (s *Store) PayoutCancelStep(ctx context.Context, p store.PayoutCancelStepParams) (int, error) {
	moved := 0
	for _, from := range []reward.State{reward.Ready, reward.Retrying} {
		key := markKey{p.PromotionID, from}
		for after := s.cancelled.get(key); moved < store.BatchMax; after = beginning {
			n, last, err := s.cancelRows(ctx, p, from, store.BatchMax-moved, after)
			if err != nil {
				return moved, err
			}
			moved += n
			s.cancelled.set(key, last)
			if after == beginning {
				break
			}
		}
	}
	return moved, nil
}

// cancelRows takes at most limit rows out of the work that come after a mark. It
// returns the mark for the next chunk.
func (s *Store) cancelRows(ctx context.Context, p store.PayoutCancelStepParams, from reward.State, limit int, after mark) (int, mark, error) {
	var n int
	var last mark
	now := instant(p.Now)
	err := s.send(ctx, "cancel payouts", func(b *pgx.Batch) {
		n, last = 0, beginning
		b.Queue(cancelSQL, now, instant(now.Add(p.Lease)), int64(p.PromotionID), int16(from), int64(limit), instant(after.dueAt), after.target).
			Query(each(func(rows pgx.Rows) error { return rows.Scan(&n, &last.dueAt, &last.target) }))
	})
	if err != nil {
		return 0, beginning, err
	}
	if n < limit {
		last = beginning
	}
	return n, last, nil
}

// PayoutClaimLookups claims payouts whose lookup is due.
func (s *Store) PayoutClaimLookups(ctx context.Context, p store.PayoutClaimLookupsParams) ([]reward.Payout, error) {
	var list []reward.Payout
	err := s.send(ctx, "claim lookups", func(b *pgx.Batch) {
		list = nil
		b.Queue(claimLookupsSQL, instant(p.Now), min(max(p.Limit, 0), math.MaxInt32), instant(p.Until)).Query(payoutsInto(&list))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
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
