package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

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

const deadLetterSQL = `SELECT id, source, part, off, key, value, reason, detail, at, status, settled_at, settled_by FROM dead_letters `

func scanDeadLetter(rows *sql.Rows) (reward.DeadLetter, error) {
	var l reward.DeadLetter
	var at int64
	var settled sql.NullInt64
	err := rows.Scan(&l.ID, &l.Source, &l.Partition, &l.Offset, &l.Key, &l.Value, &l.Reason, &l.Detail, &at, &l.Status, &settled,
		&l.SettledBy)
	l.At, l.SettledAt = timeOf(at), maybeTime(settled)
	return l, err
}

// DeadLetterGet returns one dead letter.
func (s *Store) DeadLetterGet(ctx context.Context, id int64) (reward.DeadLetter, error) {
	l, found, err := one(ctx, s.reader, scanDeadLetter, deadLetterSQL+`WHERE id = ?`, id)
	switch {
	case err != nil:
		return reward.DeadLetter{}, fmt.Errorf("read a dead letter: %w", err)
	case !found:
		return reward.DeadLetter{}, reward.NewError(reward.KindNotFound, reward.CodeDeadLetterNotFound,
			"there is no dead letter %d", id)
	}
	return l, nil
}

// lettersSQL lists dead letters below ?1, of source ?2, reason ?3 and status ?4.
// What is OPEN has an index of its own, which only a literal finds.
const (
	lettersSQL = deadLetterSQL + `WHERE id < ?1 AND (?2 = '' OR source = ?2) AND (?3 = '' OR reason = ?3) AND (?4 = '' OR status = ?4)
ORDER BY id DESC LIMIT ?5`
	openLettersSQL = deadLetterSQL + `WHERE id < ?1 AND (?2 = '' OR source = ?2) AND (?3 = '' OR reason = ?3) AND status = 'OPEN'
ORDER BY id DESC LIMIT ?5`
)

// DeadLetterList pages by descending id.
func (s *Store) DeadLetterList(ctx context.Context, p store.DeadLetterListParams) ([]reward.DeadLetter, error) {
	before := p.Before
	if before == 0 {
		before = 1<<63 - 1
	}
	query := lettersSQL
	if p.Status == reward.DeadLetterOpen {
		query = openLettersSQL
	}
	list, err := collect(ctx, s.reader, scanDeadLetter, query,
		before, store.Text(p.Source), store.Text(p.Reason), store.Text(string(p.Status)), max(p.Limit, 0))
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return list, nil
}

// DeadLetterSettle says what has become of OPEN dead letters.
func (s *Store) DeadLetterSettle(ctx context.Context, ids []int64, to reward.DeadLetterStatus, by string, now time.Time) ([]int64, error) {
	if err := store.CheckSettle(ids, to); err != nil {
		return nil, err
	}
	array, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	var settled []int64
	err = s.write(ctx, "settle dead letters", func(tx *tx) (err error) {
		settled, err = collect(tx.ctx, tx, scanInt, `UPDATE dead_letters SET status = ?1, settled_at = ?2, settled_by = ?3
WHERE id IN (SELECT value FROM json_each(?4)) AND status = 'OPEN' RETURNING id`,
			string(to), micros(now), store.Text(by), string(array))
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(settled)
	return settled, nil
}
