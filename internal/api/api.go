// Package api is the HTTP API: promotions with their targets and payouts, coupon
// templates, coupon requests, coupons, dead letters, reconciliations, instances,
// API keys, the audit, metrics and health. It also holds the permissions of each
// operation. Each JSON operation is declared once, in Go; validation, responses and
// GET /openapi.json come from that declaration. The types of responses are those of
// package client. Package web has the plumbing.
package api

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/tracing"
	"github.com/largesse/largesse/internal/web"
)

// Title is the title in /openapi.json. The doctor recognizes an instance by it.
const Title = "Largesse"

// Config configures an API.
type Config struct {
	Promotions *campaign.Promotions
	// ApprovalAbove is the setting approval.above.
	ApprovalAbove reward.Limits
	Uploads       *campaign.Uploads
	// DeadLetters are messages that could not be parsed or processed.
	DeadLetters *campaign.DeadLetters
	// Reconciler compares the books of promotions on demand.
	Reconciler Reconciler
	Rows       Rows
	// Templates and Coupons manage coupon templates and issued coupons. Issuing
	// handles coupon requests, Watch follows them, and CouponReconciler compares
	// gates with rows.
	Templates        Templates
	Coupons          Coupons
	Issuing          Issuing
	Watch            WatchFunc
	CouponReconciler CouponReconciler
	// Texts returns the texts of the console in a language by their keys, for files of
	// reports.
	Texts func(language string) map[string]string
	// Streams is the part of the work queue that the API shows.
	Streams Streams
	// StreamNames returns the Redis key and the consumer group of a stream. Nil
	// means that streams are in process and have none.
	StreamNames func(s queue.Stream) (key, group string)
	// KafkaLags returns the lag of each topic. Nil means that there are none.
	KafkaLags func(ctx context.Context) ([]bus.TopicLag, error)
	// Metrics are shown at /metrics. Nil means an empty page.
	Metrics *obs.Metrics
	// Tracer makes a span of each request. Nil makes none.
	Tracer *tracing.Tracer
	// Degraded returns the names of the parts that are unavailable. Nil means that
	// none ever is.
	Degraded func() []string
	// Unblock ends a block of all calls to the provider by a Retry-After.
	Unblock func()
	// Troubles holds what degrades the instance, with the reasons.
	Troubles *obs.Troubles
	// Verifier authenticates callers. Nil means that every caller is an admin.
	Verifier auth.Verifier
	// CallerLimits limits the calls of each caller, and UserLimits the coupon
	// requests of each user. Nil means no limit.
	CallerLimits, UserLimits *auth.RateLimiter
	IDs                      *service.IDs
	// TrustedProxies are the networks of proxies whose Forwarded and X-Forwarded-For
	// headers name the client, and whose traceparent names the trace.
	TrustedProxies []netip.Prefix
	// WebhookAllowPrivate allows webhook receivers whose address is not public.
	WebhookAllowPrivate bool
	// SlackSet and MailSet report whether notify.slack-url and notify.smtp-url are set.
	SlackSet, MailSet bool
	// BodyWait is the timeout for a JSON body to arrive. Zero means 10 s.
	BodyWait time.Duration
	// UploadsMost limits the uploads that are read at a time. Zero means 256.
	UploadsMost int
	// ReadsPerCaller limits the reads that run for a caller at a time. Zero means 4.
	ReadsPerCaller int
	// Settings are the settings of the instance, with secrets masked.
	Settings []client.Setting
	// HeldMost limits the event streams and waiting coupon requests that are open at a
	// time. Zero means 16,000.
	HeldMost int
	// Pages are the files of the console. Nil means that there is none.
	Pages web.Pages
	// Version is the program's version, for /openapi.json. Empty means dev.
	Version string
	Log     obs.Log
}

// Rows is the part of the store that the API calls itself.
type Rows interface {
	APIKeyCreate(ctx context.Context, k store.APIKey) error
	APIKeyList(ctx context.Context, before int64, limit int) ([]store.APIKey, error)
	APIKeyRevoke(ctx context.Context, id int64, by string, now time.Time) (store.APIKey, error)
	APIKeyMakers(ctx context.Context) ([]store.APIKeyMaker, error)
	AuditBegin(ctx context.Context, l store.AuditLine) error
	AuditEnd(ctx context.Context, id int64, status int, code string, now time.Time) error
	AuditDrop(ctx context.Context, id int64) error
	AuditList(ctx context.Context, p store.AuditListParams) ([]store.AuditLine, error)
	IdempotencyBegin(ctx context.Context, p store.IdempotencyBeginParams) (store.IdempotencyRecord, error)
	IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error)
	IdempotencyKnown(ctx context.Context, key []byte) (bool, error)
	IdempotencyDrop(ctx context.Context, key []byte, begunAt time.Time) error
	IdempotencyRelease(ctx context.Context, key []byte, begunAt time.Time) error
	WebhookEndpointCreate(ctx context.Context, e store.WebhookEndpoint) (store.WebhookEndpoint, error)
	WebhookEndpointList(ctx context.Context, limit int) ([]store.WebhookEndpoint, error)
	WebhookEndpointGet(ctx context.Context, id int64, limit int) (store.WebhookEndpoint, error)
	WebhookEndpointChange(ctx context.Context, id int64, p store.WebhookEndpointChange) (store.WebhookEndpoint, error)
	WebhookEndpointRotate(ctx context.Context, id int64, secret string, previousFor time.Duration) (store.WebhookEndpoint, error)
	WebhookEndpointDelete(ctx context.Context, id int64) error
	WebhookDeliveryList(ctx context.Context, p store.WebhookDeliveryListParams) ([]store.EndpointDelivery, error)
	WebhookDeliveryGet(ctx context.Context, endpoint, id int64) (store.EndpointDelivery, error)
	WebhookDeliveryResend(ctx context.Context, endpoint, id int64) (store.EndpointDelivery, error)
	WebhookDeliveryTest(ctx context.Context, endpoint int64) (store.EndpointDelivery, error)
	PromotionTimeline(ctx context.Context, id reward.PromotionID, s store.TimelineSpan) ([]store.PromotionPoint, error)
	TemplateTimeline(ctx context.Context, id reward.TemplateID, s store.TimelineSpan) ([]store.TemplatePoint, error)
	InstanceList(ctx context.Context) ([]store.Instance, error)
	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
	PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error)
	PromotionList(ctx context.Context, p store.PromotionListParams) ([]store.PromotionView, error)
	SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error)
	UploadGet(ctx context.Context, promotion reward.PromotionID, id int64) (store.Upload, error)
	CouponCounts(ctx context.Context, id reward.TemplateID) (store.CouponCounts, error)
	RefusalList(ctx context.Context, id reward.TemplateID, limit int) ([]store.Refusal, error)
	UploadList(ctx context.Context, promotion reward.PromotionID, before int64, limit int) ([]store.Upload, error)
	UploadErrors(ctx context.Context, id, after int64, limit int) ([]store.LineError, error)
	DeadLetterGet(ctx context.Context, id int64) (reward.DeadLetter, error)
	DeadLetterList(ctx context.Context, p store.DeadLetterListParams) ([]reward.DeadLetter, error)
	PayoutGet(ctx context.Context, id store.PayoutID) (reward.Payout, []reward.Attempt, error)
	PayoutHistory(ctx context.Context, user string, limit int) ([]store.UserPayout, error)
	PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error)
	PromotionViews(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error)
	ReconciliationGet(ctx context.Context, id int64) (store.Reconciliation, error)
	ReconciliationSave(ctx context.Context, r store.Reconciliation) error
	ReconciliationList(ctx context.Context, before int64, limit int) ([]store.Reconciliation, error)
	PayoutUnknown(ctx context.Context, p store.PayoutUnknownParams) ([]reward.Payout, error)
	PayoutOldest(ctx context.Context) (store.OldestPayouts, error)
	PayoutErrors(ctx context.Context, id reward.PromotionID) ([]store.PayoutError, error)
	PayoutErrorAmounts(ctx context.Context, id reward.PromotionID, errs []store.PayoutError) (map[string]reward.Amount, error)
	Ping(ctx context.Context) error
}

// Streams is the part of the work queue that the API calls.
type Streams interface {
	Info(ctx context.Context, s queue.Stream) (queue.Info, error)
	Consumers(ctx context.Context, s queue.Stream) ([]queue.ConsumerInfo, error)
}

// API is a Router with all operations. It is safe for concurrent use.
type API struct {
	*web.Router
	cfg      Config
	declared map[string]operation // by ID
	log      obs.Log
	spec     []byte // GET /openapi.json
	rates    *estimator
	progress *progressHub[reward.PromotionID, store.PromotionView]
	counters *progressHub[reward.TemplateID, coupon.View]
	uploads  chan struct{} // holds one token per upload that is read
	books    chan struct{} // holds one token per workbook in memory
	reads    *readLimits
	shoppers chan struct{} // holds one token per read of a shopper that runs
	refusals *tallies
	acts     *tallies
	held     *heldAnswers
	shown    shownCodes
	// overviews are shared by all callers.
	overviews overviews
}

const (
	bodyTimeoutDefault = 10 * time.Second
	// bodyMax limits a JSON body, in bytes. The longest valid body, a thousand IDs,
	// needs half of it. Parsing takes many times the length of the body.
	bodyMax = 64 << 10
)

// New returns an API.
func New(cfg Config) *API {
	cfg.BodyWait = cmp.Or(cfg.BodyWait, bodyTimeoutDefault)
	cfg.UploadsMost, cfg.ReadsPerCaller = cmp.Or(cfg.UploadsMost, uploadsDefault), cmp.Or(cfg.ReadsPerCaller, readsDefault)
	cfg.HeldMost, cfg.Version = cmp.Or(cfg.HeldMost, heldDefault), cmp.Or(cfg.Version, "dev")
	cfg.CallerLimits, cfg.UserLimits = cmp.Or(cfg.CallerLimits, auth.NewLimits(0)), cmp.Or(cfg.UserLimits, auth.NewLimits(0))
	if cfg.StreamNames == nil {
		cfg.StreamNames = func(queue.Stream) (string, string) { return "", "" }
	}
	a := &API{
		cfg: cfg, log: cfg.Log.For(obs.API),
		declared: map[string]operation{"describe": {roles: public}, "docs": {roles: public}, "console": {roles: public}}, rates: newEstimator(),
		uploads: make(chan struct{}, cfg.UploadsMost), books: make(chan struct{}, workbooksMax),
		reads: newReadLimits(cfg.ReadsPerCaller), shoppers: make(chan struct{}, shopperReads),
	}
	a.refusals, a.acts, a.held = newTallies(a.writeRefusals), newTallies(a.writeActs), newHeldAnswers(cfg.HeldMost)
	a.Router = web.NewRouter(web.RouterConfig{
		Title: Title, Version: cfg.Version, Gate: a.admit, TrustedProxies: cfg.TrustedProxies,
		Refused: func(r *http.Request, operation string, status int) {
			a.countRefusal(r.Context(), operation, status, callerOf(r.Context()).Principal, "")
		},
		Metrics: cfg.Metrics, Tracer: cfg.Tracer, Log: cfg.Log,
	})
	a.OpenAPI().Components.Schemas = huma.NewMapRegistry(schemaPrefix, schemaName)
	a.progress, a.counters = newPromotionHub(a), newTemplateHub(a)
	a.OpenAPI().Components.SecuritySchemes = map[string]*huma.SecurityScheme{bearer: {
		Type: "http", Scheme: "bearer", Description: "An API key, or a token if auth.mode is jwt",
	}}
	a.addPromotions()
	a.addPromotionList()
	a.addPromotionChange()
	a.addApprovals()
	a.addCopies()
	a.addPromotionEvents()
	a.addTargets()
	a.addPayouts()
	a.addUnknown()
	a.addTimelines()
	a.addReports()
	a.addOverview()
	a.addTemplates()
	a.addTemplateEvents()
	a.addCodes()
	a.addCoupons()
	a.addIssuing()
	a.addIssueEvents()
	a.addHistory()
	a.addDeadLetters()
	a.addReconciliations()
	a.addAPIKeys()
	a.addWebhookEndpoints()
	a.addMe()
	a.addAudit()
	a.addStreams()
	a.addInstances()
	a.addHealth()
	a.addMetrics()
	web.AddDocs(a.Router, errorCodes)
	a.AddPages(cfg.Pages)
	a.spec = a.finishDescription()
	zipped := web.Gzip(a.spec)
	a.Handle("describe", "GET /openapi.json", func(w http.ResponseWriter, r *http.Request) {
		text, h := a.spec, w.Header()
		if h.Set("Vary", "Accept-Encoding"); web.AcceptsGzip(r) {
			h.Set("Content-Encoding", "gzip")
			text = zipped
		}
		h.Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(text) // the caller may have left
	})
	return a
}

// Start starts to record refused requests in the audit and the log, and in the audit what
// the staff does to lines. Requests are answered without it, too.
func (a *API) Start(ctx context.Context) {
	a.refusals.Start(ctx)
	a.acts.Start(ctx)
}

// Stop records what is left. It may be called more than once, or without Start.
func (a *API) Stop() {
	a.refusals.Stop()
	a.acts.Stop()
}

// timeOf returns an optional time; nil if it is zero.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}
