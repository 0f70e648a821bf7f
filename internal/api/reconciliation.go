package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Reconciler compares the books of promotions on demand, and keeps the report.
type Reconciler interface {
	Run(ctx context.Context, cmd payout.ReconcileCommand) (payout.Reconciliation, error)
}

// CouponReconciler compares the gates of coupon templates with the rows on
// demand, and keeps the report.
type CouponReconciler interface {
	Run(ctx context.Context, cmd coupon.ReconcileCommand) (coupon.Reconciliation, error)
}

// Reconciliation is the report of one. Kept reports have this form too.
type Reconciliation struct {
	ID      string    `json:"id" doc:"A whole number as a string"`
	Checked int       `json:"checked" doc:"Promotions and coupon templates that were compared"`
	Drifts  []Drift   `json:"drifts" nullable:"false" doc:"Differences; none: the books balance"`
	Skipped []string  `json:"skipped,omitempty" doc:"What could not be compared, and why"`
	At      time.Time `json:"at"`
}

// Drift is a difference between two sides of the books.
type Drift struct {
	PromotionID string `json:"promotionId,omitempty" doc:"Of a promotion"`
	TemplateID  string `json:"templateId,omitempty" doc:"Of a coupon template"`
	What        string `json:"what" doc:"Of a promotion: counts.…, amounts.… or attempts: kept against the rows (store); stream: redis against the rows; charges.…: the provider against the rows. Of a template: live or issuedTotal: kept against its coupons (store); total, stock, count, issued_total, settled or user: redis against the rows" example:"counts.succeeded"`
	UserID      string `json:"userId,omitempty" doc:"Of user"`
	Store       *int64 `json:"store" doc:"What the rows say"`
	Redis       *int64 `json:"redis" doc:"What Redis says: the stream, or the gate; null where it is not a side"`
	Kept        *int64 `json:"kept,omitempty" doc:"The count that is kept beside the rows"`
	Provider    *int64 `json:"provider,omitempty" doc:"What the provider has charged"`
	Detail      string `json:"detail" doc:"The numbers in a sentence"`
	Repaired    bool   `json:"repaired"`
}

func reconciliationOf(r payout.Reconciliation) *Reconciliation {
	out := &Reconciliation{
		ID: strconv.FormatInt(r.ID, 10), Checked: r.Checked, Drifts: make([]Drift, len(r.Drifts)), Skipped: r.Skipped, At: r.At.UTC(),
	}
	for i, d := range r.Drifts {
		out.Drifts[i] = Drift{
			PromotionID: d.PromotionID.String(), What: d.What, Store: d.Store, Redis: d.Redis, Kept: d.Kept, Provider: d.Provider,
			Detail: d.Detail, Repaired: d.Repaired,
		}
	}
	return out
}

func couponReconciliationOf(r coupon.Reconciliation) *Reconciliation {
	out := &Reconciliation{
		ID: strconv.FormatInt(r.ID, 10), Checked: r.Checked, Drifts: make([]Drift, len(r.Drifts)), Skipped: r.Skipped, At: r.At.UTC(),
	}
	for i, d := range r.Drifts {
		out.Drifts[i] = Drift{
			TemplateID: d.TemplateID.String(), What: d.What, UserID: d.UserID, Store: d.Store, Redis: d.Redis, Kept: d.Kept,
			Detail: d.Detail, Repaired: d.Repaired,
		}
	}
	return out
}

// Reconcile is the body of POST /v1/reconciliations.
type Reconcile struct {
	PromotionID *wireID `json:"promotionId,omitempty" doc:"This promotion; without any id: all active promotions and templates"`
	TemplateID  *wireID `json:"templateId,omitempty" doc:"This coupon template"`
	All         bool    `json:"all,omitempty" doc:"All active ones, which is what absent ids mean too"`
	Repair      bool    `json:"repair,omitempty" doc:"Set kept counts to what the rows say, take entries out of streams whose dispatch is settled, and make gates say what the rows say; the rest is for people"`
}

// Resolve adds what the schema cannot say.
func (b *Reconcile) Resolve(huma.Context) []error {
	_, wrong := b.command()
	return fieldErrors(wrong)
}

// reconcileCommand is what to compare; nil = nothing of that kind.
type reconcileCommand struct {
	promotions *payout.ReconcileCommand
	coupons    *coupon.ReconcileCommand
}

func (b *Reconcile) command() (reconcileCommand, []reward.FieldError) {
	if b.PromotionID == nil && b.TemplateID == nil {
		return reconcileCommand{&payout.ReconcileCommand{Repair: b.Repair}, &coupon.ReconcileCommand{Repair: b.Repair}}, nil
	}
	var cmd reconcileCommand
	var wrong []reward.FieldError
	if b.All {
		wrong = append(wrong, reward.FieldError{Field: "all", Detail: "excludes promotionId and templateId; give one of them"})
	}
	if b.PromotionID != nil {
		id, err := reward.ParsePromotionID(string(*b.PromotionID))
		if err != nil {
			wrong = append(wrong, reward.FieldError{Field: "promotionId", Detail: err.Error()})
		}
		cmd.promotions = &payout.ReconcileCommand{PromotionID: &id, Repair: b.Repair}
	}
	if b.TemplateID != nil {
		id, err := reward.ParseTemplateID(string(*b.TemplateID))
		if err != nil {
			wrong = append(wrong, reward.FieldError{Field: "templateId", Detail: err.Error()})
		}
		cmd.coupons = &coupon.ReconcileCommand{TemplateID: &id, Repair: b.Repair}
	}
	return cmd, wrong
}

type reconcileInput struct {
	Body Reconcile
}

type reconciliationIDInput struct {
	ID string `path:"id" doc:"Reconciliation id"`
}

type reconciliationOutput struct {
	Body *Reconciliation
}

type reconciledOutput struct {
	Location string `header:"Location" doc:"Path of the report, relative to that of the request"`
	Body     *Reconciliation
}

func (a *API) addReconciliations() {
	const path = "/v1/reconciliations"
	tags := []string{"reconciliations"}
	call(a, huma.Operation{
		OperationID: "reconcile", Method: http.MethodPost, Path: path, Tags: tags,
		Summary: "Compare the books: counts, streams and the provider's charges with rows, and the gates of coupons with rows", DefaultStatus: http.StatusCreated,
		Description: "What of a promotion may be a matter of the moment is looked at twice, 10 s apart, so it takes so long when anything differs. A running promotion that the provider has charged otherwise than the rows say is paused.",
	}, a.reconcile)
	call(a, huma.Operation{
		OperationID: "get-reconciliation", Method: http.MethodGet, Path: path + "/{id}", Tags: tags,
		Summary: "Show an earlier reconciliation",
	}, a.getReconciliation)
}

func (a *API) reconcile(ctx context.Context, in *reconcileInput) (*reconciledOutput, error) {
	cmd, wrong := in.Body.command()
	if len(wrong) > 0 {
		return nil, web.Invalid(wrong[0].Field, wrong[0].Detail)
	}
	report, err := a.runReconciliation(ctx, cmd)
	if err != nil {
		return nil, err
	}
	a.log.Info(obs.Processed, "reconciliation", report.ID, "drifts", len(report.Drifts), "repair", in.Body.Repair, "by", actor(ctx))
	return &reconciledOutput{Location: "reconciliations/" + report.ID, Body: report}, nil
}

// runReconciliation compares one kind after the other. Two reports become one,
// which takes the place of the first.
func (a *API) runReconciliation(ctx context.Context, cmd reconcileCommand) (*Reconciliation, error) {
	var report *Reconciliation
	if cmd.promotions != nil {
		r, err := a.cfg.Reconciler.Run(ctx, *cmd.promotions)
		if err != nil {
			return nil, err
		}
		report = reconciliationOf(r)
	}
	if cmd.coupons == nil {
		return report, nil
	}
	r, err := a.cfg.CouponReconciler.Run(ctx, *cmd.coupons)
	if err != nil {
		return nil, err
	}
	coupons := couponReconciliationOf(r)
	if report == nil {
		return coupons, nil
	}
	report.Checked += coupons.Checked
	report.Drifts = append(report.Drifts, coupons.Drifts...)
	report.Skipped = append(report.Skipped, coupons.Skipped...)
	report.At = coupons.At
	return report, a.keepReconciliation(ctx, report)
}

func (a *API) keepReconciliation(ctx context.Context, report *Reconciliation) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	id, err := web.IDOf("reconciliation", report.ID)
	if err != nil {
		return err
	}
	return a.cfg.Rows.ReconciliationSave(ctx, store.Reconciliation{ID: id, Report: text, At: report.At})
}

func (a *API) getReconciliation(ctx context.Context, in *reconciliationIDInput) (*reconciliationOutput, error) {
	id, err := web.IDOf("reconciliation", in.ID)
	if err != nil {
		return nil, web.Malformed("id", err.Error())
	}
	kept, err := a.cfg.Rows.ReconciliationGet(ctx, id)
	if err != nil {
		return nil, err
	}
	report := &Reconciliation{}
	if err := json.Unmarshal(kept.Report, report); err != nil {
		return nil, fmt.Errorf("reconciliation %d cannot be read: %w", id, err)
	}
	if report.Drifts == nil {
		report.Drifts = []Drift{}
	}
	return &reconciliationOutput{Body: report}, nil
}
