//go:build ci

package test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
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
	in := fixture.Must(fleet.NewInstaller(t.Output()))(t)
	path := filepath.Join(in.Cache, "largesse-"+commit)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	dir := t.TempDir()
	archive, sources := filepath.Join(dir, "sources.tar"), filepath.Join(dir, "sources")
	fixture.OK(t, os.Mkdir(sources, 0o700))
	run(t, "git", "archive", "--output="+archive, commit) // fails if the history of this checkout does not reach it
	run(t, "tar", "-x", "-f", archive, "-C", sources)
	run(t, "go", "build", "-C", sources, "-trimpath", "-o", filepath.Join(dir, "largesse"), "./cmd/largesse")
	fixture.OK(t, os.MkdirAll(in.Cache, 0o755))
	run(t, "mv", filepath.Join(dir, "largesse"), path+".new") // from another file system, perhaps
	fixture.OK(t, os.Rename(path+".new", path))
	return path
}

// lastLanded is the version that the present one replaces while both run.
const lastLanded = "f4d4e02"

// trade is a promotion and a coupon drop in progress, while instances and servers are
// exchanged. Everybody must be paid once, and get one coupon as long as there are any.
type trade struct {
	*rig
	sim       *moneysim.Server
	args      []string // of the instances
	promotion string
	workload  lab.Workload
	template  string
	quantity  int
	current   atomic.Pointer[client.Client] // of an instance that runs, or ran a moment ago
	users     int                           // who have requested a coupon
	shopping  sync.WaitGroup
}

// newTrade prepares a trade whose instances have args.
func newTrade(t *testing.T, args ...string) *trade {
	t.Helper()
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20, ErrorRate: 0.02, LostReplyRate: 0.01})
	return &trade{rig: &rig{t: t, simURL: simURL}, sim: sim, args: append(args, "--data-dir", t.TempDir(), "--money-url", simURL,
		"--money-timeout", "2s", "--money-settle-after", "2s", "--redis-stream-lease-seconds", "4")}
}

// instance starts a program, which serves the users from then on.
func (x *trade) instance(path string) *process {
	x.t.Helper()
	p := serveBinary(x.t, path, x.args...)
	x.api = p.api
	x.current.Store(p.api)
	return p
}

// open starts the promotion and the drop.
func (x *trade) open(targets, quantity int) {
	x.t.Helper()
	x.promotion, x.workload = x.create(targets, true, client.NewPromotion{RatePerSecond: 100})
	template := fixture.Must(x.api.CreateTemplate(x.t.Context(), client.NewTemplate{Name: "drop", TotalQuantity: int64(quantity)}))(x.t)
	x.template, x.quantity = template.ID, quantity
}

// shop lets more users request a coupon, one after the other. What is refused for lack of
// an instance or a server is requested again, by the same user.
func (x *trade) shop(users int) {
	from := x.users
	x.users += users
	x.shopping.Go(func() {
		for user := from; user < from+users; user++ {
			for x.t.Context().Err() == nil {
				_, err := x.current.Load().IssueCoupon(x.t.Context(), x.template, "u"+strconv.Itoa(user), 0)
				if p, ok := errors.AsType[*client.Problem](err); err == nil || ok && (p.Code == "SOLD_OUT" || p.Code == "USER_LIMIT") {
					break
				}
			}
		}
	})
}

// untilPaid waits until a share of the targets, in percent, is paid.
func (x *trade) untilPaid(percent int) {
	x.t.Helper()
	x.until(x.promotion, "under way", func(p client.Promotion) bool { return 100*p.Counts.Succeeded > int64(percent)*p.TotalCount })
}

// close waits for the end and checks the books. url is that of the database.
func (x *trade) close(url string) {
	x.t.Helper()
	x.balance(x.promotion, x.workload)
	if n := x.sim.MaxChargesPerKey(); n != 1 {
		x.t.Errorf("a key was charged %d times", n)
	}
	x.shopping.Wait()
	fixture.Until(x.t, "all coupons are issued", func() bool { return ask[int](x.t, url, `SELECT count(*) FROM coupons WHERE status <> 2`) == x.quantity })
	if n := ask[int](x.t, url, `SELECT count(*) - count(DISTINCT user_id) FROM coupons WHERE status <> 2`); n != 0 {
		x.t.Errorf("%d users have two coupons", n)
	}
}

// stopGently ends instances and waits for them.
func stopGently(t *testing.T, running ...*process) {
	t.Helper()
	for _, p := range running {
		fixture.OK(t, p.cmd.Process.Signal(syscall.SIGTERM))
	}
	for _, p := range running {
		if err := p.cmd.Wait(); err != nil {
			t.Fatalf("an instance did not stop cleanly: %v: %s", err, p.stderr)
		}
	}
}

// TestUpgrade: two instances of the first version pay 1,500 targets and issue coupons.
// They are replaced by two of this version, these by the first version again, and that by
// this one.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	first := buildVersion(t, firstUpgradable)
	this := fixture.Must(program())(t)
	x := newTrade(t, onServers(t)...)
	running := []*process{x.instance(first), x.instance(first)}
	x.open(1500, 200)
	for i, path := range []string{this, first, this} {
		x.untilPaid(20 * (i + 1))
		x.shop(100)
		stopGently(t, running...)
		if path == first {
			run(t, this, append([]string{"migrate", "--to", "6"}, x.args...)...)
		}
		running = []*process{x.instance(path), x.instance(path)}
	}
	x.close(flagOf(x.args, "--database-url"))
}

// TestRollingUpgrade: two instances of the last version are replaced one after the other,
// so that both versions pay and issue together for a while.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	last := buildVersion(t, lastLanded)
	this := fixture.Must(program())(t)
	x := newTrade(t, onServers(t)...)
	running := []*process{x.instance(last), x.instance(last)}
	x.open(1000, 200)
	for i, old := range running {
		x.untilPaid(20 * (i + 1))
		x.shop(100)
		x.instance(this)
		x.untilPaid(20*(i+1) + 10) // by both versions
		x.shop(50)
		stopGently(t, old)
	}
	x.close(flagOf(x.args, "--database-url"))
}
