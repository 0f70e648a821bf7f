//go:build nightly

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// redisCPU is the processor time that a Redis has used for commands.
func redisCPU(t *testing.T, s *fleet.Server) time.Duration {
	t.Helper()
	c := fixture.RedisClient(t, s.Address())
	defer c.Close()
	info := fixture.Must(c.Do(t.Context(), c.B().Info().Section("cpu").Build()).ToString())(t)
	var total float64
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_sys" && name != "used_cpu_user" {
			continue
		}
		n := fixture.Must(strconv.ParseFloat(value, 64))(t)
		total += n
	}
	return time.Duration(total * float64(time.Second))
}

// loadGate loads the gate of a template, however long that takes.
func loadGate(t *testing.T, l *ticker) {
	t.Helper()
	begun, err := l.gate.LoadBegin(t.Context(), l.id, "test")
	if err != nil || !begun.Held {
		t.Fatal(begun, err)
	}
	if begun.Gate.Exists {
		t.Fatal("there is a gate already")
	}
	row, moved, err := l.rows.TemplateNewGeneration(t.Context(), store.TemplateNewGenerationParams{ID: l.id, Path: reward.PathGate})
	if err != nil || !moved {
		t.Fatal(moved, err)
	}
	load := gate.Load{TemplateID: l.id, Token: "test", Run: begun.Run}
	p := gate.SwapParams{Load: load, State: gate.State{
		Generation: row.Generation, Version: row.Version, Settled: row.Settled, Base: row.Base, Total: row.TotalQuantity, Live: row.Live,
		IssuedTotal: row.IssuedTotal, Granted: row.Granted, Used: row.Used, Grants: row.Grants, PerUserLimit: row.PerUserLimit, Mode: row.Mode,
	}}
	fixture.OK(t, l.rows.CouponSnapshot(t.Context(), l.id, func(reward.CouponTemplate) error { return nil }, func(facts []store.CouponHolding) error {
		p.Holdings += len(facts)
		return l.gate.LoadHoldings(t.Context(), load, facts)
	}))
	if s, err := l.gate.LoadSwap(t.Context(), p); err != nil || !s.Done {
		t.Fatal(s, err)
	}
}

// TestNightlyReconcileAMillionHolders: a reconciliation of a template with a million holders,
// at which fifty people ask per second, is one pass: it costs no more of Redis's processor
// than four fifths of loading the gate, and the memory of the instance stays flat.
func TestNightlyReconcileAMillionHolders(t *testing.T) { reconcileAMillion(t, "api,issuer", 0) }

// TestNightlyReconcileALongLine is TestNightlyReconcileAMillionHolders with 100,000 users in line and
// no issuer.
func TestNightlyReconcileALongLine(t *testing.T) { reconcileAMillion(t, "api", 100_000) }

// breakHolders deletes the holdings of n users, and falsifies a counter.
func breakHolders(t *testing.T, s *fleet.Server, keys string, n int) {
	t.Helper()
	c := fixture.RedisClient(t, s.Address())
	defer c.Close()
	users := make([]string, n)
	for i := range users {
		users[i] = fmt.Sprint("holder-", 1+i*1999)
	}
	if gone, err := c.Do(t.Context(), c.B().Hdel().Key(keys+"holders").Field(users...).Build()).AsInt64(); err != nil || gone != int64(n) {
		t.Fatalf("deleted %d of %d holdings: %v", gone, n, err)
	}
	fixture.OK(t, c.Do(t.Context(), c.B().Set().Key(keys+"count").Value("778").Build()).Error())
}

// reconcileAMillion compares and repairs a template with a million holders and a line.
func reconcileAMillion(t *testing.T, roles string, line int) {
	t.Helper()
	const (
		holders   = 1_000_000
		perSecond = 50
		growth    = 64 << 20
		broken    = 500 // users whose holding is missing
	)
	redis := fixture.Own(t, fleet.NewRedis)
	r := newCouponRig(t, 0, redis.Address())
	p := r.startAs(roles)
	id := r.create(client.NewTemplate{TotalQuantity: 2 * holders})
	db := r.db()
	for _, sql := range []string{
		`INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, slot, code, user_id)
			SELECT n, TEMPLATE, 0, n, n / 1000 + 1, now(), 1, 'code-' || n, 'holder-' || n FROM generate_series(1, HOLDERS) n`,
		`UPDATE coupon_templates SET live = HOLDERS, issued_total = HOLDERS, settled = HOLDERS, version = HOLDERS / 1000 + 1, granted = PLACES, grants = 1 WHERE id = TEMPLATE`,
		`ANALYZE coupons`,
	} {
		sql = strings.NewReplacer("TEMPLATE", id, "HOLDERS", strconv.Itoa(holders), "PLACES", strconv.Itoa(line+10_000)).Replace(sql)
		fixture.Must(db.Exec(t.Context(), sql))(t)
	}
	l := newTicker(t, r, id, redis.Address(), r.prefix())
	before := redisCPU(t, redis)
	loadGate(t, l)
	loading := redisCPU(t, redis) - before
	for from := 0; from < line; from += gate.AdmitMax {
		users := make([]string, min(gate.AdmitMax, line-from))
		for i := range users {
			users[i] = fmt.Sprint("waits-", from+i)
		}
		fixture.Must(l.gate.Admit(t.Context(), l.id, users, true))(t)
	}
	if h, err := l.gate.Headers(t.Context(), []reward.TemplateID{l.id}); err != nil || h[0].Waiting != int64(line) {
		t.Fatal(h, err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if _, code := r.ask(ctx, id, fmt.Sprint("u", n)); code != "" && ctx.Err() == nil {
				t.Errorf("u%d: %s", n, code)
			}
			service.Sleep(ctx, time.Second/perSecond)
		}
	})
	defer func() { stop(); asking.Wait() }()
	service.Sleep(t.Context(), 3*time.Second) // the asks alone
	began := time.Now()
	before = redisCPU(t, redis)
	service.Sleep(t.Context(), 5*time.Second)
	asks := (redisCPU(t, redis) - before).Seconds() / time.Since(began).Seconds()

	pid := p.cmd.Process.Pid
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil { // begins a new peak
		t.Fatal(err)
	}
	idle := memory(t, pid, "VmRSS")
	// measured compares once, and returns what of Redis's processor that took.
	measured := func(repair bool) client.Reconciliation {
		began, before := time.Now(), redisCPU(t, redis)
		report, err := p.api.ReconcileTemplate(t.Context(), id, repair)
		if err != nil || len(report.Skipped) > 0 || report.Left() > 0 {
			t.Fatal(errors.Join(err, fmt.Errorf("%+v", report)))
		}
		took := time.Since(began)
		cpu := redisCPU(t, redis) - before - time.Duration(asks*float64(took))
		t.Logf("%v: %v of Redis, %.3f cores without; loading took %v; %d differences", took, cpu, asks, loading, len(report.Drifts))
		if cpu > loading*4/5 { // a pass costs less than half
			t.Errorf("it took %v of Redis, more than four fifths of loading the gate: %v", cpu, loading)
		}
		return report
	}
	if found := measured(false).Drifts; len(found) > 0 {
		t.Errorf("found %+v", found)
	}
	breakHolders(t, redis, r.prefix()+"coupon:{"+id+"}:", broken)
	if found := measured(true).Drifts; len(found) < broken {
		t.Errorf("%d users were repaired, want %d", len(found), broken)
	}
	if found := measured(false).Drifts; len(found) > 0 {
		t.Errorf("not repaired: %+v", found)
	}
	peak := memory(t, pid, "VmHWM")
	t.Logf("%d MB at the peak, %d MB before", peak>>20, idle>>20)
	if peak-idle > growth {
		t.Errorf("the memory grew from %d to %d MB", idle>>20, peak>>20)
	}
}
