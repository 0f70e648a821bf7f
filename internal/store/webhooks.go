package store

import (
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// WebhookEvents are the events of webhook endpoints. The position of an event is its
// number in the database, so none may be removed or moved. The first one is only sent on
// demand. Those from payout.failed on are bulk events: there can be as many as payouts
// or coupons.
var WebhookEvents = append([]string{WebhookTest}, reward.WebhookEvents...)

// WebhookTest is the event that tests an endpoint.
const WebhookTest = "webhook.test"

// Numbers of events in WebhookEvents that statements of the drivers name.
const (
	WebhookApprovalNeeded = 5
	WebhookBreach         = 6
	WebhookPayoutFailed   = 7
	WebhookPayoutUnknown  = 8
	WebhookCouponIssued   = 9
	WebhookBulkFirst      = 7
)

// WebhookEndpointsMax limits the endpoints, because each event is recorded for each of
// them.
const WebhookEndpointsMax = 50

// WebhookEndpoints stores the receivers of events and what is delivered to them.
//
// An event is recorded for each enabled endpoint that asks for it, in the same
// transaction as the change that it reports. All times are the database's.
type WebhookEndpoints interface {
	// WebhookEndpointCreate stores an endpoint under its ID, or returns CodeExists. It
	// returns CodeTooManyEndpoints if there are WebhookEndpointsMax already.
	WebhookEndpointCreate(ctx context.Context, e WebhookEndpoint) (WebhookEndpoint, error)
	// WebhookEndpointList returns all endpoints by descending ID, with their pending
	// deliveries, of which it counts at most limit per endpoint.
	WebhookEndpointList(ctx context.Context, limit int) ([]WebhookEndpoint, error)
	// WebhookEndpointGet returns an endpoint, or CodeEndpointNotFound.
	WebhookEndpointGet(ctx context.Context, id int64, limit int) (WebhookEndpoint, error)
	// WebhookEndpointChange changes what p names. Enabling an endpoint forgets why it
	// was disabled, and its failures. Its pending deliveries are due as they were. Another
	// URL comes with p.NewSecret, and no earlier secret is valid.
	WebhookEndpointChange(ctx context.Context, id int64, p WebhookEndpointChange) (WebhookEndpoint, error)
	// WebhookEndpointRotate replaces the secret. The previous one is valid for a time.
	WebhookEndpointRotate(ctx context.Context, id int64, secret string, previousFor time.Duration) (WebhookEndpoint, error)
	// WebhookEndpointDelete deletes an endpoint. WebhookDeliveryTrim deletes its
	// deliveries.
	WebhookEndpointDelete(ctx context.Context, id int64) error

	// WebhookEndpointsDue returns the enabled endpoints with a delivery that is due.
	WebhookEndpointsDue(ctx context.Context) ([]WebhookEndpoint, error)
	// WebhookDeliveryClaim returns at most limit pending deliveries of an endpoint that
	// are due, the longest due first. No other caller can claim them during the lease.
	WebhookDeliveryClaim(ctx context.Context, endpoint int64, limit int, lease time.Duration) ([]EndpointDelivery, error)
	// WebhookDeliveryRecord stores an attempt and what follows from it. It reports
	// whether it disabled the endpoint. A delivery that is not pending any more stays as it
	// is, and one that was deleted is ignored.
	WebhookDeliveryRecord(ctx context.Context, a WebhookAttemptRecord) (disabled bool, err error)
	// WebhookDeliveryList returns a page of deliveries of an endpoint by descending ID.
	WebhookDeliveryList(ctx context.Context, p WebhookDeliveryListParams) ([]EndpointDelivery, error)
	// WebhookDeliveryGet returns a delivery and its attempts, or CodeDeliveryNotFound.
	WebhookDeliveryGet(ctx context.Context, endpoint, id int64) (EndpointDelivery, error)
	// WebhookDeliveryResend makes a delivery pending and due, with all its tries left. It
	// returns CodeEndpointDisabled if the endpoint is disabled.
	WebhookDeliveryResend(ctx context.Context, endpoint, id int64) (EndpointDelivery, error)
	// WebhookDeliveryTest records WebhookTest for an endpoint, or returns
	// CodeEndpointDisabled.
	WebhookDeliveryTest(ctx context.Context, endpoint int64) (EndpointDelivery, error)
	// WebhookDeliveryOwners returns the IDs of endpoints with deliveries, also of deleted
	// endpoints.
	WebhookDeliveryOwners(ctx context.Context) ([]int64, error)
	// WebhookDeliveryTrim limits what is stored for an endpoint. It deletes old
	// deliveries, abandons pending ones that are too old, and deletes what belonged to a
	// deleted endpoint. If too many are pending, it drops the oldest bulk events among
	// them.
	WebhookDeliveryTrim(ctx context.Context, p WebhookTrimParams) (WebhookTrimResult, error)
}

// WebhookEndpoint is a receiver of events.
type WebhookEndpoint struct {
	ID             int64
	URL            string
	Description    string
	Events         []string // of WebhookEvents, in their order
	Enabled        bool
	DisabledReason string // empty if a person disabled it
	DisabledAt     time.Time
	Secret         string
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
	Description *string
	Events      []string
	Enabled     *bool
	NewSecret   string // replaces all secrets if URL is another than the present one
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

// EndpointDelivery is an event to deliver to an endpoint.
type EndpointDelivery struct {
	ID         int64
	EndpointID int64
	Event      string
	At         time.Time
	// PromotionID, TargetID and CouponID are zero if the event is not about one.
	PromotionID reward.PromotionID
	TargetID    *reward.TargetID
	CouponID    reward.CouponID
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
	Error  string // empty if the receiver accepted the delivery
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
