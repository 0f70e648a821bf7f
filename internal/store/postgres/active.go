package postgres

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// activeList is a cached result with its version. It is for results that are
// read often and rarely change.
type activeList[T any] struct {
	version int64
	list    []T
}

// readActive runs a statement with the version of the cached result in $1, so
// that the database sends an unchanged result only once. Callers share the
// returned list and must not change it. reader returns a variable for one row,
// and a function that scans a row into it. The last column of the statement is
// the version.
func readActive[T any](ctx context.Context, s *Store, what string, kept *atomic.Pointer[activeList[T]], sql string,
	reader func(version *int64) (*T, func(pgx.Rows) error), args ...any,
) ([]T, error) {
	known := kept.Load()
	if known == nil {
		known = &activeList[T]{}
	}
	var read activeList[T]
	v, scan := reader(&read.version)
	err := s.read(ctx, what, func(b *pgx.Batch) {
		read.list = nil
		b.Queue(sql, append([]any{known.version}, args...)...).Query(each(func(rows pgx.Rows) error {
			if rows.RawValues()[0] == nil { // unchanged: the row has only the version
				into := make([]any, len(rows.FieldDescriptions()))
				into[len(into)-1] = &read.version
				return rows.Scan(into...)
			}
			if read.list == nil {
				read.list = make([]T, 0, len(known.list)+16)
			}
			err := scan(rows)
			read.list = append(read.list, *v)
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	if read.version == known.version {
		return known.list, nil
	}
	kept.Store(&read)
	return read.list, nil
}
