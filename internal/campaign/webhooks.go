package campaign

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/webhook"
)

const (
	webhookBatch      = 64          // deliveries claimed at once
	webhookLease      = time.Minute // of a claimed delivery
	webhookCallsMax   = 8           // calls in flight
	webhookWaitingMax = 256         // claimed deliveries that wait for one host
	// A failed delivery is tried again after webhookBackoff, doubled each time
	// up to webhookBackoffMax. It is abandoned webhookAbandonAfter after its
	// event.
	webhookBackoff      = 5 * time.Second
	webhookBackoffMax   = time.Hour
	webhookAbandonAfter = 72 * time.Hour
	// webhookHostBackoffMax limits the backoff of a host that does not respond.
	// Its failures are remembered for webhookHostTTL after that.
	webhookHostBackoffMax = time.Minute
	webhookHostTTL        = 5 * time.Minute
)

// The headers of a delivery; see docs/webhooks.md.
const (
	headerEvent     = "Largesse-Event"
	headerDelivery  = "Largesse-Delivery"
	headerSignature = "Largesse-Signature"
)

// webhookRows is the part of the store that Webhooks uses.
type webhookRows interface {
	WebhookClaim(ctx context.Context, limit int, until, now time.Time) ([]store.WebhookDelivery, error)
	WebhookDone(ctx context.Context, id int64, status int, detail string, now time.Time) error
	WebhookReschedule(ctx context.Context, id int64, status int, detail string, nextAt time.Time) error
	PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error)
}

// WebhooksConfig configures Webhooks.
type WebhooksConfig struct {
	Rows webhookRows
	// Secret signs deliveries. If it is empty, nothing is sent.
	Secret string
	// AllowPrivate allows receivers whose address is not public.
	AllowPrivate bool
	Metrics      *obs.Metrics
	Log          obs.Log
}

// Webhooks sends the events of promotions to their webhooks. Each delivery is a row
// with its own id, claimed under a lease, and retried until the receiver accepts it.
// After a crash it may be sent again under the same id.
//
// One call at a time goes to each host, and none to a host that does not respond, so
// that it does not delay the others.
type Webhooks struct {
	service.Base
	cfg    WebhooksConfig
	log    obs.Log
	client http.RoundTripper
	slots  chan struct{} // holds one value per call in flight

	mu    sync.Mutex // protects hosts
	hosts map[string]*webhookHost
}

type webhookHost struct {
	waiting   []claimedDelivery
	working   bool // a goroutine sends to the host
	silent    int  // attempts in a row without a response
	notBefore time.Time
}

// claimedDelivery is a delivery that belongs to this instance until a time.
type claimedDelivery struct {
	store.WebhookDelivery
	until time.Time
}

// NewWebhooks returns Webhooks that send nothing before Start.
func NewWebhooks(cfg WebhooksConfig) *Webhooks {
	return &Webhooks{
		cfg: cfg, log: cfg.Log.For(obs.Webhook),
		slots: make(chan struct{}, webhookCallsMax), hosts: make(map[string]*webhookHost),
		client: webhook.NewTransport(cfg.AllowPrivate),
	}
}

// Start sends in the background until Stop. Other instances, or the next start, send
// what remains then.
func (w *Webhooks) Start(ctx context.Context) {
	w.Base.Start(ctx, func(ctx context.Context) {
		if w.cfg.Secret != "" {
			webhook.Rounds(ctx, webhook.LookInterval, w.log.Streak("webhook store unavailable", "webhook store available again"), w.round)
		}
	})
}

// round claims deliveries that are due for their hosts. Those to a host that is full or
// backing off are due again when their lease ends.
func (w *Webhooks) round(ctx, calls context.Context, working *sync.WaitGroup) (more bool, err error) {
	now := time.Now()
	bounded, cancel := context.WithTimeout(ctx, webhook.RowsTimeout)
	defer cancel()
	due, err := w.cfg.Rows.WebhookClaim(bounded, webhookBatch, now.Add(webhookLease), now)
	if err != nil {
		return false, fmt.Errorf("claim webhooks that are due: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, h := range w.hosts {
		if !h.working && now.Sub(h.notBefore) > webhookHostTTL {
			delete(w.hosts, name)
		}
	}
	for _, d := range due {
		name := hostOf(d.URL)
		h := w.hosts[name]
		if h == nil {
			h = &webhookHost{}
			w.hosts[name] = h
		}
		if now.Before(h.notBefore) || len(h.waiting) == webhookWaitingMax {
			continue
		}
		h.waiting = append(h.waiting, claimedDelivery{d, now.Add(webhookLease)})
		if !h.working {
			h.working = true
			working.Go(func() { w.work(ctx, calls, h) })
		}
	}
	return len(due) == webhookBatch, nil
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

func (w *Webhooks) work(ctx, calls context.Context, h *webhookHost) {
	for {
		select {
		case w.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		d, ok := w.next(ctx, h)
		if !ok {
			<-w.slots
			return
		}
		w.deliver(calls, h, d)
		<-w.slots
	}
}

// recordResponse backs off from a host that did not respond, and leaves its waiting
// deliveries to be claimed again.
func (w *Webhooks) recordResponse(h *webhookHost, responded bool, now time.Time) (notBefore time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if responded {
		h.silent = 0
		return time.Time{}
	}
	h.notBefore = now.Add(service.Backoff(h.silent, webhookBackoff, webhookHostBackoffMax))
	h.silent++
	h.waiting = nil
	return h.notBefore
}

// next returns the next delivery to a host that can be sent before its lease ends.
func (w *Webhooks) next(ctx context.Context, h *webhookHost) (claimedDelivery, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ctx.Err() == nil && len(h.waiting) > 0 {
		d := h.waiting[0]
		h.waiting = h.waiting[1:]
		if time.Until(d.until) > webhook.AttemptMax {
			return d, true
		}
	}
	h.working, h.waiting = false, nil
	return claimedDelivery{}, false
}

func (w *Webhooks) deliver(ctx context.Context, h *webhookHost, d claimedDelivery) {
	attrs := []any{"promotion_id", d.PromotionID, "event", d.Event, "delivery", d.ID, "attempt", d.FailedAttempts + 1}
	body, err := w.compose(ctx, d.WebhookDelivery)
	if reward.HasCode(err, reward.CodeNotFound) {
		w.abandon(ctx, d, 0, err, attrs)
		return
	}
	if err != nil {
		w.log.Warn("reading promotion for webhook failed", err, attrs...)
		return
	}
	header := http.Header{}
	header.Set(headerEvent, d.Event)
	header.Set(headerDelivery, strconv.FormatInt(d.ID, 10))
	header.Set(headerSignature, signature(w.cfg.Secret, time.Now(), body))
	status, err := webhook.Post(ctx, w.client, d.URL, header, body)
	now := time.Now()
	if status == 0 && ctx.Err() != nil {
		return // a stop is no failure of the receiver; the delivery is sent again
	}
	hostNotBefore := w.recordResponse(h, status != 0, now)
	if err == nil {
		w.cfg.Metrics.WebhookAttempted(obs.WebhookDelivered)
		w.log.Info("webhook delivered", append(attrs, "status", status)...)
		w.record(ctx, attrs, func(ctx context.Context) error { return w.cfg.Rows.WebhookDone(ctx, d.ID, status, "", now) })
		return
	}
	if status == http.StatusGone || now.Sub(d.At) >= webhookAbandonAfter {
		w.abandon(ctx, d, status, err, attrs)
		return
	}
	nextAt := now.Add(service.Backoff(d.FailedAttempts, webhookBackoff, webhookBackoffMax))
	if nextAt.Before(hostNotBefore) {
		nextAt = hostNotBefore
	}
	w.cfg.Metrics.WebhookAttempted(obs.WebhookRetried)
	w.log.Warn("sending webhook failed", err, append(attrs, "status", status, "next_at", nextAt.UTC())...)
	w.record(ctx, attrs, func(ctx context.Context) error {
		return w.cfg.Rows.WebhookReschedule(ctx, d.ID, status, webhook.Reason(err), nextAt)
	})
}

func (w *Webhooks) abandon(ctx context.Context, d claimedDelivery, status int, why error, attrs []any) {
	w.cfg.Metrics.WebhookAttempted(obs.WebhookAbandoned)
	w.log.Error("webhook abandoned", why, append(attrs, "status", status)...)
	w.record(ctx, attrs, func(ctx context.Context) error {
		return w.cfg.Rows.WebhookDone(ctx, d.ID, status, "abandoned: "+webhook.Reason(why), time.Now())
	})
}

// record writes the result of an attempt, even during a stop. If it fails, the delivery
// is sent again.
func (w *Webhooks) record(ctx context.Context, attrs []any, write func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), webhook.RowsTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		w.log.Warn("recording webhook attempt failed", err, attrs...)
	}
}

// webhookBody is the body of a delivery. Ids are strings, because they exceed 2^53.
type webhookBody struct {
	ID          int64              `json:"id,string"`
	Event       string             `json:"event"`
	PromotionID reward.PromotionID `json:"promotionId,string"`
	At          time.Time          `json:"at"`
	webhook.PromotionData
	Currency string `json:"currency"` // also if it is empty
}

// compose returns the body of a delivery, with the promotion as of now.
func (w *Webhooks) compose(ctx context.Context, d store.WebhookDelivery) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, webhook.RowsTimeout)
	defer cancel()
	v, err := w.cfg.Rows.PromotionGet(ctx, d.PromotionID)
	if err != nil {
		return nil, fmt.Errorf("read the webhook's promotion: %w", err)
	}
	return json.Marshal(webhookBody{
		ID: d.ID, Event: d.Event, PromotionID: d.PromotionID, At: d.At.UTC(),
		PromotionData: webhook.DescribePromotion(v), Currency: v.Currency,
	})
}

// signature returns t=<Unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">. Receivers
// can refuse old times, and so replayed deliveries.
func signature(secret string, at time.Time, body []byte) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
