package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/largesse/largesse/internal/store/rows"
)

// lockRow follows a SELECT.
const lockRow = ` FOR NO KEY UPDATE`

var dialect = rows.Dialect{
	Clock: `clock_timestamp()`, SkipLocked: `FOR UPDATE SKIP LOCKED`, LockRow: lockRow, Walk: walk, ByBytes: ` COLLATE "C"`, JSON: `::jsonb`, TellIssued: tellIssued,
	ByLocale: ` COLLATE "default"`, List: list, Records: records,
	Index: func(string) string { return "" }, Among: `= ANY($1::int8[])`, Active: activeWhere,
	Returned: named(`payouts p WHERE p.promotion_id = $1 AND p.state = :READY AND p.dispatch > 0`),
	Each: func(table, alias, condition string) string {
		return `CROSS JOIN LATERAL (SELECT * FROM ` + table + ` ` + alias + ` WHERE ` + condition + ` OFFSET 0) ` + alias
	},
	PayoutsOfUser: payoutsOfUser, PayoutPage: listSQL, ClaimLookups: claimLookupsSQL,
}

// payoutsOfUser reads payout_users, which may have a row twice, or the row of a deleted
// payout.
func payoutsOfUser(user, limit string) string {
	return `(
  SELECT DISTINCT u.promotion_id, u.target_id FROM payout_users u WHERE u.user_id = ` + user + `
  ORDER BY u.promotion_id DESC, u.target_id LIMIT ` + limit + `
) u JOIN payouts p ON p.promotion_id = u.promotion_id AND p.target_id = u.target_id AND p.user_id = ` + user
}

// walk compares rows, and orders by the columns too. With plain equality, the
// planner may walk the primary key instead and expect to find a page soon. It
// cannot know the values, because it plans once for all of them.
func walk(columns, values []string) (where, order string) {
	c, v := strings.Join(columns, ", "), strings.Join(values, ", ")
	return `(` + c + `, id) < (` + v + `, $1) AND (` + c + `) >= (` + v + `)`, strings.Join(columns, ` DESC, `) + ` DESC, id DESC`
}

// list reads the elements of an array with their positions.
func list(param string) string {
	return `(SELECT e.value, e.place - 1 AS key FROM jsonb_array_elements_text(` + param + `::jsonb) WITH ORDINALITY AS e(value, place))`
}

// records reads the elements of an array as rows.
func records(param string, columns ...string) string {
	return `(SELECT * FROM jsonb_to_recordset(` + param + `::jsonb) AS e(` + strings.Join(columns, ", ") + `))`
}

// tables runs the statements of package rows, each call as one batch.
type tables struct{ s *Store }

// Run runs statements in one transaction.
func (t tables) Run(ctx context.Context, what string, mode rows.Mode, build func() []rows.Statement) error {
	send := t.s.read
	switch mode {
	case rows.Mode{Write: true}:
		send = t.s.send
	case rows.Mode{Write: true, Long: true}:
		send = t.s.sendLong
	case rows.Mode{Long: true}:
		send = t.s.readLong
	}
	err := send(ctx, what, func(b *pgx.Batch) {
		statements := build()
		snapshot := !mode.Write && len(statements) > 1
		if snapshot {
			b.Queue(oneSnapshot)
		}
		queue(b, statements)
		if snapshot {
			b.Queue(`COMMIT`)
		}
	})
	if mode.Write {
		err = writeError(err)
	}
	return err
}

// writeError returns the error of a transaction, with what it means to package rows.
func writeError(err error) error {
	switch {
	case hasState(err, "23503"):
		return fmt.Errorf("%w: %w", err, rows.ErrNoParent)
	case hasState(err, "22012"), brokeUnique(err, "coupons_slot"):
		return fmt.Errorf("%w: %w", err, rows.ErrStale)
	case brokeUnique(err, "coupons_pkey", "coupons_code_of_template"):
		return fmt.Errorf("%w: %w", err, rows.ErrTaken)
	}
	return err
}

// brokeUnique reports whether err means that a row breaks one of these unique constraints.
func brokeUnique(err error, constraints ...string) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23505" && slices.Contains(constraints, pe.ConstraintName)
}

// oneSnapshot makes all statements up to the COMMIT see the same rows. It takes no lock.
const oneSnapshot = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`

// queue adds statements to a batch. One that must return a row divides by the number of its
// rows: only an error ends a batch that is sent already.
func queue(b *pgx.Batch, statements []rows.Statement) {
	for _, s := range statements {
		if s.Must {
			s.SQL = "WITH must AS (" + s.SQL + ") SELECT 1 / count(*) AS unless_stale FROM must"
		}
		queued := b.Queue(s.SQL, s.Args...)
		if s.Row != nil {
			queued.Query(each(func(found pgx.Rows) error { return s.Row(found.Scan) }))
		}
	}
}
