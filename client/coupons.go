package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Coupon is an issued coupon.
type Coupon struct {
	ID          string     `json:"id"`
	Code        string     `json:"code,omitempty" doc:"Absent until it is confirmed; for viewers, … and the last four characters"`
	TemplateID  string     `json:"templateId"`
	UserID      string     `json:"userId"`
	Ticket      int64      `json:"ticket"` // number in the order of issue
	Status      string     `json:"status" enum:"HELD,ISSUED,USED,CANCELLED,EXPIRED" doc:"HELD: confirm before heldUntil"`
	HeldUntil   *time.Time `json:"heldUntil,omitempty"` // end of the hold; nil: not held, or confirmed
	IssuedAt    time.Time  `json:"issuedAt"`
	UsedAt      *time.Time `json:"usedAt,omitempty"`
	CancelledAt *time.Time `json:"cancelledAt,omitempty"`
	CancelledBy string     `json:"cancelledBy,omitempty" doc:"Absent for HOLD_EXPIRED; not for shoppers"` // who cancelled it; empty also if an earlier version did
	Reason      string     `json:"reason,omitempty" doc:"HOLD_EXPIRED: not confirmed"`                    // HOLD_EXPIRED if it is CANCELLED because nobody confirmed it in time
	ExpiresAt   *time.Time `json:"expiresAt,omitempty"`                                                   // nil: never
}

// Coupon returns a coupon.
func (c *Client) Coupon(ctx context.Context, id string) (Coupon, error) {
	return get[Coupon](ctx, c, "v1", "coupons", id)
}

// CouponsByCode returns the coupons that have a code: at most one of each
// template.
func (c *Client) CouponsByCode(ctx context.Context, code string) ([]Coupon, error) {
	out, err := call[list[Coupon]](ctx, c, request{method: http.MethodGet, path: []string{"v1", "coupons"}, query: url.Values{"code": {code}}})
	return out.Items, err
}

// ConfirmCoupon confirms a HELD coupon, which makes it ISSUED. You can repeat
// the call: an ISSUED coupon stays as it is. If the hold has ended, it returns a
// *Problem with the code HOLD_EXPIRED; its other codes are those of
// CancelCoupon.
func (c *Client) ConfirmCoupon(ctx context.Context, id string) (Coupon, error) {
	return post[Coupon](ctx, c, nil, "v1", "coupons", id, "confirm")
}

// UseCoupon uses a coupon. If that is impossible, it returns a *Problem with
// the code COUPON_HELD, COUPON_USED, COUPON_CANCELLED or COUPON_EXPIRED.
func (c *Client) UseCoupon(ctx context.Context, id string) (Coupon, error) {
	return post[Coupon](ctx, c, nil, "v1", "coupons", id, "use")
}

// CancelCoupon cancels a coupon, which becomes available again. Its errors are
// those of UseCoupon, except COUPON_HELD.
func (c *Client) CancelCoupon(ctx context.Context, id string) (Coupon, error) {
	return post[Coupon](ctx, c, nil, "v1", "coupons", id, "cancel")
}

// CancelledCoupons counts the coupons that a call cancelled, and those that it could not cancel.
type CancelledCoupons struct {
	Cancelled        int      `json:"cancelled" doc:"Now"`
	AlreadyCancelled int      `json:"alreadyCancelled"` // before
	Used             int      `json:"used"`
	Expired          int      `json:"expired"`
	NotFound         []string `json:"notFound" nullable:"false" doc:"Not of this template"`
}

// CancelCoupons cancels coupons of a template, at most 1000. Those that cannot be cancelled
// stay as they are, and are counted. If you repeat it, it finds them cancelled.
func (c *Client) CancelCoupons(ctx context.Context, template string, ids []string) (CancelledCoupons, error) {
	return post[CancelledCoupons](ctx, c, map[string]any{"ids": ids}, "v1", "coupon-templates", template, "coupons", "cancel")
}

// UserCoupons iterates over the coupons of a user, newest first.
func (c *Client) UserCoupons(ctx context.Context, user string) iter.Seq2[Coupon, error] {
	return pages[Coupon](ctx, c, []string{"v1", "users", user, "coupons"}, nil)
}

// History explains why a user did or did not get coupons and payouts.
type History struct {
	UserID   string           `json:"userId"`
	Items    []HistoryItem    `json:"items" nullable:"false" doc:"The latest 1000 outcomes"`
	Refusals []HistoryRefusal `json:"refusals" nullable:"false" doc:"When the templates of items and templateId refused every request"`
	Payouts  []HistoryPayout  `json:"payouts" nullable:"false" doc:"At most 1000"` // highest promotion ID first, at most 1000
}

// HistoryItem is the outcome of one request.
type HistoryItem struct {
	RequestID  string    `json:"requestId"`
	TemplateID string    `json:"templateId"`
	Ticket     int64     `json:"ticket"`
	Status     string    `json:"status" enum:"ISSUED,REJECTED,LEFT"`
	Reason     string    `json:"reason,omitempty" example:"SOLD_OUT"` // only if REJECTED
	Coupon     *Coupon   `json:"coupon,omitempty"`                    // only if ISSUED; its current state
	At         time.Time `json:"at"`
}

// HistoryRefusal is an interval in which a template refused everyone.
type HistoryRefusal struct {
	TemplateID string     `json:"templateId"`
	Reason     string     `json:"reason" example:"SOLD_OUT"`
	Since      time.Time  `json:"since"`
	Until      *time.Time `json:"until,omitempty"` // nil: it has not ended
}

// HistoryPayout is a payout with its promotion and the provider's responses.
type HistoryPayout struct {
	PromotionID     string    `json:"promotionId"`
	PromotionName   string    `json:"promotionName"` // empty while only Kafka records name the promotion
	PromotionStatus string    `json:"promotionStatus" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED"`
	PauseReason     string    `json:"pauseReason,omitempty"`
	PauseCause      string    `json:"pauseCause,omitempty" doc:"person, rejected, budget, failures, approval, ended, canary, outcomes, books or provider"`
	PausedBy        string    `json:"pausedBy,omitempty"` // empty: nobody, or Largesse
	TargetID        string    `json:"targetId"`
	Amount          int64     `json:"amount" maximum:"1000000000000000"` // minor units
	Currency        string    `json:"currency,omitempty"`                // the promotion's
	VoucherCode     string    `json:"voucherCode,omitempty"`
	State           string    `json:"state" enum:"READY,QUEUED,RETRYING,UNKNOWN,SUCCEEDED,FAILED,CANCELLED"`
	MayBePaid       bool      `json:"mayBePaid,omitempty" doc:"A charge may be in flight, or may have taken effect: do not pay by hand"` // false also for SUCCEEDED
	AttemptCount    int64     `json:"attempts" format:"int32"`                                                                           // counted responses of the provider
	TransactionKey  string    `json:"transactionKey,omitempty"`
	ErrorCode       string    `json:"errorCode,omitempty"`
	ErrorMessage    string    `json:"errorMessage,omitempty"`
	UpdatedAt       time.Time `json:"updatedAt"`
	Log             []Attempt `json:"attemptLog" nullable:"false" doc:"The latest 50, oldest first"`
}

// UserHistory returns the history of a user. A request that is refused at once
// leaves no record: pass the templates at which the user says they made one.
func (c *Client) UserHistory(ctx context.Context, user string, templates ...string) (History, error) {
	return call[History](ctx, c, request{method: http.MethodGet, path: []string{"v1", "users", user, "history"}, query: url.Values{"templateId": templates}})
}
