package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// sessionSettings are the settings with which every session starts, as
// current_setting returns them.
//
// Every statement reaches its rows by an index, in batches that are small compared
// with the tables. The planner must not choose otherwise because a table was never
// analyzed, or because a batch looks large. It must not repeat planning and JIT
// compilation either.
//
// A plan may be made while a table is small, and still be used with a million rows. No
// statement may therefore allow a plan that reads all rows of a promotion instead of
// single rows. Both columns of a key are joined with the list of rows; none is a
// parameter.
var sessionSettings = map[string]string{
	"lock_timeout":                        "2s",
	"idle_in_transaction_session_timeout": "1s",
	"enable_seqscan":                      "off",
	"enable_bitmapscan":                   "off",
	"enable_hashjoin":                     "off",
	"enable_mergejoin":                    "off",
	"enable_incremental_sort":             "off",
	"plan_cache_mode":                     "force_generic_plan",
	"jit":                                 "off",
}

// UnfitError means that Largesse cannot use a database that responds.
type UnfitError struct {
	Check  string // of largesse doctor
	Found  string // what is wrong
	Advice string // what to do
	Err    error  // the server's; nil: none
}

func (e *UnfitError) Error() string { return e.Found + ": " + e.Advice }

func (e *UnfitError) Unwrap() error { return e.Err }

// EncodingAdvice says how to get a database of the only encoding that stores every text
// unchanged.
const EncodingAdvice = "create a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and name it in database.url"

// encodingOf returns the encoding of the database of a connection.
func encodingOf(c *pgx.Conn) string { return c.PgConn().ParameterStatus("server_encoding") }

// pooled returns the error of a database that is behind a connection pooler which does
// not give each client a session with its settings.
func pooled(found string, err error) error {
	return &UnfitError{
		Check: "database.sessions",
		Found: "database.url leads to a connection pooler, such as PgBouncer, and " + found,
		Advice: "name PostgreSQL itself: Largesse has pools of its own, which database.max-connections and database.read-connections limit. " +
			"A pooler works only in session mode, and if it passes on " + strings.Join(slices.Sorted(maps.Keys(sessionSettings)), ", ") +
			" and statement_timeout as parameters of the start; PgBouncer does not",
		Err: err,
	}
}

// sessionSQL returns the server process of a session, and which of the settings $1 do
// not have the values $2.
const sessionSQL = `SELECT pg_backend_pid(),
  ARRAY(SELECT name FROM unnest($1::text[], $2::text[]) AS want(name, value)
    WHERE current_setting(name, true) IS DISTINCT FROM value ORDER BY name)`

// fitSessions returns an *UnfitError unless two open connections have sessions of their
// own with the settings of poolConfig and viewerConfig. viewer is nil if it could not be opened.
func fitSessions(ctx context.Context, work, viewer *pgx.Conn) error {
	var processes []uint32
	for _, c := range []*pgx.Conn{work, viewer} {
		if c == nil {
			continue
		}
		settings := maps.Clone(sessionSettings)
		if limit := c.Config().RuntimeParams["statement_timeout"]; limit != "" && c == viewer {
			settings["statement_timeout"] = limit
		}
		names := slices.Sorted(maps.Keys(settings))
		values := make([]string, len(names))
		for i, name := range names {
			values[i] = settings[name]
		}
		var process uint32
		var lost []string
		if err := c.QueryRow(ctx, sessionSQL, names, values).Scan(&process, &lost); err != nil {
			return fitError(err)
		}
		if len(lost) > 0 {
			return pooled("its sessions lack the settings of Largesse: "+strings.Join(lost, ", "), nil)
		}
		if slices.Contains(processes, process) {
			return pooled("two connections share one session", nil)
		}
		processes = append(processes, process)
	}
	return nil
}

// fitError returns the error of a connection or statement as an *UnfitError if only a
// pooler refuses so.
func fitError(err error) error {
	var pe *pgconn.PgError
	switch {
	case !errors.As(err, &pe):
	case pe.Code == "08P01" && strings.HasPrefix(pe.Message, "unsupported startup parameter"):
		return pooled("it refuses the settings of Largesse ("+pe.Message+")", err)
	case pe.Code == "53300":
		return &UnfitError{
			Check: "database.connections", Found: "the database gives this instance fewer than the two connections that it needs at least (" + service.Words(err) + ")",
			Advice: store.ConnectionsAdvice, Err: err,
		}
	case pe.Code == "42P05", pe.Code == "26000": // a named statement of another client, or on another session
		return pooled("its sessions change between statements ("+pe.Message+")", err)
	}
	return fmt.Errorf("reach the database: %w", err)
}
