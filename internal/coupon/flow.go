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
	"github.com/largesse/largesse/internal/store"
)

const (
	// keptBeyond is for how much longer than its gate may be there a closed
	// template is looked after.
	closedRetention = 24 * time.Hour
	expireInterval  = time.Second
	expireBatch     = 1000
)

// FlowConfig says what coupons run on.
type FlowConfig struct {
	Store store.Store
	Gate  gate.Gate
	// Bus carries the requests of KAFKA mode.
	Bus      *bus.Client
	Instance string
	// Concurrency is how many transactions may be open at once for KAFKA, and for
	// the path through rows; LockWait and LockLease are of SYNC.
	Concurrency         int
	LockWait, LockLease time.Duration
	// RefusalTTL is for how long a refusal may be repeated without asking.
	RefusalTTL time.Duration
	// FallbackAfter is how long Redis is away before rows are the path, QueueTTL
	// when an unused gate leaves.
	FallbackAfter, QueueTTL time.Duration
	// Average is the time per person that waiting times go by; 0 = measured.
	Average time.Duration
	// ReconcileEvery is how often all gates are compared with the rows; 0 = only
	// on demand.
	ReconcileEvery time.Duration
	// Issue says that this instance issues, Housekeeping that it expires
	// coupons and keeps the books.
	Issue, Housekeeping bool
	Metrics             *obs.Metrics
	Log                 obs.Log
}

// Flow is all that an instance does for coupons.
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
	endLoads   context.CancelFunc

	// Each is stopped before what it leans on.
	reading, owning, keeping, hinting, expiring, reconciling service.Base
}

// NewFlow makes a Flow that Start starts.
func NewFlow(cfg FlowConfig) (*Flow, error) {
	f := &Flow{cfg: cfg, log: cfg.Log.For(obs.Coupons)}
	ids := service.NewIDs()
	loading, end := context.WithCancel(context.Background())
	f.endLoads = end
	f.templates = newTemplateCache(cfg.Store, cfg.QueueTTL+closedRetention, f.log)
	f.refusals = newRefusals(cfg.RefusalTTL)
	f.Notifier = newNotifier(cfg.Store, cfg.Gate, f.templates)
	publisher := bus.NewPublisher(cfg.Bus)
	records := &IssueTopic{rows: cfg.Store, publisher: publisher, inspector: cfg.Bus}
	f.loader = &Loader{
		rows: cfg.Store, gate: cfg.Gate, templates: f.templates, topic: records, metrics: cfg.Metrics, log: cfg.Log.For(obs.Gate),
		onLoad: f.hint, ctx: loading, loads: make(map[reward.TemplateID]*load),
	}
	f.Notifier.load = f.loader.ensure
	applier := &Applier{rows: cfg.Store, gate: cfg.Gate, loader: f.loader}
	f.Intake = f.newIntake(applier, ids)
	f.Catalog = &Catalog{
		rows: cfg.Store, gate: cfg.Gate, templates: f.templates, applier: applier, refusals: f.refusals, ids: ids,
		settled: f.Notifier.hint,
	}
	f.Reconciler = &Reconciler{
		rows: cfg.Store, gate: cfg.Gate, templates: f.templates, ids: ids, instance: cfg.Instance, interval: cfg.ReconcileEvery, log: f.log,
	}
	f.issuers = &IssuerManager{
		instance: cfg.Instance, rows: cfg.Store, templates: f.templates, log: cfg.Log.For(obs.Issuer), issuers: make(map[reward.TemplateID]*runningIssuer),
		newIssuer: func(id reward.TemplateID, epoch int64) *Issuer {
			return &Issuer{
				id: id, epoch: epoch, instance: cfg.Instance, rows: cfg.Store, gate: cfg.Gate, loader: f.loader, applier: applier,
				templates: f.templates, topic: records, ids: ids, metrics: cfg.Metrics, log: cfg.Log.For(obs.Issuer),
				settled: f.Notifier.hint, average: cfg.Average, hint: make(chan struct{}, 1),
			}
		},
	}
	f.maintainer = &GateMaintainer{
		rows: cfg.Store, gate: cfg.Gate, templates: f.templates, issuers: f.issuers, loader: f.loader, applier: applier,
		drawer:        &drawer{rows: cfg.Store, templates: f.templates, ids: ids, settled: f.Notifier.hint, log: f.log},
		fallbackAfter: cfg.FallbackAfter, queueTTL: cfg.QueueTTL, log: f.log, statuses: make(map[reward.TemplateID]*gateStatus),
		slots: make(chan struct{}, tasksMax),
	}
	if !cfg.Issue {
		return f, nil
	}
	l := &IssueListener{
		rows: cfg.Store, topic: records, templates: f.templates, applier: applier, intake: f.Intake,
		ids: ids, concurrency: cfg.Concurrency, average: cfg.Average, settled: f.Notifier.hint, metrics: cfg.Metrics, log: cfg.Log.For(obs.Listener),
	}
	var err error
	f.listener, err = bus.NewListener(cfg.Bus, bus.ListenerConfig{
		Group: bus.GroupCouponIssue, Topic: bus.TopicCouponIssue, Handle: l.ProcessTopicMessages, Offsets: l.Offsets, Log: cfg.Log,
	})
	return f, err
}

func (f *Flow) newIntake(applier *Applier, ids *service.IDs) *Intake {
	cfg := f.cfg
	direct := &DirectIssuer{
		templates: f.templates, rows: cfg.Store, gate: cfg.Gate, applier: applier, ids: ids, slots: make(chan struct{}, cfg.Concurrency),
		lockWait: cfg.LockWait, lockLease: cfg.LockLease, settled: f.Notifier.hint,
	}
	i := &Intake{
		templates: f.templates, loader: f.loader, rows: cfg.Store, gate: cfg.Gate, refusals: f.refusals, applier: applier, notifier: f.Notifier, metrics: cfg.Metrics,
		timeout: cfg.LockWait + requestTimeout,
		direct:  newBatcher(directBatchMax, callTimeout, direct.IssueBatch), locked: newBatcher(gate.AdmitMax, cfg.LockWait+callTimeout, direct.IssueLocked),
	}
	i.admissions = newBatcher(gate.AdmitMax, callTimeout, i.askGate(true))
	i.checks = newBatcher(gate.AdmitMax, callTimeout, i.askGate(false))
	i.entrants = newBatcher(store.BatchMax, callTimeout, func(ctx context.Context, id reward.TemplateID, users []string) ([]bool, error) {
		entered, err := cfg.Store.EntrantSave(ctx, id, users)
		out := make([]bool, len(users))
		for n := range out {
			out[n] = entered
		}
		return out, err
	})
	return i
}

// Start begins, once the templates have been read.
func (f *Flow) Start(ctx context.Context) error {
	if err := f.templates.refresh(ctx); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	f.reading.Start(ctx, f.templates.run)
	f.hinting.Start(ctx, f.listen)
	if f.cfg.Issue {
		f.owning.Start(ctx, f.issuers.run)
		f.keeping.Start(ctx, f.maintainer.run)
		f.listener.Start(ctx)
	}
	if f.cfg.Housekeeping {
		f.expiring.Start(ctx, f.expire)
		if f.cfg.ReconcileEvery > 0 {
			f.reconciling.Start(ctx, f.Reconciler.run)
		}
	}
	return nil
}

// Stop ends everything; what is in hand is finished or left to others.
func (f *Flow) Stop() {
	f.endLoads()
	var wg sync.WaitGroup
	if f.listener != nil {
		wg.Go(f.listener.Stop)
	}
	for _, b := range []*service.Base{&f.keeping, &f.expiring, &f.reconciling, &f.hinting} {
		wg.Go(b.Stop)
	}
	wg.Wait()
	f.owning.Stop()
	f.reading.Stop()
	f.Intake.wait()
	f.loader.open.Wait()
}

// wait waits for calls that askers have left behind.
func (i *Intake) wait() {
	for _, open := range []*sync.WaitGroup{&i.admissions.open, &i.checks.open, &i.direct.open, &i.locked.open, &i.entrants.open, &i.notifier.open} {
		open.Wait()
	}
}

// hint makes whoever has to do with a template look.
func (f *Flow) hint(id reward.TemplateID) {
	f.issuers.giveHint(id)
	f.Notifier.hint(id)
}

// listen passes the gate's hints on.
func (f *Flow) listen(ctx context.Context) {
	for {
		select {
		case w, open := <-f.cfg.Gate.Hints():
			switch {
			case !open:
				return
			case w.Kind == gate.HintRequests:
				f.issuers.giveHint(w.TemplateID)
			default:
				f.refusals.drop(w.TemplateID)
				f.Notifier.hint(w.TemplateID)
			}
		case <-ctx.Done():
			return
		}
	}
}

// expire makes coupons whose time is over EXPIRED.
func (f *Flow) expire(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		n, err := f.cfg.Store.CouponExpire(ctx, time.Now(), expireBatch)
		if err != nil && ctx.Err() == nil {
			failures++
			if failures&(failures-1) == 0 {
				f.log.Warn(obs.Failed, err, "doing", "expiring coupons", "failures", failures)
			}
		} else {
			failures = 0
		}
		if n < expireBatch {
			service.Sleep(ctx, service.Jitter(expireInterval, 0.2))
		}
	}
}
