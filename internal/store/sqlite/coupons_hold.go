package sqlite

import (
	"context"
	"database/sql"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// CouponConfirm makes a HELD coupon ISSUED.
func (s *Store) CouponConfirm(ctx context.Context, id reward.CouponID) (c reward.Coupon, confirmed bool, err error) {
	err = s.write(ctx, "confirm a coupon", func(tx *tx) (err error) {
		if c, err = couponOf(tx.ctx, tx, id); err != nil {
			return err
		}
		clock, err := tx.now()
		if err != nil {
			return err
		}
		if confirmed = c.Status == reward.CouponHeld && clock.Before(c.HeldUntil); !confirmed {
			return rules.CheckConfirm(&c)
		}
		if err := tx.exec(`UPDATE coupons SET status = ?, held_until = NULL WHERE id = ?`, int64(reward.CouponIssued), int64(id)); err != nil {
			return err
		}
		c, err = couponOf(tx.ctx, tx, id)
		return err
	})
	if err != nil {
		return reward.Coupon{}, false, err
	}
	return c, confirmed, nil
}

// couponsOfEndedHolds finds the coupons of a template whose hold has ended.
const couponsOfEndedHolds = `SELECT id, user_id, code_unseen FROM coupons
WHERE template_id = ? AND status = 4 AND held_until <= ? ORDER BY held_until, id LIMIT ?`

// CouponEndHolds cancels the coupons of a template whose hold has ended.
func (s *Store) CouponEndHolds(ctx context.Context, id reward.TemplateID, limit int) (store.CouponChange, int, error) {
	var change store.CouponChange
	ended := 0
	err := s.write(ctx, "cancel coupons that were not confirmed", func(tx *tx) error {
		t, err := templateOf(tx.ctx, tx, id)
		if err != nil {
			return err
		}
		change = store.CouponChange{From: t.Version, To: t.Version, Template: t}
		clock, err := tx.now()
		if err != nil {
			return err
		}
		due, err := collect(tx.ctx, tx, scanHeld, couponsOfEndedHolds, int64(id), micros(clock), max(limit, 0))
		if err != nil || len(due) == 0 {
			return err
		}
		if err := rules.CheckTemplateArchived(id, !t.ArchivedAt.IsZero()); err != nil {
			return err
		}
		ended = len(due)
		t.Live -= int64(ended)
		t.Version++
		var unseen []reward.CouponID
		for _, d := range due {
			if d.unseen {
				unseen = append(unseen, d.id)
			}
			if err := tx.exec(`UPDATE coupons SET status = ?, cancelled_at = ?, cancel_reason = ?, version = ?,
  slot = CASE WHEN ? THEN NULL ELSE slot END WHERE id = ?`, int64(reward.CouponCancelled), micros(clock), reward.ReasonHoldExpired,
				t.Version, t.ReissueAfterCancel, int64(d.id)); err != nil {
				return err
			}
		}
		if err := tx.returnCodes(&t, unseen); err != nil {
			return err
		}
		if err := tx.putTemplate(&t); err != nil {
			return err
		}
		change.To, change.Template = t.Version, t
		change.Holdings, err = holdingsAfter(tx.ctx, tx, id, due)
		return err
	})
	if err != nil {
		return store.CouponChange{}, 0, err
	}
	return change, ended, nil
}

// heldCoupon is a coupon whose hold has ended.
type heldCoupon struct {
	id     reward.CouponID
	user   string
	unseen bool // nobody has seen its code, which is an imported one
}

func scanHeld(rows *sql.Rows) (h heldCoupon, err error) {
	err = rows.Scan(&h.id, &h.user, &h.unseen)
	return h, err
}

// holdingsAfter reads the holdings of the users of changed coupons, ordered by
// user.
func holdingsAfter(ctx context.Context, q querier, id reward.TemplateID, changed []heldCoupon) ([]store.CouponHolding, error) {
	var users []string
	for _, c := range changed {
		users = append(users, c.user)
	}
	slices.Sort(users)
	var list []store.CouponHolding
	for _, user := range slices.Compact(users) {
		h, err := holdingOf(ctx, q, id, user)
		if err != nil {
			return nil, err
		}
		list = append(list, store.CouponHolding{UserID: user, Held: len(h.Slots), CouponID: h.Latest})
	}
	return list, nil
}
