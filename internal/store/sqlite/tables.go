package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/store/rows"
)

// clock is the database's time in microseconds.
const clock = `CAST(unixepoch('subsec') * 1000000 AS INTEGER)`

// dialect needs no SkipLocked: one transaction writes at a time.
var dialect = rows.Dialect{Clock: clock}

// tables runs the statements of package rows.
type tables struct{ s *Store }

// Write runs statements in one writing transaction.
func (t tables) Write(ctx context.Context, what string, build func() []rows.Statement) error {
	return t.s.write(ctx, what, func(tx *tx) error { return tx.run(build()) })
}

// Read runs a statement on a reading connection.
func (t tables) Read(ctx context.Context, what string, build func() rows.Statement) error {
	if err := read(ctx, t.s.reader, build()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// ReadLong is Read, which has no time limit here.
func (t tables) ReadLong(ctx context.Context, what string, build func() rows.Statement) error {
	return t.Read(ctx, what, build)
}

// run runs statements in order.
func (t *tx) run(statements []rows.Statement) error {
	for _, s := range statements {
		var err error
		if s.Row == nil {
			_, err = t.exec(s.SQL, bind(s.Args)...)
		} else {
			err = read(t.ctx, t, s)
		}
		if hasCode(err, foreignKey) {
			return fmt.Errorf("%w: %w", err, rows.ErrNoParent)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func read(ctx context.Context, q querier, s rows.Statement) error {
	found, err := q.QueryContext(ctx, s.SQL, bind(s.Args)...)
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		if err := s.Row(found.Scan); err != nil {
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
		default:
			bound[i] = arg
		}
	}
	return bound
}
