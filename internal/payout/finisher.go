package payout

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	finishBatch   = 500                  // outcomes of one transaction
	finishLinger  = 2 * time.Millisecond // wait for more of them
	finishWorkers = 4
)

// Finisher writes outcomes in batches, acknowledges their entries after the
// commit, and only then releases them. Dying before the commit leaves entries
// to be claimed; dying after it leaves entries whose dispatch is settled, which
// whoever claims them acknowledges.
//
// It stops last, after everybody who finishes through it.
type Finisher struct {
	service.Base
	rows  store.Payouts
	queue queue.Queue
	retry *RetryProcessor
	lease time.Duration
	log   obs.Log
	work  chan finished
	acks  chan *pool.Item
	backs chan *pool.Item
	// onDone hints that there may be room in the streams again, onBack that
	// there is something READY.
	onDone, onBack func()
	metrics        *obs.Metrics
	// hurry ends the tries of writes; what is not written is left to be claimed.
	hurry  context.Context
	giveUp context.CancelFunc
}

type finished struct {
	item    *pool.Item
	outcome store.Outcome
}

// NewFinisher makes a finisher that has retries published by retry; onDone is
// called after each batch of outcomes, onBack after rows were given back.
func NewFinisher(rows store.Payouts, q queue.Queue, retry *RetryProcessor, lease time.Duration, onDone, onBack func(), metrics *obs.Metrics, log obs.Log) *Finisher {
	hurry, giveUp := context.WithCancel(context.Background())
	return &Finisher{
		hurry: hurry, giveUp: giveUp, onDone: onDone, onBack: onBack, metrics: metrics,
		rows: rows, queue: q, retry: retry, lease: lease, log: log.For(obs.Processor),
		work: make(chan finished, 2*finishBatch), acks: make(chan *pool.Item, 2*finishBatch),
		backs: make(chan *pool.Item, 2*finishBatch),
	}
}

// run writes until ctx ends; by then nobody finishes any more.
func (f *Finisher) run(ctx context.Context) {
	var working sync.WaitGroup
	for range finishWorkers {
		working.Go(func() { inBatches(ctx, f.work, f.write) })
	}
	working.Go(func() { inBatches(ctx, f.acks, f.acknowledge) })
	working.Go(func() { inBatches(ctx, f.backs, f.writeBack) })
	working.Wait()
}

// inBatches gathers and uses batches until ctx ends.
func inBatches[T any](ctx context.Context, from <-chan T, use func(context.Context, []T)) {
	for {
		batch := gather(ctx, from)
		if batch == nil {
			return
		}
		use(ctx, batch)
	}
}

// gather waits for one value, then takes what comes within finishLinger, at
// most finishBatch; nil when ctx has ended.
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

// finish hands an outcome over; the item is released once it is safe.
func (f *Finisher) finish(it *pool.Item, out store.Outcome) {
	it.CallEnded()
	f.work <- finished{it, out}
}

// ack hands over an entry whose dispatch is settled in the database.
func (f *Finisher) ack(it *pool.Item) { f.acks <- it }

// giveBack hands over an entry that its holder must not call: a claimed one, or
// one of a pool that ends or a promotion that was paused. Its row returns to
// READY, flagged as maybe called, and is dispatched anew under the same key.
func (f *Finisher) giveBack(it *pool.Item) {
	it.CallEnded()
	f.backs <- it
}

// writeBack gives a batch back. A claimed entry has had a holder that let go of
// it without a word; that is counted.
func (f *Finisher) writeBack(ctx context.Context, items []*pool.Item) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.hurry, cancel)()
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
		_, err := f.rows.PayoutGiveBack(ctx, store.PayoutGiveBackParams{
			Refs: refs, MaybeCalled: true, HandedOver: claimed, Lease: f.lease, Now: time.Now(),
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
		f.onBack()
	}
}

// write commits a batch, trying until it is written or the finisher gives up.
// A batch that fails for its data is halved; one outcome that the database
// cannot keep is left, for its entry to be claimed.
func (f *Finisher) write(ctx context.Context, batch []finished) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.hurry, cancel)()
	outcomes := make([]store.Outcome, len(batch))
	for i, b := range batch {
		outcomes[i] = b.outcome
	}
	var results []store.FinishResult
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
		if try&(try-1) == 0 {
			f.log.Warn("writing outcomes failed", err, "count", len(batch), "attempt", try+1)
		}
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

// acknowledge removes entries whose dispatch is settled. When it fails they
// stay pending: whoever claims them sees that and acknowledges.
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
