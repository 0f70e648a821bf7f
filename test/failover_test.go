//go:build ci

package test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// TestAStandbyTakesOver: PostgreSQL is killed while an instance pays and issues, and its
// synchronous standby is promoted. The instance, which knows both addresses, continues.
func TestAStandbyTakesOver(t *testing.T) {
	t.Parallel()
	primary, standby := fixture.Own(t, fleet.NewPostgres), fixture.Own(t, fleet.NewPostgres)
	data := ask[string](t, standby.Address(), `SHOW data_directory`)
	fixture.OK(t, standby.Stop())
	run(t, "mv", data, data+".empty")
	run(t, "pg_basebackup", "--dbname="+primary.Address(), "--pgdata="+data, "--write-recovery-conf", "--checkpoint=fast")
	run(t, "chown", "-R", "--reference="+data+".empty", data)
	run(t, "chmod", "700", data)
	fixture.OK(t, standby.Start(t.Context()))
	run(t, "psql", "--quiet", primary.Address(), "--command=ALTER SYSTEM SET synchronous_standby_names = '*'", "--command=SELECT pg_reload_conf()")
	fixture.Until(t, "the standby is synchronous", func() bool {
		return ask[string](t, primary.Address(), `SELECT coalesce(string_agg(sync_state, ','), '') FROM pg_stat_replication`) == "sync"
	})
	this := fixture.Must(program())(t)
	x := newTrade(t, "--database-url", both(t, primary, standby))
	x.instance(this)
	x.open(1000, 200)
	x.shop(100)
	x.untilPaid(30)
	x.shop(150)
	fixture.OK(t, primary.Kill())
	// What the primary did not tell anybody may be lost; what it told is on the standby.
	run(t, "psql", "--quiet", standby.Address(), "--command=SELECT pg_promote()")
	x.shop(50)
	x.close(standby.Address())
}

// both returns the URL of two servers, of which one accepts writes at a time.
func both(t *testing.T, one, other *fleet.Server) string {
	t.Helper()
	hosts := make([]string, 2)
	for i, s := range []*fleet.Server{one, other} {
		address := fixture.Must(url.Parse(s.Address()))(t)
		hosts[i] = address.Host
	}
	return fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable&target_session_attrs=read-write", hosts[0], hosts[1])
}
