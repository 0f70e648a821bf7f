package coupon

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// closedRetention is how long a closed template stays active, in addition to
	// FlowConfig.QueueTTL, after which its gate is removed.
	closedRetention = 24 * time.Hour
	expireInterval  = time.Second
	expireBatch     = 1000 // coupons per transaction
	sweepInterval   = time.Second
	sweepBatch      = 1000 // coupons per transaction
	sweepPage       = 32   // templates at a time

	codesSweepInterval = time.Minute
	codesSweepBatch    = 10_000 // codes per transaction
	// codesIdleMax is how long an import may make no progress. The API ends a slow
	// upload long before.
	codesIdleMax = time.Hour
)

// FlowConfig configures a Flow.
type FlowConfig struct {
	Store Store
	Gate  gate.Gate
	// NoGate reports that Gate never responds: all coupons are issued through the
	// database.
	NoGate bool
	// Bus carries the requests of KAFKA mode. Connected reports whether this
	// instance can settle them; while it cannot, it reads none. Nil means always.
	Bus       *bus.Client
	Connected func() bool
	Instance  string
	// Concurrency limits the concurrent transactions of KAFKA mode, and those of
	// the database path. LockWait and LockLease belong to SYNC mode.
	Concurrency         int
	LockWait, LockLease time.Duration
	// RefusalTTL is how long an instance may repeat a refusal of the gate to the same
	// user without a call to the gate.
	RefusalTTL time.Duration
	// LapsedHolds is how many holds of a template a user may let end, before the user
	// waits after each; 0 means no limit.
	LapsedHolds int
	// CodesAbove is the setting approval.codes-above.
	CodesAbove int64
	// FallbackAfter is how long a Redis outage lasts before coupons are issued
	// through the database. QueueTTL is how long a gate without requests is kept.
	FallbackAfter, QueueTTL time.Duration
	// Average is the service time per request, for estimates of waiting times.
	// Zero means that it is measured.
	Average time.Duration
	// ReconcileEvery separates the reconciliations of all gates. Zero means only on
	// demand.
	ReconcileEvery time.Duration
	// Issue makes this instance issue coupons; Housekeeping makes it expire coupons,
	// end holds and reconcile gates.
	Issue, Housekeeping bool
	Metrics             *obs.Metrics
	Troubles            *obs.Troubles
	Log                 obs.Log
}

// parts is what the parts of a Flow share.
type parts struct {
	instance  string
	rows      Store
	gate      gate.Gate
	templates *gatekeeper.TemplateCache
	loader    *gatekeeper.Loader
	applier   *gatekeeper.Applier
	granter   *gatekeeper.Granter
	topic     *gatekeeper.IssueTopic // carries the requests of KAFKA mode
	ids       *service.IDs
	metrics   *obs.Metrics
	log       obs.Log
	average   time.Duration              // FlowConfig.Average
	settled   func(id reward.TemplateID) // called after each change of coupons and each batch of requests
}

// as returns the parts with another log.
func (p parts) as(log obs.Log) parts {
	p.log = log
	return p
}

// Flow runs everything that an instance does for coupons.
type Flow struct {
	parts
	Catalog    *Catalog
	Intake     *Intake
	Notifier   *Notifier
	Reconciler *gatekeeper.Reconciler

	cfg      FlowConfig
	keeper   *gatekeeper.Keeper
	drawer   *drawer
	refusals *refusals
	issuers  *IssuerManager
	listener *bus.Listener // nil unless this instance issues

	// Each loop stops before the loops that it uses.
	refreshing, assigning, maintaining, hinting, expiring, sweeping, tidying, reconciling service.Base
}

// NewFlow returns a Flow that does nothing until Start.
func NewFlow(cfg FlowConfig) (*Flow, error) {
	log := cfg.Log.For(obs.Coupons)
	p := parts{
		instance: cfg.Instance, rows: cfg.Store, gate: cfg.Gate, templates: gatekeeper.NewTemplateCache(cfg.Store, cfg.QueueTTL+closedRetention, log),
		ids: service.NewIDs(), metrics: cfg.Metrics, log: log, average: cfg.Average,
	}
	f := &Flow{cfg: cfg, refusals: newRefusals(cfg.RefusalTTL), issuers: &IssuerManager{issuers: make(map[reward.TemplateID]*runningIssuer)}}
	f.keeper = gatekeeper.New(gatekeeper.Config{
		Instance: cfg.Instance, Store: cfg.Store, Gate: cfg.Gate, NoGate: cfg.NoGate, Bus: cfg.Bus, Templates: p.templates, Issuers: f.issuers,
		Draw: func(ctx context.Context, t *reward.CouponTemplate, epoch int64) error {
			return f.drawer.draw(ctx, t, epoch)
		},
		OnLoad: f.hint, FallbackAfter: cfg.FallbackAfter, QueueTTL: cfg.QueueTTL, ReconcileEvery: cfg.ReconcileEvery,
		IDs: p.ids, Metrics: cfg.Metrics, Troubles: cfg.Troubles, Log: cfg.Log,
	})
	p.loader, p.applier, p.granter, p.topic = f.keeper.Loader, f.keeper.Applier, f.keeper.Granter, f.keeper.Topic
	f.Notifier = newNotifier(p)
	p.settled = f.Notifier.hint
	f.parts = p
	f.Intake = f.newIntake()
	f.Catalog = &Catalog{parts: p, refusals: f.refusals, noGate: cfg.NoGate, limit: cfg.CodesAbove}
	f.Reconciler = f.keeper.Reconciler
	f.drawer = &drawer{parts: p}
	f.issuers.parts = p.as(cfg.Log.For(obs.Issuer))
	if !cfg.Issue {
		return f, nil
	}
	l := &IssueListener{parts: p.as(cfg.Log.For(obs.Listener)), intake: f.Intake, concurrency: cfg.Concurrency}
	var err error
	f.listener, err = bus.NewListener(cfg.Bus, bus.ListenerConfig{
		Group: bus.GroupCouponIssue, Topic: bus.TopicCouponIssue, Handle: l.ProcessTopicMessages, Offsets: l.Offsets,
		Healthy: cfg.Connected, Log: cfg.Log,
	})
	return f, err
}

func (f *Flow) newIntake() *Intake {
	cfg := f.cfg
	i := &Intake{
		parts: f.parts, refusals: f.refusals, notifier: f.Notifier, timeout: cfg.LockWait + requestTimeout,
		lockWait: cfg.LockWait, lockLease: cfg.LockLease, slots: make(chan struct{}, cfg.Concurrency), suspect: f.keeper.Maintainer.Suspect, left: f.afterLeave,
		expiredHolds: newExpiredHolds(cfg.Store, cfg.LapsedHolds),
	}
	i.admissions = newBatcher(gate.AdmitMax, callTimeout, i.admitBatch(true))
	i.locked = newBatcher(gate.AdmitMax, cfg.LockWait+callTimeout, i.issueLocked)
	i.unlocked = newBatcher(directBatchMax, callTimeout, i.issueBatch)
	i.checks = newBatcher(gate.AdmitMax, callTimeout, i.admitBatch(false))
	i.entries = newBatcher(store.BatchMax, callTimeout, i.saveEntrants)
	return i
}

// Start reads the templates and starts the loops. An error means that the
// templates could not be read, and that nothing was started.
func (f *Flow) Start(ctx context.Context) error {
	if err := f.templates.Refresh(ctx); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	f.refreshing.Start(ctx, f.templates.Run)
	f.hinting.Start(ctx, f.passHints)
	if f.cfg.Issue {
		f.assigning.Start(ctx, f.issuers.run)
		f.maintaining.Start(ctx, f.keeper.Maintainer.Run)
		f.listener.Start(ctx)
	} else {
		f.maintaining.Start(ctx, f.keeper.Maintainer.Watch)
	}
	if f.cfg.Housekeeping {
		f.expiring.Start(ctx, f.repeat("expiring coupons failed", expireInterval, f.expire))
		f.sweeping.Start(ctx, f.repeat("ending holds failed", sweepInterval, f.Catalog.endHolds))
		f.tidying.Start(ctx, f.repeat("removing codes that were not imported failed", codesSweepInterval, f.sweepCodes))
		if f.cfg.ReconcileEvery > 0 {
			f.reconciling.Start(ctx, f.Reconciler.RunRounds)
		}
	}
	return nil
}

// Stop stops all loops and waits until they have ended. Requests that are not settled
// by then are left to other instances.
func (f *Flow) Stop() {
	f.keeper.StopLoads()
	var wg sync.WaitGroup
	if f.listener != nil {
		wg.Go(f.listener.Stop)
	}
	for _, b := range []*service.Base{&f.maintaining, &f.expiring, &f.sweeping, &f.tidying, &f.reconciling, &f.hinting} {
		wg.Go(b.Stop)
	}
	wg.Wait()
	f.assigning.Stop()
	f.refreshing.Stop()
	f.Intake.wait()
	f.keeper.WaitLoads()
}

// hint gives a hint to the issuer and to the watchers of a template.
func (f *Flow) hint(id reward.TemplateID) {
	f.issuers.GiveHint(id)
	f.Notifier.hint(id)
}

// afterLeave gives the place of a user who left to others at once.
func (f *Flow) afterLeave(id reward.TemplateID, user string) {
	f.templates.Hint()
	f.refusals.forget(id)
	f.Notifier.hintUser(id, user)
}

func (f *Flow) passHints(ctx context.Context) {
	for {
		select {
		case h, open := <-f.gate.Hints():
			switch {
			case !open:
				return
			case h.Kind == gate.HintRequests:
				f.issuers.GiveHint(h.TemplateID)
			default:
				f.refusals.forget(h.TemplateID)
				f.Notifier.hint(h.TemplateID)
			}
		case <-ctx.Done():
			return
		}
	}
}

// repeat returns a loop that calls round until its context ends, and reports failures that
// last. After a round that may have left more to do it continues at once, otherwise after
// about an interval.
func (p parts) repeat(failure string, interval time.Duration, round func(context.Context) (more bool, err error)) func(context.Context) {
	return func(ctx context.Context) {
		report := p.log.Streak(failure, "")
		for ctx.Err() == nil {
			more, err := round(ctx)
			if ctx.Err() == nil {
				report(err)
			}
			if !more || err != nil {
				service.Sleep(ctx, service.Jitter(interval, 0.2))
			}
		}
	}
}

// expire sets overdue coupons to EXPIRED. It reports whether there may be more.
func (f *Flow) expire(ctx context.Context) (more bool, err error) {
	n, err := f.rows.CouponExpire(ctx, time.Now(), expireBatch)
	return n == expireBatch, err
}

// sweepCodes removes the codes of imports that were not published. It reports whether there
// may be more.
func (f *Flow) sweepCodes(ctx context.Context) (more bool, err error) {
	n, err := f.rows.CodesSweep(ctx, time.Now().Add(-codesIdleMax), codesSweepBatch)
	return n > 0, err
}
