package payout

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
)

// sick is the promotion that has the fault; the others are healthy.
const sick, healthy reward.PromotionID = 1, 2

// calling is how many calls of the sick promotion are in flight when the fault
// begins.
const calling = 8

const patience = 20 * time.Second

// neighbours is a flow on a real database with several promotions. The provider
// answers the charges of the sick promotion only after its gate is open.
type neighbours struct {
	t        *testing.T
	store    *postgres.Store
	db       *pgx.Conn // for what an operator does by hand
	troubles *obs.Troubles
	flow     *Flow
	gate     chan struct{}
	open     func() // opens the gate

	mu      sync.Mutex // protects what follows
	charged map[store.PayoutID]int
	calls   map[reward.PromotionID]int
}

func newNeighbours(t *testing.T) *neighbours {
	t.Helper()
	address := os.Getenv("LARGESSE_TEST_POSTGRES")
	if address == "" {
		t.Fatal("LARGESSE_TEST_POSTGRES names no PostgreSQL server: run it by make test")
	}
	schema := fmt.Sprintf("largesse neighbours %d %d", os.Getpid(), time.Now().UnixNano())
	rows, err := postgres.Open(t.Context(), postgres.Config{URL: address, Schema: schema, ApplicationName: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	n := &neighbours{
		t: t, store: rows, gate: make(chan struct{}), troubles: obs.NewTroubles(nil, obs.Log{}),
		charged: make(map[store.PayoutID]int), calls: make(map[reward.PromotionID]int),
	}
	if err := rows.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.db, err = pgx.Connect(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	n.exec("SET search_path = " + pgx.Identifier{schema}.Sanitize())
	n.open = sync.OnceFunc(func() { close(n.gate) })
	memory := queue.NewMemory()
	n.flow = wire(Config{
		Store: rows, Queue: memory, Provider: n, Troubles: n.troubles,
		Pool: pool.Config{
			Instance: "test", MinConsumers: 4, MaxConsumers: 4, InFlight: 16, BatchSize: 16, PendingMax: 4096,
			PollInterval: 20 * time.Millisecond, IdleTimeout: 30 * time.Second, Lease: 15 * time.Second, StopTimeout: time.Second,
		},
		MaxLen: 5_000, Limits: testLimits(), Payout: true, Housekeeping: true,
	}, dropPublisher{})
	t.Cleanup(func() {
		n.open()
		n.flow.Stop()
		memory.Close()
		_, err := n.db.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		if err != nil {
			t.Errorf("drop the test's schema: %v", err)
		}
		_ = n.db.Close(context.Background())
		rows.Close()
	})
	return n
}

func (n *neighbours) exec(sql string, args ...any) {
	n.t.Helper()
	if _, err := n.db.Exec(n.t.Context(), sql, args...); err != nil {
		n.t.Fatal(err)
	}
}

// ChargePoint charges each payout once.
func (n *neighbours) ChargePoint(_ context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	if err := check(); err != nil {
		return money.Answer{Class: reward.AnswerNotSent, Err: err}
	}
	n.mu.Lock()
	n.calls[c.PromotionID]++
	n.mu.Unlock()
	if c.PromotionID == sick {
		<-n.gate
	}
	time.Sleep(20 * time.Millisecond) // the provider's work
	n.mu.Lock()
	n.charged[store.PayoutID{PromotionID: c.PromotionID, TargetID: c.TargetID}] = 1
	n.mu.Unlock()
	return money.Answer{Class: reward.AnswerPaid, TransactionKey: "T"}
}

func (n *neighbours) ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return n.ChargePoint(ctx, c, check)
}

func (n *neighbours) Lookup(_ context.Context, p reward.PromotionID, t reward.TargetID) money.LookupResult {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.charged[store.PayoutID{PromotionID: p, TargetID: t}] > 0 {
		return money.LookupResult{Found: true, TransactionKey: "T"}
	}
	return money.LookupResult{NotFound: true}
}

func (n *neighbours) callsOf(id reward.PromotionID) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls[id]
}

// create starts a promotion with targets, and expects more of them, so that it
// does not complete.
func (n *neighbours) create(id reward.PromotionID, targets int) {
	n.t.Helper()
	ctx, expected := n.t.Context(), int64(targets+1)
	_, err := n.store.PromotionRegister(ctx, []store.Registration{{ID: id, Type: reward.Point, Started: true, ExpectedCount: &expected}}, time.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	for from := 0; from < targets; from += store.BatchMax {
		rows := make([]store.NewPayout, min(store.BatchMax, targets-from))
		for i := range rows {
			rows[i] = store.NewPayout{PromotionID: id, TargetID: reward.TargetID(from + i + 1), UserID: "u", Amount: 5}
		}
		if _, err := n.flow.Save(ctx, reward.Point, store.PayoutSaveParams{Rows: rows}); err != nil {
			n.t.Fatal(err)
		}
	}
	n.flow.Hint(id)
}

func (n *neighbours) get(id reward.PromotionID) store.PromotionView {
	n.t.Helper()
	v, err := n.store.PromotionGet(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return v
}

// within waits until the condition holds.
func (n *neighbours) within(limit time.Duration, what string, holds func() bool) {
	n.t.Helper()
	for end := time.Now().Add(limit); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("not %s within %v: sick %+v, healthy %+v", what, limit, n.get(sick).Counts, n.get(healthy).Counts)
		}
	}
}

// pay waits until all payouts of a promotion are SUCCEEDED, and returns how long
// that took.
func (n *neighbours) pay(id reward.PromotionID, targets int) time.Duration {
	n.t.Helper()
	began := time.Now()
	n.within(2*patience, fmt.Sprintf("promotion %d paid", id), func() bool {
		return n.get(id).Counts.Payouts[reward.Succeeded] == int64(targets)
	})
	return time.Since(began)
}

// balance checks that each payout was recorded and that the counts match.
func (n *neighbours) balance(id reward.PromotionID) {
	n.t.Helper()
	c, err := n.store.SummaryCompare(n.t.Context(), id, false)
	if err != nil || c.Kept != c.Rows {
		n.t.Errorf("promotion %d: %+v, %v", id, c, err)
	}
}

func (n *neighbours) trouble(part string) string {
	for _, x := range n.troubles.List() {
		if x.Part == part {
			return x.Reason
		}
	}
	return ""
}

// TestOnePromotionsBrokenCountsStopNoOther sets a count of one promotion to zero
// by hand, so that no outcome of it can be recorded.
func TestOnePromotionsBrokenCountsStopNoOther(t *testing.T) {
	t.Parallel()
	const targets, good = 300, 2000
	n := newNeighbours(t)
	if err := n.flow.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.create(sick, targets)
	n.within(patience, "calling", func() bool { return n.callsOf(sick) >= calling })
	n.exec(`UPDATE summaries SET queued = 0 WHERE promotion_id = $1 AND summary_id = 0`, sick)
	n.open()
	n.create(healthy, good)
	t.Logf("the healthy promotion was paid in %v", n.pay(healthy, good))
	n.within(patience, "paused", func() bool { return n.get(sick).Status == reward.Paused })
	command := fmt.Sprintf("largesse reconcile --promotion %d --repair", sick)
	if reason := n.get(sick).PauseReason; !strings.Contains(reason, command) {
		t.Errorf("pause reason %q does not say %q", reason, command)
	}
	if reason := n.trouble(obs.PartOutcomes); !strings.Contains(reason, command) {
		t.Errorf("reason of the trouble %q does not say %q", reason, command)
	}
	if calls := n.callsOf(sick); calls > 2*64 {
		t.Errorf("%d calls although nothing was recorded", calls)
	}
	if _, err := n.store.SummaryCompare(t.Context(), sick, true); err != nil {
		t.Fatal(err)
	}
	_, err := n.store.PromotionMove(t.Context(), store.PromotionMoveParams{
		ID: sick, From: []reward.PromotionStatus{reward.Paused}, To: reward.Running, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.pay(sick, targets)
	n.within(patience, "out of trouble", func() bool { return n.trouble(obs.PartOutcomes) == "" })
	n.balance(sick)
	n.balance(healthy)
}

// lock locks the counts of a promotion until unlock, or the test's end.
func (n *neighbours) lock(id reward.PromotionID) (unlock func()) {
	n.t.Helper()
	tx, err := n.db.Begin(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	unlock = func() { _ = tx.Rollback(context.Background()) } // a second one does nothing
	n.t.Cleanup(unlock)
	if _, err := tx.Exec(n.t.Context(), `SELECT FROM summaries WHERE promotion_id = $1 FOR UPDATE`, id); err != nil {
		n.t.Fatal(err)
	}
	return unlock
}

// TestOnePromotionsLockStopsNoOther holds a lock on the counts of one promotion
// throughout.
func TestOnePromotionsLockStopsNoOther(t *testing.T) {
	t.Parallel()
	const targets, good = 300, 2000
	n := newNeighbours(t)
	if err := n.flow.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.create(sick, targets)
	n.within(patience, "calling", func() bool { return n.callsOf(sick) >= calling })
	unlock := n.lock(sick)
	n.open()
	n.create(healthy, good)
	t.Logf("the healthy promotion was paid in %v", n.pay(healthy, good))
	n.within(patience, "in trouble", func() bool { return n.trouble(obs.PartOutcomes) != "" })
	if v := n.get(sick); v.Status != reward.Running || v.Counts.Payouts[reward.Succeeded] != 0 {
		t.Errorf("the locked promotion is %s with %+v", v.Status, v.Counts)
	}
	if calls := n.callsOf(sick); calls > 2*64 {
		t.Errorf("%d calls although nothing was recorded", calls)
	}
	unlock()
	n.pay(sick, targets)
	n.within(patience, "out of trouble", func() bool { return n.trouble(obs.PartOutcomes) == "" })
	n.balance(sick)
	n.balance(healthy)
}
