//go:build nightly

package test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// firstUpgradable is the oldest version that an upgrade begins from, and that a
// rollback may return to.
const firstUpgradable = "7247ee6"

// buildVersion builds the program of an earlier commit.
func buildVersion(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	archive := exec.CommandContext(t.Context(), "git", "archive", commit)
	extract := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
	pipe, err := archive.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var trouble bytes.Buffer
	extract.Stdin, archive.Stderr = pipe, &trouble
	if err := archive.Start(); err != nil {
		t.Fatal(err)
	}
	if err := extract.Run(); err != nil {
		t.Fatal(err)
	}
	if err := archive.Wait(); err != nil {
		t.Fatalf("the history of this checkout does not reach %s: %v: %s", commit, err, &trouble)
	}
	path := filepath.Join(dir, "largesse-"+commit)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./cmd/largesse")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// TestUpgradeUnderLoad: two instances of the first version pay 30,000 targets and
// issue coupons. They are replaced by two of this version, these by the first version
// again, and that by this one. Everybody is paid once, no coupon is issued twice, and
// the books balance.
func TestUpgradeUnderLoad(t *testing.T) {
	const targets, users, quantity = 30_000, 3_000, 2_000
	first := buildVersion(t, firstUpgradable)
	this, err := program()
	if err != nil {
		t.Fatal(err)
	}
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20, ErrorRate: 0.02, LostReplyRate: 0.01})
	name := "upgrade_" + strings.ToLower(rand.Text()[:10])
	schema := ownSchema(t, server(t, "LARGESSE_TEST_POSTGRES"), name)
	args := []string{
		"--data-dir", t.TempDir(), "--money-url", simURL, "--money-timeout", "2s", "--money-settle-after", "2s",
		"--database-url", schema, "--redis-url", server(t, "LARGESSE_TEST_REDIS"), "--redis-key-prefix", name + ":",
		"--kafka-brokers", server(t, "LARGESSE_TEST_KAFKA"), "--kafka-topic-prefix", ownTopics(t, name+"-"), "--redis-stream-lease-seconds", "4",
	}
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
	promotion, workload := r.create(targets, true, client.NewPromotion{RatePerSecond: 600})
	template, err := r.api.CreateTemplate(t.Context(), client.NewTemplate{Name: "drop", TotalQuantity: quantity})
	if err != nil {
		t.Fatal(err)
	}
	// One request after the other, so that users ask in every version.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for user := 0; user < users && ctx.Err() == nil; {
			// What is refused for lack of an instance is asked again, by the same user.
			_, err := current.Load().IssueCoupon(ctx, template.ID, "u"+strconv.Itoa(user), 0)
			var problem *client.Problem
			if err == nil || errors.As(err, &problem) && slices.Contains([]string{"SOLD_OUT", "USER_LIMIT"}, problem.Code) {
				user++
				asked.Store(int64(user))
			}
		}
	}()
	for i, path := range []string{this, first, this} {
		share := int64(targets * (i + 1) / 5)
		r.until(promotion, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > share })
		t.Logf("after %d targets and %d requests: %s", share, asked.Load(), filepath.Base(path))
		replace(path, path == first)
	}
	r.balance(promotion, workload)
	if n := sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("a key was charged %d times", n)
	}
	<-done
	db, err := pgx.Connect(t.Context(), schema)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	coupons := &couponRig{t: t}
	coupons.until(db, quantity, `SELECT count(*) FROM coupons WHERE status <> 2`)
	if n := coupons.number(db, `SELECT count(*) - count(DISTINCT user_id) FROM coupons WHERE status <> 2`); n != 0 {
		t.Errorf("%d users have two coupons", n)
	}
}
