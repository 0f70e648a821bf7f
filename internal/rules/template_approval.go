package rules

import (
	"fmt"

	"github.com/largesse/largesse/internal/reward"
)

// LimitQuantity splits the quantity that somebody wants template t to have. Up to the
// largest of above and inForce, it needs nobody else; more waits for another person. An
// above of zero means that no quantity waits.
//
// So without a second person, the quantity in force never grows beyond above.
func LimitQuantity(t *reward.CouponTemplate, inForce, above int64) {
	t.AwaitingQuantity = 0
	if allowed := max(above, inForce); above > 0 && t.TotalQuantity > allowed {
		t.TotalQuantity, t.AwaitingQuantity = allowed, t.TotalQuantity
	}
}

// LimitImport lowers the quantity in force of template t before codes are added to it, so
// that without a second person, no more than above coupons get new codes: to what the
// codes suffice for that it has. The quantity waits. An above of zero means that nothing
// changes.
func LimitImport(t *reward.CouponTemplate, above int64) {
	force := max(above, t.Live+max(t.CodesLeft(), t.Promised()))
	if above > 0 && t.TotalQuantity > force {
		t.TotalQuantity, t.AwaitingQuantity = force, max(t.TotalQuantity, t.AwaitingQuantity)
	}
}

// decide approves or rejects the quantity that waits, as the change says.
func (c *TemplateChange) decide(t *reward.CouponTemplate) error {
	switch {
	case c.Approvers == nil && !c.Reject:
		return nil
	case !t.AwaitsApproval():
		return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"no quantity of template %d waits for an approval: its %d coupons are in force", t.ID, t.TotalQuantity)
	case c.Reject:
		t.AwaitingQuantity = 0
		return nil
	case t.Authors.Full():
		return reward.NewError(reward.KindConflict, reward.CodeSamePerson,
			"too many people have changed template %d to tell whether you are one of them: create another template", t.ID)
	}
	if err := CheckApprover(c.Approvers, t.Authors.Names(), fmt.Sprintf("created or changed template %d, or imported codes to it", t.ID)); err != nil {
		return err
	}
	t.TotalQuantity, t.AwaitingQuantity = t.AwaitingQuantity, 0
	return nil
}
