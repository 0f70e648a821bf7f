package payout

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

const promotion reward.PromotionID = 42

// ledgerProvider charges each target once and responds as its script says.
type ledgerProvider struct {
	mu      sync.Mutex
	charged map[reward.TargetID]int
	calls   map[reward.TargetID]int
	paidIn  string // currency of the latest charge
	// script returns the response to call n (from 0) of a target; nil means
	// paid.
	script func(t reward.TargetID, n int) money.Answer
	// away makes lookups fail. confirms makes them confirm every payout.
	away, confirms bool
}

func newProvider(script func(reward.TargetID, int) money.Answer) *ledgerProvider {
	return &ledgerProvider{charged: make(map[reward.TargetID]int), calls: make(map[reward.TargetID]int), script: script}
}

// payingBut returns a provider that pays every charge, but gives an answer to those for
// which when returns true.
func payingBut(answer money.Answer, when func(t reward.TargetID, n int) bool) *ledgerProvider {
	return newProvider(func(t reward.TargetID, n int) money.Answer {
		if when(t, n) {
			return answer
		}
		return money.Answer{Class: reward.AnswerPaid}
	})
}

// lost is the lost response of a provider that charged.
var lost = money.Answer{Class: reward.AnswerUnknown, Code: "RESET"}

func (p *ledgerProvider) charge(_ context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	if err := check(); err != nil {
		return money.Answer{Class: reward.AnswerNotSent, Err: err}
	}
	p.mu.Lock()
	n := p.calls[c.TargetID]
	p.calls[c.TargetID]++
	p.paidIn = c.Currency
	p.mu.Unlock()
	answer := money.Answer{Class: reward.AnswerPaid}
	if p.script != nil {
		answer = p.script(c.TargetID, n)
	}
	time.Sleep(20 * time.Millisecond) // fake time
	if answer.Class == reward.AnswerPaid || answer == lost {
		p.mu.Lock()
		p.charged[c.TargetID] = 1
		p.mu.Unlock()
	}
	if answer.Class == reward.AnswerPaid {
		answer.TransactionKey = "T-" + c.TargetID.String()
	}
	return answer
}

func (p *ledgerProvider) ChargePoint(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return p.charge(ctx, c, check)
}

func (p *ledgerProvider) ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return p.charge(ctx, c, check)
}

func (p *ledgerProvider) Lookup(_ context.Context, _ reward.PromotionID, t reward.TargetID) money.LookupResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.away:
		return money.LookupResult{}
	case p.charged[t] > 0 || p.confirms:
		return money.LookupResult{Found: true, TransactionKey: "T-" + t.String()}
	}
	return money.LookupResult{NotFound: true}
}

func (p *ledgerProvider) callsOf(t reward.TargetID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[t]
}

// dropPublisher drops every record: the rows are the source of truth.
type dropPublisher struct{}

func (dropPublisher) Publish(context.Context, []bus.Record) error { return nil }

// stage is a flow without Kafka on fake time.
type stage struct {
	t        *testing.T
	store    *rows.Tables
	queue    queue.Queue
	provider *ledgerProvider
	flow     *Flow
}

func testLimits() Limits {
	return Limits{
		MoneyTimeout: 5 * time.Second, Lease: 15 * time.Second, SettleAfter: time.Minute,
		IdempotencyWindow: 30 * time.Minute, GiveUpAfter: 24 * time.Hour,
	}
}

// newStage opens a stage in a synctest bubble, and closes it at its end.
func newStage(t *testing.T, p *ledgerProvider) *stage {
	t.Helper()
	rows := storetest.OpenFile(t, filepath.Join(t.TempDir(), "rows.db"), sqlite.Open)
	s := &stage{t: t, store: rows, queue: queue.NewMemory(), provider: p}
	s.flow = wire(Config{
		Store: rows, Queue: s.queue, Provider: p,
		Pool: pool.Config{
			Changed: func() {}, Instance: "test", MinConsumers: 1, MaxConsumers: 4, InFlight: 8, BatchSize: 4,
			PollInterval: 100 * time.Millisecond, IdleTimeout: 30 * time.Second, Lease: 15 * time.Second, StopTimeout: 5 * time.Second,
		},
		MaxLen: 20, Limits: testLimits(), Payout: true, Housekeeping: true,
	}, dropPublisher{})
	t.Cleanup(s.close)
	return s
}

// create creates a promotion with n targets of 100 each and starts it.
func (s *stage) create(n, maxRetries int) {
	s.t.Helper()
	s.createAs(n, func(p *reward.Promotion) { p.MaxRetries = maxRetries })
}

// dispatched dispatches up to n READY payouts, as an instance that crashes then.
func (s *stage) dispatched(n int) []reward.Payout {
	s.t.Helper()
	rows, err := s.store.PayoutDispatch(s.t.Context(), store.PayoutDispatchParams{
		PromotionID: promotion, From: reward.Ready, Limit: n, MaxLen: 1000, Now: time.Now(),
	})
	if err != nil || len(rows) == 0 {
		s.t.Fatalf("dispatched %d, %v", len(rows), err)
	}
	return rows
}

// enqueued dispatches n payouts, and adds them to the queue of a flow.
func (s *stage) enqueued(f *Flow, n int) []reward.Payout {
	s.t.Helper()
	rows := s.dispatched(n)
	if added := f.producer.Enqueue(s.t.Context(), reward.Point, rows); len(rows) != n || added != n {
		s.t.Fatalf("dispatched %d, and added %d", len(rows), added)
	}
	return rows
}

func (s *stage) move(from, to reward.PromotionStatus) {
	s.t.Helper()
	s.moveOf(promotion, from, to)
}

func (s *stage) moveOf(id reward.PromotionID, from, to reward.PromotionStatus) {
	s.t.Helper()
	fixture.Must(s.store.PromotionMove(s.t.Context(), store.PromotionMoveParams{
		ID: id, From: []reward.PromotionStatus{from}, To: to, Now: time.Now(),
	}))(s.t)
	s.flow.cache.Hint()
}

func (s *stage) start() {
	s.t.Helper()
	fixture.OK(s.t, s.flow.Start(s.t.Context()))
}

func (s *stage) close() {
	s.flow.Stop()
	s.queue.Close()
	s.store.Close()
}

func (s *stage) row(t reward.TargetID) reward.Payout {
	s.t.Helper()
	row, _, err := s.store.PayoutGet(s.t.Context(), store.PayoutID{PromotionID: promotion, TargetID: t})
	if err != nil {
		s.t.Fatal(err)
	}
	return row
}

// until lets fake time pass until the condition holds. It looks often at first, and then
// twice per second, because each look is a statement of SQLite.
func (s *stage) until(what string, holds func(v store.PromotionView) bool) store.PromotionView {
	s.t.Helper()
	began := time.Now()
	for time.Since(began) < 10*time.Minute {
		if v := s.view(); holds(v) {
			return v
		}
		pause := 500 * time.Millisecond
		if time.Since(began) < 2*time.Second {
			pause = 50 * time.Millisecond
		}
		time.Sleep(pause)
	}
	s.t.Fatalf("not %s within ten minutes: %+v", what, s.view())
	return store.PromotionView{}
}

func paidOut(v store.PromotionView) bool {
	return v.Status == reward.Completed && v.Counts.Payouts[reward.Unknown] == 0
}

// balance checks the rows against the provider's ledger.
func (s *stage) balance(n int) {
	s.t.Helper()
	rows, err := s.store.PayoutList(s.t.Context(), store.PayoutListParams{PromotionID: promotion, Limit: store.BatchMax})
	if err != nil || len(rows) != n {
		s.t.Fatalf("%d rows, want %d, %v", len(rows), n, err)
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	for _, r := range rows {
		if !r.State.Final() || (r.State == reward.Succeeded) != (s.provider.charged[r.TargetID] == 1) {
			s.t.Errorf("target %d is %s, charged %d times: %+v", r.TargetID, r.State, s.provider.charged[r.TargetID], r)
		}
	}
	recount, err := s.store.SummaryRecount(s.t.Context(), promotion)
	if kept := s.view().Counts; err != nil || recount != kept {
		s.t.Errorf("counts %+v, rows %+v, %v", kept, recount, err)
	}
}

func TestFlow(t *testing.T) {
	t.Parallel()
	fixture.OnFakeTime(t, "PaysAndCompletesAndLeavesNoStream", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.create(100, 5)
		s.start()
		s.until("paid", paidOut)
		s.balance(100)
		s.until("destroyed", func(v store.PromotionView) bool { return v.StreamDestroyed })
		if info, err := s.queue.Info(t.Context(), theStream); err != nil || info.Exists {
			t.Errorf("Info = %+v, %v", info, err)
		}
	})
	fixture.OnFakeTime(t, "ChargesInTheCurrencyOfThePromotion", func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.createAs(2, func(p *reward.Promotion) { p.Currency = "BHD" })
		s.start()
		s.until("paid", paidOut)
		if s.provider.paidIn != "BHD" {
			t.Errorf("paid in %q", s.provider.paidIn)
		}
	})
	fixture.OnFakeTime(t, "AClaimedEntryIsNeverCalled", func(t *testing.T) {
		p := newProvider(nil)
		s := newStage(t, p)
		s.create(5, 5)
		// A consumer reads the entries of the first dispatch and crashes.
		s.enqueued(s.flow, 5)
		if got, err := s.queue.Read(t.Context(), theStream, []queue.ReadParams{{Consumer: "dead-1-0", Count: 10}}); err != nil || len(got) != 5 {
			t.Fatalf("Read = %v, %v", got, err)
		}
		s.start()
		s.until("paid", paidOut)
		s.balance(5)
		if row := s.row(1); row.Dispatch != 2 || !row.MaybeCalled || s.provider.callsOf(1) != 1 {
			t.Errorf("row %+v after %d calls", row, s.provider.callsOf(1))
		}
	})
	fixture.OnFakeTime(t, "ACancelLooksUpWhatMayHaveBeenCalled", func(t *testing.T) {
		p := newProvider(func(target reward.TargetID, _ int) money.Answer {
			if target%2 == 0 {
				return lost
			}
			return money.Answer{Class: reward.AnswerFailed, Status: 500}
		})
		p.away = true // so that lookups settle nothing yet
		s := newStage(t, p)
		s.create(10, 5)
		s.start()
		s.until("all waiting", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Retrying] == 10 })
		s.move(reward.Running, reward.PromotionCancelled)
		s.until("looked up", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Unknown] == 10 })
		p.mu.Lock()
		p.away = false
		p.mu.Unlock()
		v := s.until("final", func(v store.PromotionView) bool { return !v.FinishedAt.IsZero() })
		if v.Counts.Payouts[reward.Succeeded] != 5 || v.Counts.Payouts[reward.Cancelled] != 5 {
			t.Errorf("counts %+v", v.Counts)
		}
	})
}

func (p *ledgerProvider) total() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range p.calls {
		n += c
	}
	return n
}

// TestFlowSurvivesAFaultAtEveryStep fails the n-th call to the database or the
// queue, for n = 1, 2, 3 …, once before doing it and once after, when the
// caller cannot know. It ends with the first run without a fault. The books of
// each run must balance. With -short, it fails every fifth call.
func TestFlowSurvivesAFaultAtEveryStep(t *testing.T) {
	t.Parallel()
	const targets = 12
	stride := 1
	if testing.Short() {
		stride = 5
	}
	for _, after := range []bool{false, true} {
		t.Run(map[bool]string{false: "Undone", true: "DoneButUnknown"}[after], func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at += stride {
				faults := &faults{at: at, after: after}
				synctest.Test(t, func(t *testing.T) {
					p := newProvider(func(target reward.TargetID, n int) money.Answer {
						switch {
						case target%4 == 0 && n == 0:
							return lost
						case target%4 == 1 && n == 0:
							return money.Answer{Class: reward.AnswerFailed, Status: 500}
						case target%4 == 2:
							return money.Answer{Class: reward.AnswerRefused, Status: 422, Code: "NO"}
						}
						return money.Answer{Class: reward.AnswerPaid}
					})
					s := newStage(t, p)
					s.with(func(cfg *Config) {
						cfg.Store, cfg.Queue = &faultyStore{Store: s.store, faults: faults}, &faultyQueue{Queue: s.queue, faults: faults}
					}, dropPublisher{})
					s.create(targets, 5)
					s.start()
					s.until("paid", paidOut)
					s.balance(targets)
				})
				if t.Failed() {
					t.Fatalf("with a fault at step %d (%s)", at, faults.name())
				}
				if faults.name() == "" || at > 400-stride {
					t.Logf("%d steps", at-1)
					return
				}
			}
		})
	}
}

// TestStopWithTheDatabaseAway checks that a stop ends in time although the
// outcomes cannot be written, and that the next start finishes the payouts.
func TestStopWithTheDatabaseAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newProvider(nil)
		s := newStage(t, p)
		away := &faultyStore{Store: s.store}
		s.with(func(cfg *Config) { cfg.Store = away }, dropPublisher{})
		s.create(50, 5)
		away.away.Store(true) // PayoutFinish fails from now on
		s.start()
		for p.total() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second)
		began := time.Now()
		s.flow.Stop()
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("the stop took %v", took)
		}
		if p.total() == 0 || s.row(1).State == reward.Succeeded {
			t.Errorf("%d calls, row %+v", p.total(), s.row(1))
		}
		s.queue.Close()
		// The next process uses the same rows and its own queue.
		next := &stage{t: t, store: s.store, queue: queue.NewMemory(), provider: p}
		cfg := s.flow.cfg
		cfg.Store, cfg.Queue, cfg.QueueIsLocal = s.store, next.queue, true
		next.flow = wire(cfg, dropPublisher{})
		defer next.close()
		next.start()
		next.until("paid", paidOut)
		next.balance(50)
	})
}
