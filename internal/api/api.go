// Package api is the outside of Largesse over HTTP: promotions, their targets
// and payouts, coupon templates, requests for coupons and coupons, dead letters,
// instances and their streams, metrics and health. Every JSON call is declared
// once, in Go; checks, answers and GET /openapi.json come from that.
package api

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Title is what the description at /openapi.json calls the API, by which an
// instance is told from another program.
const Title = "Largesse"

// Config is what the API is made of.
type Config struct {
	Promotions *payout.Promotions
	Uploads    *payout.Uploads
	// DeadLetters are messages that could not be read or processed.
	DeadLetters *payout.DeadLetters
	// Reconciler compares the books on demand.
	Reconciler Reconciler
	Rows       Rows
	// Templates and Coupons are what people do with coupon templates and coupons.
	// Issuing answers who asks for one, Watch tells how that comes on, and
	// CouponReconciler compares gates with rows.
	Templates        Templates
	Coupons          Coupons
	Issuing          Issuing
	Watch            WatchFunc
	CouponReconciler CouponReconciler
	// Streams is the work queue, as far as it is shown.
	Streams Streams
	// StreamNames are the key and the group that a stream has on a server; nil
	// = it has none.
	StreamNames func(s queue.Stream) (key, group string)
	// Metrics are shown at /metrics; nil = an empty page.
	Metrics *obs.Metrics
	// Alive says what is wrong with this instance's own loops; nil = never
	// anything. It must not ask other servers.
	Alive func() error
	// Degraded names the parts that work less well than they should; nil =
	// none ever.
	Degraded func() []string
	// Verifier says who callers are; nil = nobody has to prove anything.
	Verifier auth.Verifier
	// CallerLimits bounds the calls of each caller, UserLimits the requests for
	// coupons of each user; nil = no bound.
	CallerLimits, UserLimits *auth.Limits
	// Keys, Audits and Idempotencies are rows that only the API works with.
	Keys          store.APIKeys
	Audits        store.Audits
	Idempotencies store.Idempotencies
	IDs           *service.IDs
	// BodyWait bounds how long a body of JSON may take to come; 0 = 10 s.
	BodyWait time.Duration
	// UploadIdle is the longest pause within an upload; 0 = 30 s. UploadsMost is
	// how many are read at a time; 0 = 256.
	UploadIdle  time.Duration
	UploadsMost int
	// Version of the program, for the API's description.
	Version string
	Log     obs.Log
}

// Rows is what the API asks of the store itself.
type Rows interface {
	InstanceList(ctx context.Context) ([]store.Instance, error)
	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
	PromotionViews(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error)
	ReconciliationGet(ctx context.Context, id int64) (store.Reconciliation, error)
	ReconciliationSave(ctx context.Context, r store.Reconciliation) error
	Ping(ctx context.Context) error
}

// Streams is what the API asks the work queue.
type Streams interface {
	Info(ctx context.Context, s queue.Stream) (queue.Info, error)
	Consumers(ctx context.Context, s queue.Stream) ([]queue.ConsumerInfo, error)
}

// API answers HTTP requests.
type API struct {
	*web.Router
	cfg      Config
	log      obs.Log
	spec     []byte // GET /openapi.json
	rates    *estimator
	progress *progressHub
	uploads  chan struct{} // one token per upload that is read
	exports  chan struct{} // one token per export that reads a page
	failures *auth.Limits  // wrong keys and tokens, by address
}

// failuresPerSecond is how many wrong keys and tokens an address may show.
const failuresPerSecond = 10

const (
	bodyWaitDefault = 10 * time.Second
	// bodyMost bounds a body of JSON, in bytes: the longest of ours, a thousand ids,
	// needs half of it, and while it is read and judged it takes many times its
	// length.
	bodyMost = 64 << 10
)

// New makes the API.
func New(cfg Config) *API {
	if cfg.BodyWait == 0 {
		cfg.BodyWait = bodyWaitDefault
	}
	if cfg.UploadIdle == 0 {
		cfg.UploadIdle = uploadIdleDefault
	}
	if cfg.UploadsMost == 0 {
		cfg.UploadsMost = uploadsDefault
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	if cfg.CallerLimits == nil {
		cfg.CallerLimits = auth.NewLimits(0)
	}
	if cfg.UserLimits == nil {
		cfg.UserLimits = auth.NewLimits(0)
	}
	if cfg.StreamNames == nil {
		cfg.StreamNames = func(queue.Stream) (string, string) { return "", "" }
	}
	a := &API{
		cfg: cfg, log: cfg.Log.For(obs.API), rates: newEstimator(),
		uploads:  make(chan struct{}, cfg.UploadsMost),
		exports:  make(chan struct{}, exportsAtOnce),
		failures: auth.NewLimits(failuresPerSecond),
	}
	a.Router = web.NewRouter(web.RouterConfig{Title: Title, Version: cfg.Version, Gate: a.admit, Metrics: cfg.Metrics, Log: cfg.Log})
	a.progress = newProgressHub(a)
	a.OpenAPI().Components.SecuritySchemes = map[string]*huma.SecurityScheme{bearer: {
		Type: "http", Scheme: "bearer", Description: "An API key, or a token (auth.mode jwt); nothing while auth.mode is none",
	}}
	a.addPromotions()
	a.addPromotionEvents()
	a.addTargets()
	a.addPayouts()
	a.addTemplates()
	a.addCoupons()
	a.addIssuing()
	a.addIssueEvents()
	a.addHistory()
	a.addDeadLetters()
	a.addReconciliations()
	a.addAPIKeys()
	a.addAudit()
	a.addStreams()
	a.addInstances()
	a.addHealth()
	a.addMetrics()
	a.AddDocs()
	a.spec = a.finishDescription()
	a.Handle("describe", "GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(a.spec) // the caller may have gone
	})
	return a
}

// call declares a JSON call. One that changes something is audited. Its errors
// are described by their codes; see operationCodes.
func call[I, O any](a *API, op huma.Operation, f func(ctx context.Context, in *I) (*O, error)) {
	op.BodyReadTimeout, op.MaxBodyBytes = a.cfg.BodyWait, bodyMost
	read := op.Method == http.MethodGet
	describeAccess(&op)
	if read && strings.HasPrefix(op.Path, "/v1/") && !long[op.OperationID] {
		web.ETag(&op)
	}
	if !read && !unaudited[op.OperationID] {
		change := f
		f = func(ctx context.Context, in *I) (out *O, err error) {
			err = a.audited(ctx, op.OperationID, bodyOf(in), func() (int, error) {
				out, err = change(ctx, in)
				return statusOf(out, cmp.Or(op.DefaultStatus, http.StatusOK)), err
			})
			return out, err
		}
	}
	if creating[op.OperationID] {
		op.Parameters = append(op.Parameters, idempotencyParam())
		carry := f
		f = func(ctx context.Context, in *I) (*O, error) { return once(ctx, a, op.OperationID, in, carry) }
	}
	if !read {
		op.Parameters = append(op.Parameters, actorParam())
	}
	web.Register(a.Router, op, f)
}

func promotionID(s string) (reward.PromotionID, error) {
	id, err := reward.ParsePromotionID(s)
	if err != nil {
		return 0, web.Malformed("id", err.Error())
	}
	return id, nil
}
