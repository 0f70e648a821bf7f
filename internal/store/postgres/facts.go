package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// Facts is what a look at a database tells. Judging them is the caller's.
type Inspection struct {
	Version       string // e.g. 16.4
	VersionNumber int    // e.g. 160004
	// InRecovery says that the server is a standby, which takes no writes.
	InRecovery bool
	// ReadOnly says that sessions start read-only, standby or not.
	ReadOnly bool
	// Schema is the one that tables are looked for in first and made in; "":
	// none of the search path exists.
	Schema    string
	MayCreate bool // tables, in Schema
	// SchemaVersion is what the database was migrated to, 0 = never; and
	// SchemaKnown is what this program would migrate it to.
	SchemaVersion, SchemaKnown int64
	// ConnectionsMax is how many connections a plain user may have on this
	// server, role and database; ConnectionsOthers is how many sessions of
	// other programs there are.
	ConnectionsMax, ConnectionsOthers int
	// Unsafe lists the settings that can lose a commit, as "name = value".
	Unsafe []string
	Clock  service.Clock
}

// factsSQL reads everything that is one row. Reserved connections are given
// to superusers only; a limit of -1 on a role or a database is none.
const factsSQL = `SELECT current_setting('server_version'), current_setting('server_version_num')::int4,
  pg_is_in_recovery(), current_setting('transaction_read_only')::bool,
  coalesce(current_schema(), ''), coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
  least(
    current_setting('max_connections')::int4 - current_setting('superuser_reserved_connections')::int4
      - coalesce(current_setting('reserved_connections', true)::int4, 0),
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database())),
  (SELECT count(*)::int4 FROM pg_stat_activity
    WHERE datid IS NOT NULL AND usesysid IS NOT NULL AND pid <> pg_backend_pid() AND application_name NOT LIKE 'largesse%'),
  ARRAY(SELECT name || ' = ' || setting FROM unnest(ARRAY['fsync', 'full_page_writes', 'synchronous_commit']) AS name,
    current_setting(name) AS setting WHERE setting = 'off'),
  to_regclass('goose_db_version') IS NOT NULL`

// Look connects once, reads what it can, and changes nothing. An error means
// that the database could not be used at all; ctx bounds everything.
func Inspect(ctx context.Context, cfg Config) (Inspection, error) {
	known, err := store.NewestMigration(migrations)
	if err != nil {
		return Inspection{}, err
	}
	pc, err := poolConfig(cfg)
	if err != nil {
		return Inspection{}, err
	}
	conn, err := pgx.ConnectConfig(ctx, pc.ConnConfig)
	if err != nil {
		return Inspection{}, fmt.Errorf("open the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	f := Inspection{SchemaKnown: known}
	var migrated bool
	err = conn.QueryRow(ctx, factsSQL).Scan(&f.Version, &f.VersionNumber, &f.InRecovery, &f.ReadOnly, &f.Schema, &f.MayCreate,
		&f.ConnectionsMax, &f.ConnectionsOthers, &f.Unsafe, &migrated)
	if err != nil {
		return Inspection{}, fmt.Errorf("read the database's settings: %w", err)
	}
	if migrated {
		const sql = `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`
		if err := conn.QueryRow(ctx, sql).Scan(&f.SchemaVersion); err != nil {
			return Inspection{}, fmt.Errorf("read the schema version: %w", err)
		}
	}
	f.Clock, err = service.CompareClock(func() (now time.Time, err error) {
		err = conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
		return now, err
	})
	if err != nil {
		return Inspection{}, fmt.Errorf("read the database's clock: %w", err)
	}
	return f, nil
}
