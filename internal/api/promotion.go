package api

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
	"github.com/largesse/largesse/internal/webhook"
)

func countsOf(c *reward.Counts) client.Counts {
	return client.Counts{
		Ready: c.Payouts[reward.Ready], Queued: c.Payouts[reward.Queued], Retrying: c.Payouts[reward.Retrying],
		Unknown: c.Payouts[reward.Unknown], Succeeded: c.Payouts[reward.Succeeded],
		Failed: c.Payouts[reward.Failed], Cancelled: c.Payouts[reward.Cancelled],
	}
}

// promotionFor returns a promotion as the caller may see it. The URL of a receiver is
// often all that proves a call to it, so who cannot set it does not see its secret parts,
// nor the voucher code.
func (a *API) promotionFor(ctx context.Context, v store.PromotionView) *client.Promotion {
	if slices.Contains(campaigners, callerOf(ctx).Role) {
		return a.promotionOf(v)
	}
	return a.promotionForAll(v)
}

// promotionForAll returns a promotion as every caller may see it.
func (a *API) promotionForAll(v store.PromotionView) *client.Promotion {
	p := a.promotionOf(v)
	p.WebhookURL, p.VoucherCode = webhook.MaskURL(p.WebhookURL), reward.MaskCode(p.VoucherCode)
	return p
}

// actorLargesse is who pauses promotions automatically.
const actorLargesse = "largesse"

func (a *API) promotionOf(v store.PromotionView) *client.Promotion {
	awaits := rules.AwaitsApproval(v.Promotion, v.Counts, a.cfg.ApprovalAbove)
	p := &client.Promotion{
		ID: v.ID.String(), Name: v.Name, Type: string(v.Type), Status: string(v.Status), Amount: int64(v.Amount),
		VoucherCode: v.VoucherCode, Currency: v.Currency, MaxRetries: v.MaxRetries, ConsumersPerInstance: v.ConsumersPerInstance, Closed: v.Closed,
		RatePerSecond: v.RatePerSecond, Weight: v.Weight, MaxAmount: int64(v.MaxAmount), StartsAt: timeOf(v.StartsAt), EndsAt: timeOf(v.EndsAt), WebhookURL: v.WebhookURL,
		Metadata: v.Metadata.Map(), Notes: v.Notes, CreatedBy: v.CreatedBy, ApprovedBy: v.ApprovedBy, AwaitingApproval: awaits, ApprovalAsked: awaits && v.AskedRevision == v.Revision, StartsEarly: !awaits && rules.StartsEarly(v.Promotion, v.Counts, a.cfg.ApprovalAbove, time.Now()),
		RejectedBy: v.RejectedBy, RejectReason: v.RejectReason,
		TotalCount: v.Counts.Total(), ExpectedCount: v.ExpectedCount, Counts: countsOf(&v.Counts),
		AmountTotal: int64(v.Counts.AmountTotal()), AmountSucceeded: int64(v.Counts.Amounts[reward.Succeeded]),
		PausedBy: v.PausedBy, PausedAt: timeOf(v.PausedAt), PauseReason: v.PauseReason, PauseCause: reward.PauseCause(&v.Promotion), CancelledBy: v.CancelledBy, CancelledAt: timeOf(v.CancelledAt), ETASeconds: a.rates.seconds(v, time.Now()),
		CreatedAt: v.CreatedAt.UTC(), StartedAt: timeOf(v.StartedAt), FinishedAt: timeOf(v.FinishedAt), ArchivedAt: timeOf(v.ArchivedAt),
	}
	if v.Status == reward.Paused {
		p.PausedBy = cmp.Or(v.PausedBy, actorLargesse)
	}
	if v.ApprovedBy != "" {
		p.ApprovedAmount, p.ApprovedCount = new(int64(v.Approval.Amount)), new(v.Approval.Count)
	}
	if c := v.Canary; c.Targets > 0 {
		p.Canary = &client.Canary{Targets: c.Targets, MaxFailureRate: c.MaxFailureRate, Dispatched: c.Dispatched, Judged: c.Judged}
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
		OneOf:      []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeInteger}},
		Extensions: map[string]any{"oneOf": anyID()},
	}
}

func anyID() []*huma.Schema {
	return []*huma.Schema{refTo(schemaID), {Type: huma.TypeInteger, Minimum: new(1.0), ExclusiveMaximum: new(math.Exp2(63))}}
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
	ID                   *wireID           `json:"id,omitempty" doc:"Absent: a new ID. Completes a DRAFT that Kafka records registered"`
	Name                 string            `json:"name" minLength:"1" maxLength:"200"`
	Type                 string            `json:"type" enum:"POINT,VOUCHER"`
	Amount               *int64            `json:"amount,omitempty" maximum:"1000000000000000" doc:"Default of its targets; POINT: at least 1, VOUCHER: 0"`
	VoucherCode          string            `json:"voucherCode,omitempty" maxLength:"200" doc:"Default of its targets; only for VOUCHER"`
	Currency             string            `json:"currency,omitempty" example:"EUR"`
	MaxRetries           *int              `json:"maxRetries,omitempty" minimum:"0" maximum:"20" doc:"After the first call; absent: 5"`
	ConsumersPerInstance *int              `json:"consumersPerInstance,omitempty" minimum:"1" maximum:"256" doc:"Absent: by the number of targets"`
	RatePerSecond        *int              `json:"ratePerSecond,omitempty" minimum:"1" maximum:"1000000" doc:"Calls of all instances together"`
	Weight               *int              `json:"weight,omitempty" minimum:"1" maximum:"100" doc:"Share of calls, relative to others; absent: 1"`
	MaxAmount            *int64            `json:"maxAmount,omitempty" minimum:"1" doc:"Budget; no payout that could exceed it is dispatched; may exceed 2^53"`
	Canary               *CreateCanary     `json:"canary,omitempty"`
	StartsAt             *time.Time        `json:"startsAt,omitempty" doc:"Automatic start, in the future"`
	EndsAt               *time.Time        `json:"endsAt,omitempty" doc:"No charge from then on; after startsAt, in the future"`
	WebhookURL           string            `json:"webhookUrl,omitempty" maxLength:"2000" doc:"Called when it ends or Largesse pauses it; needs webhook.secret"`
	Metadata             map[string]string `json:"metadata,omitempty" maxProperties:"20" doc:"Keys and values: at most 200 characters"`
	Notes                string            `json:"notes,omitempty" maxLength:"4000"`
}

// CreateCanary is the canary of a new or changed promotion.
type CreateCanary struct {
	Targets        int64    `json:"targets" minimum:"1"`
	MaxFailureRate *float64 `json:"maxFailureRate,omitempty" minimum:"0" maximum:"1" doc:"Share of FAILED above which it pauses; absent: 0.5"`
}

// forAudit returns the body without the secret parts of the URL and the voucher code.
func (b CreatePromotion) forAudit() any {
	b.WebhookURL, b.VoucherCode = webhook.MaskURL(b.WebhookURL), reward.MaskCode(b.VoucherCode)
	return b
}

// Resolve checks what the schema cannot express, so that one response names all
// invalid fields.
func (b *CreatePromotion) Resolve(huma.Context) []error {
	cmd, wrong := b.command()
	// createPromotion checks that startsAt and endsAt are in the future: a later repeat
	// under the same idempotency key must get the same response.
	return fieldErrors(append(wrong, cmd.Check(time.Time{})...))
}

func (b *CreatePromotion) command() (campaign.CreateCommand, []reward.FieldError) {
	cmd := campaign.CreateCommand{
		PromotionChange: rules.PromotionChange{
			Name: &b.Name, Amount: (*reward.Amount)(b.Amount), VoucherCode: &b.VoucherCode, Currency: &b.Currency, MaxRetries: b.MaxRetries,
			RatePerSecond: b.RatePerSecond, Weight: b.Weight, MaxAmount: (*reward.Amount)(b.MaxAmount), Canary: b.Canary.canary(),
			StartsAt: b.StartsAt, EndsAt: b.EndsAt, Notes: &b.Notes, Metadata: new(make(reward.MetadataChange, len(b.Metadata))),
		},
		Type: b.Type, WebhookURL: b.WebhookURL,
	}
	assign(&cmd.ConsumersPerInstance, b.ConsumersPerInstance)
	for key, value := range b.Metadata {
		(*cmd.Metadata)[key] = &value
	}
	if b.ID == nil {
		return cmd, nil
	}
	var err error
	if cmd.ID, err = reward.ParsePromotionID(string(*b.ID)); err != nil {
		return cmd, []reward.FieldError{{Field: "id", Detail: err.Error()}}
	}
	return cmd, nil
}

// canary returns the canary, or nil if there is none.
func (c *CreateCanary) canary() *reward.Canary {
	if c == nil {
		return nil
	}
	canary := &reward.Canary{Targets: c.Targets}
	if c.Targets > 0 {
		canary.MaxFailureRate = campaign.CanaryMaxFailureRate
	}
	assign(&canary.MaxFailureRate, c.MaxFailureRate)
	return canary
}

// PromotionPath is the path of what belongs to a promotion.
type PromotionPath struct {
	ID string `path:"id" doc:"Promotion ID"`

	id reward.PromotionID
}

func (p *PromotionPath) parsePath(context.Context) (err error) {
	p.id, err = promotionID(p.ID)
	return err
}

func promotionID(s string) (reward.PromotionID, error) {
	id, err := reward.ParsePromotionID(s)
	if err != nil {
		return 0, web.Malformed("id", err.Error())
	}
	return id, nil
}

type promotionOutput struct {
	ETag string `header:"ETag" doc:"For If-Match"`
	Body *client.Promotion
}

type promotionCreatedOutput struct {
	Location string `header:"Location" doc:"Path of the new object"`
	ETag     string `header:"ETag" doc:"For If-Match"`
	Body     *client.Promotion
}

func (a *API) addPromotions() {
	const path = "/v1/promotions"
	const tag = "promotions"
	call(a, operation{
		id: "create-promotion", method: http.MethodPost, path: path, tag: tag, roles: campaigners, creates: true,
		summary: "Create a promotion", status: http.StatusCreated,
		errors:  []string{reward.CodeExists, reward.CodeTypeMismatch},
		example: tree{"name": "Spring", "type": "POINT", "amount": 1000, "currency": "EUR"},
	}, a.createPromotion)
	call(a, operation{
		id: "get-promotion", method: http.MethodGet, path: path + "/{id}", tag: tag, roles: readers,
		summary: "Get a promotion",
		errors:  []string{reward.CodeNotFound},
	}, a.getPromotion)
	call(a, operation{
		id: "delete-promotion", method: http.MethodDelete, path: path + "/{id}", tag: tag, roles: campaigners,
		summary: "Delete a DRAFT and its targets", status: http.StatusNoContent,
		errors: promotionMoves,
	}, a.deletePromotion)
	needsApproval := []string{campaign.CodeApprovalNeeded}
	for _, act := range []struct {
		name, summary string
		errors        []string
		do            func(context.Context, reward.PromotionID) (store.PromotionView, error)
	}{
		{"start", "Start a promotion", needsApproval, a.cfg.Promotions.Start},
		{"resume", "Resume a promotion", needsApproval, a.cfg.Promotions.Resume},
		{"cancel", "Cancel a promotion", nil, func(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
			return a.cfg.Promotions.Cancel(ctx, id, actor(ctx))
		}},
		{"close", "Close a promotion", nil, a.cfg.Promotions.Close},
	} {
		call(a, operation{
			id: act.name + "-promotion", method: http.MethodPost, path: path + "/{id}/" + act.name, tag: tag, roles: campaigners,
			summary: act.summary, status: http.StatusAccepted,
			errors: slices.Concat(act.errors, promotionMoves),
		}, func(ctx context.Context, in *PromotionPath) (*promotionOutput, error) {
			v, err := act.do(ctx, in.id)
			return a.withSummaries(ctx, v, err)
		})
	}
	call(a, operation{
		id: "pause-promotion", method: http.MethodPost, path: path + "/{id}/pause", tag: tag, roles: campaigners,
		summary: "Pause a promotion", status: http.StatusAccepted,
		errors: promotionMoves, example: tree{"reason": "the shop is closed"},
	}, a.pausePromotion)
}

// PausePromotion is the body of POST /v1/promotions/{id}/pause, which may be absent.
type PausePromotion struct {
	Reason string `json:"reason,omitempty" maxLength:"1000" doc:"Becomes pauseReason"`
}

type promotionPauseInput struct {
	PromotionPath
	Body *PausePromotion
}

func (a *API) pausePromotion(ctx context.Context, in *promotionPauseInput) (*promotionOutput, error) {
	var body PausePromotion
	assign(&body, in.Body)
	v, err := a.cfg.Promotions.Pause(ctx, in.id, actor(ctx), body.Reason)
	return a.withSummaries(ctx, v, err)
}

func (a *API) createPromotion(ctx context.Context, in *struct{ Body CreatePromotion }) (*promotionCreatedOutput, error) {
	cmd, wrong := in.Body.command()
	if len(wrong) > 0 {
		return nil, web.Invalid(wrong[0].Field, wrong[0].Detail)
	}
	v, err := a.create(ctx, cmd)
	return a.createdPromotion(ctx, v, err)
}

// create creates a promotion for the caller, once per idempotency key.
func (a *API) create(ctx context.Context, cmd campaign.CreateCommand) (store.PromotionView, error) {
	cmd.By = actor(ctx)
	claim := claimOf(ctx)
	if claim != nil && cmd.ID == 0 {
		cmd.ID = reward.PromotionID(claim.ID)
	}
	v, err := a.cfg.Promotions.Create(ctx, cmd)
	if claim != nil && claim.Again && reward.HasCode(err, reward.CodeExists) {
		v, err = a.createdBefore(ctx, cmd, err)
	}
	return v, err
}

func (a *API) createdPromotion(ctx context.Context, v store.PromotionView, err error) (*promotionCreatedOutput, error) {
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
	v, err := a.cfg.Rows.PromotionGet(ctx, cmd.ID)
	if err == nil && (v.CreatedBy != actor(ctx) || v.Name != *cmd.Name) {
		err = exists
	}
	return v, err
}

func (a *API) getPromotion(ctx context.Context, in *PromotionPath) (*promotionOutput, error) {
	v, err := a.cfg.Rows.PromotionGet(ctx, in.id)
	return a.withSummaries(ctx, v, err)
}

func (a *API) withSummaries(ctx context.Context, v store.PromotionView, err error) (*promotionOutput, error) {
	if err != nil {
		return nil, err
	}
	summaries, err := a.cfg.Rows.SummaryList(ctx, v.ID, store.BatchMax)
	if err != nil {
		return nil, err
	}
	p := a.promotionFor(ctx, v)
	for _, s := range summaries {
		p.Summaries = append(p.Summaries, client.Summary{
			PromotionSummaryID: s.ID.String(), TotalCount: s.Total(), Counts: countsOf(&s.Counts),
			AmountSucceeded: int64(s.Amounts[reward.Succeeded]),
		})
	}
	return &promotionOutput{ETag: promotionTag(v), Body: p}, nil
}

func (a *API) deletePromotion(ctx context.Context, in *PromotionPath) (*struct{}, error) {
	return nil, a.cfg.Promotions.Delete(ctx, in.id)
}
