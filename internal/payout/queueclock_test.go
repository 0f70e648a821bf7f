package payout

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// shiftedQueue is a queue whose server's clock is ahead of the instance's.
type shiftedQueue struct {
	queue.Queue
	ahead atomic.Int64 // a time.Duration
	adds  atomic.Int64
}

func (q *shiftedQueue) shift() time.Duration { return time.Duration(q.ahead.Load()) }

func (q *shiftedQueue) Add(ctx context.Context, p queue.AddParams) (int, error) {
	q.adds.Add(1)
	p.Deadline = p.Deadline.Add(-q.shift())
	return q.Queue.Add(ctx, p)
}

func (q *shiftedQueue) Info(ctx context.Context, s queue.Stream) (queue.Info, error) {
	info, err := q.Queue.Info(ctx, s)
	for _, at := range []*time.Time{&info.At, &info.OldestAt, &info.OldestPendingAt} {
		if !at.IsZero() {
			*at = at.Add(q.shift())
		}
	}
	return info, err
}

func (q *shiftedQueue) Clocks(context.Context) (queue.Clocks, error) {
	c := service.Clock{Ahead: q.shift(), RoundTrip: time.Millisecond}
	return queue.Clocks{Worst: c, Of: func(queue.Stream) service.Clock { return c }}, nil
}

// roomy is the length of a stream that never refuses an entry because it is full: then,
// each dispatch that does not reach the queue is the fault of a clock.
const roomy = 1000

// skewedStage is a stage whose queue's clock is ahead.
func skewedStage(t *testing.T, ahead time.Duration) (*stage, *shiftedQueue, *obs.Troubles) {
	t.Helper()
	q := &shiftedQueue{}
	q.ahead.Store(int64(ahead))
	s := newStage(t, newProvider(nil))
	troubles := obs.NewTroubles(nil, obs.Log{})
	s.with(func(cfg *Config) { q.Queue, cfg.Queue, cfg.Troubles, cfg.MaxLen = s.queue, q, troubles, roomy }, dropPublisher{})
	return s, q, troubles
}

// undisturbed checks that each payout was dispatched and called once.
func (s *stage) undisturbed(n int) {
	s.t.Helper()
	s.balance(n)
	for i := range n {
		target := reward.TargetID(i + 1)
		if row := s.row(target); row.Dispatch != 1 || s.provider.callsOf(target) != 1 {
			s.t.Errorf("target %d was dispatched %d times and called %d times", target, row.Dispatch, s.provider.callsOf(target))
		}
	}
}

func TestClocks(t *testing.T) {
	t.Parallel()
	const targets = 100
	for name, ahead := range map[string]time.Duration{
		"TwelveSecondsAhead": 12 * time.Second, "AMinuteBehind": -time.Minute, "AnHourBehind": -time.Hour,
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			s, _, troubles := skewedStage(t, ahead)
			s.create(targets, 5)
			s.start()
			s.until("paid out", paidOut)
			s.undisturbed(targets)
			list := troubles.List()
			if len(list) != 1 || list[0].Part != obs.PartRedisClock || !strings.Contains(list[0].Reason, "NTP") {
				t.Errorf("the troubles are %+v", list)
			}
		})
	}
	fixture.OnFakeTime(t, "AMinuteAheadAndRightAgain", func(t *testing.T) {
		s, q, troubles := skewedStage(t, time.Minute)
		s.create(targets, 5)
		s.start()
		time.Sleep(time.Minute) // fake time
		if n := q.adds.Load(); n != 0 {
			t.Errorf("%d batches were dispatched that the queue must refuse", n)
		}
		if list := troubles.List(); len(list) != 1 || !strings.Contains(list[0].Reason, "1m0s ahead") {
			t.Errorf("the troubles are %+v", list)
		}
		q.ahead.Store(0)
		s.until("paid out", paidOut)
		s.undisturbed(targets)
		if list := troubles.List(); len(list) != 0 {
			t.Errorf("the troubles are still %+v", list)
		}
	})
	// To an instance whose clock is early, Redis, the database and every row seem to be late.
	fixture.OnFakeTime(t, "AnEarlyInstanceSweepsNothing", func(t *testing.T) {
		const late = 25 * time.Second
		s, _, _ := skewedStage(t, -late)
		s.with(func(cfg *Config) { cfg.Store = clockStore{s.store, -late} }, dropPublisher{})
		s.create(1, 5)
		if rows, err := s.store.PayoutDispatch(t.Context(), store.PayoutDispatchParams{
			PromotionID: promotion, From: reward.Ready, Limit: 1, MaxLen: 20, Now: time.Now().Add(-late),
		}); err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		sweep := func() reward.State {
			t.Helper()
			v := fixture.Must(s.store.PromotionGet(t.Context(), promotion))(t)
			fixture.Must(s.flow.sweeper.sweep(t.Context(), v))(t)
			return s.row(1).State
		}
		if state := sweep(); state != reward.Queued {
			t.Errorf("a payout that was dispatched now is %s", state)
		}
		time.Sleep(testLimits().DispatchHorizon() + time.Second) // fake time
		if state := sweep(); state != reward.Ready {
			t.Errorf("a payout without an entry is %s after the dispatch horizon", state)
		}
	})
}

// forgetfulQueue returns a queue that loses the first batch that is added, and does not say
// whether it took it.
func forgetfulQueue(q queue.Queue) queue.Queue {
	var forgot atomic.Bool
	return &queuetest.Hooked{Queue: q, Before: func(_ context.Context, call string, _ queue.Stream) error {
		if call == "Add" && forgot.CompareAndSwap(false, true) {
			return errFault
		}
		return nil
	}}
}

// TestAnInstanceWhoseClockIsWrong checks that the clock of an instance delays
// nothing: a lost payout is swept, a stream is destroyed, and payouts are
// dispatched as soon as with a clock that is right.
func TestAnInstanceWhoseClockIsWrong(t *testing.T) {
	t.Parallel()
	const targets = 100
	for _, mode := range []string{"Redis", "Direct", "Alone"} {
		for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
			fixture.OnFakeTime(t, fmt.Sprintf("%s/Ahead=%v", mode, ahead), func(t *testing.T) {
				s := newStage(t, newProvider(nil))
				shifted := &shiftedQueue{Queue: s.queue}
				if mode == "Redis" { // otherwise, the queue is in the process
					shifted.ahead.Store(int64(-ahead))
				}
				troubles := obs.NewTroubles(nil, obs.Log{})
				s.with(func(cfg *Config) {
					cfg.Store, cfg.Queue = clockStore{s.store, -ahead}, forgetfulQueue(shifted)
					cfg.Direct, cfg.QueueIsLocal, cfg.Troubles = mode == "Direct", mode == "Alone", troubles
				}, dropPublisher{})
				s.create(targets, 5)
				s.start()
				began := time.Now()
				s.until("paid out", paidOut)
				if took := time.Since(began); took > 3*testLimits().DispatchHorizon() {
					t.Errorf("paid out after %v", took)
				}
				s.balance(targets)
				if first, now := s.row(1).FirstDispatchedAt, time.Now().Add(-ahead); first.After(now) {
					t.Errorf("the first dispatch was at %v, it is %v", first, now)
				}
				if list := troubles.List(); len(list) != 0 {
					t.Errorf("the troubles are %+v", list)
				}
				began = time.Now()
				s.until("destroyed", func(v store.PromotionView) bool { return v.StreamDestroyed })
				if took := time.Since(began); took > 3*testLimits().DispatchHorizon() {
					t.Errorf("destroyed after %v", took)
				}
			})
		}
	}
}

// TestAnEarlierStartHadAFastClock checks that an instance that is alone sweeps what an
// earlier start dispatched, although the clock was set back since.
func TestAnEarlierStartHadAFastClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.with(func(cfg *Config) { cfg.QueueIsLocal = true }, dropPublisher{})
		s.create(10, 5)
		if rows, err := s.store.PayoutDispatch(t.Context(), store.PayoutDispatchParams{
			PromotionID: promotion, From: reward.Ready, Limit: 10, MaxLen: 20, Now: time.Now().Add(time.Hour),
		}); err != nil || len(rows) != 10 {
			t.Fatal(rows, err)
		}
		began := time.Now()
		s.start()
		s.until("paid out", paidOut)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("paid out after %v", took)
		}
		s.balance(10)
	})
}

// TestALiveUploadKeepsItsPromotionOpen checks that an instance whose clock is fast
// does not complete a promotion while the lease of an upload is valid.
func TestALiveUploadKeepsItsPromotionOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const fast = time.Hour
		s := newStage(t, newProvider(nil))
		shifted := &shiftedQueue{Queue: s.queue}
		shifted.ahead.Store(int64(-fast))
		s.with(func(cfg *Config) { cfg.Store, cfg.Queue = clockStore{s.store, -fast}, shifted }, dropPublisher{})
		s.create(5, 0)
		now := time.Now().Add(-fast)
		fixture.OK(t, s.store.UploadOpen(t.Context(), store.Upload{ID: 7, PromotionID: promotion, CreatedAt: now, LeasedUntil: now.Add(time.Minute)}))
		began := time.Now()
		s.start()
		s.until("completed", paidOut)
		if took := time.Since(began); took < time.Minute || took > 2*time.Minute {
			t.Errorf("completed after %v, but the upload has a lease of a minute", took)
		}
	})
}
