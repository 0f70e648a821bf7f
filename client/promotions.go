package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Promotion is a campaign that pays its targets. Money is in minor units (or
// points).
type Promotion struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Type   string `json:"type"`   // POINT or VOUCHER
	Status string `json:"status"` // DRAFT, RUNNING, PAUSED, COMPLETED or CANCELLED
	// TotalCount is the number of targets known; the counts add up to it.
	TotalCount int64 `json:"totalCount"`
	// ExpectedCount is what a started event announced; nil when there was none.
	ExpectedCount   *int64 `json:"expectedCount,omitempty"`
	Counts          Counts `json:"counts"`
	AmountTotal     int64  `json:"amountTotal"`
	AmountSucceeded int64  `json:"amountSucceeded"`
	Amount          int64  `json:"amount,omitempty"` // what a target gets that names none
	VoucherCode     string `json:"voucherCode,omitempty"`
	Currency        string `json:"currency,omitempty"`
	MaxRetries      int    `json:"maxRetries"`
	// ConsumersPerInstance is how many consumers each instance keeps for it; 0:
	// by its size.
	ConsumersPerInstance int        `json:"consumersPerInstance,omitempty"`
	RatePerSecond        int        `json:"ratePerSecond,omitempty"` // bound on the calls of all instances for it; 0: none of its own
	Weight               int        `json:"weight,omitempty"`        // share of the calls beside other promotions
	MaxAmount            int64      `json:"maxAmount,omitempty"`     // budget in minor units; 0: none
	Canary               *Canary    `json:"canary,omitempty"`        // nil: all are paid at once
	StartsAt             *time.Time `json:"startsAt,omitempty"`      // when a DRAFT starts by itself; nil: by hand
	WebhookURL           string     `json:"webhookUrl,omitempty"`
	CreatedBy            string     `json:"createdBy,omitempty"`
	ApprovedBy           string     `json:"approvedBy,omitempty"`
	Closed               bool       `json:"closed"` // no more targets will come
	PauseReason          string     `json:"pauseReason,omitempty"`
	ETASeconds           *float64   `json:"etaSeconds,omitempty"` // nil while the rate is unknown
	CreatedAt            time.Time  `json:"createdAt"`
	StartedAt            *time.Time `json:"startedAt,omitempty"`
	FinishedAt           *time.Time `json:"finishedAt,omitempty"`
	Summaries            []Summary  `json:"summaries,omitempty"`
}

// Ended says that nothing more will come of it by itself.
func (p Promotion) Ended() bool {
	return p.Status == "COMPLETED" || p.Status == "CANCELLED" && p.FinishedAt != nil
}

// Canary is the first payouts of a promotion, which decide about the others.
type Canary struct {
	Targets        int64   `json:"targets"`
	MaxFailureRate float64 `json:"maxFailureRate"` // share of FAILED above which the promotion pauses, 0 to 1
	Dispatched     int64   `json:"dispatched"`
	Judged         bool    `json:"judged"` // the others may follow
}

// Counts says how many payouts stand in each state.
type Counts struct {
	Ready     int64 `json:"ready"`
	Queued    int64 `json:"queued"`
	Retrying  int64 `json:"retrying"`
	Unknown   int64 `json:"unknown"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"`
	Cancelled int64 `json:"cancelled"`
}

// Done is how many payouts are decided.
func (c Counts) Done() int64 { return c.Succeeded + c.Failed + c.Cancelled }

// Summary is the part of a promotion with one promotionSummaryId.
type Summary struct {
	PromotionSummaryID string `json:"promotionSummaryId"`
	TotalCount         int64  `json:"totalCount"`
	Counts             Counts `json:"counts"`
	AmountSucceeded    int64  `json:"amountSucceeded"`
}

// NewPromotion is a promotion to create; empty fields are left to the server.
type NewPromotion struct {
	ID          string `json:"id,omitempty"` // a positive number; empty: made by the server
	Name        string `json:"name"`
	Type        string `json:"type"`
	Amount      int64  `json:"amount,omitempty"`
	VoucherCode string `json:"voucherCode,omitempty"`
	Currency    string `json:"currency,omitempty"`
	MaxRetries  *int   `json:"maxRetries,omitempty"`
	// ConsumersPerInstance is how many consumers each instance keeps for it, 1
	// to 256; nil: by its size.
	ConsumersPerInstance *int `json:"consumersPerInstance,omitempty"`
	// RatePerSecond bounds the calls of all instances for it, 1 to 1,000,000;
	// 0: no bound of its own.
	RatePerSecond int `json:"ratePerSecond,omitempty"`
	// Weight is its share of the calls beside others, 1 to 100; 0: 1.
	Weight     int        `json:"weight,omitempty"`
	MaxAmount  int64      `json:"maxAmount,omitempty"` // budget in minor units; 0: none
	Canary     *NewCanary `json:"canary,omitempty"`    // nil: all are paid at once
	StartsAt   *time.Time `json:"startsAt,omitempty"`  // nil: started by hand
	WebhookURL string     `json:"webhookUrl,omitempty"`
}

// NewCanary is the canary of a promotion to create.
type NewCanary struct {
	Targets        int64    `json:"targets"`                  // paid first, from 1
	MaxFailureRate *float64 `json:"maxFailureRate,omitempty"` // 0 to 1; nil: the server's default
}

// CreatePromotion makes a DRAFT.
func (c *Client) CreatePromotion(ctx context.Context, p NewPromotion) (Promotion, error) {
	body, header, err := jsonBody(p)
	if err != nil {
		return Promotion{}, err
	}
	var out Promotion
	err = c.call(ctx, request{method: http.MethodPost, path: []string{"v1", "promotions"}, header: header, body: body}, &out)
	return out, err
}

// Promotion reads one promotion with its counts.
func (c *Client) Promotion(ctx context.Context, id string) (Promotion, error) {
	var out Promotion
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "promotions", id}}, &out)
	return out, err
}

// WatchPromotion follows a promotion for as long as ctx lives: how it stands, each
// time that it has moved, and at last, COMPLETED, or CANCELLED and finished, how
// it has ended. Summaries may be left out. It connects again when it was cut off,
// and looks every now and then where the server's events do not get through. It
// ends after the first error.
func (c *Client) WatchPromotion(ctx context.Context, id string, o WatchOptions) iter.Seq2[Promotion, error] {
	return watch(ctx, c, []string{"v1", "promotions", id}, "done", Promotion.Ended, o)
}

// Promotions walks over the promotions with a status, or over all when it is
// empty, the newest first. It ends after the first error.
func (c *Client) Promotions(ctx context.Context, status string) iter.Seq2[Promotion, error] {
	return pages[Promotion](ctx, c, []string{"v1", "promotions"}, filled(map[string]string{"status": status}))
}

// StartPromotion lets a DRAFT pay.
func (c *Client) StartPromotion(ctx context.Context, id string) (Promotion, error) {
	return c.move(ctx, id, "start")
}

// PausePromotion opens no new call within a second; calls under way end.
func (c *Client) PausePromotion(ctx context.Context, id string) (Promotion, error) {
	return c.move(ctx, id, "pause")
}

// ResumePromotion lets a PAUSED one go on.
func (c *Client) ResumePromotion(ctx context.Context, id string) (Promotion, error) {
	return c.move(ctx, id, "resume")
}

// CancelPromotion pays nobody any more. What may have been paid already is
// looked up first.
func (c *Client) CancelPromotion(ctx context.Context, id string) (Promotion, error) {
	return c.move(ctx, id, "cancel")
}

// ClosePromotion says that no more targets will come by file, so that an announced
// promotion can complete with fewer.
func (c *Client) ClosePromotion(ctx context.Context, id string) (Promotion, error) {
	return c.move(ctx, id, "close")
}

// ApprovePromotion lets a promotion that needs it pay, as a second person; see
// Options.Actor.
func (c *Client) ApprovePromotion(ctx context.Context, id string) (Promotion, error) {
	return c.move(ctx, id, "approve")
}

// DeletePromotion removes a DRAFT with its targets.
func (c *Client) DeletePromotion(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: []string{"v1", "promotions", id}}, nil)
}

func (c *Client) move(ctx context.Context, id, verb string) (Promotion, error) {
	var out Promotion
	err := c.call(ctx, request{method: http.MethodPost, path: []string{"v1", "promotions", id, verb}}, &out)
	return out, err
}

// pageLimit is how many items one page is asked for.
const pageLimit = 200

// filled is a query of those fields that are not empty.
func filled(fields map[string]string) url.Values {
	query := url.Values{}
	for name, value := range fields {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

// pages walks over a list of the API.
func pages[T any](ctx context.Context, c *Client, path []string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		q := url.Values{"limit": {strconv.Itoa(pageLimit)}}
		for name, values := range query {
			q[name] = values
		}
		for {
			var page struct {
				Items      []T    `json:"items"`
				NextCursor string `json:"nextCursor"`
			}
			if err := c.call(ctx, request{method: http.MethodGet, path: path, query: q}, &page); err != nil {
				yield(none, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.NextCursor == "" {
				return
			}
			if page.NextCursor == q.Get("cursor") {
				// Going on would ask for the same page for ever.
				yield(none, errSameCursor)
				return
			}
			q.Set("cursor", page.NextCursor)
		}
	}
}
