package payout

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
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
		a = newStage(t, p)
		a.with(func(cfg *Config) { cfg.Direct = true; cfg.MaxLen = 100_000 }, dropPublisher{})
		other = queue.NewMemory()
		b = a.second(a.store, func(cfg *Config) { cfg.Queue = other })
		return a, b, other
	}
	fixture.OnFakeTime(t, "TwoInstancesShareAndPayEverybodyOnce", func(t *testing.T) {
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
		defer other.Close()
		defer second.Stop()
		s.createAs(400, func(*reward.Promotion) {})
		s.start()
		fixture.OK(t, second.Start(t.Context()))
		s.until("both at work", func(store.PromotionView) bool {
			return len(s.flow.manager.Pools()) == 1 && len(second.manager.Pools()) == 1
		})
		s.until("paid out", paidOut)
		s.balance(400)
	})
	fixture.OnFakeTime(t, "WhatADeadInstanceHadIsPaidByTheOther", func(t *testing.T) {
		p := newProvider(nil)
		s, second, other := two(t, p)
		defer other.Close()
		s.createAs(20, func(*reward.Promotion) {})
		// It dispatches everything to itself and crashes before it reads.
		now := time.Now()
		s.enqueued(second, 20)
		second.governor.Close()
		s.start()
		s.until("paid out", paidOut)
		if took := time.Since(now); took > 30*time.Second {
			t.Errorf("the second instance took %v", took)
		}
		s.balance(20)
	})
	fixture.OnFakeTime(t, "WhatWasDispatchedTooLongAgoIsNotCalled", func(t *testing.T) {
		p := newProvider(nil)
		s, second, other := two(t, p)
		defer other.Close()
		defer second.Stop()
		s.createAs(5, func(*reward.Promotion) {})
		s.enqueued(s.flow, 5)
		// This instance stalls for longer than half the dispatch horizon.
		time.Sleep(testLimits().DispatchHorizon()/2 + time.Second)
		s.start()
		s.until("paid out", paidOut)
		s.balance(5)
		if row := s.row(1); row.Dispatch != 2 {
			t.Errorf("charged under dispatch %d", row.Dispatch)
		}
	})
	fixture.OnFakeTime(t, "ARateLetsEverybodyBePaidInTime", func(t *testing.T) {
		p := newProvider(nil)
		s := newStage(t, p)
		s.with(func(cfg *Config) { cfg.Direct, cfg.MaxLen, cfg.Pool.InFlight = true, 100_000, 64 }, dropPublisher{})
		s.createAs(300, func(p *reward.Promotion) { p.RatePerSecond = 5 }) // a minute: several dispatch horizons
		began := time.Now()
		s.start()
		s.until("paid out", paidOut)
		s.balance(300)
		if took := time.Since(began); took > 80*time.Second {
			t.Errorf("300 payouts at 5 per second took %v", took)
		}
	})
	fixture.OnFakeTime(t, "APauseBetweenDispatchAndReadStrandsNothing", func(t *testing.T) {
		p := newProvider(nil)
		s, second, other := two(t, p)
		defer other.Close()
		second.governor.Close()
		s.createAs(30, func(*reward.Promotion) {})
		s.enqueued(s.flow, 30)
		s.move(reward.Running, reward.Paused)
		s.start()
		time.Sleep(2 * testLimits().DispatchHorizon())
		s.move(reward.Paused, reward.Running)
		s.until("paid out", paidOut)
		s.balance(30)
	})
}
