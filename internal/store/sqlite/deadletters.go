package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

func (t *tx) addDeadLetters(ls []reward.DeadLetter) error {
	for _, l := range ls {
		if _, err := t.exec(`INSERT INTO dead_letters (source, part, off, key, value, reason, detail, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, store.Text(l.Source), l.Partition, store.Text(l.Offset), l.Key, l.Value,
			store.Text(l.Reason), store.Text(l.Detail), micros(l.At)); err != nil {
			return err
		}
	}
	return nil
}

// DeadLetterAdd keeps messages that could not be read or processed.
func (s *Store) DeadLetterAdd(ctx context.Context, ls []reward.DeadLetter) error {
	return s.write(ctx, "keep dead letters", func(tx *tx) error { return tx.addDeadLetters(ls) })
}

// DeadLetterList pages by descending id.
func (s *Store) DeadLetterList(ctx context.Context, before int64, limit int) ([]reward.DeadLetter, error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	list, err := collect(ctx, s.reader, func(rows *sql.Rows) (reward.DeadLetter, error) {
		var l reward.DeadLetter
		var at int64
		err := rows.Scan(&l.ID, &l.Source, &l.Partition, &l.Offset, &l.Key, &l.Value, &l.Reason, &l.Detail, &at)
		l.At = timeOf(at)
		return l, err
	}, `SELECT id, source, part, off, key, value, reason, detail, at FROM dead_letters WHERE id < ? ORDER BY id DESC LIMIT ?`,
		before, limit)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return list, nil
}
