package store

import (
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// WebhookEvents are the events of webhook endpoints. The position of an event is its
// number in the database, so none may be removed or moved. The first one is only sent on
// demand. Those from payout.failed to coupon.used are bulk events: there can be as many as
// payouts or coupons.
var WebhookEvents = append([]string{WebhookTest}, reward.WebhookEvents...)

// WebhookTest is the event that tests an endpoint.
const WebhookTest = "webhook.test"

// Numbers of events in WebhookEvents that statements of the drivers name.
const (
	WebhookPaused         = 2
	WebhookApprovalNeeded = 5
	WebhookBreach         = 6
	WebhookPayoutFailed   = 7
	WebhookPayoutUnknown  = 8
	WebhookCouponIssued   = 9
	WebhookSoldOut        = 12
	WebhookBulkFirst      = 7
	WebhookBulkLast       = 11
)

// WebhookEndpointsMax limits the endpoints, because each event is recorded for each of
// them.
const WebhookEndpointsMax = 50

// WebhookKind says what an endpoint is, and which messages it gets.
type WebhookKind string

// The kinds. Those other than KindWebhook are for people: they hear only of
// reward.PeopleEvents, and of a pause only if Largesse paused the promotion, for a reason that
// has no event of its own.
const (
	KindWebhook WebhookKind = "WEBHOOK" // another system: signed webhooks
	KindSlack   WebhookKind = "SLACK"   // a channel: incoming webhooks as of Slack
	KindEmail   WebhookKind = "EMAIL"   // people by e-mail
)

// WebhookEndpoint is a receiver of events.
type WebhookEndpoint struct {
	ID   int64
	Kind WebhookKind // never changes
	// URL is empty for KindEmail, and for KindSlack if it is the one of the settings.
	URL            string
	To             []string // e-mail addresses, for KindEmail
	Language       string   // of messages to people; empty: the default
	Description    string
	Events         []string // of WebhookEvents, in their order
	Enabled        bool
	DisabledReason string // empty if a person disabled it
	DisabledAt     time.Time
	Secret         string // empty for messages to people, which are not signed
	// PreviousSecret signs, too, until PreviousUntil. It is empty afterwards.
	PreviousSecret string
	PreviousUntil  time.Time
	// FailingSince is the first of the Failures attempts that failed since the last
	// success. LastError is the latest of them.
	FailingSince time.Time
	Failures     int
	LastError    string
	DeliveredAt  time.Time // to the minute
	// Overflowing means that bulk events are dropped. Dropped counts them.
	Overflowing bool
	Dropped     int64
	DroppedAt   time.Time
	CreatedAt   time.Time
	CreatedBy   string
	Pending     int
}

// WebhookEndpointChange has what changes; nil does not.
type WebhookEndpointChange struct {
	URL         *string
	To          []string
	Language    *string
	Description *string
	Events      []string
	Enabled     *bool
	NewSecret   string // replaces all secrets, if there are some and URL is another than the present one
	// Was is the endpoint as the caller has seen it; nil means any. If something that can
	// change is not as in Was, nothing changes, and the error is CodePreconditionFailed.
	Was *WebhookEndpoint
}

// WebhookDeliveryState is the state of a delivery to an endpoint.
type WebhookDeliveryState int

// The states of a delivery.
const (
	WebhookPending WebhookDeliveryState = iota
	WebhookDelivered
	WebhookAbandoned
)

// EndpointDelivery is an event to deliver to an endpoint. It is recorded for each enabled
// endpoint that asks for it, in the same transaction as the change that it reports. All
// times are the database's.
type EndpointDelivery struct {
	ID         int64
	EndpointID int64
	Event      string
	At         time.Time
	// PromotionID, TargetID, CouponID and TemplateID are zero if the event is not about one.
	PromotionID reward.PromotionID
	TargetID    *reward.TargetID
	CouponID    reward.CouponID
	TemplateID  reward.TemplateID
	State       WebhookDeliveryState
	Attempts    int // all that were made
	Tries       int // those since the event or the latest resend
	DueAt       time.Time
	DoneAt      time.Time
	Body        []byte           // nil before the first recorded attempt
	Log         []WebhookAttempt // only in the result of WebhookDeliveryGet
}

// WebhookAttempt is one call of a receiver.
type WebhookAttempt struct {
	Number int
	At     time.Time
	Status int // HTTP status; 0: no response
	Millis int64
	Error  string // of a delivered one: the addresses that the mail server has refused
}

// WebhookAttemptRecord is an attempt, and what follows from it.
type WebhookAttemptRecord struct {
	EndpointID int64
	DeliveryID int64
	Status     int
	Took       time.Duration
	Error      string
	State      WebhookDeliveryState
	RetryAfter time.Duration // if it stays pending
	Body       []byte
	// Test reports whether the event is WebhookTest: its attempt changes nothing of the endpoint.
	Test bool
	// DisableNow disables the endpoint. It is also disabled after DisableFailures failed
	// attempts over at least DisableAfter. DisableReason is stored with it.
	DisableNow      bool
	DisableAfter    time.Duration
	DisableFailures int
	DisableReason   string
}

// WebhookDeliveryListParams selects deliveries of an endpoint.
type WebhookDeliveryListParams struct {
	EndpointID int64
	State      *WebhookDeliveryState // nil: all
	Before     int64                 // ID below which the page begins; 0: at the latest
	Limit      int
}

// WebhookTrimParams are the limits of what is stored.
type WebhookTrimParams struct {
	EndpointID int64
	Kept       time.Duration // since the end of a delivery, or since its event while it is pending
	PendingMax int
	Limit      int // deliveries that one call deletes or abandons of each kind
}

// WebhookTrimResult tells what a trim did.
type WebhookTrimResult struct {
	Deleted, Abandoned, Dropped int
	Pending                     int // at most WebhookTrimParams.PendingMax plus Limit
}

// More reports whether another trim may find more to do.
func (r WebhookTrimResult) More(p WebhookTrimParams) bool {
	return r.Deleted >= p.Limit || r.Abandoned >= p.Limit || r.Dropped >= p.Limit
}

// WebhookEventBits returns the events as a number with a bit for each.
func WebhookEventBits(events []string) int64 {
	var bits int64
	for _, e := range events {
		if n := slices.Index(WebhookEvents, e); n > 0 {
			bits |= 1 << n
		}
	}
	return bits
}

// WebhookEventsOf returns the events of a number of WebhookEventBits.
func WebhookEventsOf(bits int64) []string {
	var events []string
	for n, e := range WebhookEvents {
		if bits>>n&1 == 1 {
			events = append(events, e)
		}
	}
	return events
}
