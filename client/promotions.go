package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Promotion is one run that pays many targets. Amounts are in minor units or
// points.
type Promotion struct {
	ID                   string            `json:"id"`
	Name                 string            `json:"name" doc:"Empty if only Kafka records name it"`
	Type                 string            `json:"type" enum:"POINT,VOUCHER"`
	Status               string            `json:"status" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED"`
	Amount               int64             `json:"amount,omitempty" maximum:"1000000000000000"` // default amount of a target
	VoucherCode          string            `json:"voucherCode,omitempty" doc:"For viewers and in events, … and the last four characters"`
	Currency             string            `json:"currency"`
	MaxRetries           int               `json:"maxRetries"`
	ConsumersPerInstance int               `json:"consumersPerInstance,omitempty"`            // 0: by the number of targets
	RatePerSecond        int               `json:"ratePerSecond,omitempty"`                   // maximum calls of all instances together; 0: no limit of its own
	Weight               int               `json:"weight"`                                    // share of the calls relative to other promotions
	MaxAmount            int64             `json:"maxAmount,omitempty" doc:"May exceed 2^53"` // budget in minor units; 0: no limit
	Canary               *Canary           `json:"canary,omitempty"`                          // nil: no canary
	StartsAt             *time.Time        `json:"startsAt,omitempty"`                        // when a DRAFT starts automatically; nil: it is started manually
	EndsAt               *time.Time        `json:"endsAt,omitempty"`                          // from when on no charge is sent, and payouts that are left pause it; nil: never
	WebhookURL           string            `json:"webhookUrl,omitempty" doc:"For viewers and in events, without what may be a secret"`
	Metadata             map[string]string `json:"metadata,omitempty"`
	Notes                string            `json:"notes,omitempty" doc:"Absent in events"` // what people write down about it
	CreatedBy            string            `json:"createdBy,omitempty"`
	ApprovedBy           string            `json:"approvedBy,omitempty"` // empty: nothing is approved
	// ApprovedAmount and ApprovedCount say what was approved. Targets that came later
	// are not paid until they are approved too.
	ApprovedAmount   *int64     `json:"approvedAmount,omitempty" doc:"May exceed 2^53"`
	ApprovedCount    *int64     `json:"approvedCount,omitempty"`
	AwaitingApproval bool       `json:"awaitingApproval"`
	RejectedBy       string     `json:"rejectedBy,omitempty"` // empty: nobody did, or the promotion has changed since
	RejectReason     string     `json:"rejectReason,omitempty"`
	Closed           bool       `json:"closed" doc:"Takes no further targets"`
	TotalCount       int64      `json:"totalCount" doc:"The sum of counts"`
	ExpectedCount    *int64     `json:"expectedCount,omitempty" doc:"Announced by the started event"`
	Counts           Counts     `json:"counts"`
	AmountTotal      int64      `json:"amountTotal" doc:"May exceed 2^53"`
	AmountSucceeded  int64      `json:"amountSucceeded" doc:"May exceed 2^53"`
	PausedBy         string     `json:"pausedBy,omitempty" doc:"largesse if it paused by itself"`
	PausedAt         *time.Time `json:"pausedAt,omitempty"`
	PauseReason      string     `json:"pauseReason,omitempty"`
	ApprovalAsked    bool       `json:"approvalAsked,omitempty" doc:"Those who may approve were told that it waits"`
	StartsEarly      bool       `json:"startsEarly,omitempty" doc:"It was approved for startsAt: a start before that needs another approval"`
	PauseCause       string     `json:"pauseCause,omitempty" doc:"person, rejected, budget, failures, approval, ended, canary, outcomes, books or provider"`
	CancelledBy      string     `json:"cancelledBy,omitempty"`
	CancelledAt      *time.Time `json:"cancelledAt,omitempty"`
	ETASeconds       *int64     `json:"etaSeconds,omitempty"` // remaining seconds; nil: unknown
	CreatedAt        time.Time  `json:"createdAt"`
	StartedAt        *time.Time `json:"startedAt,omitempty"`
	FinishedAt       *time.Time `json:"finishedAt,omitempty"`
	ArchivedAt       *time.Time `json:"archivedAt,omitempty" doc:"Its payouts are removed; no more targets"`
	Summaries        []Summary  `json:"summaries,omitempty" nullable:"false" doc:"The first 1000; absent in lists"`
	ETag             string     `json:"-"` // for PromotionChange.IfMatch; empty in lists and in events
}

func (p *Promotion) setETag(tag string) { p.ETag = tag }

// Ended reports whether the promotion changes no more without another request.
func (p Promotion) Ended() bool {
	return p.Status == "COMPLETED" || p.Status == "CANCELLED" && p.FinishedAt != nil
}

// Canary is the first part of a promotion. Its result decides whether the
// others are paid.
type Canary struct {
	Targets        int64   `json:"targets"`
	MaxFailureRate float64 `json:"maxFailureRate"` // share of FAILED canary payouts above which the promotion pauses, 0 to 1
	Dispatched     int64   `json:"dispatched"`
	Judged         bool    `json:"judged"` // whether the canary has passed and the others may follow
}

// Counts holds the number of payouts in each state.
type Counts struct {
	Ready     int64 `json:"ready"`
	Queued    int64 `json:"queued"`
	Retrying  int64 `json:"retrying"`
	Unknown   int64 `json:"unknown"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"`
	Cancelled int64 `json:"cancelled"`
}

// Done returns the number of payouts in a final state.
func (c Counts) Done() int64 { return c.Succeeded + c.Failed + c.Cancelled }

// Summary is the part of a promotion under one promotionSummaryId.
type Summary struct {
	PromotionSummaryID string `json:"promotionSummaryId"`
	TotalCount         int64  `json:"totalCount"`
	Counts             Counts `json:"counts"`
	AmountSucceeded    int64  `json:"amountSucceeded" doc:"May exceed 2^53"`
}

// NewPromotion describes a promotion to create. The server chooses empty
// fields.
type NewPromotion struct {
	ID                   string            `json:"id,omitempty"` // positive number from an upstream system; empty: a new ID
	Name                 string            `json:"name"`
	Type                 string            `json:"type"`
	Amount               int64             `json:"amount,omitempty"`
	VoucherCode          string            `json:"voucherCode,omitempty"`
	Currency             string            `json:"currency,omitempty"`
	MaxRetries           *int              `json:"maxRetries,omitempty"`
	ConsumersPerInstance *int              `json:"consumersPerInstance,omitempty"` // 1 to 256; nil: by the number of targets
	RatePerSecond        int               `json:"ratePerSecond,omitempty"`        // of all instances together, 1 to 1,000,000; 0: no limit of its own
	Weight               int               `json:"weight,omitempty"`               // share of the calls relative to other promotions, 1 to 100; 0 means 1
	MaxAmount            int64             `json:"maxAmount,omitempty"`            // budget in minor units; 0: no limit
	Canary               *NewCanary        `json:"canary,omitempty"`               // nil: no canary
	StartsAt             *time.Time        `json:"startsAt,omitempty"`             // nil: it is started manually
	EndsAt               *time.Time        `json:"endsAt,omitempty"`               // after StartsAt; nil: it has no end
	WebhookURL           string            `json:"webhookUrl,omitempty"`
	Metadata             map[string]string `json:"metadata,omitempty"` // at most 20 entries; keys and values of at most 200 characters
	Notes                string            `json:"notes,omitempty"`    // at most 4000 characters
}

// NewCanary describes the canary of a promotion to create.
type NewCanary struct {
	Targets        int64    `json:"targets"`                  // number of targets to pay first, at least 1
	MaxFailureRate *float64 `json:"maxFailureRate,omitempty"` // 0 to 1; nil: the server's default
}

// CreatePromotion creates a DRAFT.
func (c *Client) CreatePromotion(ctx context.Context, p NewPromotion) (Promotion, error) {
	return post[Promotion](ctx, c, p, "v1", "promotions")
}

// PromotionChange describes a change of a promotion. Nil fields stay.
type PromotionChange struct {
	Name          *string                        `json:"name,omitempty"`
	RatePerSecond *Clearable[int]                `json:"ratePerSecond,omitempty"`
	Weight        *Clearable[int]                `json:"weight,omitempty"`
	MaxAmount     *Clearable[int64]              `json:"maxAmount,omitempty"`
	MaxRetries    *int                           `json:"maxRetries,omitempty"`
	EndsAt        *Clearable[time.Time]          `json:"endsAt,omitempty"`
	Metadata      *Clearable[map[string]*string] `json:"metadata,omitempty"` // sets entries with a value, removes those with nil
	Notes         *string                        `json:"notes,omitempty"`

	// The following fields can change only while the promotion is a DRAFT.
	Amount      *Clearable[int64]     `json:"amount,omitempty"`
	VoucherCode *Clearable[string]    `json:"voucherCode,omitempty"`
	Currency    *Clearable[string]    `json:"currency,omitempty"`
	Canary      *Clearable[NewCanary] `json:"canary,omitempty"`
	StartsAt    *Clearable[time.Time] `json:"startsAt,omitempty"`

	IfMatch string `json:"-"` // ETag of an earlier response; empty: any. Other settings than then: PRECONDITION_FAILED
}

// ChangePromotion changes the settings of a promotion, also while it runs. Every
// instance follows within a second.
func (c *Client) ChangePromotion(ctx context.Context, id string, change PromotionChange) (Promotion, error) {
	return call[Promotion](ctx, c, request{method: http.MethodPatch, path: []string{"v1", "promotions", id}, json: change, ifMatch: change.IfMatch})
}

// Promotion returns a promotion with its counts.
func (c *Client) Promotion(ctx context.Context, id string) (Promotion, error) {
	return get[Promotion](ctx, c, "v1", "promotions", id)
}

// WatchPromotion follows a promotion while ctx lives. It yields the promotion
// after each change, and finally when it is COMPLETED, or CANCELLED and
// finished. Summaries may be absent. It reconnects if the connection is lost,
// and reads the promotion at an interval where the server's events do not
// arrive.
func (c *Client) WatchPromotion(ctx context.Context, id string, o WatchOptions) iter.Seq2[Promotion, error] {
	return watch(ctx, c, []string{"v1", "promotions", id}, "done", Promotion.Ended, o)
}

// Promotions iterates over the promotions with a status, newest first. An empty
// status selects all.
func (c *Client) Promotions(ctx context.Context, status string) iter.Seq2[Promotion, error] {
	return pages[Promotion](ctx, c, []string{"v1", "promotions"}, filled(map[string]string{"status": status}))
}

// PromotionFilter selects and orders promotions. Empty fields select all.
type PromotionFilter struct {
	Status        string
	Search        string // in the name, ID or metadata; upper and lower case are the same
	CreatedBy     string
	CreatedAfter  time.Time // at this time or later
	CreatedBefore time.Time // before this time
	Sort          string    // id, createdAt or name, with a minus for descending; startsAt: only scheduled ones, soonest first; empty: newest first
}

// FindPromotions iterates over the promotions that a filter selects.
func (c *Client) FindPromotions(ctx context.Context, f PromotionFilter) iter.Seq2[Promotion, error] {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	return pages[Promotion](ctx, c, []string{"v1", "promotions"}, filled(map[string]string{
		"status": f.Status, "q": f.Search, "createdBy": f.CreatedBy, "createdAfter": at(f.CreatedAfter), "createdBefore": at(f.CreatedBefore), "sort": f.Sort,
	}))
}

// StartPromotion starts a DRAFT.
func (c *Client) StartPromotion(ctx context.Context, id string) (Promotion, error) {
	return post[Promotion](ctx, c, nil, "v1", "promotions", id, "start")
}

// PausePromotion pauses a promotion. Within a second no new calls start; calls
// in flight end.
func (c *Client) PausePromotion(ctx context.Context, id string) (Promotion, error) {
	return post[Promotion](ctx, c, nil, "v1", "promotions", id, "pause")
}

// PauseBecause is PausePromotion with a reason, which becomes the PauseReason.
func (c *Client) PauseBecause(ctx context.Context, id, reason string) (Promotion, error) {
	return post[Promotion](ctx, c, map[string]string{"reason": reason}, "v1", "promotions", id, "pause")
}

// DuplicatePromotion creates a DRAFT with the settings of a promotion, except its times
// and notes, without its targets and approvals. An empty name is that of the promotion,
// followed by (copy).
func (c *Client) DuplicatePromotion(ctx context.Context, id, name string) (Promotion, error) {
	body := map[string]string{}
	if name != "" {
		body["name"] = name
	}
	return post[Promotion](ctx, c, body, "v1", "promotions", id, "duplicate")
}

// TestPayment describes a payment to one person, to try a promotion.
type TestPayment struct {
	TargetID string `json:"targetId,omitempty"` // empty: 1
	UserID   string `json:"userId"`
	Amount   int64  `json:"amount,omitempty"` // 0: that of the promotion
}

// PayTest pays one person with the settings of a promotion, in a promotion of its own,
// which it starts and returns. That one waits as a DRAFT if it needs an approval.
func (c *Client) PayTest(ctx context.Context, id string, t TestPayment) (Promotion, error) {
	return post[Promotion](ctx, c, t, "v1", "promotions", id, "test-payment")
}

// ResumePromotion resumes a PAUSED promotion.
func (c *Client) ResumePromotion(ctx context.Context, id string) (Promotion, error) {
	return post[Promotion](ctx, c, nil, "v1", "promotions", id, "resume")
}

// CancelPromotion cancels a promotion. Payouts that may be charged are looked
// up.
func (c *Client) CancelPromotion(ctx context.Context, id string) (Promotion, error) {
	return post[Promotion](ctx, c, nil, "v1", "promotions", id, "cancel")
}

// ClosePromotion closes a promotion to further targets, so that it can complete
// with fewer targets than announced.
func (c *Client) ClosePromotion(ctx context.Context, id string) (Promotion, error) {
	return post[Promotion](ctx, c, nil, "v1", "promotions", id, "close")
}

// ApprovePromotion approves all targets that a promotion has, as another person;
// see Options.Actor. ApprovedAmount and ApprovedCount of the result say what was
// approved. Targets that are added later need another approval.
func (c *Client) ApprovePromotion(ctx context.Context, id string) (Promotion, error) {
	return post[Promotion](ctx, c, nil, "v1", "promotions", id, "approve")
}

// ApproveSeen is ApprovePromotion of a promotion as the caller has seen it: if its
// settings or targets have changed since, it fails with 412 and approves nothing.
func (c *Client) ApproveSeen(ctx context.Context, seen Promotion) (Promotion, error) {
	return call[Promotion](ctx, c, request{method: http.MethodPost, path: []string{"v1", "promotions", seen.ID, "approve"}, ifMatch: seen.ETag})
}

// RejectPromotion refuses to approve a promotion and withdraws an approval. A
// RUNNING promotion becomes PAUSED.
func (c *Client) RejectPromotion(ctx context.Context, id, reason string) (Promotion, error) {
	return post[Promotion](ctx, c, map[string]string{"reason": reason}, "v1", "promotions", id, "reject")
}

// AskApproval tells those who may approve that a DRAFT or PAUSED promotion waits for them,
// once for each of its changes. It pays nothing.
func (c *Client) AskApproval(ctx context.Context, id string) (Promotion, error) {
	return post[Promotion](ctx, c, nil, "v1", "promotions", id, "ask-approval")
}

// DeletePromotion deletes a DRAFT and its targets.
func (c *Client) DeletePromotion(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: []string{"v1", "promotions", id}}, nil)
}

// pageLimit is the number of items to request per page.
const pageLimit = 200

// filled returns a query with the fields that are not empty.
func filled(fields map[string]string) url.Values {
	query := url.Values{}
	for name, value := range fields {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

// list is a list of the API, or a page of one.
type list[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"nextCursor"`
}

// pages iterates over a paged list of the API.
func pages[T any](ctx context.Context, c *Client, path []string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		q := url.Values{"limit": {strconv.Itoa(pageLimit)}}
		for name, values := range query {
			q[name] = values
		}
		for {
			page, err := call[list[T]](ctx, c, request{method: http.MethodGet, path: path, query: q})
			if err != nil {
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
				// Continuing would request the same page forever.
				yield(none, errSameCursor)
				return
			}
			q.Set("cursor", page.NextCursor)
		}
	}
}
