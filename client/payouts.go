package client

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"time"
)

var errSameCursor = errors.New("the server answered with the cursor it was asked with")

// Payout is what one target of a promotion gets.
type Payout struct {
	TargetID       string    `json:"targetId"`
	UserID         string    `json:"userId"`
	SummaryID      string    `json:"promotionSummaryId,omitempty"`
	Amount         int64     `json:"amount"` // minor units
	VoucherCode    string    `json:"voucherCode,omitempty"`
	State          string    `json:"state"`
	AttemptCount   int64     `json:"attempts"` // answers of the provider that were counted
	TransactionKey string    `json:"transactionKey,omitempty"`
	ErrorCode      string    `json:"errorCode,omitempty"`
	ErrorMessage   string    `json:"errorMessage,omitempty"`
	UpdatedAt      time.Time `json:"updatedAt"`
}

// PayoutFilter narrows a list of payouts; empty fields let all through.
type PayoutFilter struct {
	State string // e.g. FAILED
	Code  string // error code
}

// Payouts walks over the payouts of a promotion by target id. It ends after
// the first error.
func (c *Client) Payouts(ctx context.Context, promotion string, f PayoutFilter) iter.Seq2[Payout, error] {
	query := url.Values{}
	if f.State != "" {
		query.Set("state", f.State)
	}
	if f.Code != "" {
		query.Set("code", f.Code)
	}
	return pages[Payout](ctx, c, []string{"v1", "promotions", promotion, "payouts"}, query)
}

// Payout reads one payout with its attempts.
func (c *Client) Payout(ctx context.Context, promotion, target string) (PayoutDetail, error) {
	var out PayoutDetail
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "promotions", promotion, "payouts", target}}, &out)
	return out, err
}

// PayoutDetail is a payout with every answer that was kept for it.
type PayoutDetail struct {
	Payout
	Log []Attempt `json:"attemptLog,omitempty"`
}

// Attempt is one answer of the provider other than a first-time success.
type Attempt struct {
	Dispatch int64     `json:"dispatch"`
	At       time.Time `json:"at"`
	Class    string    `json:"class"` // e.g. REFUSED, FAILED, UNKNOWN
	Code     string    `json:"code,omitempty"`
	Message  string    `json:"message,omitempty"`
}
