package campaign

import (
	"context"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/webhook"
)

// Limits of a promotion's fields.
const (
	PromotionRatePerSecondMax = 1_000_000 // calls of all instances together
	PromotionWeightMax        = 100
)

// CanaryMaxFailureRate is the MaxFailureRate of a canary for which callers give none.
const CanaryMaxFailureRate = 0.5

// CreateCommand describes a promotion to create. Nil settings have their defaults, ID
// zero is a new one, and Tags do not matter.
type CreateCommand struct {
	rules.PromotionChange
	Type string // POINT or VOUCHER
	// ConsumersPerInstance is up to 256. Zero means that the promotion's size decides.
	ConsumersPerInstance int
	WebhookURL           string // by webhook.CheckURL; may be empty
}

// Check returns every field that is invalid at now.
func (c *CreateCommand) Check(now time.Time) []reward.FieldError {
	var wrong []reward.FieldError
	refuse := func(field, format string, args ...any) {
		wrong = append(wrong, reward.FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
	if c.ID < 0 {
		refuse("id", "must be from 1 to %d", int64(math.MaxInt64))
	}
	name := valueOf(c.Name)
	if n := utf8.RuneCountInString(name); n == 0 || n > reward.PromotionNameMax {
		refuse("name", "must have 1 to %d characters, not %d", reward.PromotionNameMax, n)
	} else if err := reward.CheckLabel(name); err != nil {
		refuse("name", "%v", err)
	}
	if c.Type != string(reward.Point) && c.Type != string(reward.Voucher) {
		refuse("type", "must be POINT or VOUCHER, not %s", reward.Quote(c.Type))
	}
	least := reward.AmountMin(reward.PromotionType(c.Type))
	if n := c.Amount; n != nil && (*n < least || *n > reward.AmountMax) {
		refuse("amount", "must be from %d to %d, not %d; omit it if every target has its own", least, reward.AmountMax, *n)
	}
	if code := valueOf(c.VoucherCode); code != "" {
		checkVoucherCode(c.Type, code, refuse)
	}
	if code := valueOf(c.Currency); code != "" && !reward.IsCurrency(code) {
		refuse("currency", "must be three capital letters, e.g. EUR, not %s", reward.Quote(code))
	}
	if n := c.MaxRetries; n != nil && (*n < 0 || *n > reward.PromotionMaxRetriesMax) {
		refuse("maxRetries", "must be from 0 to %d, not %d", reward.PromotionMaxRetriesMax, *n)
	}
	if n := c.ConsumersPerInstance; n < 0 || n > reward.PromotionConsumersMax {
		refuse("consumersPerInstance", "must be from 1 to %d, not %d; omit it to use the promotion's size", reward.PromotionConsumersMax, n)
	}
	if n := c.RatePerSecond; n != nil && (*n < 1 || *n > PromotionRatePerSecondMax) {
		refuse("ratePerSecond", "must be from 1 to %d, not %d; omit it for no limit", PromotionRatePerSecondMax, *n)
	}
	if n := c.Weight; n != nil && (*n < 1 || *n > PromotionWeightMax) {
		refuse("weight", "must be from 1 to %d, not %d", PromotionWeightMax, *n)
	}
	if n := c.MaxAmount; n != nil && *n < 1 {
		refuse("maxAmount", "must be at least 1, not %d; omit it for no budget", *n)
	}
	if c.Canary != nil {
		if c.Canary.Targets < 1 {
			refuse("canary.targets", "must be at least 1, not %d; omit canary to pay all targets at once", c.Canary.Targets)
		}
		if r := c.Canary.MaxFailureRate; !(r >= 0 && r <= 1) { // NaN is refused too
			refuse("canary.maxFailureRate", "must be from 0 to 1, not %v", r)
		}
	}
	if c.StartsAt != nil && !c.StartsAt.After(now) {
		refuse("startsAt", "%s has passed; omit it to start the promotion manually", c.StartsAt.UTC().Format(time.RFC3339))
	}
	if c.EndsAt != nil && !c.EndsAt.After(now) {
		refuse("endsAt", "%s has passed; omit it if the promotion has no end", c.EndsAt.UTC().Format(time.RFC3339))
	}
	wrong = append(wrong, rules.CheckEnd(valueOf(c.StartsAt), valueOf(c.EndsAt))...)
	if c.WebhookURL != "" {
		if err := webhook.CheckURL(c.WebhookURL); err != nil {
			refuse("webhookUrl", "%v", err)
		}
	}
	if c.Metadata != nil {
		wrong = append(wrong, reward.CheckMetadata(c.Metadata.Apply(""))...)
	}
	wrong = append(wrong, reward.CheckNotes(valueOf(c.Notes))...)
	return wrong
}

func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

func checkVoucherCode(t, code string, refuse func(field, format string, args ...any)) {
	const field = "voucherCode"
	if t != string(reward.Voucher) {
		refuse(field, "is for VOUCHER promotions only")
	}
	if utf8.RuneCountInString(code) > reward.PromotionVoucherCodeMax || len(code) > reward.VoucherCodeMax {
		refuse(field, "must have at most %d characters and %d bytes", reward.PromotionVoucherCodeMax, reward.VoucherCodeMax)
	} else if err := reward.CheckText(code); err != nil {
		refuse(field, "%v", err)
	} else if reward.HasControl(code) {
		refuse(field, "contains a control character")
	} else if reward.StartsFormula(code) {
		refuse(field, "%s begins like a spreadsheet formula", reward.Quote(code))
	}
}

// Create creates a DRAFT, or completes the one that Kafka records registered.
func (s *Promotions) Create(ctx context.Context, c CreateCommand) (store.PromotionView, error) {
	wrong := c.Check(time.Now())
	if c.WebhookURL != "" && !s.cfg.Webhooks {
		wrong = append(wrong, reward.FieldError{
			Field: "webhookUrl", Detail: "cannot be signed: set webhook.secret and restart the instances, or omit webhookUrl",
		})
	}
	if refused := s.cfg.Payable.Check(reward.PromotionType(c.Type), valueOf(c.Currency)); refused != nil && len(wrong) == 0 {
		wrong = append(wrong, *refused)
	}
	if len(wrong) > 0 {
		return store.PromotionView{}, reward.InvalidFields("the promotion", wrong)
	}
	p := reward.Promotion{
		Type: reward.PromotionType(c.Type), Status: reward.Draft, MaxRetries: reward.MaxRetries, Weight: 1,
		ConsumersPerInstance: c.ConsumersPerInstance, WebhookURL: c.WebhookURL, CreatedBy: c.By, CreatedAt: time.Now().UTC(),
	}
	if s.cfg.MaxRetries != nil {
		p.MaxRetries = *s.cfg.MaxRetries
	}
	c.Set(&p)
	if p.ID = c.ID; p.ID == 0 {
		p.ID = reward.PromotionID(s.cfg.IDs.Next())
	}
	p, err := s.cfg.Store.PromotionCreate(ctx, p)
	if err != nil {
		return store.PromotionView{}, err
	}
	return s.changed(ctx, p.ID, "created")
}
