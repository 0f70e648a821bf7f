package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// couponColumns are read by couponScanner.
const couponColumns = rows.CouponColumns

// couponScanner returns a function that scans couponColumns into c, and the
// columns after them into more.
func couponScanner(c *reward.Coupon, more ...any) func(pgx.Rows) error {
	var issued, used, cancelled, expires, held pgtype.Timestamptz
	into := append([]any{
		(*int64)(&c.ID), &c.Code, (*int64)(&c.TemplateID), &c.UserID, &c.Generation, &c.Ticket, (*int16)(&c.Status), &issued, &used,
		&cancelled, &expires, &held, (*text)(&c.CancelReason),
	}, more...)
	return func(rows pgx.Rows) error {
		err := rows.Scan(into...)
		c.IssuedAt, c.UsedAt, c.CancelledAt, c.ExpiresAt, c.HeldUntil = utc(issued), utc(used), utc(cancelled), utc(expires), utc(held)
		return err
	}
}

// couponsInto returns a row reader for statements that select couponColumns.
func couponsInto(take func(*reward.Coupon)) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var c reward.Coupon
		scan := couponScanner(&c)
		return each(func(rows pgx.Rows) error {
			if err := scan(rows); err != nil {
				return err
			}
			take(&c)
			return nil
		})(rows)
	}
}

const couponSQL = `SELECT ` + couponColumns + ` FROM coupons c WHERE c.id = $1`

// queueCoupon queues a read of a coupon into c. If c.ID is 0 afterwards, the
// coupon does not exist.
func queueCoupon(b *pgx.Batch, id reward.CouponID, c *reward.Coupon) {
	*c = reward.Coupon{}
	b.Queue(couponSQL, int64(id)).Query(couponsInto(func(read *reward.Coupon) { *c = *read }))
}

// CouponGet returns a coupon.
func (s *Store) CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	var c reward.Coupon
	err := s.read(ctx, "read a coupon", func(b *pgx.Batch) { queueCoupon(b, id, &c) })
	if err == nil && c.ID == 0 {
		err = store.NoCoupon(id)
	}
	return c, err
}

var (
	// lockCouponTemplate locks the template of coupon $1. A coupon never
	// changes its template.
	lockCouponTemplate = `SELECT 1 FROM coupon_templates t WHERE t.id = (SELECT c.template_id FROM coupons c WHERE c.id = $1)
FOR NO KEY UPDATE OF t`

	valid = `c.status = 0 AND (c.expires_at IS NULL OR c.expires_at > $2::timestamptz)`

	cancelCoupon = `WITH was AS MATERIALIZED (
  SELECT c.id, c.code, c.template_id FROM coupons c WHERE c.id = $1
), cancelled AS (
  UPDATE coupons c SET status = 2, cancelled_at = $2::timestamptz, version = t.version + 1,
    slot = CASE WHEN t.reissue THEN NULL ELSE c.slot END, code = CASE WHEN c.status = 4 AND c.code_unseen THEN ` + freedCode + ` ELSE c.code END
  FROM coupon_templates t, was w WHERE c.id = $1 AND t.id = c.template_id AND (c.status = 4 OR ` + valid + `)
  RETURNING c.template_id, c.code <> w.code AS freed, w.code
), freed AS MATERIALIZED (
  SELECT c.code, 1 AS ord FROM cancelled c WHERE c.freed
), ` + returnedCodes("(SELECT w.template_id FROM was w)") + `
UPDATE coupon_templates t SET live = t.live - 1, version = t.version + 1, codes_imported = t.codes_imported + n.back, codes_returned = t.codes_returned + n.back
FROM cancelled c, (SELECT count(*) AS back FROM found) n WHERE t.id = c.template_id RETURNING t.id`

	// holderSQL reads the holding of the user of coupon $1 at its template.
	holderSQL = `SELECT u.user_id, count(c.id)::int4, coalesce(max(c.id) FILTER (WHERE c.status <> 2), 0)
FROM coupons u LEFT JOIN coupons c ON c.template_id = u.template_id AND c.user_id = u.user_id AND c.slot IS NOT NULL
WHERE u.id = $1 GROUP BY u.user_id`

	useCoupon = `UPDATE coupons c SET status = 1, used_at = $2::timestamptz WHERE c.id = $1 AND ` + valid + ` RETURNING c.id`
)

// CouponCancel cancels a coupon. It checks the coupon under the lock of its
// template. The statement that changes the coupon checks it again, because it
// may be used or expire without that lock.
func (s *Store) CouponCancel(ctx context.Context, id reward.CouponID, now time.Time) (store.CouponChange, error) {
	now = instant(now)
	var cancelled bool
	var change store.CouponChange
	err := s.send(ctx, "cancel a coupon", func(b *pgx.Batch) {
		cancelled, change = false, store.CouponChange{}
		b.Queue(lockCouponTemplate, int64(id))
		b.Queue(cancelCoupon, int64(id), now).Query(each(func(pgx.Rows) error {
			cancelled = true
			return nil
		}))
		queueCoupon(b, id, &change.Coupon)
		b.Queue(holderSQL, int64(id)).Query(holdingsInto(&change.Holdings))
		b.Queue(`SELECT `+rows.TemplateColumns+` FROM coupons c JOIN coupon_templates t ON t.id = c.template_id WHERE c.id = $1`, int64(id)).
			Query(templateInto(&change.Template))
	})
	if err := couponError(&change.Coupon, id, cancelled, err, func(c *reward.Coupon) error { return rules.CheckCancel(c, now) }); err != nil {
		return store.CouponChange{}, err
	}
	change.To = change.Template.Version
	change.From = change.To - 1
	return change, nil
}

// couponError returns the error of a transaction that should change coupon id
// and then read it into c. That is err, or the reason that check has against the
// change.
func couponError(c *reward.Coupon, id reward.CouponID, changed bool, err error, check func(*reward.Coupon) error) error {
	switch {
	case err != nil || changed:
		return err
	case c.ID == 0:
		return store.NoCoupon(id)
	}
	return check(c)
}

// CouponUse marks a coupon as used.
func (s *Store) CouponUse(ctx context.Context, id reward.CouponID, now time.Time) (reward.Coupon, error) {
	now = instant(now)
	var used bool
	var c reward.Coupon
	err := s.send(ctx, "use a coupon", func(b *pgx.Batch) {
		used = false
		b.Queue(useCoupon, int64(id), now).Query(each(func(pgx.Rows) error {
			used = true
			return nil
		}))
		queueCoupon(b, id, &c)
	})
	if err := couponError(&c, id, used, err, func(c *reward.Coupon) error { return rules.CheckUse(c, now) }); err != nil {
		return reward.Coupon{}, err
	}
	return c, nil
}
