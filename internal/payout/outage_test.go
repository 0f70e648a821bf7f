package payout

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// shortIdempotencyWindow lets a test outwait the window at little cost.
const shortIdempotencyWindow = 3 * time.Minute

func shortWindow(cfg *Config) { cfg.Limits.IdempotencyWindow = shortIdempotencyWindow }

// forgetful is a provider that forgets its keys after shortIdempotencyWindow and then
// charges again.
type forgetful struct {
	script func(call int, age time.Duration) money.Answer
	// away reports whether lookups fail at an age.
	away func(age time.Duration) bool
	born time.Time

	mu        sync.Mutex // protects the fields below
	calls     int
	charges   int
	chargedAt time.Time
}

func (p *forgetful) charge(_ context.Context, _ money.Charge, check money.CheckFunc) money.Answer {
	if err := check(); err != nil {
		return money.Answer{Class: reward.AnswerNotSent, Err: err}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := p.script(p.calls, time.Since(p.born))
	p.calls++
	if answer.Class == reward.AnswerNotSent {
		return answer
	}
	if p.charges == 0 || time.Since(p.chargedAt) > shortIdempotencyWindow {
		p.charges++
		p.chargedAt = time.Now()
	}
	if answer.Class == reward.AnswerPaid {
		answer.TransactionKey = "T"
	}
	return answer
}

func (p *forgetful) ChargePoint(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return p.charge(ctx, c, check)
}

func (p *forgetful) ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return p.charge(ctx, c, check)
}

func (p *forgetful) Lookup(context.Context, reward.PromotionID, reward.TargetID) money.LookupResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.away != nil && p.away(time.Since(p.born)):
		return money.LookupResult{}
	case p.charges > 0:
		return money.LookupResult{Found: true, TransactionKey: "T"}
	}
	return money.LookupResult{NotFound: true}
}

func (p *forgetful) charged() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.charges
}

// chargesOnce pays one target and checks it after a time.
func (p *forgetful) chargesOnce(t *testing.T, after time.Duration) {
	t.Helper()
	s := newStage(t, newProvider(nil))
	s.with(func(cfg *Config) {
		cfg.Provider = p
		shortWindow(cfg)
	}, dropPublisher{})
	s.create(1, 5)
	s.start()
	time.Sleep(after)
	s.until("paid", paidOut)
	if row := s.row(1); p.charged() != 1 || row.State != reward.Succeeded {
		t.Errorf("charged %d times: %+v", p.charged(), row)
	}
}

// with replaces the stage's flow by one with other settings.
func (s *stage) with(change func(cfg *Config), publisher bus.Publisher) {
	cfg := s.flow.cfg
	change(&cfg)
	s.flow.governor.Close()
	s.flow = wire(cfg, publisher)
}

// second returns another instance on the same queue, and on the same database
// through rows.
func (s *stage) second(rows Store, change func(cfg *Config)) *Flow {
	cfg := s.flow.cfg
	cfg.Store, cfg.Pool.Instance = rows, "other"
	change(&cfg)
	return wire(cfg, dropPublisher{})
}

// slowPublisher is a Kafka that does not respond.
type slowPublisher struct{}

func (slowPublisher) Publish(ctx context.Context, _ []bus.Record) error {
	select {
	case <-time.After(30 * time.Second):
	case <-ctx.Done():
	}
	return errors.New("no acknowledgement within 30 s")
}

var theStream = queue.Stream{Type: reward.Point, PromotionID: promotion}

// TestOutages checks that after a long outage no payout is charged twice or
// stuck, and that nothing remains in the queue.
func TestOutages(t *testing.T) {
	t.Parallel()
	fixture.OnFakeTime(t, "AProviderAwayForLongerThanItsWindowChargesOnce", func(t *testing.T) {
		gone := func(age time.Duration) bool { return age < shortIdempotencyWindow+2*time.Minute }
		p := &forgetful{born: time.Now(), away: gone, script: func(call int, age time.Duration) money.Answer {
			switch {
			case call == 0:
				return lost
			case gone(age):
				return money.Answer{Class: reward.AnswerNotSent, Err: errors.New("connection refused")}
			}
			return money.Answer{Class: reward.AnswerPaid}
		}}
		p.chargesOnce(t, shortIdempotencyWindow+3*time.Minute)
	})
	fixture.OnFakeTime(t, "A503ThatPutsTheNextCallBehindTheWindowChargesOnce", func(t *testing.T) {
		p := &forgetful{born: time.Now(), script: func(call int, _ time.Duration) money.Answer {
			if call == 0 {
				return money.Answer{Class: reward.AnswerThrottled, Status: 503, RetryAfter: shortIdempotencyWindow + time.Minute}
			}
			return money.Answer{Class: reward.AnswerPaid}
		}}
		p.chargesOnce(t, shortIdempotencyWindow+2*time.Minute)
	})
	fixture.OnFakeTime(t, "ACancelDoesNotWaitForALongRetryAfter", func(t *testing.T) {
		for _, after := range []time.Duration{10 * time.Second, 6 * time.Hour} {
			s := newStage(t, newProvider(func(reward.TargetID, int) money.Answer {
				return money.Answer{Class: reward.AnswerThrottled, Status: 429, RetryAfter: after}
			}))
			s.create(1, 5)
			s.start()
			time.Sleep(5 * time.Second)
			s.move(reward.Running, reward.PromotionCancelled)
			// A Retry-After is obeyed for at most five minutes, by lookups
			// too.
			time.Sleep(7 * time.Minute)
			v, err := s.store.PromotionGet(t.Context(), promotion)
			if err != nil || v.FinishedAt.IsZero() || v.Counts.Payouts[reward.Cancelled] != 1 {
				t.Errorf("seven minutes after a cancel with Retry-After %v: %+v, %v", after, v, err)
			}
			s.close()
		}
	})
	fixture.OnFakeTime(t, "ARetryAfterOfOnePayeeHoldsNobodyElseUp", func(t *testing.T) {
		later := money.Answer{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 24 * time.Hour}
		s := newStage(t, payingBut(later, func(target reward.TargetID, _ int) bool { return target == 1 }))
		s.with(func(cfg *Config) { cfg.Governor.RatePerSecond = 10 }, dropPublisher{}) // so that most calls come after it
		s.create(51, 5)
		began := time.Now()
		s.start()
		s.until("paid", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Succeeded] == 50 })
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the others were paid after %v", took)
		}
		if row := s.row(1); row.State != reward.Retrying || time.Until(row.DueAt) < 23*time.Hour {
			t.Errorf("the payout that was throttled: %+v", row)
		}
	})
	fixture.OnFakeTime(t, "AThrottledRowIsPaidHoweverOldItIs", func(t *testing.T) {
		p := newProvider(func(_ reward.TargetID, n int) money.Answer {
			switch {
			case n == 0:
				return money.Answer{Class: reward.AnswerFailed, Status: 500}
			case n < 4:
				return money.Answer{Class: reward.AnswerThrottled, Status: 429}
			}
			return money.Answer{Class: reward.AnswerPaid}
		})
		s := newStage(t, p)
		s.with(func(cfg *Config) {
			cfg.Limits.GiveUpAfter = 2 * time.Minute
			shortWindow(cfg)
		}, dropPublisher{})
		s.create(3, 5)
		s.start()
		s.until("waiting to retry", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Retrying] == 3 })
		s.move(reward.Running, reward.Paused)
		time.Sleep(2 * shortIdempotencyWindow) // past the window and past give-up-after
		s.move(reward.Paused, reward.Running)
		s.until("paid", paidOut)
		s.balance(3)
		if row := s.row(1); row.State != reward.Succeeded {
			t.Errorf("row %+v", row)
		}
	})
	fixture.OnFakeTime(t, "AnInstanceWithoutTheDatabaseLetsOthersTakeOver", func(t *testing.T) {
		p := newProvider(func(reward.TargetID, int) money.Answer {
			time.Sleep(200 * time.Millisecond) // fake time
			return money.Answer{Class: reward.AnswerPaid}
		})
		s := newStage(t, p)
		blind := &faultyStore{Store: s.store}
		second := s.second(blind, func(*Config) {})
		s.create(400, 5)
		s.start()
		fixture.OK(t, second.Start(t.Context()))
		defer second.Stop()
		s.until("under way", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Succeeded] > 50 })
		blind.blind.Store(true)
		s.until("paid by the other one", paidOut)
		s.balance(400)
		blind.blind.Store(false)
	})
	fixture.OnFakeTime(t, "KafkaAwayHoldsNoPayoutUp", func(t *testing.T) {
		failed := money.Answer{Class: reward.AnswerFailed, Status: 500}
		s := newStage(t, payingBut(failed, func(target reward.TargetID, n int) bool { return target%10 == 0 && n == 0 }))
		s.with(func(*Config) {}, slowPublisher{})
		s.create(500, 5)
		began := time.Now()
		s.start()
		s.until("paid", paidOut)
		s.balance(500)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
	})
	fixture.OnFakeTime(t, "WhatIsLeftInAFinalStreamIsClearedByTheKeeper", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		var lost atomic.Bool
		lossy := &queuetest.Hooked{Queue: s.queue, Before: func(_ context.Context, call string, _ queue.Stream) error {
			if call == "Ack" && lost.Load() {
				return errFault
			}
			return nil
		}}
		keeper := s.second(s.store, func(cfg *Config) { cfg.Payout = false })
		s.with(func(cfg *Config) { cfg.Queue, cfg.Housekeeping = lossy, false }, dropPublisher{})
		s.create(5, 5)
		lost.Store(true)
		s.start()
		fixture.OK(t, keeper.Start(t.Context()))
		defer keeper.Stop()
		s.until("paid", paidOut)
		s.until("cleared", func(v store.PromotionView) bool { return v.StreamDestroyed })
		lost.Store(false)
		if info, err := s.queue.Info(t.Context(), theStream); err != nil || info.Exists {
			t.Errorf("Info = %+v, %v", info, err)
		}
	})
	fixture.OnFakeTime(t, "AStreamDoesNotComeBackAfterItIsGone", func(t *testing.T) {
		later := money.Answer{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 2 * time.Second}
		s := newStage(t, payingBut(later, func(target reward.TargetID, n int) bool {
			return target == 100 && n < 12 // so that its last dispatch is a dispatch horizon ago
		}))
		blind := &faultyStore{Store: s.store}
		late := s.second(blind, func(cfg *Config) {
			cfg.Housekeeping, cfg.Pool.IdleTimeout = false, 5*time.Minute
		})
		s.create(100, 5)
		s.start()
		s.until("under way", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Succeeded] == 99 })
		fixture.OK(t, late.Start(t.Context()))
		defer late.Stop()
		time.Sleep(25 * time.Second)
		blind.blind.Store(true)
		s.until("destroyed", func(v store.PromotionView) bool { return v.StreamDestroyed })
		time.Sleep(3 * time.Second) // the late one polls
		blind.blind.Store(false)
		time.Sleep(2 * time.Minute)
		if info, err := s.queue.Info(t.Context(), theStream); err != nil || info.Exists {
			t.Errorf("Info = %+v, %v", info, err)
		}
	})
	fixture.OnFakeTime(t, "AStreamThatRedisBringsBackIsDestroyedAgain", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.create(10, 5)
		s.start()
		s.until("the sweeper has destroyed the stream", func(v store.PromotionView) bool {
			return v.Status == reward.Completed && time.Since(v.LastDispatchedAt) > testLimits().DispatchHorizon()+2*time.Second
		})
		// A failover loses the last second of Redis: the acknowledgement and
		// the removal of the stream.
		if n, err := s.queue.Add(t.Context(), queue.AddParams{
			Stream: theStream, MaxLen: 10, Deadline: time.Now().Add(time.Minute),
			Entries: []queue.NewEntry{{TargetID: 1, Dispatch: 1, Message: []byte(`{}`)}},
		}); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		s.until("the row says that the stream is gone", func(v store.PromotionView) bool { return v.StreamDestroyed })
		time.Sleep(time.Minute)
		if info, err := s.queue.Info(t.Context(), theStream); err != nil || info.Exists {
			t.Errorf("Info = %+v, %v", info, err)
		}
	})
	fixture.OnFakeTime(t, "AnAnnouncedPromotionWaitsAtNoCost", func(t *testing.T) {
		tries := &faults{at: -1}
		s := newStage(t, newProvider(nil))
		s.with(func(cfg *Config) { cfg.Store = &faultyStore{Store: s.store, faults: tries} }, dropPublisher{})
		expected := int64(10)
		registration := store.Registration{ID: promotion, Type: reward.Point, Started: true, ExpectedCount: &expected}
		fixture.Must(s.store.PromotionRegister(t.Context(), []store.Registration{registration}, reward.Limits{}, time.Now()))(t)
		s.start()
		time.Sleep(time.Minute)
		if n := tries.steps(); n != 0 {
			t.Errorf("%d writes while it waits", n)
		}
	})
}

// TestSickProvider checks that payouts do not wait for ever for a provider that
// fails at every charge, or charges and never confirms.
func TestSickProvider(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]money.Answer{
		"EveryAnswerIsAnError": {Class: reward.AnswerFailed, Status: 500, Code: "E"},
		"EveryReplyIsLost":     lost,
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			s := newStage(t, newProvider(func(reward.TargetID, int) money.Answer { return answer }))
			s.create(60, 2)
			s.start()
			s.until("paid out", paidOut)
			s.balance(60)
			want := reward.Failed
			if answer == lost {
				want = reward.Succeeded
			}
			if n := s.view().Counts.Payouts[want]; n != 60 {
				t.Errorf("%d of 60 are %s", n, want)
			}
		})
	}
}
