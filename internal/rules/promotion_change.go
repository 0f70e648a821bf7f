package rules

import (
	"cmp"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// PromotionChange is a change of the settings of a promotion. A nil field keeps its
// value. The zero value of a field that may be absent clears it.
type PromotionChange struct {
	ID            reward.PromotionID
	Name          *string
	RatePerSecond *int
	Weight        *int
	MaxAmount     *reward.Amount
	MaxRetries    *int
	Metadata      *reward.MetadataChange
	EndsAt        *time.Time
	Notes         *string

	// The remaining fields can change only while the promotion is a DRAFT.
	Amount      *reward.Amount
	VoucherCode *string
	Currency    *string
	Canary      *reward.Canary // without progress
	StartsAt    *time.Time

	// By is who changes the promotion. They become an author of it.
	By string
	// Tags are the tags of PromotionTag that the caller accepts; nil means any.
	Tags []string
}

// Empty reports whether the change names no field.
func (c *PromotionChange) Empty() bool { return c.Notes == nil && !c.settings() }

// NotesOnly reports whether the change names Notes alone. Who only writes notes decides
// nothing: they become no author, and a rejection stays.
func (c *PromotionChange) NotesOnly() bool { return c.Notes != nil && !c.settings() }

// settings reports whether the change names a field other than Notes.
func (c *PromotionChange) settings() bool {
	return c.Name != nil || c.RatePerSecond != nil || c.Weight != nil || c.MaxAmount != nil || c.MaxRetries != nil || c.Metadata != nil ||
		c.EndsAt != nil || len(c.draftFields()) > 0
}

// draftFields returns the errors of the fields that only a DRAFT may change.
func (c *PromotionChange) draftFields() []reward.FieldError {
	var fields []reward.FieldError
	add := func(field string, given bool) {
		if given {
			fields = append(fields, reward.FieldError{Field: field, Detail: "can change only while the promotion is a DRAFT"})
		}
	}
	add("amount", c.Amount != nil)
	add("voucherCode", c.VoucherCode != nil)
	add("currency", c.Currency != nil)
	add("canary", c.Canary != nil)
	add("startsAt", c.StartsAt != nil)
	return fields
}

// Voids reports whether a change voids the approval: it changes what the targets get,
// or loosens a limit that the approver has seen.
func (c *PromotionChange) Voids(from, to reward.Promotion) bool {
	return from.Amount != to.Amount || from.VoucherCode != to.VoucherCode || from.Currency != to.Currency ||
		widens(from.MaxAmount, to.MaxAmount) || widens(from.RatePerSecond, to.RatePerSecond) ||
		widens(from.Canary.Targets, to.Canary.Targets) ||
		from.Canary.Targets > 0 && to.Canary.MaxFailureRate > from.Canary.MaxFailureRate ||
		!from.StartsAt.IsZero() && to.StartsAt.Before(from.StartsAt) ||
		!from.EndsAt.IsZero() && (to.EndsAt.IsZero() || to.EndsAt.After(from.EndsAt))
}

// widens reports whether a limit is raised or removed. Zero means no limit.
func widens[T cmp.Ordered](from, to T) bool {
	var none T
	return from > none && (to <= none || to > from)
}

// Apply returns p with the change and the next version, without a rejection, and
// without an approval if Voids says so. c and flagged are as in Allow. The codes of
// errors are CodePreconditionFailed (version), CodeImmutable (field or currency that
// cannot change), CodeConflict (budget below what is spent) and CodeInvalid (too many
// metadata). The caller has checked the other values.
func (c *PromotionChange) Apply(p reward.Promotion, counts reward.Counts, flagged reward.Amount) (reward.Promotion, error) {
	if err := CheckTag(c.Tags, PromotionTag(p), "promotion", int64(p.ID)); err != nil {
		return p, err
	}
	if fields := c.draftFields(); len(fields) > 0 && p.Status != reward.Draft {
		return p, reward.NewError(reward.KindInvalid, reward.CodeImmutable, "promotion %d is %s, and %s can change only while it is a DRAFT",
			p.ID, p.Status, fields[0].Field).With(fields...)
	}
	if c.Currency != nil && p.Currency != "" && *c.Currency != p.Currency {
		detail := ""
		switch {
		case counts.AmountTotal() > 0:
			detail = "cannot change: targets have amounts in " + p.Currency + ", so create another promotion"
		case p.Amount > 0 && c.Amount == nil:
			detail = "can change only together with amount, which is in " + p.Currency
		case p.MaxAmount > 0 && c.MaxAmount == nil:
			detail = "can change only together with maxAmount, which is in " + p.Currency
		}
		if detail != "" {
			return p, reward.NewError(reward.KindInvalid, reward.CodeImmutable, "promotion %d: currency %s", p.ID, detail).
				With(reward.FieldError{Field: "currency", Detail: detail})
		}
	}
	spent := Spent(counts, flagged)
	if c.MaxAmount != nil && *c.MaxAmount > 0 && *c.MaxAmount < spent && *c.MaxAmount != p.MaxAmount {
		return p, reward.NewError(reward.KindConflict, reward.CodeConflict,
			"promotion %d has paid, or may have paid, %s, so maxAmount cannot be %s; set %s or more, or pause it",
			p.ID, spent.In(p.Currency), c.MaxAmount.In(p.Currency), spent.In(p.Currency))
	}
	from := p
	c.Set(&p)
	p.StartsAt, p.EndsAt, p.Weight = instant(p.StartsAt), instant(p.EndsAt), max(p.Weight, 1)
	if fields := CheckEnd(p.StartsAt, p.EndsAt); len(fields) > 0 {
		return p, reward.InvalidFields("the promotion", fields)
	}
	p.Version++
	if c.NotesOnly() {
		return p, nil
	}
	p.Revision++
	p.RejectedBy, p.RejectReason = "", ""
	if c.Voids(from, p) {
		p = Unapproved(p)
	}
	if p.Currency != from.Currency {
		p.Approval.Granted = nil // it counts in the other currency
	}
	if fields := reward.CheckMetadata(p.Metadata); len(fields) > 0 {
		return p, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "promotion %d: metadata %s", p.ID, fields[0].Detail).With(fields...)
	}
	return p, nil
}

// Set sets the settings of p that the change names.
func (c *PromotionChange) Set(p *reward.Promotion) {
	set(&p.Name, c.Name)
	set(&p.RatePerSecond, c.RatePerSecond)
	set(&p.Weight, c.Weight)
	set(&p.MaxAmount, c.MaxAmount)
	set(&p.MaxRetries, c.MaxRetries)
	set(&p.EndsAt, c.EndsAt)
	set(&p.Notes, c.Notes)
	if c.Metadata != nil {
		p.Metadata = c.Metadata.Apply(p.Metadata)
	}
	set(&p.Amount, c.Amount)
	set(&p.VoucherCode, c.VoucherCode)
	set(&p.Currency, c.Currency)
	if c.Canary != nil {
		p.Canary.Targets, p.Canary.MaxFailureRate = c.Canary.Targets, c.Canary.MaxFailureRate
	}
	set(&p.StartsAt, c.StartsAt)
}
