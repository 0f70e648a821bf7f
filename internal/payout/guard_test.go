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
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// createAs creates a promotion with n targets of 100 each and starts it.
func (s *stage) createAs(n int, change func(p *reward.Promotion)) {
	s.t.Helper()
	p := reward.Promotion{ID: promotion, Name: "test", Type: reward.Point, Status: reward.Draft, MaxRetries: 5, CreatedAt: time.Now()}
	change(&p)
	fixture.Must(s.store.PromotionCreate(s.t.Context(), p))(s.t)
	s.save(1, n)
	s.move(reward.Draft, reward.Running)
}

func (s *stage) save(from, n int) {
	s.t.Helper()
	s.saveOf(promotion, from, n, 0)
}

// saveOf saves n targets, of which up to maxLen are dispatched.
func (s *stage) saveOf(id reward.PromotionID, from, n, maxLen int) {
	s.t.Helper()
	for at := 0; at < n; at += store.BatchMax {
		rows := make([]store.NewPayout, min(n-at, store.BatchMax))
		for i := range rows {
			rows[i] = store.NewPayout{PromotionID: id, TargetID: reward.TargetID(from + at + i), UserID: "u", Amount: 100}
		}
		fixture.Must(s.store.PayoutSave(s.t.Context(), store.PayoutSaveParams{Rows: rows, MaxLen: maxLen, Now: time.Now()}))(s.t)
	}
}

func (s *stage) view() store.PromotionView {
	s.t.Helper()
	return s.of(promotion)
}

func paused(v store.PromotionView) bool { return v.Status == reward.Paused }

var refused = money.Answer{Class: reward.AnswerRefused, Code: "NO"}

func TestGuard(t *testing.T) {
	t.Parallel()
	fixture.OnFakeTime(t, "AGoodCanaryIsFollowedByTheOthers", func(t *testing.T) {
		var most atomic.Int64
		p := newProvider(func(target reward.TargetID, _ int) money.Answer {
			most.Store(max(most.Load(), int64(target)))
			if target == 3 {
				return refused
			}
			return money.Answer{Class: reward.AnswerPaid}
		})
		s := newStage(t, p)
		s.createAs(60, func(p *reward.Promotion) { p.Canary = reward.Canary{Targets: 10, MaxFailureRate: 0.1} })
		s.start()
		s.until("the canary is decided", func(v store.PromotionView) bool {
			return v.Counts.Payouts[reward.Succeeded]+v.Counts.Payouts[reward.Failed] == 10
		})
		if n := most.Load(); n != 10 {
			t.Errorf("target %d was charged before the first ten were settled", n)
		}
		s.until("paid out", paidOut)
		s.balance(60)
	})
	fixture.OnFakeTime(t, "ABadCanaryPausesAndAResumePaysTheOthers", func(t *testing.T) {
		var better atomic.Bool
		p := payingBut(refused, func(reward.TargetID, int) bool { return !better.Load() })
		s := newStage(t, p)
		s.createAs(30, func(p *reward.Promotion) {
			p.Canary = reward.Canary{Targets: 5, MaxFailureRate: 0.5}
			p.WebhookURL = "http://localhost/hook"
		})
		s.start()
		v := s.until("paused", paused)
		if p.total() != 5 || !strings.Contains(v.PauseReason, "5 of the first 5 failed") {
			t.Errorf("%d calls, pauseReason %q", p.total(), v.PauseReason)
		}
		told, err := s.store.WebhookClaim(t.Context(), 10, time.Now(), time.Now())
		if err != nil || len(told) != 1 || told[0].Event != store.EventCanary {
			t.Errorf("webhooks %+v, %v", told, err)
		}
		better.Store(true)
		s.move(reward.Paused, reward.Running)
		s.until("paid out", paidOut)
		s.balance(30)
		if n := s.view().Counts.Payouts[reward.Succeeded]; n != 25 {
			t.Errorf("%d paid", n)
		}
	})
	fixture.OnFakeTime(t, "ABudgetIsNeverPassedAndPausesWhenItIsSpent", func(t *testing.T) {
		p := newProvider(func(target reward.TargetID, n int) money.Answer {
			if target <= 10 && n == 0 {
				return money.Answer{Class: reward.AnswerFailed, Code: "E"}
			}
			if target == 11 {
				return refused
			}
			return money.Answer{Class: reward.AnswerPaid}
		})
		s := newStage(t, p)
		s.createAs(60, func(p *reward.Promotion) { p.MaxAmount = 2050 })
		s.start()
		v := s.until("paused", paused)
		if v.Counts.Amounts[reward.Succeeded] != 2000 || !strings.Contains(v.PauseReason, "maxAmount = 2,050") {
			t.Errorf("paid %d, pauseReason %q", v.Counts.Amounts[reward.Succeeded], v.PauseReason)
		}
		// After a resume without more budget it is paused again and pays
		// nothing.
		s.move(reward.Paused, reward.Running)
		v = s.until("paused again", paused)
		if v.Counts.Amounts[reward.Succeeded] != 2000 {
			t.Errorf("paid %d after a resume", v.Counts.Amounts[reward.Succeeded])
		}
	})
	fixture.OnFakeTime(t, "ABudgetTooSmallForItsCanaryPauses", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.createAs(60, func(p *reward.Promotion) { p.MaxAmount, p.Canary.Targets, p.Canary.MaxFailureRate = 250, 5, 0.5 })
		s.start()
		v := s.until("paused", paused)
		if v.Counts.Amounts[reward.Succeeded] != 200 || !strings.Contains(v.PauseReason, "maxAmount = 250") {
			t.Errorf("paid %d, pauseReason %q", v.Counts.Amounts[reward.Succeeded], v.PauseReason)
		}
	})
	fixture.OnFakeTime(t, "WhatFailsMoreOftenThanNotPauses", func(t *testing.T) {
		s := newStage(t, payingBut(refused, func(target reward.TargetID, _ int) bool { return target > 800 }))
		s.createAs(4000, func(*reward.Promotion) {})
		s.start()
		v := s.until("paused", paused)
		failed := v.Counts.Payouts[reward.Failed]
		if failed < 500 || failed > 1500 || !strings.Contains(v.PauseReason, "failed") {
			t.Errorf("%d failed, pauseReason %q", failed, v.PauseReason)
		}
		// A resumed promotion starts with an empty window.
		s.move(reward.Paused, reward.Running)
		v = s.until("paused again", paused)
		if more := v.Counts.Payouts[reward.Failed] - failed; more < 900 {
			t.Errorf("paused after %d further payouts", more)
		}
	})
	fixture.OnFakeTime(t, "FewFailuresPauseNothing", func(t *testing.T) {
		s := newStage(t, payingBut(refused, func(target reward.TargetID, _ int) bool { return target%5 < 2 }))
		s.createAs(failureWindow+failureWindow/2, func(*reward.Promotion) {})
		s.start()
		s.until("paid out", paidOut)
	})
	fixture.OnFakeTime(t, "WhatIsWorthTooMuchWaitsForASecondPerson", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		above := reward.Limits{Default: 10, Own: map[string]reward.Amount{"KRW": 1000}}
		s.with(func(cfg *Config) { cfg.ApprovalAbove = above }, dropPublisher{})
		s.createAs(10, func(p *reward.Promotion) { p.CreatedBy, p.Currency = "ann", "KRW" })
		s.start()
		s.until("paid out", paidOut)
		s.save(100, 1) // 1,100 in total: above the limit
		v := s.until("paused", paused)
		if !strings.Contains(v.PauseReason, "waits for an approval: it is worth 1,100 KRW, above 1,000 KRW (approval.currencies)") {
			t.Errorf("pauseReason %q", v.PauseReason)
		}
	})
	fixture.OnFakeTime(t, "AnApprovalIsAskedForBeforeAScheduledStart", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.with(func(cfg *Config) {
			cfg.ApprovalAbove = reward.Limits{Default: 200}
			cfg.Start = func(context.Context, reward.PromotionID) error { return nil }
		}, dropPublisher{})
		fixture.Must(s.store.WebhookEndpointCreate(t.Context(), store.WebhookEndpoint{ID: 1, Events: []string{"promotion.approval_needed"}, Enabled: true, CreatedAt: time.Now()}))(t)
		fixture.Must(s.store.PromotionCreate(t.Context(), reward.Promotion{
			ID: promotion, Name: "later", Type: reward.Point, Status: reward.Draft, CreatedAt: time.Now(), StartsAt: time.Now().Add(time.Hour),
		}))(t)
		s.start()
		asked := func(want int) {
			t.Helper()
			time.Sleep(2 * askInterval)
			asked := fixture.Must(s.store.WebhookDeliveryList(t.Context(), store.WebhookDeliveryListParams{EndpointID: 1, Limit: 9}))(t)
			if len(asked) != want {
				t.Errorf("asked %d times, want %d", len(asked), want)
			}
		}
		asked(0)
		s.save(1, 3)
		asked(1)
		asked(1)
	})
	fixture.OnFakeTime(t, "AScheduledStartHappensInTime", func(t *testing.T) {
		const wait = 2 * time.Minute
		s := newStage(t, newProvider(nil))
		var started time.Time
		s.with(func(cfg *Config) {
			cfg.Start = func(_ context.Context, id reward.PromotionID) error {
				if id == promotion && started.IsZero() {
					started = time.Now()
					s.move(reward.Draft, reward.Running)
				}
				return nil
			}
		}, dropPublisher{})
		at := time.Now().Add(wait)
		fixture.Must(s.store.PromotionCreate(t.Context(), reward.Promotion{
			ID: promotion, Name: "later", Type: reward.Point, Status: reward.Draft, CreatedAt: time.Now(), StartsAt: at,
		}))(t)
		s.save(1, 3)
		s.start()
		time.Sleep(wait - time.Second)
		if !started.IsZero() {
			t.Fatalf("started %v early", at.Sub(started))
		}
		s.until("paid out", paidOut)
		if late := started.Sub(at); late < 0 || late > 2*time.Second {
			t.Errorf("started %v late", late)
		}
	})
	fixture.OnFakeTime(t, "ACanaryIsNotJudgedByItsFirstTargets", func(t *testing.T) {
		p := payingBut(refused, func(target reward.TargetID, _ int) bool { return target > 1 })
		s := newStage(t, p)
		s.createAs(1, func(p *reward.Promotion) { p.Canary = reward.Canary{Targets: 10, MaxFailureRate: 0.1} })
		s.start()
		time.Sleep(5 * time.Second)
		s.save(2, 500)
		s.until("paused", paused)
		if n := p.total(); n != 10 {
			t.Errorf("a canary of 10 made %d calls", n)
		}
	})
	fixture.OnFakeTime(t, "NothingIsChargedAfterItsEnd", func(t *testing.T) {
		p := newProvider(nil)
		s := newStage(t, p)
		s.createAs(600, func(p *reward.Promotion) { p.EndsAt, p.RatePerSecond = time.Now().Add(10*time.Second), 20 })
		s.start()
		time.Sleep(10*time.Second - time.Nanosecond)
		synctest.Wait()
		calls := p.total()
		time.Sleep(time.Second)
		v := s.view()
		if calls < 100 || v.Status != reward.Paused || v.PausedBy != "" || !strings.HasPrefix(v.PauseReason, "ended at ") {
			t.Errorf("%d calls, then %s by %q: %q", calls, v.Status, v.PausedBy, v.PauseReason)
		}
		time.Sleep(time.Minute)
		if n := p.total(); n != calls {
			t.Errorf("%d calls after its end", n-calls)
		}
		fixture.Must(s.store.PromotionChange(t.Context(), rules.PromotionChange{ID: promotion, EndsAt: new(time.Time)}))(t)
		s.move(reward.Paused, reward.Running)
		s.until("paid out", paidOut)
		s.balance(600)
	})
	fixture.OnFakeTime(t, "WhatADeadHolderMayHavePaidIsSpent", func(t *testing.T) {
		p := newProvider(nil)
		s := newStage(t, p)
		s.createAs(2, func(p *reward.Promotion) { p.MaxAmount = 100 })
		rows := s.dispatched(2)
		if len(rows) != 1 {
			t.Fatalf("dispatched %d", len(rows))
		}
		p.charged[rows[0].TargetID] = 1 // then its consumer crashed
		time.Sleep(25 * time.Second)
		s.start()
		s.until("paused", paused)
		if len(p.charged) != 1 {
			t.Errorf("the budget covers one charge, got %v", p.charged)
		}
		// A cancel looks up the first.
		s.move(reward.Paused, reward.PromotionCancelled)
		s.until("looked up", func(v store.PromotionView) bool {
			return !v.FinishedAt.IsZero() && v.Counts.Payouts[reward.Unknown] == 0
		})
		if row := s.row(rows[0].TargetID); row.State != reward.Succeeded {
			t.Errorf("the charged payout is %+v", row)
		}
	})
	fixture.OnFakeTime(t, "NobodyThereToPayIsNoSpentBudget", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.with(func(cfg *Config) { cfg.Payout = false }, dropPublisher{})
		s.createAs(10, func(p *reward.Promotion) { p.MaxAmount = 1_000_000 })
		s.start()
		time.Sleep(time.Minute)
		if v := s.view(); v.Status != reward.Running {
			t.Errorf("%s, %q", v.Status, v.PauseReason)
		}
	})
}

// sickLookups is a provider whose lookups are inconclusive.
type sickLookups struct {
	*ledgerProvider
	sick   *atomic.Bool
	answer money.Answer
}

func (p sickLookups) Lookup(ctx context.Context, id reward.PromotionID, t reward.TargetID) money.LookupResult {
	if p.sick.Load() {
		return money.LookupResult{Answer: p.answer}
	}
	return p.ledgerProvider.Lookup(ctx, id, t)
}

// TestRestoreMark checks that after a restore each payout is looked up before
// it is charged, and that failed lookups settle nothing.
func TestRestoreMark(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]money.Answer{
		"WrongKey": {Class: reward.AnswerMisconfigured, Status: 401, Code: "UNAUTHORIZED"},
		"Silent":   silent,
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			p := newProvider(nil)
			p.charged[7] = 1 // by a call that the backup does not contain
			s := newStage(t, p)
			var sick atomic.Bool
			sick.Store(true)
			s.with(func(cfg *Config) { cfg.Provider = sickLookups{p, &sick, answer} }, dropPublisher{})
			fixture.OK(t, s.store.RestoreMarkSet(t.Context(), time.Now()))
			s.createAs(60, func(*reward.Promotion) {})
			s.start()
			time.Sleep(time.Minute)
			if p.total() > 0 {
				t.Errorf("%d calls before any look-up", p.total())
			}
			sick.Store(false)
			if v := s.view(); v.Status == reward.Paused {
				s.move(reward.Paused, reward.Running)
			} else if answer != silent {
				t.Errorf("%s with a wrong key", v.Status)
			}
			s.until("paid out", paidOut)
			s.balance(60)
			if n := s.view().Counts.Payouts[reward.Succeeded]; n != 60 || p.callsOf(7) != 0 {
				t.Errorf("%d succeeded, the charged one was called %d times", n, p.callsOf(7))
			}
		})
	}
}

// stubbornRows refuse the first pauses of a promotion.
type stubbornRows struct {
	*countedRows
	refusals int
	moves    []store.PromotionAwaitApprovalParams
}

func (r *stubbornRows) PromotionAwaitApproval(_ context.Context, p store.PromotionAwaitApprovalParams) (bool, error) {
	r.moves = append(r.moves, p)
	if len(r.moves) <= r.refusals {
		return false, errors.New("the database is away")
	}
	r.set(p.ID, reward.Paused)
	return true, nil
}

// TestGuardRepeatsAFailedCheck, although the promotion does not change, and checks
// an unchanged promotion only once otherwise.
func TestGuardRepeatsAFailedCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newCountedRows(3, 0)
		rows.mu.Lock()
		v := rows.rows[2]
		v.Counts.Payouts[reward.Ready], v.Counts.Amounts[reward.Ready] = 1, 1000
		rows.rows[2] = v
		rows.mu.Unlock()
		moving := &stubbornRows{countedRows: rows, refusals: 2}
		shared := newShared(Config{Store: moving, ApprovalAbove: reward.Limits{Default: 999}}, nil)
		g := newGuard(shared)
		stop := inBackground(t, shared.cache.run, g.run)
		time.Sleep(10 * time.Second)
		stop()
		if len(moving.moves) != 3 {
			t.Fatalf("%d moves were tried, want two that fail and one more", len(moving.moves))
		}
		for _, m := range moving.moves {
			if m.ID != 2 {
				t.Errorf("promotion %d waits for an approval", m.ID)
			}
		}
	})
}
