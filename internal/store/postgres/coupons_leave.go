package postgres

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// leaveLine takes ticket $2 of generation $3 and user $4 out of the line of template $1,
// by rules.Leave. $5 is the generation of the gate. The caller holds the lock of the
// template.
var leaveLine = named(`WITH stored AS MATERIALIZED (
  SELECT '' AS reason FROM coupons c WHERE c.template_id = $1 AND c.ticket = $2 AND c.generation = $3
  UNION ALL
  SELECT r.reason FROM coupon_rejections r WHERE r.template_id = $1 AND r.ticket = $2 AND r.generation = $3
), decided AS MATERIALIZED (
  SELECT t.version + 1 AS version, (CASE
    WHEN t.generation <> $5 OR t.path <> 'GATE' OR t.mode = 'SYNC' THEN :LEAVE_REFUSED
    WHEN EXISTS (SELECT 1 FROM stored s WHERE s.reason = '` + reward.ReasonLeft + `') THEN :LEAVE_REPEATED
    WHEN EXISTS (SELECT 1 FROM stored) OR t.mode <> 'KAFKA' AND t.settled >= $2 THEN :LEAVE_SERVED
    WHEN $3 = 0 THEN :LEAVE_REFUSED ELSE :LEAVE_DONE END)::int2 AS outcome
  FROM coupon_templates t WHERE t.id = $1
), inserted AS (
  INSERT INTO coupon_rejections (template_id, ticket, generation, version, at, user_id, reason)
  SELECT $1, $2, $3, d.version, $6::timestamptz, $4, '` + reward.ReasonLeft + `' FROM decided d WHERE d.outcome = :LEAVE_DONE
), moved AS (
  UPDATE coupon_templates t SET version = d.version, used = least(t.used + 1, t.granted),
    settled = CASE WHEN t.mode = 'KAFKA' THEN greatest(t.settled, $2) ELSE t.settled END
  FROM decided d WHERE t.id = $1 AND d.outcome = :LEAVE_DONE
)
SELECT d.outcome FROM decided d`)

// CouponLeave takes a request out of the waiting line.
func (s *Store) CouponLeave(ctx context.Context, p store.CouponLeaveParams) (store.CouponLeaveResult, error) {
	if err := store.CheckText("user id", p.UserID); err != nil {
		return store.CouponLeaveResult{}, err
	}
	var outcome rules.LeaveOutcome
	var t reward.CouponTemplate
	err := s.send(ctx, "leave a waiting line", func(b *pgx.Batch) {
		b.Queue(lockTemplate, int64(p.TemplateID))
		b.Queue(leaveLine, int64(p.TemplateID), p.Ticket, p.Generation, p.UserID, p.GateGeneration, instant(p.Now)).
			Query(each(func(rows pgx.Rows) error { return rows.Scan((*int8)(&outcome)) }))
		queueTemplate(b, p.TemplateID, &t)
	})
	if err := cmp.Or(templateError(t.ID, p.TemplateID, err), archivedError(&t)); err != nil {
		return store.CouponLeaveResult{}, err
	}
	return store.Leaving(outcome, t), nil
}
