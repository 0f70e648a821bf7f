package client

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// The kinds of webhook endpoints. Slack and e-mail are for people, who get messages instead
// of signed webhooks, of some events.
const (
	KindWebhook = "WEBHOOK"
	KindSlack   = "SLACK"
	KindEmail   = "EMAIL"
)

// WebhookEndpoint is a receiver of events.
type WebhookEndpoint struct {
	ID             string     `json:"id"`
	Kind           string     `json:"kind" enum:"WEBHOOK,SLACK,EMAIL" doc:"WEBHOOK: another system; SLACK and EMAIL: people"`
	URL            string     `json:"url" doc:"For viewers, without what may be a secret; empty for EMAIL, and for SLACK if it is notify.slack-url"`
	To             []string   `json:"to,omitempty" doc:"E-mail addresses"`
	Language       string     `json:"language,omitempty" doc:"Of messages to people"`
	Description    string     `json:"description,omitempty"`
	Events         []string   `json:"events" nullable:"false"` // that it receives, e.g. promotion.completed
	Enabled        bool       `json:"enabled"`
	State          string     `json:"state" enum:"ACTIVE,FAILING,OVERFLOWING,DISABLED" doc:"FAILING: the latest attempt failed; OVERFLOWING: too many pending, the oldest payout and coupon events are dropped"`
	DisabledReason string     `json:"disabledReason,omitempty" doc:"FAILING or GONE; absent: by a person"`
	DisabledAt     *time.Time `json:"disabledAt,omitempty"`
	FailingSince   *time.Time `json:"failingSince,omitempty"` // first failed attempt since the last success
	FailedAttempts int        `json:"failedAttempts" doc:"Since the last success"`
	LastError      string     `json:"lastError,omitempty"`
	DeliveredAt    *time.Time `json:"deliveredAt,omitempty"`             // latest success, to the minute
	PendingCount   int        `json:"pendingCount" doc:"At most 100000"` // deliveries that are pending
	DroppedCount   int64      `json:"droppedCount"`                      // events dropped because too many deliveries were pending
	DroppedAt      *time.Time `json:"droppedAt,omitempty"`
	// Secret verifies deliveries; see VerifyWebhook. Only the result of the call that made
	// it has it: CreateWebhookEndpoint, RotateWebhookSecret, or ChangeWebhookEndpoint if
	// the URL is another than before.
	Secret              string     `json:"secret,omitempty" doc:"Only in the response to a request that made it: a creation, a rotation or a change of url"`
	Notice              string     `json:"notice,omitempty" doc:"In a repeated response: why it has no secret"`
	PreviousSecretUntil *time.Time `json:"previousSecretUntil,omitempty" doc:"The previous secret signs until then"`
	CreatedAt           time.Time  `json:"createdAt"`
	CreatedBy           string     `json:"createdBy"`
	ETag                string     `json:"-"` // for WebhookEndpointChange.IfMatch; empty in lists
}

func (e *WebhookEndpoint) setETag(tag string) { e.ETag = tag }

// NewWebhookEndpoint describes a webhook endpoint to create.
type NewWebhookEndpoint struct {
	Kind        string   `json:"kind,omitempty" enum:"WEBHOOK,SLACK,EMAIL" doc:"Absent: WEBHOOK"`
	URL         string   `json:"url,omitempty" maxLength:"2000" doc:"Needed for WEBHOOK; for SLACK an incoming webhook, absent: notify.slack-url"`
	To          []string `json:"to,omitempty" maxItems:"20" nullable:"false" doc:"For EMAIL: the addresses"`
	Language    string   `json:"language,omitempty" enum:"en,ko" doc:"Of messages to people; absent: en"`
	Events      []string `json:"events" minItems:"1" maxItems:"20" nullable:"false" enum:"promotion.started,promotion.paused,promotion.completed,promotion.cancelled,promotion.approval_needed,balance.breach,payout.failed,payout.unknown,coupon.issued,coupon.cancelled,coupon.used,coupon.sold_out,coupon.approval_needed"`
	Description string   `json:"description,omitempty" maxLength:"500"`
	Enabled     *bool    `json:"enabled,omitempty" doc:"Absent: true"`
}

// WebhookEndpointChange describes a change of a webhook endpoint. Nil fields stay.
type WebhookEndpointChange struct {
	URL         *string  `json:"url,omitempty" maxLength:"2000" doc:"For WEBHOOK, another URL gets a new secret, which is in the response; for SLACK, empty: notify.slack-url"`
	To          []string `json:"to,omitempty" maxItems:"20" nullable:"false"` // replaces all
	Language    *string  `json:"language,omitempty" enum:"en,ko"`
	Events      []string `json:"events,omitempty" minItems:"1" maxItems:"20" nullable:"false" enum:"promotion.started,promotion.paused,promotion.completed,promotion.cancelled,promotion.approval_needed,balance.breach,payout.failed,payout.unknown,coupon.issued,coupon.cancelled,coupon.used,coupon.sold_out,coupon.approval_needed"` // replaces all
	Description *string  `json:"description,omitempty" maxLength:"500"`
	Enabled     *bool    `json:"enabled,omitempty" doc:"false: events are not recorded, pending deliveries wait"` // true: pending deliveries go on, and past failures are forgotten
	// IfMatch is the ETag of an earlier response. If what a change can change is
	// another now, the change is refused with the code PRECONDITION_FAILED. Empty: any.
	IfMatch string `json:"-"`
}

// WebhookDelivery is an event for a webhook endpoint, with the attempts to deliver it.
type WebhookDelivery struct {
	ID            string           `json:"id"`
	MessageID     string           `json:"messageId" doc:"webhook-id"`
	EndpointID    string           `json:"endpointId"`
	Event         string           `json:"event"`
	At            time.Time        `json:"at"` // time of the event
	PromotionID   string           `json:"promotionId,omitempty"`
	TargetID      string           `json:"targetId,omitempty"`
	CouponID      string           `json:"couponId,omitempty"`
	TemplateID    string           `json:"templateId,omitempty"`
	State         string           `json:"state" enum:"PENDING,DELIVERED,ABANDONED"`
	NextAttemptAt *time.Time       `json:"nextAttemptAt,omitempty"` // only while it is PENDING
	EndedAt       *time.Time       `json:"endedAt,omitempty"`
	Attempts      []WebhookAttempt `json:"attempts" nullable:"false"`
}

// WebhookAttempt is a call of the receiver.
type WebhookAttempt struct {
	Number int       `json:"number"`
	At     time.Time `json:"at"`
	Status int       `json:"status,omitempty"` // HTTP status, or code of the mail server; 0: no response
	Millis int64     `json:"millis"`
	Error  string    `json:"error,omitempty"` // of a DELIVERED one: the addresses that the mail server refused
}

// CreateWebhookEndpoint creates a webhook endpoint. Only this result has the secret.
func (c *Client) CreateWebhookEndpoint(ctx context.Context, e NewWebhookEndpoint) (WebhookEndpoint, error) {
	return post[WebhookEndpoint](ctx, c, e, "v1", "webhook-endpoints")
}

// ChangeWebhookEndpoint changes, disables or enables a webhook endpoint. If that changes
// its URL, it gets a new secret, which only this result has, and the old one is not valid
// any more.
func (c *Client) ChangeWebhookEndpoint(ctx context.Context, id string, change WebhookEndpointChange) (WebhookEndpoint, error) {
	return call[WebhookEndpoint](ctx, c, request{method: http.MethodPatch, path: []string{"v1", "webhook-endpoints", id}, json: change, ifMatch: change.IfMatch})
}

// WebhookEndpoints returns all webhook endpoints, newest first. There are at most 50.
func (c *Client) WebhookEndpoints(ctx context.Context) ([]WebhookEndpoint, error) {
	out, err := get[list[WebhookEndpoint]](ctx, c, "v1", "webhook-endpoints")
	return out.Items, err
}

// WebhookEndpoint returns a webhook endpoint.
func (c *Client) WebhookEndpoint(ctx context.Context, id string) (WebhookEndpoint, error) {
	return get[WebhookEndpoint](ctx, c, "v1", "webhook-endpoints", id)
}

// DeleteWebhookEndpoint deletes a webhook endpoint and its deliveries.
func (c *Client) DeleteWebhookEndpoint(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: []string{"v1", "webhook-endpoints", id}}, nil)
}

// RotateWebhookSecret replaces the secret of a webhook endpoint. Only this result has
// the new one. For 24 hours, deliveries are signed with both.
func (c *Client) RotateWebhookSecret(ctx context.Context, id string) (WebhookEndpoint, error) {
	return post[WebhookEndpoint](ctx, c, nil, "v1", "webhook-endpoints", id, "rotate-secret")
}

// TestWebhookEndpoint sends the event webhook.test to a webhook endpoint, and returns
// the delivery, which is PENDING.
func (c *Client) TestWebhookEndpoint(ctx context.Context, id string) (WebhookDelivery, error) {
	return post[WebhookDelivery](ctx, c, nil, "v1", "webhook-endpoints", id, "test")
}

// WebhookDeliveries iterates over the deliveries to a webhook endpoint, latest
// first: all, or only those in a state.
func (c *Client) WebhookDeliveries(ctx context.Context, endpoint, state string) iter.Seq2[WebhookDelivery, error] {
	return pages[WebhookDelivery](ctx, c, []string{"v1", "webhook-endpoints", endpoint, "deliveries"}, filled(map[string]string{"state": state}))
}

// WebhookDelivery returns a delivery to a webhook endpoint.
func (c *Client) WebhookDelivery(ctx context.Context, endpoint, id string) (WebhookDelivery, error) {
	return get[WebhookDelivery](ctx, c, "v1", "webhook-endpoints", endpoint, "deliveries", id)
}

// ResendWebhookDelivery sends a delivery again, with the same message ID and all of its
// attempts left. If the endpoint is disabled, it returns a *Problem with the code
// ENDPOINT_DISABLED.
func (c *Client) ResendWebhookDelivery(ctx context.Context, endpoint, id string) (WebhookDelivery, error) {
	return post[WebhookDelivery](ctx, c, nil, "v1", "webhook-endpoints", endpoint, "deliveries", id, "resend")
}
