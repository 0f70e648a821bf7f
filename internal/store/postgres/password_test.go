package postgres

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestPasswordFile connects to a server that asks for a password, before and after the
// file with the password is replaced.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		fixture.OK(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
	}
	server := fixture.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer server.Close()
	given := make(chan string, 10)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			if password, ok := askPassword(conn); ok {
				given <- password
			}
			_ = conn.Close()
		}
	}()
	write("first")
	pc := fixture.Must(poolConfig(Config{URL: "postgres://ann@" + server.Addr().String() + "/x?sslmode=disable", PasswordFile: file}))(t)
	pool := fixture.Must(pgxpool.NewWithConfig(t.Context(), pc))(t)
	defer pool.Close()
	for _, want := range []string{"first", "second"} {
		write(want)
		if err := pool.Ping(t.Context()); err == nil {
			t.Error("the server lets nobody in")
		}
		// pgx may connect more than once.
		for got := range given {
			if got == want {
				break
			}
			if got != "first" {
				t.Fatalf("the password is %q, want %q", got, want)
			}
		}
	}
}

// askPassword plays the begin of a connection to PostgreSQL, and returns the password
// that the client sent.
func askPassword(conn net.Conn) (password string, ok bool) {
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return "", false
	}
	backend.Send(&pgproto3.AuthenticationCleartextPassword{})
	if backend.Flush() != nil || backend.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
		return "", false
	}
	message, err := backend.Receive()
	if err != nil {
		return "", false
	}
	sent, ok := message.(*pgproto3.PasswordMessage)
	if !ok {
		return "", false
	}
	return sent.Password, true
}
