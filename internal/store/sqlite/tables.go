package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	sqlitedriver "modernc.org/sqlite"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store/rows"
)

// clock is the time of the database in microseconds, as SQL. It is the clock of this
// process, also when a test fakes that.
const clock = `largesse_now()`

func init() {
	// SQLite calls a deterministic function once per statement, so all rows of a statement
	// have the same time.
	sqlitedriver.MustRegisterDeterministicScalarFunction("largesse_now", 0, func(*sqlitedriver.FunctionContext, []driver.Value) (driver.Value, error) {
		return time.Now().UnixMicro(), nil
	})
}

// dialect has no SkipLocked, because one transaction writes at a time.
var dialect = rows.Dialect{
	Clock: clock, Walk: walk, List: func(param string) string { return `json_each(` + param + `)` }, Records: records, Index: func(name string) string { return ` INDEXED BY ` + name }, Among: `IN (SELECT value FROM json_each($1))`, Active: activeWhere,
	Returned: `payouts p INDEXED BY payouts_rare WHERE p.promotion_id = $1 AND p.state = 0 AND p.dispatch > 0 AND ` + rare,
	Each: func(table, alias, condition string) string {
		return `CROSS JOIN ` + table + ` ` + alias + ` ON ` + condition
	},
	PayoutsOfUser: func(user, limit string) string {
		return `(
  SELECT * FROM payouts u INDEXED BY payouts_user WHERE u.user_id = ` + user + ` AND u.user_id <> '' ORDER BY u.promotion_id DESC, u.target_id LIMIT ` + limit + `
) p`
	},
	PayoutPage: listSQL, ClaimLookups: claimLookups,
}

func walk(columns, values []string) (where, order string) {
	for i, c := range columns {
		where += c + ` = ` + values[i] + ` AND `
	}
	return where + `id < $1`, `id DESC`
}

// records reads the elements of an array as rows.
func records(param string, columns ...string) string {
	fields := make([]string, len(columns))
	for i, c := range columns {
		name, _, _ := strings.Cut(c, " ")
		fields[i] = `e.value ->> '` + name + `' AS ` + name
	}
	return `(SELECT ` + strings.Join(fields, ", ") + ` FROM json_each(` + param + `) e)`
}

// tables runs the statements of package rows.
type tables struct {
	s  *Store
	mu sync.Mutex // guards prepared
	// prepared has the statements of Write on the writing connection, by text.
	// Compiling one takes longer than running it, and API requests wait for
	// some. Their number is limited by the texts of package rows.
	prepared map[string]*sql.Stmt
}

func newTables(s *Store) *rows.Tables {
	return rows.New(&tables{s: s, prepared: make(map[string]*sql.Stmt)}, s, dialect)
}

// Run runs statements in one transaction. Only reads of viewers have a time limit.
func (t *tables) Run(ctx context.Context, what string, mode rows.Mode, build func() []rows.Statement) error {
	if mode.Write {
		return t.write(ctx, what, build())
	}
	err := t.s.reader.as(what).read(ctx, func(ctx context.Context, db *sql.Conn) error {
		statements := build()
		if len(statements) == 1 {
			return query(ctx, db, statements[0])
		}
		return inSnapshot(ctx, db, func(q querier) error {
			for _, s := range statements {
				if err := query(ctx, q, s); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// write runs statements in one writing transaction.
func (t *tables) write(ctx context.Context, what string, statements []rows.Statement) error {
	prepared := make([]*sql.Stmt, len(statements))
	for i, s := range statements {
		var err error
		if prepared[i], err = t.prepare(ctx, s.SQL); err != nil { //nolint:sqlclosecheck // they live as long as the store
			return fmt.Errorf("%s: %w", what, unlessBusy(ctx, err))
		}
	}
	return t.s.write(ctx, what, func(tx *tx) error {
		var stmt *sql.Stmt
		for i, s := range statements {
			if i == 0 || prepared[i] != prepared[i-1] {
				stmt = tx.StmtContext(tx.ctx, prepared[i])
			}
			if err := tx.run(stmt, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// prepare returns a prepared statement of the writing connection. It waits for
// that connection, so the caller must not hold it.
func (t *tables) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	t.mu.Lock()
	stmt := t.prepared[query]
	t.mu.Unlock()
	if stmt != nil {
		return stmt, nil
	}
	stmt, err := t.s.writer.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if first := t.prepared[query]; first != nil {
		return first, stmt.Close() //nolint:sqlclosecheck // only one of two is kept
	}
	t.prepared[query] = stmt
	return stmt, nil
}

// snapshot runs fn in one reading transaction, so that all its reads see the same commit.
func (s *Store) snapshot(ctx context.Context, what string, fn func(ctx context.Context, q querier) error) error {
	err := s.reader.as(what).read(ctx, func(ctx context.Context, db *sql.Conn) error {
		return inSnapshot(ctx, db, func(q querier) error { return fn(ctx, q) })
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func inSnapshot(ctx context.Context, db *sql.Conn, fn func(q querier) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	return fn(tx)
}

// query runs a statement that reads.
func query(ctx context.Context, q querier, s rows.Statement) error {
	found, err := q.QueryContext(ctx, s.SQL, bind(s.Args)...)
	if err == nil {
		err = scan(found, s.Row)
	}
	return err
}

// runAll runs statements whose texts are in the dialect.
func (t *tx) runAll(statements []rows.Statement) error {
	for _, s := range statements {
		if err := t.runText(s); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) runText(s rows.Statement) error {
	stmt, err := t.PrepareContext(t.ctx, s.SQL)
	if err != nil {
		return err
	}
	defer stmt.Close()
	return t.run(stmt, s)
}

// run runs stmt, which was prepared from the text of s.
func (t *tx) run(stmt *sql.Stmt, s rows.Statement) (err error) {
	found := !s.Must
	if s.Must {
		s.Row = func(rows.Scan) error {
			found = true
			return nil
		}
	}
	if s.Row == nil {
		_, err = stmt.ExecContext(t.ctx, bind(s.Args)...)
	} else {
		var result *sql.Rows
		if result, err = stmt.QueryContext(t.ctx, bind(s.Args)...); err == nil {
			err = scan(result, s.Row)
		}
	}
	if err == nil && !found {
		return rows.ErrStale
	}
	switch {
	case hasCode(err, foreignKey):
		return fmt.Errorf("%w: %w", err, rows.ErrNoParent)
	case hasCode(err, uniqueRow, uniqueKey) && strings.Contains(err.Error(), "coupons.slot"):
		return fmt.Errorf("%w: %w", err, rows.ErrStale)
	case hasCode(err, uniqueRow, uniqueKey) && (strings.Contains(err.Error(), "coupons.id") || strings.Contains(err.Error(), "coupons.code")):
		return fmt.Errorf("%w: %w", err, rows.ErrTaken)
	}
	return err
}

// scan calls row for every row.
func scan(found *sql.Rows, row func(rows.Scan) error) error {
	defer found.Close()
	for found.Next() {
		if err := row(found.Scan); err != nil {
			return err
		}
	}
	return found.Err()
}

// bind returns args as the database stores them.
func bind(args []any) []any {
	bound := make([]any, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case time.Time:
			bound[i] = micros(arg)
		case time.Duration:
			bound[i] = arg.Microseconds()
		case []reward.PromotionID:
			array, _ := json.Marshal(arg) // a list of numbers never fails
			bound[i] = string(array)
		default:
			bound[i] = arg
		}
	}
	return bound
}
