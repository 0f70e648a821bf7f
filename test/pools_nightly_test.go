//go:build nightly

package test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// turnstile counts the charges that are open, and notes when each ended.
type turnstile struct {
	next http.Handler

	mu      sync.Mutex // protects what follows
	open    int
	openMax int
	ended   []time.Time
}

func (c *turnstile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		c.next.ServeHTTP(w, r)
		return
	}
	c.mu.Lock()
	c.open++
	c.openMax = max(c.openMax, c.open)
	c.mu.Unlock()
	c.next.ServeHTTP(w, r)
	c.mu.Lock()
	c.open--
	c.ended = append(c.ended, time.Now())
	c.mu.Unlock()
}

// rate is how many ended per second between the first and the last of those
// after skip.
func (c *turnstile) rate(skip, until int) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	some := c.ended[skip:until]
	return float64(len(some)-1) / some[len(some)-1].Sub(some[0]).Seconds()
}

// TestNightlyOneOpenCallPerConsumer: with one open call per consumer and a provider of
// 200 ms, as in the original design, N consumers never have more than N calls
// open, and make 5·N a second.
func TestNightlyOneOpenCallPerConsumer(t *testing.T) {
	const (
		instances = 2
		consumers = 8 // per instance
		targets   = 2000
	)
	sim, err := moneysim.New(moneysim.Config{Faults: moneysim.Faults{LatencyMs: 200}, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	gate := &turnstile{next: sim.Handler()}
	provider := httptest.NewServer(gate)
	t.Cleanup(provider.Close)
	args := append(onServers(t), "--money-url", provider.URL, "--redis-stream-in-flight-per-consumer", "1",
		"--redis-stream-min-consumer-per-instance", "8", "--redis-stream-max-consumer-per-instance", "8")
	var p *process
	for range instances {
		p = serve(t, append(slices.Clone(args), "--data-dir", t.TempDir())...)
	}
	r := rigOf(t, p, provider.URL)
	const (
		n    = instances * consumers
		runs = 3 // a machine that was busy with something else gets another try
	)
	for run := range runs {
		id, workload := r.create(targets, false, client.NewPromotion{})
		r.until(id, "settled", settled)
		r.balance(id, workload)
		if gate.openMax > n {
			t.Errorf("%d calls were open at once, with %d consumers of one each", gate.openMax, n)
		}
		rate := gate.rate(run*targets+10*n, (run+1)*targets-10*n)
		t.Logf("%.1f calls a second, %.3f of 5·N", rate, rate/(5*n))
		if rate >= 0.95*5*n && rate <= 1.05*5*n {
			return
		}
	}
	t.Errorf("not 5·%d calls a second ± 5 %% in any of %d runs", n, runs)
}

// TestNightlyEveryInstanceDoesItsShare: without faults each of four instances pays at
// least half of the mean, one that joins late takes part within two seconds,
// and Redis knows all consumers of all of them.
func TestNightlyEveryInstanceDoesItsShare(t *testing.T) {
	const targets = 20_000
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 50})
	redis := fixture.Own(t, fleet.NewRedis)
	on := append(onServers(t), "--redis-url", redis.Address(), "--redis-key-prefix", "")
	c := &crowd{t: t, args: append(on, "--money-url", simURL, "--redis-stream-in-flight-per-consumer", "2")}
	for range 4 {
		c.start()
	}
	r := rigOf(t, c.members[0], simURL)
	id, workload := r.create(targets, false, client.NewPromotion{})
	r.until(id, "half paid", func(p client.Promotion) bool { return p.Counts.Succeeded > targets/2 })
	var paid [4]float64
	sum := 0.0
	for i, m := range c.members {
		paid[i] = value(scrape(t, m.address), "largesse_payouts_total", "SUCCEEDED")
		sum += paid[i]
	}
	t.Logf("paid by each instance: %v", paid)
	for i, n := range paid {
		if n < sum/4/2 {
			t.Errorf("instance %d paid %.0f, less than half of the mean %.0f", i, n, sum/4)
		}
	}
	c.start()
	joined := time.Now()
	const perInstance = 8 // by the size of the promotion
	registered := func() int {
		return consumersIn(t, redis, "campaign-promotion-stream:POINT:"+id, "campaign-promotion-group:POINT:"+id)
	}
	for registered() != 5*perInstance {
		if time.Since(joined) > 2*time.Second {
			t.Fatalf("2 s after the fifth instance came Redis knows %d consumers, want %d", registered(), 5*perInstance)
		}
		time.Sleep(10 * time.Millisecond) // polls a condition
	}
	t.Logf("the late instance had its consumers after %v", time.Since(joined))
	account := r.balance(id, workload)
	checkCharges(t, sim, account)
}

func consumersIn(t *testing.T, s *fleet.Server, key, group string) int {
	t.Helper()
	reply := tell(t, s, "XINFO CONSUMERS "+key+" "+group)
	n, err := strconv.Atoi(strings.TrimPrefix(reply, "*"))
	if err != nil {
		t.Fatalf("XINFO CONSUMERS: %s", reply)
	}
	return n
}

// cpuTime is the processor time that a process has used.
func cpuTime(t *testing.T, p *process) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	// The fields after the name, which may hold anything but a parenthesis at
	// its end: user and system time are the 14th and 15th of all.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, errUser := strconv.ParseInt(fields[11], 10, 64)
	system, errSystem := strconv.ParseInt(fields[12], 10, 64)
	if errUser != nil || errSystem != nil {
		t.Fatal(errUser, errSystem)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // a tick is 1/100 s on Linux
}

// TestNightlyRedisIsAwayForAMinute: the pools wait, without a busy loop and without a
// flood of lines; readiness says so; all continues after.
func TestNightlyRedisIsAwayForAMinute(t *testing.T) {
	t.Parallel()
	const targets = 10_000
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 50})
	redis := fixture.Own(t, fleet.NewRedis)
	p := serve(t, append(onServers(t), "--redis-url", redis.Address(), "--data-dir", t.TempDir(), "--money-url", simURL,
		"--redis-stream-in-flight-per-consumer", "8", "--money-timeout", "1s", "--redis-stream-lease-seconds", "3")...)
	r := rigOf(t, p, simURL)
	id, workload := r.create(targets, false, client.NewPromotion{})
	r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > targets/10 })
	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	before := len(strings.Split(p.stderr.String(), "\n"))
	cpu, began := cpuTime(t, p), time.Now()
	for said := false; time.Since(began) < time.Minute; time.Sleep(time.Second) { // that is the fault
		health, err := p.api.Ready(t.Context())
		if err != nil {
			t.Fatalf("not ready: %v; the database is there, so it should be", err)
		}
		said = said || slices.Contains(health.Degraded, "queue")
		if !said && time.Since(began) > 10*time.Second {
			t.Fatalf("readiness does not report the outage of the queue: %+v", health)
		}
	}
	share := float64(cpuTime(t, p)-cpu) / float64(time.Minute)
	lines := len(strings.Split(p.stderr.String(), "\n")) - before
	t.Logf("Redis away for a minute: %d lines in the log, %.1f %% of a core", lines, 100*share)
	if lines > 120 {
		t.Errorf("%d lines in the log of a minute", lines)
	}
	if share > 0.2 {
		t.Errorf("%.1f %% of a core while there was nothing to do but to wait", 100*share)
	}
	if err := redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	account := r.balance(id, workload)
	checkCharges(t, sim, account)
	if health, err := p.api.Ready(t.Context()); err != nil || len(health.Degraded) > 0 {
		t.Errorf("after it came back readiness is %+v, %v", health, err)
	}
}
