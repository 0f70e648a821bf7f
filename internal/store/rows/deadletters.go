package rows

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	addLetter = `INSERT INTO dead_letters (source, part, off, key, value, reason, detail, at, value_length, value_hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING`

	// adoptLetter adds the log to a dead letter of a version that did not store
	// logs, if it has the same bytes. Without that, the same record would be stored
	// twice.
	adoptLetter = `UPDATE dead_letters SET off = $4 WHERE source = $1 AND part = $2 AND off = $3 AND value IS NOT DISTINCT FROM $5
AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.source = $1 AND d.part = $2 AND d.off = $4)`
)

// place returns what the column off has for a dead letter: its offset and, after a
// space, its log if it has one. The column is in the key, so that each log of a
// topic has offsets of its own.
func place(l *reward.DeadLetter) string {
	if l.Log == "" {
		return reward.SanitizeText(l.Offset)
	}
	return reward.SanitizeText(l.Offset + " " + l.Log)
}

// AddDeadLetters returns the statements that insert dead letters. They are in
// key order, so that two transactions with the same dead letters cannot
// deadlock.
func AddDeadLetters(ls []reward.DeadLetter) []Statement {
	sorted := slices.Clone(ls)
	slices.SortStableFunc(sorted, func(a, b reward.DeadLetter) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Partition, b.Partition), cmp.Compare(place(&a), place(&b)))
	})
	statements := make([]Statement, 0, 2*len(sorted))
	for _, l := range sorted {
		source, at := reward.SanitizeText(l.Source), place(&l)
		if l.Log != "" {
			statements = append(statements, Statement{SQL: adoptLetter, Args: []any{source, l.Partition, reward.SanitizeText(l.Offset), at, l.Value}})
		}
		value, length, hash := l.Value, any(nil), []byte(nil)
		if len(value) > reward.DeadLetterKeptMax {
			sum := sha256.Sum256(value)
			value, length, hash = value[:reward.DeadLetterKeptMax], len(value), sum[:]
		}
		statements = append(statements, Statement{SQL: addLetter, Args: []any{
			source, l.Partition, at, l.Key[:min(len(l.Key), reward.DeadLetterKeptMax)], value, reward.SanitizeText(l.Reason), reward.SanitizeText(l.Detail), l.At, length, hash,
		}})
	}
	return statements
}

// DeadLetterAdd stores dead letters as OPEN. One with a known source, partition,
// offset and log is dropped.
func (t *Tables) DeadLetterAdd(ctx context.Context, ls []reward.DeadLetter) error {
	if len(ls) == 0 {
		return nil
	}
	return t.db.Write(ctx, "store dead letters", func() []Statement { return AddDeadLetters(ls) })
}

// lettersFrom returns the beginning of a statement that reads dead letters, with at most
// bytesMax bytes of each key and value.
func lettersFrom(table string, bytesMax int) string {
	return fmt.Sprintf(`SELECT id, source, part, off, substr(key, 1, %d), substr(value, 1, %[1]d), coalesce(value_length, length(value), 0),
  reason, detail, at, status, settled_at, settled_by FROM %s `, bytesMax, table)
}

func scanLetter(scan Scan, l *reward.DeadLetter) error {
	err := scan(&l.ID, &l.Source, &l.Partition, &l.Offset, &l.Key, &l.Value, &l.ValueLength, &l.Reason, &l.Detail, (*at)(&l.At), &l.Status,
		(*at)(&l.SettledAt), &l.SettledBy)
	l.Offset, l.Log, _ = strings.Cut(l.Offset, " ")
	return err
}

// DeadLetterGet returns one dead letter, or CodeDeadLetterNotFound.
func (t *Tables) DeadLetterGet(ctx context.Context, id int64) (reward.DeadLetter, error) {
	missing := reward.NewError(reward.KindNotFound, reward.CodeDeadLetterNotFound, "there is no dead letter %d", id)
	return one(ctx, t.db.Read, "read a dead letter", missing, scanLetter, lettersFrom("dead_letters", math.MaxInt32)+`WHERE id = $1`, id)
}

// lettersSQL returns the statement that reads a page of dead letters. Each set
// of filters has an index that ends with the status and the ID. Without a status,
// the statement merges a page of each status.
func (d Dialect) lettersSQL(p store.DeadLetterListParams) (sql string, args []any) {
	args = []any{below(p.Before), max(p.Limit, 0)}
	bytesMax := cmp.Or(p.BytesMax, math.MaxInt32)
	letterSQL := lettersFrom("dead_letters", bytesMax)
	if p.Source == "" && p.Reason == "" && p.Status == "" {
		return letterSQL + `WHERE id < $1 ORDER BY id DESC LIMIT $2`, args
	}
	var columns, values []string
	for _, filter := range []struct{ column, value string }{{"source", p.Source}, {"reason", p.Reason}} {
		if filter.value != "" {
			args = append(args, reward.SanitizeText(filter.value))
			columns, values = append(columns, filter.column), append(values, fmt.Sprintf("CAST($%d AS text)", len(args)))
		}
	}
	columns = append(columns, "status")
	statuses := []reward.DeadLetterStatus{reward.DeadLetterOpen, reward.DeadLetterReplayed, reward.DeadLetterDiscarded}
	if p.Status != "" {
		args = append(args, reward.SanitizeText(string(p.Status)))
		where, order := d.Walk(columns, append(values, fmt.Sprintf("CAST($%d AS text)", len(args))))
		return letterSQL + `WHERE ` + where + ` ORDER BY ` + order + ` LIMIT $2`, args
	}
	pages := make([]string, len(statuses))
	for i, status := range statuses {
		where, order := d.Walk(columns, append(slices.Clone(values), "'"+string(status)+"'"))
		pages[i] = `SELECT * FROM (SELECT id AS letter FROM dead_letters WHERE ` + where + ` ORDER BY ` + order + ` LIMIT $2) s`
	}
	return `WITH page AS MATERIALIZED (
  SELECT letter FROM (` + strings.Join(pages, "\n  UNION ALL ") + `) s ORDER BY letter DESC LIMIT $2
)
` + lettersFrom("page JOIN dead_letters ON id = letter", bytesMax) + `ORDER BY id DESC`, args
}

// DeadLetterList returns a page of dead letters by descending ID.
func (t *Tables) DeadLetterList(ctx context.Context, p store.DeadLetterListParams) ([]reward.DeadLetter, error) {
	sql, args := t.dialect.lettersSQL(p)
	return list(ctx, t.db.ReadLong, "list dead letters", scanLetter, sql, args...)
}

const closeLetter = `UPDATE dead_letters SET status = $2, settled_at = $3, settled_by = $4 WHERE id = $1 AND status = 'OPEN' RETURNING id`

// DeadLetterClose moves the OPEN dead letters among ids to REPLAYED or
// DISCARDED. It returns the IDs that it moved in ascending order, each once.
// Another status, or more than store.BatchMax ids, are CodeInvalid.
//
// It locks them in the order of their IDs.
func (t *Tables) DeadLetterClose(ctx context.Context, ids []int64, to reward.DeadLetterStatus, by string, now time.Time) ([]int64, error) {
	if err := store.CheckDeadLetterClose(ids, to); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, nil
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(ids)))
	var closed []int64
	err := t.db.Write(ctx, "close dead letters", func() []Statement {
		closed = nil
		read := into(&closed, scanOne)
		statements := make([]Statement, len(sorted))
		for i, id := range sorted {
			statements[i] = Statement{SQL: closeLetter, Args: []any{id, string(to), now, reward.SanitizeText(by)}, Row: read}
		}
		return statements
	})
	if err != nil {
		return nil, err
	}
	return closed, nil
}
