package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/books"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Reconciler compares the books of promotions on demand, and stores the report.
type Reconciler interface {
	Run(ctx context.Context, cmd books.ReconcileCommand) (store.ReconciliationReport, error)
}

// CouponReconciler compares the gates of coupon templates with the database rows on
// demand, and stores the report.
type CouponReconciler interface {
	Run(ctx context.Context, cmd gatekeeper.ReconcileCommand) (store.ReconciliationReport, error)
}

// reconciliationOf returns a stored report.
func reconciliationOf(stored store.Reconciliation) (*client.Reconciliation, error) {
	report := &client.Reconciliation{}
	if err := json.Unmarshal(stored.Report, report); err != nil {
		return nil, fmt.Errorf("decoding reconciliation %d failed: %w", stored.ID, err)
	}
	if report.Drifts == nil {
		report.Drifts = []client.Drift{}
	}
	return report, nil
}

// Reconcile is the body of POST /v1/reconciliations.
type Reconcile struct {
	PromotionID *wireID `json:"promotionId,omitempty"`
	TemplateID  *wireID `json:"templateId,omitempty" doc:"Not with promotionId"`
	All         bool    `json:"all,omitempty" doc:"The default without IDs"`
	Repair      bool    `json:"repair,omitempty" doc:"Corrects stored counts, gates and streams; other differences need a person"`
}

// Resolve checks what the schema cannot express.
func (b *Reconcile) Resolve(huma.Context) []error {
	_, wrong := b.command()
	return fieldErrors(wrong)
}

// reconcileCommand selects what to compare. Nil means nothing of that kind.
type reconcileCommand struct {
	promotions *books.ReconcileCommand
	coupons    *gatekeeper.ReconcileCommand
}

func (b *Reconcile) command() (reconcileCommand, []reward.FieldError) {
	if b.PromotionID == nil && b.TemplateID == nil {
		return reconcileCommand{&books.ReconcileCommand{Repair: b.Repair}, &gatekeeper.ReconcileCommand{Repair: b.Repair}}, nil
	}
	var cmd reconcileCommand
	var wrong []reward.FieldError
	if b.PromotionID != nil && b.TemplateID != nil {
		wrong = append(wrong, reward.FieldError{Field: "templateId", Detail: "cannot be combined with promotionId; send one request for each, or none of them to compare everything"})
	}
	if b.All {
		wrong = append(wrong, reward.FieldError{Field: "all", Detail: "cannot be combined with promotionId or templateId; set one of them"})
	}
	if b.PromotionID != nil {
		id, err := reward.ParsePromotionID(string(*b.PromotionID))
		if err != nil {
			wrong = append(wrong, reward.FieldError{Field: "promotionId", Detail: err.Error()})
		}
		cmd.promotions = &books.ReconcileCommand{PromotionID: &id, Repair: b.Repair}
	}
	if b.TemplateID != nil {
		id, err := reward.ParseTemplateID(string(*b.TemplateID))
		if err != nil {
			wrong = append(wrong, reward.FieldError{Field: "templateId", Detail: err.Error()})
		}
		cmd.coupons = &gatekeeper.ReconcileCommand{TemplateID: &id, Repair: b.Repair}
	}
	return cmd, wrong
}

type reconcileInput struct {
	Body Reconcile
}

type reconciliationIDInput struct {
	ID string `path:"id" doc:"Reconciliation ID"`
}

type reconciledOutput struct {
	Location string `header:"Location" doc:"Path of the new object"`
	Body     *client.Reconciliation
}

func (a *API) addReconciliations() {
	const path = "/v1/reconciliations"
	const tag = "reconciliations"
	call(a, operation{
		id: "reconcile", method: http.MethodPost, path: path, tag: tag, roles: operators, creates: true,
		summary: "Compare stored counts, streams, provider and gates with the rows", status: http.StatusCreated,
		description: "Pauses a promotion whose charges differ at the provider.",
		errors:      []string{reward.CodeNotFound, reward.CodeTemplateNotFound},
		example:     tree{"promotionId": "12345"},
	}, a.reconcile)
	call(a, operation{
		id: "list-reconciliations", method: http.MethodGet, path: path, tag: tag, roles: readers,
		summary: "List reconciliations",
	}, a.listReconciliations)
	call(a, operation{
		id: "get-reconciliation", method: http.MethodGet, path: path + "/{id}", tag: tag, roles: readers,
		summary: "Get a reconciliation",
		errors:  []string{reward.CodeReconciliationNotFound},
	}, a.getReconciliation)
}

func (a *API) reconcile(ctx context.Context, in *reconcileInput) (*reconciledOutput, error) {
	cmd, wrong := in.Body.command()
	if len(wrong) > 0 {
		return nil, web.Invalid(wrong[0].Field, wrong[0].Detail)
	}
	row, err := a.runReconciliation(ctx, cmd)
	if err != nil {
		return nil, err
	}
	report, err := reconciliationOf(row)
	if err != nil {
		return nil, err
	}
	a.log.Info("reconciliation finished", "reconciliation", report.ID, "drifts", len(report.Drifts), "repair", in.Body.Repair, "actor", actor(ctx))
	return &reconciledOutput{Location: web.Location(ctx, "/v1/reconciliations/"+report.ID), Body: report}, nil
}

// runReconciliation compares promotions, and then templates. It merges two reports
// into one, which replaces the first.
func (a *API) runReconciliation(ctx context.Context, cmd reconcileCommand) (row store.Reconciliation, err error) {
	var report store.ReconciliationReport
	if cmd.promotions != nil {
		if report, err = a.cfg.Reconciler.Run(ctx, *cmd.promotions); err != nil {
			return row, err
		}
	}
	if cmd.coupons != nil {
		coupons, err := a.cfg.CouponReconciler.Run(ctx, *cmd.coupons)
		if err != nil {
			return row, err
		}
		if cmd.promotions == nil {
			return coupons.Row()
		}
		report.Checked += coupons.Checked
		report.Drifts = append(report.Drifts, coupons.Drifts...)
		report.Skipped = append(report.Skipped, coupons.Skipped...)
		report.At = coupons.At
	}
	if row, err = report.Row(); err == nil && cmd.coupons != nil {
		err = a.cfg.Rows.ReconciliationSave(ctx, row)
	}
	return row, err
}

func (a *API) getReconciliation(ctx context.Context, in *reconciliationIDInput) (*output[*client.Reconciliation], error) {
	id, err := web.IDOf("reconciliation", in.ID)
	if err != nil {
		return nil, web.Malformed("id", err.Error())
	}
	stored, err := a.cfg.Rows.ReconciliationGet(ctx, id)
	if err != nil {
		return nil, err
	}
	return outputOf(reconciliationOf(stored))
}

func (a *API) listReconciliations(ctx context.Context, in *PageInput) (*output[listOf[client.ReconciliationSummary]], error) {
	read := func(before int64, limit int) ([]store.Reconciliation, error) {
		return a.cfg.Rows.ReconciliationList(ctx, before, limit)
	}
	show := func(r store.Reconciliation) client.ReconciliationSummary {
		out := client.ReconciliationSummary{ID: strconv.FormatInt(r.ID, 10), At: r.At.UTC()}
		if r.Checked >= 0 {
			out.Checked, out.Drifts, out.Repaired = &r.Checked, &r.Drifts, &r.Repaired
		}
		return out
	}
	return pageByID(*in, cursorReconciliations, read, show, func(r store.Reconciliation) int64 { return r.ID })
}
