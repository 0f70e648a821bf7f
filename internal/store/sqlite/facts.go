package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"

	"github.com/largesse/largesse/internal/store"
)

// Facts is what a look at a file tells. Judging them is the caller's.
type Inspection struct {
	Exists bool // false: the rest is empty
	// SchemaVersion is what the file was migrated to, 0 = never; and
	// SchemaKnown is what this program would migrate it to.
	SchemaVersion, SchemaKnown int64
	// Checked says that the whole file was looked through before ctx ended;
	// Fault is the first damage that was found, "" = none.
	Checked bool
	Fault   string
}

// Look reads the file at path, which may be in use, and changes nothing. An
// error means that it could not be read as a database.
func Inspect(ctx context.Context, path string) (Inspection, error) {
	f, err := look(ctx, path)
	if err != nil || f.Fault != "" {
		// Without a log beside it the file was read as one that nobody writes.
		// Somebody may have begun to in the meantime.
		if logged, _ := exists(path + "-wal"); logged {
			return look(ctx, path)
		}
	}
	return f, err
}

func look(ctx context.Context, path string) (Inspection, error) {
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
	// Reading a file in WAL mode makes the log and its index, and leaves them.
	// They are there already while a process has it open or after it died;
	// otherwise the file alone is everything.
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
	var found string
	err = db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&found)
	switch {
	case err != nil && ctx.Err() != nil: // it is a large file
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

func exists(path string) (bool, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look at the database: %w", err)
	}
	return true, nil
}
