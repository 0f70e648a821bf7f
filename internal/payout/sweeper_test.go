package payout

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// endlessCancel is a store in which the cancel of one promotion takes for ever:
// each chunk takes ten seconds, and there is always another one.
type endlessCancel struct {
	Store
	id reward.PromotionID

	mu     sync.Mutex // protects chunks
	chunks int
}

func (s *endlessCancel) PayoutCancelStep(ctx context.Context, p store.PayoutCancelStepParams) (int, error) {
	if p.PromotionID != s.id {
		return s.Store.PayoutCancelStep(ctx, p)
	}
	s.mu.Lock()
	s.chunks++
	s.mu.Unlock()
	select {
	case <-time.After(9 * time.Second):
		return store.BatchMax, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// watchedQueue is a queue that notes its commands. Those about some streams hang.
type watchedQueue struct {
	queuetest.Hooked

	mu       sync.Mutex // protects commands
	commands []string
}

// newWatchedQueue returns a queue, none of whose streams hang if hangs is nil.
func newWatchedQueue(of queue.Queue, hangs func(queue.Stream) bool) *watchedQueue {
	q := &watchedQueue{}
	q.Queue = of
	q.Before = func(ctx context.Context, call string, s queue.Stream) error {
		q.mu.Lock()
		q.commands = append(q.commands, fmt.Sprintf("%s %d", call, s.PromotionID))
		q.mu.Unlock()
		if hangs != nil && hangs(s) {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	return q
}

func (q *watchedQueue) noted() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.commands)
}

// started creates a running promotion with n payouts, of which up to maxLen are
// dispatched.
func (s *stage) started(id reward.PromotionID, n, maxLen int) {
	s.t.Helper()
	expected := int64(n)
	fixture.Must(s.store.PromotionRegister(s.t.Context(), []store.Registration{{ID: id, Type: reward.Point, Started: true, ExpectedCount: &expected}}, reward.Limits{}, time.Now()))(s.t)
	s.saveOf(id, 1, n, maxLen)
}

// paid records that the first dispatch of n payouts was paid.
func (s *stage) paid(id reward.PromotionID, n int) {
	s.t.Helper()
	var outcomes []rules.Outcome
	for i := range n {
		outcomes = append(outcomes, rules.Outcome{
			Ref: reward.Ref{PromotionID: id, TargetID: reward.TargetID(i + 1), Dispatch: 1}, Kind: rules.OutcomePaid, TransactionKey: "T",
		})
	}
	fixture.Must(s.store.PayoutFinish(s.t.Context(), store.PayoutFinishParams{Outcomes: outcomes, Lease: time.Second, Now: time.Now()}))(s.t)
}

func (s *stage) cancelled(id reward.PromotionID) {
	s.t.Helper()
	s.moveOf(id, reward.Running, reward.PromotionCancelled)
}

func (s *stage) of(id reward.PromotionID) store.PromotionView {
	s.t.Helper()
	return fixture.Must(s.store.PromotionGet(s.t.Context(), id))(s.t)
}

// soon lets up to d of fake time pass until the condition holds.
func (s *stage) soon(d time.Duration, what string, holds func() bool) {
	s.t.Helper()
	for began := time.Now(); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > d {
			s.t.Fatalf("not %s within %v", what, d)
		}
	}
}

// keeper is a stage that does the housekeeping only, and does not pay.
func keeper(t *testing.T, rows func(Store) Store, q func(queue.Queue) queue.Queue) *stage {
	t.Helper()
	s := newStage(t, newProvider(nil))
	s.with(func(cfg *Config) {
		cfg.Payout = false
		if rows != nil {
			cfg.Store = rows(s.store)
		}
		if q != nil {
			cfg.Queue = q(cfg.Queue)
		}
	}, dropPublisher{})
	return s
}

func TestSweeper(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "ALongCancelHoldsNobodyUp", func(t *testing.T) {
		const huge, other, small reward.PromotionID = 1, 2, 3
		endless := &endlessCancel{id: huge}
		s := keeper(t, func(rows Store) Store { endless.Store = rows; return endless }, nil)
		s.started(huge, 10, 0)
		s.started(other, 10, 10)
		s.started(small, 10, 0)
		s.cancelled(huge)
		s.start()
		time.Sleep(time.Minute)
		s.paid(other, 10)
		s.cancelled(small)
		s.soon(2*time.Second, "completed", func() bool { return s.of(other).Status == reward.Completed })
		s.soon(2*time.Second, "cancelled", func() bool { return !s.of(small).FinishedAt.IsZero() })
		endless.mu.Lock()
		defer endless.mu.Unlock()
		if v := s.of(huge); endless.chunks < 6 || v.Counts.Payouts[reward.Ready] != 10 {
			t.Errorf("%d chunks of the long cancel, %+v", endless.chunks, v)
		}
	})

	fixture.OnFakeTime(t, "CompletionAndCancelNeedNoQueue", func(t *testing.T) {
		const waiting, finished = 100, 40
		hung := newWatchedQueue(nil, func(queue.Stream) bool { return true })
		s := keeper(t, nil, func(q queue.Queue) queue.Queue { hung.Queue = q; return hung })
		for i := range waiting {
			s.started(reward.PromotionID(1000+i), 5, 5)
		}
		for i := range finished {
			s.started(reward.PromotionID(1+i), 5, 5)
		}
		s.started(999, 5, 0)
		s.start()
		time.Sleep(time.Minute)
		s.cancelled(999)
		for i := range finished {
			s.paid(reward.PromotionID(1+i), 5)
		}
		s.soon(3*time.Second, "all completed", func() bool {
			for i := range finished {
				if s.of(reward.PromotionID(1+i)).Status != reward.Completed {
					return false
				}
			}
			return !s.of(999).FinishedAt.IsZero()
		})
	})

	fixture.OnFakeTime(t, "AStreamThatHangsHoldsNoOtherUp", func(t *testing.T) {
		// Half of the streams hang, as those of one node of a Cluster do. The
		// entries of all are lost.
		const each = 30
		partly := newWatchedQueue(nil, func(s queue.Stream) bool { return s.PromotionID%2 == 1 })
		s := keeper(t, nil, func(q queue.Queue) queue.Queue { partly.Queue = q; return partly })
		for i := range 2 * each {
			s.started(reward.PromotionID(1+i), 5, 5)
		}
		s.start()
		horizon := testLimits().DispatchHorizon()
		time.Sleep(horizon)
		s.soon(2*sweepTimeout, "all swept that can be", func() bool {
			for i := range each {
				if s.of(reward.PromotionID(2 + 2*i)).Counts.Payouts[reward.Ready] != 5 {
					return false
				}
			}
			return true
		})
		// Streams that keep hanging leave the other slots to those that do not.
		before := len(partly.noted())
		s.started(1000, 5, 5)
		time.Sleep(horizon)
		s.soon(2*time.Second+sweepInterval, "swept", func() bool { return s.of(1000).Counts.Payouts[reward.Ready] == 5 })
		hung := 0
		for _, c := range partly.noted()[before:] {
			var id int
			if _, err := fmt.Sscanf(c, "Info %d", &id); err == nil && id%2 == 1 {
				hung++
			}
		}
		if most := 2 * int(horizon/sweepTimeout); hung > most {
			t.Errorf("%d commands about streams that hang in %v, want at most %d", hung, horizon, most)
		}
	})

	fixture.OnFakeTime(t, "EachChunkOfASweepReadsTheStreamBeforeTheRows", func(t *testing.T) {
		var order sweepOrder
		s := keeper(t,
			func(rows Store) Store { return &orderedStore{rows, &order} },
			func(q queue.Queue) queue.Queue {
				return &queuetest.Hooked{Queue: q, Before: func(_ context.Context, call string, s queue.Stream) error {
					if call == "Info" {
						order.note(s.PromotionID, -1)
					}
					return nil
				}}
			})
		s.started(1, 2500, 5000)
		s.started(2, 1, 5000)
		s.start()
		time.Sleep(testLimits().DispatchHorizon() - 2*time.Second)
		order.forget()
		s.soon(5*time.Second, "swept", func() bool {
			return s.of(1).Counts.Payouts[reward.Ready] == 2500 && s.of(2).Counts.Payouts[reward.Ready] == 1
		})
		swept := order.of(1)
		var moved []int
		for i, step := range swept {
			switch {
			case i%2 == 0 && step != -1, i%2 == 1 && step == -1:
				t.Fatalf("stream (-1) and rows alternate not: %v", swept)
			case step > 0:
				moved = append(moved, step)
			}
		}
		if !slices.Equal(moved, []int{1000, 1000, 500}) {
			t.Errorf("chunks %v", moved)
		}
	})

	fixture.OnFakeTime(t, "WhatIsIdleCostsTheQueueNothing", func(t *testing.T) {
		idle := newWatchedQueue(nil, nil)
		s := keeper(t, nil, func(q queue.Queue) queue.Queue { idle.Queue = q; return idle })
		for i := range 100 {
			id := reward.PromotionID(1 + i)
			expected := int64(10) // of which five have not arrived
			fixture.Must(s.store.PromotionRegister(t.Context(), []store.Registration{{ID: id, Type: reward.Point, Started: true, ExpectedCount: &expected}}, reward.Limits{}, time.Now()))(t)
			s.started(id, 5, 5)
			s.paid(id, 5)
		}
		s.start()
		time.Sleep(10 * time.Minute)
		if got := idle.noted(); len(got) != 0 || len(s.flow.Views()) != 100 {
			t.Errorf("%d active promotions without work cost %d commands: %v", len(s.flow.Views()), len(got), got[:min(len(got), 5)])
		}
	})

	fixture.OnFakeTime(t, "APausedPromotionCostsTheQueueLittleUntilItsResume", func(t *testing.T) {
		quiet := newWatchedQueue(nil, nil)
		s := keeper(t, nil, func(q queue.Queue) queue.Queue { quiet.Queue = q; return quiet })
		s.started(promotion, 5, 5)
		s.move(reward.Running, reward.Paused)
		s.start()
		time.Sleep(10 * time.Second) // its payouts are not lost yet
		fixture.Must(s.queue.Add(t.Context(), queue.AddParams{
			Stream: theStream, MaxLen: 10, Deadline: time.Now().Add(time.Hour), Entries: []queue.NewEntry{{TargetID: 1, Dispatch: 1}},
		}))(t)
		from := len(quiet.noted())
		time.Sleep(10 * time.Minute)
		if got := quiet.noted()[from:]; len(got) < 15 || len(got) > 30 {
			t.Errorf("%d commands in ten minutes: %v", len(got), got)
		}
		entries, err := s.queue.Range(t.Context(), theStream, 10)
		if err != nil || len(entries) != 1 {
			t.Fatal(entries, err)
		}
		if err := s.queue.Ack(t.Context(), theStream, []string{entries[0].ID}); err != nil { // it is lost
			t.Fatal(err)
		}
		s.move(reward.Paused, reward.Running)
		s.soon(2*time.Second, "swept", func() bool { return s.of(promotion).Counts.Payouts[reward.Ready] == 5 })
	})

	fixture.OnFakeTime(t, "WhoCannotReachTheQueueLeavesTheStreamsToOthers", func(t *testing.T) {
		const promotions = 20
		hung := newWatchedQueue(nil, func(queue.Stream) bool { return true })
		s := keeper(t, nil, func(q queue.Queue) queue.Queue { hung.Queue = q; return hung })
		second := s.second(s.store, func(cfg *Config) { cfg.Queue = s.queue })
		for i := range promotions {
			s.started(reward.PromotionID(1+i), 5, 5) // without entries
		}
		s.start()
		fixture.OK(t, second.Start(t.Context()))
		defer second.Stop()
		began := time.Now()
		s.soon(2*time.Minute, "all swept", func() bool {
			for i := range promotions {
				if s.of(reward.PromotionID(1 + i)).Counts.Payouts[reward.Ready] != 5 {
					return false
				}
			}
			return true
		})
		t.Logf("after %v", time.Since(began))
	})
}

// sweepOrder notes for each promotion when its stream (-1) and its rows (how many
// moved) were swept.
type sweepOrder struct {
	mu    sync.Mutex // protects steps
	steps map[reward.PromotionID][]int
}

func (o *sweepOrder) note(id reward.PromotionID, step int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.steps == nil {
		o.steps = make(map[reward.PromotionID][]int)
	}
	o.steps[id] = append(o.steps[id], step)
}

func (o *sweepOrder) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps = nil
}

func (o *sweepOrder) of(id reward.PromotionID) []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.steps[id])
}

type orderedStore struct {
	Store
	order *sweepOrder
}

func (s *orderedStore) PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (int, error) {
	n, err := s.Store.PayoutSweep(ctx, p)
	s.order.note(p.PromotionID, n)
	return n, err
}

// sweptRows is a store whose promotions have nothing to complete or to sweep.
type sweptRows struct{ *countedRows }

func (sweptRows) InstanceAlive(context.Context) ([]string, error) { return nil, nil }

func (sweptRows) InstanceList(context.Context) ([]store.Instance, error) { return nil, nil }

func (sweptRows) PayoutSweep(context.Context, store.PayoutSweepParams) (int, error) { return 0, nil }

// queue gives a promotion n QUEUED payouts.
func (r sweptRows) queue(id reward.PromotionID, n int64) {
	r.set(id, reward.Running)
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.rows[id]
	v.Counts.Payouts[reward.Queued] = n
	r.rows[id] = v
}

// TestIdlePromotionsCostTheSweeperNothing: after the sweeper has seen a promotion that
// only waits for targets, it looks at it again when it changes.
func TestIdlePromotionsCostTheSweeperNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const promotions = 1000
		rows := sweptRows{newCountedRows(promotions, time.Millisecond)}
		memory := queue.NewMemory()
		defer memory.Close()
		var looked atomic.Int64
		all := func(reward.PromotionID) bool { looked.Add(1); return true }
		shared := newShared(Config{Store: rows, Queue: memory, Limits: Limits{Lease: 15 * time.Second, MoneyTimeout: time.Second}, Metrics: obs.NewMetrics()}, nil)
		s := newSweeper(shared, pool.NewManager(pool.Config{}), all, all)
		stop := inBackground(t, shared.cache.run, s.run)
		time.Sleep(10 * time.Second)
		for _, queued := range []int64{1, 0} {
			rows.queue(7, queued)
			time.Sleep(2 * time.Second)
			before := looked.Load()
			time.Sleep(10 * time.Second) // about 20 reads
			switch n := looked.Load() - before; {
			case queued > 0 && n < 20:
				t.Errorf("it looked %d times at a promotion with work", n)
			case n > 100:
				t.Errorf("it looked %d times at %d promotions of which %d had work", n, promotions, queued)
			}
		}
		stop()
	})
}
