package postgres

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// activeList is an answer that is asked for all the time and mostly finds
// nothing changed.
type activeList[T any] struct {
	version int64
	list    []T
}

// readActive asks with the version of the answer in kept, which is not sent again
// as long as it stands. reader returns a row, what reads the columns of the
// statement into it, and the last of them, the version, to where it is told. The
// list is shared by everybody who asks.
func readActive[T any](ctx context.Context, s *Store, what string, kept *atomic.Pointer[activeList[T]], sql string,
	reader func(version *int64) (*T, func(pgx.Rows) error), args ...any,
) ([]T, error) {
	known := kept.Load()
	if known == nil {
		known = &activeList[T]{}
	}
	var read activeList[T]
	v, scan := reader(&read.version)
	err := s.send(ctx, what, func(b *pgx.Batch) {
		read.list = nil
		b.Queue(sql, append([]any{known.version}, args...)...).Query(each(func(rows pgx.Rows) error {
			if rows.RawValues()[0] == nil { // the version alone
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
