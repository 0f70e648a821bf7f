package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// CheckUse returns an error unless a coupon can be used: it must be ISSUED and
// not expired at now. The error says which it is: CodeCouponUsed,
// CodeCouponCancelled, CodeCouponExpired or CodeCouponHeld.
func CheckUse(c *reward.Coupon, now time.Time) error {
	if c.Status == reward.CouponHeld {
		return refuseCoupon(c, reward.CodeCouponHeld, "is held until", c.HeldUntil, "; confirm it first")
	}
	return CheckCancel(c, now)
}

// CheckCancel returns an error unless a coupon can be cancelled: it must be HELD,
// or ISSUED and not expired at now. Its codes are those of CheckUse, except
// CodeCouponHeld.
func CheckCancel(c *reward.Coupon, now time.Time) error {
	switch {
	case c.Status == reward.CouponHeld:
		return nil
	case c.Status == reward.CouponUsed:
		return refuseCoupon(c, reward.CodeCouponUsed, "was used at", c.UsedAt, "")
	case c.Status == reward.CouponCancelled:
		return refuseCoupon(c, reward.CodeCouponCancelled, "was cancelled at", c.CancelledAt, "")
	case c.Status == reward.CouponExpired, !c.ExpiresAt.IsZero() && !now.Before(c.ExpiresAt):
		return refuseCoupon(c, reward.CodeCouponExpired, "expired at", c.ExpiresAt, "")
	}
	return nil
}

// CheckConfirm returns why a coupon could not be confirmed, or nil if it is
// ISSUED and needs no confirmation. It is called after a confirm that changed
// nothing: if the coupon is still HELD, its hold has ended. The
// codes are CodeHoldExpired, CodeCouponUsed, CodeCouponCancelled and
// CodeCouponExpired.
func CheckConfirm(c *reward.Coupon) error {
	switch {
	case c.Status == reward.CouponIssued:
		return nil
	case c.Status == reward.CouponHeld, c.Status == reward.CouponCancelled && c.CancelReason == reward.ReasonHoldExpired:
		return refuseCoupon(c, reward.CodeHoldExpired, "was held until", c.HeldUntil, " and not confirmed; request another one, unless the template has reissueAfterCancel: false")
	}
	return CheckCancel(c, c.ExpiresAt)
}

// CouponAt returns a coupon as it is at now: one whose hold or validity has ended by then is
// CANCELLED or EXPIRED, also before its row says so. Clocks may differ by skew from that of
// the database, which ends holds.
func CouponAt(c reward.Coupon, now time.Time, skew time.Duration) reward.Coupon {
	switch {
	case c.Status == reward.CouponHeld && now.Add(-skew).After(c.HeldUntil):
		c.Status, c.CancelledAt, c.CancelReason = reward.CouponCancelled, c.HeldUntil, reward.ReasonHoldExpired
	case c.Status == reward.CouponIssued && !c.ExpiresAt.IsZero() && !now.Before(c.ExpiresAt):
		c.Status = reward.CouponExpired
	}
	return c
}

// refuseCoupon returns the error for a coupon that does not allow a change.
func refuseCoupon(c *reward.Coupon, code, what string, at time.Time, advice string) error {
	return reward.NewError(reward.KindConflict, code, "coupon %d %s %s%s", c.ID, what, at.UTC().Format(time.RFC3339), advice)
}
