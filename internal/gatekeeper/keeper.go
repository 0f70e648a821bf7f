// Package gatekeeper keeps the gates of coupon templates in agreement with the rows. It
// loads gates, brings changes to them, has the rows set places aside for them, maintains
// and reconciles them, and moves templates to the database path while their gates do not
// work. It also caches the templates.
package gatekeeper

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// Store is what keeping gates right needs of the database.
type Store interface {
	store.Leases
	CouponChanges(ctx context.Context, id reward.TemplateID, above int64, limit int) (store.CouponChanges, error)
	CouponLeft(ctx context.Context, id reward.TemplateID, ticket, generation int64, limit int) ([]gate.Request, error)
	CouponRecount(ctx context.Context, id reward.TemplateID) (store.CouponCount, error)
	CouponSnapshot(ctx context.Context, id reward.TemplateID, begin func(reward.CouponTemplate) error, facts func([]gate.Holding) error) error
	CouponWaiting(ctx context.Context, id reward.TemplateID, generation int64, line []gate.Request) ([]bool, error)
	IssueOutcomes(ctx context.Context, id reward.TemplateID, users []string) (map[string]reward.IssueOutcome, error)
	OffsetsGet(ctx context.Context, log string) (map[int32]int64, error)
	ReconciliationSave(ctx context.Context, r store.Reconciliation) error
	RefusalRecord(ctx context.Context, id reward.TemplateID, reason string, at time.Time) error
	TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error)
	TemplateChange(ctx context.Context, p rules.TemplateChange) (reward.CouponTemplate, error)
	TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
	TemplateGrant(ctx context.Context, p store.TemplateGrantParams) (reward.CouponTemplate, bool, error)
	TemplateNewGeneration(ctx context.Context, p store.TemplateNewGenerationParams) (reward.CouponTemplate, bool, error)
	TemplateSetFloor(ctx context.Context, id reward.TemplateID, generation int64) (bool, error)
	TemplateShrink(ctx context.Context, id reward.TemplateID, s rules.Shrunk) (reward.CouponTemplate, bool, error)
}

// Issuers are the issuers of the templates that this instance issues.
type Issuers interface {
	// Epochs returns the epochs of these templates.
	Epochs() map[reward.TemplateID]int64
	// GiveHint makes the template's issuer look for requests, if it runs here.
	GiveHint(id reward.TemplateID)
	// AnyAlive reports whether any instance that issues coupons is alive.
	AnyAlive(ctx context.Context) (bool, error)
}

// Config configures a Keeper.
type Config struct {
	Instance  string
	Store     Store
	Gate      gate.Gate
	NoGate    bool        // Gate never responds, and that is no trouble
	Bus       *bus.Client // carries the requests of KAFKA mode
	Templates *TemplateCache
	Issuers   Issuers
	// Draw closes the list of the entrants of a template and holds its draw. OnLoad is
	// called after each load of a gate.
	Draw   func(ctx context.Context, t *reward.CouponTemplate, epoch int64) error
	OnLoad func(id reward.TemplateID)
	// FallbackAfter is how long an outage lasts before templates move to the database
	// path; QueueTTL is when an unused gate is removed; ReconcileEvery separates the
	// reconciliations of all gates.
	FallbackAfter, QueueTTL, ReconcileEvery time.Duration
	IDs                                     *service.IDs
	Metrics                                 *obs.Metrics
	Troubles                                *obs.Troubles
	Log                                     obs.Log
}

// Keeper has the parts that keep gates right.
type Keeper struct {
	Topic      *IssueTopic
	Loader     *Loader
	Applier    *Applier
	Granter    *Granter
	Maintainer *Maintainer
	Reconciler *Reconciler
	endLoads   context.CancelFunc
}

// parts is what these parts share.
type parts struct {
	instance  string
	rows      Store
	gate      gate.Gate
	templates *TemplateCache
	ids       *service.IDs
	metrics   *obs.Metrics
	log       obs.Log
}

// New returns a Keeper that does nothing by itself.
func New(cfg Config) *Keeper {
	p := parts{
		instance: cfg.Instance, rows: cfg.Store, gate: cfg.Gate, templates: cfg.Templates, ids: cfg.IDs, metrics: cfg.Metrics,
		log: cfg.Log.For(obs.Gate),
	}
	loading, end := context.WithCancel(context.Background())
	k := &Keeper{endLoads: end, Topic: &IssueTopic{rows: cfg.Store, Publisher: cfg.Bus, Inspector: cfg.Bus}}
	k.Loader = &Loader{
		parts: p, topic: k.Topic, onLoad: cfg.OnLoad, fallbackAfter: cfg.FallbackAfter, ctx: loading,
		loads: make(map[reward.TemplateID]*load), passed: make(chan struct{}, largeLoadsMax),
	}
	p.log = cfg.Log.For(obs.Coupons)
	k.Applier = &Applier{parts: p, loader: k.Loader}
	k.Granter = &Granter{parts: p, applier: k.Applier, windows: make(map[reward.TemplateID]*grantWindows)}
	k.Reconciler = &Reconciler{parts: p, loader: k.Loader, granter: k.Granter, interval: cfg.ReconcileEvery}
	k.Maintainer = &Maintainer{
		parts: p, issuers: cfg.Issuers, loader: k.Loader, applier: k.Applier, granter: k.Granter, topic: k.Topic, draw: cfg.Draw,
		fallbackAfter: cfg.FallbackAfter, queueTTL: cfg.QueueTTL, troubles: cfg.Troubles, statuses: make(map[reward.TemplateID]*gateStatus),
		slots: make(chan struct{}, tasksMax), loads: make(chan struct{}, largeLoadsMax),
	}
	k.Granter.suspect = k.Maintainer.Suspect
	if !cfg.NoGate {
		k.Maintainer.health.troubles = cfg.Troubles
	}
	return k
}

// StopLoads ends the loads in progress.
func (k *Keeper) StopLoads() { k.endLoads() }

// WaitLoads waits until no load is in progress.
func (k *Keeper) WaitLoads() { k.Loader.open.Wait() }

// GateTimeout ends a call to a gate that a user or the beginning of an outage waits
// for. The scripts take milliseconds; a server that takes longer hangs.
const GateTimeout = 500 * time.Millisecond

// StateOf returns what the gate of a template must know to decide about requests.
func StateOf(t *reward.CouponTemplate) gate.State {
	return gate.State{
		Generation: t.Generation, Version: t.Version, Settled: t.Settled,
		Base:  t.Base,
		Total: t.LiveMax(), Live: t.Live, IssuedTotal: t.IssuedTotal,
		Granted: t.Granted, Used: t.Used, Grants: t.Grants, PerUserLimit: t.PerUserLimit,
		OpensAt: t.OpensAt, ClosesAt: t.ClosesAt, Mode: t.Mode,
	}
}

// IsClosed reports whether a template has closed.
func IsClosed(t *reward.CouponTemplate) bool {
	return !t.ClosesAt.IsZero() && !time.Now().Before(t.ClosesAt)
}

// InDraw reports whether a template has a draw that is not done. It has no gate then.
func InDraw(t *reward.CouponTemplate) bool {
	return t.Draw.State == reward.DrawOpen || t.Draw.State == reward.DrawClosed
}

// HeaderOf reads the header of a gate.
func HeaderOf(ctx context.Context, g gate.Gate, id reward.TemplateID) (gate.Header, error) {
	h, err := g.Headers(ctx, []reward.TemplateID{id})
	if err != nil {
		return gate.Header{}, err
	}
	return h[0], nil
}

// Ignore returns nil if err is target.
func Ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}
