// Package sqlite implements the store in one SQLite file. It is the embedded
// default for a single process.
//
// One connection writes, in BEGIN IMMEDIATE transactions. Other connections read
// the last committed state. Where the driver itself applies package rules, it does so
// to rows that it reads in the same transaction: no other writer can change them
// before the commit. WAL with synchronous=FULL makes every commit durable, so the
// result of a method survives a power failure.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	sqlitedriver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

//go:embed migrations/*.sql
var migrations embed.FS

// readersMax is the number of reading connections that are not for viewers.
const readersMax = 4

// Store is the driver of a store. Its methods are safe for concurrent use.
type Store struct {
	store.Space
	writer *sql.DB // one connection
	reader *readers
	// waiting is the transactions that wait for writer, or for another process.
	waiting atomic.Int64
}

// Open opens the file at path and creates it if it does not exist. It does not
// migrate.
func Open(ctx context.Context, path string) (*rows.Tables, error) {
	return OpenWith(ctx, path, store.ViewerConnections, nil)
}

// OpenWith is Open with a number of connections for reads of store.ForViewer. It counts
// the calls in m and shows the connections there, unless m is nil.
func OpenWith(ctx context.Context, path string, viewers int, m *obs.Metrics) (*rows.Tables, error) {
	// SQLite would let every user read a file that it creates. It gives its other files
	// the same mode.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	writer, err := sql.Open("sqlite", dsn(path, "_txlock=immediate"))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	writer.SetMaxOpenConns(1)
	reader, err := openReaders(path, viewers, m)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), writer.Close())
	}
	s := &Store{writer: writer, reader: reader}
	// Connect the writer first: it creates the file and switches it to WAL.
	if err := errors.Join(writer.PingContext(ctx), s.Ping(ctx)); err != nil {
		s.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	m.DatabasePoolsFrom(func() []obs.DatabasePool {
		return []obs.DatabasePool{
			poolOf(obs.DatabaseWrite, s.writer, &s.waiting), poolOf(obs.DatabaseWork, reader.DB, &reader.waiting),
			poolOf(obs.DatabaseReads, reader.viewers, &reader.viewersWaiting),
		}
	})
	return newTables(s), nil
}

func dsn(path, more string) string {
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}).String() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)" +
		"&_pragma=cache_size(-65536)&_pragma=journal_size_limit(67108864)&" + more
}

// Ping returns an error if the file cannot be read.
func (s *Store) Ping(ctx context.Context) error {
	var one int
	if err := s.reader.QueryRowContext(ctx, `SELECT 1 FROM sqlite_schema UNION ALL SELECT 1 LIMIT 1`).Scan(&one); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	return nil
}

// Clock returns the time of this process: no other one uses the database.
func (s *Store) Clock(context.Context) (time.Time, error) { return time.Now(), nil }

// Close closes the file, after running writes have ended.
func (s *Store) Close() {
	_ = s.reader.close() // a failure loses nothing: commits are synced
	_ = s.writer.Close()
}

// Migrate brings the schema up to date. Each migration is a transaction that
// takes the write lock of the file. A second process that migrates at the same
// time waits for it, and may have to call Migrate again.
func (s *Store) Migrate(ctx context.Context) error {
	p, err := s.migrations()
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// MigrateBack takes the schema back to an earlier version.
func (s *Store) MigrateBack(ctx context.Context, version int64) error {
	p, err := s.migrations()
	if err != nil {
		return err
	}
	if _, err := p.DownTo(ctx, version); err != nil {
		return fmt.Errorf("migrate the database back: %w", err)
	}
	return nil
}

func (s *Store) migrations() (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("load the migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, s.writer, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("load the migrations: %w", err)
	}
	return p, nil
}

// write runs fn in one writing transaction. It commits the counts that fn moved
// together with the rows.
func (s *Store) write(ctx context.Context, what string, fn func(tx *tx) error) error {
	began := time.Now()
	defer func() { s.reader.metrics.DatabaseCalled(what, time.Since(began)) }()
	s.waiting.Add(1)
	raw, err := s.writer.BeginTx(ctx, nil)
	s.waiting.Add(-1)
	if err != nil {
		return fmt.Errorf("%s: %w", what, unlessBusy(ctx, err))
	}
	t := &tx{Tx: raw, ctx: context.WithoutCancel(ctx), moves: make(map[summaryKey]*delta)}
	err = fn(t)
	if err == nil {
		err = t.writeMoves()
	}
	if err != nil {
		_ = raw.Rollback() // the first error says more
	} else {
		err = raw.Commit()
	}
	switch {
	case err == nil:
		return nil
	case hasCode(err, sqlite3.SQLITE_FULL):
		err = s.Missed(err)
	default:
		err = unlessBusy(ctx, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// unlessBusy returns err, as store.ErrBusy if a call has waited too long: for the
// connection within the time limit of its caller, or for another process within
// busy_timeout. The transaction is rolled back then.
func unlessBusy(ctx context.Context, err error) error {
	var e *sqlitedriver.Error
	locked := errors.As(err, &e) && (e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code()&0xff == sqlite3.SQLITE_LOCKED)
	if locked || errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(err, sql.ErrTxDone) {
		return store.Busy(err)
	}
	return err
}

// tx is a writing transaction with the moves of counts that belong to it.
type tx struct {
	*sql.Tx
	// ctx is not cancelled with the caller's context, because that would cost a
	// goroutine per statement. When the caller's context ends, the transaction
	// itself is rolled back.
	ctx   context.Context
	moves map[summaryKey]*delta
}

func (t *tx) exec(query string, args ...any) error {
	_, err := t.ExecContext(t.ctx, query, args...)
	return err
}

// changesOne runs a prepared statement and reports whether it changed one row.
func changesOne(ctx context.Context, stmt *sql.Stmt, args ...any) (bool, error) {
	res, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// querier is a transaction, a connection, or the reading connections for a call.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// collect returns every row of a query, read by scan.
func collect[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) (list []T, err error) {
	if r, ok := q.(named); ok {
		err = r.read(ctx, func(ctx context.Context, db *sql.Conn) (err error) {
			list, err = collect(ctx, db, scan, query, args...)
			return err
		})
		return list, err
	}
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}

// one returns the first row of a query, and reports whether there is one.
func one[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) (v T, found bool, err error) {
	list, err := collect(ctx, q, scan, query, args...)
	if err != nil || len(list) == 0 {
		return v, false, err
	}
	return list[0], true, nil
}

func scanInt(rows *sql.Rows) (n int64, err error) {
	err = rows.Scan(&n)
	return n, err
}

// micros returns t as the database stores it, in microseconds since 1970.
func micros(t time.Time) int64 { return t.UnixMicro() }

// maybe returns t as the database stores it, or NULL for the zero time.
func maybe(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// refused returns a *store.ConstraintError if a CHECK of the database has refused
// a transaction.
func refused(err error) error {
	if !hasCode(err, badCheck) {
		return err
	}
	// The message ends with the constraint.
	text := err.Error()
	return &store.ConstraintError{Constraint: "CHECK (" + text[strings.LastIndex(text, ": ")+2:] + ")", Err: err}
}

// hasCode reports whether err has one of these extended result codes of SQLite.
func hasCode(err error, codes ...int) bool {
	var e *sqlitedriver.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, code := range codes {
		if e.Code() == code {
			return true
		}
	}
	return false
}

const (
	foreignKey = sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY
	badType    = sqlite3.SQLITE_CONSTRAINT_DATATYPE
	badCheck   = sqlite3.SQLITE_CONSTRAINT_CHECK
	uniqueRow  = sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
	uniqueKey  = sqlite3.SQLITE_CONSTRAINT_UNIQUE
)
