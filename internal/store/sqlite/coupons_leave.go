package sqlite

import (
	"context"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// storedTicket reads the reason stored for a ticket of a generation; an empty one means a coupon.
const storedTicket = `SELECT '' FROM coupons WHERE template_id = ?1 AND ticket = ?2 AND generation = ?3
UNION ALL SELECT reason FROM coupon_rejections WHERE template_id = ?1 AND ticket = ?2 AND generation = ?3`

// CouponLeave takes a request out of the waiting line.
func (s *Store) CouponLeave(ctx context.Context, p store.CouponLeaveParams) (store.CouponLeaveResult, error) {
	if err := store.CheckText("user id", p.UserID); err != nil {
		return store.CouponLeaveResult{}, err
	}
	var outcome rules.LeaveOutcome
	t, _, err := s.changeTemplate(ctx, "leave a waiting line", p.TemplateID, func(tx *tx, t *reward.CouponTemplate) (bool, error) {
		reason, settled, err := one(tx.ctx, tx, scanText, storedTicket, int64(p.TemplateID), p.Ticket, p.Generation)
		if err != nil {
			return false, err
		}
		if outcome = p.Apply(t, settled, reason == reward.ReasonLeft); outcome != rules.LeaveDone {
			return false, nil
		}
		return true, tx.exec(`INSERT INTO coupon_rejections (template_id, ticket, generation, user_id, reason, at, version)
VALUES (?, ?, ?, ?, ?, ?, ?)`, int64(p.TemplateID), p.Ticket, p.Generation, p.UserID, reward.ReasonLeft, micros(p.Now), t.Version)
	})
	if err != nil {
		return store.CouponLeaveResult{}, err
	}
	return store.Leaving(outcome, t), nil
}
