package payout

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// unnamed is the response of a provider that answers 200 and an empty object.
var unnamed = money.Answer{Class: reward.AnswerUnknown, Status: 200, Code: money.CodeNoKey, Message: "{}"}

// TestAProviderThatNamesNoTransactionPausesThePromotion checks that a provider
// whose responses have the wrong shape is noticed, fails no payout, and pays all of
// them once it is corrected.
func TestAProviderThatNamesNoTransactionPausesThePromotion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const payouts = 60
		var correct atomic.Bool
		s := newStage(t, payingBut(unnamed, func(reward.TargetID, int) bool { return !correct.Load() }))
		var lines fixture.Buffer
		log := fixture.Must(obs.NewLog(&lines, "warn", "text"))(t)
		s.with(func(cfg *Config) { cfg.Log = log }, dropPublisher{})
		s.create(payouts, 0)
		s.start()
		v := s.until("paused", func(v store.PromotionView) bool { return v.Status == reward.Paused })
		for _, part := range []string{"transactionKey", "200", "resume"} {
			if !strings.Contains(v.PauseReason, part) {
				t.Errorf("the reason %q does not say %q", v.PauseReason, part)
			}
		}
		time.Sleep(time.Minute)
		v = s.view()
		if v.Status != reward.Paused || v.Counts.Payouts[reward.Failed] > 0 || v.Counts.Attempts > 0 {
			t.Errorf("status %s, counts %+v", v.Status, v.Counts)
		}
		if n := strings.Count(lines.String(), "promotion paused"); n != 1 {
			t.Errorf("the log has %d lines about the pause", n)
		}
		s.move(reward.Paused, reward.Running) // too early: nothing was corrected
		s.until("paused again", func(v store.PromotionView) bool { return v.Status == reward.Paused })
		correct.Store(true)
		time.Sleep(time.Minute)
		s.move(reward.Paused, reward.Running)
		s.until("paid", paidOut)
		s.balance(payouts)
		if v := s.view(); v.Counts.Payouts[reward.Succeeded] != payouts {
			t.Errorf("counts %+v", v.Counts)
		}
	})
}

// TestAProviderThatNamesTransactionsLaterIsNotPaused checks that a provider whose
// lookups name the transactions works, although its charges do not.
func TestAProviderThatNamesTransactionsLaterIsNotPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const payouts = 60
		p := newProvider(func(reward.TargetID, int) money.Answer { return unnamed })
		p.confirms = true
		s := newStage(t, p)
		s.create(payouts, 0)
		s.start()
		s.until("paid", func(v store.PromotionView) bool {
			if v.Status == reward.Paused {
				t.Fatalf("paused: %s", v.PauseReason)
			}
			return paidOut(v)
		})
	})
}

// TestAResponseAboutOnePayeePausesNothingWhileOthersArePaid checks a provider that answers
// for some payees what wrong settings would also get. It also checks settings that are
// wrong for all.
func TestAResponseAboutOnePayeePausesNothingWhileOthersArePaid(t *testing.T) {
	t.Parallel()
	about := money.Answer{Class: reward.AnswerMisconfigured, Status: 404, Code: "USER_NOT_FOUND", Message: "no such user", OnePayee: true}
	fixture.OnFakeTime(t, "One", func(t *testing.T) {
		const payouts, wrong = 201, 5
		s := newStage(t, payingBut(about, func(target reward.TargetID, _ int) bool { return target == wrong }))
		s.with(func(cfg *Config) { cfg.Governor.RatePerSecond = 20 }, dropPublisher{})
		s.create(payouts, 0)
		s.start()
		for range 2 {
			v := s.until("paused", func(v store.PromotionView) bool { return v.Status == reward.Paused })
			if n := v.Counts.Payouts[reward.Succeeded]; n != payouts-1 {
				t.Fatalf("paused after %d were paid: %s", n, v.PauseReason)
			}
			for _, part := range []string{"404", "USER_NOT_FOUND", "target 5", "money.refusal-codes", "resume"} {
				if !strings.Contains(v.PauseReason, part) {
					t.Errorf("the reason %q does not say %q", v.PauseReason, part)
				}
			}
			if v.Counts.Attempts != payouts-1 || v.Counts.Payouts[reward.Failed] > 0 {
				t.Errorf("counts %+v", v.Counts)
			}
			time.Sleep(2 * time.Second)
			s.move(reward.Paused, reward.Running)
		}
	})
	fixture.OnFakeTime(t, "All", func(t *testing.T) {
		const payouts = 500
		s := newStage(t, newProvider(func(reward.TargetID, int) money.Answer { return about }))
		s.create(payouts, 0)
		s.start()
		v := s.until("paused", func(v store.PromotionView) bool { return v.Status == reward.Paused })
		if !strings.Contains(v.PauseReason, "others in a row") || v.Counts.Attempts > 0 || v.Counts.Payouts[reward.Failed] > 0 {
			t.Errorf("%q, counts %+v", v.PauseReason, v.Counts)
		}
		if n := s.provider.total(); n > 100 { // payeeErrorsMax, and those in flight
			t.Errorf("%d calls", n)
		}
	})
	fixture.OnFakeTime(t, "AboutTheSettings", func(t *testing.T) {
		denied := money.Answer{Class: reward.AnswerMisconfigured, Status: 401, Code: "UNAUTHORIZED"}
		s := newStage(t, newProvider(func(reward.TargetID, int) money.Answer { return denied }))
		s.create(1, 0)
		s.start()
		v := s.until("paused", func(v store.PromotionView) bool { return v.Status == reward.Paused })
		if !strings.Contains(v.PauseReason, "401 UNAUTHORIZED to target 1: check money.url") || s.provider.callsOf(1) != 1 {
			t.Errorf("%q after %d calls", v.PauseReason, s.provider.callsOf(1))
		}
	})
}

// TestALookupThatNamesNoTransactionPausesToo checks payouts that are looked up
// before they are charged, at a provider that answers lookups with the wrong shape.
func TestALookupThatNamesNoTransactionPausesToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		var sick atomic.Bool
		sick.Store(true)
		s.with(func(cfg *Config) {
			cfg.Provider = sickLookups{s.provider, &sick, unnamed}
			cfg.Limits.IdempotencyWindow = cfg.Limits.SettleAfter - time.Second // every key may be forgotten
		}, dropPublisher{})
		s.create(30, 0)
		s.start()
		v := s.until("paused", func(v store.PromotionView) bool { return v.Status == reward.Paused })
		if !strings.Contains(v.PauseReason, "transactionKey") || s.provider.callsOf(1) > 0 {
			t.Errorf("%q, %d charges", v.PauseReason, s.provider.callsOf(1))
		}
	})
}
