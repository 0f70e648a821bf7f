//go:build ci

package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// looked makes a server of what is installed and removes it with the test.
func looked[S interface{ Remove() error }](t *testing.T, find func(context.Context, Installer) (S, error)) S {
	t.Helper()
	in, err := Look()
	if err != nil {
		t.Fatal(err)
	}
	s, err := find(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func asked(t *testing.T, s *Server, words ...string) string {
	t.Helper()
	reply, err := ask(t.Context(), s.at.ports[0], words...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func TestRedisComesBackEmpty(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(context.Context, Installer) (*Server, error){"Redis": NewRedis, "Valkey": NewValkey} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := looked(t, find)
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			address := s.Address()
			for what, again := range map[string]func(context.Context) error{
				"restart": s.Restart,
				"kill": func(ctx context.Context) error {
					if err := s.Kill(); err != nil {
						return err
					}
					return s.Start(ctx)
				},
			} {
				asked(t, s, "SET", "a", "1")
				run := valueOf(asked(t, s, "INFO", "server"), "run_id")
				if err := again(t.Context()); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if n := asked(t, s, "DBSIZE"); n != "0" || s.Address() != address {
					t.Errorf("%s: %s keys at %s, want none at %s", what, n, s.Address(), address)
				}
				if now := valueOf(asked(t, s, "INFO", "server"), "run_id"); now == "" || now == run {
					t.Errorf("%s: run id %q, before %q", what, now, run)
				}
			}
		})
	}
}

func TestPostgresComesBackWithItsData(t *testing.T) {
	t.Parallel()
	s := looked(t, NewPostgres)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	address := s.Address()
	query := func(sql string) (n int) {
		t.Helper()
		db, err := pgx.Connect(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close(t.Context())
		if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	query("WITH made AS (SELECT 1) SELECT count(*) FROM made")
	db, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background()) // its server has ended under it
	if _, err := db.Exec(t.Context(), "CREATE TABLE kept AS SELECT 7 AS n"); err != nil {
		t.Fatal(err)
	}
	// A client is still connected: a gentle stop does not wait for it.
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := query("SELECT n FROM kept"); n != 7 {
		t.Errorf("after a restart it holds %d", n)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(t.Context(), address); err == nil {
		t.Error("it answers after a Kill")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := query("SELECT n FROM kept"); n != 7 || s.Address() != address {
		t.Errorf("after a kill it holds %d at %s", n, s.Address())
	}
}

func TestACluster(t *testing.T) {
	t.Parallel()
	c := looked(t, NewRedisCluster)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	address := c.Address()
	if n := strings.Count(address, "redis://127.0.0.1:"); n != 3 || strings.Count(address, ",") != 2 {
		t.Fatalf("its address is %s", address)
	}
	// Every slot is served by one node: a node keeps a key or says whose it is.
	for _, key := range []string{"a", "b", "c"} {
		kept := 0
		for _, n := range c.Nodes() {
			_, err := ask(t.Context(), n.at.ports[0], "SET", key, "1")
			switch {
			case err == nil:
				kept++
			case !strings.Contains(err.Error(), "MOVED"):
				t.Error(err)
			}
		}
		if kept != 1 {
			t.Errorf("%d nodes keep %s", kept, key)
		}
	}

	if err := c.Nodes()[1].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.each(func(n *Server) error { return clusterOK(t.Context(), n.at.ports[0]) }); err == nil {
		t.Error("it counts as whole without a node")
	}
	if err := c.Nodes()[1].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitOK(t.Context()); err != nil {
		t.Fatal(err)
	}

	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.Address() != address {
		t.Errorf("it moved from %s to %s", address, c.Address())
	}
	for _, n := range c.Nodes() {
		if keys := asked(t, n, "DBSIZE"); keys != "0" {
			t.Errorf("%s came back with %s keys", n.Name(), keys)
		}
	}
}

func TestAFullDisk(t *testing.T) {
	t.Parallel()
	s := looked(t, NewFullPostgres)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	db, err := pgx.Connect(t.Context(), s.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background()) // before its server ends
	grow := func() error {
		_, err := db.Exec(t.Context(), "INSERT INTO kept SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
		return err
	}
	if _, err := db.Exec(t.Context(), "CREATE TABLE kept (text text)"); err != nil {
		t.Fatal(err)
	}
	if err := grow(); err != nil {
		t.Fatal(err)
	}
	if err := s.Fill(true); err != nil {
		t.Fatal(err)
	}
	var full *pgconn.PgError
	if err := grow(); !errors.As(err, &full) || full.Code != "53100" {
		t.Errorf("a full disk answers %v, want SQLSTATE 53100", err)
	}
	if err := s.Fill(false); err != nil {
		t.Fatal(err)
	}
	if err := grow(); err != nil {
		t.Error(err)
	}
}

func TestAServerHangs(t *testing.T) {
	t.Parallel()
	s := looked(t, NewRedis)
	if err := s.Hang(); err == nil {
		t.Error("a server that does not run can hang")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Hang(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t.Context(), s.at.ports[0], "PING"); err == nil {
		t.Error("it answers while it hangs")
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if reply := asked(t, s, "PING"); reply != "PONG" {
		t.Errorf("after it hung it answers %q", reply)
	}
}
