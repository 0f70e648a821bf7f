package client

import (
	"context"
	"net/http"
	"time"
)

// Reconciliation is the report of a comparison of the books.
type Reconciliation struct {
	ID      string    `json:"id"`
	Checked int64     `json:"checked"` // promotions and templates
	Drifts  []Drift   `json:"drifts"`  // none: the books balance
	Skipped []string  `json:"skipped,omitempty"`
	At      time.Time `json:"at"`
}

// Left is how many drifts were not repaired.
func (r Reconciliation) Left() int {
	left := 0
	for _, d := range r.Drifts {
		if !d.Repaired {
			left++
		}
	}
	return left
}

// Drift is a difference between two sides of the books; sides that are none
// are nil.
type Drift struct {
	PromotionID string `json:"promotionId,omitempty"` // of a promotion
	TemplateID  string `json:"templateId,omitempty"`  // of a coupon template
	What        string `json:"what"`                  // e.g. counts.succeeded, stream, charges.above; stock, user
	UserID      string `json:"userId,omitempty"`      // of user
	Store       *int64 `json:"store"`                 // what the rows say
	Redis       *int64 `json:"redis"`
	Kept        *int64 `json:"kept,omitempty"`
	Provider    *int64 `json:"provider,omitempty"`
	Detail      string `json:"detail"` // the numbers in a sentence
	Repaired    bool   `json:"repaired"`
}

// Reconcile compares the books of a promotion, or those of all active promotions
// and coupon templates when promotion is empty, and repairs what can be repaired
// when asked to. It takes more than 10 s when anything of a promotion differs,
// since that is looked at twice.
func (c *Client) Reconcile(ctx context.Context, promotion string, repair bool) (Reconciliation, error) {
	return c.reconcile(ctx, reconcile{PromotionID: promotion, Repair: repair})
}

// ReconcileTemplate compares the gate of a coupon template with its rows, and
// makes it say what they say when asked to.
func (c *Client) ReconcileTemplate(ctx context.Context, template string, repair bool) (Reconciliation, error) {
	return c.reconcile(ctx, reconcile{TemplateID: template, Repair: repair})
}

// reconcile is what to compare.
type reconcile struct {
	PromotionID string `json:"promotionId,omitempty"`
	TemplateID  string `json:"templateId,omitempty"`
	Repair      bool   `json:"repair"`
}

func (c *Client) reconcile(ctx context.Context, what reconcile) (Reconciliation, error) {
	body, header, err := jsonBody(what)
	if err != nil {
		return Reconciliation{}, err
	}
	var out Reconciliation
	err = c.call(ctx, request{method: http.MethodPost, path: []string{"v1", "reconciliations"}, header: header, body: body, unbounded: true}, &out)
	return out, err
}

// Reconciliation reads an earlier report.
func (c *Client) Reconciliation(ctx context.Context, id string) (Reconciliation, error) {
	var out Reconciliation
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "reconciliations", id}}, &out)
	return out, err
}
