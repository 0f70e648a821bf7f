package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

var (
	// confirmCoupon confirms coupon $1. It needs no lock of the template, because
	// the coupon counts as before.
	confirmCoupon = named(`UPDATE coupons c SET status = :COUPON_ISSUED, held_until = NULL
WHERE c.id = $1 AND c.status = :COUPON_HELD AND c.held_until > clock_timestamp() RETURNING c.id`)

	// endHolds cancels at most $2 coupons of template $1 whose hold has ended.
	// The caller holds the lock of the template. A coupon that is confirmed at the
	// same time is not changed, and only changed ones lower the count.
	endHolds = named(`WITH due AS MATERIALIZED (
  SELECT c.id, c.code, c.held_until FROM coupons c WHERE c.template_id = $1 AND c.status = :COUPON_HELD AND c.held_until <= (SELECT clock_timestamp())
  ORDER BY c.held_until LIMIT $2
), ended AS (
  UPDATE coupons c SET status = :COUPON_CANCELLED, cancelled_at = clock_timestamp(), cancel_reason = '` + reward.ReasonHoldExpired + `',
    version = t.version + 1, slot = CASE WHEN t.reissue THEN NULL ELSE c.slot END,
    code = CASE WHEN c.code_unseen THEN ` + freedCode + ` ELSE c.code END
  FROM due d, coupon_templates t WHERE c.id = d.id AND c.status = :COUPON_HELD AND t.id = $1
  RETURNING c.id, c.code_unseen, d.code, d.held_until
), freed AS MATERIALIZED (
  SELECT e.code, row_number() OVER (ORDER BY e.held_until, e.id) AS ord FROM ended e WHERE e.code_unseen
), ` + returnedCodes("$1") + `, moved AS (
  UPDATE coupon_templates t SET live = t.live - n.n, version = t.version + 1, codes_imported = t.codes_imported + n.back, codes_returned = t.codes_returned + n.back
  FROM (SELECT (SELECT count(*) FROM ended) AS n, (SELECT count(*) FROM found) AS back) n WHERE t.id = $1 AND n.n > 0
)
SELECT count(*) FROM ended`)

	// endedHoldings reads the holdings of the users of the coupons that the
	// template's latest version changed.
	endedHoldings = `SELECT u.user_id, h.held, h.latest FROM (
  SELECT DISTINCT c.user_id FROM coupons c JOIN coupon_templates t ON t.id = c.template_id AND t.version = c.version WHERE c.template_id = $1
) u CROSS JOIN LATERAL (
  SELECT count(*)::int4 AS held, coalesce(max(c.id) FILTER (WHERE c.status <> 2), 0) AS latest
  FROM coupons c WHERE c.template_id = $1 AND c.user_id = u.user_id AND c.slot IS NOT NULL
) h ORDER BY u.user_id`
)

// CouponConfirm makes a HELD coupon ISSUED.
func (s *Store) CouponConfirm(ctx context.Context, id reward.CouponID) (reward.Coupon, bool, error) {
	var confirmed bool
	var c reward.Coupon
	err := s.send(ctx, "confirm a coupon", func(b *pgx.Batch) {
		confirmed = false
		b.Queue(confirmCoupon, int64(id)).Query(each(func(pgx.Rows) error {
			confirmed = true
			return nil
		}))
		queueCoupon(b, id, &c)
	})
	if err := couponError(&c, id, confirmed, err, rules.CheckConfirm); err != nil {
		return reward.Coupon{}, false, err
	}
	return c, confirmed, nil
}

// CouponEndHolds cancels the coupons of a template whose hold has ended.
func (s *Store) CouponEndHolds(ctx context.Context, id reward.TemplateID, limit int) (store.CouponChange, int, error) {
	var change store.CouponChange
	var ended int
	err := s.send(ctx, "cancel coupons that were not confirmed", func(b *pgx.Batch) {
		change, ended = store.CouponChange{}, 0
		b.Queue(lockTemplate, int64(id))
		b.Queue(endHolds, int64(id), max(limit, 0)).Query(each(func(rows pgx.Rows) error { return rows.Scan(&ended) }))
		queueTemplate(b, id, &change.Template)
		b.Queue(endedHoldings, int64(id)).Query(holdingsInto(&change.Holdings))
	})
	if err := templateError(change.Template.ID, id, err); err != nil {
		return store.CouponChange{}, 0, err
	}
	change.To = change.Template.Version
	change.From = change.To
	if ended == 0 {
		change.Holdings = nil
	} else {
		change.From--
	}
	return change, ended, nil
}
