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

// queueSQL returns the statement that queues rows of from in the given order, as many as
// there is room for. The caller holds the lock of the summary row, so no other transaction
// uses the room.
func queueSQL(from, order string) string {
	return named(`WITH room AS MATERIALIZED (
  SELECT greatest(0, least($3::int8, $4::int8 - s.queued)) AS rows FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0
), picked AS MATERIALIZED (
  SELECT p.promotion_id, p.target_id, p.due_at FROM ` + from + `
  ORDER BY ` + order + ` LIMIT coalesce((SELECT rows FROM room), 0) FOR NO KEY UPDATE OF p SKIP LOCKED
), queued AS (
  UPDATE payouts p SET state = :QUEUED, dispatch = p.dispatch + 1, due_at = $5::timestamptz, updated_at = $5::timestamptz,
    first_dispatched_at = coalesce(p.first_dispatched_at, least($5::timestamptz, clock_timestamp()))
  FROM picked k WHERE p.promotion_id = k.promotion_id AND p.target_id = k.target_id
  RETURNING ` + payoutColumns + `
), moved AS MATERIALIZED (
  SELECT promotion_id, summary_id, amount, $2::int2 AS was, state AS became, 0 AS answers FROM queued
), ` + tally("moved") + `, noted AS (
  UPDATE promotions m SET last_dispatched_at = greatest(m.last_dispatched_at, $5::timestamptz), stream_gone = false,
    canary_dispatched = m.canary_dispatched + CASE WHEN $7::bool THEN (SELECT count(*) FROM queued WHERE dispatch = 1) ELSE 0 END
  WHERE m.id = $1 AND EXISTS (SELECT 1 FROM moved)
)
SELECT ` + payoutColumns + `, (SELECT rows FROM room), (SELECT max(due_at) FROM picked) FROM queued p`)
}

var (
	queueDue = queueSQL(`payouts p
  WHERE p.promotion_id = $1 AND p.state = $2::int2 AND p.state < :SUCCEEDED AND p.due_at BETWEEN $8::timestamptz AND $6::timestamptz`,
		`p.due_at, p.target_id`)
	queueNamed = queueSQL(`(SELECT $1::int8 AS promotion_id, $2::int2 AS state, n.* FROM unnest($8::int8[], $9::int4[]) AS n(target_id, dispatch) OFFSET 0) i
  JOIN payouts p ON p.promotion_id = i.promotion_id AND p.target_id = i.target_id
  WHERE p.state = i.state AND p.dispatch = i.dispatch AND p.due_at <= $6::timestamptz`, `p.target_id`)
)

// Queue moves due payouts to QUEUED. It takes READY rows from the
// low-water mark of the promotion on. If there are fewer than it may take, it
// continues with those below the mark.
func (s *Store) Queue(ctx context.Context, what string, q rows.Queueing) ([]reward.Payout, error) {
	if q.From != reward.Ready || q.Refs != nil {
		d, err := s.queueFrom(ctx, what, q, time.Time{})
		return d.rows, err
	}
	low := s.low.get(q.PromotionID)
	d, err := s.queueFrom(ctx, what, q, low)
	if err != nil {
		return nil, err
	}
	if !low.IsZero() && (len(d.rows) == 0 || len(d.rows) < d.room) {
		taken := d.rows
		q.Limit -= len(taken)
		if d, err = s.queueFrom(ctx, what, q, time.Time{}); err != nil && len(taken) == 0 {
			return nil, err
		}
		d.rows = append(taken, d.rows...)
	}
	s.low.dispatched(q.PromotionID, len(d.rows), d.last)
	return d.rows, nil
}

// queued is what one transaction moved to QUEUED.
type queued struct {
	rows []reward.Payout
	room int       // how many it could have moved
	last time.Time // the highest DueAt before, if no row up to there is left; or zero
}

// queueFrom moves due payouts whose DueAt is not below low.
func (s *Store) queueFrom(ctx context.Context, what string, q rows.Queueing, low time.Time) (queued, error) {
	sql := queueDue
	args := []any{int64(q.PromotionID), int16(q.From), int64(max(q.Limit, 0)), int64(q.MaxLen), instant(q.Now), rows.DueUntil(q.PayoutDispatchParams), q.Canary}
	if q.Refs == nil {
		from := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		if !low.IsZero() {
			from = pgtype.Timestamptz{Time: low, Valid: true}
		}
		args = append(args, from)
	} else {
		targets, dispatches := make([]int64, len(q.Refs)), make([]int32, len(q.Refs))
		for i, r := range q.Refs {
			targets[i], dispatches[i] = int64(r.TargetID), r.Dispatch
		}
		sql, args = queueNamed, append(args, targets, dispatches)
	}
	var d queued
	err := s.send(ctx, what, func(b *pgx.Batch) {
		d = queued{rows: make([]reward.Payout, 0, min(max(q.Limit, 0), store.BatchMax))}
		var last *time.Time
		b.Queue(lockTotals, []int64{int64(q.PromotionID)})
		queue(b, q.Guards)
		b.Queue(sql, args...).Query(each(func(rows pgx.Rows) error {
			row, err := scanPayout(rows, &d.room, &last)
			d.rows, d.last = append(d.rows, row), timeOf(last)
			return err
		}))
	})
	if err != nil {
		return queued{}, writeError(err)
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
