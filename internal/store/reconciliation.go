package store

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// ReconciliationReport is the report of a reconciliation of promotions, of coupon
// templates, or of both.
type ReconciliationReport struct {
	ID      int64   `json:"id,string"`
	Checked int     `json:"checked"` // promotions and templates
	Drifts  []Drift `json:"drifts"`
	// Skipped names what could not be compared, and why.
	Skipped []string  `json:"skipped,omitempty"`
	At      time.Time `json:"at"`
}

// Drift is a difference between two sides of the books of a promotion or a template.
type Drift struct {
	PromotionID reward.PromotionID `json:"promotionId,string,omitzero"`
	TemplateID  reward.TemplateID  `json:"templateId,string,omitzero"`
	// What differs in a promotion: "counts.<state>", "amounts.<state>" or "attempts" (Kept
	// against Store, the rows), "open" (the same: the payouts left in an ended
	// promotion), "stream" (Redis against Store, the QUEUED rows), "transactions" (Provider, the
	// different transaction keys, against Store, the payouts that share them),
	// "charges.twice" (two confirmed transactions of one payout), "charges.above", "charges.below", "charges.amount.above" or
	// "charges.amount.below" (Provider against Store, the limit by the rows).
	//
	// What differs in a template: "live" or "issuedTotal" (Kept, the counters of the
	// template's row, against Store, its coupons), "total", "stock", "count",
	// "issued_total", "settled", "granted", "used", "grants" (Redis, the gate, against
	// Store, the template's row), "user" (the number of UserID's coupons, in Redis against
	// Store), "line" (the ticket with which UserID is in line, in Redis, against the one
	// with which they should be; nil means none).
	What     string `json:"what"`
	UserID   string `json:"userId,omitempty"`
	Store    *int64 `json:"store"`
	Redis    *int64 `json:"redis"`
	Kept     *int64 `json:"kept,omitempty"`
	Provider *int64 `json:"provider,omitempty"`
	Detail   string `json:"detail"` // the numbers in a sentence
	Repaired bool   `json:"repaired"`
}

// Row returns the report as it is stored.
func (r ReconciliationReport) Row() (Reconciliation, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return Reconciliation{}, fmt.Errorf("encode reconciliation: %w", err)
	}
	row := Reconciliation{ID: r.ID, Report: text, At: r.At, Checked: int64(r.Checked), Drifts: int64(len(r.Drifts))}
	for _, d := range r.Drifts {
		if d.Repaired {
			row.Repaired++
		}
	}
	return row, nil
}
