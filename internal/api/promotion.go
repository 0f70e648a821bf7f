package api

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Promotion is a promotion on the wire.
type Promotion struct {
	ID                   string     `json:"id" doc:"A whole number as a string" example:"12345"`
	Name                 string     `json:"name" doc:"Empty while only Kafka has spoken of it"`
	Type                 string     `json:"type" enum:"POINT,VOUCHER"`
	Status               string     `json:"status" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED"`
	Amount               int64      `json:"amount,omitempty" doc:"Default per target, in minor units; absent when every target names its own"`
	VoucherCode          string     `json:"voucherCode,omitempty" doc:"Default per target"`
	Currency             string     `json:"currency"`
	MaxRetries           int        `json:"maxRetries" doc:"Retries after the first call"`
	ConsumersPerInstance int        `json:"consumersPerInstance,omitempty" doc:"Consumers that each instance keeps for it; absent: by its size"`
	RatePerSecond        int        `json:"ratePerSecond,omitempty" doc:"Bound on the calls of all instances for it; absent: none of its own"`
	Weight               int        `json:"weight" doc:"Share of the calls beside other promotions"`
	MaxAmount            int64      `json:"maxAmount,omitempty" doc:"Budget in minor units; absent: none"`
	Canary               *Canary    `json:"canary,omitempty" doc:"Absent: all are paid at once"`
	StartsAt             time.Time  `json:"startsAt,omitzero" doc:"When a DRAFT starts by itself; absent: by hand"`
	WebhookURL           string     `json:"webhookUrl,omitempty" doc:"Told when it is finished, or was paused by Largesse"`
	CreatedBy            string     `json:"createdBy,omitempty" doc:"Who made it; absent when only Kafka has spoken of it"`
	ApprovedBy           string     `json:"approvedBy,omitempty" doc:"The second person, who has let it start"`
	Closed               bool       `json:"closed" doc:"No more targets will come"`
	TotalCount           int64      `json:"totalCount" doc:"Targets known; the counts add up to it"`
	ExpectedCount        *int64     `json:"expectedCount,omitempty" doc:"What the started event announced; absent for files"`
	Counts               Counts     `json:"counts"`
	AmountTotal          int64      `json:"amountTotal" doc:"Of all targets known, in minor units"`
	AmountSucceeded      int64      `json:"amountSucceeded" doc:"Paid, in minor units"`
	PauseReason          string     `json:"pauseReason,omitempty"`
	ETASeconds           *int64     `json:"etaSeconds,omitempty" doc:"Seconds left at the recent rate; absent when that is not known, or nothing was decided for some 3 s"`
	CreatedAt            time.Time  `json:"createdAt"`
	StartedAt            time.Time  `json:"startedAt,omitzero"`
	FinishedAt           time.Time  `json:"finishedAt,omitzero"`
	Summaries            []*Summary `json:"summaries,omitempty" nullable:"false" doc:"One per promotionSummaryId seen, the first 1000; absent in lists"`
}

// Canary is the first payouts of a promotion, which decide about the others.
type Canary struct {
	Targets        int64   `json:"targets" doc:"How many are paid first"`
	MaxFailureRate float64 `json:"maxFailureRate" doc:"Share of FAILED among them above which the promotion pauses"`
	Dispatched     int64   `json:"dispatched" doc:"How many of them were dispatched so far"`
	Judged         bool    `json:"judged" doc:"They are decided, and the others may follow"`
}

// Counts says how many payouts stand in each state.
type Counts struct {
	Ready     int64 `json:"ready" doc:"Wait in the database"`
	Queued    int64 `json:"queued" doc:"Dispatched"`
	Retrying  int64 `json:"retrying" doc:"Wait for their next call"`
	Unknown   int64 `json:"unknown" doc:"Looked up at the provider until it is known"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed" doc:"Known not paid"`
	Cancelled int64 `json:"cancelled"`
}

// Summary is the part of a promotion under one promotionSummaryId.
type Summary struct {
	PromotionSummaryID string `json:"promotionSummaryId"`
	TotalCount         int64  `json:"totalCount"`
	Counts             Counts `json:"counts"`
	AmountSucceeded    int64  `json:"amountSucceeded" doc:"Paid, in minor units"`
}

func countsOf(c *reward.Counts) Counts {
	return Counts{
		Ready: c.Payouts[reward.Ready], Queued: c.Payouts[reward.Queued], Retrying: c.Payouts[reward.Retrying],
		Unknown: c.Payouts[reward.Unknown], Succeeded: c.Payouts[reward.Succeeded],
		Failed: c.Payouts[reward.Failed], Cancelled: c.Payouts[reward.Cancelled],
	}
}

func (a *API) promotionOf(v store.PromotionView) *Promotion {
	p := &Promotion{
		ID: v.ID.String(), Name: v.Name, Type: string(v.Type), Status: string(v.Status), Amount: int64(v.Amount),
		VoucherCode: v.VoucherCode, Currency: v.Currency, MaxRetries: v.MaxRetries, ConsumersPerInstance: v.ConsumersPerInstance, Closed: v.Closed,
		RatePerSecond: v.RatePerSecond, Weight: v.Weight, MaxAmount: int64(v.MaxAmount), StartsAt: v.StartsAt.UTC(), WebhookURL: v.WebhookURL,
		CreatedBy: v.CreatedBy, ApprovedBy: v.ApprovedBy,
		TotalCount: v.Counts.Total(), ExpectedCount: v.ExpectedCount, Counts: countsOf(&v.Counts),
		AmountTotal: int64(v.Counts.AmountTotal()), AmountSucceeded: int64(v.Counts.Amounts[reward.Succeeded]),
		PauseReason: v.PauseReason, ETASeconds: a.rates.seconds(v, time.Now()),
		CreatedAt: v.CreatedAt.UTC(), StartedAt: v.StartedAt.UTC(), FinishedAt: v.FinishedAt.UTC(),
	}
	if c := v.Canary; c.Targets > 0 {
		p.Canary = &Canary{Targets: c.Targets, MaxFailureRate: c.MaxFailureRate, Dispatched: c.Dispatched, Judged: c.Judged}
	}
	return p
}

// wireID is an id in a request: a JSON number or a string. It keeps the text,
// so that no number passes through a float.
type wireID string

// Schema tells huma both forms. What is described is narrower than what is
// checked by it, for Resolve says better what is wrong.
func (wireID) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "A whole number from 1 to 9223372036854775807, as a string or a number",
		OneOf:       []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeInteger}},
		Extensions: map[string]any{"oneOf": []*huma.Schema{
			refTo(schemaID), {Type: huma.TypeInteger, Minimum: ptr(1.0), ExclusiveMaximum: ptr(math.Exp2(63))},
		}},
	}
}

// UnmarshalJSON keeps the digits.
func (id *wireID) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(id))
	}
	*id = wireID(b)
	return nil
}

// CreatePromotion is the body of POST /v1/promotions.
type CreatePromotion struct {
	ID                   *wireID       `json:"id,omitempty" doc:"Of an upstream system; one that Kafka has registered is completed"`
	Name                 string        `json:"name" minLength:"1" maxLength:"200"`
	Type                 string        `json:"type" enum:"POINT,VOUCHER"`
	Amount               *int64        `json:"amount,omitempty" maximum:"1000000000000000" doc:"Default per target, in minor units; from 1 for points, from 0 for vouchers"`
	VoucherCode          string        `json:"voucherCode,omitempty" maxLength:"200" doc:"Default per target; VOUCHER only"`
	Currency             string        `json:"currency,omitempty" doc:"Three capital letters" example:"EUR"`
	MaxRetries           *int          `json:"maxRetries,omitempty" minimum:"0" maximum:"20" doc:"Retries after the first call; 5 when absent"`
	ConsumersPerInstance *int          `json:"consumersPerInstance,omitempty" minimum:"1" maximum:"256" doc:"Consumers that each instance keeps for it; absent: by its size"`
	RatePerSecond        *int          `json:"ratePerSecond,omitempty" minimum:"1" maximum:"1000000" doc:"Bound on the calls of all instances for it; absent: none of its own"`
	Weight               *int          `json:"weight,omitempty" minimum:"1" maximum:"100" doc:"Share of the calls beside other promotions: twice the weight, twice the calls; 1 when absent"`
	MaxAmount            *int64        `json:"maxAmount,omitempty" minimum:"1" doc:"Budget in minor units: no payment is begun that could pass it; absent: none"`
	Canary               *CreateCanary `json:"canary,omitempty" doc:"Pay so many first, and the others when those went well"`
	StartsAt             *time.Time    `json:"startsAt,omitempty" doc:"In the future: it starts by itself then"`
	WebhookURL           string        `json:"webhookUrl,omitempty" maxLength:"2000" doc:"http:// or https://; told when it is finished, or was paused by Largesse; needs the setting webhook.secret"`
}

// CreateCanary is the canary of a new promotion.
type CreateCanary struct {
	Targets        int64    `json:"targets" minimum:"1" doc:"How many are paid first"`
	MaxFailureRate *float64 `json:"maxFailureRate,omitempty" minimum:"0" maximum:"1" doc:"Share of FAILED among them above which the promotion pauses; 0.5 when absent"`
}

// Resolve adds what the schema cannot say, so that all wrong fields are named
// at once.
func (b *CreatePromotion) Resolve(huma.Context) []error {
	cmd, wrong := b.command()
	// Whether startsAt has passed is asked when it is made: a repeat under the same
	// idempotency key hears the same answer later.
	wrong = append(wrong, cmd.Check(time.Time{})...)
	errs := make([]error, len(wrong))
	for i, f := range wrong {
		errs[i] = &huma.ErrorDetail{Location: "body." + f.Field, Message: f.Detail}
	}
	return errs
}

func (b *CreatePromotion) command() (payout.CreateCommand, []reward.FieldError) {
	cmd := payout.CreateCommand{
		Name: b.Name, Type: b.Type, Amount: (*reward.Amount)(b.Amount), VoucherCode: b.VoucherCode,
		Currency: b.Currency, MaxRetries: b.MaxRetries, ConsumersPerInstance: b.ConsumersPerInstance,
		RatePerSecond: b.RatePerSecond, Weight: b.Weight, MaxAmount: (*reward.Amount)(b.MaxAmount), StartsAt: b.StartsAt, WebhookURL: b.WebhookURL,
	}
	if b.Canary != nil {
		cmd.Canary = &payout.CanaryCommand{Targets: b.Canary.Targets, MaxFailureRate: b.Canary.MaxFailureRate}
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
	ID string `path:"id" doc:"Promotion id"`
}

type promotionOutput struct {
	Body *Promotion
}

type promotionCreatedOutput struct {
	Location string `header:"Location" doc:"Path of the promotion, relative to that of the request"`
	Body     *Promotion
}

type promotionListInput struct {
	Cursor string `query:"cursor" doc:"nextCursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
	Status string `query:"status" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED" doc:"Only these"`
}

type promotionListOutput struct {
	Body struct {
		Items      []*Promotion `json:"items" nullable:"false"`
		NextCursor string       `json:"nextCursor,omitempty" doc:"Absent on the last page"`
	}
}

func (a *API) addPromotions() {
	const path = "/v1/promotions"
	tags := []string{"promotions"}
	call(a, huma.Operation{
		OperationID: "create-promotion", Method: http.MethodPost, Path: path, Tags: tags,
		Summary: "Make a promotion", DefaultStatus: http.StatusCreated,
	}, a.createPromotion)
	call(a, huma.Operation{
		OperationID: "list-promotions", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "List promotions, the newest first",
	}, a.listPromotions)
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
		{"pause", "Open no new calls", a.cfg.Promotions.Pause},
		{"resume", "Go on after a pause", a.cfg.Promotions.Resume},
		{"cancel", "End a promotion; what was not called is not paid", a.cfg.Promotions.Cancel},
		{"close", "Say that no more targets will come", a.cfg.Promotions.Close},
		{"approve", "Let a promotion above approval.above pay, as a second person", a.approve},
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
			return a.whole(ctx, v, err)
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
		v, err = a.madeBefore(ctx, cmd, err)
	}
	out, err := a.whole(ctx, v, err)
	if err != nil {
		return nil, err
	}
	return &promotionCreatedOutput{Location: "promotions/" + out.Body.ID, Body: out.Body}, nil
}

// madeBefore returns the promotion that an earlier try of the same request has
// made, whose instance died before it could say so; or exists, when it was made
// by somebody else. The time does not tell: Kafka may have named it long before.
func (a *API) madeBefore(ctx context.Context, cmd payout.CreateCommand, exists error) (store.PromotionView, error) {
	v, err := a.cfg.Promotions.Get(ctx, *cmd.ID)
	if err == nil && (v.CreatedBy != actor(ctx) || v.Name != cmd.Name) {
		err = exists
	}
	return v, err
}

func (a *API) approve(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return a.cfg.Promotions.Approve(ctx, id, actor(ctx))
}

func (a *API) getPromotion(ctx context.Context, in *promotionIDInput) (*promotionOutput, error) {
	id, err := promotionID(in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Promotions.Get(ctx, id)
	return a.whole(ctx, v, err)
}

// whole answers with a promotion and its summaries.
func (a *API) whole(ctx context.Context, v store.PromotionView, err error) (*promotionOutput, error) {
	if err != nil {
		return nil, err
	}
	summaries, err := a.cfg.Promotions.Summaries(ctx, v.ID)
	if err != nil {
		return nil, err
	}
	p := a.promotionOf(v)
	for _, s := range summaries {
		p.Summaries = append(p.Summaries, &Summary{
			PromotionSummaryID: s.ID.String(), TotalCount: s.Total(), Counts: countsOf(&s.Counts),
			AmountSucceeded: int64(s.Amounts[reward.Succeeded]),
		})
	}
	return &promotionOutput{Body: p}, nil
}

func (a *API) deletePromotion(ctx context.Context, in *promotionIDInput) (*struct{}, error) {
	id, err := promotionID(in.ID)
	if err != nil {
		return nil, err
	}
	return nil, a.cfg.Promotions.Delete(ctx, id)
}

func (a *API) listPromotions(ctx context.Context, in *promotionListInput) (*promotionListOutput, error) {
	p := store.PromotionListParams{Limit: pageRead(in.Limit), Status: reward.PromotionStatus(in.Status)}
	if in.Cursor != "" {
		before, err := decodeCursor(cursorPromotions, in.Cursor)
		if err != nil {
			return nil, err
		}
		p.Before = reward.PromotionID(before)
	}
	views, err := a.cfg.Promotions.List(ctx, p)
	if err != nil {
		return nil, err
	}
	views, more := page(views, in.Limit)
	out := &promotionListOutput{}
	out.Body.Items = make([]*Promotion, len(views))
	for i, v := range views {
		out.Body.Items[i] = a.promotionOf(v)
	}
	if more {
		out.Body.NextCursor = encodeCursor(cursorPromotions, int64(views[len(views)-1].ID))
	}
	return out, nil
}
