//go:build nightly

package test

import (
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// moody is a provider whose answers a test changes while it runs.
type moody struct {
	next http.Handler
	// hangs reports whether a call for a key is never answered. Nil: none is.
	hangs atomic.Pointer[func(key string) bool]
	// down is the status of all calls; 0: they are answered.
	down atomic.Int64
	// block is the Retry-After of the next call, in seconds; 0: none.
	block atomic.Int64

	mu    sync.Mutex // protects calls
	calls []time.Time
}

func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		key = r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	}
	m.mu.Lock()
	m.calls = append(m.calls, time.Now())
	m.mu.Unlock()
	if f := m.hangs.Load(); f != nil && (*f)(key) {
		_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection is not noticed
		<-r.Context().Done()
		return
	}
	if seconds := m.block.Swap(0); seconds > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if status := m.down.Load(); status > 0 {
		w.WriteHeader(int(status))
		return
	}
	m.next.ServeHTTP(w, r)
}

// between counts the calls that began in a time.
func (m *moody) between(from, to time.Time) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, at := range m.calls {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// moodyCrowd starts n instances on the real servers, with a provider of 20 ms.
func moodyCrowd(t *testing.T, n int, more ...string) (*moody, *crowd, *rig) {
	t.Helper()
	sim, err := moneysim.New(moneysim.Config{Faults: moneysim.Faults{LatencyMs: 20}, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	m := &moody{next: sim.Handler()}
	provider := httptest.NewServer(m)
	t.Cleanup(func() {
		provider.CloseClientConnections()
		provider.Close()
	})
	name := "moody_" + strings.ToLower(rand.Text()[:10])
	c := &crowd{t: t, args: append([]string{
		"--money-url", provider.URL, "--database-url", ownSchema(t, server(t, "LARGESSE_TEST_POSTGRES"), name),
		"--redis-url", server(t, "LARGESSE_TEST_REDIS"), "--redis-key-prefix", name + ":",
		"--kafka-brokers", server(t, "LARGESSE_TEST_KAFKA"), "--kafka-topic-prefix", ownTopics(t, name),
	}, more...)}
	for range n {
		c.start()
	}
	return m, c, rigOf(t, c.members[0], provider.URL)
}

// paid waits until n targets of a promotion are paid, and returns how long that took.
func (r *rig) paid(id string, n int) time.Duration {
	r.t.Helper()
	began := time.Now()
	r.until(id, "paid", func(p client.Promotion) bool { return p.Counts.Succeeded >= int64(n) })
	return time.Since(began)
}

// degradedBy returns the reason of a degraded part of an instance; empty: it works.
func degradedBy(t *testing.T, p *process, part string) string {
	t.Helper()
	ready, err := p.api.Ready(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range ready.Troubles {
		if x.Part == part {
			return x.Reason
		}
	}
	return ""
}

// eventually polls a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s within %v", what, patience)
		}
	}
}

// TestTwelveHangingPayees: twelve payees of 2,000 never get an answer, charges or
// lookups. A promotion of 300 that starts when only they are left is paid as if it
// were alone, and a pause and a resume do not wait for them.
func TestTwelveHangingPayees(t *testing.T) {
	t.Parallel()
	const targets, hanging, small = 2000, 12, 300
	m, c, r := moodyCrowd(t, 2)
	first, _ := r.create(small, false, client.NewPromotion{})
	alone := r.paid(first, small)
	last := strconv.Itoa(1_000_000 + targets - hanging)
	bad := func(key string) bool {
		_, target, _ := strings.Cut(key, ":")
		return len(target) == len(last) && target >= last
	}
	m.hangs.Store(&bad)
	id, _ := r.create(targets, false, client.NewPromotion{})
	r.paid(id, targets-hanging)
	for _, wait := range []time.Duration{20 * time.Second, 20 * time.Second, 0} {
		time.Sleep(wait) // the payouts that hang are tried again and again meanwhile
		next, _ := r.create(small, false, client.NewPromotion{})
		took := r.paid(next, small)
		t.Logf("%d targets: %v alone, %v next to %d that hang", small, alone, took, hanging)
		if took > 3*alone+2*time.Second {
			t.Errorf("%d targets took %v next to payouts that hang, %v alone", small, took, alone)
		}
	}
	for i, p := range c.members {
		if reason := degradedBy(t, p, "provider"); reason != "" {
			t.Errorf("instance %d: %s", i, reason)
		}
	}
	none := func(string) bool { return false }
	m.hangs.Store(&none)
	r.until(id, "settled", settled)
}

// TestResumeNextToHangingCalls: the first calls of a promotion hang; a resume after a
// pause pays the others within a second.
func TestResumeNextToHangingCalls(t *testing.T) {
	const targets, hanging = 3000, 12
	m, _, r := moodyCrowd(t, 1, "--money-timeout", "10s", "--redis-stream-lease-seconds", "30")
	bad := func(key string) bool {
		_, target, _ := strings.Cut(key, ":")
		return len(target) == 7 && target < strconv.Itoa(1_000_000+hanging)
	}
	m.hangs.Store(&bad)
	id, _ := r.create(targets, false, client.NewPromotion{RatePerSecond: 300})
	for range 3 {
		p := r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 50 })
		if _, err := r.api.PausePromotion(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the pool has begun to end
		p = r.until(id, "paused", func(p client.Promotion) bool { return p.Status == "PAUSED" })
		if _, err := r.api.ResumePromotion(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		took := r.paid(id, int(p.Counts.Succeeded)+1)
		t.Logf("paid %v after the resume", took)
		if took > time.Second {
			t.Errorf("paid %v after the resume", took)
		}
	}
	none := func(string) bool { return false }
	m.hangs.Store(&none)
	r.until(id, "settled", settled)
}

// TestThreeInstancesShareTheProvider: a Retry-After that one of three instances
// receives holds for all, and an outage of a minute (with a rate, half a minute) gets
// one probe at a time. All instances say why they wait, and no longer when it is over.
func TestThreeInstancesShareTheProvider(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]struct {
		args   []string
		outage time.Duration
	}{"NoRate": {nil, time.Minute}, "ARate": {[]string{"--money-rate-per-second", "400"}, 30 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const targets = 60_000
			m, c, r := moodyCrowd(t, 3, append(v.args, "--money-max-concurrency", "20")...)
			id, _ := r.create(targets, false, client.NewPromotion{})
			r.paid(id, 1000)

			const after = 5 * time.Second
			m.block.Store(int64(after / time.Second))
			eventually(t, "blocked", func() bool { return m.block.Load() == 0 })
			said := time.Now()
			for i, p := range c.members {
				eventually(t, "degraded", func() bool { return degradedBy(t, p, "provider") != "" })
				if d := time.Since(said); d > after {
					t.Errorf("instance %d said so after %v", i, d)
				}
			}
			time.Sleep(time.Until(said.Add(after + time.Second)))
			// The others hear of it within 50 ms, and may use send times leased 100 ms ahead.
			early, next := m.between(said.Add(200*time.Millisecond), said.Add(after-100*time.Millisecond)), m.between(said.Add(after), said.Add(after+time.Second))
			t.Logf("%d calls during a Retry-After of %v, %d in the second after it", early, after, next)
			if early != 0 || next == 0 {
				t.Errorf("%d calls during a Retry-After of %v, %d in the second after it", early, after, next)
			}
			worksAgain := func() {
				t.Helper()
				for _, p := range c.members {
					eventually(t, "cleared", func() bool { return degradedBy(t, p, "provider") == "" })
				}
			}
			worksAgain()

			outage := v.outage
			began := time.Now()
			m.down.Store(http.StatusBadGateway)
			time.Sleep(10 * time.Second)
			for i, p := range c.members {
				if reason := degradedBy(t, p, "provider"); !strings.Contains(reason, "does not respond") {
					t.Errorf("instance %d: reason %q", i, reason)
				}
				if v := scrape(t, p, `largesse_degraded{part="provider"}`); v != 1 {
					t.Errorf("instance %d: largesse_degraded is %v", i, v)
				}
				// Answers to calls from before the outage may end it for a moment.
				if n := strings.Count(p.stderr.String(), `"instance degraded" component=engine part=provider`); n < 2 || n > 4 {
					t.Errorf("instance %d: %d lines for two troubles", i, n)
				}
			}
			time.Sleep(time.Until(began.Add(outage)))
			all, probes := m.between(began, began.Add(outage)), m.between(began.Add(5*time.Second), began.Add(outage))
			m.down.Store(0)
			t.Logf("an outage of %v: %d calls, %d of them after the first 5 s", outage, all, probes)
			// A probe is a charge and a lookup. Two probes fail in the first 5 s. Then all
			// instances together start one every 3.5 s, less a fifth at most: 55 s / 2.8 s < 20.
			most := int64((outage-5*time.Second)/(2800*time.Millisecond)) + 1
			if int64(probes) > 2*most || probes < 5 || all > 250 {
				t.Errorf("an outage of %v: %d calls, %d of them after the first 5 s", outage, all, probes)
			}
			p := r.until(id, "paid again", func(p client.Promotion) bool { return p.Counts.Succeeded > 0 })
			back := time.Now()
			r.paid(id, int(p.Counts.Succeeded)+100)
			if d := time.Since(back); d > 20*time.Second {
				t.Errorf("paid again %v after the outage", d)
			}
			worksAgain()
			if failed := r.until(id, "read", func(client.Promotion) bool { return true }).Counts.Failed; failed != 0 {
				t.Errorf("the outage failed %d payouts", failed)
			}
			if _, err := r.api.CancelPromotion(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		})
	}
}
