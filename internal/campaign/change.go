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
func CheckChange(c *rules.PromotionChange, t reward.PromotionType, now time.Time) []reward.FieldError {
	as := CreateCommand{
		Name: "-", Type: string(t), Amount: unlessZero(c.Amount), MaxRetries: c.MaxRetries, RatePerSecond: unlessZero(c.RatePerSecond),
		Weight: unlessZero(c.Weight), MaxAmount: unlessZero(c.MaxAmount), StartsAt: unlessZero(c.StartsAt),
	}
	for field, value := range map[*string]*string{&as.Name: c.Name, &as.VoucherCode: c.VoucherCode, &as.Currency: c.Currency} {
		if value != nil {
			*field = *value
		}
	}
	if c.Metadata != nil {
		as.Metadata = c.Metadata.Apply("").Map() // the store counts the entries that stay
	}
	if n := c.Canary; n != nil && *n != (reward.Canary{}) {
		as.Canary = &CanaryCommand{Targets: n.Targets, MaxFailureRate: &n.MaxFailureRate}
	}
	return as.Check(now)
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
	v, err := s.Get(ctx, c.ID)
	if err != nil {
		return store.PromotionView{}, err
	}
	wrong := CheckChange(&c, v.Type, time.Now())
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
	s.log.Info("promotion updated", "promotion_id", c.ID, "action", "change")
	s.cfg.Hint(c.ID)
	return v, nil
}
