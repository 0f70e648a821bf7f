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

const deadLetterSQL = `SELECT id, source, part, off, key, value, reason, detail, at, status, settled_at, settled_by
FROM dead_letters `

func deadLettersInto(list *[]reward.DeadLetter) func(pgx.Rows) error {
	return each(func(rows pgx.Rows) error {
		var l reward.DeadLetter
		var settled *time.Time
		err := rows.Scan(&l.ID, &l.Source, &l.Partition, &l.Offset, &l.Key, &l.Value, &l.Reason, &l.Detail, &l.At, &l.Status,
			&settled, &l.SettledBy)
		l.At, l.SettledAt = l.At.UTC(), timeOf(settled)
		*list = append(*list, l)
		return err
	})
}

// DeadLetterGet returns one dead letter.
func (s *Store) DeadLetterGet(ctx context.Context, id int64) (reward.DeadLetter, error) {
	var found []reward.DeadLetter
	err := s.send(ctx, "read a dead letter", func(b *pgx.Batch) {
		found = nil
		b.Queue(deadLetterSQL+`WHERE id = $1`, id).Query(deadLettersInto(&found))
	})
	switch {
	case err != nil:
		return reward.DeadLetter{}, err
	case len(found) == 0:
		return reward.DeadLetter{}, reward.NewError(reward.KindNotFound, reward.CodeDeadLetterNotFound,
			"there is no dead letter %d", id)
	}
	return found[0], nil
}

// DeadLetterList pages by descending id. What is OPEN has an index of its own,
// which only a literal finds.
func (s *Store) DeadLetterList(ctx context.Context, p store.DeadLetterListParams) ([]reward.DeadLetter, error) {
	before := p.Before
	if before == 0 {
		before = 1<<63 - 1
	}
	where := `WHERE id < $1 AND ($2::text = '' OR source = $2) AND ($3::text = '' OR reason = $3) AND ($4::text = '' OR status = $4)`
	if p.Status == reward.DeadLetterOpen {
		where += ` AND status = 'OPEN'`
	}
	var list []reward.DeadLetter
	err := s.sendLong(ctx, "list dead letters", func(b *pgx.Batch) {
		list = nil
		b.Queue(deadLetterSQL+where+` ORDER BY id DESC LIMIT $5`,
			before, store.Text(p.Source), store.Text(p.Reason), store.Text(string(p.Status)), max(p.Limit, 0)).Query(deadLettersInto(&list))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// DeadLetterSettle says what has become of OPEN dead letters. They are locked in
// key order.
func (s *Store) DeadLetterSettle(ctx context.Context, ids []int64, to reward.DeadLetterStatus, by string, now time.Time) ([]int64, error) {
	if err := store.CheckSettle(ids, to); err != nil {
		return nil, err
	}
	var settled []int64
	err := s.send(ctx, "settle dead letters", func(b *pgx.Batch) {
		settled = nil
		b.Queue(`WITH open AS MATERIALIZED (
  SELECT l.id FROM unnest($1::int8[]) AS i(id) JOIN dead_letters l ON l.id = i.id AND l.status = 'OPEN'
  ORDER BY l.id FOR NO KEY UPDATE OF l
)
UPDATE dead_letters l SET status = $2, settled_at = $3, settled_by = $4 FROM open o WHERE l.id = o.id RETURNING l.id`,
			ids, string(to), instant(now), store.Text(by)).Query(each(func(rows pgx.Rows) error {
			var id int64
			err := rows.Scan(&id)
			settled = append(settled, id)
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(settled)
	return settled, nil
}
