package campaign

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// CheckChange returns every field of a change that is invalid at now, for a promotion
// of type t. A zero value clears its field.
func CheckChange(c rules.PromotionChange, t reward.PromotionType, now time.Time) []reward.FieldError {
	if c.Name == nil {
		c.Name = new("-") // it stays
	}
	c.Amount, c.MaxAmount, c.StartsAt = unlessZero(c.Amount), unlessZero(c.MaxAmount), unlessZero(c.StartsAt)
	c.EndsAt = unlessZero(c.EndsAt)
	c.RatePerSecond, c.Weight, c.Canary = unlessZero(c.RatePerSecond), unlessZero(c.Weight), unlessZero(c.Canary)
	as := CreateCommand{PromotionChange: c, Type: string(t)}
	return as.Check(now) // the store counts the entries of metadata that stay
}

// unlessZero returns nil for a pointer to a zero value.
func unlessZero[T comparable](p *T) *T {
	if p == nil || *p == *new(T) {
		return nil
	}
	return p
}

// Change changes the settings of a promotion. Every instance follows within a second.
func (s *Promotions) Change(ctx context.Context, c rules.PromotionChange) (store.PromotionView, error) {
	v, err := s.cfg.Store.PromotionGet(ctx, c.ID)
	if err != nil {
		return store.PromotionView{}, err
	}
	wrong := CheckChange(c, v.Type, time.Now())
	if c.Currency != nil && len(wrong) == 0 {
		if refused := s.cfg.Payable.Check(v.Type, *c.Currency); refused != nil {
			wrong = append(wrong, *refused)
		}
	}
	if len(wrong) > 0 {
		return store.PromotionView{}, reward.InvalidFields("the promotion", wrong)
	}
	if v, err = s.cfg.Store.PromotionChange(ctx, c); err != nil {
		return store.PromotionView{}, err
	}
	s.report(c.ID, "change")
	return v, nil
}
