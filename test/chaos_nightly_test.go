//go:build nightly

package test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// chaosTargets is how many are paid; `make nightly` asks for more.
func chaosTargets(t *testing.T) int {
	t.Helper()
	text := os.Getenv("LARGESSE_CHAOS_TARGETS")
	if text == "" {
		return 30_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1000 {
		t.Fatalf("LARGESSE_CHAOS_TARGETS=%q is no number from 1000", text)
	}
	return n
}

// tell sends Redis one command over a connection of its own and returns the
// first line of its answer.
func tell(t *testing.T, s *fleet.Server, command string) string {
	t.Helper()
	conn := fixture.Must(net.Dial("tcp", strings.TrimPrefix(s.Address(), "redis://")))(t)
	defer func() { _ = conn.Close() }()
	fixture.Must(fmt.Fprintf(conn, "%s\r\n", command))(t)
	line := fixture.Must(bufio.NewReader(conn).ReadString('\n'))(t)
	return strings.TrimSpace(line)
}

// keys is everything that is in a Redis.
func keys(t *testing.T, raw rueidis.Client) []string {
	t.Helper()
	return fixture.Must(raw.Do(t.Context(), raw.B().Keys().Pattern("*").Build()).AsStrSlice())(t)
}

// crowd is the instances of a chaos run.
type crowd struct {
	t       *testing.T
	args    []string
	members []*process
	started int
}

func (c *crowd) start() {
	c.t.Helper()
	c.members = append(c.members, serve(c.t, append([]string{"--data-dir", c.t.TempDir()}, c.args...)...))
	c.started++
}

// replace kills the oldest member and starts another one.
func (c *crowd) replace() {
	c.t.Helper()
	c.members[0].kill(c.t)
	c.members = c.members[1:]
	c.start()
}

// suspend stops the process for d, without its knowing.
func (p *process) suspend(t *testing.T, d time.Duration) {
	t.Helper()
	fixture.OK(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(d) // that is the fault
	fixture.OK(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// progress reads from any member; ok is false if none responded.
func (c *crowd) progress(id string) (p client.Promotion, ok bool) {
	for _, m := range c.members {
		if p, err := m.api.Promotion(c.t.Context(), id); err == nil {
			return p, true
		}
	}
	return client.Promotion{}, false
}

// TestNightlyChaos: four instances pay one promotion. One is killed every few seconds
// and another one started; one is stopped for longer than its lease and
// continues; Redis is emptied twice and killed once, PostgreSQL is restarted. Everybody
// is paid exactly once, the books balance, nothing is left over.
func TestNightlyChaos(t *testing.T) {
	const (
		lease     = 3 * time.Second
		killEvery = 5 * time.Second
	)
	targets := chaosTargets(t)
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 180, JitterMs: 40, ErrorRate: 0.01, LostReplyRate: 0.01})
	redis := fixture.Own(t, fleet.NewRedis)
	postgres := fixture.Own(t, fleet.NewPostgres)
	c := &crowd{t: t, args: append(onServers(t),
		"--money-url", simURL, "--database-url", postgres.Address(), "--redis-url", redis.Address(),
		"--money-timeout", "1s", "--money-settle-after", "1s", "--redis-stream-lease-seconds", "3",
		// Slow enough that everything happens while it is being paid.
		"--redis-stream-in-flight-per-consumer", "6",
	)}
	for range 4 {
		c.start()
	}
	r := rigOf(t, c.members[0], simURL)
	id, workload := r.create(targets, false, client.NewPromotion{})

	plan := []struct {
		share float64 // of the targets paid
		what  string
		do    func()
	}{
		{0.15, "FLUSHALL", func() { tell(t, redis, "FLUSHALL") }},
		{0.30, "an instance stops for longer than its lease", func() { c.members[len(c.members)-1].suspend(t, 2*lease) }},
		{0.45, "Redis is killed and comes back empty", func() {
			fixture.OK(t, redis.Kill())
			fixture.OK(t, redis.Start(t.Context()))
		}},
		{0.60, "PostgreSQL restarts", func() {
			fixture.OK(t, postgres.Restart(t.Context()))
		}},
		{0.75, "FLUSHALL", func() { tell(t, redis, "FLUSHALL") }},
	}
	began, killAt := time.Now(), time.Now().Add(killEvery)
	// Slack for what the faults cost: leases, sweeps and starts.
	deadline := began.Add(4*time.Minute + time.Duration(targets)*4*time.Millisecond)
	var p client.Promotion
	for !settled(p) {
		if time.Now().After(deadline) {
			t.Fatalf("not settled after %v: %+v", time.Since(began), p)
		}
		var ok bool
		if p, ok = c.progress(id); !ok {
			time.Sleep(100 * time.Millisecond) // polls a condition
			continue
		}
		paid := float64(p.Counts.Succeeded) / float64(targets)
		switch {
		case len(plan) > 0 && paid >= plan[0].share:
			t.Logf("%5.1f s, %3.0f %% paid: %s", time.Since(began).Seconds(), 100*paid, plan[0].what)
			plan[0].do()
			plan = plan[1:]
		case time.Now().After(killAt) && paid < 0.95:
			c.replace()
			killAt = time.Now().Add(killEvery)
		default:
			time.Sleep(100 * time.Millisecond) // polls a condition
		}
	}
	took := time.Since(began)
	if len(plan) > 0 {
		t.Fatalf("all was paid before this happened: %s", plan[0].what)
	}
	r.api = c.members[0].api
	account := r.balance(id, workload)
	checkCharges(t, sim, account)
	raw := fixture.RedisClient(t, redis.Address())
	defer raw.Close()
	fixture.Until(t, "nothing is left over in Redis", func() bool { return len(keys(t, raw)) == 0 })
	for _, m := range c.members {
		fixture.OK(t, m.cmd.Process.Signal(syscall.SIGTERM))
	}
	for _, m := range c.members {
		if err := m.cmd.Wait(); err != nil {
			t.Errorf("an instance ended with %v: %s", err, m.stderr)
		}
	}
	stats := sim.Stats()
	t.Logf("%d targets in %.0f s: %d instances, %d of them killed, %d charges, %d calls, %d of them repeats of a key that had been charged",
		targets, took.Seconds(), c.started, c.started-len(c.members), stats.Charges, stats.Requests, stats.DuplicateKeys)
}
