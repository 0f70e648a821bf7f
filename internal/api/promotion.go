package api

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
	"github.com/largesse/largesse/internal/webhook"
)

// Promotion is a promotion in JSON.
type Promotion struct {
	ID                   string     `json:"id" example:"12345"`
	Name                 string     `json:"name" doc:"Empty while only Kafka records name the promotion"`
	Type                 string     `json:"type" enum:"POINT,VOUCHER"`
	Status               string     `json:"status" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED"`
	Amount               int64      `json:"amount,omitempty" maximum:"1000000000000000" doc:"Default amount of a target, in minor units; absent: each target has its own"`
	VoucherCode          string     `json:"voucherCode,omitempty" doc:"Default voucher code of a target"`
	Currency             string     `json:"currency"`
	MaxRetries           int        `json:"maxRetries" doc:"Maximum number of retries after the first call"`
	ConsumersPerInstance int        `json:"consumersPerInstance,omitempty" doc:"Consumers on each instance; absent: depends on the number of targets"`
	RatePerSecond        int        `json:"ratePerSecond,omitempty" doc:"Maximum calls per second of all instances together; absent: no limit of its own"`
	Weight               int        `json:"weight" doc:"Share of the calls relative to other promotions"`
	MaxAmount            int64      `json:"maxAmount,omitempty" doc:"Budget in minor units; absent: no limit"`
	Canary               *Canary    `json:"canary,omitempty" doc:"Absent: no canary"`
	StartsAt             time.Time  `json:"startsAt,omitzero" doc:"When a DRAFT starts automatically; absent: it is started manually"`
	WebhookURL           string     `json:"webhookUrl,omitempty" doc:"Notified when the promotion finishes or Largesse pauses it; for viewers and in events, without what may be a secret"`
	Metadata             Metadata   `json:"metadata,omitempty" doc:"What callers store with the promotion; absent: nothing"`
	CreatedBy            string     `json:"createdBy,omitempty" doc:"Name of the creator; absent while only Kafka records name the promotion"`
	ApprovedBy           string     `json:"approvedBy,omitempty" doc:"Who approved it; absent: nothing is approved"`
	ApprovedAmount       *int64     `json:"approvedAmount,omitempty" doc:"Of the approved targets"`
	ApprovedCount        *int64     `json:"approvedCount,omitempty" doc:"Of the approved targets"`
	AwaitingApproval     bool       `json:"awaitingApproval" doc:"Whether targets wait for another person's approval"`
	RejectedBy           string     `json:"rejectedBy,omitempty" doc:"Who refused to approve it; absent: nobody, or it has changed since"`
	RejectReason         string     `json:"rejectReason,omitempty"`
	Closed               bool       `json:"closed" doc:"Whether the promotion is closed to further targets"`
	TotalCount           int64      `json:"totalCount" doc:"Number of known targets; the sum of counts"`
	ExpectedCount        *int64     `json:"expectedCount,omitempty" doc:"Number of targets that the started event announced; absent: none was announced"`
	Counts               Counts     `json:"counts"`
	AmountTotal          int64      `json:"amountTotal" doc:"Amount of all known targets, in minor units"`
	AmountSucceeded      int64      `json:"amountSucceeded" doc:"Amount of SUCCEEDED payouts, in minor units"`
	PauseReason          string     `json:"pauseReason,omitempty"`
	ETASeconds           *int64     `json:"etaSeconds,omitempty" doc:"Remaining seconds at the recent rate; absent: unknown, for example without progress for 3 s"`
	CreatedAt            time.Time  `json:"createdAt"`
	StartedAt            time.Time  `json:"startedAt,omitzero"`
	FinishedAt           time.Time  `json:"finishedAt,omitzero"`
	ArchivedAt           time.Time  `json:"archivedAt,omitzero" doc:"Set: it takes no targets, and its payouts are removed"`
	Summaries            []*Summary `json:"summaries,omitempty" nullable:"false" doc:"One entry per promotionSummaryId, the first 1000; absent in lists"`
}

// Metadata is what callers store with a promotion or a template.
type Metadata map[string]string

// Canary describes the first payouts of a promotion, whose results decide whether the
// others follow.
type Canary struct {
	Targets        int64   `json:"targets" doc:"Number of targets that are paid first"`
	MaxFailureRate float64 `json:"maxFailureRate" doc:"Share of FAILED canary payouts above which the promotion pauses"`
	Dispatched     int64   `json:"dispatched" doc:"Number of canary payouts dispatched so far"`
	Judged         bool    `json:"judged" doc:"Whether the canary has passed and the other payouts may follow"`
}

// Counts is the number of payouts in each state.
type Counts struct {
	Ready     int64 `json:"ready" doc:"Waiting in the database"`
	Queued    int64 `json:"queued" doc:"Dispatched"`
	Retrying  int64 `json:"retrying" doc:"Waiting for the next call"`
	Unknown   int64 `json:"unknown" doc:"Outcome unknown; looked up at the provider"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed" doc:"Not paid"`
	Cancelled int64 `json:"cancelled"`
}

// Summary is the part of a promotion under one promotionSummaryId.
type Summary struct {
	PromotionSummaryID string `json:"promotionSummaryId"`
	TotalCount         int64  `json:"totalCount"`
	Counts             Counts `json:"counts"`
	AmountSucceeded    int64  `json:"amountSucceeded" doc:"Amount of SUCCEEDED payouts, in minor units"`
}

func countsOf(c *reward.Counts) Counts {
	return Counts{
		Ready: c.Payouts[reward.Ready], Queued: c.Payouts[reward.Queued], Retrying: c.Payouts[reward.Retrying],
		Unknown: c.Payouts[reward.Unknown], Succeeded: c.Payouts[reward.Succeeded],
		Failed: c.Payouts[reward.Failed], Cancelled: c.Payouts[reward.Cancelled],
	}
}

// promotionFor returns a promotion as the caller may see it. The URL of a receiver is
// often all that proves a call to it, so a viewer does not see its secret parts.
func (a *API) promotionFor(ctx context.Context, v store.PromotionView) *Promotion {
	if seesURLs(ctx) {
		return a.promotionOf(v)
	}
	return a.promotionForAll(v)
}

// promotionForAll returns a promotion as every caller may see it.
func (a *API) promotionForAll(v store.PromotionView) *Promotion {
	p := a.promotionOf(v)
	p.WebhookURL = webhook.MaskURL(p.WebhookURL)
	return p
}

// seesURLs reports whether the caller sees the URLs of receivers as they are.
func seesURLs(ctx context.Context) bool { return slices.Contains(operators, callerOf(ctx).Role) }

func (a *API) promotionOf(v store.PromotionView) *Promotion {
	p := &Promotion{
		ID: v.ID.String(), Name: v.Name, Type: string(v.Type), Status: string(v.Status), Amount: int64(v.Amount),
		VoucherCode: v.VoucherCode, Currency: v.Currency, MaxRetries: v.MaxRetries, ConsumersPerInstance: v.ConsumersPerInstance, Closed: v.Closed,
		RatePerSecond: v.RatePerSecond, Weight: v.Weight, MaxAmount: int64(v.MaxAmount), StartsAt: v.StartsAt.UTC(), WebhookURL: v.WebhookURL,
		Metadata: v.Metadata.Map(), CreatedBy: v.CreatedBy, ApprovedBy: v.ApprovedBy, AwaitingApproval: rules.AwaitsApproval(v.Promotion, v.Counts, a.cfg.ApprovalAbove),
		RejectedBy: v.RejectedBy, RejectReason: v.RejectReason,
		TotalCount: v.Counts.Total(), ExpectedCount: v.ExpectedCount, Counts: countsOf(&v.Counts),
		AmountTotal: int64(v.Counts.AmountTotal()), AmountSucceeded: int64(v.Counts.Amounts[reward.Succeeded]),
		PauseReason: v.PauseReason, ETASeconds: a.rates.seconds(v, time.Now()),
		CreatedAt: v.CreatedAt.UTC(), StartedAt: v.StartedAt.UTC(), FinishedAt: v.FinishedAt.UTC(), ArchivedAt: v.ArchivedAt.UTC(),
	}
	if v.ApprovedBy != "" {
		p.ApprovedAmount, p.ApprovedCount = ptr(int64(v.Approval.Amount)), ptr(v.Approval.Count)
	}
	if c := v.Canary; c.Targets > 0 {
		p.Canary = &Canary{Targets: c.Targets, MaxFailureRate: c.MaxFailureRate, Dispatched: c.Dispatched, Judged: c.Judged}
	}
	return p
}

// wireID is an ID in a request: a JSON number or a string. It stores the text, so
// that no digit is lost in a float.
type wireID string

// Schema describes both forms. The published schema is narrower than the one that
// huma checks: Resolve has better error messages.
func (wireID) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "A whole number from 1 to 9223372036854775807, as a string or a number",
		OneOf:       []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeInteger}},
		Extensions: map[string]any{"oneOf": []*huma.Schema{
			refTo(schemaID), {Type: huma.TypeInteger, Minimum: ptr(1.0), ExclusiveMaximum: ptr(math.Exp2(63))},
		}},
	}
}

// UnmarshalJSON stores the text.
func (id *wireID) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(id))
	}
	*id = wireID(b)
	return nil
}

// CreatePromotion is the body of POST /v1/promotions.
type CreatePromotion struct {
	ID                   *wireID       `json:"id,omitempty" doc:"ID from an upstream system; absent: a new ID. If Kafka records registered the ID as a DRAFT, the request completes that promotion"`
	Name                 string        `json:"name" minLength:"1" maxLength:"200"`
	Type                 string        `json:"type" enum:"POINT,VOUCHER"`
	Amount               *int64        `json:"amount,omitempty" maximum:"1000000000000000" doc:"Default amount of a target, in minor units; at least 1 for POINT, at least 0 for VOUCHER"`
	VoucherCode          string        `json:"voucherCode,omitempty" maxLength:"200" doc:"Default voucher code of a target; only for VOUCHER"`
	Currency             string        `json:"currency,omitempty" doc:"Three capital letters" example:"EUR"`
	MaxRetries           *int          `json:"maxRetries,omitempty" minimum:"0" maximum:"20" doc:"Maximum number of retries after the first call; absent: 5"`
	ConsumersPerInstance *int          `json:"consumersPerInstance,omitempty" minimum:"1" maximum:"256" doc:"Consumers on each instance; absent: depends on the number of targets"`
	RatePerSecond        *int          `json:"ratePerSecond,omitempty" minimum:"1" maximum:"1000000" doc:"Maximum calls per second of all instances together; absent: no limit of its own"`
	Weight               *int          `json:"weight,omitempty" minimum:"1" maximum:"100" doc:"Share of the calls relative to other promotions: twice the weight, twice the calls; absent: 1"`
	MaxAmount            *int64        `json:"maxAmount,omitempty" minimum:"1" doc:"Budget in minor units; no payout that could exceed it is dispatched; absent: no limit"`
	Canary               *CreateCanary `json:"canary,omitempty" doc:"Pay some targets first, and the others only if these succeed"`
	StartsAt             *time.Time    `json:"startsAt,omitempty" doc:"A time in the future when the promotion starts automatically"`
	WebhookURL           string        `json:"webhookUrl,omitempty" maxLength:"2000" doc:"Notified when the promotion finishes or Largesse pauses it; needs the setting webhook.secret"`
	Metadata             Metadata      `json:"metadata,omitempty" maxProperties:"20" doc:"At most 20 entries; keys and values of at most 200 characters"`
}

// CreateCanary is the canary of a new promotion.
type CreateCanary struct {
	Targets        int64    `json:"targets" minimum:"1" doc:"Number of targets that are paid first"`
	MaxFailureRate *float64 `json:"maxFailureRate,omitempty" minimum:"0" maximum:"1" doc:"Share of FAILED canary payouts above which the promotion pauses; absent: 0.5"`
}

// forAudit returns the body without the secret parts of the URL.
func (b CreatePromotion) forAudit() any {
	b.WebhookURL = webhook.MaskURL(b.WebhookURL)
	return b
}

// Resolve checks what the schema cannot express, so that one response names all
// invalid fields.
func (b *CreatePromotion) Resolve(huma.Context) []error {
	cmd, wrong := b.command()
	// createPromotion checks that startsAt is in the future: a later repeat under the
	// same idempotency key must get the same response.
	wrong = append(wrong, cmd.Check(time.Time{})...)
	errs := make([]error, len(wrong))
	for i, f := range wrong {
		errs[i] = &huma.ErrorDetail{Location: "body." + f.Field, Message: f.Detail}
	}
	return errs
}

func (b *CreatePromotion) command() (campaign.CreateCommand, []reward.FieldError) {
	cmd := campaign.CreateCommand{
		Name: b.Name, Type: b.Type, Amount: (*reward.Amount)(b.Amount), VoucherCode: b.VoucherCode,
		Currency: b.Currency, MaxRetries: b.MaxRetries, ConsumersPerInstance: b.ConsumersPerInstance,
		RatePerSecond: b.RatePerSecond, Weight: b.Weight, MaxAmount: (*reward.Amount)(b.MaxAmount), StartsAt: b.StartsAt, WebhookURL: b.WebhookURL,
		Metadata: b.Metadata,
	}
	if b.Canary != nil {
		cmd.Canary = &campaign.CanaryCommand{Targets: b.Canary.Targets, MaxFailureRate: b.Canary.MaxFailureRate}
	}
	if b.ID == nil {
		return cmd, nil
	}
	id, err := reward.ParsePromotionID(string(*b.ID))
	if err != nil {
		return cmd, []reward.FieldError{{Field: "id", Detail: err.Error()}}
	}
	cmd.ID = &id
	return cmd, nil
}

type promotionIDInput struct {
	ID string `path:"id" doc:"Promotion ID"`
}

type promotionOutput struct {
	ETag string `header:"ETag" doc:"For If-Match"`
	Body *Promotion
}

type promotionCreatedOutput struct {
	Location string `header:"Location" doc:"Absolute path of the promotion"`
	ETag     string `header:"ETag" doc:"For If-Match"`
	Body     *Promotion
}

func (a *API) addPromotions() {
	const path = "/v1/promotions"
	tags := []string{"promotions"}
	call(a, huma.Operation{
		OperationID: "create-promotion", Method: http.MethodPost, Path: path, Tags: tags,
		Summary: "Create a promotion", DefaultStatus: http.StatusCreated,
	}, a.createPromotion)
	call(a, huma.Operation{
		OperationID: "get-promotion", Method: http.MethodGet, Path: path + "/{id}", Tags: tags,
		Summary: "Show a promotion",
	}, a.getPromotion)
	call(a, huma.Operation{
		OperationID: "delete-promotion", Method: http.MethodDelete, Path: path + "/{id}", Tags: tags,
		Summary: "Delete a DRAFT and its targets", DefaultStatus: http.StatusNoContent,
	}, a.deletePromotion)
	for _, act := range []struct {
		name, summary string
		do            func(context.Context, reward.PromotionID) (store.PromotionView, error)
	}{
		{"start", "Start a DRAFT", a.cfg.Promotions.Start},
		{"pause", "Pause a promotion; no new calls start", a.cfg.Promotions.Pause},
		{"resume", "Resume a paused promotion", a.cfg.Promotions.Resume},
		{"cancel", "Cancel a promotion; look up payouts that may be charged", a.cfg.Promotions.Cancel},
		{"close", "Close a promotion to further targets", a.cfg.Promotions.Close},
	} {
		call(a, huma.Operation{
			OperationID: act.name + "-promotion", Method: http.MethodPost, Path: path + "/{id}/" + act.name, Tags: tags,
			Summary: act.summary, DefaultStatus: http.StatusAccepted,
		}, func(ctx context.Context, in *promotionIDInput) (*promotionOutput, error) {
			id, err := promotionID(in.ID)
			if err != nil {
				return nil, err
			}
			v, err := act.do(ctx, id)
			return a.withSummaries(ctx, v, err)
		})
	}
}

func (a *API) createPromotion(ctx context.Context, in *struct{ Body CreatePromotion }) (*promotionCreatedOutput, error) {
	cmd, wrong := in.Body.command()
	if len(wrong) > 0 {
		return nil, web.Invalid(wrong[0].Field, wrong[0].Detail)
	}
	cmd.By = actor(ctx)
	if c := claimOf(ctx); c != nil && cmd.ID == nil {
		id := reward.PromotionID(c.ID)
		cmd.ID = &id
	}
	v, err := a.cfg.Promotions.Create(ctx, cmd)
	if c := claimOf(ctx); c != nil && c.Again && reward.HasCode(err, reward.CodeExists) {
		v, err = a.createdBefore(ctx, cmd, err)
	}
	out, err := a.withSummaries(ctx, v, err)
	if err != nil {
		return nil, err
	}
	return &promotionCreatedOutput{Location: web.Location(ctx, "/v1/promotions/"+out.Body.ID), ETag: out.ETag, Body: out.Body}, nil
}

// createdBefore returns the promotion that an earlier attempt of the same request
// created before it crashed. If another request created it, createdBefore returns the
// error exists. The creation time proves nothing: Kafka records may have named the
// promotion long before.
func (a *API) createdBefore(ctx context.Context, cmd campaign.CreateCommand, exists error) (store.PromotionView, error) {
	v, err := a.cfg.Promotions.Get(ctx, *cmd.ID)
	if err == nil && (v.CreatedBy != actor(ctx) || v.Name != cmd.Name) {
		err = exists
	}
	return v, err
}

func (a *API) getPromotion(ctx context.Context, in *promotionIDInput) (*promotionOutput, error) {
	id, err := promotionID(in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Promotions.Get(ctx, id)
	return a.withSummaries(ctx, v, err)
}

// withSummaries returns a promotion with its summaries.
func (a *API) withSummaries(ctx context.Context, v store.PromotionView, err error) (*promotionOutput, error) {
	if err != nil {
		return nil, err
	}
	summaries, err := a.cfg.Promotions.Summaries(ctx, v.ID)
	if err != nil {
		return nil, err
	}
	p := a.promotionFor(ctx, v)
	for _, s := range summaries {
		p.Summaries = append(p.Summaries, &Summary{
			PromotionSummaryID: s.ID.String(), TotalCount: s.Total(), Counts: countsOf(&s.Counts),
			AmountSucceeded: int64(s.Amounts[reward.Succeeded]),
		})
	}
	return &promotionOutput{ETag: promotionTag(v), Body: p}, nil
}

func (a *API) deletePromotion(ctx context.Context, in *promotionIDInput) (*struct{}, error) {
	id, err := promotionID(in.ID)
	if err != nil {
		return nil, err
	}
	return nil, a.cfg.Promotions.Delete(ctx, id)
}
