package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Me is the caller of the API.
type Me struct {
	Name      string     `json:"name"`
	Role      string     `json:"role"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"` // of the API key or token; nil: never
}

// Me returns who the caller is.
func (c *Client) Me(ctx context.Context) (Me, error) {
	var out Me
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "me"}}, &out)
	return out, err
}

// Setting is one setting of an instance.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`  // with secrets masked
	Source string `json:"source"` // "default", or a file, variable or flag
}

// Settings returns the settings of the instance that answers.
func (c *Client) Settings(ctx context.Context) ([]Setting, error) {
	var out struct {
		Items []Setting `json:"items"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "settings"}}, &out)
	return out.Items, err
}

// UnknownPayout is an UNKNOWN payout of any promotion.
type UnknownPayout struct {
	PromotionID string `json:"promotionId"`
	Payout
}

// UnknownFilter selects UNKNOWN payouts. Empty fields select all.
type UnknownFilter struct {
	OlderThan string // how long they have been UNKNOWN at least, e.g. 15m or 2d
	UserID    string
}

// UnknownPayouts iterates over the UNKNOWN payouts of all promotions, oldest
// first. It ends after the first error.
func (c *Client) UnknownPayouts(ctx context.Context, f UnknownFilter) iter.Seq2[UnknownPayout, error] {
	return pages[UnknownPayout](ctx, c, []string{"v1", "payouts"}, filled(map[string]string{
		"state": "UNKNOWN", "olderThan": f.OlderThan, "userId": f.UserID,
	}))
}

// PromotionError counts the payouts of a promotion with one error code.
type PromotionError struct {
	Code            string `json:"code"`
	Example         string `json:"example"` // error message of one of them
	ExampleTargetID string `json:"exampleTargetId"`
	Class           string `json:"class"` // of that payout's latest attempt, e.g. REFUSED
	Failed          int64  `json:"failed"`
	Retrying        int64  `json:"retrying"`
	Unknown         int64  `json:"unknown"`
}

// PromotionErrors counts the payouts of a promotion by error code, most first.
func (c *Client) PromotionErrors(ctx context.Context, promotion string) ([]PromotionError, error) {
	var out []PromotionError
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "promotions", promotion, "errors"}}, &out)
	return out, err
}

// ReconciliationSummary is a reconciliation without its differences. The numbers
// are nil in reports of server versions that did not store them.
type ReconciliationSummary struct {
	ID       string    `json:"id"`
	At       time.Time `json:"at"`
	Checked  *int64    `json:"checked,omitempty"` // number of promotions and templates compared
	Drifts   *int64    `json:"drifts,omitempty"`
	Repaired *int64    `json:"repaired,omitempty"`
}

// Reconciliations iterates over the reconciliations, newest first. It ends after
// the first error.
func (c *Client) Reconciliations(ctx context.Context) iter.Seq2[ReconciliationSummary, error] {
	return pages[ReconciliationSummary](ctx, c, []string{"v1", "reconciliations"}, url.Values{})
}
