package store

import (
	"bytes"

	"github.com/largesse/largesse/internal/reward"
)

// CloneTemplate returns a copy of a template that shares no memory with it.
func CloneTemplate(t reward.CouponTemplate) reward.CouponTemplate {
	t.Draw.Seed, t.Draw.List = bytes.Clone(t.Draw.Seed), bytes.Clone(t.Draw.List)
	return t
}

// NoTemplate returns the error for a template that does not exist.
func NoTemplate(id reward.TemplateID) error {
	return reward.NewError(reward.KindNotFound, reward.CodeTemplateNotFound, "there is no coupon template %d", id)
}
