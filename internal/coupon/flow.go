package coupon

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
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

// Flow runs everything that an instance does for coupons.
type Flow struct {
	Catalog    *Catalog
	Intake     *Intake
	Notifier   *Notifier
	Reconciler *Reconciler

	cfg        FlowConfig
	log        obs.Log
	templates  *TemplateCache
	loader     *Loader
	refusals   *refusals
	issuers    *IssuerManager
	maintainer *GateMaintainer
	listener   *bus.Listener // nil unless this instance issues
	holds      *holdSweeper
	endLoads   context.CancelFunc

	// Each loop stops before the loops that it uses.
	refreshing, assigning, maintaining, hinting, expiring, sweeping, tidying, reconciling service.Base
}

// NewFlow returns a Flow that does nothing until Start.
func NewFlow(cfg FlowConfig) (*Flow, error) {
	f := &Flow{cfg: cfg, log: cfg.Log.For(obs.Coupons)}
	ids := service.NewIDs()
	loading, end := context.WithCancel(context.Background())
	f.endLoads = end
	f.templates = newTemplateCache(cfg.Store, cfg.QueueTTL+closedRetention, f.log)
	f.refusals = newRefusals(cfg.RefusalTTL)
	f.Notifier = newNotifier(cfg.Store, cfg.Gate, f.templates)
	topic := &IssueTopic{rows: cfg.Store, publisher: bus.NewPublisher(cfg.Bus), inspector: cfg.Bus}
	f.loader = &Loader{
		rows: cfg.Store, gate: cfg.Gate, templates: f.templates, topic: topic, metrics: cfg.Metrics, log: cfg.Log.For(obs.Gate),
		onLoad: f.hint, fallbackAfter: cfg.FallbackAfter, ctx: loading, loads: make(map[reward.TemplateID]*load),
		passed: make(chan struct{}, largeLoadsMax),
	}
	f.Notifier.load = f.loader.ensure
	applier := &Applier{rows: cfg.Store, gate: cfg.Gate, loader: f.loader}
	granter := &Granter{rows: cfg.Store, gate: cfg.Gate, applier: applier, windows: make(map[reward.TemplateID]*grantWindows)}
	f.Intake = f.newIntake(applier, granter, ids)
	f.Catalog = &Catalog{
		rows: cfg.Store, gate: cfg.Gate, templates: f.templates, applier: applier, granter: granter, refusals: f.refusals, ids: ids,
		noGate: cfg.NoGate, limit: cfg.CodesAbove, settled: f.Notifier.hint, metrics: cfg.Metrics,
	}
	f.holds = &holdSweeper{rows: cfg.Store, ended: f.Catalog.afterChange, metrics: cfg.Metrics, log: f.log}
	f.Reconciler = &Reconciler{
		rows: cfg.Store, gate: cfg.Gate, loader: f.loader, granter: granter, templates: f.templates, ids: ids, instance: cfg.Instance, interval: cfg.ReconcileEvery, log: f.log,
	}
	f.issuers = &IssuerManager{
		instance: cfg.Instance, rows: cfg.Store, templates: f.templates, log: cfg.Log.For(obs.Issuer), issuers: make(map[reward.TemplateID]*runningIssuer),
		newIssuer: func(id reward.TemplateID, epoch int64) *Issuer {
			return &Issuer{
				id: id, epoch: epoch, instance: cfg.Instance, rows: cfg.Store, gate: cfg.Gate, loader: f.loader, applier: applier,
				templates: f.templates, topic: topic, ids: ids, metrics: cfg.Metrics, log: cfg.Log.For(obs.Issuer),
				settled: f.Notifier.hint, average: cfg.Average, hint: service.NewHint(),
			}
		},
	}
	f.maintainer = &GateMaintainer{
		rows: cfg.Store, gate: cfg.Gate, templates: f.templates, issuers: f.issuers, loader: f.loader, applier: applier, granter: granter, topic: topic,
		drawer:        &drawer{rows: cfg.Store, templates: f.templates, ids: ids, settled: f.Notifier.hint, log: f.log},
		fallbackAfter: cfg.FallbackAfter, queueTTL: cfg.QueueTTL, troubles: cfg.Troubles, log: f.log, statuses: make(map[reward.TemplateID]*gateStatus),
		slots: make(chan struct{}, tasksMax), loads: make(chan struct{}, largeLoadsMax),
	}
	if !cfg.NoGate {
		f.maintainer.health.troubles = cfg.Troubles
	}
	if !cfg.Issue {
		return f, nil
	}
	l := &IssueListener{
		rows: cfg.Store, topic: topic, templates: f.templates, applier: applier, intake: f.Intake,
		ids: ids, concurrency: cfg.Concurrency, average: cfg.Average, settled: f.Notifier.hint, metrics: cfg.Metrics, log: cfg.Log.For(obs.Listener),
	}
	var err error
	f.listener, err = bus.NewListener(cfg.Bus, bus.ListenerConfig{
		Group: bus.GroupCouponIssue, Topic: bus.TopicCouponIssue, Handle: l.ProcessTopicMessages, Offsets: l.Offsets,
		Healthy: cfg.Connected, Log: cfg.Log,
	})
	return f, err
}

func (f *Flow) newIntake(applier *Applier, granter *Granter, ids *service.IDs) *Intake {
	cfg := f.cfg
	suspect := func(id reward.TemplateID, began time.Time, err error) { f.maintainer.suspect(id, began, err) }
	admitter := &admitter{
		rows: cfg.Store, gate: cfg.Gate, templates: f.templates, applier: applier, granter: granter, refusals: f.refusals,
		suspect: suspect,
	}
	direct := &DirectIssuer{
		templates: f.templates, rows: cfg.Store, gate: cfg.Gate, applier: applier, ids: ids, slots: make(chan struct{}, cfg.Concurrency),
		lockWait: cfg.LockWait, lockLease: cfg.LockLease, settled: f.Notifier.hint,
		suspect: suspect,
	}
	return &Intake{
		templates: f.templates, loader: f.loader, notifier: f.Notifier,
		leaver:  &leaver{rows: cfg.Store, gate: cfg.Gate, applier: applier, metrics: cfg.Metrics, left: f.afterLeave},
		metrics: cfg.Metrics, timeout: cfg.LockWait + requestTimeout, expiredHolds: newExpiredHolds(cfg.Store, cfg.LapsedHolds),
		gate: newGateRoute(admitter, f.Notifier), lock: newLockRoute(admitter, direct), database: newDatabaseRoute(direct),
		draw: newDrawRoute(f.templates, cfg.Store), closed: &closedRoute{cfg.Store},
	}
}

// Start reads the templates and starts the loops. An error means that the
// templates could not be read, and that nothing was started.
func (f *Flow) Start(ctx context.Context) error {
	if err := f.templates.view.Read(ctx); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	f.refreshing.Start(ctx, f.templates.run)
	f.hinting.Start(ctx, f.passHints)
	if f.cfg.Issue {
		f.assigning.Start(ctx, f.issuers.run)
		f.maintaining.Start(ctx, f.maintainer.run)
		f.listener.Start(ctx)
	} else {
		f.maintaining.Start(ctx, f.maintainer.watch)
	}
	if f.cfg.Housekeeping {
		f.expiring.Start(ctx, f.expire)
		f.sweeping.Start(ctx, f.holds.run)
		f.tidying.Start(ctx, f.sweepCodes)
		if f.cfg.ReconcileEvery > 0 {
			f.reconciling.Start(ctx, f.Reconciler.run)
		}
	}
	return nil
}

// Stop stops all loops and waits until they have ended. Requests that are not settled
// by then are left to other instances.
func (f *Flow) Stop() {
	f.endLoads()
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
	f.loader.open.Wait()
}

// hint gives a hint to the issuer and to the watchers of a template.
func (f *Flow) hint(id reward.TemplateID) {
	f.issuers.giveHint(id)
	f.Notifier.hint(id)
}

// afterLeave gives the place of a user who left to others at once.
func (f *Flow) afterLeave(id reward.TemplateID, user string) {
	f.templates.hint()
	f.refusals.forget(id)
	f.Notifier.hintUser(id, user)
}

// passHints passes the gate's hints on until ctx ends.
func (f *Flow) passHints(ctx context.Context) {
	for {
		select {
		case h, open := <-f.cfg.Gate.Hints():
			switch {
			case !open:
				return
			case h.Kind == gate.HintRequests:
				f.issuers.giveHint(h.TemplateID)
			default:
				f.refusals.forget(h.TemplateID)
				f.Notifier.hint(h.TemplateID)
			}
		case <-ctx.Done():
			return
		}
	}
}

// expire sets overdue coupons to EXPIRED until ctx ends.
func (f *Flow) expire(ctx context.Context) {
	report := f.log.Streak("expiring coupons failed", "")
	for ctx.Err() == nil {
		n, err := f.cfg.Store.CouponExpire(ctx, time.Now(), expireBatch)
		if ctx.Err() == nil {
			report(err)
		}
		if n < expireBatch {
			service.Sleep(ctx, service.Jitter(expireInterval, 0.2))
		}
	}
}
