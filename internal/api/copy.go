package api

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
)

// DuplicatePromotion is the body of POST /v1/promotions/{id}/duplicate.
type DuplicatePromotion struct {
	Name string `json:"name,omitempty" maxLength:"200" doc:"Absent: its name, then (copy)"`
}

type promotionDuplicateInput struct {
	PromotionPath
	Body DuplicatePromotion
}

// DuplicateTemplate is the body of POST /v1/coupon-templates/{id}/duplicate.
type DuplicateTemplate struct {
	Name    string     `json:"name,omitempty" maxLength:"200" doc:"Absent: its name, then (copy)"`
	OpensAt *time.Time `json:"opensAt,omitempty" doc:"Absent: in 30 days. closesAt and the draw keep their distance to it"`
}

type templateDuplicateInput struct {
	TemplatePath
	Body DuplicateTemplate
}

// TestPayment is the body of POST /v1/promotions/{id}/test-payment.
type TestPayment struct {
	TargetID    string `json:"targetId,omitempty" doc:"Absent: 1"`
	UserID      string `json:"userId" minLength:"1"`
	Amount      *int64 `json:"amount,omitempty" minimum:"0" maximum:"1000000000000000" doc:"Absent: that of the promotion"`
	VoucherCode string `json:"voucherCode,omitempty" maxLength:"200" doc:"Absent: that of the promotion"`
}

func (b TestPayment) forAudit() any {
	b.VoucherCode = reward.MaskCode(b.VoucherCode)
	return b
}

type testPaymentInput struct {
	PromotionPath
	Body TestPayment
}

func (a *API) addCopies() {
	call(a, operation{
		id: "duplicate-promotion", method: http.MethodPost, path: "/v1/promotions/{id}/duplicate", tag: "promotions", roles: campaigners, creates: true,
		summary: "Create a DRAFT with the settings of a promotion", status: http.StatusCreated,
		description: "Without its targets, approvals, times and notes.",
		errors:      []string{reward.CodeNotFound},
		example:     tree{"name": "Summer"},
	}, a.duplicatePromotion)
	call(a, operation{
		id: "pay-test", method: http.MethodPost, path: "/v1/promotions/{id}/test-payment", tag: "promotions", roles: campaigners, creates: true,
		summary: "Pay one person with the settings of a promotion", status: http.StatusCreated,
		description: "Creates and starts a promotion of its own, which has metadata.testOf. If that needs an approval, it waits as a DRAFT.",
		errors:      []string{reward.CodeNotFound},
		example:     tree{"userId": "u7"},
	}, a.payTest)
	call(a, operation{
		id: "duplicate-template", method: http.MethodPost, path: "/v1/coupon-templates/{id}/duplicate", tag: "coupon templates", roles: campaigners, creates: true,
		summary: "Create a template with the settings of another one", status: http.StatusCreated,
		description: "Without its coupons, imported codes and notes.",
		errors:      []string{reward.CodeTemplateNotFound},
		example:     tree{"opensAt": "2026-12-24T18:00:00Z"},
	}, a.duplicateTemplate)
}

func (a *API) duplicatePromotion(ctx context.Context, in *promotionDuplicateInput) (*promotionCreatedOutput, error) {
	cmd, err := a.cfg.Promotions.CopyOf(ctx, in.id, in.Body.Name)
	if err != nil {
		return nil, err
	}
	v, err := a.create(ctx, cmd)
	return a.createdPromotion(ctx, v, err)
}

// payTest creates, fills and starts a promotion. If the process dies in between, a DRAFT is
// left, which pays nothing; a repeat with the same idempotency key continues with it.
func (a *API) payTest(ctx context.Context, in *testPaymentInput) (*promotionCreatedOutput, error) {
	cmd, line, err := a.cfg.Promotions.TestOf(ctx, in.id, campaign.TestPayment{
		TargetID: cmp.Or(in.Body.TargetID, "1"), UserID: in.Body.UserID, Amount: in.Body.Amount, VoucherCode: in.Body.VoucherCode,
	})
	if err != nil {
		return nil, err
	}
	v, err := a.create(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if _, err := a.cfg.Uploads.Upload(ctx, campaign.UploadCommand{
		PromotionID: v.ID, Body: bytes.NewReader(line), File: campaign.File{Format: campaign.FormatNDJSON, Units: campaign.MinorUnits}, By: actor(ctx),
	}); err != nil {
		return nil, err
	}
	if v.Status == reward.Draft {
		id := v.ID
		if v, err = a.cfg.Promotions.Start(ctx, id); reward.HasCode(err, campaign.CodeApprovalNeeded) {
			v, err = a.cfg.Rows.PromotionGet(ctx, id)
		}
	}
	return a.createdPromotion(ctx, v, err)
}

func (a *API) duplicateTemplate(ctx context.Context, in *templateDuplicateInput) (*templateCreatedOutput, error) {
	t, err := a.cfg.Templates.CopyOf(ctx, in.id, in.Body.Name, in.Body.OpensAt)
	if err != nil {
		return nil, err
	}
	return a.createTemplateOf(ctx, t)
}
