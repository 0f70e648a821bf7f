package campaign

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	webhookEvery   = time.Second      // pause between looks for deliveries that are due
	webhookBatch   = 64               // deliveries taken at a time
	webhookHold    = time.Minute      // for so long nobody else takes them
	webhookCalls   = 8                // open at once
	webhookWaiting = 256              // taken deliveries that wait for one host
	webhookTimeout = 10 * time.Second // of one call, the dial included
	webhookRows    = 2 * time.Second  // of one read or write of rows
	webhookStop    = 3 * time.Second  // what a stop leaves to open calls
	webhookAnswer  = 64 << 10         // bytes of an answer's headers, and of its body
	// A delivery that is not heard is tried again after webhookBase, doubled
	// each time up to webhookLimit, and given up webhookFor after it began.
	webhookBase  = 5 * time.Second
	webhookLimit = time.Hour
	webhookFor   = 72 * time.Hour
	// webhookRest is the longest that a host without an answer is left alone
	// for the sake of the others, webhookMemory how long after that it is known.
	webhookRest   = time.Minute
	webhookMemory = 5 * time.Minute
)

// The headers of a delivery; see docs/webhooks.md.
const (
	headerEvent     = "Largesse-Event"
	headerDelivery  = "Largesse-Delivery"
	headerSignature = "Largesse-Signature"
)

// WebhookRows is what the sender needs of the rows.
type WebhookRows interface {
	store.Webhooks
	PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error)
}

// WebhooksConfig is what a Webhooks needs.
type WebhooksConfig struct {
	Rows WebhookRows
	// Secret signs what is sent; "" = nothing is sent, as nobody could tell
	// whose it is (promotions cannot have webhooks then). [webhook.secret]
	Secret  string
	Metrics *obs.Metrics
	Log     obs.Log
}

// Webhooks tells the webhooks of promotions what has happened, until they
// have heard it. A delivery is a row with an id of its own; dying between the
// call and its record has it sent again under the same id. Several instances
// share the work by taking deliveries for a while.
//
// One call at a time is open to a host, and a host that does not answer rests,
// so that it does not hold up the others.
type Webhooks struct {
	service.Base
	cfg    WebhooksConfig
	log    obs.Log
	client http.RoundTripper
	slots  chan struct{} // holds one per open call

	mu    sync.Mutex // protects hosts
	hosts map[string]*webhookHost
}

// webhookHost is what waits for one host.
type webhookHost struct {
	waiting   []takenDelivery
	working   bool
	silent    int // tries in a row without any answer
	restUntil time.Time
}

// takenDelivery is a delivery that is ours until then.
type takenDelivery struct {
	store.WebhookDelivery
	until time.Time
}

// NewWebhooks makes a sender that sends nothing yet.
func NewWebhooks(cfg WebhooksConfig) *Webhooks {
	dialer := &net.Dialer{Timeout: webhookTimeout, Control: refuseLinkLocal}
	return &Webhooks{
		cfg: cfg, log: cfg.Log.For(obs.Webhook), slots: make(chan struct{}, webhookCalls), hosts: make(map[string]*webhookHost),
		// The transport is used directly: an http.Client would follow redirects.
		// No proxy: what it would be asked for is checked at our own dial only.
		client: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: webhookTimeout,
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: webhookAnswer,
		},
	}
}

var errLinkLocal = errors.New("link-local addresses are refused: they are where clouds keep the credentials of machines")

// metadataIPv6 is where a cloud keeps them though it is not link-local.
var metadataIPv6 = netip.MustParseAddr("fd00:ec2::254")

// refuseLinkLocal is asked with the address that a name was resolved to.
func refuseLinkLocal(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("the address %s cannot be read: %w", reward.Quote(address), err)
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip == metadataIPv6 {
		return errLinkLocal
	}
	return nil
}

// Start sends in the background until Stop.
func (w *Webhooks) Start(ctx context.Context) { w.Base.Start(ctx, w.run) }

// run sends until ctx ends; calls that are open then get a moment to end. What
// is left is sent by others, or after the next start.
func (w *Webhooks) run(ctx context.Context) {
	if w.cfg.Secret == "" {
		return
	}
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var working sync.WaitGroup
	failures := 0
	for ctx.Err() == nil {
		n, err := w.round(ctx, calls, &working)
		switch {
		case err != nil && ctx.Err() == nil:
			failures++
			if failures&(failures-1) == 0 {
				w.log.Warn("webhook store unavailable", err, "failures", failures)
			}
		case err == nil && failures > 0:
			w.log.Info("webhook store available again", "failures", failures)
			failures = 0
		}
		if n < webhookBatch {
			service.Sleep(ctx, service.Jitter(webhookEvery, 0.2))
		}
	}
	late := time.AfterFunc(webhookStop, cancel)
	defer late.Stop()
	working.Wait()
}

// round takes what is due and hands it to its hosts. What a host has no room
// for, or must not get now, is due again when the hold ends.
func (w *Webhooks) round(ctx, calls context.Context, working *sync.WaitGroup) (int, error) {
	now := time.Now()
	bounded, cancel := context.WithTimeout(ctx, webhookRows)
	defer cancel()
	due, err := w.cfg.Rows.WebhookTake(bounded, webhookBatch, now.Add(webhookHold), now)
	if err != nil {
		return 0, fmt.Errorf("take webhooks that are due: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, h := range w.hosts {
		if !h.working && now.Sub(h.restUntil) > webhookMemory {
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
		if now.Before(h.restUntil) || len(h.waiting) == webhookWaiting {
			continue
		}
		h.waiting = append(h.waiting, takenDelivery{d, now.Add(webhookHold)})
		if !h.working {
			h.working = true
			working.Go(func() { w.work(ctx, calls, h) })
		}
	}
	return len(due), nil
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// work tells a host what waits for it, one after the other, until nothing does.
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

// answered notes whether a host answered at all. One that does not rests, and
// what waits for it is left to be taken again.
func (w *Webhooks) answered(h *webhookHost, yes bool, now time.Time) (restUntil time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if yes {
		h.silent = 0
		return time.Time{}
	}
	h.restUntil = now.Add(service.Backoff(h.silent, webhookBase, webhookRest))
	h.silent++
	h.waiting = nil
	return h.restUntil
}

// next is what a host is told next, false when its work is done for now. What
// could no longer be told before its hold ends is left out.
func (w *Webhooks) next(ctx context.Context, h *webhookHost) (takenDelivery, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ctx.Err() == nil && len(h.waiting) > 0 {
		d := h.waiting[0]
		h.waiting = h.waiting[1:]
		if time.Until(d.until) > webhookTimeout+3*webhookRows {
			return d, true
		}
	}
	h.working, h.waiting = false, nil
	return takenDelivery{}, false
}

// deliver makes one try and notes what came of it.
func (w *Webhooks) deliver(ctx context.Context, h *webhookHost, d takenDelivery) {
	attrs := []any{"promotion_id", d.PromotionID, "event", d.Event, "delivery", d.ID, "attempt", d.Tries + 1}
	body, err := w.compose(ctx, d.WebhookDelivery)
	if reward.HasCode(err, reward.CodeNotFound) {
		w.giveUp(ctx, d, 0, err, attrs)
		return
	}
	if err != nil {
		w.log.Warn("reading promotion for webhook failed", err, attrs...)
		return
	}
	status, err := w.post(ctx, d.WebhookDelivery, body)
	now := time.Now()
	if err != nil && ctx.Err() != nil {
		return // a stop is no failure of the receiver; it is told again
	}
	rest := w.answered(h, err == nil, now)
	if err == nil && status/100 == 2 {
		w.cfg.Metrics.WebhookTold(obs.WebhookHeard)
		w.log.Info("webhook delivered", append(attrs, "status", status)...)
		w.note(ctx, func(ctx context.Context) error { return w.cfg.Rows.WebhookDone(ctx, d.ID, status, "", now) }, attrs)
		return
	}
	if err == nil {
		err = fmt.Errorf("the receiver answered with status %d", status)
	}
	if status == http.StatusGone || now.Sub(d.At) >= webhookFor {
		w.giveUp(ctx, d, status, err, attrs)
		return
	}
	nextAt := now.Add(service.Backoff(d.Tries, webhookBase, webhookLimit))
	if nextAt.Before(rest) {
		nextAt = rest
	}
	w.cfg.Metrics.WebhookTold(obs.WebhookLater)
	w.log.Warn("sending webhook failed", err, append(attrs, "status", status, "next_at", nextAt.UTC())...)
	w.note(ctx, func(ctx context.Context) error {
		return w.cfg.Rows.WebhookLater(ctx, d.ID, status, err.Error(), nextAt)
	}, attrs)
}

func (w *Webhooks) giveUp(ctx context.Context, d takenDelivery, status int, why error, attrs []any) {
	w.cfg.Metrics.WebhookTold(obs.WebhookGivenUp)
	w.log.Error("webhook abandoned", why, append(attrs, "status", status)...)
	w.note(ctx, func(ctx context.Context) error {
		return w.cfg.Rows.WebhookDone(ctx, d.ID, status, "given up: "+why.Error(), time.Now())
	}, attrs)
}

// note writes what came of a try, also while a stop has begun. When it cannot
// be written the delivery is sent again, under the same id.
func (w *Webhooks) note(ctx context.Context, write func(context.Context) error, attrs []any) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), webhookRows)
	defer cancel()
	if err := write(ctx); err != nil {
		w.log.Warn("recording webhook attempt failed", err, attrs...)
	}
}

// webhookBody is what a receiver reads. Ids are text: they pass 2^53.
type webhookBody struct {
	ID              int64                  `json:"id,string"`
	Event           string                 `json:"event"`
	PromotionID     reward.PromotionID     `json:"promotionId,string"`
	At              time.Time              `json:"at"`
	Name            string                 `json:"name"`
	Type            reward.PromotionType   `json:"type"`
	Status          reward.PromotionStatus `json:"status"`
	PauseReason     string                 `json:"pauseReason,omitempty"`
	TotalCount      int64                  `json:"totalCount"`
	ExpectedCount   *int64                 `json:"expectedCount,omitempty"`
	Counts          map[string]int64       `json:"counts"`
	AmountTotal     reward.Amount          `json:"amountTotal"`
	AmountSucceeded reward.Amount          `json:"amountSucceeded"`
	Currency        string                 `json:"currency"`
	StartedAt       time.Time              `json:"startedAt,omitzero"`
	FinishedAt      time.Time              `json:"finishedAt,omitzero"`
}

// compose tells of the promotion as it is now, which may be later than what
// has happened.
func (w *Webhooks) compose(ctx context.Context, d store.WebhookDelivery) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, webhookRows)
	defer cancel()
	v, err := w.cfg.Rows.PromotionGet(ctx, d.PromotionID)
	if err != nil {
		return nil, fmt.Errorf("read the promotion of a webhook: %w", err)
	}
	counts := make(map[string]int64, reward.StateCount)
	for s, n := range v.Counts.Payouts {
		counts[reward.State(s).JSONName()] = n
	}
	return json.Marshal(webhookBody{
		ID: d.ID, Event: d.Event, PromotionID: d.PromotionID, At: d.At.UTC(),
		Name: v.Name, Type: v.Type, Status: v.Status, PauseReason: v.PauseReason,
		TotalCount: v.Counts.Total(), ExpectedCount: v.ExpectedCount, Counts: counts,
		AmountTotal: v.Counts.AmountTotal(), AmountSucceeded: v.Counts.Amounts[reward.Succeeded], Currency: v.Currency,
		StartedAt: v.StartedAt.UTC(), FinishedAt: v.FinishedAt.UTC(),
	})
}

// post sends a delivery once. The status counts; of the answer's body no more
// is read than lets the receiver end in peace.
func (w *Webhooks) post(ctx context.Context, d store.WebhookDelivery, body []byte) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("the webhook's address cannot be read") // without the cause: it repeats the address, secrets and all
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "largesse")
	req.Header.Set(headerEvent, d.Event)
	req.Header.Set(headerDelivery, strconv.FormatInt(d.ID, 10))
	req.Header.Set(headerSignature, signature(w.cfg.Secret, time.Now(), body))
	resp, err := w.client.RoundTrip(req)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, fmt.Errorf("no answer within %v", webhookTimeout)
		}
		return 0, fmt.Errorf("no answer: %w", err)
	}
	_, _ = io.CopyN(io.Discard, resp.Body, webhookAnswer)
	_ = resp.Body.Close()
	return resp.StatusCode, nil
}

// signature is t=<Unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">. The time
// is that of the try, so that a receiver can refuse what is played again later.
func signature(secret string, at time.Time, body []byte) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
