package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Inspection is what Inspect found in a database file. The caller judges it.
type Inspection struct {
	Exists bool // if false, all other fields but SchemaKnown are empty
	// SchemaVersion is the version of the schema in the file; 0 means that it
	// was never migrated. SchemaKnown is the newest version that this program
	// knows.
	SchemaVersion, SchemaKnown int64
	// Checked reports whether the whole file was checked before ctx ended.
	// Fault is the first damage found; empty means none.
	Checked bool
	Fault   string
	// CodesMissing has the templates that are not closed and have fewer imported codes
	// left than coupons to issue. It is empty unless SchemaVersion is SchemaKnown.
	CodesMissing []reward.TemplateID
}

// templatesMissingCodes finds templates by reward.CouponTemplate.CodesMissing.
const templatesMissingCodes = `SELECT id FROM coupon_templates WHERE (closes_at IS NULL OR closes_at > ?)
  AND codes_imported > 0 AND live + max(codes_imported - issued_total, 0) < total_quantity ORDER BY id`

// Inspect reads the file at path without changing it. Another process may use
// the file. An error means that it could not be read as a database.
func Inspect(ctx context.Context, path string) (Inspection, error) {
	f, err := inspect(ctx, path)
	if err != nil || f.Fault != "" {
		// Without a write-ahead log the file was read as immutable. Another process
		// may have opened it meanwhile, so read it again if a log exists now.
		if logged, _ := exists(path + "-wal"); logged {
			return inspect(ctx, path)
		}
	}
	return f, err
}

func inspect(ctx context.Context, path string) (Inspection, error) {
	known, err := store.NewestMigration(migrations)
	if err != nil {
		return Inspection{}, err
	}
	f := Inspection{SchemaKnown: known}
	if f.Exists, err = exists(path); err != nil || !f.Exists {
		return f, err
	}
	logged, err := exists(path + "-wal")
	if err != nil {
		return f, err
	}
	// Reading a file in WAL mode would create the log and its index, and leave
	// them. They exist already while a process uses the file, or after it crashed.
	// Otherwise the file alone is complete, and can be read as immutable.
	mode := "immutable=1"
	if logged {
		mode = "mode=ro"
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}).String()+
		"?_pragma=busy_timeout(1000)&_pragma=query_only(1)&"+mode)
	if err != nil {
		return f, fmt.Errorf("open %s: %w", path, err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var migrated int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'goose_db_version'`).Scan(&migrated); err != nil {
		return f, fmt.Errorf("read %s: %w", path, err)
	}
	if migrated > 0 {
		const query = `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`
		if err := db.QueryRowContext(ctx, query).Scan(&f.SchemaVersion); err != nil {
			return f, fmt.Errorf("read the schema version of %s: %w", path, err)
		}
	}
	if f.SchemaVersion == f.SchemaKnown {
		if f.CodesMissing, err = collect(ctx, db, scanTemplateID, templatesMissingCodes, micros(time.Now())); err != nil {
			return f, fmt.Errorf("read the templates of %s: %w", path, err)
		}
	}
	var found string
	err = db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&found)
	switch {
	case err != nil && ctx.Err() != nil: // the file is too large to check in time
	case err != nil:
		return f, fmt.Errorf("check %s: %w", path, err)
	default:
		f.Checked = true
		if found != "ok" {
			f.Fault = found
		}
	}
	return f, nil
}

func scanTemplateID(rows *sql.Rows) (id reward.TemplateID, err error) {
	err = rows.Scan(&id)
	return id, err
}

func exists(path string) (bool, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("find the database file: %w", err)
	}
	return true, nil
}
