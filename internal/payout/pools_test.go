package payout

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

var errAway = errors.New("the queue is away")

func (s *stage) deadLetters(reason string) int {
	s.t.Helper()
	all := fixture.Must(s.store.DeadLetterList(s.t.Context(), store.DeadLetterListParams{Limit: 100}))(s.t)
	n := 0
	for _, l := range all {
		if l.Reason == reason {
			n++
		}
	}
	return n
}

func TestPoolsAndTheFlow(t *testing.T) {
	t.Parallel()
	fixture.OnFakeTime(t, "PoisonEndsInTheDeadLetters", func(t *testing.T) {
		p := newProvider(func(target reward.TargetID, _ int) money.Answer {
			if target == 2 {
				panic("this target is poison")
			}
			return money.Answer{Class: reward.AnswerPaid}
		})
		s := newStage(t, p)
		s.create(5, 5)
		s.start()
		s.until("paid out", paidOut)
		s.balance(5)
		if n := p.callsOf(2); n != poisonAfter {
			t.Errorf("charged %d times, want %d", n, poisonAfter)
		}
		if row := s.row(2); row.State != reward.Failed || row.ErrorCode != reward.CodePoison {
			t.Errorf("the poison payout is %+v", row)
		}
		if n := s.deadLetters(reward.CodePoison); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
	})
	fixture.OnFakeTime(t, "WhatAnAnswerCameForIsNoPoison", func(t *testing.T) {
		// Deliveries fail again and again, but never ten in a row.
		p := newProvider(func(_ reward.TargetID, n int) money.Answer {
			switch {
			case n >= 4*(poisonAfter-1):
				return money.Answer{Class: reward.AnswerPaid}
			case n%(poisonAfter-1) == poisonAfter-2:
				return money.Answer{Class: reward.AnswerFailed, Code: "E"}
			}
			panic("not this time")
		})
		s := newStage(t, p)
		s.create(1, 10)
		s.start()
		time.Sleep(10 * time.Minute) // ten more failures are enough
		s.until("paid out", paidOut)
		s.balance(1)
		if n := s.deadLetters(reward.CodePoison); n != 0 || s.row(1).State != reward.Succeeded {
			t.Errorf("%d dead letters, and the row is %+v", n, s.row(1))
		}
	})
	fixture.OnFakeTime(t, "APauseGivesBackWhatIsInHandAndIsNoPoison", func(t *testing.T) {
		var up atomic.Bool
		later := money.Answer{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 5 * time.Second}
		s := newStage(t, payingBut(later, func(reward.TargetID, int) bool { return !up.Load() }))
		s.create(4, 5)
		s.start()
		for range 2 * poisonAfter {
			s.until("in hand", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Queued] == 4 })
			time.Sleep(time.Second)
			s.move(reward.Running, reward.Paused)
			began := time.Now()
			s.until("given back", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Ready] == 4 })
			if took := time.Since(began); took > 2*time.Second {
				t.Fatalf("returning took %v", took)
			}
			s.move(reward.Paused, reward.Running)
		}
		up.Store(true)
		s.until("paid out", paidOut)
		s.balance(4)
		if n := s.deadLetters(reward.CodePoison); n != 0 {
			t.Errorf("%d dead letters", n)
		}
	})
	fixture.OnFakeTime(t, "TheQueueIsAwayForAMinute", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		var away atomic.Bool
		var calls atomic.Int64
		q := &queuetest.Hooked{Queue: s.queue, Before: func(context.Context, string, queue.Stream) error {
			calls.Add(1)
			if away.Load() {
				return errAway
			}
			return nil
		}}
		lines := &fixture.Buffer{}
		log := fixture.Must(obs.NewLog(lines, "warn", "text"))(t)
		s.with(func(cfg *Config) { cfg.Queue, cfg.Log = q, log }, dropPublisher{})
		s.create(400, 5)
		s.start()
		s.until("under way", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Succeeded] > 50 })
		calls.Store(0)
		away.Store(true)
		time.Sleep(time.Minute)
		if n := calls.Load(); n > 60*60 {
			t.Errorf("%d calls in the minute it was away: that is a busy loop", n)
		}
		if n := strings.Count(lines.String(), "\n"); n > 35 {
			t.Errorf("%d lines in the log of the minute it was away", n)
		}
		away.Store(false)
		s.until("paid out", paidOut)
		s.balance(400)
	})
	fixture.OnFakeTime(t, "AFailedCleanupFailsNothingAndIsMadeUpFor", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		var away atomic.Bool // for what cleans up
		q := &queuetest.Hooked{Queue: s.queue, Before: func(_ context.Context, call string, _ queue.Stream) error {
			if away.Load() && (call == "RemoveConsumer" || call == "Destroy") {
				return errAway
			}
			return nil
		}}
		s.with(func(cfg *Config) { cfg.Queue = q }, dropPublisher{})
		away.Store(true)
		s.create(10, 5)
		s.start()
		s.until("paid out", paidOut)
		s.balance(10)
		time.Sleep(time.Minute)
		if info, err := s.queue.Info(t.Context(), theStream); err != nil || !info.Exists {
			t.Fatalf("the stream was destroyed during the outage: %+v, %v", info, err)
		}
		away.Store(false)
		s.until("gone", func(v store.PromotionView) bool { return v.StreamDestroyed })
		if info, err := s.queue.Info(t.Context(), theStream); err != nil || info.Exists {
			t.Fatalf("the stream still exists: %+v, %v", info, err)
		}
	})
	fixture.OnFakeTime(t, "DeploysDuringAnOutageAreNoPoison", func(t *testing.T) {
		var up atomic.Bool
		unsent := money.Answer{Class: reward.AnswerNotSent, Err: errors.New("connection refused")}
		s := newStage(t, payingBut(unsent, func(reward.TargetID, int) bool { return !up.Load() }))
		s.create(3, 5)
		for range 2 * poisonAfter {
			s.start()
			time.Sleep(10 * time.Second)
			began := time.Now()
			s.flow.Stop()
			if took := time.Since(began); took > time.Second {
				t.Fatalf("the stop took %v although no call was in flight", took)
			}
			if row := s.row(1); row.State != reward.Ready || row.FailedDeliveries != 0 {
				t.Fatalf("after a stop the row is %+v", row)
			}
			s.flow = wire(s.flow.cfg, dropPublisher{})
		}
		up.Store(true)
		s.start()
		s.until("paid out", paidOut)
		s.balance(3)
		if n := s.deadLetters(reward.CodePoison); n != 0 {
			t.Errorf("%d dead letters", n)
		}
	})
	fixture.OnFakeTime(t, "WhatAnotherServerRunTookIsNoPoison", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		q := &otherRunQueue{Queue: s.queue}
		q.left.Store(2 * poisonAfter)
		s.with(func(cfg *Config) { cfg.Queue = q }, dropPublisher{})
		s.create(1, 5)
		s.start()
		s.until("paid out", paidOut)
		s.balance(1)
		if row := s.row(1); row.State != reward.Succeeded {
			t.Errorf("the undelivered payout is %+v", row)
		}
	})
	fixture.OnFakeTime(t, "AStopDoesNotWaitForGiveBacksThatHang", func(t *testing.T) {
		const n = 1000
		p := newProvider(func(reward.TargetID, int) money.Answer {
			return money.Answer{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 2 * time.Second}
		})
		s := newStage(t, p)
		b := &hangingBack{Store: s.store}
		s.with(func(cfg *Config) {
			cfg.Store = b
			cfg.Pool.InFlight, cfg.Pool.BatchSize, cfg.Pool.MaxConsumers, cfg.MaxLen = n, n, 1, n
		}, dropPublisher{})
		s.create(n, 5)
		s.start()
		s.until("in hand", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Queued] == n })
		time.Sleep(time.Second)
		b.hangs.Store(true)
		s.move(reward.Running, reward.Paused)
		time.Sleep(time.Second)
		began := time.Now()
		s.flow.Stop()
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("the stop took %v", took)
		}
		b.hangs.Store(false)
		s.flow = wire(s.flow.cfg, dropPublisher{})
		s.start()
	})
	fixture.OnFakeTime(t, "WorkAfterAnIdleStopIsBegunWithoutAnyHint", func(t *testing.T) {
		p := newProvider(nil)
		s := newStage(t, p)
		s.with(func(cfg *Config) { cfg.Queue = &deafQueue{s.queue} }, dropPublisher{})
		s.create(3, 5)
		s.start()
		s.until("paid out", paidOut)
		time.Sleep(40 * time.Second) // more than the idle timeout
		if s.flow.manager.Active(promotion) {
			t.Fatal("the pool still runs")
		}
		for i := range 3 {
			fixture.Must(s.store.PayoutSave(t.Context(), store.PayoutSaveParams{
				Rows: []store.NewPayout{{PromotionID: promotion, TargetID: reward.TargetID(100 + i), UserID: "u", Amount: 1}},
				Now:  time.Now(),
			}))(t)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if p.callsOf(reward.TargetID(100+i)) == 0 {
				t.Fatal("not started within 2 s")
			}
			time.Sleep(40 * time.Second) // more than the idle timeout
		}
	})
	fixture.OnFakeTime(t, "ConsumersOfADeadInstanceAreRemoved", func(t *testing.T) {
		// The second target keeps the promotion running for minutes; a dead
		// instance owns the first one.
		later := money.Answer{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 10 * time.Second}
		s := newStage(t, payingBut(later, func(target reward.TargetID, n int) bool { return target == 2 && n < 20 }))
		s.create(2, 5)
		// Heartbeats use the database's clock, which is real: an hour of
		// fake time takes a moment there.
		beat := func(name string, ttl time.Duration) {
			fixture.Must(s.store.InstanceHeartbeat(t.Context(), store.Instance{Name: name, StartedAt: time.Now()}, ttl))(t)
		}
		beat("dead-1", time.Microsecond)
		beat("alive-2", time.Hour)
		if rows := s.enqueued(s.flow, 1); rows[0].TargetID != 1 {
			t.Fatalf("dispatched %v", rows)
		}
		fixture.Must(s.queue.Create(t.Context(), theStream, []string{"alive-2-0", "dead-1-0", "dead-1-1"}))(t)
		if got, err := s.queue.Read(t.Context(), theStream, []queue.ReadParams{{Consumer: "dead-1-0", Count: 1}}); err != nil || len(got) != 1 {
			t.Fatalf("read %v, %v", got, err)
		}
		// The flow must not claim, so that pending entries move to it.
		time.Sleep(20 * time.Second)
		evictor := s.flow.sweeper.evictor
		fixture.OK(t, evictor.alive.Read(t.Context()))
		fixture.Must(evictor.evict(t.Context(), s.view()))(t)
		left, err := s.queue.Consumers(t.Context(), theStream)
		if err != nil || len(left) != 1 || left[0].Name != "alive-2-0" || left[0].Pending != 1 {
			t.Fatalf("consumers %+v, %v; want the living one with the pending entries of the dead one", left, err)
		}
		claimed, err := s.queue.Claim(t.Context(), queue.ClaimParams{Stream: theStream, Consumer: "alive-2-0", MinIdle: 19 * time.Second, Count: 1})
		if err != nil || len(claimed.Entries) != 1 {
			t.Fatalf("claimed %v, %v; want the same idle time", claimed, err)
		}
		s.start()
		s.until("paid out", paidOut)
		s.balance(2)
	})
	// An instance paid all payouts and crashed. Another one takes the promotion over,
	// and sees no QUEUED payout of it.
	fixture.OnFakeTime(t, "ConsumersAreRemovedAfterAHandOver", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.create(1, 5)
		fixture.OK(t, s.store.UploadOpen(t.Context(), store.Upload{
			ID: 7, PromotionID: promotion, CreatedAt: time.Now(), LeasedUntil: time.Now().Add(24 * time.Hour),
		}))
		s.start()
		s.until("paid", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Succeeded] == 1 })
		s.flow.Stop()
		if exists, err := s.queue.Create(t.Context(), theStream, []string{"dead-1-0", "dead-1-1"}); err != nil || !exists {
			t.Fatal(exists, err)
		}
		fixture.Must(s.store.InstanceHeartbeat(t.Context(), store.Instance{
			Name: "dead-1", StartedAt: time.Now(), Pools: []store.InstancePool{{PromotionID: promotion, Type: reward.Point, Consumers: 2}},
		}, time.Microsecond))(t)
		s.with(func(*Config) {}, dropPublisher{})
		s.start()
		time.Sleep(4 * testLimits().Lease)
		if left, err := s.queue.Consumers(t.Context(), theStream); err != nil || len(left) != 0 {
			t.Errorf("consumers %+v, %v; their instance has been dead for four leases", left, err)
		}
	})
}

// otherRunQueue delivers some entries as after a restart of the server.
type otherRunQueue struct {
	queue.Queue
	left atomic.Int32
}

func (q *otherRunQueue) Read(ctx context.Context, s queue.Stream, reads []queue.ReadParams) ([]queue.Entry, error) {
	entries, err := q.Queue.Read(ctx, s, reads)
	if len(entries) > 0 && q.left.Add(-1) >= 0 {
		for i := range entries {
			entries[i].FirstDelivery = false
		}
	}
	return entries, err
}

// hangingBack is a database that does not respond to returns.
type hangingBack struct {
	Store
	hangs atomic.Bool
}

func (b *hangingBack) PayoutReturn(ctx context.Context, p store.PayoutReturnParams) (int, error) {
	if !b.hangs.Load() {
		return b.Store.PayoutReturn(ctx, p)
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	return 0, errAway
}

// deafQueue loses every hint.
type deafQueue struct{ queue.Queue }

func (deafQueue) Wakes() <-chan queue.Stream { return nil }
