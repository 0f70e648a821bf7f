//go:build ci

package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// restored pays targets, loses the database in the middle, and continues on what was
// restored, as docs/backup.md says.
type restored struct {
	*rig
	t        *testing.T
	sim      *moneysim.Server
	args     []string
	process  *process
	id       string
	workload lab.Workload
}

func beginToPay(t *testing.T, args ...string) *restored {
	t.Helper()
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 10})
	b := &restored{t: t, sim: sim}
	b.args = append([]string{"--money-url", simURL, "--money-timeout", "2s", "--money-settle-after", "2s"}, args...)
	b.process = serve(t, b.args...)
	b.rig = rigOf(t, b.process, simURL)
	b.id, b.workload = b.create(1200, false, client.NewPromotion{RatePerSecond: 150})
	return b
}

func (b *restored) untilPaid(n int64) {
	b.t.Helper()
	b.until(b.id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded >= n })
}

// goOn starts an instance on the restored database, in which at most least targets
// are paid, and checks that each target has exactly one charge in the end.
func (b *restored) goOn(least int64) {
	b.t.Helper()
	path := fixture.Must(program())(b.t)
	// The command also looks at the provider and Kafka; only its mark matters here.
	said, _ := exec.CommandContext(b.t.Context(), path, append([]string{"doctor", "--after-restore", "--listen", "127.0.0.1:0"}, b.args...)...).CombinedOutput()
	if !strings.Contains(string(said), "every payout is looked up before it is charged") {
		b.t.Fatalf("doctor --after-restore said: %s", said)
	}
	before := b.sim.Stats().Charges
	b.process = serve(b.t, b.args...)
	b.api = b.process.api
	if before <= least {
		b.t.Errorf("the provider made %d charges, the restored rows could know them all", before)
	}
	b.balance(b.id, b.workload)
	if n := b.sim.MaxChargesPerKey(); n != 1 {
		b.t.Errorf("a key was charged %d times", n)
	}
	if n := b.sim.Stats().Charges; n != int64(b.workload.Good) {
		b.t.Errorf("%d charges for %d targets", n, b.workload.Good)
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if text, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
}

// ask returns the answer of a database to a question.
func ask[T any](t *testing.T, url, sql string) (answer T) {
	t.Helper()
	db := fixture.Must(pgx.Connect(t.Context(), url))(t)
	defer db.Close(context.WithoutCancel(t.Context()))
	fixture.OK(t, db.QueryRow(t.Context(), sql).Scan(&answer))
	return answer
}

// TestRestoreFromADump: a dump that was made while an instance paid.
func TestRestoreFromADump(t *testing.T) {
	t.Parallel()
	url := fixture.Own(t, fleet.NewPostgres).Address()
	b := beginToPay(t, "--data-dir", t.TempDir(), "--database-url", url)
	b.untilPaid(200)
	dump := filepath.Join(t.TempDir(), "largesse.dump")
	run(t, "pg_dump", "--format=custom", "--file="+dump, url)
	b.untilPaid(700)
	b.process.kill(t)
	run(t, "psql", "--quiet", url, "--command=DROP SCHEMA public CASCADE", "--command=CREATE SCHEMA public")
	run(t, "pg_restore", "--clean", "--if-exists", "--no-owner", "--dbname="+url, dump)
	b.goOn(700 - 1)
}

// TestRestoreToAPointInTime: the data directory is lost, and made again from a base
// backup and the archived log.
func TestRestoreToAPointInTime(t *testing.T) {
	t.Parallel()
	s := fixture.Own(t, fleet.NewPostgres)
	data := ask[string](t, s.Address(), `SHOW data_directory`)
	backup := filepath.Join(filepath.Dir(data), "backup")
	wal := filepath.Join(backup, "wal")
	fixture.OK(t, os.MkdirAll(wal, 0o700))
	belongsTo := func(path string) { run(t, "chown", "-R", fmt.Sprintf("--reference=%s", data), path) }
	belongsTo(backup)
	run(t, "psql", "--quiet", s.Address(), "--command=ALTER SYSTEM SET archive_mode = on",
		"--command=ALTER SYSTEM SET archive_command = 'test ! -f "+wal+"/%f && cp %p "+wal+"/%f'")
	fixture.OK(t, s.Restart(t.Context()))
	b := beginToPay(t, "--data-dir", t.TempDir(), "--database-url", s.Address())
	b.untilPaid(100)
	run(t, "pg_basebackup", "--dbname="+s.Address(), "--pgdata="+filepath.Join(backup, "base"), "--wal-method=none", "--checkpoint=fast")
	b.untilPaid(400)
	at := ask[string](t, s.Address(), `SELECT now()::text`)
	b.untilPaid(800)
	b.process.kill(t)
	run(t, "psql", "--quiet", s.Address(), "--command=SELECT pg_switch_wal()")
	fixture.Until(t, "the log is archived", func() bool {
		return ask[bool](t, s.Address(), `SELECT pg_walfile_name(pg_current_wal_lsn()) > last_archived_wal AND
  NOT EXISTS (SELECT FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready') FROM pg_stat_archiver`)
	})
	fixture.OK(t, s.Kill())
	for _, step := range [][]string{{"rm", "-rf", data}, {"cp", "-a", filepath.Join(backup, "base"), data}} {
		run(t, step[0], step[1:]...)
	}
	auto := fixture.Must(os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0))(t)
	fmt.Fprintf(auto, "restore_command = 'cp %s/%%f %%p'\nrecovery_target_time = '%s'\nrecovery_target_action = 'promote'\n", wal, at)
	fixture.OK(t, auto.Close())
	fixture.OK(t, os.WriteFile(filepath.Join(data, "recovery.signal"), nil, 0o600))
	run(t, "chown", "-R", fmt.Sprintf("--reference=%s", filepath.Dir(data)), data)
	fixture.OK(t, s.Start(t.Context()))
	fixture.Until(t, "the server has left recovery", func() bool { return !ask[bool](t, s.Address(), `SELECT pg_is_in_recovery()`) })
	b.goOn(800 - 1)
}

// TestRestoreSQLite: a copy that sqlite3 made while an instance paid.
func TestRestoreSQLite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := beginToPay(t, "--data-dir", dir)
	b.untilPaid(200)
	backup := filepath.Join(t.TempDir(), "largesse-backup.db")
	run(t, "sqlite3", filepath.Join(dir, "largesse.db"), ".backup '"+backup+"'")
	b.untilPaid(700)
	b.process.kill(t)
	for _, file := range []string{"largesse.db", "largesse.db-wal", "largesse.db-shm"} {
		fixture.OK(t, os.RemoveAll(filepath.Join(dir, file)))
	}
	run(t, "cp", backup, filepath.Join(dir, "largesse.db"))
	b.goOn(700 - 1)
}
