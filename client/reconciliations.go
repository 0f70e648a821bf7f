package client

import (
	"context"
	"net/http"
	"time"
)

// Reconciliation is the report of one comparison of the books.
type Reconciliation struct {
	ID      string    `json:"id"`
	Checked int64     `json:"checked"` // number of promotions and templates compared
	Drifts  []Drift   `json:"drifts" nullable:"false" doc:"Empty: the books balance"`
	Skipped []string  `json:"skipped,omitempty" doc:"Failed comparisons"`
	At      time.Time `json:"at"`
}

// Left returns the number of drifts that were not repaired.
func (r Reconciliation) Left() int {
	left := 0
	for _, d := range r.Drifts {
		if !d.Repaired {
			left++
		}
	}
	return left
}

// Drift is a difference between two sides of the books. Sides that do not apply
// are nil.
type Drift struct {
	PromotionID string `json:"promotionId,omitempty"`
	TemplateID  string `json:"templateId,omitempty"`
	What        string `json:"what" doc:"Compared with store are kept: counts.…, amounts.…, attempts, open (payouts left in an ended promotion), live, issuedTotal; provider: charges.…, transactions (payouts that share a transaction key, and their keys); redis: stream, total, stock, count, issued_total, settled, granted, used, grants, user, line" example:"counts.succeeded"`
	UserID      string `json:"userId,omitempty"`
	Store       *int64 `json:"store" doc:"From the rows. Of line: the ticket to expect, or null; may exceed 2^53"`
	Redis       *int64 `json:"redis" doc:"null: not compared. Of line: the ticket in line, or null; may exceed 2^53"`
	Kept        *int64 `json:"kept,omitempty" doc:"Stored count; may exceed 2^53"`
	Provider    *int64 `json:"provider,omitempty" doc:"From the provider's charges; may exceed 2^53"`
	Detail      string `json:"detail"` // the values in a sentence
	Repaired    bool   `json:"repaired"`
}

// Reconcile compares the books of a promotion, or those of all active
// promotions and coupon templates if promotion is empty. With repair, it
// repairs what can be repaired. It takes more than 10 s if a promotion has
// differences, because they are checked again.
func (c *Client) Reconcile(ctx context.Context, promotion string, repair bool) (Reconciliation, error) {
	return c.reconcile(ctx, reconcile{PromotionID: promotion, Repair: repair})
}

// ReconcileTemplate compares the gate of a coupon template with its rows. With
// repair, it corrects the gate.
func (c *Client) ReconcileTemplate(ctx context.Context, template string, repair bool) (Reconciliation, error) {
	return c.reconcile(ctx, reconcile{TemplateID: template, Repair: repair})
}

// reconcile selects what to compare.
type reconcile struct {
	PromotionID string `json:"promotionId,omitempty"`
	TemplateID  string `json:"templateId,omitempty"`
	Repair      bool   `json:"repair"`
}

func (c *Client) reconcile(ctx context.Context, what reconcile) (Reconciliation, error) {
	return call[Reconciliation](ctx, c, request{method: http.MethodPost, path: []string{"v1", "reconciliations"}, json: what, unbounded: true})
}

// Reconciliation returns an earlier report.
func (c *Client) Reconciliation(ctx context.Context, id string) (Reconciliation, error) {
	return get[Reconciliation](ctx, c, "v1", "reconciliations", id)
}
