package payout

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	feedInterval = 20 * time.Millisecond // between rounds while there is work
	feedWorkers  = 4                     // promotions fed in parallel
	feedRounds   = 16                    // batches of one promotion in a round
)

// Feeder dispatches READY payouts into their stream while the stream has
// capacity. The other payouts wait in the database. The Feeder also dispatches
// RETRYING payouts that are due, even if their record on the retry topic was lost.
type Feeder struct {
	service.Base
	rows     store.Payouts
	cache    *StatusCache
	producer *Producer
	maxLen   int // maximum QUEUED payouts of a promotion
	// ownCapacity, in direct mode, returns how many entries the queue of this
	// instance may hold for a promotion. Otherwise it is nil.
	ownCapacity func(v store.PromotionView) int
	// acceptsWork, in direct mode, reports whether the governor accepts calls.
	// While it does not, the Feeder dispatches nothing. Nil means always.
	acceptsWork func(id reward.PromotionID) bool
	hint        service.Hint                  // given when a stream may have capacity again
	starved     atomic.Bool                   // in the latest round, a promotion had no capacity for its READY payouts
	report      func(err error, attrs ...any) // logs failed dispatches
}

// NewFeeder returns a feeder that works on the promotions of the cache and
// keeps at most maxLen payouts of a promotion QUEUED.
func NewFeeder(rows store.Payouts, cache *StatusCache, producer *Producer, maxLen int, log obs.Log) *Feeder {
	return &Feeder{
		rows: rows, cache: cache, producer: producer, maxLen: maxLen,
		hint: service.NewHint(), report: log.For(obs.Feeder).Streak("dispatching payouts failed", ""),
	}
}

// SpaceFreed hints that a stream may have capacity again. It never blocks.
func (f *Feeder) SpaceFreed() {
	if !f.starved.Load() {
		return
	}
	f.hint.Give()
}

// run feeds all promotions in rounds until ctx ends.
func (f *Feeder) run(ctx context.Context) {
	for ctx.Err() == nil {
		fresh := f.cache.next()
		if f.round(ctx) {
			service.Sleep(ctx, feedInterval)
			continue
		}
		select {
		case <-fresh:
		case <-f.hint:
			service.Sleep(ctx, feedInterval)
		case <-ctx.Done():
		}
	}
}

// round feeds every running promotion once, and reports whether it added any
// entry.
func (f *Feeder) round(ctx context.Context) bool {
	var (
		moved bool
		mu    sync.Mutex // protects moved
		wg    sync.WaitGroup
		slots = make(chan struct{}, feedWorkers)
	)
	f.starved.Store(false)
	for _, v := range f.cache.Views() {
		if v.Status != reward.Running {
			continue
		}
		if v.Counts.Payouts[reward.Ready] == 0 && v.Counts.Payouts[reward.Retrying] == 0 {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			n := f.feed(ctx, *v, reward.Retrying, 1)
			if v.Counts.Payouts[reward.Ready] > 0 {
				fed := f.feed(ctx, *v, reward.Ready, feedRounds)
				if fed == 0 {
					f.starved.Store(true)
				}
				n += fed
			}
			mu.Lock()
			moved = moved || n > 0
			mu.Unlock()
		})
	}
	wg.Wait()
	return moved
}

// feed dispatches up to rounds batches of a promotion's payouts in state from,
// while there is capacity. It returns how many entries the queue accepted. While
// the queue adds the entries of one batch, feed dispatches the next batch.
func (f *Feeder) feed(ctx context.Context, v store.PromotionView, from reward.State, rounds int) int {
	if v.Counts.Payouts[from] == 0 {
		return 0
	}
	taken := 0
	var adding chan int // the number of entries that the latest add accepted
	for range rounds {
		limit := store.BatchMax
		if f.ownCapacity != nil {
			if f.acceptsWork != nil && !f.acceptsWork(v.ID) {
				break
			}
			// Count the own entries: a QUEUED row does not show in which
			// instance's queue its entry is.
			limit = min(limit, f.ownCapacity(v)-f.producer.StreamLen(ctx, v))
			if limit <= 0 {
				break
			}
		}
		now := time.Now()
		rows, err := f.rows.PayoutDispatch(ctx, store.PayoutDispatchParams{
			PromotionID: v.ID, From: from, Limit: limit, MaxLen: f.maxLen, Now: now,
		})
		if ctx.Err() == nil {
			f.report(err, "promotion_id", v.ID)
		}
		if err != nil {
			break
		}
		if adding != nil {
			n := <-adding
			taken += n
			adding = nil
			if n == 0 {
				// The stream is full. This batch is dispatched already, so add
				// it anyway: the producer returns what the queue refuses.
				rounds = 0
			}
		}
		if len(rows) == 0 {
			break
		}
		added := make(chan int, 1)
		go func() { added <- f.producer.Enqueue(ctx, v.Type, rows, now) }()
		adding = added
		if rounds == 0 || len(rows) < limit || f.ownCapacity != nil {
			break
		}
	}
	if adding != nil {
		taken += <-adding
	}
	return taken
}
