// Package rows holds the methods of the store whose statements are the same in
// every database: API keys, the audit, idempotency keys, dead letters, uploads,
// leases, instances, webhook deliveries, reports, and single statements about
// templates, draws and offsets.
//
// A driver embeds Tables and gives it a DB. The statements of a call are all
// sent before the first one answers, so a method writes first and then reads
// back what became of it; it never decides in between. The texts use only what
// PostgreSQL and SQLite have in common: $1, CAST, RETURNING without an alias,
// and one statement for each row instead of an array. Dialect has the rest.
package rows

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Statement is one SQL statement.
type Statement struct {
	SQL string
	// Args are the values of $1, $2 and so on. The driver stores a time.Time to
	// the microsecond, and takes a time.Duration as an interval; nil is NULL.
	Args []any
	// Row reads one row of the result. It is nil for a statement without one.
	Row func(scan Scan) error
}

// Scan copies the columns of the current row into dest.
type Scan = func(dest ...any) error

// DB runs statements. Its errors begin with what, which names the call. A
// statement that names a row of another table that does not exist fails with
// ErrNoParent.
type DB interface {
	// Write runs the statements that build returns as one transaction, in order.
	// It calls build again for each try.
	Write(ctx context.Context, what string, build func() []Statement) error
	// Read runs one statement that changes nothing. It calls build again for
	// each try.
	Read(ctx context.Context, what string, build func() Statement) error
	// ReadLong is Read for a statement whose time grows with the table. Only ctx
	// limits it.
	ReadLong(ctx context.Context, what string, build func() Statement) error
}

// ErrNoParent means that a statement broke a foreign key.
var ErrNoParent = errors.New("a row that this one belongs to does not exist")

// Dialect holds what the databases write differently.
type Dialect struct {
	// Clock is the current time of the database. It advances within a
	// transaction where others can change rows meanwhile.
	Clock string
	// SkipLocked ends a SELECT in order to lock its rows, without those that
	// others have locked. It is empty where one transaction writes at a time.
	SkipLocked string
}

// Tables implements the shared part of store.Store. Its methods are safe for
// concurrent use.
type Tables struct {
	db DB
	texts
}

// New returns the shared methods over db.
func New(db DB, d Dialect) Tables { return Tables{db: db, texts: d.texts()} }

// texts are the statements that depend on the dialect.
type texts struct {
	forgetKeys, takeLease, leaseOwners, beat, forgetInstances, listInstances, takeWebhooks, expireCoupons string
}

func (d Dialect) texts() texts {
	text := strings.NewReplacer(":clock", d.Clock, ":skip_locked", d.SkipLocked).Replace
	return texts{
		forgetKeys: text(forgetKeys), takeLease: text(takeLease), leaseOwners: text(leaseOwners), beat: text(beat),
		forgetInstances: text(forgetInstances), listInstances: text(listInstances), takeWebhooks: text(takeWebhooks),
		expireCoupons: text(expireCoupons),
	}
}

// Statements returns the texts that reach tables which grow, by name. Tests of
// a driver check the plans of these.
func (d Dialect) Statements() map[string]string {
	audit := func(p store.AuditListParams) string {
		sql, _ := auditSQL(p)
		return sql
	}
	t := d.texts()
	return map[string]string{
		"find an API key": keyByHash, "list API keys": listKeys, "use an API key": useKey,
		"audit": audit(store.AuditListParams{}), "audit of a subject": audit(store.AuditListParams{Subject: "/a"}),
		"audit below": audit(store.AuditListParams{Subject: "/a/"}), "audit below by an actor": audit(store.AuditListParams{Subject: "/a/", Actor: "a"}),
		"audit of an actor": audit(store.AuditListParams{Actor: "a"}), "audit of an action": audit(store.AuditListParams{Action: "a"}),
		"end a line": endAudit, "claim a key": claimKey, "read a key": readKey, "forget keys": t.forgetKeys, "finish a key": finishKey,
		"drop a key": dropKey, "release a key": releaseKey, "take webhooks": t.takeWebhooks,
		"dead letters": lettersSQL(""), "open dead letters": lettersSQL(reward.DeadLetterOpen), "settle a dead letter": settleLetter,
		"own a template": ownTemplate, "list entrants": listEntrants, "list refusals": listRefusals, "recount coupons": recountCoupons,
		"expire coupons": t.expireCoupons,
	}
}

// exec runs one statement that returns no rows.
func (t *Tables) exec(ctx context.Context, what, sql string, args ...any) error {
	return t.db.Write(ctx, what, func() []Statement { return []Statement{{SQL: sql, Args: args}} })
}

// change runs one statement that returns the rows it wrote, and reports whether
// there were any.
func (t *Tables) change(ctx context.Context, what, sql string, args ...any) (bool, error) {
	var changed bool
	err := t.db.Write(ctx, what, func() []Statement {
		changed = false
		return []Statement{{SQL: sql, Args: args, Row: seen(&changed)}}
	})
	return changed && err == nil, err
}

// seen returns a reader that reports whether there is a row.
func seen(found *bool) func(Scan) error {
	return func(Scan) error {
		*found = true
		return nil
	}
}

// into returns a reader that appends each row to list.
func into[T any](list *[]T, read func(Scan, *T) error) func(Scan) error {
	return func(scan Scan) error {
		var row T
		err := read(scan, &row)
		*list = append(*list, row)
		return err
	}
}

// reading is DB.Read or DB.ReadLong.
type reading func(ctx context.Context, what string, build func() Statement) error

// list reads all rows of one statement.
func list[T any](ctx context.Context, db reading, what string, read func(Scan, *T) error, sql string, args ...any) ([]T, error) {
	var found []T
	err := db(ctx, what, func() Statement {
		found = nil
		return Statement{SQL: sql, Args: args, Row: into(&found, read)}
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// first returns the first of the rows that a call found, or missing if there is
// none.
func first[T any](found []T, err, missing error) (row T, _ error) {
	switch {
	case err != nil:
		return row, err
	case len(found) == 0:
		return row, missing
	}
	return found[0], nil
}

// below is the upper end of a page of descending ids: before, or no end for 0.
func below(before int64) int64 {
	if before == 0 {
		return math.MaxInt64
	}
	return before
}

// at reads a time in UTC; NULL is the zero time.
type at time.Time

// Scan takes a time, or the microseconds since 1970.
func (a *at) Scan(value any) error {
	switch value := value.(type) {
	case nil:
		*a = at{}
	case time.Time:
		*a = at(value.UTC())
	case int64:
		*a = at(time.UnixMicro(value).UTC())
	default:
		return fmt.Errorf("read a time: %T is none", value)
	}
	return nil
}

// orNull is NULL for the zero time.
func orNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// instant is t as it comes back from a database.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
