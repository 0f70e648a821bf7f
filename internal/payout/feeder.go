package payout

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	feedInterval = 20 * time.Millisecond // between rounds while there is work
	feedWorkers  = 4                     // promotions fed in parallel
	feedRounds   = 16                    // batches of one promotion in a round
	// feedPatience is how long a round waits for a promotion. A feed that takes
	// longer continues alone, and another promotion takes its place.
	feedPatience = 250 * time.Millisecond
	// feedsMax limits the feeds that run at once, because each uses a connection.
	feedsMax = 2 * feedWorkers
	// feedTimeout limits a dispatch: the counts of the promotion may be locked. A
	// promotion whose dispatch took longer gets more time, up to feedTimeoutMax,
	// after a backoff. No more than feedWorkers of these are fed at once.
	feedTimeout    = 2 * time.Second
	feedTimeoutMax = 8 * time.Second
	feedBackoff    = 500 * time.Millisecond
	feedBackoffMax = 4 * time.Second
)

// Feeder dispatches READY payouts, and RETRYING ones that are due, while their stream has
// capacity. A promotion whose dispatch is slow or locked does not keep it from the
// others.
type Feeder struct {
	service.Base
	*shared
	producer *Producer
	// ownCapacity, in direct mode, returns how many entries the queue of this instance
	// may hold for a promotion.
	ownCapacity func(v store.PromotionView) int

	hint    service.Hint                  // given when a stream may have capacity again
	starved atomic.Bool                   // in the latest round, a promotion had no capacity for its READY payouts
	moved   atomic.Bool                   // an entry was added since the round began
	report  func(err error, attrs ...any) // logs failed dispatches

	feeding sync.WaitGroup // the feeds that run

	mu    sync.Mutex // protects the fields below
	feeds map[reward.PromotionID]*feed
	busy  int // feeds that run
	slow  int // those of them whose latest dispatch took too long
}

// feed is a promotion that is fed, or whose latest dispatch took too long.
type feed struct {
	busy      bool
	timeouts  int       // dispatches in a row that took too long
	notBefore time.Time // earliest time of the next feed
}

func newFeeder(s *shared, producer *Producer, ownCapacity func(v store.PromotionView) int) *Feeder {
	return &Feeder{
		shared: s, producer: producer, ownCapacity: ownCapacity, feeds: make(map[reward.PromotionID]*feed),
		hint: service.NewHint(), report: s.cfg.Log.For(obs.Feeder).Streak("dispatching payouts failed", ""),
	}
}

// SpaceFreed hints that a stream may have capacity again. It never blocks.
func (f *Feeder) SpaceFreed() {
	if f.starved.Load() {
		f.hint.Give()
	}
}

func (f *Feeder) run(ctx context.Context) {
	defer f.feeding.Wait()
	select {
	case <-f.clock.compared:
	case <-ctx.Done():
	}
	follow := f.cache.follow(feeds)
	defer follow.end()
	for ctx.Err() == nil {
		follow.take()
		if f.round(ctx, follow.wanted) {
			service.Sleep(ctx, feedInterval)
			continue
		}
		select {
		case <-follow.fresh:
		case <-f.hint:
			service.Sleep(ctx, feedInterval)
		case <-ctx.Done():
		}
	}
}

// feeds reports whether a promotion has payouts to dispatch, now or later.
func feeds(v *store.PromotionView) bool {
	return v.Status == reward.Running && v.Counts.Payouts[reward.Ready]+v.Counts.Payouts[reward.Retrying] > 0
}

// round feeds every promotion that waits once, and reports whether any entry was added.
// It waits up to feedPatience for each.
func (f *Feeder) round(ctx context.Context, waiting map[reward.PromotionID]bool) bool {
	var wg sync.WaitGroup
	slots := make(chan struct{}, feedWorkers)
	f.starved.Store(false)
	f.moved.Store(false)
	views := f.cache.Views()
	for id := range waiting {
		v := views[id]
		if v == nil || !feeds(v) || f.parking.has(id) {
			continue // until a view says more, or the outcomes are recorded
		}
		slots <- struct{}{}
		timeout, ok := f.begin(v.ID)
		if !ok {
			<-slots
			continue
		}
		wg.Add(1)
		release := sync.OnceFunc(func() {
			<-slots
			wg.Done()
		})
		patience := time.AfterFunc(feedPatience, release)
		f.feeding.Go(func() {
			late := f.feedOne(ctx, *v, timeout)
			f.end(v.ID, late)
			if !patience.Stop() {
				f.hint.Give() // the round did not wait: there may be more to feed
			}
			release()
		})
	}
	wg.Wait()
	return f.moved.Load()
}

// begin reports whether a promotion can be fed now, and the deadline of a dispatch.
func (f *Feeder) begin(id reward.PromotionID) (timeout time.Duration, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.feeds[id]
	if e == nil {
		e = &feed{}
	}
	if e.busy || f.busy >= feedsMax || e.timeouts > 0 && (f.slow >= feedWorkers || time.Now().Before(e.notBefore)) {
		return 0, false
	}
	f.feeds[id] = e
	e.busy = true
	f.busy++
	if e.timeouts > 0 {
		f.slow++
	}
	return min(feedTimeout<<min(e.timeouts, 4), feedTimeoutMax), true
}

// end records the end of a feed. late reports whether a dispatch took too long.
func (f *Feeder) end(id reward.PromotionID, late bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.feeds[id]
	e.busy = false
	f.busy--
	if e.timeouts > 0 {
		f.slow--
	}
	if !late {
		delete(f.feeds, id)
		return
	}
	e.notBefore = time.Now().Add(service.Backoff(e.timeouts, feedBackoff, feedBackoffMax))
	e.timeouts++
}

// feedOne feeds one promotion, and reports whether a dispatch took too long.
func (f *Feeder) feedOne(ctx context.Context, v store.PromotionView, timeout time.Duration) (late bool) {
	n, late := f.feed(ctx, v, reward.Retrying, 1, timeout)
	if !late && v.Counts.Payouts[reward.Ready] > 0 {
		var fed int
		if fed, late = f.feed(ctx, v, reward.Ready, feedRounds, timeout); fed == 0 {
			f.starved.Store(true)
		}
		n += fed
	}
	if n > 0 {
		f.moved.Store(true)
	}
	return late
}

// feed dispatches up to rounds batches of a promotion's payouts in state from, while
// there is capacity, but nothing that the queue would refuse because of its clock. It
// returns how many entries the queue accepted, and whether a dispatch took longer than
// timeout. While the queue adds one batch, feed dispatches the next.
func (f *Feeder) feed(ctx context.Context, v store.PromotionView, from reward.State, rounds int, timeout time.Duration) (taken int, late bool) {
	if v.Counts.Payouts[from] == 0 || !f.clock.accepts(queue.StreamOf(v.Promotion)) {
		return 0, false
	}
	var adding chan int // the number of entries that the latest add accepted
	for range rounds {
		limit := store.BatchMax
		if f.cfg.Direct {
			if !f.governor.AcceptsWork(v.ID) {
				break
			}
			// Count the own entries: a QUEUED row does not show in which
			// instance's queue its entry is.
			limit = min(limit, f.ownCapacity(v)-f.producer.StreamLen(ctx, v))
			if limit <= 0 {
				break
			}
		}
		within, cancel := context.WithTimeout(ctx, timeout)
		rows, err := f.rows.PayoutDispatch(within, store.PayoutDispatchParams{
			PromotionID: v.ID, From: from, Limit: limit, MaxLen: f.cfg.MaxLen,
		})
		late = err != nil && within.Err() != nil
		cancel()
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
		go func() { added <- f.producer.Enqueue(ctx, v.Type, rows) }()
		adding = added
		if rounds == 0 || len(rows) < limit || f.cfg.Direct {
			break
		}
	}
	if adding != nil {
		taken += <-adding
	}
	return taken, late
}
