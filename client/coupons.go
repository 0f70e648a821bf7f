package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Coupon is a coupon that was issued.
type Coupon struct {
	ID          string     `json:"id"`
	Code        string     `json:"code"` // what its user shows
	TemplateID  string     `json:"templateId"`
	UserID      string     `json:"userId"`
	Ticket      int64      `json:"ticket"` // place in the order of issue
	Status      string     `json:"status"` // ISSUED, USED, CANCELLED or EXPIRED
	IssuedAt    time.Time  `json:"issuedAt"`
	UsedAt      *time.Time `json:"usedAt,omitempty"`
	CancelledAt *time.Time `json:"cancelledAt,omitempty"`
	ExpiresAt   *time.Time `json:"expiresAt,omitempty"` // nil: never
}

// Coupon reads one coupon.
func (c *Client) Coupon(ctx context.Context, id string) (Coupon, error) {
	var out Coupon
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "coupons", id}}, &out)
	return out, err
}

// UseCoupon uses a coupon. One that cannot be used is a *Problem with the code
// COUPON_USED, COUPON_CANCELLED or COUPON_EXPIRED.
func (c *Client) UseCoupon(ctx context.Context, id string) (Coupon, error) {
	return c.settleCoupon(ctx, id, "use")
}

// CancelCoupon cancels a coupon, whose place is free then; errors as UseCoupon.
func (c *Client) CancelCoupon(ctx context.Context, id string) (Coupon, error) {
	return c.settleCoupon(ctx, id, "cancel")
}

func (c *Client) settleCoupon(ctx context.Context, id, verb string) (Coupon, error) {
	var out Coupon
	err := c.call(ctx, request{method: http.MethodPost, path: []string{"v1", "coupons", id, verb}}, &out)
	return out, err
}

// UserCoupons walks over the coupons of a user, the newest first. It ends after
// the first error.
func (c *Client) UserCoupons(ctx context.Context, user string) iter.Seq2[Coupon, error] {
	return pages[Coupon](ctx, c, []string{"v1", "users", user, "coupons"}, nil)
}

// History says why a user did or did not get coupons and payouts.
type History struct {
	UserID   string           `json:"userId"`
	Items    []HistoryItem    `json:"items"`    // how each accepted request ended, the latest first, at most 1000
	Refusals []HistoryRefusal `json:"refusals"` // when templates refused everybody
	Payouts  []HistoryPayout  `json:"payouts"`  // those of the promotion with the highest id first, at most 1000
}

// HistoryItem is how one request ended.
type HistoryItem struct {
	RequestID  string    `json:"requestId"`
	TemplateID string    `json:"templateId"`
	Ticket     int64     `json:"ticket"`
	Status     string    `json:"status"`           // ISSUED or REJECTED
	Reason     string    `json:"reason,omitempty"` // of REJECTED
	Coupon     *Coupon   `json:"coupon,omitempty"` // of ISSUED, as it is now
	At         time.Time `json:"at"`
}

// HistoryRefusal is an interval in which a template refused everybody.
type HistoryRefusal struct {
	TemplateID string     `json:"templateId"`
	Reason     string     `json:"reason"` // SOLD_OUT or CLOSED
	Since      time.Time  `json:"since"`
	Until      *time.Time `json:"until,omitempty"` // nil: to this day
}

// HistoryPayout is a payout, with its promotion and what the provider said.
type HistoryPayout struct {
	PromotionID     string    `json:"promotionId"`
	PromotionName   string    `json:"promotionName"` // empty while Kafka alone has told of the promotion
	PromotionStatus string    `json:"promotionStatus"`
	PauseReason     string    `json:"pauseReason,omitempty"`
	TargetID        string    `json:"targetId"`
	Amount          int64     `json:"amount"` // minor units
	VoucherCode     string    `json:"voucherCode,omitempty"`
	State           string    `json:"state"`
	AttemptCount    int64     `json:"attempts"` // answers of the provider that were counted
	TransactionKey  string    `json:"transactionKey,omitempty"`
	ErrorCode       string    `json:"errorCode,omitempty"`
	ErrorMessage    string    `json:"errorMessage,omitempty"`
	UpdatedAt       time.Time `json:"updatedAt"`
	Log             []Attempt `json:"attemptLog"` // the latest 50, oldest first
}

// UserHistory reads the history of a user. Templates are those he says he has
// asked at: who was refused at once has left nothing there.
func (c *Client) UserHistory(ctx context.Context, user string, templates ...string) (History, error) {
	var out History
	query := url.Values{}
	if len(templates) > 0 {
		query["templateId"] = templates
	}
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "users", user, "history"}, query: query}, &out)
	return out, err
}
