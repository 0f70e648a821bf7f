package payout

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	finishBatch   = 500                  // outcomes in one transaction
	finishLinger  = 2 * time.Millisecond // wait for further outcomes
	finishWorkers = 4
)

// Finisher writes outcomes in batches, acknowledges their entries after the
// commit, and then releases them. If it crashes before the commit, another
// consumer claims the entries. If it crashes after the commit, another consumer
// claims and acknowledges them, because their dispatch is settled.
//
// It must stop after every part that hands it entries.
type Finisher struct {
	service.Base
	rows    store.Payouts
	queue   queue.Queue
	retry   *RetryProcessor
	lease   time.Duration
	log     obs.Log
	work    chan finished
	acks    chan *pool.Item
	returns chan *pool.Item
	// onDone hints that the streams may have capacity again, onReturn that
	// there are READY rows.
	onDone, onReturn func()
	metrics          *obs.Metrics
	// writing ends when writes must no longer be retried. Entries whose outcome
	// is not written stay pending, to be claimed.
	writing context.Context
	giveUp  context.CancelFunc
}

// finished is an entry and the outcome of its dispatch.
type finished struct {
	item    *pool.Item
	outcome rules.Outcome
}

// NewFinisher returns a finisher that publishes retries through retry. It calls
// onDone after each batch of outcomes and onReturn after returning rows to
// READY.
func NewFinisher(rows store.Payouts, q queue.Queue, retry *RetryProcessor, lease time.Duration, onDone, onReturn func(), metrics *obs.Metrics, log obs.Log) *Finisher {
	writing, giveUp := context.WithCancel(context.Background())
	return &Finisher{
		writing: writing, giveUp: giveUp, onDone: onDone, onReturn: onReturn, metrics: metrics,
		rows: rows, queue: q, retry: retry, lease: lease, log: log.For(obs.Processor),
		work: make(chan finished, 2*finishBatch), acks: make(chan *pool.Item, 2*finishBatch),
		returns: make(chan *pool.Item, 2*finishBatch),
	}
}

// run writes until ctx ends. By then nothing passes entries to it any more.
func (f *Finisher) run(ctx context.Context) {
	var working sync.WaitGroup
	for range finishWorkers {
		working.Go(func() { inBatches(ctx, f.work, f.write) })
	}
	working.Go(func() { inBatches(ctx, f.acks, f.acknowledge) })
	working.Go(func() { inBatches(ctx, f.returns, f.writeReturns) })
	working.Wait()
}

// inBatches gathers batches and passes them to use until ctx ends.
func inBatches[T any](ctx context.Context, from <-chan T, use func(context.Context, []T)) {
	for {
		batch := gather(ctx, from)
		if batch == nil {
			return
		}
		use(ctx, batch)
	}
}

// gather waits for a value, then collects further values for finishLinger, at
// most finishBatch in all. It returns nil if ctx has ended.
func gather[T any](ctx context.Context, from <-chan T) []T {
	var batch []T
	select {
	case v := <-from:
		batch = append(batch, v)
	case <-ctx.Done():
		return nil
	}
	timer := time.NewTimer(finishLinger)
	defer timer.Stop()
	for len(batch) < finishBatch {
		select {
		case v := <-from:
			batch = append(batch, v)
		case <-timer.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// finish hands over an outcome. The item is released after the commit.
func (f *Finisher) finish(it *pool.Item, out rules.Outcome) {
	it.CallEnded()
	f.work <- finished{it, out}
}

// ack passes on an entry whose dispatch the database has already settled.
func (f *Finisher) ack(it *pool.Item) { f.acks <- it }

// returnToReady passes on an entry that this consumer must not charge: it was
// claimed, its pool ends, or its promotion is paused. Its row returns to READY
// with MaybeCalled set and is dispatched again under the same key.
func (f *Finisher) returnToReady(it *pool.Item) {
	it.CallEnded()
	f.returns <- it
}

// writeReturns returns a batch to READY. A claimed entry counts as a failed
// delivery, because its previous owner recorded no outcome.
func (f *Finisher) writeReturns(ctx context.Context, items []*pool.Item) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.writing, cancel)()
	for _, claimed := range []bool{true, false} {
		var (
			some []*pool.Item
			refs []reward.Ref
		)
		for _, it := range items {
			if claimed == it.Claimed {
				some = append(some, it)
				refs = append(refs, reward.Ref{PromotionID: it.Stream.PromotionID, TargetID: it.TargetID, Dispatch: it.Dispatch})
			}
		}
		if len(some) == 0 {
			continue
		}
		_, err := f.rows.PayoutReturn(ctx, store.PayoutReturnParams{
			Refs: refs, MaybeCalled: true, DeliveryFailed: claimed, Lease: f.lease, Now: time.Now(),
		})
		if err != nil {
			if ctx.Err() == nil {
				f.log.Warn("returning payouts failed", err, "count", len(some))
			}
			for _, it := range some {
				it.Release()
			}
			continue
		}
		f.acknowledge(ctx, some)
		f.log.Info("payouts returned to READY", "count", len(some), "claimed", claimed)
		f.onReturn()
	}
}

// write commits a batch. It retries until the batch is written or the finisher
// gives up. It halves a batch whose data the database refuses; the entry of a
// single refused outcome stays pending.
func (f *Finisher) write(ctx context.Context, batch []finished) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.writing, cancel)()
	outcomes := make([]rules.Outcome, len(batch))
	for i, b := range batch {
		outcomes[i] = b.outcome
	}
	var results []store.FinishResult
	report := f.log.Streak("writing outcomes failed", "")
	for try := 0; ; try++ {
		var err error
		results, err = f.rows.PayoutFinish(ctx, store.PayoutFinishParams{Outcomes: outcomes, Lease: f.lease, Now: time.Now()})
		if err == nil {
			break
		}
		if reward.KindOf(err) == reward.KindInvalid && len(batch) > 1 {
			f.write(ctx, batch[:len(batch)/2])
			f.write(ctx, batch[len(batch)/2:])
			return
		}
		report(err, "count", len(batch))
		if reward.KindOf(err) == reward.KindInvalid || !service.Sleep(ctx, service.Backoff(try, 20*time.Millisecond, 2*time.Second)) {
			for _, b := range batch {
				b.item.Release()
			}
			return
		}
	}
	items := make([]*pool.Item, len(batch))
	var retries []retryOf
	for i, b := range batch {
		items[i] = b.item
		r := results[i]
		if !r.Changed {
			continue
		}
		f.metrics.Finished(r.State, 1)
		if r.State == reward.Retrying {
			retries = append(retries, retryOf{batch[i], r})
		}
	}
	f.acknowledge(ctx, items)
	if len(retries) > 0 {
		f.retry.publish(retries)
	}
	f.onDone()
}

// acknowledge removes entries whose dispatch is settled. If it fails, they stay
// pending, and the consumer that claims them acknowledges them.
func (f *Finisher) acknowledge(ctx context.Context, items []*pool.Item) {
	ids := make(map[queue.Stream][]string, 1)
	for _, it := range items {
		ids[it.Stream] = append(ids[it.Stream], it.ID)
	}
	for s, list := range ids {
		if err := f.queue.Ack(ctx, s, list); err != nil && ctx.Err() == nil {
			f.log.Warn("acknowledging entries failed", err, "promotion_id", s.PromotionID, "count", len(list))
		}
	}
	for _, it := range items {
		it.Release()
	}
}
