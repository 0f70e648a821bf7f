package payout

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
	"github.com/largesse/largesse/internal/store/rows"
)

// sick is the promotion that has the fault; the others are healthy.
const sick, healthy reward.PromotionID = 1, 2

// calling is how many calls of the sick promotion are in flight when the fault
// begins.
const calling = 8

// realRows is a stage on PostgreSQL and on the real clock. Its provider answers the
// charges of the sick promotion only after its gate is open.
type realRows struct {
	*stage
	db       *pgx.Conn // for what an operator does by hand
	troubles *obs.Troubles
	gate     chan struct{}
	open     func() // opens the gate

	mu      sync.Mutex // protects what follows
	charged map[store.PayoutID]bool
	calls   map[reward.PromotionID]int
}

// openPostgres opens a schema of the test's own.
func openPostgres(t *testing.T) (s *rows.Tables, url string) {
	t.Helper()
	open := func(ctx context.Context, url string) (*rows.Tables, error) {
		return postgres.Open(ctx, postgres.Config{URL: url, ApplicationName: t.Name()})
	}
	url = fixture.Schema(t, func(ctx context.Context, url string) error {
		s, err := open(ctx, url)
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Migrate(ctx)
	})
	s = fixture.Must(open(t.Context(), url))(t)
	t.Cleanup(s.Close)
	return s, url
}

// newRealRows starts a flow. change may change its settings; it may be nil.
func newRealRows(t *testing.T, q queue.Queue, change func(cfg *Config)) *realRows {
	t.Helper()
	rows, url := openPostgres(t)
	r := &realRows{
		stage: &stage{t: t, store: rows, queue: q}, gate: make(chan struct{}), troubles: obs.NewTroubles(nil, obs.Log{}),
		charged: make(map[store.PayoutID]bool), calls: make(map[reward.PromotionID]int),
	}
	r.open = sync.OnceFunc(func() { close(r.gate) })
	r.db = fixture.Must(pgx.Connect(t.Context(), url))(t)
	cfg := Config{
		Store: rows, Queue: q, Provider: r, Troubles: r.troubles,
		Pool: pool.Config{
			Changed: func() {}, Instance: "test", MinConsumers: 4, MaxConsumers: 4, InFlight: 16, BatchSize: 16, PendingMax: 4096,
			PollInterval: 20 * time.Millisecond, IdleTimeout: 30 * time.Second, Lease: 15 * time.Second, StopTimeout: time.Second,
		},
		MaxLen: 500, Limits: testLimits(), Payout: true, Housekeeping: true,
	}
	if change != nil {
		change(&cfg)
	}
	r.flow = wire(cfg, dropPublisher{})
	r.start()
	t.Cleanup(func() {
		r.open()
		r.flow.Stop()
		q.Close()
		_ = r.db.Close(context.Background())
	})
	return r
}

// ChargePoint charges each payout once.
func (r *realRows) ChargePoint(_ context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	if err := check(); err != nil {
		return money.Answer{Class: reward.AnswerNotSent, Err: err}
	}
	r.mu.Lock()
	r.calls[c.PromotionID]++
	r.mu.Unlock()
	if c.PromotionID == sick {
		<-r.gate
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.charged[store.PayoutID{PromotionID: c.PromotionID, TargetID: c.TargetID}] = true
	return money.Answer{Class: reward.AnswerPaid, TransactionKey: "T"}
}

func (r *realRows) ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return r.ChargePoint(ctx, c, check)
}

func (r *realRows) Lookup(_ context.Context, p reward.PromotionID, t reward.TargetID) money.LookupResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.charged[store.PayoutID{PromotionID: p, TargetID: t}] {
		return money.LookupResult{Found: true, TransactionKey: "T"}
	}
	return money.LookupResult{NotFound: true}
}

func (r *realRows) callsOf(id reward.PromotionID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[id]
}

// create starts a promotion with targets, and expects more of them, so that it
// does not complete. Those that fit into the stream are dispatched at once.
func (r *realRows) create(id reward.PromotionID, targets int) {
	r.t.Helper()
	expected := int64(targets + 1)
	registration := store.Registration{ID: id, Type: reward.Point, Started: true, ExpectedCount: &expected}
	fixture.Must(r.store.PromotionRegister(r.t.Context(), []store.Registration{registration}, reward.Limits{}, time.Now()))(r.t)
	rows := make([]store.NewPayout, targets)
	for i := range rows {
		rows[i] = store.NewPayout{PromotionID: id, TargetID: reward.TargetID(i + 1), UserID: "u", Amount: 5}
	}
	fixture.Must(r.flow.Save(r.t.Context(), reward.Point, store.PayoutSaveParams{Rows: rows}))(r.t)
	r.flow.Hint(id)
}

// begin creates the sick promotion and waits for its first calls.
func (r *realRows) begin(targets int) {
	r.t.Helper()
	r.create(sick, targets)
	fixture.Until(r.t, "calling", func() bool { return r.callsOf(sick) >= calling })
}

// pay waits until all payouts of a promotion are SUCCEEDED.
func (r *realRows) pay(id reward.PromotionID, targets int) {
	r.t.Helper()
	fixture.Until(r.t, fmt.Sprintf("promotion %d is paid", id), func() bool {
		return r.of(id).Counts.Payouts[reward.Succeeded] == int64(targets)
	})
}

// end waits until nothing is in trouble, and checks that each payout was recorded and
// that the counts match.
func (r *realRows) end() {
	r.t.Helper()
	fixture.Until(r.t, "out of trouble", func() bool { return trouble(r.troubles, obs.PartOutcomes) == "" })
	for _, id := range []reward.PromotionID{sick, healthy} {
		c, err := r.store.SummaryCompare(r.t.Context(), id, false)
		if err != nil || c.Kept != c.Rows {
			r.t.Errorf("promotion %d: %+v, %v", id, c, err)
		}
	}
}

// trouble returns the reason of the trouble of a part, or "".
func trouble(troubles *obs.Troubles, part string) string {
	for _, x := range troubles.List() {
		if x.Part == part {
			return x.Reason
		}
	}
	return ""
}

// lock locks the counts of a promotion until unlock, or the test's end.
func (r *realRows) lock(id reward.PromotionID) (unlock func()) {
	r.t.Helper()
	tx := fixture.Must(r.db.Begin(r.t.Context()))(r.t)
	unlock = func() { _ = tx.Rollback(context.Background()) } // a second one does nothing
	r.t.Cleanup(unlock)
	fixture.Must(tx.Exec(r.t.Context(), `SELECT FROM summaries WHERE promotion_id = $1 FOR UPDATE`, id))(r.t)
	return unlock
}

// TestNobodyPaysAlone is TestNobodyPaysAloneSQLite on PostgreSQL.
func TestNobodyPaysAlone(t *testing.T) {
	t.Parallel()
	rows, _ := openPostgres(t)
	walkApprovals(t, rows)
}

// TestOnePromotionsBrokenCountsStopNoOther sets a count of one promotion to zero
// by hand, so that no outcome of it can be recorded.
func TestOnePromotionsBrokenCountsStopNoOther(t *testing.T) {
	t.Parallel()
	const targets, good = 300, 1000
	r := newRealRows(t, queue.NewMemory(), nil)
	r.begin(targets)
	fixture.Must(r.db.Exec(t.Context(), `UPDATE summaries SET queued = 0 WHERE promotion_id = $1 AND summary_id = 0`, sick))(t)
	r.open()
	r.create(healthy, good)
	r.pay(healthy, good)
	fixture.Until(t, "paused", func() bool { return r.of(sick).Status == reward.Paused })
	command := fmt.Sprintf("largesse reconcile --promotion %d --repair", sick)
	if v := r.of(sick); !strings.Contains(v.PauseReason, command) || v.Counts.Payouts[reward.Succeeded] != 0 {
		t.Errorf("the pause reason %q does not say %q, or payouts were recorded: %+v", v.PauseReason, command, v.Counts)
	}
	if reason := trouble(r.troubles, obs.PartOutcomes); !strings.Contains(reason, command) {
		t.Errorf("reason of the trouble %q does not say %q", reason, command)
	}
	if calls := r.callsOf(sick); calls > 2*64 {
		t.Errorf("%d calls although nothing was recorded", calls)
	}
	fixture.Must(r.store.SummaryCompare(t.Context(), sick, true))(t)
	r.moveOf(sick, reward.Paused, reward.Running)
	r.pay(sick, targets)
	r.end()
}

// TestOnePromotionsLockStopsNoOther holds a lock on the counts of one promotion
// throughout. It has READY payouts, and both promotions have more targets than a stream
// holds, so the feeder meets the lock too.
func TestOnePromotionsLockStopsNoOther(t *testing.T) {
	t.Parallel()
	const targets, good = 700, 1000
	r := newRealRows(t, queue.NewMemory(), nil)
	r.begin(targets)
	unlock := r.lock(sick)
	r.open()
	r.create(healthy, good)
	r.pay(healthy, good)
	fixture.Until(t, "in trouble", func() bool { return trouble(r.troubles, obs.PartOutcomes) != "" })
	if v := r.of(sick); v.Status != reward.Running || v.Counts.Payouts[reward.Succeeded] != 0 || v.Counts.Payouts[reward.Ready] == 0 {
		t.Errorf("the locked promotion is %s with %+v", v.Status, v.Counts)
	}
	if calls := r.callsOf(sick); calls > 2*64 {
		t.Errorf("%d calls although nothing was recorded", calls)
	}
	unlock()
	r.pay(sick, targets)
	r.end()
}

// onlyHousekeeping is an instance with that role alone.
func onlyHousekeeping(cfg *Config) { cfg.Payout = false }

// TestACancelHoldsNoCompletionUp cancels a promotion that cannot be cancelled, because
// its counts are locked. The last payouts of another promotion are recorded meanwhile,
// and it completes.
func TestACancelHoldsNoCompletionUp(t *testing.T) {
	t.Parallel()
	const targets = 100
	r := newRealRows(t, queue.NewMemory(), onlyHousekeeping)
	r.started(sick, targets, 0)
	r.started(healthy, targets, targets)
	r.cancelled(sick)
	unlock := r.lock(sick)
	r.paid(healthy, targets)
	fixture.Until(t, "the other promotion is completed", func() bool { return r.of(healthy).Status == reward.Completed })
	unlock()
	fixture.Until(t, "the cancel is over", func() bool { return !r.of(sick).FinishedAt.IsZero() })
	if n := r.of(sick).Counts.Payouts[reward.Cancelled]; n != targets {
		t.Errorf("%d of %d payouts are cancelled", n, targets)
	}
}

// TestCompletionNeedsNoRedis: Redis hangs while one promotion has dispatched
// payouts, which the sweeper looks for in Redis. The last payouts of twenty other
// promotions are recorded meanwhile. All of them complete.
func TestCompletionNeedsNoRedis(t *testing.T) {
	t.Parallel()
	const waiting reward.PromotionID = 100
	const finished, targets = 20, 5
	server := fixture.Own(t, fleet.NewRedis)
	streams := fixture.Must(redisstream.Open(t.Context(), redisstream.Config{URL: server.Address()}))(t)
	q := newWatchedQueue(streams, nil)
	r := newRealRows(t, q, onlyHousekeeping)
	for i := range reward.PromotionID(finished + 1) {
		r.started(waiting+i, targets, targets)
	}
	fixture.Until(t, "a first view of all promotions", func() bool { return len(r.flow.Views()) == finished+1 })
	fixture.OK(t, server.Hang())
	t.Cleanup(func() {
		if err := server.Resume(); err != nil {
			t.Error(err)
		}
	})
	before := len(q.noted())
	fixture.Until(t, "the sweeper has met the fault", func() bool { return len(q.noted()) > before })
	for i := range reward.PromotionID(finished) {
		r.paid(waiting+1+i, targets)
	}
	for i := range reward.PromotionID(finished) {
		fixture.Until(t, fmt.Sprintf("promotion %d is completed", waiting+1+i), func() bool { return r.of(waiting+1+i).Status == reward.Completed })
	}
}
