package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// Inspection is what Inspect found in a database. The caller judges it.
type Inspection struct {
	Version       string // e.g. 16.4
	VersionNumber int    // e.g. 160004
	Encoding      string // of its texts, e.g. UTF8
	// InRecovery reports whether the server is a standby, which refuses writes.
	InRecovery bool
	// ReadOnly reports whether sessions start as read-only.
	ReadOnly bool
	// Schema is the first existing schema of the search path, in which tables
	// are created. Empty means that none exists.
	Schema    string
	MayCreate bool // whether this user may create tables in Schema
	// SchemaVersion is the version of the schema in the database; 0 means that
	// it was never migrated. SchemaKnown is the newest version that this
	// program knows.
	SchemaVersion, SchemaKnown int64
	// ConnectionsMax is the number of connections that the limits of server,
	// role and database allow an ordinary user. ConnectionsOthers is the number
	// of sessions of other programs.
	ConnectionsMax, ConnectionsOthers int
	// Crowded reports whether the server refused a second connection.
	Crowded bool
	// Unsafe lists the settings that can lose a committed transaction, as "name
	// = value".
	Unsafe []string
	Clock  service.Clock
}

// factsSQL reads everything that fits in one row. Only superusers can use
// reserved connections. A limit of -1 on a role or a database means no limit.
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

// Inspect connects once, reads what it can, and changes nothing. An error means
// that the database cannot be used at all. Only ctx limits its duration.
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
		return Inspection{}, fitError(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	f := Inspection{SchemaKnown: known, Encoding: encodingOf(conn)}
	if f.Crowded, err = inspectSessions(ctx, cfg, conn); err != nil {
		return Inspection{}, err
	}
	var migrated bool
	err = conn.QueryRow(ctx, factsSQL).Scan(&f.Version, &f.VersionNumber, &f.InRecovery, &f.ReadOnly, &f.Schema, &f.MayCreate,
		&f.ConnectionsMax, &f.ConnectionsOthers, &f.Unsafe, &migrated)
	if err != nil {
		return Inspection{}, fmt.Errorf("read the settings of the database: %w", err)
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
		return Inspection{}, fmt.Errorf("read the clock of the database: %w", err)
	}
	return f, nil
}

// inspectSessions returns an *UnfitError if a connection and one for viewers do not have
// sessions of their own with their settings. It reports whether the server refuses the
// second one because of its limits.
func inspectSessions(ctx context.Context, cfg Config, work *pgx.Conn) (crowded bool, err error) {
	vc, err := viewerConfig(cfg)
	if err != nil {
		return false, err
	}
	viewer, err := pgx.ConnectConfig(ctx, vc.ConnConfig)
	if hasState(err, "53300") {
		return true, fitSessions(ctx, work, nil)
	}
	if err != nil {
		return false, fitError(err)
	}
	defer func() { _ = viewer.Close(context.WithoutCancel(ctx)) }()
	return false, fitSessions(ctx, work, viewer)
}
