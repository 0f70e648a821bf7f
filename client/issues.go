package client

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"time"
)

// IssueRequest is where a request for a coupon stands.
type IssueRequest struct {
	ID     string `json:"requestId"` // {templateId}:{userId}
	Status string `json:"status"`    // WAITING, ISSUED or REJECTED
	Ticket int64  `json:"ticket,omitempty"`
	// QueueRank is how many people are in front, 0 is next; nil when there is no
	// line: it has ended, or is before a draw.
	QueueRank           *int64  `json:"queueRank,omitempty"`
	EstimatedWaitMillis int64   `json:"estimatedWaitMillis,omitempty"` // 0: not known
	Coupon              *Coupon `json:"coupon,omitempty"`              // of ISSUED
	Reason              string  `json:"reason,omitempty"`              // of REJECTED
	Duplicate           bool    `json:"duplicate,omitempty"`           // it had been made before
}

// IssueCoupon asks for a coupon. The request that comes back is ISSUED or
// WAITING; wait, at most 30 s, asks the server to hold its answer until that is
// decided. A refusal is a *Problem with the code SOLD_OUT, NOT_OPEN, CLOSED,
// USER_LIMIT, NOT_DRAWN, ERROR or TEMPLATE_NOT_FOUND. Asking again after any
// error is safe: whoever was accepted keeps his ticket.
func (c *Client) IssueCoupon(ctx context.Context, template, user string, wait time.Duration) (IssueRequest, error) {
	body, header, err := jsonBody(struct {
		UserID string `json:"userId"`
	}{user})
	if err != nil {
		return IssueRequest{}, err
	}
	if wait > 0 {
		header.Set("Prefer", fmt.Sprintf("wait=%d", int64(math.Ceil(wait.Seconds()))))
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout+wait)
	defer cancel()
	var out IssueRequest
	path := []string{"v1", "coupons", template, "issue"}
	err = c.call(ctx, request{method: http.MethodPost, path: path, header: header, body: body, unbounded: true}, &out)
	return out, err
}

// IssueRequest reads where the request with an id stands. One that is not known,
// or was lost, is a *Problem with the code REQUEST_UNKNOWN.
func (c *Client) IssueRequest(ctx context.Context, id string) (IssueRequest, error) {
	var out IssueRequest
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "issue-requests", id}}, &out)
	return out, err
}

// WatchIssueRequest follows the request with an id for as long as ctx lives: how
// it stands, each time that it has moved, and at last, ISSUED or REJECTED, how it
// has ended. It connects again when it was cut off, and looks every now and then
// where the server's events do not get through. It ends after the first error,
// which is a *Problem with the code REQUEST_UNKNOWN when the request is not known,
// or was lost.
func (c *Client) WatchIssueRequest(ctx context.Context, id string, o WatchOptions) iter.Seq2[IssueRequest, error] {
	ended := func(r IssueRequest) bool { return r.Status != "WAITING" }
	return watch(ctx, c, []string{"v1", "issue-requests", id}, "result", ended, o)
}
