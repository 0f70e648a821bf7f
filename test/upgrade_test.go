//go:build ci

package test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// firstUpgradable is the oldest version that an upgrade begins from, and that a
// rollback may return to.
const firstUpgradable = "7247ee6"

// buildVersion returns the program of an earlier commit, and builds it if no earlier run
// did.
func buildVersion(t *testing.T, commit string) string {
	t.Helper()
	in, err := fleet.NewInstaller(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(in.Cache, "largesse-"+commit)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	dir := t.TempDir()
	archive, sources := filepath.Join(dir, "sources.tar"), filepath.Join(dir, "sources")
	if err := os.Mkdir(sources, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, "git", "archive", "--output="+archive, commit) // fails if the history of this checkout does not reach it
	run(t, "tar", "-x", "-f", archive, "-C", sources)
	run(t, "go", "build", "-C", sources, "-o", filepath.Join(dir, "largesse"), "./cmd/largesse")
	run(t, "mv", filepath.Join(dir, "largesse"), path+".new") // from another file system, perhaps
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestUpgrade: two instances of the first version pay 1,500 targets and
// issue coupons. They are replaced by two of this version, these by the first version
// again, and that by this one. Everybody is paid once, no coupon is issued twice, and
// the books balance.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	const targets, users, quantity = 1500, 300, 200
	first := buildVersion(t, firstUpgradable)
	this, err := program()
	if err != nil {
		t.Fatal(err)
	}
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20, ErrorRate: 0.02, LostReplyRate: 0.01})
	args := append(onServers(t), "--data-dir", t.TempDir(), "--money-url", simURL,
		"--money-timeout", "2s", "--money-settle-after", "2s", "--redis-stream-lease-seconds", "4")
	var running []*process
	var current atomic.Pointer[client.Client] // of an instance that runs, or ran a moment ago
	r := &rig{t: t, simURL: simURL}
	replace := func(path string, back bool) {
		t.Helper()
		for _, p := range running {
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range running {
			if err := p.cmd.Wait(); err != nil {
				t.Fatalf("an instance did not stop cleanly: %v: %s", err, p.stderr)
			}
		}
		if back {
			if text, err := exec.CommandContext(t.Context(), this, append([]string{"migrate", "--to", "6"}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("migrate --to: %v: %s", err, text)
			}
		}
		running = []*process{serveBinary(t, path, args...), serveBinary(t, path, args...)}
		r.api = running[0].api
		current.Store(running[0].api)
	}
	replace(first, false)
	promotion, workload := r.create(targets, true, client.NewPromotion{RatePerSecond: 100})
	template, err := r.api.CreateTemplate(t.Context(), client.NewTemplate{Name: "drop", TotalQuantity: quantity})
	if err != nil {
		t.Fatal(err)
	}
	// Some users ask in each version, and while it is replaced.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asking := make(chan int, users)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for user := range asking {
			for ctx.Err() == nil {
				// What is refused for lack of an instance is asked again, by the same user.
				_, err := current.Load().IssueCoupon(ctx, template.ID, "u"+strconv.Itoa(user), 0)
				if p, ok := errors.AsType[*client.Problem](err); err == nil || ok && (p.Code == "SOLD_OUT" || p.Code == "USER_LIMIT") {
					break
				}
			}
		}
	}()
	for i, path := range []string{this, first, this} {
		share := int64(targets * (i + 1) / 5)
		r.until(promotion, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > share })
		for user := range users / 3 {
			asking <- i*users/3 + user
		}
		replace(path, path == first)
	}
	close(asking)
	r.balance(promotion, workload)
	if n := sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("a key was charged %d times", n)
	}
	<-done
	db, err := pgx.Connect(t.Context(), flagOf(args, "--database-url"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	number := func(sql string) (n int) {
		t.Helper()
		if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	fixture.Until(t, "all coupons are issued", func() bool { return number(`SELECT count(*) FROM coupons WHERE status <> 2`) == quantity })
	if n := number(`SELECT count(*) - count(DISTINCT user_id) FROM coupons WHERE status <> 2`); n != 0 {
		t.Errorf("%d users have two coupons", n)
	}
}
