package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/reward"
)

// Reconciler compares the books on demand.
type Reconciler interface {
	Run(ctx context.Context, cmd payout.ReconcileCommand) (payout.Reconciliation, error)
	Get(ctx context.Context, id int64) (payout.Reconciliation, error)
}

// Reconciliation is the report of one.
type Reconciliation struct {
	ID      string    `json:"id" doc:"A whole number as a string"`
	Checked int       `json:"checked" doc:"Promotions that were compared"`
	Drifts  []Drift   `json:"drifts" nullable:"false" doc:"Differences; none: the books balance"`
	Skipped []string  `json:"skipped,omitempty" doc:"What could not be compared, and why"`
	At      time.Time `json:"at"`
}

// Drift is a difference between two sides of the books.
type Drift struct {
	PromotionID string `json:"promotionId"`
	What        string `json:"what" doc:"counts.…, amounts.… or attempts: kept against the rows (store); stream: redis against the rows; charges.…: the provider against the rows" example:"counts.succeeded"`
	Store       *int64 `json:"store" doc:"What the rows say"`
	Redis       *int64 `json:"redis" doc:"What the stream says; null where it is not a side"`
	Kept        *int64 `json:"kept,omitempty" doc:"The count that is kept beside the rows"`
	Provider    *int64 `json:"provider,omitempty" doc:"What the provider has charged"`
	Detail      string `json:"detail" doc:"The numbers in a sentence"`
	Repaired    bool   `json:"repaired"`
}

func reconciliationOf(r payout.Reconciliation) Reconciliation {
	out := Reconciliation{
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

// Reconcile is the body of POST /v1/reconciliations.
type Reconcile struct {
	PromotionID *wireID `json:"promotionId,omitempty" doc:"This promotion; absent: all active ones"`
	TemplateID  *wireID `json:"templateId,omitempty" doc:"Coupons are not there yet"`
	All         bool    `json:"all,omitempty" doc:"All active promotions, which is what absent ids mean too"`
	Repair      bool    `json:"repair,omitempty" doc:"Set kept counts to what the rows say, and take entries out of streams whose dispatch is settled; the rest is for people"`
}

// Resolve adds what the schema cannot say.
func (b *Reconcile) Resolve(huma.Context) []error {
	_, wrong := b.command()
	errs := make([]error, len(wrong))
	for i, f := range wrong {
		errs[i] = &huma.ErrorDetail{Location: "body." + f.Field, Message: f.Detail}
	}
	return errs
}

func (b *Reconcile) command() (payout.ReconcileCommand, []reward.FieldError) {
	cmd := payout.ReconcileCommand{Repair: b.Repair}
	var wrong []reward.FieldError
	if b.TemplateID != nil {
		wrong = append(wrong, reward.FieldError{Field: "templateId", Detail: "coupons are not there yet; name a promotion by promotionId"})
	}
	if b.PromotionID == nil {
		return cmd, wrong
	}
	if b.All {
		wrong = append(wrong, reward.FieldError{Field: "all", Detail: "excludes promotionId; give one of them"})
	}
	id, err := reward.ParsePromotionID(string(*b.PromotionID))
	if err != nil {
		wrong = append(wrong, reward.FieldError{Field: "promotionId", Detail: err.Error()})
	}
	cmd.PromotionID = &id
	return cmd, wrong
}

type reconcileInput struct {
	Body Reconcile
}

type reconciliationIDInput struct {
	ID string `path:"id" doc:"Reconciliation id"`
}

type reconciliationOutput struct {
	Body Reconciliation
}

type reconciledOutput struct {
	Location string `header:"Location" doc:"Path of the report"`
	Body     Reconciliation
}

func (a *API) addReconciliations() {
	const path = "/v1/reconciliations"
	tags := []string{"reconciliations"}
	call(a, huma.Operation{
		OperationID: "reconcile", Method: http.MethodPost, Path: path, Tags: tags,
		Summary: "Compare the books: counts with rows, streams with rows, the provider's charges with rows", DefaultStatus: http.StatusCreated,
		Description: "What may be a matter of the moment is looked at twice, 10 s apart, so it takes so long when anything differs. A running promotion that the provider has charged otherwise than the rows say is paused.",
		Errors:      []int{http.StatusBadRequest, http.StatusNotFound, http.StatusUnsupportedMediaType},
	}, a.reconcile)
	call(a, huma.Operation{
		OperationID: "get-reconciliation", Method: http.MethodGet, Path: path + "/{id}", Tags: tags,
		Summary: "Show an earlier reconciliation", Errors: []int{http.StatusBadRequest, http.StatusNotFound},
	}, a.getReconciliation)
}

func (a *API) reconcile(ctx context.Context, in *reconcileInput) (*reconciledOutput, error) {
	cmd, wrong := in.Body.command()
	if len(wrong) > 0 {
		return nil, invalid(wrong[0].Field, wrong[0].Detail)
	}
	r, err := a.cfg.Reconciler.Run(ctx, cmd)
	if err != nil {
		return nil, err
	}
	a.log.Info(obs.Processed, "reconciliation", r.ID, "drifts", len(r.Drifts), "repair", cmd.Repair, "by", actor(ctx))
	out := reconciliationOf(r)
	return &reconciledOutput{Location: "/v1/reconciliations/" + out.ID, Body: out}, nil
}

func (a *API) getReconciliation(ctx context.Context, in *reconciliationIDInput) (*reconciliationOutput, error) {
	id, err := strconv.ParseInt(in.ID, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != in.ID {
		return nil, malformed("id", fmt.Sprintf("%s is no reconciliation's id: that is a whole number from 1", reward.Quote(in.ID)))
	}
	r, err := a.cfg.Reconciler.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &reconciliationOutput{Body: reconciliationOf(r)}, nil
}
