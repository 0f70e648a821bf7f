package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

const couponSQL = `SELECT ` + rows.CouponColumns + ` FROM coupons c `

func scanCoupon(rows *sql.Rows) (c reward.Coupon, err error) {
	var issued int64
	var used, cancelled, expires, held sql.NullInt64
	err = rows.Scan(&c.ID, &c.Code, &c.TemplateID, &c.UserID, &c.Generation, &c.Ticket, &c.Status, &issued, &used, &cancelled, &expires,
		&held, &c.CancelReason)
	c.IssuedAt, c.UsedAt, c.CancelledAt, c.ExpiresAt = timeOf(issued), maybeTime(used), maybeTime(cancelled), maybeTime(expires)
	c.HeldUntil = maybeTime(held)
	return c, err
}

// couponOf returns a coupon, or CodeCouponNotFound.
func couponOf(ctx context.Context, q querier, id reward.CouponID) (reward.Coupon, error) {
	c, found, err := one(ctx, q, scanCoupon, couponSQL+`WHERE c.id = ?`, int64(id))
	if err == nil && !found {
		err = store.NoCoupon(id)
	}
	return c, err
}

// CouponGet returns a coupon.
func (s *Store) CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	c, err := couponOf(ctx, s.reader.as("read a coupon"), id)
	if err != nil {
		return reward.Coupon{}, fmt.Errorf("read a coupon: %w", err)
	}
	return c, nil
}

// CouponCancel cancels a coupon and lowers the live count of its template.
func (s *Store) CouponCancel(ctx context.Context, id reward.CouponID, now time.Time) (store.CouponChange, error) {
	now = instant(now)
	var change store.CouponChange
	err := s.write(ctx, "cancel a coupon", func(tx *tx) error {
		c, err := couponOf(tx.ctx, tx, id)
		if err != nil {
			return err
		}
		if err := rules.CheckCancel(&c, now); err != nil {
			return err
		}
		t, err := tx.openTemplate(c.TemplateID)
		if err != nil {
			return err
		}
		change.From = t.Version
		t.Live--
		t.Version++
		if c.Status == reward.CouponHeld {
			unseen, _, err := one(tx.ctx, tx, scanInt, `SELECT id FROM coupons WHERE id = ? AND code_unseen`, int64(id))
			if err != nil {
				return err
			}
			if unseen != 0 {
				if err := tx.returnCodes(&t, []reward.CouponID{id}); err != nil {
					return err
				}
			}
		}
		c.Status, c.CancelledAt = reward.CouponCancelled, now
		if err := tx.exec(`UPDATE coupons SET status = ?, cancelled_at = ?, version = ?, slot = CASE WHEN ? THEN NULL ELSE slot END
WHERE id = ?`, int64(c.Status), micros(now), t.Version, t.ReissueAfterCancel, int64(id)); err != nil {
			return err
		}
		if err := tx.putTemplate(&t); err != nil {
			return err
		}
		held, err := holdingOf(tx.ctx, tx, t.ID, c.UserID)
		if err != nil {
			return err
		}
		change.To, change.Template, change.Coupon = t.Version, t, c
		change.Holdings = []store.CouponHolding{{UserID: c.UserID, Held: len(held.Slots), CouponID: held.Latest}}
		return nil
	})
	if err != nil {
		return store.CouponChange{}, err
	}
	return change, nil
}

// holdingOf reads the holding of a user at a template.
func holdingOf(ctx context.Context, q querier, id reward.TemplateID, user string) (h rules.Holding, err error) {
	_, err = collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
		var slot int
		var coupon reward.CouponID
		var status reward.CouponStatus
		err := rows.Scan(&slot, &coupon, &status)
		h.Slots = append(h.Slots, slot)
		if status != reward.CouponCancelled {
			h.Latest = max(h.Latest, coupon)
		}
		return struct{}{}, err
	}, holdingSQL, int64(id), user)
	return h, err
}

const holdingSQL = `SELECT slot, id, status FROM coupons WHERE template_id = ? AND user_id = ? AND slot IS NOT NULL`

// CouponUse marks a coupon as used.
func (s *Store) CouponUse(ctx context.Context, id reward.CouponID, now time.Time) (reward.Coupon, error) {
	now = instant(now)
	var c reward.Coupon
	err := s.write(ctx, "use a coupon", func(tx *tx) (err error) {
		if c, err = couponOf(tx.ctx, tx, id); err != nil {
			return err
		}
		if err := rules.CheckUse(&c, now); err != nil {
			return err
		}
		c.Status, c.UsedAt = reward.CouponUsed, now
		err = tx.exec(`UPDATE coupons SET status = ?, used_at = ? WHERE id = ?`, int64(c.Status), micros(now), int64(id))
		return err
	})
	if err != nil {
		return reward.Coupon{}, err
	}
	return c, nil
}
