package api

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/web"
	"github.com/largesse/largesse/internal/webhook"
)

// ChangePromotion is the body of PATCH /v1/promotions/{id}. Absent fields stay.
type ChangePromotion struct {
	Name          *string                       `json:"name,omitempty" minLength:"1" maxLength:"200"`
	RatePerSecond web.Clearable[int]            `json:"ratePerSecond,omitempty,omitzero" minimum:"1" maximum:"1000000" doc:"null: no limit"`
	Weight        web.Clearable[int]            `json:"weight,omitempty,omitzero" minimum:"1" maximum:"100" doc:"null: 1"`
	MaxAmount     web.Clearable[int64]          `json:"maxAmount,omitempty,omitzero" minimum:"1" doc:"At least what may have been paid; null: no limit; may exceed 2^53"`
	MaxRetries    *int                          `json:"maxRetries,omitempty" minimum:"0" maximum:"20"`
	Amount        web.Clearable[int64]          `json:"amount,omitempty,omitzero" minimum:"0" maximum:"1000000000000000" doc:"Only while DRAFT; null: none"`
	VoucherCode   web.Clearable[string]         `json:"voucherCode,omitempty,omitzero" maxLength:"200" doc:"Only while DRAFT; null: none"`
	Currency      web.Clearable[string]         `json:"currency,omitempty,omitzero" doc:"Three capital letters; only while DRAFT; null: none"`
	Canary        web.Clearable[CreateCanary]   `json:"canary,omitempty,omitzero" doc:"Only while DRAFT; null: none"`
	StartsAt      web.Clearable[time.Time]      `json:"startsAt,omitempty,omitzero" doc:"Only while DRAFT; null: none"`
	EndsAt        web.Clearable[time.Time]      `json:"endsAt,omitempty,omitzero" doc:"After startsAt, in the future; null: none"`
	Metadata      web.Clearable[metadataChange] `json:"metadata,omitempty,omitzero" doc:"Sets entries; a null value removes one, null all"`
	Notes         *string                       `json:"notes,omitempty" maxLength:"4000"`
	ImmutableFields
}

// metadataChange changes entries of metadata; nil removes an entry.
type metadataChange map[string]*string

// ImmutableFields are the fields of Promotion that never change, or by other calls
// only. They are not described, but have an error of their own.
type ImmutableFields struct {
	ID                   immutable `json:"id,omitempty" hidden:"true"`
	Type                 immutable `json:"type,omitempty" hidden:"true"`
	Status               immutable `json:"status,omitempty" hidden:"true"`
	ConsumersPerInstance immutable `json:"consumersPerInstance,omitempty" hidden:"true"`
	WebhookURL           immutable `json:"webhookUrl,omitempty" hidden:"true"`
	CreatedBy            immutable `json:"createdBy,omitempty" hidden:"true"`
	ApprovedBy           immutable `json:"approvedBy,omitempty" hidden:"true"`
	Closed               immutable `json:"closed,omitempty" hidden:"true"`
	TotalCount           immutable `json:"totalCount,omitempty" hidden:"true"`
	ExpectedCount        immutable `json:"expectedCount,omitempty" hidden:"true"`
	Counts               immutable `json:"counts,omitempty" hidden:"true"`
	AmountTotal          immutable `json:"amountTotal,omitempty" hidden:"true"`
	AmountSucceeded      immutable `json:"amountSucceeded,omitempty" hidden:"true"`
	PausedBy             immutable `json:"pausedBy,omitempty" hidden:"true"`
	PausedAt             immutable `json:"pausedAt,omitempty" hidden:"true"`
	PauseReason          immutable `json:"pauseReason,omitempty" hidden:"true"`
	StartsEarly          immutable `json:"startsEarly,omitempty" hidden:"true"`
	ApprovalAsked        immutable `json:"approvalAsked,omitempty" hidden:"true"`
	PauseCause           immutable `json:"pauseCause,omitempty" hidden:"true"`
	CancelledBy          immutable `json:"cancelledBy,omitempty" hidden:"true"`
	CancelledAt          immutable `json:"cancelledAt,omitempty" hidden:"true"`
	ETASeconds           immutable `json:"etaSeconds,omitempty" hidden:"true"`
	CreatedAt            immutable `json:"createdAt,omitempty" hidden:"true"`
	StartedAt            immutable `json:"startedAt,omitempty" hidden:"true"`
	FinishedAt           immutable `json:"finishedAt,omitempty" hidden:"true"`
	Summaries            immutable `json:"summaries,omitempty" hidden:"true"`
}

// immutable is any JSON value of a field that cannot change.
type immutable json.RawMessage

// Schema allows every value: the field itself is wrong.
func (immutable) Schema(huma.Registry) *huma.Schema { return &huma.Schema{} }

// UnmarshalJSON keeps the value.
func (i *immutable) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(i).UnmarshalJSON(b) }

// MarshalJSON returns the value, for the audit.
func (i immutable) MarshalJSON() ([]byte, error) { return json.RawMessage(i).MarshalJSON() }

// check returns CodeImmutable if the body names a field that cannot change.
func (f *ImmutableFields) check() error {
	var wrong []web.ProblemField
	v := reflect.ValueOf(*f)
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			wrong = append(wrong, web.ProblemField{Field: name, Detail: "cannot change"})
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	p := web.NewProblem(http.StatusUnprocessableEntity, reward.CodeImmutable,
		wrong[0].Field+" cannot change; remove it, /openapi.json lists the fields that can")
	p.Errors = wrong
	return p
}

// forAudit returns the body without the voucher code, and without the secret parts of the
// URL, which is refused.
func (b ChangePromotion) forAudit() any {
	if code := b.VoucherCode.Value(); code != nil {
		b.VoucherCode = b.VoucherCode.With(reward.MaskCode(*code))
	}
	if b.WebhookURL != nil {
		shown := ""
		var address string
		if json.Unmarshal(b.WebhookURL, &address) == nil {
			shown = webhook.MaskURL(address)
		}
		b.WebhookURL, _ = json.Marshal(shown) // a string always has a JSON form
	}
	return b
}

// Resolve checks what the schema cannot express. Promotions.Change checks what depends
// on the promotion.
func (b *ChangePromotion) Resolve(huma.Context) []error {
	return fieldErrors(campaign.CheckChange(b.change(0), reward.Voucher, time.Time{})) // points have narrower limits
}

func (b *ChangePromotion) change(id reward.PromotionID) rules.PromotionChange {
	return rules.PromotionChange{
		ID: id, Name: b.Name, RatePerSecond: b.RatePerSecond.Change(), Weight: b.Weight.Change(), MaxRetries: b.MaxRetries,
		MaxAmount: (*reward.Amount)(b.MaxAmount.Change()), Metadata: (*reward.MetadataChange)(b.Metadata.Change()),
		Amount: (*reward.Amount)(b.Amount.Change()), VoucherCode: b.VoucherCode.Change(), Currency: b.Currency.Change(), StartsAt: b.StartsAt.Change(),
		Canary: b.Canary.Change().canary(), EndsAt: b.EndsAt.Change(), Notes: b.Notes,
	}
}

type promotionChangeInput struct {
	PromotionPath
	IfMatch string `header:"If-Match" maxLength:"2000" doc:"ETag of an earlier response; 412 if it has changed since, except for progress"`
	Body    ChangePromotion
}

func (a *API) addPromotionChange() {
	call(a, operation{
		id: "change-promotion", method: http.MethodPatch, path: "/v1/promotions/{id}", tag: "promotions", roles: campaigners,
		summary:     "Change a promotion",
		description: "IMMUTABLE: the field cannot change, or only while DRAFT.",
		errors:      []string{reward.CodeNotFound, reward.CodeConflict, reward.CodePreconditionFailed, reward.CodeImmutable},
		example:     tree{"ratePerSecond": 200},
	}, a.changePromotion)
}

func (a *API) changePromotion(ctx context.Context, in *promotionChangeInput) (*promotionOutput, error) {
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	tags, err := web.IfMatchTags(in.IfMatch)
	if err != nil {
		return nil, err
	}
	c := in.Body.change(in.id)
	c.By, c.Tags = actor(ctx), tags
	if c.Empty() && tags == nil {
		v, err := a.cfg.Rows.PromotionGet(ctx, in.id) // nothing to change
		return a.withSummaries(ctx, v, err)
	}
	v, err := a.cfg.Promotions.Change(ctx, c)
	return a.withSummaries(ctx, v, err)
}
