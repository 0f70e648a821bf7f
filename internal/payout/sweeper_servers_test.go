package payout

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
)

// sweepPatience is how long a test waits for what the sweeper does.
const sweepPatience = 20 * time.Second

// housekeeper is an instance with the role housekeeping only, on a real database.
type housekeeper struct {
	t     *testing.T
	store *postgres.Store
	flow  *Flow
}

func newHousekeeper(t *testing.T, q queue.Queue) *housekeeper {
	t.Helper()
	address := os.Getenv("LARGESSE_TEST_POSTGRES")
	if address == "" {
		t.Fatal("LARGESSE_TEST_POSTGRES names no PostgreSQL server: run it by make test")
	}
	schema := fmt.Sprintf("largesse sweeper %d %d", os.Getpid(), time.Now().UnixNano())
	rows, err := postgres.Open(t.Context(), postgres.Config{URL: address, Schema: schema, ApplicationName: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		rows.Close()
		db, err := pgx.Connect(context.Background(), address)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = db.Close(context.Background()) }()
		if _, err := db.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE"); err != nil {
			t.Errorf("drop the test's schema: %v", err)
		}
	})
	if err := rows.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := &housekeeper{t: t, store: rows}
	h.flow = wire(Config{
		Store: rows, Queue: q, Pool: pool.Config{Instance: "test", Lease: 15 * time.Second, StopTimeout: time.Second},
		MaxLen: 1000, Limits: testLimits(), Housekeeping: true, Metrics: obs.NewMetrics(),
	}, dropPublisher{})
	return h
}

// start runs the instance until the test ends.
func (h *housekeeper) start() {
	h.t.Helper()
	if err := h.flow.Start(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(h.flow.Stop)
}

// create starts a promotion with dispatched targets.
func (h *housekeeper) create(id reward.PromotionID, targets int) {
	h.t.Helper()
	expected := int64(targets)
	_, err := h.store.PromotionRegister(h.t.Context(), []store.Registration{{ID: id, Type: reward.Point, Started: true, ExpectedCount: &expected}}, time.Now())
	if err != nil {
		h.t.Fatal(err)
	}
	h.save(id, 1, targets, 1000)
}

// save adds targets to a promotion; those that fit into maxLen are dispatched.
func (h *housekeeper) save(id reward.PromotionID, from, to, maxLen int) {
	rows := make([]store.NewPayout, 0, to-from+1)
	for i := from; i <= to; i++ {
		rows = append(rows, store.NewPayout{PromotionID: id, TargetID: reward.TargetID(i), UserID: "u", Amount: 5})
	}
	if _, err := h.store.PayoutSave(h.t.Context(), store.PayoutSaveParams{Rows: rows, MaxLen: maxLen, Now: time.Now()}); err != nil {
		h.t.Error(err)
	}
}

// pay finishes the first dispatch of all targets.
func (h *housekeeper) pay(id reward.PromotionID, targets int) {
	h.t.Helper()
	var outcomes []rules.Outcome
	for i := range targets {
		outcomes = append(outcomes, rules.Outcome{
			Ref:  reward.Ref{PromotionID: id, TargetID: reward.TargetID(i + 1), Dispatch: 1},
			Kind: rules.OutcomePaid, TransactionKey: "T",
		})
	}
	if _, err := h.store.PayoutFinish(h.t.Context(), store.PayoutFinishParams{Outcomes: outcomes, Lease: time.Second, Now: time.Now()}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *housekeeper) view(id reward.PromotionID) store.PromotionView {
	h.t.Helper()
	v, err := h.store.PromotionGet(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

// until polls until the condition holds, and returns how long that took.
func (h *housekeeper) until(what string, patience time.Duration, holds func() bool) time.Duration {
	h.t.Helper()
	began := time.Now()
	for !holds() {
		if time.Since(began) > patience {
			h.t.Fatalf("not %s within %v", what, patience)
		}
		time.Sleep(20 * time.Millisecond) // polls a condition
	}
	return time.Since(began)
}

// hangingRedis starts a Redis of its own and returns it with a function that
// makes it hang until the test ends.
func hangingRedis(t *testing.T) (server *fleet.Server, hang func()) {
	t.Helper()
	in, err := fleet.Look()
	if err != nil {
		t.Fatal(err)
	}
	if server, err = fleet.NewRedis(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := redisPID(t, server)
	wake := sync.OnceValue(func() error { return syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(func() {
		if err := wake(); err != nil {
			t.Error(err)
		}
		if err := server.Remove(); err != nil {
			t.Error(err)
		}
	})
	return server, func() {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
}

func redisPID(t *testing.T, server *fleet.Server) int {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(server.Address(), "redis://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprint(conn, "INFO server\r\n"); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "process_id:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("Redis does not report its process ID")
	return 0
}

// TestCompletionNeedsNoRedis: Redis hangs while one promotion has dispatched
// payouts, which the sweeper looks for in Redis. The last payouts of forty other
// promotions are recorded meanwhile. All of them complete.
func TestCompletionNeedsNoRedis(t *testing.T) {
	t.Parallel()
	const waiting reward.PromotionID = 1
	const finished, targets = 40, 5
	server, hang := hangingRedis(t)
	q, err := redisstream.Open(t.Context(), redisstream.Config{URL: server.Address()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	h := newHousekeeper(t, q)
	h.create(waiting, targets)
	for i := range finished {
		h.create(waiting+1+reward.PromotionID(i), targets)
	}
	h.start()
	h.until("a first view of all promotions", sweepPatience, func() bool { return len(h.flow.Views()) == finished+1 })
	hang()
	time.Sleep(2 * sweepInterval) // so that the sweeper has met the fault
	for i := range finished {
		h.pay(waiting+1+reward.PromotionID(i), targets)
	}
	completed := 0
	defer func() { t.Logf("%d of %d promotions completed while Redis hung", completed, finished) }()
	took := h.until("all completed", sweepPatience, func() bool {
		completed = 0
		for i := range finished {
			if h.view(waiting+1+reward.PromotionID(i)).Status == reward.Completed {
				completed++
			}
		}
		return completed == finished
	})
	t.Logf("the last one completed after %v", took)
}
