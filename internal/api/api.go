// Package api is the outside of Largesse over HTTP: promotions, their targets
// and payouts, coupon templates, requests for coupons and coupons, dead letters,
// instances and their streams, metrics and health. Every JSON call is declared
// once, in Go; checks, answers and GET /openapi.json come from that.
package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
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
	// UploadIdle is the longest pause within an upload; 0 = 30 s.
	UploadIdle time.Duration
	// Version of the program, for the API's description.
	Version string
	Log     obs.Log
}

// Rows is what the API asks of the store itself.
type Rows interface {
	InstanceList(ctx context.Context) ([]store.Instance, error)
	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
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
	cfg      Config
	log      obs.Log
	mux      *http.ServeMux
	huma     huma.API
	spec     []byte // GET /openapi.json
	rates    *estimator
	draining drain
}

// New makes the API.
func New(cfg Config) *API {
	if cfg.UploadIdle == 0 {
		cfg.UploadIdle = uploadIdleDefault
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	if cfg.StreamNames == nil {
		cfg.StreamNames = func(queue.Stream) (string, string) { return "", "" }
	}
	a := &API{cfg: cfg, log: cfg.Log.For(obs.API), mux: http.NewServeMux(), rates: newEstimator()}
	hc := huma.DefaultConfig(Title, cfg.Version)
	hc.Info.Description = "Issues rewards at scale. Ids are strings, money is an integer in minor units, times are RFC 3339 in UTC, errors are application/problem+json."
	// The description is served below, once it is whole; the docs page would
	// load scripts of others, and $schema would be a field nobody asked for.
	hc.OpenAPIPath, hc.DocsPath, hc.SchemasPath, hc.CreateHooks = "", "", "", nil
	hc.RejectUnknownQueryParameters = true
	hc.Formats = jsonFormats
	a.huma = humago.New(a.mux, hc)
	a.addPromotions()
	a.addTargets()
	a.addPayouts()
	a.addTemplates()
	a.addCoupons()
	a.addIssuing()
	a.addIssueEvents()
	a.addHistory()
	a.addDeadLetters()
	a.addReconciliations()
	a.addStreams()
	a.addInstances()
	a.addHealth()
	a.addMetrics()
	spec, err := json.Marshal(a.huma.OpenAPI())
	if err != nil { // it is the same for every start of the program
		panic(err)
	}
	a.spec = spec
	a.mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(a.spec) // the caller may have gone
	})
	return a
}

// Drain makes /readyz say that no more work should be sent here, and ends the
// answers that wait for something.
func (a *API) Drain() { a.draining.set(true) }

// Undrain takes Drain back.
func (a *API) Undrain() { a.draining.set(false) }

// call declares a JSON call.
func call[I, O any](a *API, op huma.Operation, f func(ctx context.Context, in *I) (*O, error)) {
	if op.Method != http.MethodGet {
		op.Parameters = append(op.Parameters, actorParam())
	}
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := f(ctx, in)
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		return out, nil
	})
}

func promotionID(s string) (reward.PromotionID, error) {
	id, err := reward.ParsePromotionID(s)
	if err != nil {
		return 0, malformed("id", err.Error())
	}
	return id, nil
}
