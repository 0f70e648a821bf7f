package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/storetest"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// database is a store with its driver.
type database struct {
	*rows.Tables
	*Store
}

func openWith(ctx context.Context, cfg Config) (database, error) {
	s, err := Open(ctx, cfg)
	if err != nil {
		return database{}, err
	}
	return database{s, s.Driver.(*Store)}, nil
}

// openURL opens the schema that is the search path of url, with at most that many
// connections.
func openURL(ctx context.Context, url string, connections int, application string) (database, error) {
	pc, err := pgx.ParseConfig(url)
	if err != nil {
		return database{}, err
	}
	return openWith(ctx, Config{
		URL: url, Schema: pc.RuntimeParams["search_path"], MaxConnections: connections, ApplicationName: application,
	})
}

func openFor(t testing.TB, url string, connections int) database {
	t.Helper()
	s := fixture.Must(openURL(t.Context(), url, connections, t.Name()))(t)
	t.Cleanup(s.Close)
	return s
}

func migrate(ctx context.Context, url string) error {
	s, err := openURL(ctx, url, 1, "")
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Migrate(ctx)
}

// lend opens a schema that has all tables and no rows, and that no other test has at the
// same time.
func lend(t testing.TB) database {
	t.Helper()
	return openFor(t, fixture.Schema(t, migrate), 8)
}

// lent is lend for storetest, whose large batches may take long on a busy machine.
func lent(t testing.TB) *rows.Tables {
	t.Helper()
	s := lend(t)
	s.tryTimeout = fixture.Patience
	return s.Tables
}

// fresh opens a new schema with that many connections, for tests that look at statistics
// or plans. Nothing but the test reads or analyzes its tables.
func fresh(t testing.TB, connections int) database {
	t.Helper()
	s := openFor(t, fixture.NewSchema(t), connections)
	fixture.OK(t, s.Migrate(t.Context()))
	run(t, s, `DO $$ DECLARE name regclass; BEGIN
  FOR name IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = current_schema::regnamespace AND c.relkind = 'r' LOOP
    EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', name);
  END LOOP;
END $$`)
	return s
}

// run executes statements, one transaction each.
func run(t testing.TB, s database, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		fixture.Must(s.pool.Exec(t.Context(), sql))(t)
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, lent)
}

func TestViewers(t *testing.T) {
	t.Parallel()
	storetest.ExerciseViewers(t, lent, storetest.ViewerConnections{
		Hold: holdViewers,
		Endless: func(ctx context.Context, s *rows.Tables) error {
			return s.Driver.(*Store).readLong(ctx, "sleep", func(b *pgx.Batch) { b.Queue(`SELECT pg_sleep(60)`) })
		},
	})
}

// holdViewers takes every connection for viewers.
func holdViewers(ctx context.Context, s *rows.Tables) (release func(), err error) {
	viewers := s.Driver.(*Store).viewers
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
	url, m := fixture.Schema(t, migrate), obs.NewMetrics()
	s := fixture.Must(Open(t.Context(), Config{URL: url, MaxConnections: 2, Metrics: m}))(t)
	defer s.Close()
	storetest.ExerciseMetrics(t, s, m, []string{obs.DatabaseWork, obs.DatabaseReads}, func() (func(), error) { return holdViewers(t.Context(), s) })
}

// TestMigrateAtOnce creates the schema of the settings, whose name needs quotes, from
// several instances at once.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	cfg := Config{URL: fixture.Address(t, fleet.VariablePostgres), Schema: "a schema " + fixture.Name(), MaxConnections: 4}
	var instances []database
	for range 4 {
		s := fixture.Must(openWith(t.Context(), cfg))(t)
		t.Cleanup(s.Close)
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
	if _, err := instances[0].PromotionGet(t.Context(), 1); !reward.HasCode(err, reward.CodeNotFound) {
		t.Errorf("error is %v, want %s", err, reward.CodeNotFound)
	}
	run(t, instances[0], "DROP SCHEMA "+pgx.Identifier{cfg.Schema}.Sanitize()+" CASCADE")
}

// old opens a schema of the first migration with one QUEUED payout.
func old(t *testing.T) database {
	t.Helper()
	s := openFor(t, fixture.NewSchema(t), 4)
	fixture.OK(t, s.migrations(t.Context(), func(p *goose.Provider) error {
		_, err := p.UpTo(t.Context(), 1)
		return err
	}))
	run(t, s,
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
VALUES (1, 'old', 'POINT', 'RUNNING', 5, '', 'KRW', 3, false, false, now())`,
		`INSERT INTO summaries (promotion_id, summary_id, queued, queued_amount) VALUES (1, 0, 1, 5)`,
		`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, first_dispatched_at, dispatch, attempts,
  state, maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
VALUES (1, 7, 0, 5, now(), now(), now(), 1, 0, 1, false, 'u', '', '', '', '')`,
	)
	return s
}

// holding begins a transaction that stays open until the test ends it, and executes
// statements in it.
func holding(t *testing.T, s database, statements ...string) pgx.Tx {
	t.Helper()
	tx := fixture.Must(s.pool.Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	for _, sql := range append([]string{`SET LOCAL idle_in_transaction_session_timeout = 0`}, statements...) {
		fixture.Must(tx.Exec(t.Context(), sql))(t)
	}
	return tx
}

// release ends a transaction of holding without its changes.
func release(t *testing.T, tx pgx.Tx) {
	t.Helper()
	fixture.OK(t, tx.Rollback(t.Context()))
}

// acquire takes a connection of the pool for the test.
func acquire(t *testing.T, s database) *pgxpool.Conn {
	t.Helper()
	conn := fixture.Must(s.pool.Acquire(t.Context()))(t)
	t.Cleanup(conn.Release)
	return conn
}

// TestApprovedBeforeTheMigration checks what becomes of approvals of an older schema.
func TestApprovedBeforeTheMigration(t *testing.T) {
	t.Parallel()
	s := old(t)
	fixture.OK(t, s.migrations(t.Context(), func(p *goose.Provider) error {
		_, err := p.UpTo(t.Context(), storetest.ApprovedBefore)
		return err
	}))
	run(t, s, `TRUNCATE promotions, summaries, payouts CASCADE`)
	storetest.ExerciseApprovedBefore(t, s.Tables, func(second int) string { return fmt.Sprintf("to_timestamp(%d)", second) }, func(sql string) error {
		_, err := s.pool.Exec(t.Context(), sql)
		return err
	})
}

func TestMigrateRowsOfAnOlderSchema(t *testing.T) {
	t.Parallel()
	one := func(t *testing.T, s database, sql string) (n int64) {
		t.Helper()
		fixture.OK(t, s.pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	t.Run("TheyLiveOnUpAndDownWithoutARewrite", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		ctx := t.Context()
		const file = `SELECT pg_relation_filenode('payouts')::int8`
		before := one(t, s, file)
		for range 2 {
			fixture.OK(t, s.Migrate(ctx))
			storetest.AfterMigration(t, s.Tables)
			fixture.OK(t, s.migrations(ctx, func(p *goose.Provider) error {
				_, err := p.DownTo(ctx, 1)
				return err
			}))
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
			fixture.OK(t, s.Migrate(t.Context()))
			storetest.AfterMigration(t, s.Tables)
			if n := one(t, s, `SELECT count(*) - (SELECT count(*) FROM payout_users) FROM payouts`); n != 0 {
				t.Errorf("%d payouts more than users of payouts", n)
			}
			run(t, s, `UPDATE dead_letters SET status = 'OPEN'`)
			// As if the process had crashed before it recorded the migration.
			if n := one(t, s, `WITH d AS (DELETE FROM goose_db_version WHERE version_id > 1 RETURNING 1) SELECT count(*) FROM d`); n == 0 {
				t.Fatal("no migration was recorded")
			}
		}
	})
	t.Run("WhoIsAtWorkDelaysItAndDoesNotFailIt", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		reader := holding(t, s, "SELECT 1 FROM payouts")
		done := make(chan error, 1)
		go func() { done <- s.Migrate(t.Context()) }()
		waitForTries(t, s, 2)
		release(t, reader)
		fixture.OK(t, <-done)
		storetest.AfterMigration(t, s.Tables)
	})
	t.Run("AnInvalidIndexIsBuiltAgain", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		ctx := t.Context()
		fixture.OK(t, s.migrations(ctx, func(p *goose.Provider) error {
			_, err := p.UpTo(ctx, 11)
			return err
		}))
		reader, builder := holding(t, s, "LOCK TABLE coupons IN ROW EXCLUSIVE MODE"), acquire(t, s)
		fixture.Must(builder.Exec(ctx, "SET lock_timeout = '50ms'"))(t)
		for _, index := range []string{"UNIQUE INDEX CONCURRENTLY coupons_code_of_template ON coupons (code, template_id)", "INDEX CONCURRENTLY coupons_held ON coupons (template_id)"} {
			if _, err := builder.Exec(ctx, "CREATE "+index); !hasState(err, "55P03") {
				t.Fatalf("the build of the index ended with %v", err)
			}
		}
		release(t, reader)
		fixture.Must(builder.Exec(ctx, "RESET lock_timeout"))(t)
		const invalid = `SELECT count(*) FROM pg_index WHERE indrelid = 'coupons'::regclass AND NOT indisvalid`
		if n := one(t, s, invalid); n != 2 {
			t.Fatalf("the builds left %d invalid indexes", n)
		}
		fixture.OK(t, s.Migrate(ctx))
		if n := one(t, s, invalid); n != 0 {
			t.Errorf("%d indexes of coupons are invalid: a code could be given twice", n)
		}
	})
	t.Run("WhoNeverEndsIsNamedAsTheCause", func(t *testing.T) {
		t.Parallel()
		s := old(t)
		reader := holding(t, s, "SELECT 1 FROM payouts")
		impatient := s.pool.Config()
		impatient.ConnConfig.RuntimeParams["lock_timeout"] = "50ms" // 8 tries of 2 s prove no more
		pool := fixture.Must(pgxpool.NewWithConfig(t.Context(), impatient))(t)
		defer pool.Close()
		err := (&Store{pool: pool, schema: s.schema, tryTimeout: tryTimeout}).Migrate(t.Context())
		if err == nil || !hasState(err, "55P03") || !strings.Contains(err.Error(), "pg_stat_activity") {
			t.Errorf("Migrate = %v", err)
		}
		release(t, reader)
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatalf("once it has ended: %v", err)
		}
		storetest.AfterMigration(t, s.Tables)
	})
}

// TestUsersOfPayouts checks the table of users for every writer of payouts,
// including a previous version that does not know it. Duplicate and stale rows
// must not change a result.
func TestUsersOfPayouts(t *testing.T) {
	t.Parallel()
	s := lend(t)
	ctx := t.Context()
	do := func(sql string) {
		t.Helper()
		fixture.Must(s.pool.Exec(ctx, sql))(t)
	}
	want := func(what, user string, targets ...reward.TargetID) {
		t.Helper()
		list := fixture.Must(s.PayoutHistory(ctx, user, 3))(t)
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
		fixture.OK(t, s.pool.QueryRow(ctx, `SELECT count(*) FROM payout_users`).Scan(&n))
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

// TestRules compares the statements with the rules, case by case.
// TestMeanwhile changes promotions between the read of a rule and its write.
func TestMeanwhile(t *testing.T) {
	t.Parallel()
	storetest.ExerciseMeanwhile(t, lent, func(s *rows.Tables, wrap func(rows.DB) rows.DB) *rows.Tables {
		return rows.New(wrap(tables{s.Driver.(*Store)}), s.Driver.(*Store), dialect)
	})
}

func TestRules(t *testing.T) { followsTheRules(t, 5) }

// followsTheRules tries one of share cases.
func followsTheRules(t *testing.T, share int) {
	t.Helper()
	t.Parallel()
	storetest.ExerciseRules(t, share, lent, rawTables(t))
}

// TestRows reads and changes rows as no method of the store can.
func TestRows(t *testing.T) {
	t.Parallel()
	storetest.ExerciseRows(t, lent, rawTables(t))
}

// rawTables reads and writes the tables of a store.
func rawTables(t *testing.T) func(*rows.Tables) storetest.Raw {
	t.Helper()
	return func(s *rows.Tables) storetest.Raw {
		pool := s.Driver.(*Store).pool
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
			Tables: func(wrap func(rows.DB) rows.DB) *rows.Tables {
				return rows.New(wrap(tables{s.Driver.(*Store)}), s.Driver.(*Store), dialect)
			},
		}
	}
}

// TestForgettingKeysWaitsForNobody checks that a locked key is left to the next
// call.
func TestForgettingKeysWaitsForNobody(t *testing.T) {
	t.Parallel()
	s := lend(t)
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
	holder := holding(t, s, `SELECT 1 FROM idempotency_keys ORDER BY key LIMIT 2 FOR UPDATE`)
	begin(9, now.Add(time.Hour))
	var left int
	if err := s.pool.QueryRow(ctx, `SELECT count(*) FROM idempotency_keys`).Scan(&left); err != nil || left != 3 {
		t.Errorf("%d keys are left (%v), want the two that are held and the new one", left, err)
	}
	release(t, holder)
	begin(8, now.Add(time.Hour))
	if err := s.pool.QueryRow(ctx, `SELECT count(*) FROM idempotency_keys`).Scan(&left); err != nil || left != 2 {
		t.Errorf("%d keys are left (%v), want the two new ones", left, err)
	}
}

// waitForTries waits until a number of transactions of the test have waited for
// a lock. Each try is one transaction.
func waitForTries(t *testing.T, s database, most int) {
	t.Helper()
	tries := make(map[string]bool)
	fixture.Until(t, fmt.Sprintf("%d tries waited for a lock", most), func() bool {
		rows := fixture.Must(s.pool.Query(t.Context(), `SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE NOT l.granted AND l.locktype <> 'advisory' AND a.application_name = $1`, t.Name()[:min(len(t.Name()), 63)]))(t)
		names := fixture.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
		for _, name := range names {
			tries[name] = true
		}
		return len(tries) >= most
	})
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
		s := lend(t)
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
	// held returns a store with one QUEUED payout, and a transaction that locks it and
	// has executed a statement.
	held := func(t *testing.T, setting string) (database, pgx.Tx) {
		t.Helper()
		s := registered(t, 1)
		rows := []store.NewPayout{{PromotionID: 1, TargetID: 1, Amount: 5}}
		fixture.Must(s.PayoutSave(t.Context(), store.PayoutSaveParams{Rows: rows, MaxLen: 1, Now: now}))(t)
		return s, holding(t, s, setting, "SELECT 1 FROM payouts WHERE promotion_id = 1 FOR UPDATE")
	}
	finish := func(t *testing.T, s database) <-chan error {
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
		s, holder := held(t, "SELECT 1")
		done := make(chan error, 1)
		go func() {
			_, err := s.PayoutSettle(t.Context(), store.PayoutSettleParams{Now: now, Lookups: []rules.Lookup{
				{Ref: reward.Ref{PromotionID: 1, TargetID: 1, Dispatch: 1}, Found: true, BeganAt: now, NextAt: now},
			}})
			done <- err
		}()
		waitForTries(t, s, 2)
		release(t, holder)
		fixture.OK(t, <-done)
	})
	t.Run("AHolderWhoWentSilentIsEnded", func(t *testing.T) {
		t.Parallel()
		s, _ := held(t, "RESET idle_in_transaction_session_timeout")
		fixture.OK(t, <-finish(t, s))
	})
}

// TestASilentNetworkEndsATry checks that a try ends in time if the server
// accepts everything and answers nothing.
func TestASilentNetworkEndsATry(t *testing.T) {
	t.Parallel()
	if tryTimeout != 10*time.Second {
		t.Errorf("a try is bounded by %v", tryTimeout)
	}
	line, through := newSilentLine(t, fixture.Schema(t, migrate))
	s := fixture.Must(openWith(t.Context(), Config{URL: through, MaxConnections: 1}))(t)
	defer s.Close()
	defer line.cut() // runs first: the pool waits for the calls that it cancels
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	fixture.Must(s.PromotionRegister(t.Context(), []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, reward.Limits{}, now))(t)
	s.tryTimeout = 300 * time.Millisecond
	line.silent.Store(true)
	_, err := s.PayoutSave(t.Context(), store.PayoutSaveParams{Rows: []store.NewPayout{{PromotionID: 1, TargetID: 1}}, Now: now})
	if err == nil || !strings.Contains(err.Error(), "save payouts: no answer within 300ms") {
		t.Fatalf("the error is %v", err)
	}
}

// TestAnUnreachableDatabase checks that calls without a database say so, by which the API
// tells callers to try again.
func TestAnUnreachableDatabase(t *testing.T) {
	t.Parallel()
	line, through := newSilentLine(t, fixture.Schema(t, migrate))
	s := fixture.Must(Open(t.Context(), Config{URL: through, MaxConnections: 2}))(t)
	defer s.Close()
	fixture.Must(s.Clock(t.Context()))(t)
	line.cut()
	for name, call := range map[string]func() error{
		"read": func() error { _, err := s.PromotionGet(t.Context(), 1); return err },
		"write": func() error {
			_, err := s.PromotionRegister(t.Context(), []store.Registration{{ID: 1, Type: reward.Point}}, reward.Limits{}, time.Now())
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

// newSilentLine returns a line to the database of a URL, and that URL through the line.
func newSilentLine(t *testing.T, database string) (l *silentLine, through string) {
	t.Helper()
	address := fixture.Must(url.Parse(database))(t)
	target := address.Host
	listener := fixture.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	l = &silentLine{listener: listener}
	address.Host = listener.Addr().String()
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
	return l, address.String()
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

// TestFinishSaysThatItsRowsAreLocked locks the counts of a promotion.
func TestFinishSaysThatItsRowsAreLocked(t *testing.T) {
	t.Parallel()
	s, ctx := registered(t, 1), t.Context()
	fixture.Must(s.PayoutSave(ctx, store.PayoutSaveParams{Rows: []store.NewPayout{{PromotionID: 1, TargetID: 1, Amount: 1}}, MaxLen: 1, Now: time.Now()}))(t)
	holding(t, s, `SELECT FROM summaries FOR UPDATE`)
	r := reward.Ref{PromotionID: 1, TargetID: 1, Dispatch: 1}
	_, err := s.PayoutFinish(ctx, store.PayoutFinishParams{Outcomes: []rules.Outcome{{Ref: r, Kind: rules.OutcomePaid}}, Now: time.Now()})
	if !errors.Is(err, store.ErrLocked) {
		t.Errorf("finish under a lock: %v", err)
	}
	if _, err := s.PayoutReturn(ctx, store.PayoutReturnParams{Refs: []reward.Ref{r}, Now: time.Now()}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("return under a lock: %v", err)
	}
}

// TestRowsBelowTheLowWaterMarkAreDispatched saves rows with an earlier clock after
// many rows of a promotion were dispatched.
func TestRowsBelowTheLowWaterMarkAreDispatched(t *testing.T) {
	t.Parallel()
	s, ctx, now := registered(t, 1), t.Context(), time.Now()
	next := reward.TargetID(0)
	save := func(n int, at time.Time) {
		t.Helper()
		rows := make([]store.NewPayout, n)
		for i := range rows {
			next++
			rows[i] = store.NewPayout{PromotionID: 1, TargetID: next, UserID: "u", Amount: 1}
		}
		fixture.Must(s.PayoutSave(ctx, store.PayoutSaveParams{Rows: rows, Now: at}))(t)
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
