package payout

import (
	"context"
	"maps"
	"slices"
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
	sweepInterval = time.Second // between sweeps of a promotion

	// For each kind of work: how many steps run in parallel, and the deadline of a
	// step. A step that hangs keeps its slot until its deadline.
	completeSlots, completeTimeout = 4, 5 * time.Second
	cancelSlots, cancelTimeout     = 2, 10 * time.Second
	sweepSlots, sweepTimeout       = 16, 5 * time.Second
	evictSlots, evictTimeout       = 4, 5 * time.Second

	// destroyedTwice is how long after a stream was destroyed its absence counts. A
	// Redis that fails over or crashes may lose its last second, and bring the stream
	// back with entries that were acknowledged.
	destroyedTwice = 10 * time.Second
)

// Sweeper cleans up promotions:
//   - It returns QUEUED payouts to READY if their entry is missing from the
//     stream. Redis lost the entry, or an instance crashed before it added it.
//   - It completes promotions.
//   - It makes the READY and RETRYING payouts of CANCELLED promotions CANCELLED, or
//     UNKNOWN if they may have been charged.
//   - It removes the consumers of dead instances.
//   - It destroys the streams of final promotions.
//
// Instances divide the promotions; see store.Share. For a moment two sweepers may have
// the same promotion. That is harmless: each statement names the states and dispatches
// that it expects.
//
// Each kind of work has a crew of its own, so that none waits for another one.
// Completing and cancelling need the database only, so they go on while the
// queue hangs.
type Sweeper struct {
	service.Base
	*shared
	manager *pool.Manager
	// ownsRows and ownsStreams report whether this instance does the work on the
	// rows, and on the stream, of a promotion.
	ownsRows, ownsStreams owns
	log                   obs.Log

	completing, cancelling, sweeping *crew
	evictor                          *evictor

	mu sync.Mutex // protects destroyed
	// destroyed holds the streams whose absence is to be confirmed. It is lost with the
	// process: the next one destroys the stream again and waits again.
	destroyed map[reward.PromotionID]destroyedStream
}

// owns reports whether this instance does some work for a promotion.
type owns func(id reward.PromotionID) bool

// destroyedStream is a stream that this instance found empty and destroyed.
type destroyedStream struct {
	dispatchedAt time.Time // the promotion's last dispatch before
	at           time.Time
}

func newSweeper(s *shared, manager *pool.Manager, ownsRows, ownsStreams owns) *Sweeper {
	log := s.cfg.Log.For(obs.Sweeper)
	sw := &Sweeper{
		shared: s, manager: manager, ownsRows: ownsRows, ownsStreams: ownsStreams, log: log, evictor: newEvictor(s, log),
		destroyed: make(map[reward.PromotionID]destroyedStream),
	}
	sw.completing = newCrew(completeSlots, completeTimeout, 0, log.Streak("completing promotions failed", ""), sw.complete)
	sw.cancelling = newCrew(cancelSlots, cancelTimeout, 0, log.Streak("cancelling payouts failed", ""), sw.cancelRows)
	sw.sweeping = newCrew(sweepSlots, sweepTimeout, sweepInterval, log.Streak("sweeping failed", ""), sw.tend)
	return sw
}

// DispatchHorizon is the age of a dispatch at which its entry is in the stream or never
// gets there: the queue refuses to add dispatches older than half of it. In direct mode
// (Config.Direct), no call starts for a dispatch older than half of it either.
func (l Limits) DispatchHorizon() time.Duration { return l.MoneyTimeout + l.Lease }

// SweepAll sweeps every QUEUED payout. Call it only at the start of an instance that is
// alone and has the queue in its process: the queue is empty then, and no call is in
// flight.
func (s *Sweeper) SweepAll(ctx context.Context) error {
	views, err := s.rows.PromotionActive(ctx)
	if err != nil {
		return err
	}
	for _, v := range views {
		if v.Counts.Payouts[reward.Queued] == 0 {
			continue
		}
		// The time of a dispatch is in the future if the clock was set back since.
		for n := store.BatchMax; n == store.BatchMax; {
			if n, err = s.sweepBefore(ctx, v.ID, time.Now().AddDate(100, 0, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Sweeper) run(ctx context.Context) {
	var alive sync.WaitGroup
	alive.Go(func() { s.evictor.alive.Run(ctx) })
	follow := s.cache.follow(needsSweeper)
	defer follow.end()
	for ctx.Err() == nil {
		_, views := follow.take()
		s.round(ctx, follow.wanted, views)
		select {
		case <-follow.fresh:
		case <-ctx.Done():
		}
	}
	for _, c := range []*crew{s.completing, s.cancelling, s.sweeping, s.evictor.crew} {
		c.working.Wait()
	}
	alive.Wait()
}

// needsSweeper reports whether a crew has work with this promotion: now or, even if the
// promotion does not change again, later.
func needsSweeper(v *store.PromotionView) bool {
	return v.Counts.Payouts[reward.Queued] > 0 || completable(v) || cancellable(v) || v.Status.Final() && !v.StreamDestroyed
}

func cancellable(v *store.PromotionView) bool {
	return v.Status == reward.PromotionCancelled && v.Counts.Payouts[reward.Ready]+v.Counts.Payouts[reward.Retrying] > 0
}

// round gives each crew the promotions that need its work. Only candidates can need
// it; views has all active promotions. A promotion without QUEUED payouts, consumers
// and a stream to destroy costs the queue no command. While the time of the database is
// not known, no stream is destroyed.
func (s *Sweeper) round(ctx context.Context, candidates map[reward.PromotionID]bool, views map[reward.PromotionID]*store.PromotionView) {
	var (
		completing, cancelling, sweeping []*store.PromotionView
		ids                              []reward.PromotionID // with QUEUED payouts
	)
	now, _ := s.rows.clock.earliest(ctx) // zero if it is not known
	for id := range candidates {
		v := views[id]
		if v == nil { // no longer active
			continue
		}
		if s.ownsRows(id) {
			if completable(v) {
				completing = append(completing, v)
			}
			if cancellable(v) {
				cancelling = append(cancelling, v)
			}
		}
		if !s.ownsStreams(id) {
			continue
		}
		switch {
		case v.Counts.Payouts[reward.Queued] > 0:
			sweeping, ids = append(sweeping, v), append(ids, id)
		case s.destroyable(v, now):
			sweeping = append(sweeping, v)
		}
	}
	s.completing.offer(ctx, completing)
	s.cancelling.offer(ctx, cancelling)
	s.cfg.Metrics.KeepStreams(ids)
	s.sweeping.offer(ctx, sweeping)
	s.evictor.offer(ctx, candidates, views, s.ownsStreams)
}

func (s *Sweeper) tend(ctx context.Context, v store.PromotionView) (result, error) {
	if v.Counts.Payouts[reward.Queued] > 0 {
		return s.sweep(ctx, v)
	}
	return stepDone, s.destroy(ctx, v)
}

// sweep returns the QUEUED payouts of a promotion whose entry is missing from
// the stream.
//
// The queue adds no entry once the clock of the stream's server shows more than the
// row's time of dispatch plus one dispatch horizon; see queueClock.deadline. So an entry
// is missing if its row was dispatched longer than one horizon before a limit: the time at
// which the oldest entry was added or, if the stream is empty, the server's time at the
// read. The time of the database is a second limit, so that a Redis whose clock jumps ahead
// makes nobody sweep early. A queue in this process has the clock of this instance, which
// is not compared with the database's: the limit is the database's time minus the age
// of the oldest entry.
//
// In direct mode, sweep cannot read the queues of the other instances, so the limit is the
// time of the database. No consumer starts a call more than half a horizon after the
// dispatch, and a call is shorter than the other half, because Lease is longer than
// MoneyTimeout.
//
// The stream must be read before the rows. Then it does not matter how long a step takes,
// how many there are, or who else sweeps: entries are added at the end only, so the limit
// never moves back. A payout that was dispatched again since has a newer time of dispatch,
// and the statement leaves it alone.
func (s *Sweeper) sweep(ctx context.Context, v store.PromotionView) (result, error) {
	before, err := s.rows.clock.earliest(ctx)
	if err != nil {
		return 0, err
	}
	info, err := s.cfg.Queue.Info(ctx, queue.StreamOf(v.Promotion))
	if err != nil {
		return 0, err
	}
	s.cfg.Metrics.SetStream(v.Type, v.ID, info.Len, info.Lag(), info.Pending, age(info.OldestPendingAt, info.At))
	switch {
	case s.cfg.Direct:
	case s.cfg.QueueIsLocal && info.Len > 0:
		before = before.Add(-time.Since(info.OldestAt))
	case s.cfg.QueueIsLocal:
	case info.Len > 0:
		before = earliest(before, info.At, info.OldestAt)
	default:
		before = earliest(before, info.At)
	}
	n, err := s.sweepBefore(ctx, v.ID, before.Add(-s.cfg.Limits.DispatchHorizon()))
	if n == store.BatchMax {
		return stepAgain, err
	}
	if n > 0 {
		s.cache.Hint()
	}
	if v.Status == reward.Paused {
		return stepRests, err // what is swept would not be dispatched before a resume
	}
	return stepDone, err
}

// sweepBefore returns up to store.BatchMax QUEUED rows that were dispatched before a
// given time to READY (UNKNOWN in a CANCELLED promotion).
func (s *Sweeper) sweepBefore(ctx context.Context, id reward.PromotionID, before time.Time) (int, error) {
	n, err := s.rows.PayoutSweep(ctx, store.PayoutSweepParams{
		PromotionID: id, Before: before, Lease: s.cfg.Limits.Lease,
	})
	if n > 0 {
		s.cfg.Metrics.Swept(n)
		s.log.Info("lost payouts swept", "promotion_id", id, "count", n)
	}
	return n, err
}

// completable reports whether a promotion can end, as far as a view shows. The store
// decides, when Sweeper.complete asks it.
func completable(v *store.PromotionView) bool {
	_, done := rules.Complete(v.Promotion, v.Counts, rules.Blockers{}, time.Time{})
	return done
}

// complete ends a promotion, if the store finds that the rows allow it. Otherwise the
// promotion waits: for an open upload, or for lookups.
func (s *Sweeper) complete(ctx context.Context, v store.PromotionView) (result, error) {
	done, err := s.rows.PromotionComplete(ctx, v.ID, s.cfg.Limits.SettleAfter)
	switch {
	case done:
		s.log.Info("promotion finished", "promotion_id", v.ID, "previous_status", v.Status)
		s.cache.Hint()
	case err == nil:
		return stepWaits, nil
	}
	return stepDone, err
}

// cancelRows moves up to store.BatchMax READY and RETRYING rows of a CANCELLED promotion
// to CANCELLED, or to UNKNOWN if they may have been charged. QUEUED rows end when a
// consumer gets their entry, or by a sweep. A CANCELLED promotion never runs again, so the
// chunks need no order and may be repeated. A save that began before the cancel may add
// READY rows after any chunk: the next view shows them.
func (s *Sweeper) cancelRows(ctx context.Context, v store.PromotionView) (result, error) {
	n, err := s.rows.PayoutCancelStep(ctx, store.PayoutCancelStepParams{
		PromotionID: v.ID, Lease: s.cfg.Limits.Lease,
	})
	switch {
	case n == store.BatchMax:
		return stepAgain, err
	case n > 0:
		s.cache.Hint()
	}
	return stepDone, err
}

// destroyable reports whether the stream of a promotion can be destroyed, or its
// absence confirmed, as far as this instance knows: no payout waits, this instance runs no
// pool for it, and no late entry can arrive, because the last dispatch was at least
// one dispatch horizon before now, the time of the database.
func (s *Sweeper) destroyable(v *store.PromotionView, now time.Time) bool {
	if !v.Status.Final() || v.StreamDestroyed || v.Counts.Undecided() > 0 ||
		now.Sub(v.LastDispatchedAt) < s.cfg.Limits.DispatchHorizon() || s.manager.Active(v.ID) {
		return false
	}
	at, destroyed := s.destroyedAt(v)
	return !destroyed || time.Since(at) >= destroyedTwice
}

// destroyedAt returns when this instance destroyed the stream, or false if it did not
// since the promotion's last dispatch.
func (s *Sweeper) destroyedAt(v *store.PromotionView) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, known := s.destroyed[v.ID]
	return d.at, known && d.dispatchedAt.Equal(v.LastDispatchedAt)
}

// destroy destroys the stream of a final promotion. If the stream has entries, it
// acknowledges those that need no outcome, and a later step destroys the stream. The
// promotion's row says so only if the stream is still missing when destroyedTwice has
// passed: until then, Redis may lose the removal.
func (s *Sweeper) destroy(ctx context.Context, v store.PromotionView) error {
	now, err := s.rows.clock.earliest(ctx)
	if err != nil || !s.destroyable(&v, now) {
		return err
	}
	stream := queue.StreamOf(v.Promotion)
	if _, destroyed := s.destroyedAt(&v); destroyed {
		info, err := s.cfg.Queue.Info(ctx, stream)
		if err != nil {
			return err
		}
		if !info.Exists {
			if _, err = s.rows.PromotionStreamDestroyed(ctx, v.ID, v.LastDispatchedAt); err == nil {
				s.noteDestroyed(v, false)
			}
			return err
		}
	}
	gone, err := s.cfg.Queue.Destroy(ctx, stream)
	if err != nil {
		return err
	}
	s.noteDestroyed(v, gone)
	if !gone {
		return s.clear(ctx, stream)
	}
	return nil
}

// noteDestroyed notes that a stream is gone since now, or that nothing is to be confirmed.
func (s *Sweeper) noteDestroyed(v store.PromotionView, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.destroyed, v.ID)
	if gone {
		s.destroyed[v.ID] = destroyedStream{dispatchedAt: v.LastDispatchedAt, at: time.Now()}
		maps.DeleteFunc(s.destroyed, func(_ reward.PromotionID, d destroyedStream) bool {
			return time.Since(d.at) > 10*destroyedTwice // another instance has confirmed it
		})
	}
}

// clear acknowledges the oldest entries of a stream, except those whose row is QUEUED
// under the entry's dispatch. It stores unreadable ones as dead letters first.
func (s *Sweeper) clear(ctx context.Context, stream queue.Stream) error {
	entries, err := s.cfg.Queue.Range(ctx, stream, store.BatchMax)
	if err != nil || len(entries) == 0 {
		return err
	}
	ids := make([]store.PayoutID, 0, len(entries))
	for _, e := range entries {
		if e.Readable {
			ids = append(ids, store.PayoutID{PromotionID: stream.PromotionID, TargetID: e.TargetID})
		}
	}
	rows, err := s.rows.PayoutGetMany(ctx, ids)
	if err != nil {
		return err
	}
	queued := make(map[reward.TargetID]int32) // dispatch by target
	for _, r := range rows {
		if r.State == reward.Queued {
			queued[r.TargetID] = r.Dispatch
		}
	}
	var done []string
	var dead []reward.DeadLetter
	for _, e := range entries {
		if !e.Readable {
			dead = append(dead, deadEntry(stream, e, reward.CodeMalformed, unreadable))
		} else if dispatch, waits := queued[e.TargetID]; waits && dispatch == e.Dispatch {
			continue
		}
		done = append(done, e.ID)
	}
	if len(dead) > 0 {
		if err := s.rows.DeadLetterAdd(ctx, dead); err != nil {
			return err
		}
		for _, d := range dead {
			s.cfg.Metrics.DeadLettered(d.Reason, 1)
		}
	}
	return s.cfg.Queue.Ack(ctx, stream, done)
}

func earliest(times ...time.Time) time.Time { return slices.MinFunc(times, time.Time.Compare) }

func age(t, now time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(now.Sub(t), 0)
}
