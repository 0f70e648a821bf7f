package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Me is the caller of the API.
type Me struct {
	Name      string     `json:"name"`
	Role      string     `json:"role" enum:"viewer,issuer,campaigner,approver,operator,admin,shopper"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"` // of the API key or token; nil: never
}

// Me returns who the caller is.
func (c *Client) Me(ctx context.Context) (Me, error) {
	return get[Me](ctx, c, "v1", "me")
}

// Setting is one setting of an instance.
type Setting struct {
	Name   string `json:"name" example:"money.timeout"`
	Value  string `json:"value"`  // with secrets masked
	Source string `json:"source"` // "default", or a file, variable or flag
}

// Settings returns the settings of the instance that answers.
func (c *Client) Settings(ctx context.Context) ([]Setting, error) {
	out, err := get[list[Setting]](ctx, c, "v1", "settings")
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
// first.
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
	Class           string `json:"class" enum:",REFUSED,FAILED,UNKNOWN,THROTTLED,MISSET,UNSENT,PAID,RESOLVED" doc:"Of the latest attempt"`
	Failed          int64  `json:"failed"`
	Retrying        int64  `json:"retrying"`
	Unknown         int64  `json:"unknown"`
}

// PromotionErrors counts the payouts of a promotion by error code, most first.
func (c *Client) PromotionErrors(ctx context.Context, promotion string) ([]PromotionError, error) {
	return get[[]PromotionError](ctx, c, "v1", "promotions", promotion, "errors")
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

// Reconciliations iterates over the reconciliations, newest first.
func (c *Client) Reconciliations(ctx context.Context) iter.Seq2[ReconciliationSummary, error] {
	return pages[ReconciliationSummary](ctx, c, []string{"v1", "reconciliations"}, url.Values{})
}

// TimelineSpan selects a part of a timeline. Zero values leave the choice to the
// server.
type TimelineSpan struct {
	From, To time.Time
	Points   int // at most so many, from 2 to 1000
}

func (s TimelineSpan) query() url.Values {
	q := url.Values{}
	for name, at := range map[string]time.Time{"from": s.From, "to": s.To} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339))
		}
	}
	if s.Points != 0 {
		q.Set("points", strconv.Itoa(s.Points))
	}
	return q
}

// PromotionTimeline is what happened to a promotion over time.
type PromotionTimeline struct {
	StepSeconds int64            `json:"stepSeconds"`
	Points      []PromotionPoint `json:"points"` // one per step
}

// PromotionPoint is one step. Fields are nil if nothing was recorded.
type PromotionPoint struct {
	At        time.Time `json:"at"` // begin of the step
	Succeeded *int64    `json:"succeeded" doc:"Charges; null: not recorded"`
	Failed    *int64    `json:"failed"`
	Retrying  *int64    `json:"retrying"`
	Unknown   *int64    `json:"unknown"`
	InFlight  *float64  `json:"inFlight" doc:"Average"`
	Waiting   *int64    `json:"waiting" doc:"Average"`
	P50Millis *float64  `json:"p50Millis"`
	P95Millis *float64  `json:"p95Millis"`
	P99Millis *float64  `json:"p99Millis"`
}

// PromotionTimeline returns what happened to a promotion over time.
func (c *Client) PromotionTimeline(ctx context.Context, promotion string, s TimelineSpan) (PromotionTimeline, error) {
	return call[PromotionTimeline](ctx, c, request{method: http.MethodGet, path: []string{"v1", "promotions", promotion, "timeline"}, query: s.query()})
}

// TemplateTimeline is what happened to a coupon template over time.
type TemplateTimeline struct {
	StepSeconds int64           `json:"stepSeconds"`
	Points      []TemplatePoint `json:"points"` // one per step
}

// TemplatePoint is one step. Fields are nil if nothing was recorded.
type TemplatePoint struct {
	At      time.Time `json:"at"` // begin of the step
	Asked   *int64    `json:"asked" doc:"Answered; null: not recorded"`
	Issued  *int64    `json:"issued"`
	Refused *int64    `json:"refused"`
	Waiting *int64    `json:"waiting"` // average
}

// TemplateTimeline returns what happened to a coupon template over time.
func (c *Client) TemplateTimeline(ctx context.Context, template string, s TimelineSpan) (TemplateTimeline, error) {
	return call[TemplateTimeline](ctx, c, request{method: http.MethodGet, path: []string{"v1", "coupon-templates", template, "timeline"}, query: s.query()})
}

// Overview shows all instances together.
type Overview struct {
	At               time.Time        `json:"at"`
	Running          int              `json:"running"` // number of RUNNING promotions
	Promotions       []Promotion      `json:"promotions" nullable:"false" doc:"At most 50"`
	Templates        []Template       `json:"templates" nullable:"false"` // the latest that are not closed
	PaidPerSecond    float64          `json:"paidPerSecond"`
	CouponsPerSecond float64          `json:"couponsPerSecond"`
	Waiting          int64            `json:"waiting"`                       // payouts of RUNNING promotions
	Unknown          int64            `json:"unknown"`                       // payouts of RUNNING promotions
	StreamLag        *int64           `json:"streamLag" doc:"null: unknown"` // entries not delivered yet; nil: the queue is away
	KafkaLag         *int64           `json:"kafkaLag" doc:"null: unknown"`  // records not consumed yet; nil: Kafka is away
	KafkaTopics      []TopicLag       `json:"kafkaTopics" nullable:"false"`  // what KafkaLag adds up
	OldestReadyAt    *time.Time       `json:"oldestReadyAt,omitempty"`
	OldestUnknownAt  *time.Time       `json:"oldestUnknownAt,omitempty"`
	Degraded         []string         `json:"degraded,omitempty" nullable:"false" doc:"queue, kafka: it did not answer"`
	Health           []PartHealth     `json:"health" nullable:"false"`
	Instances        InstanceCount    `json:"instances"`
	Governor         GovernorState    `json:"governor"` // of all instances
	StepSeconds      int64            `json:"stepSeconds"`
	Points           []PromotionPoint `json:"points" nullable:"false" doc:"The last 15 minutes"`
	CouponPoints     []TemplatePoint  `json:"couponPoints" nullable:"false"` // all templates in the same steps
}

// TopicLag is the lag of the group that consumes a Kafka topic.
type TopicLag struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	Lag   int64  `json:"lag"` // records
}

// PartHealth is what the instances say of a part, such as store or provider.
type PartHealth struct {
	Part      string     `json:"part"`
	OK        bool       `json:"ok"`
	Reason    string     `json:"reason,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Instances []string   `json:"instances,omitempty"` // those in trouble
}

// InstanceCount counts instances.
type InstanceCount struct {
	Alive int `json:"alive"`
	Dead  int `json:"dead"`
}

// GovernorState is what the governors of all instances allow together.
type GovernorState struct {
	Limit        int        `json:"limit"`    // calls to the provider that may be in flight
	InFlight     int        `json:"inFlight"` // calls in flight
	Waiting      int        `json:"waiting"`  // calls that wait
	BreakerOpen  bool       `json:"breakerOpen"`
	RatesShared  bool       `json:"ratesShared"`
	BlockedUntil *time.Time `json:"blockedUntil,omitempty"` // end of a Retry-After
}

// UnblockProvider lets calls start at once that wait because the provider asked
// several payees in a row to retry later. It holds for all instances.
func (c *Client) UnblockProvider(ctx context.Context) error {
	return c.call(ctx, request{method: http.MethodPost, path: []string{"v1", "provider", "unblock"}}, nil)
}

// Overview shows all instances together.
func (c *Client) Overview(ctx context.Context) (Overview, error) {
	return get[Overview](ctx, c, "v1", "overview")
}
