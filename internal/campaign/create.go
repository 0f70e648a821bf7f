package campaign

import (
	"context"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/webhook"
)

// Limits of a promotion's fields.
const (
	PromotionRatePerSecondMax = 1_000_000 // calls of all instances together
	PromotionWeightMax        = 100
)

// CanaryMaxFailureRate is the default of a canary's MaxFailureRate.
const CanaryMaxFailureRate = 0.5

// CreateCommand describes a promotion to create.
type CreateCommand struct {
	ID   *reward.PromotionID // nil means a new id
	Name string              // 1 to 200 characters
	Type string              // POINT or VOUCHER
	// Amount is the amount per target in minor units, up to reward.AmountMax.
	// If it is nil, every target needs its own.
	Amount      *reward.Amount
	VoucherCode string // default of the targets; VOUCHER only
	Currency    string // three capital letters; may be empty
	MaxRetries  *int   // retries after the first call, 0 to 20; nil means the default
	// ConsumersPerInstance is the number of consumers on each instance, 1 to
	// 256. If it is nil, the number depends on the promotion's size.
	ConsumersPerInstance *int
	// RatePerSecond limits the calls of all instances together, 1 to 1,000,000.
	// Nil means no limit for this promotion.
	RatePerSecond *int
	Weight        *int           // share of the calls relative to other promotions, 1 to 100; nil means 1
	MaxAmount     *reward.Amount // budget in minor units, at least 1; nil means none
	Canary        *CanaryCommand // nil means none
	StartsAt      *time.Time     // in the future; nil means that an operator starts it
	WebhookURL    string         // by webhook.CheckURL; may be empty
	Metadata      map[string]string
	By            string // the caller
}

// CanaryCommand describes a canary.
type CanaryCommand struct {
	Targets        int64    // charged first, at least 1
	MaxFailureRate *float64 // 0 to 1; nil means CanaryMaxFailureRate
}

// Check returns every field that is invalid at now.
func (c CreateCommand) Check(now time.Time) []reward.FieldError {
	var wrong []reward.FieldError
	refuse := func(field, format string, args ...any) {
		wrong = append(wrong, reward.FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
	if c.ID != nil && *c.ID <= 0 {
		refuse("id", "must be from 1 to %d", int64(math.MaxInt64))
	}
	if n := utf8.RuneCountInString(c.Name); n == 0 || n > reward.PromotionNameMax {
		refuse("name", "must have 1 to %d characters, not %d", reward.PromotionNameMax, n)
	} else if err := reward.CheckLabel(c.Name); err != nil {
		refuse("name", "%v", err)
	}
	if c.Type != string(reward.Point) && c.Type != string(reward.Voucher) {
		refuse("type", "must be POINT or VOUCHER, not %s", reward.Quote(c.Type))
	}
	least := reward.AmountMin(reward.PromotionType(c.Type))
	switch {
	case c.Amount == nil:
	case *c.Amount < least || *c.Amount > reward.AmountMax:
		refuse("amount", "must be from %d to %d, not %d; omit it if every target has its own", least, reward.AmountMax, *c.Amount)
	}
	if c.VoucherCode != "" {
		c.checkVoucherCode(refuse)
	}
	if c.Currency != "" && !reward.IsCurrency(c.Currency) {
		refuse("currency", "must be three capital letters, e.g. EUR, not %s", reward.Quote(c.Currency))
	}
	if c.MaxRetries != nil && (*c.MaxRetries < 0 || *c.MaxRetries > reward.PromotionMaxRetriesMax) {
		refuse("maxRetries", "must be from 0 to %d, not %d", reward.PromotionMaxRetriesMax, *c.MaxRetries)
	}
	if n := c.ConsumersPerInstance; n != nil && (*n < 1 || *n > reward.PromotionConsumersMax) {
		refuse("consumersPerInstance", "must be from 1 to %d, not %d; omit it to use the promotion's size",
			reward.PromotionConsumersMax, *n)
	}
	c.checkControls(now, refuse)
	return append(wrong, reward.CheckMetadata(reward.NewMetadata(c.Metadata))...)
}

// checkControls checks the fields that control the promotion while it runs.
func (c CreateCommand) checkControls(now time.Time, refuse func(field, format string, args ...any)) {
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
		if r := c.Canary.MaxFailureRate; r != nil && !(*r >= 0 && *r <= 1) { // NaN is refused too
			refuse("canary.maxFailureRate", "must be from 0 to 1, not %v", *r)
		}
	}
	if c.StartsAt != nil && !c.StartsAt.After(now) {
		refuse("startsAt", "%s has passed; omit it to start the promotion manually", c.StartsAt.UTC().Format(time.RFC3339))
	}
	if c.WebhookURL != "" {
		if err := webhook.CheckURL(c.WebhookURL); err != nil {
			refuse("webhookUrl", "%v", err)
		}
	}
}

// checkVoucherCode checks the default voucher code.
func (c CreateCommand) checkVoucherCode(refuse func(field, format string, args ...any)) {
	const field = "voucherCode"
	if c.Type != string(reward.Voucher) {
		refuse(field, "is for VOUCHER promotions only")
	}
	if utf8.RuneCountInString(c.VoucherCode) > reward.PromotionVoucherCodeMax || len(c.VoucherCode) > reward.VoucherCodeMax {
		refuse(field, "must have at most %d characters and %d bytes", reward.PromotionVoucherCodeMax, reward.VoucherCodeMax)
	} else if err := reward.CheckText(c.VoucherCode); err != nil {
		refuse(field, "%v", err)
	} else if reward.HasControl(c.VoucherCode) {
		refuse(field, "contains a control character")
	} else if reward.StartsFormula(c.VoucherCode) {
		refuse(field, "%s begins like a spreadsheet formula", reward.Quote(c.VoucherCode))
	}
}

// Create creates a DRAFT, or completes the one that Kafka registered under the
// id.
func (s *Promotions) Create(ctx context.Context, c CreateCommand) (store.PromotionView, error) {
	wrong := c.Check(time.Now())
	if c.WebhookURL != "" && !s.cfg.Webhooks {
		wrong = append(wrong, reward.FieldError{
			Field: "webhookUrl", Detail: "cannot be signed: set webhook.secret and restart the instances, or omit webhookUrl",
		})
	}
	if refused := s.cfg.Payable.Check(reward.PromotionType(c.Type), c.Currency); refused != nil && len(wrong) == 0 {
		wrong = append(wrong, *refused)
	}
	if len(wrong) > 0 {
		return store.PromotionView{}, reward.InvalidFields("the promotion", wrong)
	}
	p := reward.Promotion{
		Name: c.Name, Type: reward.PromotionType(c.Type), Status: reward.Draft, VoucherCode: c.VoucherCode,
		Currency: c.Currency, MaxRetries: reward.MaxRetries, Weight: 1, WebhookURL: c.WebhookURL,
		Metadata: reward.NewMetadata(c.Metadata), CreatedBy: c.By, CreatedAt: time.Now().UTC(),
	}
	if s.cfg.MaxRetries != nil {
		p.MaxRetries = *s.cfg.MaxRetries
	}
	if c.MaxRetries != nil {
		p.MaxRetries = *c.MaxRetries
	}
	if c.ConsumersPerInstance != nil {
		p.ConsumersPerInstance = *c.ConsumersPerInstance
	}
	if c.Amount != nil {
		p.Amount = *c.Amount
	}
	c.setControls(&p)
	if c.ID != nil {
		p.ID = *c.ID
	} else {
		p.ID = reward.PromotionID(s.cfg.IDs.Next())
	}
	p, err := s.cfg.Store.PromotionCreate(ctx, p)
	if err != nil {
		return store.PromotionView{}, err
	}
	return s.changed(ctx, p.ID, "created")
}

// setControls sets the fields that control the promotion while it runs.
func (c CreateCommand) setControls(p *reward.Promotion) {
	if c.RatePerSecond != nil {
		p.RatePerSecond = *c.RatePerSecond
	}
	if c.Weight != nil {
		p.Weight = *c.Weight
	}
	if c.MaxAmount != nil {
		p.MaxAmount = *c.MaxAmount
	}
	if c.Canary != nil {
		p.Canary = reward.Canary{Targets: c.Canary.Targets, MaxFailureRate: CanaryMaxFailureRate}
		if c.Canary.MaxFailureRate != nil {
			p.Canary.MaxFailureRate = *c.Canary.MaxFailureRate
		}
	}
	if c.StartsAt != nil {
		p.StartsAt = c.StartsAt.UTC()
	}
}
