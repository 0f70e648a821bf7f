package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"time"
)

var errSameCursor = errors.New("the server returned the cursor of the request: the list would not end")

// Payout is the payout of one target of a promotion.
type Payout struct {
	TargetID       string    `json:"targetId"`
	UserID         string    `json:"userId"`
	SummaryID      string    `json:"promotionSummaryId,omitempty"`
	Amount         int64     `json:"amount" maximum:"1000000000000000"` // minor units
	Currency       string    `json:"currency,omitempty"`                // the promotion's
	VoucherCode    string    `json:"voucherCode,omitempty" doc:"For viewers, … and the last four characters"`
	State          string    `json:"state" enum:"READY,QUEUED,RETRYING,UNKNOWN,SUCCEEDED,FAILED,CANCELLED"`
	AttemptCount   int64     `json:"attempts" format:"int32"` // counted responses of the provider
	TransactionKey string    `json:"transactionKey,omitempty"`
	ErrorCode      string    `json:"errorCode,omitempty"`
	ErrorMessage   string    `json:"errorMessage,omitempty"`
	UpdatedAt      time.Time `json:"updatedAt"`
}

// PayoutFilter selects payouts. Empty fields select all.
type PayoutFilter struct {
	State string // e.g. FAILED
	Code  string // error code
}

func (f PayoutFilter) query() url.Values {
	return filled(map[string]string{"state": f.State, "code": f.Code})
}

// Payouts iterates over the payouts of a promotion, ordered by target ID.
func (c *Client) Payouts(ctx context.Context, promotion string, f PayoutFilter) iter.Seq2[Payout, error] {
	return pages[Payout](ctx, c, []string{"v1", "promotions", promotion, "payouts"}, f.query())
}

// ExportPayouts writes the payouts of a promotion to w as CSV with a header
// line. After an error, w may hold a part of them.
func (c *Client) ExportPayouts(ctx context.Context, promotion string, f PayoutFilter, w io.Writer) error {
	return c.exportCSV(ctx, []string{"v1", "promotions", promotion, "payouts"}, f.query(), w)
}

// exportCSV copies a list of any length to w as CSV.
func (c *Client) exportCSV(ctx context.Context, path []string, query url.Values, w io.Writer) error {
	return c.copyTo(ctx, request{method: http.MethodGet, path: path, query: query, accept: "text/csv", unbounded: true}, "text/csv", w)
}

// copyTo writes the body of a response of a media type to w.
func (c *Client) copyTo(ctx context.Context, r request, kind string, w io.Writer) error {
	res, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if !success(res) {
		_, err := r.read(res)
		return err
	}
	if got, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); got != kind {
		return fmt.Errorf("the response to %s is not %s; check that %s is a Largesse server", r.what(), kind, c.Server())
	}
	if _, err := io.Copy(w, res.Body); err != nil {
		return fmt.Errorf("copying the response to %s: %w", r.what(), err)
	}
	return nil
}

// RetryPayouts requeues the FAILED payouts of a promotion, all or only those
// with an error code, and returns their number. After an error, call it again
// to continue.
func (c *Client) RetryPayouts(ctx context.Context, promotion, code string) (int64, error) {
	selected := struct {
		State string `json:"state"`
		Code  string `json:"code,omitempty"`
	}{"FAILED", code}
	path := []string{"v1", "promotions", promotion, "payouts", "retry"}
	out, err := call[struct {
		Requeued int64 `json:"requeued"`
	}](ctx, c, request{method: http.MethodPost, path: path, json: selected, unbounded: true})
	return out.Requeued, err
}

// Resolution describes how to settle an UNKNOWN payout.
type Resolution struct {
	Outcome        string `json:"outcome" enum:"SUCCEEDED,FAILED"`
	TransactionKey string `json:"transactionKey,omitempty" maxLength:"500" doc:"Required for SUCCEEDED, not allowed for FAILED"`
	Note           string `json:"note" minLength:"1" maxLength:"1000"` // how the outcome is known
}

// ResolvePayout settles an UNKNOWN payout.
func (c *Client) ResolvePayout(ctx context.Context, promotion, target string, r Resolution) (PayoutDetail, error) {
	return post[PayoutDetail](ctx, c, r, "v1", "promotions", promotion, "payouts", target, "resolve")
}

// Payout returns a payout with its attempts.
func (c *Client) Payout(ctx context.Context, promotion, target string) (PayoutDetail, error) {
	return get[PayoutDetail](ctx, c, "v1", "promotions", promotion, "payouts", target)
}

// PayoutDetail is a payout with all stored responses of the provider.
type PayoutDetail struct {
	Payout
	Log []Attempt `json:"attemptLog" nullable:"false" doc:"Provider responses, oldest first. A success at the first call is no entry. Another transaction key is: code SECOND_CHARGE, message the key"`
}

// Attempt is one response of the provider, other than a success of the first
// call.
type Attempt struct {
	Dispatch int64     `json:"dispatch" format:"int32"`
	At       time.Time `json:"at"`
	Class    string    `json:"class" enum:"PAID,REFUSED,FAILED,UNKNOWN,THROTTLED,MISSET,UNSENT,RESOLVED" doc:"RESOLVED: settled by the person in code, for the reason in message"`
	Code     string    `json:"code,omitempty"`
	Message  string    `json:"message,omitempty"`
}
