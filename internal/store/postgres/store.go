// Package postgres keeps Largesse's rows in PostgreSQL 15 or newer.
//
// A method that writes is one statement or one pipelined batch in an implicit
// transaction: the server has all of it before it takes the first lock, so a
// client that goes silent holds none. Three orders keep transactions from
// waiting for each other in circles:
//
//   - payouts are locked in key order, or passed over when locked;
//   - then the summary rows, in key order: the row of the whole promotion
//     (summary id 0) comes first and guards the others;
//   - then promotions, in id order.
//
// Save and dispatch take the promotion's summary row before any payout, since
// what they may queue depends on its counts. That is safe: inserts meet only
// inserts, which hold the same row, and dispatch never waits for a payout.
//
// Coupons have a simpler order: the row of the template first, then offsets and
// coupons, all of that template. What is done to a coupon without its template
// holds one row, or passes over those that are locked.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

var _ store.Store = (*Store)(nil)

//go:embed migrations/*.sql
var migrations embed.FS

// Config says which database to use.
type Config struct {
	// URL is a postgres:// address.
	URL string
	// Schema holds the tables; "" is the session's own search path. Migrate
	// makes it when it is missing.
	Schema string
	// MaxConnections bounds the pool; 0 means 20.
	MaxConnections int
	// ApplicationName is what pg_stat_activity shows; "" means largesse.
	ApplicationName string
}

// Store is the driver. All methods are safe for concurrent use.
type Store struct {
	rows.Tables
	pool    *pgxpool.Pool
	schema  string
	tryMost time.Duration
	// The latest answers; nil = none yet.
	active    atomic.Pointer[activeList[store.PromotionView]]
	templates atomic.Pointer[activeList[reward.CouponTemplate]]
}

// poolConfig is how every connection of ours is made.
func poolConfig(cfg Config) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("read the database's address: %w", err)
	}
	pc.MaxConns = 20
	if cfg.MaxConnections > 0 {
		pc.MaxConns = int32(min(cfg.MaxConnections, 1<<16))
	}
	params := pc.ConnConfig.RuntimeParams
	params["application_name"] = "largesse"
	if cfg.ApplicationName != "" {
		params["application_name"] = cfg.ApplicationName
	}
	if cfg.Schema != "" {
		params["search_path"] = pgx.Identifier{cfg.Schema}.Sanitize()
	}
	params["lock_timeout"] = "2s"
	params["idle_in_transaction_session_timeout"] = "1s"
	// Every statement here reaches its rows by an index, in batches that are
	// small beside the tables. The planner must not decide otherwise because a
	// table has not been analysed yet or a batch looks large to it, and must
	// not pay for plans and machine code again and again. A plan may be made while
	// a table is small and kept while it grows to a million rows, so no statement
	// may leave the choice between one row at a time and all rows of a promotion:
	// both columns of a key are joined with what names the rows, none is a
	// parameter.
	params["enable_seqscan"] = "off"
	params["enable_bitmapscan"] = "off"
	params["enable_hashjoin"] = "off"
	params["enable_mergejoin"] = "off"
	params["plan_cache_mode"] = "force_generic_plan"
	params["jit"] = "off"
	return pc, nil
}

// Open connects to the database. It does not migrate.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	pc, err := poolConfig(cfg)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	s := &Store{pool: pool, schema: cfg.Schema, tryMost: tryMost}
	s.Tables = rows.New(tables{s}, dialect)
	if err := s.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// Ping answers whether the database can be reached.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	return nil
}

// Close closes every connection.
func (s *Store) Close() { s.pool.Close() }

// Migrate brings the schema up to date, under a lock that the database keeps
// for one session at a time.
func (s *Store) Migrate(ctx context.Context) error {
	if s.schema != "" {
		_, err := s.pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{s.schema}.Sanitize())
		// IF NOT EXISTS still fails when another session makes it just now.
		if err != nil && !hasState(err, "23505", "42P06") {
			return fmt.Errorf("make schema %s: %w", s.schema, err)
		}
	}
	return s.migrations(ctx, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// migrations calls fn with the migrations of the schema. What others are busy
// with is tried again: each of them is a transaction, or can be repeated.
func (s *Store) migrations(ctx context.Context, fn func(*goose.Provider) error) error {
	h := fnv.New32a()
	_, _ = h.Write([]byte("largesse migrations " + s.schema)) // never fails
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(int64(h.Sum32())), lock.WithLockTimeout(1, 300))
	if err != nil {
		return fmt.Errorf("prepare the migration lock: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	db := stdlib.OpenDBFromPool(s.pool)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	for try := 0; ; try++ {
		err := fn(p)
		if err == nil {
			return nil
		}
		if !rolledBack(err) || try+1 == tries || !service.Sleep(ctx, service.Backoff(try, 5*time.Millisecond, 250*time.Millisecond)) {
			return migrateError(err)
		}
	}
}

// migrateError says what to do about what keeps a migration from being had.
func migrateError(err error) error {
	if hasState(err, "55P03") {
		return fmt.Errorf("migrate the database: another session has held the table throughout; "+
			"wait for it, or find it in pg_stat_activity (pg_locks names it) and end it (pg_terminate_backend), then start again: %w", err)
	}
	return fmt.Errorf("migrate the database: %w", err)
}

// tries bounds how often a transaction that was certainly rolled back is run.
const tries = 8

// tryMost bounds one try, the wait for a connection included: a network that
// went silent would else hold it until the kernel gives the connection up.
const tryMost = 10 * time.Second

// send runs a batch as one implicit transaction. build queues the statements
// with the functions that read their rows; it starts afresh on each try.
func (s *Store) send(ctx context.Context, what string, build func(b *pgx.Batch)) error {
	return s.sendWithin(ctx, s.tryMost, what, build)
}

// sendLong is send for what grows with its promotion, which only the caller
// can bound.
func (s *Store) sendLong(ctx context.Context, what string, build func(b *pgx.Batch)) error {
	return s.sendWithin(ctx, 0, what, build)
}

func (s *Store) sendWithin(ctx context.Context, most time.Duration, what string, build func(b *pgx.Batch)) error {
	for try := 0; ; try++ {
		b := &pgx.Batch{}
		build(b)
		again, err := s.once(ctx, most, what, b)
		if err == nil {
			return nil
		}
		if !again || try+1 == tries || !service.Sleep(ctx, service.Backoff(try, 5*time.Millisecond, 250*time.Millisecond)) {
			return err
		}
	}
}

// once is one try, within most when that is not 0. A try that got no answer in
// time may have been committed, and the next one would wait as long.
func (s *Store) once(ctx context.Context, most time.Duration, what string, b *pgx.Batch) (again bool, err error) {
	if most > 0 {
		late := fmt.Errorf("%s: no answer within %v", what, most)
		within, cancel := context.WithTimeoutCause(ctx, most, late)
		defer cancel()
		err = s.pool.SendBatch(within, b).Close()
		if err != nil && errors.Is(context.Cause(within), late) {
			return false, fmt.Errorf("%w: %w", late, err)
		}
	} else {
		err = s.pool.SendBatch(ctx, b).Close()
	}
	if err != nil {
		return rolledBack(err), fmt.Errorf("%s: %w", what, err)
	}
	return false, nil
}

// rolledBack says that a transaction certainly left no trace and may be tried
// again: a deadlock, a lock not had in time, a serialization failure, or a
// connection that broke before anything was sent.
func rolledBack(err error) bool {
	return hasState(err, "40P01", "55P03", "40001") || pgconn.SafeToRetry(err)
}

func hasState(err error, states ...string) bool {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false
	}
	for _, state := range states {
		if pe.Code == state {
			return true
		}
	}
	return false
}

// each returns a reader for a batch's statement that scans every row.
func each(scan func(pgx.Rows) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// query runs one reading statement.
func (s *Store) query(ctx context.Context, what, sql string, scan func(pgx.Rows) error, args ...any) error {
	return s.send(ctx, what, func(b *pgx.Batch) { b.Queue(sql, args...).Query(each(scan)) })
}

// instant is a time as the database keeps it: microseconds, UTC.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// maybe is NULL for the zero time.
func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// timeOf is the zero time for NULL.
func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
