package payout

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestDirect checks that the flow keeps its guarantees without streams, when
// each instance has its own queue.
func TestDirect(t *testing.T) {
	t.Parallel()
	// two returns two instances on the same rows.
	two := func(t *testing.T, p *ledgerProvider) (a *stage, b *Flow, other *queue.Memory) {
		t.Helper()
		a = newStage(t, p, nil)
		a.with(func(cfg *Config) { cfg.Direct = true; cfg.MaxLen = 100_000 }, dropPublisher{})
		other = queue.NewMemory()
		b = a.second(a.store, func(cfg *Config) { cfg.Queue = other })
		return a, b, other
	}
	onFakeTime(t, "TwoInstancesShareAndPayEverybodyOnce", func(t *testing.T) {
		p := newProvider(func(target reward.TargetID, n int) money.Answer {
			switch {
			case target%7 == 0 && n == 0:
				return money.Answer{Class: reward.AnswerFailed, Code: "E"}
			case target%11 == 0 && n == 0:
				return lost
			}
			return money.Answer{Class: reward.AnswerPaid}
		})
		s, second, other := two(t, p)
		defer s.close()
		defer other.Close()
		defer second.Stop()
		s.createAs(400, func(*reward.Promotion) {})
		s.start()
		if err := second.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.until("both at work", func(store.PromotionView) bool {
			return len(s.flow.manager.Pools()) == 1 && len(second.manager.Pools()) == 1
		})
		s.until("paid out", paidOut)
		s.balance(400)
	})
	onFakeTime(t, "WhatADeadInstanceHadIsPaidByTheOther", func(t *testing.T) {
		p := newProvider(nil)
		s, second, other := two(t, p)
		defer s.close()
		defer other.Close()
		s.createAs(20, func(*reward.Promotion) {})
		// It dispatches everything to itself and crashes before it reads.
		now := time.Now()
		rows, err := s.store.PayoutDispatch(t.Context(), store.PayoutDispatchParams{
			PromotionID: promotion, From: reward.Ready, Limit: 20, MaxLen: 1000, Now: now,
		})
		if err != nil || len(rows) != 20 {
			t.Fatalf("dispatched %d, %v", len(rows), err)
		}
		if n := second.intake.Producer.Enqueue(t.Context(), reward.Point, rows); n != 20 {
			t.Fatalf("%d enqueued", n)
		}
		second.governor.Close()
		s.start()
		s.until("paid out", paidOut)
		if took := time.Since(now); took > 30*time.Second {
			t.Errorf("the second instance took %v", took)
		}
		s.balance(20)
	})
	onFakeTime(t, "WhatWasDispatchedTooLongAgoIsNotCalled", func(t *testing.T) {
		p := newProvider(nil)
		s, second, other := two(t, p)
		defer s.close()
		defer other.Close()
		defer second.Stop()
		s.createAs(5, func(*reward.Promotion) {})
		past := time.Now()
		rows, err := s.store.PayoutDispatch(t.Context(), store.PayoutDispatchParams{
			PromotionID: promotion, From: reward.Ready, Limit: 5, MaxLen: 1000, Now: past,
		})
		if err != nil || len(rows) != 5 {
			t.Fatalf("dispatched %d, %v", len(rows), err)
		}
		if n := s.flow.intake.Producer.Enqueue(t.Context(), reward.Point, rows); n != 5 {
			t.Fatalf("%d enqueued", n)
		}
		// This instance stalls for longer than half the dispatch horizon.
		time.Sleep(testLimits().DispatchHorizon()/2 + time.Second)
		s.start()
		s.until("paid out", paidOut)
		s.balance(5)
		if row := s.row(1); row.Dispatch != 2 {
			t.Errorf("charged under dispatch %d", row.Dispatch)
		}
	})
	onFakeTime(t, "NobodyIsPaidWithoutAnApproval", func(t *testing.T) {
		p := newProvider(nil)
		s := newStage(t, p, nil)
		s.with(func(cfg *Config) { cfg.Direct, cfg.MaxLen, cfg.ApprovalAbove = true, 100_000, 1000 }, dropPublisher{})
		other := queue.NewMemory()
		second := s.second(s.store, func(cfg *Config) { cfg.Queue = other })
		defer s.close()
		defer other.Close()
		defer second.Stop()
		s.createAs(20, func(p *reward.Promotion) { p.CreatedBy = "ann" }) // 2,000 in total
		s.start()
		if err := second.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		v := s.until("paused", paused)
		if n := v.Counts.Payouts[reward.Ready]; n != 20 {
			t.Fatalf("%d of 20 targets are READY, counts %+v", n, v.Counts)
		}
		// A resume without an approval pays nothing either.
		s.move(reward.Paused, reward.Running)
		if v = s.until("paused again", paused); v.Counts.Payouts[reward.Ready] != 20 {
			t.Fatalf("counts %+v", v.Counts)
		}
		if _, err := s.store.PromotionApprove(t.Context(), store.PromotionApproveParams{ID: promotion, By: "bob", Revision: v.Revision}); err != nil {
			t.Fatal(err)
		}
		s.save(100, 1) // after the approval
		s.move(reward.Paused, reward.Running)
		v = s.until("paused with the new target", paused)
		if v.Counts.Payouts[reward.Succeeded] != 20 || v.Counts.Payouts[reward.Ready] != 1 {
			t.Fatalf("counts %+v", v.Counts)
		}
		if _, err := s.store.PromotionApprove(t.Context(), store.PromotionApproveParams{ID: promotion, By: "bob", Revision: v.Revision}); err != nil {
			t.Fatal(err)
		}
		s.move(reward.Paused, reward.Running)
		s.until("paid out", paidOut)
	})
	t.Run("ARateLetsEverybodyBePaidInTime", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := newProvider(nil)
			s := newStage(t, p, nil)
			s.with(func(cfg *Config) { cfg.Direct, cfg.MaxLen, cfg.Pool.InFlight = true, 100_000, 64 }, dropPublisher{})
			defer s.close()
			s.createAs(300, func(p *reward.Promotion) { p.RatePerSecond = 5 }) // a minute: several dispatch horizons
			began := time.Now()
			s.start()
			s.until("paid out", paidOut)
			s.balance(300)
			if took := time.Since(began); took > 80*time.Second {
				t.Errorf("300 payouts at 5 per second took %v", took)
			}
		})
	})
	onFakeTime(t, "APauseBetweenDispatchAndReadStrandsNothing", func(t *testing.T) {
		p := newProvider(nil)
		s, second, other := two(t, p)
		defer s.close()
		defer other.Close()
		second.governor.Close()
		s.createAs(30, func(*reward.Promotion) {})
		now := time.Now()
		rows, err := s.store.PayoutDispatch(t.Context(), store.PayoutDispatchParams{
			PromotionID: promotion, From: reward.Ready, Limit: 30, MaxLen: 1000, Now: now,
		})
		if err != nil || s.flow.intake.Producer.Enqueue(t.Context(), reward.Point, rows) != 30 {
			t.Fatal(err)
		}
		s.move(reward.Running, reward.Paused)
		s.start()
		time.Sleep(2 * testLimits().DispatchHorizon())
		s.move(reward.Paused, reward.Running)
		s.until("paid out", paidOut)
		s.balance(30)
	})
}
