//go:build ci

package test

import (
	"fmt"
	"net/url"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// TestAStandbyTakesOver: PostgreSQL is killed while an instance pays and issues, and its
// synchronous standby is promoted. The instance, which knows both addresses, continues.
func TestAStandbyTakesOver(t *testing.T) {
	t.Parallel()
	primary, standby := fixture.Own(t, fleet.NewPostgres), fixture.Own(t, fleet.NewPostgres)
	ask := func(address, sql string) (answer string) {
		t.Helper()
		db, err := pgx.Connect(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close(t.Context())
		if err := db.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	data := ask(standby.Address(), `SHOW data_directory`)
	if err := standby.Stop(); err != nil {
		t.Fatal(err)
	}
	run(t, "mv", data, data+".empty")
	run(t, "pg_basebackup", "--dbname="+primary.Address(), "--pgdata="+data, "--write-recovery-conf", "--checkpoint=fast")
	run(t, "chown", "-R", "--reference="+data+".empty", data)
	run(t, "chmod", "700", data)
	if err := standby.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, "psql", "--quiet", primary.Address(), "--command=ALTER SYSTEM SET synchronous_standby_names = '*'", "--command=SELECT pg_reload_conf()")
	fixture.Until(t, "the standby is synchronous", func() bool {
		return ask(primary.Address(), `SELECT coalesce(string_agg(sync_state, ','), '') FROM pg_stat_replication`) == "sync"
	})
	this, err := program()
	if err != nil {
		t.Fatal(err)
	}
	x := newTrade(t, "--database-url", both(t, primary, standby))
	x.instance(this)
	x.open(1000, 200)
	x.shop(100)
	x.untilPaid(30)
	x.shop(150)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	// What the primary did not tell anybody may be lost; what it told is on the standby.
	if text, err := exec.CommandContext(t.Context(), "psql", "--quiet", standby.Address(), "--command=SELECT pg_promote()").CombinedOutput(); err != nil {
		t.Fatalf("pg_promote: %v: %s", err, text)
	}
	x.shop(50)
	x.close(standby.Address())
}

// both returns the URL of two servers, of which one accepts writes at a time.
func both(t *testing.T, one, other *fleet.Server) string {
	t.Helper()
	hosts := make([]string, 2)
	for i, s := range []*fleet.Server{one, other} {
		address, err := url.Parse(s.Address())
		if err != nil {
			t.Fatal(err)
		}
		hosts[i] = address.Host
	}
	return fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable&target_session_attrs=read-write", hosts[0], hosts[1])
}
