package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// addDeadLetters queues the insert of dead letters, in key order, so that two
// batches with the same ones wait for each other in one direction.
func addDeadLetters(b *pgx.Batch, ls []reward.DeadLetter) {
	if len(ls) == 0 {
		return
	}
	sorted := slices.Clone(ls)
	slices.SortStableFunc(sorted, func(a, b reward.DeadLetter) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	sources, parts, offs := make([]string, len(ls)), make([]int32, len(ls)), make([]string, len(ls))
	keys, values := make([][]byte, len(ls)), make([][]byte, len(ls))
	reasons, details, ats := make([]string, len(ls)), make([]string, len(ls)), make([]time.Time, len(ls))
	for i, l := range sorted {
		sources[i], parts[i], offs[i] = store.Text(l.Source), l.Partition, store.Text(l.Offset)
		keys[i], values[i] = l.Key, l.Value
		reasons[i], details[i], ats[i] = store.Text(l.Reason), store.Text(l.Detail), instant(l.At)
	}
	b.Queue(`INSERT INTO dead_letters (source, part, off, key, value, reason, detail, at)
SELECT * FROM unnest($1::text[], $2::int4[], $3::text[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::timestamptz[])
ON CONFLICT DO NOTHING`, sources, parts, offs, keys, values, reasons, details, ats)
}

// DeadLetterAdd keeps messages that could not be read or processed.
func (s *Store) DeadLetterAdd(ctx context.Context, ls []reward.DeadLetter) error {
	if len(ls) == 0 {
		return nil
	}
	return s.send(ctx, "keep dead letters", func(b *pgx.Batch) { addDeadLetters(b, ls) })
}

// DeadLetterList pages by descending id.
func (s *Store) DeadLetterList(ctx context.Context, before int64, limit int) ([]reward.DeadLetter, error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	var list []reward.DeadLetter
	err := s.query(ctx, "list dead letters", `SELECT id, source, part, off, key, value, reason, detail, at
FROM dead_letters WHERE id < $1 ORDER BY id DESC LIMIT $2`, func(rows pgx.Rows) error {
		var l reward.DeadLetter
		err := rows.Scan(&l.ID, &l.Source, &l.Partition, &l.Offset, &l.Key, &l.Value, &l.Reason, &l.Detail, &l.At)
		l.At = l.At.UTC()
		list = append(list, l)
		return err
	}, before, limit)
	if err != nil {
		return nil, err
	}
	return list, nil
}
