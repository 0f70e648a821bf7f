package payout

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const sweepInterval = time.Second

// Sweeper cleans up promotions:
//   - It returns QUEUED payouts to READY if their entry is missing from the
//     stream. Redis lost the entry, or an instance crashed before it added it.
//   - It completes promotions.
//   - It cancels the READY and RETRYING payouts of CANCELLED promotions.
//   - It removes the consumers of dead instances.
//   - It destroys the streams of final promotions.
type Sweeper struct {
	service.Base
	store   store.Store
	queue   queue.Queue
	cache   *StatusCache
	manager *pool.Manager
	limits  Limits
	metrics *obs.Metrics
	log     obs.Log
	report  func(error, ...any) // logs consecutive failed rounds; see obs.Log.Streak
	// consumed holds the streams to check for consumers of dead instances. A
	// stream is added when its promotion has QUEUED payouts, and removed when it
	// has no consumers left. Only run's goroutine uses the map.
	consumed map[queue.Stream]bool
	// destroyed holds the streams whose absence is to be confirmed.
	destroyed destroyedStreams
}

// NewSweeper returns a sweeper that works on the promotions of the cache.
func NewSweeper(s store.Store, q queue.Queue, cache *StatusCache, manager *pool.Manager, limits Limits, metrics *obs.Metrics, log obs.Log) *Sweeper {
	log = log.For(obs.Sweeper)
	return &Sweeper{
		store: s, queue: q, cache: cache, manager: manager, limits: limits,
		metrics: metrics, log: log, report: log.Streak("sweeping failed", ""), consumed: make(map[queue.Stream]bool),
	}
}

// DispatchHorizon is MoneyTimeout plus Lease. A dispatch that is not in its
// stream at this age never gets there: the queue refuses to add dispatches older
// than half of it. An entry that is in its stream has no such limit: its payout
// may be charged at any age. Direct mode (Config.Direct) is different: there,
// no call starts for a dispatch older than half of the horizon.
func (l Limits) DispatchHorizon() time.Duration { return l.MoneyTimeout + l.Lease }

// SweepAll returns every QUEUED payout to READY, or moves it to UNKNOWN if its
// promotion is CANCELLED. Call it only at the start of an instance that is alone
// and has the queue in its process: the queue is empty then, and no other
// instance has a call in flight.
func (s *Sweeper) SweepAll(ctx context.Context) error {
	views, err := s.store.PromotionActive(ctx)
	if err != nil {
		return err
	}
	for _, v := range views {
		if v.Counts.Payouts[reward.Queued] == 0 {
			continue
		}
		now := time.Now()
		// The minute covers dispatch times that seem to be in the future because
		// the clock was set back.
		if _, err := s.sweepBefore(ctx, v.ID, now.Add(time.Minute), now); err != nil {
			return err
		}
	}
	return nil
}

// run does a round each time the cache has read the promotions, until ctx ends.
// Once per sweepInterval the round includes a sweep. Once per lease, run removes
// the consumers of dead instances.
func (s *Sweeper) run(ctx context.Context) {
	sweepAt, evictAt := time.Now(), time.Now().Add(s.limits.Lease)
	for ctx.Err() == nil {
		fresh := s.cache.next()
		views := s.cache.Views()
		sweep := !time.Now().Before(sweepAt)
		if sweep {
			sweepAt = time.Now().Add(service.Jitter(sweepInterval, 0.2))
		}
		s.round(ctx, views, sweep)
		if !time.Now().Before(evictAt) {
			evictAt = time.Now().Add(service.Jitter(s.limits.Lease, 0.2))
			if err := s.evict(ctx, views); err != nil && ctx.Err() == nil {
				s.log.Warn("removing consumer failed", err)
			}
		}
		select {
		case <-fresh:
		case <-ctx.Done():
		}
	}
}

// round cleans up every promotion, and sweeps streams if sweep is set. It reports
// the failures of all promotions in one line.
func (s *Sweeper) round(ctx context.Context, views map[reward.PromotionID]*store.PromotionView, sweep bool) {
	var first error
	failed := 0
	if sweep {
		busy := busyStreams(views)
		ids := make([]reward.PromotionID, len(busy))
		for i, stream := range busy {
			ids[i] = stream.PromotionID
		}
		s.metrics.KeepStreams(ids)
	}
	for _, v := range views {
		if err := s.cleanUp(ctx, *v, sweep); err != nil && ctx.Err() == nil {
			failed++
			if first == nil {
				first = fmt.Errorf("promotion %s: %w", v.ID, err)
			}
		}
	}
	switch {
	case first != nil:
		s.report(first, "promotions", failed)
	case sweep:
		// A round without a sweep does not use the queue, so its success does not
		// end a series of failures.
		s.report(nil)
	}
}

// cleanUp completes, cancels, sweeps or destroys what belongs to one promotion,
// depending on its status and counts.
func (s *Sweeper) cleanUp(ctx context.Context, v store.PromotionView, sweep bool) error {
	switch v.Status {
	case reward.Running:
		if complete(v) {
			return s.complete(ctx, v)
		}
	case reward.PromotionCancelled:
		if err := s.cancelRows(ctx, v); err != nil {
			return err
		}
		if v.FinishedAt.IsZero() && v.Counts.Undecided() == 0 {
			if err := s.complete(ctx, v); err != nil {
				return err
			}
		}
	}
	if !sweep {
		return nil
	}
	if v.Counts.Payouts[reward.Queued] > 0 {
		return s.sweep(ctx, v)
	}
	if (v.Status == reward.Completed || v.Status == reward.PromotionCancelled) && !v.StreamDestroyed && v.Counts.Undecided() == 0 {
		return s.destroy(ctx, v)
	}
	return nil
}

// sweep returns the QUEUED payouts of a promotion whose entry is missing from
// the stream.
//
// It reads the stream before the rows. The queue adds no entry more than one
// dispatch horizon after its dispatch, by the clock of the stream's server. So an
// entry is missing if its row was dispatched more than one horizon before the
// oldest entry was added or, if the stream is empty, before the server's time at
// the read. The clock of this instance does not matter, unless it is behind. A
// payout whose entry waits in the stream is never returned, however old its
// dispatch is.
//
// In direct mode each instance has a queue of its own, and sweep cannot read the
// others. It always compares with the present time. No consumer starts a call
// more than half a horizon after the dispatch, and a call is shorter than the
// other half, because Lease is longer than MoneyTimeout.
func (s *Sweeper) sweep(ctx context.Context, v store.PromotionView) error {
	before := time.Now()
	info, err := s.queue.Info(ctx, queue.StreamOf(v.Promotion))
	if err != nil {
		return err
	}
	s.metrics.SetStream(v.Type, v.ID, info.Len, info.Lag(), info.Pending, age(info.OldestPendingAt, before))
	if !s.limits.direct && info.At.Before(before) {
		before = info.At
	}
	if info.Len > 0 && info.OldestAt.Before(before) && !s.limits.direct {
		before = info.OldestAt
	}
	n, err := s.sweepBefore(ctx, v.ID, before.Add(-s.limits.DispatchHorizon()), time.Now())
	if n > 0 {
		s.cache.Hint()
	}
	return err
}

// sweepBefore sweeps the QUEUED rows that were dispatched before a given time.
// They return to READY, or become UNKNOWN in a CANCELLED promotion.
func (s *Sweeper) sweepBefore(ctx context.Context, id reward.PromotionID, before, now time.Time) (int, error) {
	total := 0
	for {
		n, err := s.store.PayoutSweep(ctx, store.PayoutSweepParams{
			PromotionID: id, Before: before, Lease: s.limits.Lease, Now: now,
		})
		total += n
		if err != nil || n < store.BatchMax {
			if total > 0 {
				s.metrics.Swept(total)
				s.log.Info("lost payouts returned to READY", "promotion_id", id, "count", total)
			}
			return total, err
		}
	}
}

// complete makes a RUNNING promotion COMPLETED, or records the end of a CANCELLED
// one as FinishedAt, if the store finds that the rows allow it.
func (s *Sweeper) complete(ctx context.Context, v store.PromotionView) error {
	done, err := s.store.PromotionComplete(ctx, v.ID, s.limits.SettleAfter, time.Now())
	if done {
		s.log.Info("promotion finished", "promotion_id", v.ID, "previous_status", v.Status)
		s.cache.Hint()
	}
	return err
}

// cancelRows moves the READY and RETRYING rows of a CANCELLED promotion to
// CANCELLED, or to UNKNOWN if they may have been charged. Its QUEUED rows end
// when a consumer gets their entry, or by a sweep. cancelRows runs in every
// round, because a save that began before the cancel may add READY rows after it.
func (s *Sweeper) cancelRows(ctx context.Context, v store.PromotionView) error {
	if v.Counts.Payouts[reward.Ready] == 0 && v.Counts.Payouts[reward.Retrying] == 0 {
		return nil
	}
	for {
		n, err := s.store.PayoutCancelStep(ctx, store.PayoutCancelStepParams{
			PromotionID: v.ID, Lease: s.limits.Lease, Now: time.Now(),
		})
		if n > 0 {
			s.cache.Hint()
		}
		if err != nil || n < store.BatchMax {
			return err
		}
	}
}

// destroy destroys the stream of a final promotion. It first waits until one
// dispatch horizon has passed since the last dispatch, so that no late entry can
// arrive. If the
// stream has entries, destroy acknowledges those that need no outcome, and a
// later round destroys the stream. The promotion's row says that the stream is
// destroyed only when it is still missing destroyedTwice later: until then, Redis
// may lose the removal.
func (s *Sweeper) destroy(ctx context.Context, v store.PromotionView) error {
	if time.Since(v.LastDispatchedAt) < s.limits.DispatchHorizon() || s.manager.Active(v.ID) {
		return nil
	}
	stream := queue.StreamOf(v.Promotion)
	if ago, destroyed := s.destroyed.since(v.ID, v.LastDispatchedAt); destroyed {
		if ago < destroyedTwice {
			return nil
		}
		info, err := s.queue.Info(ctx, stream)
		if err != nil {
			return err
		}
		if !info.Exists {
			if _, err := s.store.PromotionStreamDestroyed(ctx, v.ID, v.LastDispatchedAt); err != nil {
				return err
			}
			s.destroyed.remove(v.ID)
			s.log.Info("stream destroyed", "promotion_id", v.ID)
			return nil
		}
	}
	gone, err := s.queue.Destroy(ctx, stream)
	if err != nil {
		return err
	}
	if !gone {
		s.destroyed.remove(v.ID)
		return s.clear(ctx, stream)
	}
	s.destroyed.add(v.ID, v.LastDispatchedAt)
	return nil
}

// clear acknowledges the oldest entries of a stream, up to store.BatchMax. It
// keeps an entry whose row is QUEUED under the entry's dispatch. It stores
// unreadable entries as dead letters first.
func (s *Sweeper) clear(ctx context.Context, stream queue.Stream) error {
	entries, err := s.queue.Range(ctx, stream, store.BatchMax)
	if err != nil || len(entries) == 0 {
		return err
	}
	ids := make([]store.PayoutID, 0, len(entries))
	for _, e := range entries {
		if e.Readable {
			ids = append(ids, store.PayoutID{PromotionID: stream.PromotionID, TargetID: e.TargetID})
		}
	}
	rows, err := s.store.PayoutGetMany(ctx, ids)
	if err != nil {
		return err
	}
	queued := make(map[reward.TargetID]int32) // dispatch by target
	for _, r := range rows {
		if r.State == reward.Queued {
			queued[r.TargetID] = r.Dispatch
		}
	}
	var (
		done []string
		dead []reward.DeadLetter
	)
	for _, e := range entries {
		if !e.Readable {
			dead = append(dead, deadEntry(stream, e, reward.CodeMalformed, unreadable))
		} else if dispatch, waits := queued[e.TargetID]; waits && dispatch == e.Dispatch {
			continue
		}
		done = append(done, e.ID)
	}
	if len(dead) > 0 {
		if err := s.store.DeadLetterAdd(ctx, dead); err != nil {
			return err
		}
		for _, d := range dead {
			s.metrics.DeadLettered(d.Reason, 1)
		}
	}
	return s.queue.Ack(ctx, stream, done)
}

// evict removes the consumers of dead instances. Their pending entries go to a
// consumer of a living instance and keep their idle time, so that their leases
// still expire. If there is no such consumer, a consumer with pending entries
// stays. An instance that was only slow registers its consumers again, but has
// lost its entries.
func (s *Sweeper) evict(ctx context.Context, views map[reward.PromotionID]*store.PromotionView) error {
	for _, stream := range busyStreams(views) {
		s.consumed[stream] = true
	}
	if len(s.consumed) == 0 {
		return nil
	}
	instances, err := s.store.InstanceList(ctx)
	if err != nil {
		return err
	}
	alive := make(map[string]bool, len(instances))
	for _, i := range instances {
		alive[i.Name] = i.Alive
	}
	var failed error
	for stream := range s.consumed {
		left, err := s.evictFrom(ctx, stream, alive)
		if err != nil && failed == nil {
			failed = fmt.Errorf("promotion %s: %w", stream.PromotionID, err)
		}
		if err == nil && left == 0 {
			delete(s.consumed, stream)
		}
	}
	return failed
}

// evictFrom removes dead consumers of a stream and returns how many remain.
func (s *Sweeper) evictFrom(ctx context.Context, stream queue.Stream, alive map[string]bool) (left int, err error) {
	consumers, err := s.queue.Consumers(ctx, stream)
	if err != nil {
		return 0, err
	}
	heir := ""
	var dead []string
	for _, c := range consumers {
		switch {
		case alive[pool.InstanceOf(c.Name)]:
			heir = c.Name
		case c.Idle > s.limits.Lease:
			dead = append(dead, c.Name)
		}
	}
	left = len(consumers)
	for _, name := range dead {
		removed, err := s.queue.RemoveConsumer(ctx, stream, name, heir)
		if err != nil {
			return left, err
		}
		if removed {
			left--
			s.log.Info("dead consumer removed", "promotion_id", stream.PromotionID, "consumer", name)
		}
	}
	return left, nil
}

// busyStreams returns the streams of the promotions that have QUEUED payouts.
func busyStreams(views map[reward.PromotionID]*store.PromotionView) []queue.Stream {
	var busy []queue.Stream
	for _, v := range views {
		if v.Counts.Payouts[reward.Queued] > 0 {
			busy = append(busy, queue.StreamOf(v.Promotion))
		}
	}
	return busy
}

// age returns how long before now t was, or zero if t is zero or after now.
func age(t, now time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(now.Sub(t), 0)
}

// complete reports whether the counts allow a RUNNING promotion to complete. No
// payout may be READY, QUEUED or RETRYING; UNKNOWN ones do not matter. If a
// number of targets is expected, all must have arrived, or the promotion must be
// closed to further ones.
func complete(v store.PromotionView) bool {
	return v.Counts.Undecided() == 0 && (v.ExpectedCount == nil || v.Closed || v.Counts.Total() >= *v.ExpectedCount)
}
