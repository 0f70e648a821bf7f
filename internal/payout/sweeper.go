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

// Sweeper cleans up after the flow. It returns dispatched payouts that are in
// no stream to READY: Redis lost them, or an instance crashed before it added
// them. It completes promotions, cancels the payouts of cancelled ones, removes
// the consumers of dead instances, and destroys the streams of final
// promotions.
type Sweeper struct {
	service.Base
	store   store.Store
	queue   queue.Queue
	cache   *StatusCache
	manager *pool.Manager
	limits  Limits
	metrics *obs.Metrics
	log     obs.Log
	report  func(error, ...any) // logs failed rounds in a row
	// registered holds the streams that may have consumers of dead instances: a
	// stream enters with its first work and leaves without consumers. Only
	// run's goroutine uses it.
	registered map[queue.Stream]bool
}

// NewSweeper returns a sweeper that works on the promotions of the cache.
func NewSweeper(s store.Store, q queue.Queue, cache *StatusCache, manager *pool.Manager, limits Limits, metrics *obs.Metrics, log obs.Log) *Sweeper {
	log = log.For(obs.Sweeper)
	return &Sweeper{
		store: s, queue: q, cache: cache, manager: manager, limits: limits,
		metrics: metrics, log: log, report: log.Streak("sweeping failed", ""), registered: make(map[queue.Stream]bool),
	}
}

// DispatchHorizon is the age at which a dispatch can no longer reach its stream
// and no instance opens a call for it.
func (l Limits) DispatchHorizon() time.Duration { return l.MoneyTimeout + l.Lease }

// SweepAll returns every QUEUED row to READY. Call it only at a start with the
// only queue in this process: the queue is empty, and no other instance can
// have a call in flight.
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
		if _, err := s.sweepBefore(ctx, v.ID, now.Add(time.Minute), now); err != nil {
			return err
		}
	}
	return nil
}

// run sweeps until ctx ends. It checks for completions after each read of the
// cache.
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

// round cleans up every promotion. It reports the failures of all promotions in
// one line.
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
	case sweep: // other rounds do not use the queue
		s.report(nil)
	}
}

// cleanUp does what one promotion needs.
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

// sweep returns the rows that the stream cannot have. It reads the stream
// first: a row dispatched a dispatch horizon before the oldest entry, or that
// long ago if the stream is empty, is not in it and cannot arrive. Without
// streams it always counts from now: no instance calls a dispatch older than
// half the horizon, and the other half is longer than a call.
func (s *Sweeper) sweep(ctx context.Context, v store.PromotionView) error {
	before := time.Now()
	info, err := s.queue.Info(ctx, queue.StreamOf(v.Promotion))
	if err != nil {
		return err
	}
	s.metrics.SetStream(v.Type, v.ID, info.Len, info.Lag(), info.Pending, age(info.OldestPendingAt, before))
	if info.Len > 0 && info.OldestAt.Before(before) && !s.limits.direct {
		before = info.OldestAt
	}
	n, err := s.sweepBefore(ctx, v.ID, before.Add(-s.limits.DispatchHorizon()), time.Now())
	if n > 0 {
		s.cache.Hint()
	}
	return err
}

// sweepBefore returns rows that were dispatched before a time to READY.
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

// complete completes a promotion if its rows allow it.
func (s *Sweeper) complete(ctx context.Context, v store.PromotionView) error {
	done, err := s.store.PromotionComplete(ctx, v.ID, s.limits.SettleAfter, time.Now())
	if done {
		s.log.Info("promotion finished", "promotion_id", v.ID, "previous_status", v.Status)
		s.cache.Hint()
	}
	return err
}

// cancelRows cancels the rows of a CANCELLED promotion. It runs in every round,
// because a save that raced with the cancel may add READY rows after it.
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

// destroy removes the stream of a final promotion one dispatch horizon after
// its last dispatch, when no late entry can arrive. It first acknowledges the
// remaining entries.
func (s *Sweeper) destroy(ctx context.Context, v store.PromotionView) error {
	if time.Since(v.LastDispatchedAt) < s.limits.DispatchHorizon() || s.manager.Active(v.ID) {
		return nil
	}
	gone, err := s.queue.Destroy(ctx, queue.StreamOf(v.Promotion))
	if err != nil {
		return err
	}
	if !gone {
		return s.clear(ctx, queue.StreamOf(v.Promotion))
	}
	if _, err := s.store.PromotionStreamDestroyed(ctx, v.ID, v.LastDispatchedAt); err != nil {
		return err
	}
	s.log.Info("stream destroyed", "promotion_id", v.ID)
	return nil
}

// clear acknowledges the remaining entries of a final promotion whose dispatch
// is settled.
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
	open := make(map[reward.TargetID]int32)
	for _, r := range rows {
		if r.State == reward.Queued {
			open[r.TargetID] = r.Dispatch
		}
	}
	var (
		settled []string
		dead    []reward.DeadLetter
	)
	for _, e := range entries {
		if !e.Readable {
			dead = append(dead, deadEntry(stream, e, reward.CodeMalformed, unreadable))
		} else if dispatch, isOpen := open[e.TargetID]; isOpen && dispatch == e.Dispatch {
			continue
		}
		settled = append(settled, e.ID)
	}
	if len(dead) > 0 {
		if err := s.store.DeadLetterAdd(ctx, dead); err != nil {
			return err
		}
		for _, d := range dead {
			s.metrics.DeadLettered(d.Reason, 1)
		}
	}
	return s.queue.Ack(ctx, stream, settled)
}

// evict removes the consumers of dead instances. Their pending entries, with
// their idle times, go to a consumer of a living instance. If the instance is
// alive after all, it registers again and finds its entries claimed.
func (s *Sweeper) evict(ctx context.Context, views map[reward.PromotionID]*store.PromotionView) error {
	for _, stream := range busyStreams(views) {
		s.registered[stream] = true
	}
	if len(s.registered) == 0 {
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
	for stream := range s.registered {
		left, err := s.evictFrom(ctx, stream, alive)
		if err != nil && failed == nil {
			failed = fmt.Errorf("promotion %s: %w", stream.PromotionID, err)
		}
		if err == nil && left == 0 {
			delete(s.registered, stream)
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

// busyStreams returns the streams of the promotions with dispatched payouts.
func busyStreams(views map[reward.PromotionID]*store.PromotionView) []queue.Stream {
	var busy []queue.Stream
	for _, v := range views {
		if v.Counts.Payouts[reward.Queued] > 0 {
			busy = append(busy, queue.StreamOf(v.Promotion))
		}
	}
	return busy
}

// age returns the time from at to now, or zero if at is zero or later.
func age(at, now time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(now.Sub(at), 0)
}

// complete reports whether the counts allow the promotion to complete.
func complete(v store.PromotionView) bool {
	return v.Counts.Undecided() == 0 && (v.ExpectedCount == nil || v.Closed || v.Counts.Total() >= *v.ExpectedCount)
}
