// Package payout is the flow of money out: targets come in by file or Kafka,
// become rows, are dispatched into streams, called at the provider, and end in
// one final state each. The steps are those of the payout protocol
// (docs/architecture.md); every border repeats, and its far side is idempotent.
package payout

import (
	"context"
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
)

// Config is what the flow is made of.
type Config struct {
	Store    store.Store
	Queue    queue.Queue
	Bus      *bus.Client
	Provider Provider
	// Pool sizes the consumer pools; Queue, Handler, Alive, Metrics and Log are
	// filled in.
	Pool pool.Config
	// Governor bounds the calls; Metrics and Log are filled in.
	Governor governor.Config
	// MaxLen bounds each stream, in entries.
	MaxLen int
	Limits Limits
	// Direct works without streams (redis.stream.enabled: false): Queue lives in
	// this process, and so does each other instance's; an instance works off
	// what it has dispatched itself. See docs/adr/0007.
	Direct bool
	// QueueIsLocal says that the queue lives in this process and starts empty:
	// whatever was dispatched before is dispatched anew.
	QueueIsLocal bool
	// ApprovalAbove is what a promotion may be worth without the approval of a
	// second person; 0 = anything.
	ApprovalAbove reward.Amount
	// Start starts a promotion whose time has come; nil = nobody does.
	Start func(ctx context.Context, id reward.PromotionID) error
	// Ingest, Payout and Housekeeping are the roles this instance plays.
	Ingest, Payout, Housekeeping bool
	Metrics                      *obs.Metrics
	Log                          obs.Log
}

// directMaxLen bounds what an instance has dispatched of a promotion to itself,
// when there are no streams.
const directMaxLen = 10_000

// Flow starts and stops the parts of the payout flow in order.
type Flow struct {
	cfg       Config
	intake    *Intake
	cache     *StatusCache
	manager   *pool.Manager
	governor  *governor.Governor
	finisher  *Finisher
	retry     *RetryProcessor
	feeder    *Feeder
	sweeper   *Sweeper
	settler   *Settler
	guard     *Guard
	listeners []interface {
		Start(ctx context.Context)
		Stop()
	}
}

// New wires the parts; nothing runs yet.
func New(cfg Config) (*Flow, error) {
	publisher := bus.NewPublisher(cfg.Bus)
	f := wire(cfg, publisher)
	if err := f.listen(publisher); err != nil {
		f.governor.Close()
		return nil, err
	}
	return f, nil
}

// wire makes every part but the listeners.
func wire(cfg Config, publisher bus.Publisher) *Flow {
	cfg.Limits.direct = cfg.Direct
	f := &Flow{cfg: cfg}
	f.cache = NewStatusCache(cfg.Store, cfg.Log)
	producer := &Producer{
		Queue: cfg.Queue, Rows: cfg.Store, MaxLen: cfg.MaxLen,
		Horizon: cfg.Limits.DispatchHorizon(), Lease: cfg.Limits.Lease, Log: cfg.Log,
	}
	f.intake = &Intake{Rows: cfg.Store, Producer: producer, MaxLen: cfg.MaxLen}
	if cfg.Direct {
		f.intake.MaxLen = 0 // what is saved waits for a feeder with room
	}
	f.retry = NewRetryProcessor(publisher, cfg.Store, producer, cfg.Log)
	f.feeder = NewFeeder(cfg.Store, f.cache, producer, cfg.MaxLen, cfg.Log)
	if cfg.Direct {
		f.feeder.taking = func() bool { return f.governor.Taking() }
		f.feeder.own = f.own
	}
	f.finisher = NewFinisher(cfg.Store, cfg.Queue, f.retry, cfg.Limits.Lease, f.feeder.Room, f.cache.Hint, cfg.Metrics, cfg.Log)
	cfg.Governor.Metrics, cfg.Governor.Log = cfg.Metrics, cfg.Log
	f.governor = governor.New(cfg.Governor)
	cfg.Pool.Taking = f.governor.Taking
	cfg.Pool.Queue, cfg.Pool.Metrics, cfg.Pool.Log = cfg.Queue, cfg.Metrics, cfg.Log
	cfg.Pool.Alive = func() bool { return f.cache.Alive(cfg.Limits.Lease) }
	cfg.Pool.Handler = &Processor{
		Store: cfg.Store, Provider: cfg.Provider, Governor: f.governor, Cache: f.cache, Finisher: f.finisher,
		Limits: cfg.Limits, Metrics: cfg.Metrics, Log: cfg.Log,
	}
	f.manager = pool.NewManager(cfg.Pool)
	f.sweeper = NewSweeper(cfg.Store, cfg.Queue, f.cache, f.manager, cfg.Limits, cfg.Metrics, cfg.Log)
	f.settler = NewSettler(cfg.Store, cfg.Provider, f.governor, f.cache, cfg.Limits, cfg.Log)
	f.guard = NewGuard(GuardConfig{Store: cfg.Store, Cache: f.cache, ApprovalAbove: cfg.ApprovalAbove, Start: cfg.Start, Log: cfg.Log})
	f.cache.onRefresh = func(views []store.PromotionView) {
		for _, v := range views {
			if v.Status == reward.Paused || v.Status == reward.PromotionCancelled {
				f.governor.Kick(v.ID)
			}
		}
		if cfg.Payout {
			f.manager.Converge(f.specs(views))
		}
	}
	return f
}

// listen makes the listeners of the roles.
func (f *Flow) listen(publisher bus.Publisher) error {
	cfg := f.cfg
	if cfg.Payout {
		for _, k := range kinds {
			l := NewRetryListener(k.promotionType, cfg.Store, f.retry, publisher, cfg.Log)
			listener, err := bus.NewListener(cfg.Bus, bus.ListenerConfig{
				Group: k.retryGroup, Topic: k.retryTopic, Handle: l.ProcessTopicMessages, Log: cfg.Log,
			})
			if err != nil {
				return err
			}
			f.listeners = append(f.listeners, listener)
		}
	}
	if cfg.Ingest {
		for _, k := range kinds {
			l := NewPublishListener(k.promotionType, cfg.Store, f.intake, cfg.Bus, publisher, f.cache.Hint, cfg.Log)
			l.starts = cfg.Direct
			listener, err := bus.NewListener(cfg.Bus, bus.ListenerConfig{
				Group: k.publishGroup, Topic: k.publishTopic, Handle: l.ProcessTopicMessages, Offsets: l.Offsets, Log: cfg.Log,
			})
			if err != nil {
				return err
			}
			f.listeners = append(f.listeners, listener)
		}
		started := NewStartedListener(cfg.Store, publisher, f.cache.Hint, cfg.Log)
		broadcast, err := bus.NewBroadcast(cfg.Bus, bus.BroadcastConfig{
			Topic: bus.TopicStarted, Handle: started.ProcessTopicMessages, Log: cfg.Log,
		})
		if err != nil {
			return err
		}
		f.listeners = append(f.listeners, broadcast)
	}
	return nil
}

// Hint says that a promotion's row has changed.
func (f *Flow) Hint(reward.PromotionID) { f.cache.Hint() }

// Views returns the active promotions as of the latest read.
func (f *Flow) Views() map[reward.PromotionID]*store.PromotionView { return f.cache.Views() }

// Pools returns the state of this instance's pools.
func (f *Flow) Pools() []pool.Status { return f.manager.Pools() }

// Save writes at most store.BatchMax targets of promotions of type t and
// enqueues those that became QUEUED; see Intake.
func (f *Flow) Save(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	return f.intake.Save(ctx, t, p)
}

// Start runs the parts until Stop.
func (f *Flow) Start(ctx context.Context) error {
	if f.cfg.QueueIsLocal {
		if err := f.sweeper.SweepAll(ctx); err != nil {
			return fmt.Errorf("return what was dispatched before the restart: %w", err)
		}
	}
	start := func(b *service.Base, run func(context.Context)) { b.Start(context.WithoutCancel(ctx), run) }
	start(&f.cache.Base, f.cache.run)
	if f.cfg.Payout {
		start(&f.finisher.Base, f.finisher.run)
		start(&f.retry.Base, f.retry.run)
		f.manager.Run(context.WithoutCancel(ctx))
		start(&f.feeder.Base, f.feeder.run)
	}
	if f.cfg.Housekeeping {
		start(&f.sweeper.Base, f.sweeper.run)
		if f.cfg.Provider != nil { // without one there is nobody to ask
			start(&f.settler.Base, f.settler.run)
		}
		start(&f.guard.Base, f.guard.run)
	}
	for _, l := range f.listeners {
		l.Start(context.WithoutCancel(ctx))
	}
	return nil
}

// Stop ends the flow: first what takes work in, then what does it, last what
// records it. Nothing is lost by it, however it goes.
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
	// A database that is away must not hold up the end: what could not be
	// written in time is left in the stream.
	late := time.AfterFunc(2*f.cfg.Pool.StopTimeout+time.Second, f.finisher.giveUp)
	f.manager.StopAll()
	late.Stop()
	f.governor.Close()
	f.finisher.Stop()
	f.cache.Stop()
}

// own is how much of a promotion this instance dispatches to itself, without
// streams: what it may have open twice over, and no more than its part of a rate
// lets through within a quarter of X, as what is called later is given back.
func (f *Flow) own(v store.PromotionView) int {
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

// specs says what pools there should be.
func (f *Flow) specs(views []store.PromotionView) []pool.Spec {
	out := make([]pool.Spec, 0, len(views))
	for _, v := range views {
		s := specOf(v)
		if f.cfg.Direct && !s.Work {
			// The rows do not know of what is left here of older dispatches; it has
			// to be cleared away.
			s.Work = f.intake.Producer.Held(context.Background(), v) > 0
		}
		out = append(out, s)
	}
	return out
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
		Final:  v.Status == reward.Completed || v.Status == reward.PromotionCancelled,
	}
}
