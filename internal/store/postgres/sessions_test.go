package postgres

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/store"
)

func TestAPoolerIsRefused(t *testing.T) {
	t.Parallel()
	direct := fixture.Address(t, fleet.VariablePostgres)
	for name, tc := range map[string]struct {
		refuses bool
		want    string
	}{
		"drops settings":   {false, "lack the settings of Largesse: enable_bitmapscan, enable_hashjoin, "},
		"refuses settings": {true, "refuses the settings of Largesse (unsupported startup parameter: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{URL: fixture.Pooler(t, direct, tc.refuses)}
			refused := func(door string, err error) {
				t.Helper()
				unfit, ok := errors.AsType[*UnfitError](err)
				if !ok || !strings.Contains(unfit.Found, tc.want) || !strings.Contains(unfit.Advice, "jit, lock_timeout") {
					t.Errorf("%s: %v, want %s, and all settings", door, err, tc.want)
				}
			}
			s, err := Open(t.Context(), cfg)
			if err == nil {
				s.Close()
			}
			refused("Open", err)
			_, err = Inspect(t.Context(), cfg)
			refused("Inspect", err)
		})
	}
	t.Run("shares sessions", func(t *testing.T) {
		t.Parallel()
		conn := acquire(t, lend(t))
		if err := fitSessions(t.Context(), conn.Conn(), conn.Conn()); err == nil || !strings.Contains(err.Error(), "share one session") {
			t.Errorf("two connections of one session: %v", err)
		}
	})
}

// TestFewerConnectionsThanTheSettingsWant reads and works as a role that may have four
// connections, where the settings want thirteen.
func TestFewerConnectionsThanTheSettingsWant(t *testing.T) {
	t.Parallel()
	admin := fixture.NewSchema(t)
	role := fixture.Must(url.Parse(admin))(t)
	schema := role.Query().Get("search_path")
	role.User = url.UserPassword(schema+"_r", "secret")
	do := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(context.Background(), admin)
		if err == nil {
			_, err = conn.Exec(context.Background(), sql)
			_ = conn.Close(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fixture.OK(t, migrate(t.Context(), admin))
	do(strings.ReplaceAll("CREATE ROLE $_r LOGIN PASSWORD 'secret' CONNECTION LIMIT 4; GRANT USAGE ON SCHEMA $ TO $_r; GRANT ALL ON ALL TABLES IN SCHEMA $ TO $_r", "$", schema))
	t.Cleanup(func() { do("DROP OWNED BY " + schema + "_r; DROP ROLE " + schema + "_r") })
	s := openFor(t, role.String(), 8)
	read := func() error {
		_, err := s.PromotionList(store.ForViewer(t.Context()), store.PromotionListParams{Limit: 1})
		return err
	}
	hold := func(pool *pgxpool.Pool, n int) (release func()) {
		t.Helper()
		var held []*pgxpool.Conn
		for range n {
			conn := fixture.Must(s.connection(t.Context(), pool))(t)
			held = append(held, conn)
		}
		return func() {
			for _, conn := range held {
				conn.Release()
			}
		}
	}

	releaseWork := hold(s.pool, 3)
	if err := read(); err != nil {
		t.Errorf("a read while work has all other connections: %v", err)
	}
	releaseReads := hold(s.viewers, 1)
	answer := make(chan error)
	go func() { answer <- read() }()
	fixture.Until(t, "the server has refused a connection", func() bool {
		at, reason := s.Tables.Refusal()
		return !at.IsZero() && strings.Contains(reason, "too many connections for role")
	})
	releaseReads()
	if err := <-answer; err != nil {
		t.Errorf("a read that had to wait for the only connection: %v", err)
	}

	releaseReads = hold(s.viewers, 1)
	releaseWork()
	if err := read(); err != nil {
		t.Errorf("a second read while work has idle connections: %v", err)
	}
	releaseReads()
	hold(s.pool, 3)()
	if open := s.viewers.Stat().TotalConns(); open != 1 {
		t.Errorf("%d connections for reads are open after work needed the others, want 1", open)
	}

	do("ALTER ROLE " + schema + "_r CONNECTION LIMIT 1")
	hold(s.pool, 1)()
	if _, err := Open(t.Context(), Config{URL: role.String()}); err == nil || !strings.Contains(err.Error(), "fewer than the two connections") ||
		!strings.Contains(err.Error(), store.ConnectionsAdvice) {
		t.Errorf("an instance without connections: %v", err)
	}
}

// TestASessionThatWasIdle calls a server that has ended the session of the connection,
// because it was idle.
func TestASessionThatWasIdle(t *testing.T) {
	t.Parallel()
	at := fixture.Schema(t, migrate)
	s := fixture.Must(openWith(t.Context(), Config{URL: at, ApplicationName: fixture.Name()}))(t)
	defer s.Close()
	admin := acquire(t, openFor(t, at, 1))
	for range 5 {
		fixture.Must(s.Clock(t.Context()))(t)
		fixture.Until(t, "the server ends the sessions", func() bool {
			// Only those that are open now: a new one may be slow.
			for _, idle := range slices.Concat(s.pool.AcquireAllIdle(t.Context()), s.viewers.AcquireAllIdle(t.Context())) {
				_, _ = idle.Exec(t.Context(), `SET idle_session_timeout = 1`) // it may have ended
				idle.Release()
			}
			var sessions int
			err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`,
				s.pool.Config().ConnConfig.RuntimeParams["application_name"]).Scan(&sessions)
			return err == nil && sessions == 0
		})
	}
}
