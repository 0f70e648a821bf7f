// Package sqlite keeps Largesse's rows in one SQLite file: the embedded default
// for a single process.
//
// One connection writes, in BEGIN IMMEDIATE transactions; others read from
// the last committed state. Rules are therefore judged in Go, on rows read in
// the same transaction: nobody can change them before it commits. WAL with
// synchronous=FULL means that what a method has returned survives a power cut.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"time"

	"github.com/pressly/goose/v3"
	sqlitedriver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

var _ store.Store = (*Store)(nil)

//go:embed migrations/*.sql
var migrations embed.FS

// readers is how many connections read beside the writer; one of them is
// activeList's.
const readers = 5

// Store is the driver. All methods are safe for concurrent use.
type Store struct {
	rows.Tables
	writer *sql.DB // one connection
	reader *sql.DB
	active activeList
}

// Open opens the file at path, or makes it. It does not migrate.
func Open(ctx context.Context, path string) (*Store, error) {
	writer, err := sql.Open("sqlite", dsn(path, "_txlock=immediate"))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	writer.SetMaxOpenConns(1)
	reader, err := sql.Open("sqlite", dsn(path, "_pragma=query_only(1)"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), writer.Close())
	}
	reader.SetMaxOpenConns(readers)
	reader.SetMaxIdleConns(readers)
	s := &Store{writer: writer, reader: reader}
	s.Tables = newTables(s)
	// The writer first: it makes the file and turns it to WAL.
	if err := errors.Join(writer.PingContext(ctx), s.Ping(ctx)); err != nil {
		s.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return s, nil
}

func dsn(path, more string) string {
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}).String() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)" +
		"&_pragma=cache_size(-65536)&_pragma=journal_size_limit(67108864)&" + more
}

// Ping answers whether the file can be read.
func (s *Store) Ping(ctx context.Context) error {
	var one int
	if err := s.reader.QueryRowContext(ctx, `SELECT 1 FROM sqlite_schema UNION ALL SELECT 1 LIMIT 1`).Scan(&one); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	return nil
}

// Close closes the file. Writes under way end first.
func (s *Store) Close() {
	s.active.close()
	_ = s.reader.Close() // a close that fails has nothing to save: commits are synced
	_ = s.writer.Close()
}

// Migrate brings the schema up to date. Each migration is a transaction that
// takes the file's write lock; a second process that migrates at the same time
// waits for it and may have to be called again.
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

func (s *Store) migrations() (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, s.writer, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return p, nil
}

// write runs fn in one transaction.
func (s *Store) write(ctx context.Context, what string, fn func(tx *tx) error) error {
	raw, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	t := &tx{Tx: raw, ctx: context.WithoutCancel(ctx), moves: make(map[summaryKey]*delta)}
	err = fn(t)
	if err == nil {
		err = t.writeMoves()
	}
	if err != nil {
		_ = raw.Rollback() // the first error tells more
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := raw.Commit(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// tx is a writing transaction and the moves of counts that go with it.
type tx struct {
	*sql.Tx
	// ctx is not cancelled with the caller's, which would cost a goroutine per
	// statement: the transaction itself is rolled back when the caller leaves.
	ctx   context.Context
	moves map[summaryKey]*delta
}

func (t *tx) exec(query string, args ...any) error {
	_, err := t.ExecContext(t.ctx, query, args...)
	return err
}

// querier is a transaction or the reading pool.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// collect reads every row with scan.
func collect[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}

// one is collect for at most one row.
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

func scanText(rows *sql.Rows) (text string, err error) {
	err = rows.Scan(&text)
	return text, err
}

// micros is a time as the database keeps it.
func micros(t time.Time) int64 { return t.UnixMicro() }

// maybe is NULL for the zero time.
func maybe(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

func timeOf(n int64) time.Time { return time.UnixMicro(n).UTC() }

func maybeTime(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return timeOf(n.Int64)
}

// instant is a time as it comes back from the database.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// hasCode tells SQLite's extended result codes.
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
