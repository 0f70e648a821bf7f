package books

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

func TestMain(m *testing.M) { fixture.Main(m) }

const promotion reward.PromotionID = 42

// chargeList is a provider's list of charges, in pages of ten.
type chargeList struct {
	mu      sync.Mutex // protects the fields below
	charges []money.ListedCharge
	late    []money.ListedCharge // appear on the first page, wherever they belong
	err     error
	asked   []string // cursors
}

func (l *chargeList) Charges(_ context.Context, _ reward.PromotionID, cursor string) (money.ChargesPage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, cursor)
	if l.err != nil {
		return money.ChargesPage{}, l.err
	}
	from, _ := strconv.Atoi(cursor)
	if from > len(l.charges) {
		return money.ChargesPage{}, &money.ChargesError{Answer: money.Answer{Class: reward.AnswerRefused, Status: 400, Code: "BAD_CURSOR"}}
	}
	rest := l.charges[from:]
	if from == 0 && len(rest) > 10 {
		first := append(slices.Clone(rest[:10]), l.late...)
		return money.ChargesPage{Charges: first, NextCursor: "10"}, nil
	}
	if len(rest) <= 10 {
		return money.ChargesPage{Charges: rest}, nil
	}
	return money.ChargesPage{Charges: rest[:10], NextCursor: strconv.Itoa(from + 10)}, nil
}

// add charges targets of the promotion, a hundred each.
func (l *chargeList) add(targets ...int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range targets {
		l.charges = append(l.charges, money.ListedCharge{PromotionID: promotion, TargetID: reward.TargetID(t), Amount: 100})
	}
}

func (l *chargeList) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *chargeList) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked)
}

// comparing is a store that counts its comparisons and delays each of them.
type comparing struct {
	*rows.Tables
	takes time.Duration

	mu sync.Mutex // protects n
	n  int
}

func (s *comparing) SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (store.Comparison, error) {
	s.mu.Lock()
	s.n++
	s.mu.Unlock()
	time.Sleep(s.takes)
	return s.Tables.SummaryCompare(ctx, id, repair)
}

func (s *comparing) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// ledger is a promotion whose rows nothing else changes, with the provider's
// list and a reconciler on fake time.
type ledger struct {
	t       *testing.T
	path    string
	rows    *comparing
	queue   queue.Queue
	list    *chargeList
	metrics *obs.Metrics
	log     fixture.Buffer
	rec     *Reconciler
	began   time.Time

	mu      sync.Mutex // protects what follows
	views   map[reward.PromotionID]*store.PromotionView
	viewsAt time.Time
}

// activeViews returns the active promotions as they were at most viewsEvery ago, like the
// flow.
func (l *ledger) activeViews() map[reward.PromotionID]*store.PromotionView {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.viewsAt) < viewsEvery {
		return l.views
	}
	list, err := l.rows.PromotionActive(l.t.Context())
	if err != nil {
		return l.views // the test has ended
	}
	l.views, l.viewsAt = make(map[reward.PromotionID]*store.PromotionView, len(list)), time.Now()
	for i := range list {
		l.views[list[i].ID] = &list[i]
	}
	return l.views
}

const (
	testInterval = time.Minute
	testHorizon  = 20 * time.Second
	viewsEvery   = 5 * time.Second // suits long tests
)

// newLedger creates a RUNNING promotion with n payouts of 100. The first paid
// ones are SUCCEEDED and on the provider's list, the others are QUEUED.
func newLedger(t *testing.T, n, paid int) *ledger {
	t.Helper()
	l := &ledger{t: t, path: filepath.Join(t.TempDir(), "rows.db"), list: &chargeList{}, metrics: obs.NewMetrics(), began: time.Now()}
	rows := storetest.OpenFile(t, l.path, sqlite.Open)
	l.rows, l.queue = &comparing{Tables: rows}, queue.NewMemory()
	fixture.Must(rows.PromotionCreate(t.Context(), reward.Promotion{
		ID: promotion, Name: "test", Type: reward.Point, Status: reward.Draft, CreatedAt: time.Now(), WebhookURL: "https://example.com/hook",
	}))(t)
	l.move(reward.Draft, reward.Running)
	l.save(1, n)
	for i := 1; i <= paid; i++ {
		l.pay(i)
	}
	log := fixture.Must(obs.NewLog(&l.log, "info", "text"))(t)
	l.rec = l.reconciler(nil, log)
	t.Cleanup(func() {
		l.rec.Stop()
		l.queue.Close()
		l.rows.Close()
	})
	return l
}

func (l *ledger) reconciler(owns func(reward.PromotionID) bool, log obs.Log) *Reconciler {
	return New(Config{
		Store: l.rows, Queue: l.queue, Charges: l.list, Views: l.activeViews, Owns: owns,
		Interval: testInterval, DispatchHorizon: testHorizon, Hint: func(reward.PromotionID) {}, Metrics: l.metrics, Log: log,
	})
}

func (l *ledger) start() { l.rec.Start(l.t.Context()) }

// save adds QUEUED payouts from one target to another.
func (l *ledger) save(from, to int) {
	l.t.Helper()
	var rows []store.NewPayout
	for i := from; i <= to; i++ {
		rows = append(rows, store.NewPayout{PromotionID: promotion, TargetID: reward.TargetID(i), UserID: "u", Amount: 100})
	}
	fixture.Must(l.rows.PayoutSave(l.t.Context(), store.PayoutSaveParams{Rows: rows, MaxLen: 1000, Now: time.Now()}))(l.t)
}

// finish ends the first dispatch of a target.
func (l *ledger) finish(target int, kind rules.OutcomeKind) {
	l.t.Helper()
	l.finishAs(target, kind, fmt.Sprint("T-", target))
}

func (l *ledger) finishAs(target int, kind rules.OutcomeKind, key string) {
	l.t.Helper()
	fixture.Must(l.rows.PayoutFinish(l.t.Context(), store.PayoutFinishParams{Outcomes: []rules.Outcome{{
		Ref: reward.Ref{PromotionID: promotion, TargetID: reward.TargetID(target), Dispatch: 1}, Kind: kind, TransactionKey: key, Code: "NO",
	}}, Lease: time.Second, Now: time.Now()}))(l.t)
}

// pay charges a target and records that.
func (l *ledger) pay(target int) {
	l.t.Helper()
	l.list.add(target)
	l.finish(target, rules.OutcomePaid)
}

func (l *ledger) move(from, to reward.PromotionStatus) {
	l.t.Helper()
	fixture.Must(l.rows.PromotionMove(l.t.Context(), store.PromotionMoveParams{ID: promotion, From: []reward.PromotionStatus{from}, To: to, Now: time.Now()}))(l.t)
}

func (l *ledger) view() store.PromotionView {
	l.t.Helper()
	return fixture.Must(l.rows.PromotionGet(l.t.Context(), promotion))(l.t)
}

// end completes the promotion, and says that its stream is destroyed.
func (l *ledger) end() {
	l.t.Helper()
	if done, err := l.rows.PromotionComplete(l.t.Context(), promotion, time.Minute, time.Now()); err != nil || !done {
		l.t.Fatal(done, err)
	}
	if gone, err := l.rows.PromotionStreamDestroyed(l.t.Context(), promotion, l.view().LastDispatchedAt); err != nil || !gone {
		l.t.Fatal(gone, err)
	}
}

// logged counts what the log says.
func (l *ledger) logged(what string) int { return strings.Count(l.log.String(), what) }

// shown returns the value of a metric, or "" if it has none.
func (l *ledger) shown(name string) string {
	w := httptest.NewRecorder()
	l.metrics.Handler().ServeHTTP(w, httptest.NewRequestWithContext(l.t.Context(), "GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	return ""
}

const (
	brokenMetric   = `largesse_balance_broken{promotion_id="42"}`
	breachesMetric = "largesse_balance_breaches_total"
)

// breach checks that there is one webhook, about a breach, and returns the report that the
// reason of the pause names.
func (l *ledger) breach(why string) store.ReconciliationReport {
	l.t.Helper()
	hooks, err := l.rows.WebhookClaim(l.t.Context(), 10, time.Now().Add(time.Minute), time.Now())
	if err != nil || len(hooks) != 1 || hooks[0].Event != store.EventBreach {
		l.t.Errorf("webhooks %+v, %v", hooks, err)
	}
	var id int64
	if _, err := fmt.Sscanf(why[strings.Index(why, "(reconciliation"):], "(reconciliation %d)", &id); err != nil {
		l.t.Fatalf("%q: %v", why, err)
	}
	return l.report(id)
}

// report returns a stored report.
func (l *ledger) report(id int64) (report store.ReconciliationReport) {
	l.t.Helper()
	stored := fixture.Must(l.rows.ReconciliationGet(l.t.Context(), id))(l.t)
	fixture.OK(l.t, json.Unmarshal(stored.Report, &report))
	return report
}

// within lets fake time pass until the condition holds, and fails after d.
func (l *ledger) within(d time.Duration, what string, holds func() bool) {
	l.t.Helper()
	for began := time.Now(); !holds(); time.Sleep(500 * time.Millisecond) {
		if time.Since(began) > d {
			l.t.Fatalf("not %s within %v: %+v", what, d, l.view())
		}
	}
}

func (l *ledger) paused() bool { return l.view().Status == reward.Paused }

// pausedWithin is the longest time until a promotion is paused for a breach:
// the interval, the time until it is confirmed, and the rounds around them.
const pausedWithin = testInterval + confirmAfter + 3*roundInterval

// healthy fails if anything is found within d.
func (l *ledger) healthy(d time.Duration) {
	l.t.Helper()
	time.Sleep(d)
	if v := l.view(); v.Status != reward.Running || l.shown(breachesMetric) != "0" || l.shown(brokenMetric) != "" {
		l.t.Fatalf("%s breaches, status %s: %s", l.shown(breachesMetric), v.Status, v.PauseReason)
	}
}

// says checks that a reason has all parts.
func (l *ledger) says(why string, parts ...string) {
	l.t.Helper()
	for _, part := range parts {
		if !strings.Contains(why, part) {
			l.t.Errorf("%q does not say %q", why, part)
		}
	}
}

// breached checks that the promotion was paused for a breach, and returns why.
func (l *ledger) breached() string {
	l.t.Helper()
	v := l.view()
	if v.Status != reward.Paused || l.shown(breachesMetric) != "1" || l.shown(brokenMetric) != "1" {
		l.t.Fatalf("status %s, %s breaches, broken %q: %s", v.Status, l.shown(breachesMetric), l.shown(brokenMetric), v.PauseReason)
	}
	if l.logged("level=ERROR") != 1 {
		l.t.Errorf("the log says: %s", l.log.String())
	}
	return v.PauseReason
}

func TestReconciler(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "BooksThatBalanceAreLeftAlone", func(t *testing.T) {
		l := newLedger(t, 60, 25)
		l.start()
		l.healthy(5 * time.Minute)
		l.list.add(26, 27, 28) // charged; the responses are in flight
		l.healthy(5 * time.Minute)
		for i := 26; i <= 28; i++ {
			l.finish(i, rules.OutcomePaid)
		}
		l.finish(29, rules.OutcomeRefused)
		l.finish(30, rules.OutcomeNoLookup) // UNKNOWN
		l.list.add(30)
		l.healthy(5 * time.Minute)
		if n := l.list.calls(); n < 14 || n > 25 {
			t.Errorf("the list was asked for %d pages in 15 minutes", n)
		}
	})

	fixture.OnFakeTime(t, "OneChargeTooManyPauses", func(t *testing.T) {
		l := newLedger(t, 25, 25)
		l.start()
		l.healthy(3 * time.Minute)
		l.list.add(25) // twice
		l.within(pausedWithin, "paused", l.paused)
		why := l.breached()
		l.says(why, "charged 26 payouts", "explain at most 25", "charged 2,600 in total", "at most 2,500")
		// The report that the reason names has the same differences.
		if report := l.breach(why); len(report.Drifts) != 2 || report.Drifts[0].What != driftAbove || *report.Drifts[0].Store != 25 || *report.Drifts[0].Provider != 26 {
			t.Errorf("%+v", report)
		}
	})

	fixture.OnFakeTime(t, "ASecondTransactionPausesAtOnce", func(t *testing.T) {
		l := newLedger(t, 5, 2)
		c := store.SecondCharge{
			Ref: reward.Ref{PromotionID: promotion, TargetID: 2, Dispatch: 1}, Recorded: "T", TransactionKey: "T-again",
		}
		l.rec.ChargedTwice(t.Context(), c)
		why := l.view().PauseReason
		if l.view().Status != reward.Paused || l.shown(breachesMetric) != "1" || l.logged("payout charged twice") != 1 {
			t.Errorf("status %s, %s breaches, log %d", l.view().Status, l.shown(breachesMetric), l.logged("payout charged twice"))
		}
		l.says(why, "target 2 twice", `"T"`, `"T-again"`)
		if report := l.breach(why); len(report.Drifts) != 1 || report.Drifts[0].What != driftTwice {
			t.Errorf("%+v", report)
		}
		// A promotion that does not run cannot be paused; all else is the same.
		l.rec.ChargedTwice(t.Context(), c)
		if l.shown(breachesMetric) != "2" || l.logged("payout charged twice") != 2 || l.logged("pausing promotion failed") > 0 {
			t.Errorf("a breach of a paused promotion: %s breaches", l.shown(breachesMetric))
		}
	})

	fixture.OnFakeTime(t, "AKeyOfAnotherPayoutPausesAtOnce", func(t *testing.T) {
		l := newLedger(t, 5, 2)
		first, second := store.PayoutID{PromotionID: 7, TargetID: 1}, store.PayoutID{PromotionID: promotion, TargetID: 2}
		l.rec.KeyShared(t.Context(), "T", first, second)
		l.rec.KeyShared(t.Context(), "T", first, second) // it was in flight
		why := l.view().PauseReason
		if l.view().Status != reward.Paused || l.shown(breachesMetric) != "1" || l.logged("transaction key of another payout") != 1 ||
			!strings.Contains(why, `target 2 with transaction "T", which target 1 of promotion 7 has`) {
			t.Errorf("%s: %s, %s breaches", l.view().Status, why, l.shown(breachesMetric))
		}
		if report := l.breach(why); len(report.Drifts) != 1 || report.Drifts[0].What != driftShared {
			t.Errorf("%+v", report)
		}
	})

	for name, tc := range map[string]struct {
		paid   int
		breaks func(l *ledger)
		why    []string
	}{
		"OneKeyForTwo": {24, func(l *ledger) {
			l.list.add(25)
			l.finishAs(25, rules.OutcomePaid, "T-3")
		}, []string{"2 payouts have the transaction key of another one", `targets 3 and 25 have "T-3"`}},
		"OneChargeTooFew": {24, func(l *ledger) { l.finish(25, rules.OutcomePaid) }, []string{"charged 24 payouts", "25 rows are SUCCEEDED"}},
		"AnotherAmount": {25, func(l *ledger) {
			l.list.change(func() { l.list.charges[24].Amount = 99 })
		}, []string{"charged 2,499 in total", "SUCCEEDED rows add up to 2,500"}},
	} {
		fixture.OnFakeTime(t, name+"Pauses", func(t *testing.T) {
			l := newLedger(t, 25, tc.paid)
			l.start()
			l.healthy(3 * time.Minute)
			tc.breaks(l)
			l.within(pausedWithin, "paused", l.paused)
			l.says(l.breached(), tc.why...)
		})
	}

	fixture.OnFakeTime(t, "BrokenOnceIsNoBreach", func(t *testing.T) {
		l := newLedger(t, 40, 24)
		l.start()
		for i := 25; i <= 40; i++ { // the list lags each time, by less than confirmAfter
			l.finish(i, rules.OutcomePaid)
			asked := l.list.calls()
			l.within(testInterval+3*roundInterval, "looked at", func() bool { return l.list.calls() > asked })
			time.Sleep(confirmAfter / 2)
			l.list.add(i)
			l.healthy(0)
		}
		l.healthy(2 * testInterval)
	})

	fixture.OnFakeTime(t, "AListWhoseOrderChangedIsReadAgainBeforeItCounts", func(t *testing.T) {
		l := newLedger(t, 26, 25)
		l.start()
		l.healthy(2 * testInterval)
		l.list.change(func() { l.list.late = []money.ListedCharge{{TargetID: 26, Amount: 100}} })
		l.finish(26, rules.OutcomePaid)
		l.healthy(3 * testInterval)
	})

	fixture.OnFakeTime(t, "CountsThatAreNotTheRowsPauseAndARepairEndsIt", func(t *testing.T) {
		l := newLedger(t, 25, 20)
		l.rec.cfg.Queue = nil // no stream has entries
		l.start()
		l.healthy(2 * testInterval)
		l.sql("UPDATE summaries SET succeeded = succeeded - 3, queued = queued + 3 WHERE promotion_id = 42 AND summary_id = 0")
		l.within(pausedWithin, "paused", l.paused)
		l.says(l.breached(), "stored count of SUCCEEDED is 17, but there are 20 rows")
		id := promotion
		report, err := l.rec.Run(t.Context(), ReconcileCommand{PromotionID: &id, Repair: true})
		if err != nil || report.Checked != 1 || len(report.Drifts) != 2 || !report.Drifts[0].Repaired || !report.Drifts[1].Repaired {
			t.Fatalf("%+v, %v", report, err)
		}
		if d, ok := find(report.Drifts, "counts.succeeded"); !ok || *d.Store != 20 || *d.Kept != 17 {
			t.Errorf("%+v", report.Drifts)
		}
		recount, err := l.rows.SummaryRecount(t.Context(), promotion)
		if kept := l.view().Counts; err != nil || kept != recount {
			t.Errorf("kept %+v, rows %+v, %v", kept, recount, err)
		}
		l.within(testInterval+3*roundInterval, "balanced", func() bool { return l.shown(brokenMetric) == "" })
		if again, err := l.rec.Run(t.Context(), ReconcileCommand{}); err != nil || len(again.Drifts) != 0 {
			t.Errorf("%+v, %v", again, err)
		}
	})

	fixture.OnFakeTime(t, "AFinalPromotionIsReportedNotPaused", func(t *testing.T) {
		l := newLedger(t, 25, 25)
		l.start()
		l.healthy(2 * testInterval)
		l.end() // it is checked although it is not active
		l.list.add(1)
		l.within(confirmAfter+viewsEvery+5*roundInterval, "found", func() bool { return l.shown(brokenMetric) == "1" })
		if v := l.view(); v.Status != reward.Completed || l.logged("level=ERROR") != 1 {
			t.Errorf("status %s, log %s", v.Status, l.log.String())
		}
		time.Sleep(10 * testInterval) // and once only
		if l.shown(breachesMetric) != "1" || l.logged("level=ERROR") != 1 {
			t.Errorf("%s breaches", l.shown(breachesMetric))
		}
		l.list.change(func() { l.list.charges = l.list.charges[:25] })
		l.within(2*testInterval, "balanced", func() bool { return l.shown(brokenMetric) == "" })
		l.rec.Stop()
		if len(l.rec.watched) != 0 {
			t.Errorf("%d are still watched", len(l.rec.watched))
		}
	})

	fixture.OnFakeTime(t, "WhoResumesIsNotStoppedAgainForTheSame", func(t *testing.T) {
		l := newLedger(t, 25, 25)
		l.start()
		l.list.add(1)
		l.within(2*pausedWithin, "paused", l.paused)
		l.breached()
		l.move(reward.Paused, reward.Running)
		time.Sleep(5 * testInterval)
		if l.paused() || l.shown(brokenMetric) != "1" {
			t.Fatalf("%+v", l.view())
		}
		l.list.add(2)
		l.within(pausedWithin, "paused again", l.paused)
	})

	fixture.OnFakeTime(t, "AProviderWithoutAListIsSaidOnceAndTheRowsAreStillCompared", func(t *testing.T) {
		l := newLedger(t, 25, 20)
		l.rec.cfg.Queue, l.list.err = nil, money.ErrNoCharges
		l.start()
		l.healthy(65 * time.Minute)
		if n := l.list.calls(); n != 2 || l.logged("does not list") != 1 {
			t.Errorf("asked %d times in 65 minutes, said %d times", n, l.logged("does not list"))
		}
		if n := l.rows.count(); n < 55 {
			t.Errorf("compared %d times in 65 minutes", n)
		}
		report, err := l.rec.Run(t.Context(), ReconcileCommand{})
		if err != nil || len(report.Drifts) != 0 || len(report.Skipped) != 1 {
			t.Errorf("%+v, %v", report, err)
		}
	})

	fixture.OnFakeTime(t, "AProviderThatIsAwayBreaksNoBound", func(t *testing.T) {
		l := newLedger(t, 25, 25)
		l.start()
		l.healthy(2 * testInterval)
		l.list.change(func() { l.list.err = &money.ChargesError{Answer: money.Answer{Class: reward.AnswerNotSent}} })
		l.list.add(1)
		l.healthy(10 * testInterval)
		l.list.change(func() { l.list.err = nil })
		l.within(pausedWithin, "paused", l.paused)
		l.breached()
	})

	fixture.OnFakeTime(t, "ComparingTakesAHundredthOfTheTime", func(t *testing.T) {
		l := newLedger(t, 25, 25)
		l.rows.takes = 6 * time.Second
		l.start()
		l.healthy(32 * time.Minute)
		if n := l.rows.count(); n < 3 || n > 4 {
			t.Errorf("%d comparisons of 6 s in 32 minutes", n)
		}
		l.list.add(1) // found without comparing rows, but not while rows are compared
		l.within(pausedWithin+l.rows.takes, "paused", l.paused)
	})

	fixture.OnFakeTime(t, "OneInstanceKeepsTheBooksAndAnotherTakesOver", func(t *testing.T) {
		l := newLedger(t, 25, 25)
		var owner atomic.Int32
		owner.Store(1)
		l.rec.cfg.Owns = func(reward.PromotionID) bool { return owner.Load() == 1 }
		other := l.reconciler(func(reward.PromotionID) bool { return owner.Load() == 2 }, obs.Log{})
		l.start()
		l.within(testInterval+3*roundInterval, "checked", func() bool { return l.list.calls() > 0 })
		other.Start(t.Context())
		defer other.Stop()
		before := l.list.calls()
		time.Sleep(10 * testInterval)
		// Three pages in the first check, one in each later check.
		if n := l.list.calls() - before; n < 9 || n > 14 {
			t.Errorf("the list was asked for %d pages in ten minutes", n)
		}
		owner.Store(0) // nobody owns it for a moment
		time.Sleep(roundInterval * 6 / 5)
		before = l.list.calls()
		l.list.add(1)
		l.healthy(10 * testInterval)
		if n := l.list.calls(); n != before {
			t.Errorf("asked %d times without an owner", n-before)
		}
		owner.Store(2)
		l.within(pausedWithin, "paused", l.paused)
		if l.logged("level=ERROR") != 0 {
			t.Error("the instance that has lost the promotion has found the difference")
		}
	})

	fixture.OnFakeTime(t, "TheNextOwnerChecksWhatEndedMeanwhile", func(t *testing.T) {
		l := newLedger(t, 25, 25)
		var owns atomic.Bool
		l.rec.cfg.Owns = func(reward.PromotionID) bool { return owns.Load() }
		l.start()
		time.Sleep(2 * viewsEvery)
		l.end()
		l.list.add(1)
		time.Sleep(takeover)
		owns.Store(true)
		l.within(confirmAfter+5*roundInterval, "found", func() bool { return l.shown(brokenMetric) == "1" })
	})
}

// sql changes the database without the store.
func (l *ledger) sql(statement string) {
	l.t.Helper()
	db := fixture.Must(sql.Open("sqlite", "file:"+l.path+"?_pragma=busy_timeout(5000)"))(l.t)
	defer db.Close()
	fixture.Must(db.ExecContext(l.t.Context(), statement))(l.t)
}

func TestReconcileOnDemand(t *testing.T) {
	t.Parallel()
	id := promotion
	stream := queue.Stream{Type: reward.Point, PromotionID: promotion}
	add := func(l *ledger, entries ...queue.NewEntry) {
		l.t.Helper()
		if n, err := l.queue.Add(l.t.Context(), queue.AddParams{Stream: stream, MaxLen: 1000, Deadline: time.Now().Add(time.Minute), Entries: entries}); err != nil || n != len(entries) {
			l.t.Fatal(n, err)
		}
	}
	entries := func(from, to int) []queue.NewEntry {
		var list []queue.NewEntry
		for i := from; i <= to; i++ {
			list = append(list, queue.NewEntry{TargetID: reward.TargetID(i), Dispatch: 1, Message: []byte("{}")})
		}
		return list
	}

	fixture.OnFakeTime(t, "BalancedBooksHaveNoDrift", func(t *testing.T) {
		l := newLedger(t, 30, 10)
		add(l, entries(11, 30)...)
		report, err := l.rec.Run(t.Context(), ReconcileCommand{Repair: true})
		if err != nil || report.Checked != 1 || len(report.Drifts) != 0 || len(report.Skipped) != 0 || time.Since(l.began) > time.Second {
			t.Fatalf("%+v, %v, after %v", report, err, time.Since(l.began))
		}
		fixture.Equal(t, report, l.report(report.ID))
	})

	fixture.OnFakeTime(t, "EntriesForSettledDispatchesAreFoundAndRepaired", func(t *testing.T) {
		l := newLedger(t, 30, 10)
		add(l, entries(8, 30)...)
		for _, repair := range []bool{false, true} {
			report, err := l.rec.Run(t.Context(), ReconcileCommand{PromotionID: &id, Repair: repair})
			if err != nil || len(report.Drifts) != 1 {
				t.Fatalf("%+v, %v", report, err)
			}
			d := report.Drifts[0]
			if d.What != driftStream || *d.Store != 20 || *d.Redis != 23 || d.Repaired != repair || !strings.Contains(d.Detail, "3 of its oldest") {
				t.Errorf("%+v", d)
			}
		}
		if info, err := l.queue.Info(t.Context(), stream); err != nil || info.Len != 20 {
			t.Errorf("%+v, %v", info, err)
		}
	})

	fixture.OnFakeTime(t, "EntriesThatAreAboutToLeaveAreNoDrift", func(t *testing.T) {
		l := newLedger(t, 30, 10)
		add(l, entries(8, 30)...)
		go func() { // like a finisher after its commit
			time.Sleep(time.Second)
			list, err := l.queue.Range(context.WithoutCancel(t.Context()), stream, 3)
			if err != nil || len(list) != 3 {
				t.Error(list, err)
				return
			}
			if err := l.queue.Ack(context.WithoutCancel(t.Context()), stream, []string{list[0].ID, list[1].ID, list[2].ID}); err != nil {
				t.Error(err)
			}
			time.Sleep(8 * time.Second)
			l.pay(11) // its entry is about to leave during the second check
		}()
		if report, err := l.rec.Run(t.Context(), ReconcileCommand{PromotionID: &id}); err != nil || len(report.Drifts) != 0 {
			t.Errorf("%+v, %v", report, err)
		}
	})

	fixture.OnFakeTime(t, "LostEntriesAreDriftOnceNoneCanBeUnderWay", func(t *testing.T) {
		l := newLedger(t, 30, 10)
		add(l, entries(16, 30)...) // 11 to 15 are lost
		if report, err := l.rec.Run(t.Context(), ReconcileCommand{PromotionID: &id}); err != nil || len(report.Drifts) != 0 {
			t.Errorf("at once: %+v, %v", report, err)
		}
		time.Sleep(testHorizon + time.Second)
		report, err := l.rec.Run(t.Context(), ReconcileCommand{PromotionID: &id, Repair: true})
		if err != nil || len(report.Drifts) != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		d := report.Drifts[0]
		if d.What != driftStream || *d.Store != 20 || *d.Redis != 15 || d.Repaired || !strings.Contains(d.Detail, "the sweeper") {
			t.Errorf("%+v", d)
		}
	})

	fixture.OnFakeTime(t, "AChargeThatNoRowExplainsPausesHereToo", func(t *testing.T) {
		l := newLedger(t, 25, 25)
		l.list.add(1)
		report, err := l.rec.Run(t.Context(), ReconcileCommand{})
		if err != nil || len(report.Drifts) != 2 || report.Drifts[0].What != driftAbove || !l.paused() {
			t.Errorf("%+v, %v, %+v", report, err, l.view())
		}
		l.move(reward.Paused, reward.Running)
		if _, err := l.rec.Run(t.Context(), ReconcileCommand{}); err != nil || l.paused() {
			t.Errorf("paused for the same again, %v", err)
		}
	})

	fixture.OnFakeTime(t, "WhatIsNotThereIsSaid", func(t *testing.T) {
		l := newLedger(t, 1, 1)
		other := reward.PromotionID(43)
		if _, err := l.rec.Run(t.Context(), ReconcileCommand{PromotionID: &other}); !reward.HasCode(err, reward.CodeNotFound) {
			t.Error(err)
		}
		l.list.err = errors.New("away")
		report, err := l.rec.Run(t.Context(), ReconcileCommand{})
		if err != nil || len(report.Skipped) != 1 || !strings.Contains(report.Skipped[0], "away") {
			t.Errorf("%+v, %v", report, err)
		}
	})

	fixture.OnFakeTime(t, "TheReportIsWhatTheContractSays", func(t *testing.T) {
		l := newLedger(t, 30, 10)
		add(l, entries(8, 30)...)
		report := fixture.Must(l.rec.Run(t.Context(), ReconcileCommand{PromotionID: &id}))(t)
		kept, err := l.rows.ReconciliationGet(t.Context(), report.ID)
		for _, part := range []string{`"id":"` + strconv.FormatInt(report.ID, 10) + `"`, `"checked":1`, `"drifts":[{`, `"promotionId":"42"`, `"what":"stream"`, `"store":20`, `"redis":23`, `"repaired":false`} {
			if err != nil || !strings.Contains(string(kept.Report), part) {
				t.Errorf("%s is not in %s, %v", part, kept.Report, err)
			}
		}
	})
}
