// Package payout pays targets. It saves each target as a payout row, dispatches
// the payout into a stream, charges the provider, and records the outcome.
// docs/architecture.md describes the steps. A crash may repeat a step, so each
// step changes nothing if it was already done.
package payout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/tracing"
)

// Config configures a Flow.
type Config struct {
	Store    Store
	Queue    queue.Queue
	Bus      *bus.Client
	Provider Provider
	// Pool sizes the consumer pools. New sets Queue, Handle, Healthy, AcceptsWork,
	// Metrics and Log.
	Pool pool.Config
	// Governor limits the calls. New sets Metrics, Troubles and Log.
	Governor governor.Config
	// MaxLen limits the entries of each stream.
	MaxLen int
	Limits Limits
	// Direct selects direct mode (redis.stream.enabled: false; docs/adr/0007): each
	// instance has a queue in its own process and pays only what it dispatched itself.
	Direct bool
	// QueueIsLocal means that this instance is alone and has the queue in its process.
	// The queue starts empty, so Start returns all QUEUED payouts to READY.
	QueueIsLocal bool
	// ApprovalAbove is the setting approval.above: a running promotion with a
	// larger total is paused until a second person has approved it.
	ApprovalAbove reward.Limits
	// ApprovalPerDay is the setting approval.above-per-day; see rules.AsksForGrant.
	ApprovalPerDay reward.Limits
	// Start starts a scheduled promotion. If it is nil, none is started.
	Start func(ctx context.Context, id reward.PromotionID) error
	// Ingest, Payout and Housekeeping are the roles that this instance runs.
	Ingest, Payout, Housekeeping bool
	Breaches                     Breaches
	Metrics                      *obs.Metrics
	// Tracer makes the spans of records and payouts. Nil makes none.
	Tracer *tracing.Tracer
	// Troubles takes what degrades the instance.
	Troubles *obs.Troubles
	Log      obs.Log
}

// directMaxLen limits, in direct mode, the entries of one promotion in the queue
// of an instance.
const directMaxLen = 10_000

// shared is what the parts of a flow have in common.
type shared struct {
	cfg      Config
	rows     *flowStore
	cache    *StatusCache
	clock    *queueClock
	parking  *parking
	governor *governor.Governor
}

// newShared returns what the parts share, without a governor. refreshed is called after
// each successful read of the cache, unless it is nil.
func newShared(cfg Config, refreshed func(active)) *shared {
	s := &shared{cfg: cfg, rows: newFlowStore(cfg.Store, cfg.ApprovalAbove, cfg.Breaches), parking: newParking(cfg.Troubles)}
	s.cache = newStatusCache(s.rows, refreshed, cfg.Log)
	s.clock = newQueueClock(s)
	return s
}

// Flow connects the parts that pay, and starts and stops them in order. Its
// methods are safe for concurrent use.
type Flow struct {
	*shared
	producer *Producer
	manager  *pool.Manager
	finisher *Finisher
	retry    *RetryProcessor
	feeder   *Feeder
	// ownedRows and ownedStreams are this instance's parts of the housekeeping that needs
	// the database only, and the queue. They are nil if this instance is alone.
	ownedRows, ownedStreams *store.Share
	sweeper                 *Sweeper
	settler                 *Settler
	guard                   *Guard
	listeners               []interface {
		Start(ctx context.Context)
		Stop()
	}
}

// New connects the parts. Nothing runs until Start.
func New(cfg Config) (*Flow, error) {
	f := wire(cfg, cfg.Bus)
	if err := f.listen(); err != nil {
		f.governor.Close()
		return nil, err
	}
	return f, nil
}

func wire(cfg Config, publisher bus.Publisher) *Flow {
	f := &Flow{}
	f.shared = newShared(cfg, f.refreshed)
	cfg.Governor.Metrics, cfg.Governor.Troubles, cfg.Governor.Log = cfg.Metrics, cfg.Troubles, cfg.Log
	f.governor = governor.New(cfg.Governor)
	f.producer = newProducer(f.shared)
	f.feeder = newFeeder(f.shared, f.producer, f.ownCapacity)
	f.retry = newRetryProcessor(f.shared, publisher, f.producer)
	f.finisher = newFinisher(f.shared, f.retry, f.feeder.SpaceFreed)
	cfg.Pool.Queue, cfg.Pool.Metrics, cfg.Pool.Log = cfg.Queue, cfg.Metrics, cfg.Log
	cfg.Pool.AcceptsWork = func(id reward.PromotionID) bool { return f.governor.AcceptsWork(id) && !f.parking.has(id) }
	cfg.Pool.Refused = f.producer.health.failed
	cfg.Pool.Healthy = func() bool { return f.cache.FreshWithin(cfg.Limits.Lease) }
	processor := newProcessor(f.shared, f.finisher)
	cfg.Pool.Handle = func(ctx context.Context, items []*pool.Item) { go processor.ProcessStreamMessages(ctx, items) }
	f.manager = pool.NewManager(cfg.Pool)
	ownsRows, ownsStreams := f.divide()
	f.sweeper = newSweeper(f.shared, f.manager, ownsRows, ownsStreams)
	f.settler = newSettler(f.shared)
	f.guard = newGuard(f.shared)
	return f
}

func (f *Flow) refreshed(now active) {
	for id := range f.governor.State().Waiting {
		if v := now.views[id]; v != nil && (v.Status == reward.Paused || v.Status == reward.PromotionCancelled) {
			f.governor.CancelWaiting(id)
		}
	}
	for _, id := range now.changed {
		if v := now.views[id]; v != nil && v.Status == reward.Running {
			f.governor.Update(f.cache.job(id))
		}
	}
	switch {
	case !f.cfg.Payout:
	case f.cfg.Direct:
		specs := make([]pool.Spec, 0, len(now.views))
		for _, v := range now.views {
			s := specOf(*v)
			// A swept payout may have left an entry in the queue, which the row does not
			// show, and which a pool must acknowledge.
			s.Work = s.Work || f.producer.StreamLen(context.Background(), *v) > 0
			specs = append(specs, s)
		}
		f.manager.Converge(specs)
	default:
		var specs []pool.Spec
		var gone []reward.PromotionID
		for _, id := range now.changed {
			if v := now.views[id]; v != nil {
				specs = append(specs, specOf(*v))
			} else {
				gone = append(gone, id)
			}
		}
		f.manager.Follow(specs, gone)
	}
}

// divide divides the housekeeping of rows and of streams among the instances. An instance
// that cannot read the promotions, or reach the queue, leaves its part to those that can.
func (f *Flow) divide() (rows, streams owns) {
	if f.cfg.QueueIsLocal {
		all := func(reward.PromotionID) bool { return true }
		return all, all
	}
	log, lease := f.cfg.Log.For(obs.Sweeper), f.cfg.Limits.Lease
	reads := func() bool { return f.cache.FreshWithin(lease) }
	f.ownedRows = store.NewShare(f.rows, "housekeeping of rows", f.cfg.Pool.Instance, reads, log)
	f.ownedStreams = store.NewShare(f.rows, "housekeeping of streams", f.cfg.Pool.Instance,
		func() bool { return reads() && !f.sweeper.sweeping.stuck(lease) }, log)
	return f.ownedRows.Owns, f.ownedStreams.Owns
}

func (f *Flow) listen() error {
	cfg := f.cfg
	common := listener{shared: f.shared, logs: cfg.Bus, publisher: cfg.Bus, log: cfg.Log.For(obs.Listener)}
	join := func(lc bus.ListenerConfig) error {
		lc.Healthy, lc.Log = f.Connected, cfg.Log
		listener, err := bus.NewListener(cfg.Bus, lc)
		f.listeners = append(f.listeners, listener)
		return err
	}
	for _, k := range kinds {
		if cfg.Payout {
			l := &RetryListener{common, k, f.retry}
			if err := join(bus.ListenerConfig{Group: k.retryGroup, Topic: k.retryTopic, Handle: l.ProcessTopicMessages}); err != nil {
				return err
			}
		}
		if cfg.Ingest {
			l := newPublishListener(common, k, f.producer)
			if err := join(bus.ListenerConfig{Group: k.publishGroup, Topic: k.publishTopic, Handle: l.ProcessTopicMessages, Offsets: l.Offsets}); err != nil {
				return err
			}
		}
	}
	if !cfg.Ingest {
		return nil
	}
	l := &StartedListener{common}
	broadcast, err := bus.NewBroadcast(cfg.Bus, bus.BroadcastConfig{Topic: bus.TopicStarted, Handle: l.ProcessTopicMessages, Log: cfg.Log})
	f.listeners = append(f.listeners, broadcast)
	return err
}

// Unblock ends a block of all calls by a Retry-After; see governor.Governor.Unblock.
func (f *Flow) Unblock() { f.governor.Unblock() }

// Hint makes the flow read the promotions sooner. It never blocks.
func (f *Flow) Hint(reward.PromotionID) { f.cache.Hint() }

// Views returns the active promotions as of the latest read.
func (f *Flow) Views() map[reward.PromotionID]*store.PromotionView { return f.cache.Views() }

// Owns reports whether the housekeeping of a promotion's rows is this instance's part
// now.
func (f *Flow) Owns(id reward.PromotionID) bool { return f.sweeper.ownsRows(id) }

// cutOffAfter is the age of the view after which an instance counts as cut off
// from the database, and leaves its Kafka partitions to others.
const cutOffAfter = 20 * time.Second

// Connected reports whether this instance has read the database within
// cutOffAfter.
func (f *Flow) Connected() bool { return f.cache.FreshWithin(cutOffAfter) }

// ViewAge returns the age of the view of the promotions.
func (f *Flow) ViewAge() time.Duration {
	_, readAt := f.cache.view.Get()
	return time.Since(readAt)
}

// Pools returns the state of this instance's pools.
func (f *Flow) Pools() []pool.Status { return f.manager.Pools() }

// Save is Producer.Save.
func (f *Flow) Save(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	return f.producer.Save(ctx, t, p)
}

// Start starts the parts. It fails only if QueueIsLocal is set and QUEUED payouts cannot
// be returned to READY.
func (f *Flow) Start(ctx context.Context) error {
	if f.cfg.QueueIsLocal {
		if err := f.sweeper.SweepAll(ctx); err != nil {
			return fmt.Errorf("return earlier dispatches to READY: %w", err)
		}
	}
	start := func(b *service.Base, run func(context.Context)) { b.Start(context.WithoutCancel(ctx), run) }
	start(&f.clock.Base, f.clock.run)
	start(&f.cache.Base, f.cache.run)
	start(&f.producer.health.Base, f.producer.health.run)
	if f.cfg.Payout {
		start(&f.finisher.Base, f.finisher.run)
		start(&f.retry.Base, f.retry.run)
		f.manager.Run(context.WithoutCancel(ctx))
		start(&f.feeder.Base, f.feeder.run)
	}
	if f.cfg.Housekeeping {
		if f.ownedRows != nil {
			start(&f.ownedRows.Base, f.ownedRows.Run)
			start(&f.ownedStreams.Base, f.ownedStreams.Run)
		}
		start(&f.sweeper.Base, f.sweeper.run)
		if f.cfg.Provider != nil {
			start(&f.settler.Base, f.settler.run)
		}
		start(&f.guard.Base, f.guard.run)
	}
	for _, l := range f.listeners {
		l.Start(context.WithoutCancel(ctx))
	}
	return nil
}

// Stop ends the parts that read new work, then those that charge, then those that record
// outcomes. If the process ends before Stop returns, no payout is lost.
func (f *Flow) Stop() {
	var listening sync.WaitGroup
	for _, l := range f.listeners {
		listening.Go(l.Stop)
	}
	listening.Wait()
	f.feeder.Stop()
	f.retry.Stop()
	f.sweeper.Stop()
	f.settler.Stop()
	f.guard.Stop()
	if f.ownedRows != nil {
		f.ownedRows.Stop()
		f.ownedStreams.Stop()
	}
	// An unavailable database must not delay the stop: the entries without an outcome
	// stay pending.
	late := time.AfterFunc(2*f.cfg.Pool.StopTimeout+time.Second, f.finisher.giveUp)
	f.manager.StopAll()
	late.Stop()
	f.governor.Close()
	f.finisher.Stop()
	f.cache.Stop()
	f.producer.health.Stop()
	f.clock.Stop()
}

// runs reports whether a promotion is RUNNING in the database.
func (s *shared) runs(ctx context.Context, id reward.PromotionID) bool {
	views, err := s.rows.PromotionViews(ctx, []reward.PromotionID{id})
	return err == nil && len(views) == 1 && views[0].Status == reward.Running
}

// pause pauses a promotion until a person has looked at it, and reports whether it is
// known not to be RUNNING any more.
func (s *shared) pause(ctx context.Context, id reward.PromotionID, reason string) bool {
	defer s.cache.Hint()
	log := s.cfg.Log.For(obs.Processor)
	err := s.movePaused(ctx, id, reason)
	switch {
	case err == nil:
		log.Error("promotion paused", errors.New(reason), "promotion_id", id)
		return true
	case reward.HasCode(err, reward.CodeIllegalState):
		return true
	case ctx.Err() == nil:
		log.Warn("pausing promotion failed", err, "promotion_id", id)
	}
	return false
}

// movePaused makes a RUNNING promotion PAUSED.
func (s *shared) movePaused(ctx context.Context, id reward.PromotionID, reason string) error {
	_, err := s.rows.PromotionMove(ctx, store.PromotionMoveParams{
		ID: id, From: []reward.PromotionStatus{reward.Running}, To: reward.Paused, Reason: reason, Now: time.Now(),
	})
	return err
}

// ownCapacity returns how many entries this instance's queue may hold for a promotion in
// direct mode: twice the calls that may be in flight, but no more than this instance's
// share of the rates allows within a quarter of the dispatch horizon. More payouts would
// only be returned uncharged.
func (f *Flow) ownCapacity(v store.PromotionView) int {
	n := min(2*f.manager.Capacity(specOf(v)), directMaxLen)
	instances := 1
	if f.cfg.Governor.Instances != nil {
		instances = f.cfg.Governor.Instances()
	}
	for _, rate := range []int{f.cfg.Governor.RatePerSecond, v.RatePerSecond} {
		if rate > 0 {
			part := float64(rate) / float64(instances) * (f.cfg.Limits.DispatchHorizon() / 4).Seconds()
			n = min(n, max(int(part), 1))
		}
	}
	return n
}

func specOf(v store.PromotionView) pool.Spec {
	total := v.Counts.Total()
	if v.ExpectedCount != nil {
		total = max(total, *v.ExpectedCount)
	}
	return pool.Spec{
		Stream: queue.StreamOf(v.Promotion), Total: total, Consumers: v.ConsumersPerInstance,
		Work:   v.Counts.Payouts[reward.Queued] > 0,
		Paused: v.Status == reward.Paused,
		Final:  v.Status.Final(),
	}
}
