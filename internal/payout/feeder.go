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
	feedPause   = 20 * time.Millisecond // between rounds while there is work
	feedWorkers = 4                     // promotions fed side by side
	feedRounds  = 16                    // batches of one promotion before it is the others' turn
)

// Feeder moves READY rows to QUEUED and into the stream, while the stream has
// room: what does not fit waits in the database. It also takes RETRYING rows
// that are due, whether their retry record came or not.
type Feeder struct {
	service.Base
	rows     store.Payouts
	cache    *StatusCache
	producer *Producer
	maxLen   int // most QUEUED rows of a promotion
	// own is how much of a promotion an instance dispatches to itself, when the
	// queue is its own; nil = the queue is everybody's.
	own func(v store.PromotionView) int
	// taking says whether calls are opened at all; nil = always. While they are
	// not, what is READY waits there.
	taking  func() bool
	room    chan struct{} // of one place: there may be room again
	starved atomic.Bool   // something is READY and was not taken for lack of room
	log     obs.Log
}

// NewFeeder makes a feeder that works on what the cache says.
// No more than maxLen payouts of a promotion are QUEUED at a time.
func NewFeeder(rows store.Payouts, cache *StatusCache, producer *Producer, maxLen int, log obs.Log) *Feeder {
	return &Feeder{rows: rows, cache: cache, producer: producer, maxLen: maxLen, room: make(chan struct{}, 1), log: log.For(obs.Feeder)}
}

// Room hints that a stream may have room again.
func (f *Feeder) Room() {
	if !f.starved.Load() {
		return
	}
	select {
	case f.room <- struct{}{}:
	default:
	}
}

// run feeds until ctx ends: a round over all promotions that have something
// to feed, in turn, then again.
func (f *Feeder) run(ctx context.Context) {
	for ctx.Err() == nil {
		fresh := f.cache.next()
		if f.round(ctx) {
			service.Sleep(ctx, feedPause)
			continue
		}
		select {
		case <-fresh:
		case <-f.room:
			service.Sleep(ctx, feedPause)
		case <-ctx.Done():
		}
	}
}

// round feeds every promotion once; it says whether anything moved.
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

// feed dispatches up to rounds batches of a promotion, as far as there is
// room, and returns how many rows the stream took. While one batch is being
// added the next one is being dispatched.
func (f *Feeder) feed(ctx context.Context, v store.PromotionView, from reward.State, rounds int) int {
	if v.Counts.Payouts[from] == 0 {
		return 0
	}
	taken := 0
	var adding chan int // the number that the latest add took
	for range rounds {
		limit := store.BatchMax
		if f.own != nil {
			if f.taking != nil && !f.taking() {
				break
			}
			// The rows do not tell how much this instance holds.
			limit = min(limit, f.own(v)-f.producer.Held(ctx, v))
			if limit <= 0 {
				break
			}
		}
		now := time.Now()
		rows, err := f.rows.PayoutDispatch(ctx, store.PayoutDispatchParams{
			PromotionID: v.ID, From: from, Limit: limit, MaxLen: f.maxLen, Now: now,
		})
		if err != nil {
			if ctx.Err() == nil {
				f.log.Warn("dispatching payouts failed", err, "promotion_id", v.ID)
			}
			break
		}
		if adding != nil {
			n := <-adding
			taken += n
			adding = nil
			if n == 0 {
				// The stream takes nothing. These rows are added all the same:
				// the queue's answer gives them back.
				rounds = 0
			}
		}
		if len(rows) == 0 {
			break
		}
		added := make(chan int, 1)
		go func() { added <- f.producer.Enqueue(ctx, v.Type, rows, now) }()
		adding = added
		if rounds == 0 || len(rows) < limit || f.own != nil {
			break
		}
	}
	if adding != nil {
		taken += <-adding
	}
	return taken
}
