package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	trimInterval = time.Minute                 // between looks at what is stored
	callsMax     = 4                           // calls in flight to an endpoint
	claimBatch   = 2 * callsMax                // deliveries claimed at once
	claimLease   = 2 * time.Minute             // of a claimed delivery
	trimTimeout  = 30 * time.Second            // of one trim
	attemptMax   = mailTimeout + 3*RowsTimeout // of one attempt, of every kind
	// An endpoint that does not respond at all gets no call for a while.
	silenceBackoff, silenceBackoffMax = time.Second, time.Minute

	// An endpoint is disabled after some failures in a row over at least this time.
	disableAfter    = 72 * time.Hour
	disableFailures = 10

	kept       = 7 * 24 * time.Hour // deliveries after their end, and pending ones
	pendingMax = 100_000            // pending deliveries of an endpoint
	trimLimit  = 1000
)

// retries are the pauses after failed attempts, until a delivery is abandoned.
var retries = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 7 * time.Hour, 10 * time.Hour,
}

// Reasons for which an endpoint is disabled.
const (
	reasonFailing = "FAILING"
	reasonGone    = "GONE"
)

// Rows is the part of the store that a Deliverer uses.
type Rows interface {
	WebhookEndpointList(ctx context.Context, limit int) ([]store.WebhookEndpoint, error)
	WebhookEndpointCreate(ctx context.Context, e store.WebhookEndpoint) (store.WebhookEndpoint, error)
	WebhookEndpointGet(ctx context.Context, id int64, limit int) (store.WebhookEndpoint, error)
	WebhookEndpointsDue(ctx context.Context) ([]store.WebhookEndpoint, error)
	WebhookDeliveryClaim(ctx context.Context, endpoint int64, limit int, lease time.Duration) ([]store.EndpointDelivery, error)
	WebhookDeliveryRecord(ctx context.Context, a store.WebhookAttemptRecord) (disabled bool, err error)
	WebhookDeliveryOwners(ctx context.Context) ([]int64, error)
	WebhookDeliveryTrim(ctx context.Context, p store.WebhookTrimParams) (store.WebhookTrimResult, error)
	PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error)
	PayoutGet(ctx context.Context, id store.PayoutID) (reward.Payout, []reward.Attempt, error)
	CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
}

// Config configures a Deliverer.
type Config struct {
	Rows Rows
	// AllowPrivate allows receivers whose address is not public.
	AllowPrivate bool
	Notify       Notify
	Metrics      *obs.Metrics
	Log          obs.Log
}

// Notify configures messages to people.
type Notify struct {
	// SlackURL is the URL of endpoints of kind SLACK that have none. While it is set and there
	// is no endpoint of that kind, a Deliverer creates one for all of reward.PeopleEvents.
	SlackURL string
	// Languages are those of the console. The first one is that of that endpoint; without
	// any, it is English.
	Languages []string
	// Mail sends the messages of endpoints of kind EMAIL; nil: they fail.
	Mail *MailServer
	// ConsoleURL is the URL of the console, for links; "" means none.
	ConsoleURL string
	// Zone is that of times in messages; nil: that of this process.
	Zone *time.Location
}

// Deliverer delivers events to webhook endpoints. A delivery is claimed under a lease,
// and retried until the receiver accepts it. After a crash it may be sent again under
// the same ID. Each endpoint has calls and pauses of its own, so none delays another.
type Deliverer struct {
	service.Base
	cfg       Config
	log       obs.Log
	transport http.RoundTripper

	mu        sync.Mutex // protects endpoints
	endpoints map[int64]*receiver
}

type receiver struct {
	working   bool // a goroutine delivers to it
	silent    int  // attempts in a row without a response
	notBefore time.Time
}

// NewDeliverer returns a Deliverer that sends nothing before Start.
func NewDeliverer(cfg Config) *Deliverer {
	return &Deliverer{
		cfg: cfg, log: cfg.Log.For(obs.Webhook), transport: NewTransport(cfg.AllowPrivate), endpoints: make(map[int64]*receiver),
	}
}

// Start delivers in the background until Stop.
func (d *Deliverer) Start(ctx context.Context) {
	d.Base.Start(ctx, func(ctx context.Context) {
		var trimming sync.WaitGroup
		trimming.Go(func() {
			Rounds(ctx, trimInterval, d.log.Streak("trimming webhook deliveries failed", "trimming webhook deliveries works again"), d.trim)
		})
		Rounds(ctx, LookInterval, d.log.Streak("webhook endpoint store unavailable", "webhook endpoint store available again"), d.look)
		trimming.Wait()
	})
}

// look starts to deliver to the endpoints that have something due.
func (d *Deliverer) look(ctx, calls context.Context, working *sync.WaitGroup) (more bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, RowsTimeout)
	defer cancel()
	due, err := d.cfg.Rows.WebhookEndpointsDue(bounded)
	if err != nil {
		return false, fmt.Errorf("find due webhook endpoints: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range due {
		r := d.endpoints[e.ID]
		if r == nil {
			r = &receiver{}
			d.endpoints[e.ID] = r
		}
		if !r.working && !time.Now().Before(r.notBefore) {
			r.working = true
			working.Go(func() { d.work(ctx, calls, e.ID, r) })
		}
	}
	return false, nil
}

// work delivers to an endpoint until nothing is due, or it does not respond.
func (d *Deliverer) work(ctx, calls context.Context, id int64, r *receiver) {
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		r.working = false
	}()
	for ctx.Err() == nil && d.mayCall(r) {
		e, claimed, err := d.claim(ctx, id)
		if err != nil && ctx.Err() == nil {
			d.log.Warn("claiming webhook deliveries failed", err, "endpoint", id)
		}
		if err != nil || len(claimed) == 0 {
			return
		}
		until := time.Now().Add(claimLease)
		next := make(chan store.EndpointDelivery, len(claimed))
		for _, c := range claimed {
			next <- c
		}
		close(next)
		var sending sync.WaitGroup
		for range min(callsMax, len(claimed)) {
			sending.Go(func() {
				for c := range next {
					// Others may claim what could not be recorded before the lease ends.
					if ctx.Err() != nil || !d.mayCall(r) || time.Until(until) < attemptMax {
						return
					}
					d.deliver(calls, e, c, r)
				}
			})
		}
		sending.Wait()
	}
}

// claim returns an endpoint, and claims deliveries to it unless it is disabled.
func (d *Deliverer) claim(ctx context.Context, id int64) (store.WebhookEndpoint, []store.EndpointDelivery, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*RowsTimeout)
	defer cancel()
	e, err := d.cfg.Rows.WebhookEndpointGet(ctx, id, 0)
	if reward.HasCode(err, reward.CodeEndpointNotFound) {
		return e, nil, nil
	}
	if err != nil || !e.Enabled {
		return e, nil, err
	}
	claimed, err := d.cfg.Rows.WebhookDeliveryClaim(ctx, id, claimBatch, claimLease)
	return e, claimed, err
}

func (d *Deliverer) mayCall(r *receiver) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !time.Now().Before(r.notBefore)
}

func (d *Deliverer) heard(r *receiver, responded bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if responded {
		r.silent = 0
		return
	}
	if now := time.Now(); !now.Before(r.notBefore) { // calls in flight together count once
		r.notBefore = now.Add(service.Backoff(r.silent, silenceBackoff, silenceBackoffMax))
		r.silent++
	}
}

func (d *Deliverer) deliver(ctx context.Context, e store.WebhookEndpoint, c store.EndpointDelivery, r *receiver) {
	attrs := []any{"endpoint", e.ID, "event", c.Event, "delivery", c.ID, "attempt", c.Attempts + 1}
	body, err := d.compose(ctx, c)
	if err != nil {
		d.log.Warn("composing webhook failed", err, attrs...)
		return
	}
	began := time.Now()
	status, refused, err := d.send(ctx, e, c, body)
	if status == 0 && ctx.Err() != nil {
		return // a stop is no failure of the receiver; the delivery is sent again
	}
	if c.Event != store.WebhookTest {
		d.heard(r, status != 0)
	}
	a := store.WebhookAttemptRecord{
		EndpointID: e.ID, DeliveryID: c.ID, Test: c.Event == store.WebhookTest, Status: status, Took: time.Since(began), Body: body,
		DisableAfter: disableAfter, DisableFailures: disableFailures, DisableReason: reasonFailing,
	}
	attrs = append(attrs, "status", status)
	if err == nil {
		a.State, a.Error = store.WebhookDelivered, strings.Join(refused, "; ")
		d.cfg.Metrics.WebhookAttempted(obs.WebhookDelivered)
		d.log.Debug("webhook delivered", attrs...)
	} else {
		a.Error = Reason(err)
		d.afterFailure(&a, c, err, attrs)
	}
	d.record(ctx, &a, attrs)
}

// send makes one attempt. refused has the addresses that a mail server did not accept.
func (d *Deliverer) send(ctx context.Context, e store.WebhookEndpoint, c store.EndpointDelivery, body []byte) (status int, refused []string, err error) {
	now, id := time.Now(), MessageID(c)
	if e.Kind == store.KindWebhook {
		header, secrets := http.Header{}, []string{e.Secret}
		if e.PreviousSecret != "" {
			secrets = append(secrets, e.PreviousSecret)
		}
		Sign(header, id, now, body, secrets...)
		status, err = Post(ctx, d.transport, e.URL, header, body)
		return status, nil, err
	}
	n, err := describe(body, e.Language, d.cfg.Notify.ConsoleURL, d.cfg.Notify.Zone)
	if err != nil {
		return 0, nil, err
	}
	if e.Kind == store.KindEmail {
		if d.cfg.Notify.Mail == nil {
			return 0, nil, errNoMail
		}
		message, err := d.cfg.Notify.Mail.compose(&n, id, e.To, now)
		if err != nil {
			return 0, nil, err
		}
		return d.cfg.Notify.Mail.send(ctx, e.To, message)
	}
	address := cmp.Or(e.URL, d.cfg.Notify.SlackURL)
	if address == "" {
		return 0, nil, errNoSlack
	}
	message, err := n.slack()
	if err == nil {
		status, err = Post(ctx, d.transport, address, nil, message)
	}
	return status, nil, err
}

var (
	errNoMail  = errors.New("notify.smtp-url is not set, so no e-mail can be sent")
	errNoSlack = errors.New("the endpoint has no URL, and notify.slack-url is not set")
)

// afterFailure decides what follows from a failed attempt. A test has only one.
func (d *Deliverer) afterFailure(a *store.WebhookAttemptRecord, c store.EndpointDelivery, err error, attrs []any) {
	if a.Status == http.StatusGone && !a.Test { // no reply of a mail server has this code
		a.DisableNow, a.DisableReason = true, reasonGone
	}
	if c.Tries < len(retries) && !a.Test {
		a.RetryAfter = service.Jitter(retries[c.Tries], 0.1)
		d.cfg.Metrics.WebhookAttempted(obs.WebhookRetried)
		d.log.Warn("sending webhook failed", err, append(attrs, "retry_after", a.RetryAfter)...)
		return
	}
	a.State = store.WebhookAbandoned
	d.cfg.Metrics.WebhookAttempted(obs.WebhookAbandoned)
	d.log.Error("webhook abandoned", err, attrs...)
}

// MessageID returns the webhook-id of a delivery. By the time of the event, a database
// that was restored from a backup does not use an ID again.
func MessageID(c store.EndpointDelivery) string {
	return fmt.Sprintf("msg_%d_%d", c.ID, c.At.UnixMicro())
}

var errDisabled = errors.New("its attempts failed for days, or it responded 410 Gone; enable it when the receiver works again")

// record writes the result of an attempt, even during a stop. If it fails, the delivery
// is sent again.
func (d *Deliverer) record(ctx context.Context, a *store.WebhookAttemptRecord, attrs []any) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RowsTimeout)
	defer cancel()
	disabled, err := d.cfg.Rows.WebhookDeliveryRecord(ctx, *a)
	if err != nil {
		d.log.Warn("recording webhook attempt failed", err, attrs...)
	}
	if disabled {
		d.log.Error("webhook endpoint disabled", errDisabled, "endpoint", a.EndpointID, "reason", a.DisableReason)
	}
}

var errDropped = errors.New("too many deliveries are pending, so the oldest payout and coupon events were dropped")

// trim limits what is stored, and measures it.
func (d *Deliverer) trim(ctx, _ context.Context, _ *sync.WaitGroup) (more bool, err error) {
	owners, err := d.cfg.Rows.WebhookDeliveryOwners(ctx)
	if err != nil {
		return false, fmt.Errorf("find endpoints with deliveries: %w", err)
	}
	for _, id := range owners {
		p := store.WebhookTrimParams{EndpointID: id, Kept: kept, PendingMax: pendingMax, Limit: trimLimit}
		for left := true; left && ctx.Err() == nil; {
			r, err := d.trimStep(ctx, p)
			if err != nil {
				return false, err
			}
			left = r.More(p)
		}
	}
	endpoints, err := d.cfg.Rows.WebhookEndpointList(ctx, pendingMax)
	if err != nil {
		return false, fmt.Errorf("list webhook endpoints: %w", err)
	}
	if err := d.createChannel(ctx, endpoints); err != nil {
		return false, fmt.Errorf("create the endpoint of notify.slack-url: %w", err)
	}
	backlog, disabled := 0, 0
	for _, e := range endpoints {
		backlog += e.Pending
		if !e.Enabled {
			disabled++
		}
	}
	d.cfg.Metrics.WebhookEndpoints(backlog, disabled)
	return false, nil
}

// channelID is the ID of the endpoint that createChannel creates: no other can have it, and
// instances that create it together create it once.
const channelID = 1

// createChannel creates an endpoint for all events of which people are told, if
// notify.slack-url is set and there is no endpoint of its kind, and room for one.
func (d *Deliverer) createChannel(ctx context.Context, endpoints []store.WebhookEndpoint) error {
	if d.cfg.Notify.SlackURL == "" || slices.ContainsFunc(endpoints, func(e store.WebhookEndpoint) bool { return e.Kind == store.KindSlack }) {
		return nil
	}
	_, err := d.cfg.Rows.WebhookEndpointCreate(ctx, store.WebhookEndpoint{
		ID: channelID, Kind: store.KindSlack, Language: strings.Join(d.cfg.Notify.Languages[:min(1, len(d.cfg.Notify.Languages))], ""), Events: reward.PeopleEvents, Enabled: true,
		CreatedAt: time.Now(), CreatedBy: "largesse",
	})
	if reward.HasCode(err, reward.CodeExists) || reward.HasCode(err, reward.CodeTooManyEndpoints) {
		return nil
	}
	return err
}

func (d *Deliverer) trimStep(ctx context.Context, p store.WebhookTrimParams) (store.WebhookTrimResult, error) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	r, err := d.cfg.Rows.WebhookDeliveryTrim(ctx, p)
	if err != nil {
		return r, fmt.Errorf("trim the deliveries to an endpoint: %w", err)
	}
	if r.Dropped > 0 {
		d.cfg.Metrics.WebhooksDropped(r.Dropped)
		d.log.Warn("webhook events dropped", errDropped, "endpoint", p.EndpointID, "count", r.Dropped)
	}
	if r.Abandoned > 0 {
		d.log.Warn("old webhooks abandoned", errors.New("they are too old"), "endpoint", p.EndpointID, "count", r.Abandoned)
	}
	return r, nil
}
