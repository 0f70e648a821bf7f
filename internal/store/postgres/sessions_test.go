package postgres

import (
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// pooler stands in for a connection pooler that knows three parameters of the start, as
// PgBouncer does. It drops the others, or refuses the first of them.
func pooler(t *testing.T, database string, refuses bool) (through string) {
	t.Helper()
	address, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	target := address.Host
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serveClient(client, target, refuses) })
		}
	})
	address.Host = listener.Addr().String()
	return address.String()
}

func serveClient(client net.Conn, target string, refuses bool) {
	defer client.Close()
	backend := pgproto3.NewBackend(client, client)
	first, err := backend.ReceiveStartupMessage()
	start, isStart := first.(*pgproto3.StartupMessage)
	if err != nil || !isStart {
		return
	}
	for name := range start.Parameters {
		if slices.Contains([]string{"user", "database", "application_name"}, name) {
			continue
		}
		if refuses {
			backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			_ = backend.Flush()
			return
		}
		delete(start.Parameters, name)
	}
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	hello, err := start.Encode(nil)
	if err != nil {
		return
	}
	var copying sync.WaitGroup
	defer copying.Wait()
	if _, err := server.Write(hello); err != nil {
		return
	}
	copying.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
	_, _ = io.Copy(server, client)
	_ = server.Close()
}

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
			cfg := Config{URL: pooler(t, direct, tc.refuses)}
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
