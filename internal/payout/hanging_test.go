package payout

import (
	"context"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// hangingProvider pays every target, apart from those whose calls it never
// answers.
type hangingProvider struct {
	*ledgerProvider
	hangs func(t reward.TargetID) bool
}

func (p *hangingProvider) ChargePoint(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	if !p.hangs(c.TargetID) {
		return p.ledgerProvider.ChargePoint(ctx, c, check)
	}
	if err := check(); err != nil {
		return money.Answer{Class: reward.AnswerNotSent, Err: err}
	}
	time.Sleep(testLimits().MoneyTimeout) // fake time
	return silent
}

func (p *hangingProvider) Lookup(ctx context.Context, id reward.PromotionID, t reward.TargetID) money.LookupResult {
	if !p.hangs(t) {
		return p.ledgerProvider.Lookup(ctx, id, t)
	}
	time.Sleep(testLimits().MoneyTimeout) // fake time
	return money.LookupResult{Answer: silent}
}

// neighbour starts another promotion with n targets, and returns how long it
// takes until all of them are paid.
func (s *stage) neighbour(id reward.PromotionID, n int) time.Duration {
	s.t.Helper()
	began := time.Now()
	fixture.Must(s.store.PromotionCreate(s.t.Context(), reward.Promotion{
		ID: id, Name: "neighbour", Type: reward.Point, Status: reward.Draft, MaxRetries: 5, CreatedAt: began,
	}))(s.t)
	s.saveOf(id, int(id)*1_000_000, n, 0)
	s.moveOf(id, reward.Draft, reward.Running)
	for time.Since(began) < 2*time.Minute && s.of(id).Counts.Payouts[reward.Succeeded] < int64(n) {
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// TestHangingPayees checks that payouts whose calls never get an answer do not
// delay a promotion that starts next to them.
func TestHangingPayees(t *testing.T) {
	t.Parallel()
	const healthy = 300
	for name, tc := range map[string]struct{ targets, hanging int }{
		"Alone":                {0, 0},
		"TwelveOfTwoThousand":  {2000, 12},
		"FortyOfTwoThousand":   {2000, 40},
		"AllOfFiveHundredHang": {500, 500},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			p := &hangingProvider{ledgerProvider: newProvider(nil), hangs: func(id reward.TargetID) bool { return id <= reward.TargetID(tc.hanging) }}
			s := newStage(t, p.ledgerProvider)
			s.with(func(cfg *Config) {
				cfg.Provider, cfg.MaxLen, cfg.Pool.InFlight, cfg.Pool.BatchSize = p, 10_000, 64, 100
			}, dropPublisher{})
			s.createAs(tc.targets, func(*reward.Promotion) {})
			s.start()
			s.until("only hanging ones left", func(v store.PromotionView) bool {
				return v.Counts.Payouts[reward.Succeeded] == int64(tc.targets-tc.hanging)
			})
			for i := range 4 { // at different moments of their retries
				time.Sleep(time.Minute)
				took := s.neighbour(reward.PromotionID(100+i), healthy)
				t.Logf("%d healthy targets took %v", healthy, took)
				if took > 6*time.Second {
					t.Errorf("%d healthy targets next to %d hanging ones took %v", healthy, tc.hanging, took)
				}
			}
		})
	}
}

// TestAResumeDoesNotWaitForHangingCalls checks that a resumed promotion pays within a
// second, although calls from before the pause still hang.
func TestAResumeDoesNotWaitForHangingCalls(t *testing.T) {
	t.Parallel()
	for name, inFlight := range map[string]int{"EveryPlaceOfThePoolHangs": 8, "SomeHang": 64} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			const hanging, n = 16, 600
			p := &hangingProvider{ledgerProvider: newProvider(nil), hangs: func(id reward.TargetID) bool { return id <= hanging }}
			s := newStage(t, p.ledgerProvider)
			s.with(func(cfg *Config) {
				cfg.Provider, cfg.MaxLen, cfg.Pool.InFlight, cfg.Pool.BatchSize = p, 100, inFlight, 100
			}, dropPublisher{})
			s.createAs(n, func(*reward.Promotion) {})
			s.start()
			s.until("under way", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Queued] > 0 })
			time.Sleep(30 * time.Millisecond)
			for range 3 {
				s.move(reward.Running, reward.Paused)
				time.Sleep(300 * time.Millisecond) // fake time: only calls that hang are left
				paid := s.view().Counts.Payouts[reward.Succeeded]
				s.move(reward.Paused, reward.Running)
				began := time.Now()
				s.until("paid again", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Succeeded] > paid })
				took := time.Since(began)
				t.Logf("paid %v after the resume, %d calls in flight", took, s.flow.governor.State().Open)
				if took > time.Second {
					t.Errorf("paid again %v after the resume", took)
				}
			}
			s.until("all others paid", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Succeeded] == n-hanging })
		})
	}
}
