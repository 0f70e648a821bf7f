package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"
	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(dropLent)) }

func serverURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv("LARGESSE_TEST_POSTGRES")
	if url == "" {
		t.Fatal("LARGESSE_TEST_POSTGRES names no PostgreSQL server: run it by make test")
	}
	return url
}

var schemas atomic.Int64

// openEmpty opens an empty schema, which is dropped at the end of the test.
func openEmpty(t testing.TB, connections int) *Store {
	t.Helper()
	schema := fmt.Sprintf("largesse test %d-%d", os.Getpid(), schemas.Add(1))
	s := openSchema(t, schema, connections)
	t.Cleanup(func() {
		if _, err := s.pool.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE"); err != nil {
			t.Errorf("drop the test's schema: %v", err)
		}
		s.Close()
	})
	return s
}

func openSchema(t testing.TB, schema string, connections int) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{
		URL: serverURL(t), Schema: schema, MaxConnections: connections, ApplicationName: t.Name(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func open(t testing.TB) store.Store {
	t.Helper()
	s := openEmpty(t, 8)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, lend)
}

func BenchmarkStore(b *testing.B) { storetest.Benchmark(b, open) }

// BenchmarkFinish compares the two statements that write outcomes, on 1,000 rows
// each in turn.
func BenchmarkFinish(b *testing.B) {
	s := open(b).(*Store)
	ctx, now := b.Context(), time.Now()
	if _, err := s.PromotionRegister(ctx, []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, now); err != nil {
		b.Fatal(err)
	}
	took := make(map[string]time.Duration)
	next := reward.TargetID(0)
	for b.Loop() {
		for name, sql := range map[string]string{"held": finishHeldSQL, "any": finishSQL} {
			var rows []store.NewPayout
			f := finishing{now: instant(now), settleFrom: instant(now), results: make([]store.FinishResult, store.BatchMax)}
			round := make([]int, store.BatchMax)
			for i := range store.BatchMax {
				next++
				rows = append(rows, store.NewPayout{PromotionID: 1, TargetID: next, UserID: fmt.Sprint(next), Amount: 5})
				f.outcomes = append(f.outcomes, rules.Outcome{
					Ref: reward.Ref{PromotionID: 1, TargetID: next, Dispatch: 1}, Kind: rules.OutcomePaid,
					TransactionKey: "6f1e0a52-7c43-4f1b-9a57-" + fmt.Sprintf("%012d", next),
				})
				round[i] = i
			}
			saved, err := s.PayoutSave(ctx, store.PayoutSaveParams{Rows: rows, MaxLen: store.BatchMax, Now: now})
			if err != nil || len(saved.Queued) != store.BatchMax {
				b.Fatal(len(saved.Queued), err)
			}
			began := time.Now()
			rest, err := f.send(ctx, s, sql, [][]int{round})
			took[name] += time.Since(began)
			if err != nil || len(rest) > 0 {
				b.Fatal(len(rest), err)
			}
		}
	}
	for name, d := range took {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), name+"-ms/1000")
	}
}

func BenchmarkDispatch(b *testing.B) { storetest.BenchmarkDispatch(b, open) }

func BenchmarkActive(b *testing.B) { storetest.BenchmarkActive(b, open) }

func BenchmarkRequests(b *testing.B) { storetest.BenchmarkRequests(b, open) }

func BenchmarkWebhooks(b *testing.B) { storetest.BenchmarkWebhooks(b, open) }

func TestViewers(t *testing.T) {
	t.Parallel()
	storetest.ExerciseViewers(t, open, storetest.ViewerConnections{
		Hold: holdViewers,
		Endless: func(ctx context.Context, s store.Store) error {
			return s.(*Store).readLong(ctx, "sleep", func(b *pgx.Batch) { b.Queue(`SELECT pg_sleep(60)`) })
		},
	})
}

// holdViewers takes every connection for viewers.
func holdViewers(ctx context.Context, s store.Store) (release func(), err error) {
	viewers := s.(*Store).viewers
	var held []*pgxpool.Conn
	for range viewers.Config().MaxConns {
		conn, err := viewers.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		held = append(held, conn)
	}
	return sync.OnceFunc(func() {
		for _, conn := range held {
			conn.Release()
		}
	}), nil
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	first, m := open(t).(*Store), obs.NewMetrics()
	s, err := Open(t.Context(), Config{URL: serverURL(t), Schema: first.schema, MaxConnections: 2, Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	storetest.ExerciseMetrics(t, s, m, []string{obs.DatabaseWork, obs.DatabaseReads}, func() (func(), error) { return holdViewers(t.Context(), s) })
}

func TestStoreAgreesWithSQLite(t *testing.T) {
	t.Parallel()
	other, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "largesse.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	storetest.Agree(t, other, open(t))
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	t.Run("SeveralInstancesAtOnce", func(t *testing.T) {
		t.Parallel()
		first := openEmpty(t, 4)
		instances := []*Store{first}
		for range 3 {
			s := openSchema(t, first.schema, 4)
			defer s.Close()
			instances = append(instances, s)
		}
		var wg sync.WaitGroup
		for _, s := range instances {
			wg.Go(func() {
				if err := s.Migrate(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if _, err := first.PromotionGet(t.Context(), 1); !reward.HasCode(err, reward.CodeNotFound) {
			t.Errorf("error is %v, want %s", err, reward.CodeNotFound)
		}
	})
}

// old opens a schema of the first migration with one QUEUED payout.
func old(t *testing.T) *Store {
	t.Helper()
	s := openEmpty(t, 4)
	ctx := t.Context()
	if _, err := s.pool.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{s.schema}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	if err := s.migrations(ctx, func(p *goose.Provider) error {
		_, err := p.UpTo(ctx, 1)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
VALUES (1, 'old', 'POINT', 'RUNNING', 5, '', 'KRW', 3, false, false, now())`,
		`INSERT INTO summaries (promotion_id, summary_id, queued, queued_amount) VALUES (1, 0, 1, 5)`,
		`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, first_dispatched_at, dispatch, attempts,
  state, maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
VALUES (1, 7, 0, 5, now(), now(), now(), 1, 0, 1, false, 'u', '', '', '', '')`,
	} {
		if _, err := s.pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// acquire takes a connection of the pool for the test.
func acquire(t *testing.T, s *Store) *pgxpool.Conn {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return conn
}

// TestApprovedBeforeTheMigration checks what becomes of approvals of an older schema.
func TestApprovedBeforeTheMigration(t *testing.T) {
	t.Parallel()
	s := old(t)
	if err := s.migrations(t.Context(), func(p *goose.Provider) error {
		_, err := p.UpTo(t.Context(), storetest.ApprovedBefore)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), `TRUNCATE promotions, summaries, payouts CASCADE`); err != nil {
		t.Fatal(err)
	}
	storetest.ExerciseApprovedBefore(t, s, func(second int) string { return fmt.Sprintf("to_timestamp(%d)", second) }, func(sql string) error {
		_, err := s.pool.Exec(t.Context(), sql)
		return err
	})
}

func TestMigrateRowsOfAnOlderSchema(t *testing.T) {
	t.Parallel()
	one := func(t *testing.T, s *Store, sql string) (n int64) {
		t.Helper()
		if err := s.pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Run("TheyLiveOnUpAndDownWithoutARewrite", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		ctx := t.Context()
		const file = `SELECT pg_relation_filenode('payouts')::int8`
		before := one(t, s, file)
		for range 2 {
			if err := s.Migrate(ctx); err != nil {
				t.Fatal(err)
			}
			storetest.AfterMigration(t, s)
			if err := s.migrations(ctx, func(p *goose.Provider) error {
				_, err := p.DownTo(ctx, 1)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if n := one(t, s, `SELECT count(*) FROM payouts WHERE target_id = 7`); n != 1 {
			t.Errorf("after the way down there are %d rows", n)
		}
		if after := one(t, s, file); after != before {
			t.Errorf("payouts was rewritten: file %d became %d", before, after)
		}
	})
	t.Run("AnInterruptedOneIsRepeated", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		for range 2 {
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			storetest.AfterMigration(t, s)
			if n := one(t, s, `SELECT count(*) - (SELECT count(*) FROM payout_users) FROM payouts`); n != 0 {
				t.Errorf("%d payouts more than users of payouts", n)
			}
			if _, err := s.pool.Exec(t.Context(), `UPDATE dead_letters SET status = 'OPEN'`); err != nil {
				t.Fatal(err)
			}
			// As if the process had crashed before it recorded the migration.
			if n := one(t, s, `WITH d AS (DELETE FROM goose_db_version WHERE version_id > 1 RETURNING 1) SELECT count(*) FROM d`); n == 0 {
				t.Fatal("no migration was recorded")
			}
		}
	})
	t.Run("WhoIsAtWorkDelaysItAndDoesNotFailIt", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		conn, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for _, sql := range []string{"BEGIN", "SET LOCAL idle_in_transaction_session_timeout = 0", "SELECT 1 FROM payouts"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() { done <- s.Migrate(t.Context()) }()
		waitForTries(t, s, 2)
		if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		storetest.AfterMigration(t, s)
	})
	t.Run("AnInvalidIndexIsBuiltAgain", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		ctx := t.Context()
		if err := s.migrations(ctx, func(p *goose.Provider) error {
			_, err := p.UpTo(ctx, 11)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		reader, builder := acquire(t, s), acquire(t, s)
		run := func(conn *pgxpool.Conn, sql string) {
			t.Helper()
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
		run(reader, "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE coupons IN ROW EXCLUSIVE MODE")
		run(builder, "SET lock_timeout = '50ms'")
		for _, index := range []string{"UNIQUE INDEX CONCURRENTLY coupons_code_of_template ON coupons (code, template_id)", "INDEX CONCURRENTLY coupons_held ON coupons (template_id)"} {
			if _, err := builder.Exec(ctx, "CREATE "+index); !hasState(err, "55P03") {
				t.Fatalf("the build of the index ended with %v", err)
			}
		}
		run(reader, "ROLLBACK")
		run(builder, "RESET lock_timeout")
		const invalid = `SELECT count(*) FROM pg_index WHERE indrelid = 'coupons'::regclass AND NOT indisvalid`
		if n := one(t, s, invalid); n != 2 {
			t.Fatalf("the builds left %d invalid indexes", n)
		}
		if err := s.Migrate(ctx); err != nil {
			t.Fatal(err)
		}
		if n := one(t, s, invalid); n != 0 {
			t.Errorf("%d indexes of coupons are invalid: a code could be given twice", n)
		}
	})
	t.Run("WhoNeverEndsIsNamedAsTheCause", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		conn, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for _, sql := range []string{"BEGIN", "SET LOCAL idle_in_transaction_session_timeout = 0", "SELECT 1 FROM payouts"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		impatient := s.pool.Config()
		impatient.ConnConfig.RuntimeParams["lock_timeout"] = "50ms" // 8 tries of 2 s prove no more
		pool, err := pgxpool.NewWithConfig(t.Context(), impatient)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		err = (&Store{pool: pool, schema: s.schema, tryTimeout: tryTimeout}).Migrate(t.Context())
		if err == nil || !hasState(err, "55P03") || !strings.Contains(err.Error(), "pg_stat_activity") {
			t.Errorf("Migrate = %v", err)
		}
		if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatalf("once it has ended: %v", err)
		}
		storetest.AfterMigration(t, s)
	})
}

// TestUsersOfPayouts checks the table of users for every writer of payouts,
// including a previous version that does not know it. Duplicate and stale rows
// must not change a result.
func TestUsersOfPayouts(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	ctx := t.Context()
	do := func(sql string) {
		t.Helper()
		if _, err := s.pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, user string, targets ...reward.TargetID) {
		t.Helper()
		list, err := s.PayoutHistory(ctx, user, 3)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]reward.TargetID, len(list))
		for i, p := range list {
			got[i] = p.TargetID
		}
		if !slices.Equal(got, targets) {
			t.Errorf("%s: %s has %v, want %v", what, user, got, targets)
		}
	}
	const insert = `INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts, state,
  maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1, i, 0, 1, now(), now(), 0, 0, 0, false, `
	do(insert + `'ann', '', '', '', '' FROM generate_series(1, 3) i`)
	do(insert + `'', '', '', '', '' FROM generate_series(4, 6) i`)
	want("saved", "ann", 1, 2, 3)
	rows := func() (n int) {
		t.Helper()
		if err := s.pool.QueryRow(ctx, `SELECT count(*) FROM payout_users`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := rows(); n != 3 {
		t.Errorf("%d rows for three payouts with a user", n)
	}
	do(`UPDATE payouts SET state = 6 WHERE promotion_id = 1`)
	do(`INSERT INTO payout_users (promotion_id, target_id, user_id) VALUES (1, 1, 'ann'), (1, 1, 'bob'), (1, 9, 'bob'), (1, 2, 'ann')`)
	want("there twice", "ann", 1, 2, 3)
	want("of another, or gone", "bob")
	do(`DELETE FROM payouts WHERE promotion_id = 1 AND target_id < 3`)
	want("deleted", "ann", 3)
	if n := rows(); n != 3 {
		t.Errorf("%d rows are left, want one of ann and the two of bob", n)
	}
}

// TestHandoversEndAtTheirMost checks that the count of failed deliveries never
// overflows.
func TestHandoversEndAtTheirMost(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	storetest.ExerciseHandoversMax(t, s, func(sql string) error {
		_, err := s.pool.Exec(t.Context(), sql)
		return err
	})
}

// TestRules compares the statements with the rules, case by case.
func TestRules(t *testing.T) {
	t.Parallel()
	storetest.ExerciseRules(t, lend, func(s store.Store) storetest.Raw {
		pool := s.(*Store).pool
		return storetest.Raw{
			Exec: func(sql string) error {
				_, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
				return err
			},
			Query: func(sql string) ([][]string, error) {
				rows, err := pool.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
				if err != nil {
					return nil, err
				}
				return pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]string, error) {
					var texts []string
					for _, v := range row.RawValues() { // text, in the simple protocol
						texts = append(texts, string(v))
					}
					return texts, nil
				})
			},
			Moment: func(t time.Time) string { return t.Format("'2006-01-02 15:04:05.999999Z'") },
			Micros: func(column string) string { return "(extract(epoch FROM " + column + ") * 1000000)::int8" },
		}
	})
}

// TestCountsAreRepaired changes counts with statements that the store does not
// have.
func TestCountsAreRepaired(t *testing.T) {
	t.Parallel()
	for name, exercise := range map[string]func(*testing.T, store.Store, func(sql string) error){
		"OfEveryKind": storetest.ExerciseRepair, "OfAnEndedPromotion": storetest.ExerciseRepairOfEnded,
		"AmongWrites": storetest.ExerciseRepairAmongWrites,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t).(*Store)
			exercise(t, s, func(sql string) error {
				_, err := s.pool.Exec(t.Context(), sql)
				return err
			})
		})
	}
}

// TestInstancesAreForgottenAfterADay moves heartbeats back, because the clock
// is that of the database.
func TestInstancesAreForgottenAfterADay(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	storetest.ExerciseInstancesForgotten(t, s, func(name string, ago time.Duration) error {
		_, err := s.pool.Exec(t.Context(), `UPDATE instances SET seen_at = clock_timestamp() - $1::interval WHERE name = $2`, ago, name)
		return err
	}, func() (names int, err error) {
		err = s.pool.QueryRow(t.Context(), `SELECT count(*) FROM instances`).Scan(&names)
		return names, err
	})
}

// TestIdempotencyKeysAreForgotten counts rows, which no method shows.
func TestIdempotencyKeysAreForgotten(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	storetest.ExerciseIdempotencyForgotten(t, s, func() (keys int, err error) {
		err = s.pool.QueryRow(t.Context(), `SELECT count(*) FROM idempotency_keys`).Scan(&keys)
		return keys, err
	})
}

// TestForgettingKeysWaitsForNobody checks that a locked key is left to the next
// call.
func TestForgettingKeysWaitsForNobody(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	ctx := t.Context()
	begin := func(key byte, now time.Time) {
		t.Helper()
		p := store.IdempotencyBeginParams{Key: make([]byte, 32), Fingerprint: make([]byte, 32), Lease: time.Second, Kept: time.Minute, Now: now}
		p.Key[0] = key
		if r, err := s.IdempotencyBegin(ctx, p); err != nil || !r.Claimed {
			t.Fatalf("key %d: %+v, %v", key, r, err)
		}
	}
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for key := range byte(5) {
		begin(key, now)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		"BEGIN", "SET LOCAL idle_in_transaction_session_timeout = 0", `SELECT 1 FROM idempotency_keys ORDER BY key LIMIT 2 FOR UPDATE`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	// End the waiting session, because the lock is never released.
	begin(9, now.Add(time.Hour))
	var left int
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM idempotency_keys`).Scan(&left); err != nil || left != 3 {
		t.Errorf("%d keys are left (%v), want the two that are held and the new one", left, err)
	}
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	begin(8, now.Add(time.Hour))
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM idempotency_keys`).Scan(&left); err != nil || left != 2 {
		t.Errorf("%d keys are left (%v), want the two new ones", left, err)
	}
}

// waitForTries waits until a number of transactions of the test have waited for
// a lock. Each try is one transaction.
func waitForTries(t *testing.T, s *Store, most int) {
	t.Helper()
	tries := make(map[string]bool)
	for deadline := time.Now().Add(20 * time.Second); len(tries) < most; {
		rows, err := s.pool.Query(t.Context(), `SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE NOT l.granted AND l.locktype <> 'advisory' AND a.application_name = $1`, t.Name()[:min(len(t.Name()), 63)])
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			tries[name] = true
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d tries were seen to wait, want %d", len(tries), most)
		}
		service.Sleep(t.Context(), 10*time.Millisecond)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	t.Run("SaysWhatIsWrong", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{"postgres://%zz", "postgres://nobody@127.0.0.1:1/none?sslmode=disable"} {
			if s, err := Open(t.Context(), Config{URL: url}); err == nil {
				s.Close()
				t.Errorf("%s was opened", url)
			}
		}
	})
	t.Run("SessionsEndWhatWentSilent", func(t *testing.T) {
		t.Parallel()
		s := open(t).(*Store)
		for name, want := range map[string]string{
			"lock_timeout": "2s", "idle_in_transaction_session_timeout": "1s", "plan_cache_mode": "force_generic_plan",
			"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off",
		} {
			var got string
			if err := s.pool.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
				t.Errorf("%s is %q (%v), want %q", name, got, err, want)
			}
		}
	})
}

// TestLocks checks that a row locked by another transaction delays a write but
// does not fail it.
func TestLocks(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	// held returns a store with one QUEUED payout and a connection that locks it.
	held := func(t *testing.T, setting string) (*Store, *pgxpool.Conn) {
		t.Helper()
		s := open(t).(*Store)
		ctx := t.Context()
		if _, err := s.PromotionRegister(ctx, []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, now); err != nil {
			t.Fatal(err)
		}
		rows := []store.NewPayout{{PromotionID: 1, TargetID: 1, Amount: 5}}
		if _, err := s.PayoutSave(ctx, store.PayoutSaveParams{Rows: rows, MaxLen: 1, Now: now}); err != nil {
			t.Fatal(err)
		}
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
		for _, sql := range []string{"BEGIN", setting, "SELECT 1 FROM payouts WHERE promotion_id = 1 FOR UPDATE"} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
		return s, conn
	}
	finish := func(t *testing.T, s *Store) <-chan error {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			res, err := s.PayoutFinish(t.Context(), store.PayoutFinishParams{Now: now, Outcomes: []rules.Outcome{
				{Ref: reward.Ref{PromotionID: 1, TargetID: 1, Dispatch: 1}, Kind: rules.OutcomePaid},
			}})
			if err == nil && !res[0].Changed {
				err = errors.New("the outcome changed nothing")
			}
			done <- err
		}()
		return done
	}
	t.Run("TriesAgainWhenALockIsNotHadInTime", func(t *testing.T) {
		t.Parallel()
		s, conn := held(t, "SET LOCAL idle_in_transaction_session_timeout = 0")
		done := make(chan error, 1)
		go func() {
			_, err := s.PayoutSettle(t.Context(), store.PayoutSettleParams{Now: now, Lookups: []rules.Lookup{
				{Ref: reward.Ref{PromotionID: 1, TargetID: 1, Dispatch: 1}, Found: true, BeganAt: now, NextAt: now},
			}})
			done <- err
		}()
		waitForTries(t, s, 2)
		if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	t.Run("AHolderWhoWentSilentIsEnded", func(t *testing.T) {
		t.Parallel()
		s, _ := held(t, "SELECT 1")
		if err := <-finish(t, s); err != nil {
			t.Fatal(err)
		}
	})
}

// TestASilentNetworkEndsATry checks that a try ends in time if the server
// accepts everything and answers nothing.
func TestASilentNetworkEndsATry(t *testing.T) {
	t.Parallel()
	if tryTimeout != 10*time.Second {
		t.Errorf("a try is bounded by %v", tryTimeout)
	}
	direct := open(t).(*Store)
	address, err := url.Parse(serverURL(t))
	if err != nil {
		t.Fatal(err)
	}
	line := newSilentLine(t, address.Host)
	address.Host = line.listener.Addr().String()
	s, err := Open(t.Context(), Config{URL: address.String(), Schema: direct.schema, MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer line.cut() // runs first: the pool waits for the calls that it cancels
	s.tryTimeout = 300 * time.Millisecond
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	if _, err := s.PromotionRegister(t.Context(), []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, now); err != nil {
		t.Fatal(err)
	}
	line.silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = s.PayoutSave(ctx, store.PayoutSaveParams{Rows: []store.NewPayout{{PromotionID: 1, TargetID: 1}}, Now: now})
	if ctx.Err() != nil {
		t.Fatalf("the try lasted until its caller left: %v", err)
	}
	if err == nil || !strings.Contains(err.Error(), "save payouts: no answer within 300ms") {
		t.Fatalf("the error is %v", err)
	}
}

// TestAnUnreachableDatabase checks that calls without a database say so, by which the API
// tells callers to try again.
func TestAnUnreachableDatabase(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(serverURL(t))
	if err != nil {
		t.Fatal(err)
	}
	line := newSilentLine(t, address.Host)
	address.Host = line.listener.Addr().String()
	s, err := Open(t.Context(), Config{URL: address.String(), Schema: lend(t).(*Store).schema, MaxConnections: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Clock(t.Context()); err != nil {
		t.Fatal(err)
	}
	line.cut()
	for name, call := range map[string]func() error{
		"read": func() error { _, err := s.PromotionGet(t.Context(), 1); return err },
		"write": func() error {
			_, err := s.PromotionRegister(t.Context(), []store.Registration{{ID: 1, Type: reward.Point}}, time.Now())
			return err
		},
		"view": func() error { _, err := s.PromotionGet(store.ForViewer(t.Context()), 1); return err },
	} {
		err := call()
		if !errors.Is(err, reward.ErrUnreachable) && !reward.HasCode(err, reward.CodeUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// silentLine forwards bytes in both directions until it is silenced. It then
// drops them.
type silentLine struct {
	listener net.Listener
	silent   atomic.Bool
	cut      func()
}

func newSilentLine(t *testing.T, target string) *silentLine {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	l := &silentLine{listener: listener}
	l.cut = func() {
		cancel()
		_ = listener.Close()
		wg.Wait()
	}
	t.Cleanup(l.cut)
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				return
			}
			context.AfterFunc(ctx, func() {
				_ = client.Close()
				_ = server.Close()
			})
			wg.Go(func() { l.hand(client, server) })
			wg.Go(func() { l.hand(server, client) })
		}
	})
	return l
}

func (l *silentLine) hand(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if l.silent.Load() {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestPlans checks that every main statement reaches payouts by an index, row
// by row, on a table that was never analyzed.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	ctx := t.Context()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		`ALTER TABLE payouts SET (autovacuum_enabled = off)`,
		`ALTER TABLE payout_users SET (autovacuum_enabled = off)`,
		`ALTER TABLE summaries SET (autovacuum_enabled = off)`,
		`ALTER TABLE promotions SET (autovacuum_enabled = off)`,
		`ALTER TABLE coupons SET (autovacuum_enabled = off)`,
		`ALTER TABLE coupon_templates SET (autovacuum_enabled = off)`,
		`ALTER TABLE audit SET (autovacuum_enabled = off)`,
		`ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)`,
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
SELECT i, '', 'POINT', 'RUNNING', 0, '', '', 5, false, false, now() FROM generate_series(1, 2000) i`,
		`INSERT INTO summaries (promotion_id, summary_id) SELECT i, j FROM generate_series(1, 2000) i, generate_series(0, 4) j`,
		`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts, state,
  maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1 + i % 2, i, 0, 1, now(), now(), 0, 0, 0, false, 'u' || i, '', '', '', '' FROM generate_series(1, 200000) i`,
		`INSERT INTO coupon_templates (id, name, total_quantity, per_user_limit, valid_for, mode, reissue, when_redis_away, draw_state, created_at)
SELECT i, '', 1000000, 1, 0, 'STREAM', false, 'DATABASE', '', now() FROM generate_series(1, 2000) i`,
		`INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, slot, code, user_id)
SELECT i, 1 + i % 2, 0, i, i, now(), 1, 'c' || i, 'u' || i FROM generate_series(1, 100000) i`,
		`INSERT INTO audit (id, at, actor, role, action, subject, request_id, detail)
SELECT i, now(), 'a' || i % 9, 'admin', 'b' || i % 9, '/v1/promotions/' || i % 999, '', '{}' FROM generate_series(1, 50000) i`,
		`INSERT INTO idempotency_keys (key, id, first_at, begun_at, fingerprint)
SELECT sha256(i::text::bytea), i, now(), now(), sha256('') FROM generate_series(1, 50000) i`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	// Rare rows have their own index, which must be used.
	indexes := map[string][]string{
		"dispatch due": {"payouts_open", "payouts_back"}, "claim lookups": {"payouts_unknown", "payouts_again"},
		"retry": {"payouts_listed"}, "retry a code": {"payouts_code"}, "due": {"promotions_due"},
		"settle coupons in order": {"coupons_slot"}, "settle coupons listed": {"coupons_slot", "coupons_ticket", "coupon_rejections_pkey"},
		"settle coupons directly": {"coupons_slot"}, "own coupons": {"coupons_slot"}, "coupons of a template": {"coupons_ticket"},
		"coupons of a user": {"coupons_user"}, "coupons by code": {"coupons_code_of_template"}, "latest coupons": {"coupons_slot"}, "latest rejections": {"coupon_rejections_user"},
		"history of coupons": {"coupons_user"}, "history of rejections": {"coupon_rejections_user"},
		"changed coupons": {"coupons_version", "coupon_rejections_version"}, "changed facts": {"coupons_version", "coupons_slot"},
		"holders": {"coupons_slot"}, "holder": {"coupons_slot"}, "expire coupons": {"coupons_expiry"},
		"end holds": {"coupons_held"}, "holdings after ended holds": {"coupons_version", "coupons_slot"}, "find ended holds": {"coupons_held"},
		"active templates": {"coupon_templates_closes", "coupon_templates_pkey"}, "has entrants": {"coupon_entrants_pkey"},
		"list entrants": {"coupon_entrants_pkey"}, "draws of a user": {"coupon_entrants_user", "coupon_templates_pkey"}, "record a refusal": {"coupon_refusals_pkey"},
		"payouts of a user": {"payout_users_user", "payouts_pkey"}, "answers of a user": {"payout_users_user", "payouts_pkey", "attempts_pkey"},
		"views": {"promotions_pkey", "summaries_pkey"}, "active": {"promotions_active"}, "whole list": {"promotions_active"},
		"changes": {"changes_changed", "promotions_active", "summaries_pkey"}, "find an API key": {"api_keys_hash"}, "list API keys": {"api_keys_pkey"},
		"use an API key": {"api_keys_pkey"}, "end an audit line": {"audit_pkey"},
		"forget audit lines": {"audit_pkey"}, "forget dead letters": {"dead_letters_status", "dead_letters_pkey"},
		"read a key": {"idempotency_keys_pkey"}, "delete expired keys": {"idempotency_keys_first", "idempotency_keys_pkey"},
		"finish a key": {"idempotency_keys_pkey"}, "drop a key": {"idempotency_keys_pkey"}, "release a key": {"idempotency_keys_pkey"},
		"claim webhook deliveries": {"webhooks_open", "webhooks_pkey"},
		"assign a template":        {"coupon_templates_pkey"}, "list refusals": {"coupon_refusals_pkey"},
	}
	large := regexp.MustCompile(`using (changes|payout|attempts|coupon|audit|idempotency_keys|api_keys)`)
	for name, sql := range statements() {
		plan := planOf(t, conn, name, sql)
		for _, index := range indexes[name] {
			if !strings.Contains(plan, "using "+index+" ") {
				t.Errorf("%s does without %s:\n%s", name, index, plan)
			}
		}
		for _, bad := range []string{"Seq Scan", "Hash Join", "Hash Semi Join", "Hash Anti Join", "Merge Join", "Bitmap"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s has a %s:\n%s", name, bad, plan)
			}
		}
		// Every index scan of a table that may be large finds single rows. It does not
		// read all of them.
		lines := strings.Split(plan, "\n")
		for i, line := range lines {
			if large.MatchString(line) && (i+1 == len(lines) || !strings.Contains(lines[i+1], "Index Cond")) {
				t.Errorf("%s walks a whole index:\n%s", name, plan)
			}
		}
	}
}

// TestPlansOutliveASmallTable checks that a plan made with few rows is still
// good with a million: every row is reached by its whole key. PostgreSQL
// analyzes a table automatically only after about as many rows have changed.
func TestPlansOutliveASmallTable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rows     int
		analysed bool
	}{{rows: 0}, {rows: 100}, {rows: 1000}, {rows: 10_000}, {rows: 100, analysed: true}, {rows: 1000, analysed: true}} {
		t.Run(fmt.Sprintf("%d rows, analysed %t", c.rows, c.analysed), func(t *testing.T) {
			t.Parallel()
			testSmallTable(t, c.rows, c.analysed)
		})
	}
}

func testSmallTable(t *testing.T, rows int, analysed bool) {
	t.Helper()
	s := open(t).(*Store)
	ctx := t.Context()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	n, then := strconv.Itoa(rows), "SELECT 1"
	if analysed {
		then = `ANALYZE promotions, summaries, payouts, payout_users, coupon_templates, coupons, coupon_entrants`
	}
	for _, sql := range []string{
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
VALUES (1, '', 'POINT', 'RUNNING', 0, '', '', 5, false, false, now())`,
		`INSERT INTO summaries (promotion_id, summary_id) VALUES (1, 0)`,
		`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts, state,
  maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1, i, 0, 1, now(), now(), 0, 0, 0, false, 'u' || i, '', '', '', '' FROM generate_series(1, ` + n + `) i`,
		`INSERT INTO coupon_templates (id, name, total_quantity, per_user_limit, valid_for, mode, reissue, when_redis_away, draw_state, created_at)
VALUES (1, '', 100, 1, 0, 'STREAM', false, 'DATABASE', '', now())`,
		`INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, slot, code, user_id)
SELECT i, 1, 0, i, i, now(), 1, 'c' || i, 'u' || i FROM generate_series(1, ` + n + `) i`,
		`INSERT INTO coupon_entrants (template_id, user_id) SELECT 1, 'u' || i FROM generate_series(1, ` + n + `) i`,
		then,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	// Statements that name their rows must not use other indexes.
	named := []string{"dispatch named", "give back", "finish", "finish held", "settle", "heads", "attempts", "retry named", "resolve"}
	// payouts_back has few rows, so reading all of it is cheap.
	joined := regexp.MustCompile(`Join Filter: .*\b(target_id|user_id|ticket|code)\b(.*\n){1,3}.*using (payout|coupon)`)
	back := regexp.MustCompile(`Join Filter: (.*\n){1,4}.*using payouts_back`)
	for name, sql := range statements() {
		plan := back.ReplaceAllString(planOf(t, conn, name, sql), "")
		if joined.MatchString(plan) {
			t.Errorf("%s compares every row of a promotion or a template with every row of the batch:\n%s", name, plan)
		}
		for _, index := range regexp.MustCompile(`using (payouts_\w+)`).FindAllStringSubmatch(plan, -1) {
			if slices.Contains(named, name) && index[1] != "payouts_pkey" && index[1] != "payouts_back" {
				t.Errorf("%s walks %s:\n%s", name, index[1], plan)
			}
		}
	}
}

// lists returns the statement of each list of payouts and promotions, with each
// of its filters.
func lists() map[string]string {
	all := map[string]string{
		"list": listSQL(nil, ""), "list a code": listSQL(nil, "A"),
	}
	for name, page := range dialect.PromotionPages() {
		all[name] = promotionPages + page
	}
	for s := range reward.StateCount {
		all["list "+s.String()], all["list "+s.String()+" with a code"] = listSQL(&s, ""), listSQL(&s, "A")
	}
	return all
}

// TestListsHaveIndexes checks that each filter of each list has an index in the
// order of the list, whatever the planner expects to find: in a table that was
// never analyzed, in a small one, and in one with almost only finished rows.
func TestListsHaveIndexes(t *testing.T) {
	t.Parallel()
	indexes := map[string]string{
		"list": "payouts_pkey", "list a code": "payouts_code", "list QUEUED": "payouts_open", "list promotions": "promotions_pkey",
		"list promotions in a status": "promotions_status", "list promotions of a creator": "promotions_creator",
		"search promotions":     "promotions_pkey",
		"list promotions by ID": "promotions_pkey", "list promotions by name": "promotions_name", "list promotions by name, down": "promotions_name",
		"list promotions by time": "promotions_created", "list promotions by time, down": "promotions_created",
		"list promotions of a time": "promotions_created",
		"audit":                     "audit_pkey", "audit of a subject": "audit_subject", "audit below": "audit_subject", "audit below by an actor": "audit_subject",
		"audit of an actor": "audit_actor", "audit of an action": "audit_action", "audit of an actor with an action": "audit_actor",
		"dead letters": "dead_letters_pkey", "dead letters with a status": "dead_letters_status",
		"dead letters of a source": "dead_letters_source", "dead letters of a source with a status": "dead_letters_source",
		"dead letters with a reason": "dead_letters_reason", "dead letters with a reason and a status": "dead_letters_reason",
		"dead letters of a source with a reason": "dead_letters_source_reason", "dead letters of a source with a reason and a status": "dead_letters_source_reason",
	}
	for s := range reward.StateCount {
		indexes["list "+s.String()+" with a code"] = "payouts_code"
		if s != reward.Queued {
			indexes["list "+s.String()] = "payouts_listed"
		}
	}
	for name := range dialect.PromotionPages() {
		if first, next, _ := strings.Cut(name, ", next"); next != "" && indexes[first] != "" {
			indexes[name] = indexes[first]
		}
	}
	all := lists()
	maps.Copy(all, dialect.Statements())
	for _, c := range []struct {
		rows     string
		analysed bool
	}{{"0", false}, {"100", true}, {"30000", false}, {"30000", true}} {
		t.Run(fmt.Sprintf("%s rows, analysed %t", c.rows, c.analysed), func(t *testing.T) {
			t.Parallel()
			s := open(t).(*Store)
			conn, err := s.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			then := "SELECT 1"
			if c.analysed {
				then = "ANALYZE promotions, summaries, payouts, dead_letters, audit"
			}
			for _, sql := range []string{
				`ALTER TABLE payouts SET (autovacuum_enabled = off)`, `ALTER TABLE promotions SET (autovacuum_enabled = off)`,
				`ALTER TABLE dead_letters SET (autovacuum_enabled = off)`, `ALTER TABLE audit SET (autovacuum_enabled = off)`,
				`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
SELECT i, '', 'POINT', 'COMPLETED', 0, '', '', 5, false, true, now() FROM generate_series(1, ` + c.rows + ` / 10) i`,
				`INSERT INTO summaries (promotion_id, summary_id) SELECT i, 0 FROM generate_series(1, ` + c.rows + ` / 10) i`,
				`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts, state,
  maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1 + i % (` + c.rows + ` / 10), i, 0, 1, now(), now(), 0, 0, CASE i % 1000 WHEN 7 THEN 5 ELSE 4 END, false, '', '', '',
  CASE i % 1000 WHEN 7 THEN 'A' ELSE '' END, '' FROM generate_series(1, ` + c.rows + `) i`,
				`INSERT INTO dead_letters (source, part, off, reason, detail, at, status)
SELECT 'a', 0, i, CASE i % 1000 WHEN 7 THEN 'B' ELSE 'A' END, '', now(), 'DISCARDED' FROM generate_series(1, ` + c.rows + `) i`,
				`INSERT INTO audit (id, at, actor, role, action, subject, request_id, detail)
SELECT i, now(), 'a' || i % 9, 'admin', 'retry-payouts', '/v1/promotions/' || i % 99, '', '' FROM generate_series(1, ` + c.rows + `) i`,
				then,
			} {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			for name, index := range indexes {
				plan := planOf(t, conn, name, all[name])
				if !regexp.MustCompile(`using `+index+` `).MatchString(plan) || strings.Contains(plan, "Seq Scan") {
					t.Errorf("%s does without %s:\n%s", name, index, plan)
				}
			}
		})
	}
}

// statements returns the main statements and the shared ones.
func statements() map[string]string {
	all := map[string]string{
		"insert": insertSQL, "dispatch due": dispatchDue, "dispatch named": dispatchNamed, "give back": returnSQL,
		"sweep": sweepSQL, "cancel": cancelSQL, "finish": finishSQL, "finish held": finishHeldSQL, "settle": settleSQL, "heads": headsSQL,
		"claim lookups": claimLookupsSQL, "attempts": attemptsSQL, "reopen": reopenSQL, "lock totals": lockTotals,
		"summaries": addSummaries, "correct": correctSQL, "complete": completeSQL, "due": viewSQL + dueSQL,
		"active": viewSQL + activeList, "whole list": wholeSQL, "changes": changesSQL,
		"move": moveSQL, "change a promotion": changePromotion, "changed promotion": changedPromotion, "judge": judgeSQL, "retry": retryAny, "retry a code": retryCode, "retry named": retryNamed, "resolve": resolveSQL,
		"settle coupons in order": settleInOrder, "settle coupons listed": settleListed, "settle coupons directly": settleDirect,
		"own coupons": existingSQL, "lock a template": lockTemplate, "lock the template of a coupon": lockCouponTemplate,
		"confirm a coupon": confirmCoupon, "end holds": endHolds, "holdings after ended holds": endedHoldings, "cancel a coupon": cancelCoupon, "use a coupon": useCoupon, "holder": holderSQL, "a coupon": couponSQL,
		"coupons of a template": couponsOfTemplate, "coupons of a user": couponsOfUser, "coupons by code": couponsByCode, "latest coupons": latestCoupons,
		"latest rejections": latestRejections, "history of coupons": historyCoupons, "history of rejections": historyRejections,
		"changed coupons": changedSQL, "changed facts": changedHoldings, "holders": holdersSQL,
		"a template": templateSQL, "active templates": activeTemplates, "change a template": changeTemplate,
		"save entrants": saveEntrants, "has entrants": hasEntrants, "record a refusal": recordRefusal, "stage codes": stageCodes,
		"payouts of a user": historyPayouts, "answers of a user": historyAnswers,
		"views": viewSQL + viewsOf, "details": detailSQL + "WHERE m.id = $1",
		"approve": approveSQL, "await approval": awaitSQL, "reject": rejectSQL, "add totals": addTotals, "mark rounds without value": unvaluedSQL,
		"lock an import": lockImport, "publish codes": publishCodes, "leave the line": leaveLine, "requests that left": leftRequests, "waiting line": waitingLine,
	}
	maps.Copy(all, lists())
	maps.Copy(all, dialect.Statements())
	return all
}

var parameter = regexp.MustCompile(`\$(\d+)`)

// planOf returns the plan that a prepared statement uses for every call.
func planOf(t *testing.T, conn *pgxpool.Conn, name, sql string) string {
	t.Helper()
	ctx := t.Context()
	// Prepare by name: only then is the plan reused for every call.
	if _, err := conn.Conn().PgConn().Exec(ctx, "PREPARE probe AS "+sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	most := 0
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		var n int
		if _, err := fmt.Sscan(m[1], &n); err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
	}
	nulls := ""
	if most > 0 {
		nulls = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", most), ", ") + ")"
	}
	res, err := conn.Conn().PgConn().Exec(ctx, "EXPLAIN EXECUTE probe"+nulls+"; DEALLOCATE probe").ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var plan strings.Builder
	for _, line := range res[0].Rows {
		plan.Write(line[0])
		plan.WriteByte('\n')
	}
	return plan.String()
}

// finishOne records that a dispatched payout was paid.
func finishOne(t *testing.T, s *Store, id reward.PromotionID) error {
	t.Helper()
	_, err := s.PayoutFinish(t.Context(), store.PayoutFinishParams{
		Outcomes: []rules.Outcome{{Ref: reward.Ref{PromotionID: id, TargetID: 1, Dispatch: 1}, Kind: rules.OutcomePaid, TransactionKey: "T"}},
		Now:      time.Now(),
	})
	return err
}

// TestFinishSaysWhyItsRowsAreRefused locks and then breaks the counts of a
// promotion.
func TestFinishSaysWhyItsRowsAreRefused(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	ctx := t.Context()
	if _, err := s.PromotionRegister(ctx, []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	saved, err := s.PayoutSave(ctx, store.PayoutSaveParams{
		Rows: []store.NewPayout{{PromotionID: 1, TargetID: 1, UserID: "u", Amount: 1}}, MaxLen: 1, Now: time.Now(),
	})
	if err != nil || len(saved.Queued) != 1 {
		t.Fatalf("saved %+v, %v", saved, err)
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT FROM summaries FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	// The connection sends nothing for longer than sharedLockWait.
	if _, err := tx.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	if err := finishOne(t, s, 1); !errors.Is(err, store.ErrLocked) {
		t.Errorf("finish under a lock: %v", err)
	}
	if _, err := s.PayoutReturn(ctx, store.PayoutReturnParams{Refs: []reward.Ref{{PromotionID: 1, TargetID: 1, Dispatch: 1}}, Now: time.Now()}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("return under a lock: %v", err)
	}
	if _, err := tx.Exec(ctx, `UPDATE summaries SET queued = 0`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	var broken *store.ConstraintError
	if err := finishOne(t, s, 1); !errors.As(err, &broken) || broken.Constraint != "summaries_queued_check" {
		t.Errorf("finish with broken counts: %v", err)
	}
	if _, err := s.SummaryCompare(ctx, 1, true); err != nil {
		t.Fatal(err)
	}
	if err := finishOne(t, s, 1); err != nil {
		t.Errorf("finish after the repair: %v", err)
	}
}

// TestABudgetCostsASaveLittle saves into a running promotion with a budget and
// 100,000 READY rows that may have been charged. The budget must count them, and is
// nearly spent.
func TestABudgetCostsASaveLittle(t *testing.T) {
	t.Parallel()
	const flagged = 100_000
	s := open(t).(*Store)
	ctx := t.Context()
	for _, id := range []reward.PromotionID{1, 2} {
		if _, err := s.PromotionRegister(ctx, []store.Registration{{ID: id, Type: reward.Point, Started: true}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{
			`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, first_dispatched_at, dispatch, attempts,
  state, maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT $1::int8, i, 0, 1, now(), now(), now(), 1, 0, 0, true, 'u', '', '', '', '' FROM generate_series(1, $2::int8) i`,
			`UPDATE summaries SET ready = $2, ready_amount = $2 WHERE promotion_id = $1`,
		} {
			if _, err := s.pool.Exec(ctx, sql, id, int64(flagged)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Of the rows saved, 500 fit into the budget.
	if _, err := s.pool.Exec(ctx, `UPDATE promotions SET max_amount = $1 WHERE id = 1`, flagged+500); err != nil {
		t.Fatal(err)
	}
	next := reward.TargetID(flagged)
	save := func(id reward.PromotionID, n int) (queued int, took time.Duration) {
		rows := make([]store.NewPayout, n)
		for i := range rows {
			next++
			rows[i] = store.NewPayout{PromotionID: id, TargetID: next, UserID: "u", Amount: 1}
		}
		began := time.Now()
		res, err := s.PayoutSave(ctx, store.PayoutSaveParams{Rows: rows, MaxLen: 5000, Now: time.Now()})
		if err != nil {
			t.Fatalf("save %d rows: %v", n, err)
		}
		return len(res.Queued), time.Since(began)
	}
	save(2, 1000) // warms up
	var free, bound time.Duration
	for range 3 {
		_, took := save(2, 1000)
		free += took
	}
	for i := range 3 {
		queued, took := save(1, 1000)
		bound += took
		if want := map[int]int{0: 500}[i]; queued != want {
			t.Errorf("save %d queued %d rows, want %d", i, queued, want)
		}
	}
	t.Logf("saving 1,000 rows takes %v, and %v with a budget", free/3, bound/3)
	if bound > 20*free {
		t.Errorf("a budget makes saving 1,000 rows %.0f times as slow", float64(bound)/float64(free))
	}
}

// TestRowsBelowTheLowWaterMarkAreDispatched saves rows with an earlier clock after
// many rows of a promotion were dispatched.
func TestRowsBelowTheLowWaterMarkAreDispatched(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	ctx, now := t.Context(), time.Now()
	if _, err := s.PromotionRegister(ctx, []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, now); err != nil {
		t.Fatal(err)
	}
	next := reward.TargetID(0)
	save := func(n int, at time.Time) {
		t.Helper()
		rows := make([]store.NewPayout, n)
		for i := range rows {
			next++
			rows[i] = store.NewPayout{PromotionID: 1, TargetID: next, UserID: "u", Amount: 1}
		}
		if _, err := s.PayoutSave(ctx, store.PayoutSaveParams{Rows: rows, Now: at}); err != nil {
			t.Fatal(err)
		}
	}
	dispatch := func(limit, want int) {
		t.Helper()
		list, err := s.PayoutDispatch(ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: limit, MaxLen: 1 << 20, Now: now})
		if err != nil || len(list) != want {
			t.Fatalf("dispatched %d rows, want %d, %v", len(list), want, err)
		}
	}
	for range lowAfter / store.BatchMax {
		save(store.BatchMax, now)
		dispatch(store.BatchMax, store.BatchMax)
	}
	if s.low.get(1).IsZero() {
		t.Fatal("there is no mark")
	}
	save(3, now.Add(-time.Hour))
	dispatch(10, 3)
	save(3, now.Add(-time.Hour))
	save(3, now.Add(time.Second))
	dispatch(2, 2)
	dispatch(10, 4)
	dispatch(10, 0)
}
