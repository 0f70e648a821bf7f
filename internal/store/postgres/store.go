// Package postgres implements the store in PostgreSQL 15 or newer.
//
// A method that writes sends one statement, or one pipelined batch in an implicit
// transaction. The server has the whole batch before it takes the first lock, so
// a client that stops responding holds no lock.
//
// A fixed order of locks prevents deadlocks:
//
//   - First payouts, in key order. Some statements skip locked payouts instead.
//   - Then summary rows, in key order. The row of the whole promotion (summary ID
//     0) comes first and guards the others.
//   - Then promotions, by ID.
//
// PayoutSave and PayoutDispatch lock the promotion's summary row before any
// payout, because its counts limit what they may queue. This is safe. Inserts
// conflict only with other inserts, which hold the same summary row. A dispatch
// skips locked payouts.
//
// Reads whose result is only shown (store.ForViewer) have connections of their
// own, so that no number of them takes those of the payouts.
//
// For coupons the order is simpler: first the row of the template, then offsets
// and the coupons of that template. A statement that changes coupons without their
// template locks one row, or skips locked rows.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Config says which database to use, and how.
type Config struct {
	// URL is a postgres:// address.
	URL string
	// PasswordFile is a file of one line, the password. It is read for each
	// connection. Empty means the password in URL.
	PasswordFile string
	Log          obs.Log
	// Schema holds the tables. Empty means the search path of the session.
	// Migrate creates the schema if it does not exist.
	Schema string
	// MaxConnections limits the connection pool; 0 means 20.
	MaxConnections int
	// ReadConnections limits the pool of reads for viewers; 0 means
	// store.ViewerConnections.
	ReadConnections int
	// Metrics counts the calls and shows the connections; nil: it does not.
	Metrics *obs.Metrics
	// ApplicationName is shown in pg_stat_activity; empty means largesse.
	ApplicationName string
}

// Store is the driver of a store. Its methods are safe for concurrent use.
type Store struct {
	store.Space
	pool    *pgxpool.Pool
	viewers *pgxpool.Pool // for reads of store.ForViewer only
	metrics *obs.Metrics
	// waiting and viewersWaiting are the calls that wait for a connection of each pool.
	waiting, viewersWaiting atomic.Int64
	schema                  string
	tryTimeout              time.Duration
	low                     lowWater
	templates               atomic.Pointer[templateList] // the latest one; nil means none yet
}

// poolConfig returns the configuration of every connection.
func poolConfig(cfg Config) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("parse the address of the database: %w", err)
	}
	if cfg.PasswordFile != "" {
		password, err := service.NewPassword("database.password-file", cfg.PasswordFile,
			cfg.Log.Streak("password file unusable, keeping the last one", "password file usable again"))
		if err != nil {
			return nil, err
		}
		pc.ConnConfig.Password = password.Get()
		pc.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			c.Password = password.Get()
			return nil
		}
	}
	pc.MaxConnIdleTime = time.Minute // other instances may need them
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
	maps.Copy(params, sessionSettings)
	return pc, nil
}

// viewerConfig returns the configuration of the connections of viewers. The
// server ends a read that is too slow, even if this process has crashed.
func viewerConfig(cfg Config) (*pgxpool.Config, error) {
	pc, err := poolConfig(cfg)
	if err != nil {
		return nil, err
	}
	pc.MinConns = 1
	pc.MaxConns = store.ViewerConnections
	if cfg.ReadConnections > 0 {
		pc.MaxConns = int32(min(cfg.ReadConnections, 1<<16))
	}
	params := pc.ConnConfig.RuntimeParams
	params["statement_timeout"] = store.ViewerTimeout.String()
	// As a parameter of the start, it would make target_session_attrs=read-write, by which
	// a URL of several servers names the one to use, refuse each of them.
	pc.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SET default_transaction_read_only = on")
		return err
	}
	return pc, nil
}

// Open connects to the database. It does not migrate.
func Open(ctx context.Context, cfg Config) (*rows.Tables, error) {
	pc, err := poolConfig(cfg)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	vc, err := viewerConfig(cfg)
	if err != nil {
		pool.Close()
		return nil, err
	}
	viewers, err := pgxpool.NewWithConfig(ctx, vc)
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("open the database: %w", err)
	}
	s := &Store{pool: pool, viewers: viewers, metrics: cfg.Metrics, schema: cfg.Schema, tryTimeout: tryTimeout}
	if err := s.fits(ctx); err != nil {
		s.Close()
		return nil, err
	}
	cfg.Metrics.DatabasePoolsFrom(s.pools)
	return rows.New(tables{s}, s, dialect), nil
}

// fits returns an error if the database cannot be reached or used.
func (s *Store) fits(ctx context.Context) error {
	// The connection for reads comes first and stays open: the pool for work takes all that it can get.
	viewer, err := s.connection(ctx, s.viewers)
	if err != nil {
		return fitError(err)
	}
	defer viewer.Release()
	work, err := s.connection(ctx, s.pool)
	if err != nil {
		return fitError(err)
	}
	defer work.Release()
	if encoding := encodingOf(work.Conn()); encoding != "UTF8" {
		return &UnfitError{Check: "database.encoding", Found: fmt.Sprintf("the encoding of the database is %s, and it must be UTF8", encoding), Advice: EncodingAdvice}
	}
	return fitSessions(ctx, work.Conn(), viewer.Conn())
}

// pools returns the state of both pools.
func (s *Store) pools() []obs.DatabasePool {
	of := func(name string, pool *pgxpool.Pool, waiting *atomic.Int64) obs.DatabasePool {
		stat := pool.Stat()
		return obs.DatabasePool{
			Name: name, InUse: int(stat.AcquiredConns()), Idle: int(stat.IdleConns()), Max: int(stat.MaxConns()),
			Waiting: int(waiting.Load()), Waited: stat.EmptyAcquireWaitTime(),
		}
	}
	return []obs.DatabasePool{of(obs.DatabaseWork, s.pool, &s.waiting), of(obs.DatabaseReads, s.viewers, &s.viewersWaiting)}
}

// crowdedTries limits how often a call asks for a connection that the server refuses:
// for about two seconds.
const crowdedTries = 14

// connection waits for a connection of a pool, and counts the wait meanwhile. If the
// limits of the server, role or database allow no further one, it takes an idle one of the
// other pool off the server, or waits for an open one.
func (s *Store) connection(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	waiting, other := &s.waiting, s.viewers
	if pool == s.viewers {
		waiting, other = &s.viewersWaiting, s.pool
	}
	waiting.Add(1)
	defer waiting.Add(-1)
	for n := 0; ; n++ {
		conn, err := pool.Acquire(ctx)
		if !hasState(err, "53300") {
			return conn, err
		}
		err = s.RefusedConnection(err)
		giveUpIdle(ctx, other)
		if n+1 == crowdedTries || !service.Sleep(ctx, service.Backoff(n, 5*time.Millisecond, 250*time.Millisecond)) {
			return nil, err
		}
	}
}

// giveUpIdle closes the idle connections of a pool, but leaves it one connection.
func giveUpIdle(ctx context.Context, pool *pgxpool.Pool) {
	open := pool.Stat().TotalConns()
	for _, conn := range pool.AcquireAllIdle(ctx) {
		if open > 1 {
			_ = conn.Conn().Close(ctx)
			open--
		}
		conn.Release()
	}
}

// Ping returns an error if the database cannot be reached.
func (s *Store) Ping(ctx context.Context) error {
	conn, err := s.connection(ctx, s.pool)
	if err == nil {
		defer conn.Release()
		err = conn.Ping(ctx)
	}
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	return nil
}

// Clock returns the time of the database server.
func (s *Store) Clock(ctx context.Context) (now time.Time, err error) {
	err = s.send(ctx, "read the clock of the database", func(b *pgx.Batch) {
		b.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	})
	return now.UTC(), err
}

// Close closes every connection.
func (s *Store) Close() {
	s.viewers.Close()
	s.pool.Close()
}

// Migrate brings the schema up to date. A lock of the database lets one session
// migrate at a time.
func (s *Store) Migrate(ctx context.Context) error {
	if s.schema != "" {
		_, err := s.pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{s.schema}.Sanitize())
		// IF NOT EXISTS can still fail if another session creates it concurrently.
		if err != nil && !hasState(err, "23505", "42P06") {
			return fmt.Errorf("create schema %s: %w", s.schema, err)
		}
	}
	return s.migrations(ctx, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// MigrateBack takes the schema back to an earlier version.
func (s *Store) MigrateBack(ctx context.Context, version int64) error {
	return s.migrations(ctx, func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, version)
		return err
	})
}

// migrations calls fn with the migrations of the schema. It retries while other
// sessions hold locks. That is safe, because each migration is a transaction or
// can be repeated.
func (s *Store) migrations(ctx context.Context, fn func(*goose.Provider) error) error {
	h := fnv.New32a()
	_, _ = h.Write([]byte("largesse migrations " + s.schema)) // never fails
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(int64(h.Sum32())), lock.WithLockTimeout(1, 300))
	if err != nil {
		return fmt.Errorf("prepare the migration lock: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("load the migrations: %w", err)
	}
	db := stdlib.OpenDBFromPool(s.pool)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("load the migrations: %w", err)
	}
	for try := 0; ; try++ {
		err := fn(p)
		if err == nil {
			return nil
		}
		if !rolledBack(err) || try+1 == triesMax || !service.Sleep(ctx, service.Backoff(try, 5*time.Millisecond, 250*time.Millisecond)) {
			return migrateError(err)
		}
	}
}

// migrateError adds the remedy to the error of a migration that could not get a
// lock.
func migrateError(err error) error {
	if hasState(err, "55P03") {
		return fmt.Errorf("migrate the database: another session holds a lock on the table; "+
			"wait for it, or find it with pg_locks and pg_stat_activity and end it with pg_terminate_backend, then start again: %w", err)
	}
	return fmt.Errorf("migrate the database: %w", err)
}

// triesMax limits how often a transaction is sent that was certainly rolled
// back.
const triesMax = 8

// tryTimeout limits one try, including the wait for a connection. Without it, a
// silent network would block a try until the kernel closes the connection.
const tryTimeout = 10 * time.Second

// send runs a batch as one implicit transaction. build queues the statements
// with the functions that read their rows. It starts again on each try.
func (s *Store) send(ctx context.Context, what string, build func(b *pgx.Batch)) error {
	return refusedAsArchived(s.sendWithin(ctx, s.tryTimeout, what, build))
}

// sharedLockWait is how long a transaction of several promotions waits for a lock,
// which delays all of them. It is longer than deadlock_timeout, which is 1 s
// unless an operator changes it: the server ends only one of the transactions that
// wait for each other.
const sharedLockWait = 1500 * time.Millisecond

// sendShared is send for batches that several promotions share. If one of them is
// locked, it fails with store.ErrLocked after sharedLockWait, and the caller sends
// the others by themselves. A refusal by a constraint is a *store.ConstraintError.
func (s *Store) sendShared(ctx context.Context, what string, build func(b *pgx.Batch)) error {
	limited := func(b *pgx.Batch) {
		b.Queue(`SELECT set_config('lock_timeout', $1, true)`, strconv.Itoa(int(sharedLockWait.Milliseconds())))
		build(b)
	}
	err := s.try(ctx, what, limited, func(b *pgx.Batch) (bool, error) {
		again, err := s.once(ctx, s.tryTimeout, what, b)
		return again && !hasState(err, "55P03"), err
	})
	var pe *pgconn.PgError
	switch {
	case hasState(err, "55P03"):
		return fmt.Errorf("%w: %w", store.ErrLocked, err)
	case errors.As(err, &pe) && strings.HasPrefix(pe.Code, "23"):
		return &store.ConstraintError{Constraint: pe.ConstraintName, Err: err}
	}
	return err
}

// sendLong is send for statements whose duration grows with a promotion. Only
// the caller can limit it.
func (s *Store) sendLong(ctx context.Context, what string, build func(b *pgx.Batch)) error {
	return s.sendWithin(ctx, 0, what, build)
}

// sendWithin sends a batch until it succeeds, certainly failed or used all tries.
// timeout limits each try; 0 means no limit.
func (s *Store) sendWithin(ctx context.Context, timeout time.Duration, what string, build func(b *pgx.Batch)) error {
	return s.try(ctx, what, build, func(b *pgx.Batch) (bool, error) { return s.once(ctx, timeout, what, b) })
}

// try builds a batch and calls do with it, again while do reports that it may. what is
// the name of the call in the metrics.
func (s *Store) try(ctx context.Context, what string, build func(b *pgx.Batch), do func(b *pgx.Batch) (again bool, err error)) error {
	began := time.Now()
	defer func() { s.metrics.DatabaseCalled(what, time.Since(began)) }()
	for n := 0; ; n++ {
		b := &pgx.Batch{}
		build(b)
		again, err := do(b)
		if err == nil {
			return nil
		}
		if !again || n+1 == triesMax || !service.Sleep(ctx, service.Backoff(n, 5*time.Millisecond, 250*time.Millisecond)) {
			if hasState(err, lockStates...) {
				return store.Busy(err)
			}
			if unreachable(err) && !hasState(err, "53300") {
				return fmt.Errorf("%w: %w", err, reward.ErrUnreachable)
			}
			return err
		}
	}
}

// read is send for a batch that changes nothing. It keeps the limits of a read
// for a viewer.
func (s *Store) read(ctx context.Context, what string, build func(b *pgx.Batch)) error {
	if !store.IsForViewer(ctx) {
		return s.send(ctx, what, build)
	}
	return s.try(ctx, what, build, func(b *pgx.Batch) (bool, error) { return s.view(ctx, what, b) })
}

// readLong is read for statements whose duration grows with a promotion. Only
// the caller can limit it, unless it is a viewer.
func (s *Store) readLong(ctx context.Context, what string, build func(b *pgx.Batch)) error {
	if store.IsForViewer(ctx) {
		return s.read(ctx, what, build)
	}
	return s.sendLong(ctx, what, build)
}

// viewerGrace is the time after which a viewer stops to wait for the end of a
// statement that the server should have ended.
const viewerGrace = time.Second

// view is one try of a read for a viewer.
func (s *Store) view(ctx context.Context, what string, b *pgx.Batch) (again bool, err error) {
	wait, cancel := context.WithTimeout(ctx, store.ViewerWait)
	conn, err := s.connection(wait, s.viewers)
	cancel()
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return false, fmt.Errorf("%s: %w", what, store.ViewersBusy(err))
	case err != nil:
		return rolledBack(err), fmt.Errorf("%s: %w", what, err)
	}
	defer conn.Release()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.ViewerTimeout+viewerGrace)
	defer cancel()
	err = conn.SendBatch(within, b).Close()
	switch {
	case err == nil:
		return false, nil
	case within.Err() != nil || hasState(err, "57014"): // the server cancelled it
		return false, fmt.Errorf("%s: %w", what, store.ViewerTimedOut(err))
	}
	return rolledBack(err), fmt.Errorf("%s: %w", what, err)
}

// once is one try. A try without an answer in time is not repeated: it may have
// been committed, and the next try would wait as long.
func (s *Store) once(ctx context.Context, timeout time.Duration, what string, b *pgx.Batch) (again bool, err error) {
	if timeout > 0 {
		late := fmt.Errorf("%s: no answer within %v", what, timeout)
		within, cancel := context.WithTimeoutCause(ctx, timeout, late)
		defer cancel()
		err = s.sendBatch(within, b)
		if err != nil && errors.Is(context.Cause(within), late) {
			return false, fmt.Errorf("%w: %w", late, err)
		}
	} else {
		err = s.sendBatch(ctx, b)
	}
	if err != nil {
		switch {
		case hasState(err, "53100"):
			err = s.Missed(err)
		case hasState(err, "25006"):
			err = s.RefusedWrite(err)
		}
		return rolledBack(err), fmt.Errorf("%s: %w", what, err)
	}
	return false, nil
}

// sendBatch sends a batch on a connection of the pool, and reads its results.
func (s *Store) sendBatch(ctx context.Context, b *pgx.Batch) error {
	conn, err := s.connection(ctx, s.pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	return conn.SendBatch(ctx, b).Close()
}

// rolledBack reports whether a transaction certainly changed nothing and may be
// sent again. That is the case after a deadlock, a lock timeout, a
// serialization failure, a connection that broke before anything was sent, or one that the
// server had closed because it was idle.
func rolledBack(err error) bool {
	return hasState(err, lockStates...) || hasState(err, "57P05") || pgconn.SafeToRetry(err)
}

// unreachable reports whether a connection could not be opened, or broke, or the server
// is starting or stopping.
func unreachable(err error) bool {
	var opening *pgconn.ConnectError
	var broken *net.OpError
	return errors.As(err, &opening) || errors.As(err, &broken) || errors.Is(err, io.ErrUnexpectedEOF) || hasState(err, "57P01", "57P02", "57P03", "57P05")
}

// lockStates are the SQLSTATE codes of a transaction that other ones did not let through:
// a deadlock, a lock timeout, a serialization failure.
var lockStates = []string{"40P01", "55P03", "40001"}

// hasState reports whether err has one of these SQLSTATE codes.
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

// each returns a result reader that calls scan for every row.
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

// instant returns t as the database stores it: UTC, in microseconds.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// maybe returns NULL for the zero time.
func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// timeOf returns the zero time for NULL.
func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
