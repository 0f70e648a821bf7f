package client

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"time"
)

// IssueRequest is the state of a coupon request.
type IssueRequest struct {
	ID                  string  `json:"requestId" doc:"{templateId}:{userId}: the latest request of the user"`
	Status              string  `json:"status" enum:"WAITING,ISSUED,REJECTED,LEFT"`
	Ticket              int64   `json:"ticket,omitempty" doc:"Coupons are issued in this order"`
	QueueRank           *int64  `json:"queueRank,omitempty" doc:"Requests ahead: 0 is next, never rises. Only if WAITING"` // nil: it has an outcome, or its draw is still open
	EstimatedWaitMillis *int64  `json:"estimatedWaitMillis,omitempty"`                                                     // only if WAITING
	Coupon              *Coupon `json:"coupon,omitempty"`                                                                  // only if ISSUED
	Reason              string  `json:"reason,omitempty" doc:"Only if REJECTED: SOLD_OUT, USER_LIMIT, NOT_DRAWN or ERROR"`
	Duplicate           bool    `json:"duplicate,omitempty" doc:"An earlier request of the user"`
}

// IssueCoupon requests a coupon for a user. It returns an ISSUED or WAITING
// request. With wait, at most 30 s, the server delays the response until the
// outcome is known. A refusal is a *Problem with the code SOLD_OUT, NOT_OPEN,
// CLOSED, USER_LIMIT, HOLD_LAPSED, NOT_DRAWN, LEFT, ERROR or TEMPLATE_NOT_FOUND. You can repeat
// the call after any error: an admitted user keeps their ticket.
func (c *Client) IssueCoupon(ctx context.Context, template, user string, wait time.Duration) (IssueRequest, error) {
	r := request{method: http.MethodPost, path: []string{"v1", "coupons", template, "issue"}, json: map[string]string{"userId": user}, unbounded: true}
	if wait > 0 {
		r.header = http.Header{"Prefer": {fmt.Sprintf("wait=%d", int64(math.Ceil(wait.Seconds())))}}
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout+wait)
	defer cancel()
	return call[IssueRequest](ctx, c, r)
}

// IssueRequest returns the state of a request. If the request is unknown or was
// lost, it returns a *Problem with the code REQUEST_UNKNOWN.
func (c *Client) IssueRequest(ctx context.Context, id string) (IssueRequest, error) {
	return get[IssueRequest](ctx, c, "v1", "issue-requests", id)
}

// LeaveLine takes a request out of the waiting line, so that others get its place.
// A repeat does nothing. If the request was served or rejected before, LeaveLine
// returns a *Problem with the code REQUEST_ENDED; if it is unknown or was lost,
// with the code REQUEST_UNKNOWN; if its draw has not ended, ILLEGAL_STATE. During a
// Redis outage the code is UNAVAILABLE: the ticket stays, and you can repeat the call.
func (c *Client) LeaveLine(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: []string{"v1", "issue-requests", id}}, nil)
}

// WatchIssueRequest follows a request while ctx lives. It yields the state
// after each change, and finally the outcome: ISSUED, REJECTED or LEFT. It
// reconnects if the connection is lost, and reads the state at an interval
// where the server's events do not arrive. If the request is unknown or was
// lost, the error is a *Problem with the code REQUEST_UNKNOWN.
func (c *Client) WatchIssueRequest(ctx context.Context, id string, o WatchOptions) iter.Seq2[IssueRequest, error] {
	ended := func(r IssueRequest) bool { return r.Status != "WAITING" }
	return watch(ctx, c, []string{"v1", "issue-requests", id}, "result", ended, o)
}
