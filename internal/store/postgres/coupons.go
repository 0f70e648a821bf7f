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

// couponScanner returns a reader of rows with couponColumns, which it puts into
// c, and what comes behind them, into more.
func couponScanner(c *reward.Coupon, more ...any) func(pgx.Rows) error {
	var issued, used, cancelled, expires pgtype.Timestamptz
	into := append([]any{
		(*int64)(&c.ID), &c.Code, (*int64)(&c.TemplateID), &c.UserID, &c.Generation, &c.Ticket, (*int16)(&c.Status), &issued, &used,
		&cancelled, &expires,
	}, more...)
	return func(rows pgx.Rows) error {
		err := rows.Scan(into...)
		c.IssuedAt, c.UsedAt, c.CancelledAt, c.ExpiresAt = utc(issued), utc(used), utc(cancelled), utc(expires)
		return err
	}
}

// couponsInto returns a reader for a statement that selects couponColumns.
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

// queueCoupon queues a read of a coupon. What c then has under its id says that
// there is one.
func queueCoupon(b *pgx.Batch, id reward.CouponID, c *reward.Coupon) {
	*c = reward.Coupon{}
	b.Queue(couponSQL, int64(id)).Query(couponsInto(func(read *reward.Coupon) { *c = *read }))
}

// CouponGet returns a coupon.
func (s *Store) CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	var c reward.Coupon
	err := s.send(ctx, "read a coupon", func(b *pgx.Batch) { queueCoupon(b, id, &c) })
	if err == nil && c.ID == 0 {
		err = store.NoCoupon(id)
	}
	return c, err
}

const (
	// lockCouponTemplate is lockTemplate for the template of coupon $1, which a
	// coupon never leaves.
	lockCouponTemplate = `SELECT 1 FROM coupon_templates t WHERE t.id = (SELECT c.template_id FROM coupons c WHERE c.id = $1)
FOR NO KEY UPDATE OF t`

	valid = `c.status = 0 AND (c.expires_at IS NULL OR c.expires_at > $2::timestamptz)`

	cancelCoupon = `WITH cancelled AS (
  UPDATE coupons c SET status = 2, cancelled_at = $2::timestamptz, version = t.version + 1,
    slot = CASE WHEN t.reissue THEN NULL ELSE c.slot END
  FROM coupon_templates t WHERE c.id = $1 AND t.id = c.template_id AND ` + valid + `
  RETURNING c.template_id
)
UPDATE coupon_templates t SET live = t.live - 1, version = t.version + 1 FROM cancelled c WHERE t.id = c.template_id RETURNING t.id`

	// holderSQL reads the fact of the user of coupon $1 at its template.
	holderSQL = `SELECT u.user_id, count(c.id)::int4, coalesce(max(c.id) FILTER (WHERE c.status <> 2), 0)
FROM coupons u LEFT JOIN coupons c ON c.template_id = u.template_id AND c.user_id = u.user_id AND c.slot IS NOT NULL
WHERE u.id = $1 GROUP BY u.user_id`

	useCoupon = `UPDATE coupons c SET status = 1, used_at = $2::timestamptz WHERE c.id = $1 AND ` + valid + ` RETURNING c.id`
)

// CouponCancel cancels a coupon. The coupon is judged under the lock of its
// template, and once more by the statement that changes it: it may be used or
// expire without that lock.
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
		b.Queue(holderSQL, int64(id)).Query(factsInto(&change.Holdings))
		b.Queue(`SELECT `+templateColumns+` FROM coupons c JOIN coupon_templates t ON t.id = c.template_id WHERE c.id = $1`, int64(id)).
			Query(func(rows pgx.Rows) error { return each(templateScanner(&change.Template))(rows) })
	})
	if err := judged(&change.Coupon, id, now, cancelled, err); err != nil {
		return store.CouponChange{}, err
	}
	change.To = change.Template.Version
	change.From = change.To - 1
	return change, nil
}

// judged is the error of a transaction that was to change coupon id and then
// read it: its own, or why the coupon does not allow it.
func judged(c *reward.Coupon, id reward.CouponID, now time.Time, changed bool, err error) error {
	switch {
	case err != nil || changed:
		return err
	case c.ID == 0:
		return store.NoCoupon(id)
	}
	return rules.CheckCoupon(c, now)
}

// CouponUse uses a coupon.
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
	if err := judged(&c, id, now, used, err); err != nil {
		return reward.Coupon{}, err
	}
	return c, nil
}
