package rows

import (
	"context"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	couponSQL = `SELECT ` + couponColumns + ` FROM coupons c WHERE c.id = $1`

	// couponsOfTemplate lists coupons by ticket. It never splits coupons with the same ticket,
	// from different generations, over two pages.
	couponsOfTemplate = `SELECT ` + couponColumns + ` FROM coupons c WHERE c.template_id = $1 AND c.ticket > $2 AND c.ticket <= (
  SELECT max(p.ticket) FROM (SELECT ticket FROM coupons WHERE template_id = $1 AND ticket > $2 ORDER BY ticket LIMIT $3) p)
ORDER BY c.ticket, c.generation`

	couponsOfUser = `SELECT ` + couponColumns + ` FROM coupons c WHERE c.user_id = $1 AND c.id < $2 ORDER BY c.id DESC LIMIT $3`

	couponsByCode = `SELECT ` + couponColumns + ` FROM coupons c WHERE c.code = $1 AND c.held_until IS NULL ORDER BY c.template_id LIMIT $2`
)

// scanCoupon reads couponColumns.
func scanCoupon(scan Scan, c *reward.Coupon) error {
	return scan((*int64)(&c.ID), &c.Code, (*int64)(&c.TemplateID), &c.UserID, &c.Generation, &c.Ticket, (*int16)(&c.Status),
		(*at)(&c.IssuedAt), (*at)(&c.UsedAt), (*at)(&c.CancelledAt), (*at)(&c.ExpiresAt), (*at)(&c.HeldUntil), &c.CancelReason)
}

// CouponGet returns a coupon, or CodeCouponNotFound.
func (t *Tables) CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	return one(ctx, t.db.Read, "read a coupon", store.NoCoupon(id), scanCoupon, couponSQL, int64(id))
}

// CouponList returns a page of the coupons of a template, by ascending ticket, or of a user,
// by descending ID. Unless exactly one of TemplateID and UserID is set, it returns
// CodeInvalid.
//
// Coupons of a template with the same ticket, from different generations, are on one page.
// They may make the page longer than Limit.
func (t *Tables) CouponList(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error) {
	if err := p.CheckList(); err != nil {
		return nil, err
	}
	sql, args := couponsOfTemplate, []any{int64(p.TemplateID), p.AfterTicket, max(p.Limit, 0)}
	if p.UserID != "" {
		sql, args = couponsOfUser, []any{reward.SanitizeText(p.UserID), below(int64(p.Before)), max(p.Limit, 0)}
	}
	return list(ctx, t.db.Read, "list coupons", scanCoupon, sql, args...)
}

// CouponsByCode returns at most limit coupons that have a code, by template. A code belongs to
// one coupon of a template; other templates may have it too.
func (t *Tables) CouponsByCode(ctx context.Context, code string, limit int) ([]reward.Coupon, error) {
	return list(ctx, t.db.Read, "find coupons by code", scanCoupon, couponsByCode, reward.SanitizeText(code), max(limit, 0))
}
