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
	finishBatch  = store.BatchMax       // outcomes in one transaction
	finishLinger = 2 * time.Millisecond // wait for further outcomes
	// finishWorkers: while one commits a batch, the other collects the next. More of them
	// would divide the outcomes into more transactions, which wait for the same counts.
	finishWorkers = 2
)

// Finisher writes the outcomes of dispatches in batches. After the commit it acknowledges
// their entries and releases the items, which frees capacity in their pool. After a
// crash, another consumer claims the entries that were not acknowledged.
//
// Promotions share batches. If a batch fails, the Finisher writes the outcomes of each
// promotion by themselves, and parks those that fail again; see parking.
//
// Before you stop the Finisher, stop every part that hands it items.
type Finisher struct {
	service.Base
	*shared
	retry *RetryProcessor // publishes the payouts that became RETRYING
	// recorded is called after each batch of outcomes: streams may have capacity again.
	recorded func()
	log      obs.Log
	// report and ackReport log failed writes and acknowledgements.
	report, ackReport   func(error, ...any)
	work, acks, returns chan finished // acks and returns have no outcomes
	// writing ends when the finisher gives up: it then repeats no failed write, and
	// leaves entries without an outcome pending.
	writing context.Context
	giveUp  context.CancelFunc
}

// finished is an entry, and the outcome of its dispatch if it has one.
type finished struct {
	item    *pool.Item
	outcome rules.Outcome
	amount  reward.Amount // of the payout
}

func (x finished) promotion() reward.PromotionID { return x.item.Stream.PromotionID }

func newFinisher(s *shared, retry *RetryProcessor, recorded func()) *Finisher {
	writing, giveUp := context.WithCancel(context.Background())
	log := s.cfg.Log.For(obs.Processor)
	return &Finisher{
		shared: s, retry: retry, recorded: recorded, log: log, writing: writing, giveUp: giveUp,
		report: log.Streak("writing outcomes failed", ""), ackReport: log.Streak("acknowledging entries failed", ""),
		work: make(chan finished, 2*finishBatch), acks: make(chan finished, 2*finishBatch), returns: make(chan finished, 2*finishBatch),
	}
}

// run writes until ctx ends. Nothing may pass items to it after that.
func (f *Finisher) run(ctx context.Context) {
	writing, cancel := context.WithCancel(ctx) // ends sooner if the finisher gives up
	defer cancel()
	defer context.AfterFunc(f.writing, cancel)()
	var working sync.WaitGroup
	inBatches := func(from <-chan finished, use func([]finished)) {
		working.Go(func() {
			for batch := gather(ctx, from, nil); batch != nil; batch = gather(ctx, from, batch) {
				use(batch) // keeps no part of it
			}
		})
	}
	for range finishWorkers {
		inBatches(f.work, func(batch []finished) { f.write(writing, batch) })
	}
	inBatches(f.acks, func(batch []finished) { f.acknowledge(ctx, batch) })
	inBatches(f.returns, func(batch []finished) { f.writeReturns(writing, batch) })
	working.Go(func() { f.retryParked(writing) })
	working.Wait()
	f.parking.end()
}

// gather waits for a value, then collects up to finishBatch values for finishLinger, in the
// memory of the batch before. It returns nil if ctx ends first.
func gather(ctx context.Context, from <-chan finished, before []finished) []finished {
	clear(before) // a wait keeps no items in memory
	batch := before[:0]
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

// finish passes on an outcome. The item is released after the commit.
func (f *Finisher) finish(it *pool.Item, amount reward.Amount, out rules.Outcome) {
	it.CallEnded()
	f.work <- finished{it, out, amount}
}

// ack passes on an entry that needs no outcome: its row is not QUEUED under this dispatch
// any more, or a dead letter holds its bytes.
func (f *Finisher) ack(it *pool.Item) { f.acks <- finished{item: it} }

// returnToReady passes on an entry that this consumer must not charge now: for example it
// was claimed, its pool ends, or its promotion is paused. The row returns to READY, or
// becomes UNKNOWN in a CANCELLED promotion.
//
// MaybeCalled is always set: an earlier try of this consumer, or the previous owner of a
// claimed entry, may have sent a charge.
func (f *Finisher) returnToReady(it *pool.Item) {
	it.CallEnded()
	f.returns <- finished{item: it}
}

// writeReturns returns the payouts of a batch to READY. A claimed entry counts as a
// failed delivery, because its previous owner recorded no outcome. If a batch fails, it
// returns the payouts of each promotion by themselves. The entries of those that fail, or
// that have parked outcomes, stay pending until a consumer claims them.
func (f *Finisher) writeReturns(ctx context.Context, batch []finished) {
	for _, claimed := range []bool{true, false} {
		var some []finished
		for _, x := range batch {
			switch {
			case claimed != x.item.Claimed:
			case f.parking.has(x.promotion()):
				x.item.Release()
			default:
				some = append(some, x)
			}
		}
		if len(some) == 0 || f.returnAll(ctx, some, claimed) == nil {
			continue
		}
		for id, part := range byPromotion(some) {
			if err := f.returnAll(ctx, part, claimed); err != nil {
				if ctx.Err() == nil {
					f.log.Warn("returning payouts failed", err, "promotion_id", id, "count", len(part))
				}
				release(part)
			}
		}
	}
}

// returnAll returns the payouts of a batch to READY in one transaction.
func (f *Finisher) returnAll(ctx context.Context, batch []finished, claimed bool) error {
	refs := make([]reward.Ref, len(batch))
	for i, x := range batch {
		refs[i] = reward.Ref{PromotionID: x.promotion(), TargetID: x.item.TargetID, Dispatch: x.item.Dispatch}
	}
	returned, err := f.rows.PayoutReturn(ctx, store.PayoutReturnParams{
		Refs: refs, MaybeCalled: true, DeliveryFailed: claimed, Lease: f.cfg.Limits.Lease,
	})
	if err != nil {
		return err
	}
	f.acknowledge(ctx, batch)
	// A row that has changed meanwhile stays as it is.
	if returned > 0 {
		f.log.Info("payouts returned to READY", "count", returned, "claimed", claimed)
	}
	f.cache.Hint()
	return nil
}

func byPromotion(batch []finished) map[reward.PromotionID][]finished {
	parts := make(map[reward.PromotionID][]finished)
	for _, x := range batch {
		parts[x.promotion()] = append(parts[x.promotion()], x)
	}
	return parts
}

// write commits a batch, except outcomes of promotions that have parked ones. If the
// batch fails, it commits those of each promotion by themselves, and parks those that
// fail. After a failure that no row has caused it parks the others at once: the database
// is away, and each further try would wait for it.
func (f *Finisher) write(ctx context.Context, batch []finished) {
	if batch = f.parking.sift(batch); len(batch) == 0 {
		return
	}
	err := f.commit(ctx, batch)
	if err == nil {
		return
	}
	parts := byPromotion(batch)
	away := len(parts) == 1
	for _, part := range parts {
		if !away {
			again := f.commit(ctx, part)
			if again == nil {
				continue
			}
			err, away = again, !ofRows(again)
		}
		f.parking.park(part, err)
	}
}

// commit writes outcomes in one transaction and acknowledges their entries.
func (f *Finisher) commit(ctx context.Context, batch []finished) error {
	outcomes := make([]rules.Outcome, len(batch))
	for i, b := range batch {
		outcomes[i] = b.outcome
	}
	results, err := f.rows.PayoutFinish(ctx, store.PayoutFinishParams{Outcomes: outcomes, Lease: f.cfg.Limits.Lease})
	if err != nil {
		if ctx.Err() == nil {
			f.report(err, "promotion_id", batch[0].promotion(), "count", len(batch))
		}
		return err
	}
	var retries []retryOf
	for i, b := range batch {
		r := results[i]
		if !r.Changed {
			continue
		}
		f.cfg.Metrics.Finished(b.promotion(), r.State, b.amount)
		if r.State == reward.Retrying {
			retries = append(retries, retryOf{b, r})
		}
	}
	f.acknowledge(ctx, batch)
	if len(retries) > 0 {
		f.retry.publish(retries)
	}
	f.recorded()
	return nil
}

// acknowledge removes entries from their streams and releases their items. If the queue
// fails, a consumer claims the entries, finds that their dispatches are over, and
// acknowledges them.
func (f *Finisher) acknowledge(ctx context.Context, batch []finished) {
	byStream := make(map[queue.Stream][]*pool.Item, 1)
	for _, x := range batch {
		byStream[x.item.Stream] = append(byStream[x.item.Stream], x.item)
	}
	for s, list := range byStream {
		ids := make([]string, len(list))
		for i, it := range list {
			ids[i] = it.ID
		}
		if err := f.cfg.Queue.Ack(ctx, s, ids); err != nil {
			if ctx.Err() == nil {
				f.ackReport(err, "promotion_id", s.PromotionID, "count", len(list))
			}
			continue
		}
		f.ackReport(nil)
		if !f.log.Debugs() {
			continue // the attributes of many lines cost more than the rest
		}
		for _, it := range list {
			f.log.Debug("entry processed", "promotion_id", s.PromotionID, "entry", it.ID, "target_id", it.TargetID)
		}
	}
	release(batch)
}
