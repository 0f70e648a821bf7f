package test

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/reward"
)

// pair is two instances of one fleet. The first reaches PostgreSQL and Redis only
// through relays, so that a test can cut it off while the second works.
type pair struct {
	first, second   *rig
	database, redis *fleet.Relay
}

func newPair(t *testing.T) *pair {
	t.Helper()
	shared := config.Default()
	servers("LARGESSE_TEST_REDIS").config(t, &shared)
	p := &pair{database: relayOf(t, shared.Database.URL), redis: relayOf(t, shared.Redis.URL)}
	fleetOf := world{name: "servers", config: func(_ *testing.T, cfg *config.Config) {
		cfg.Database, cfg.Kafka = shared.Database, shared.Kafka
		cfg.Coupon.ConsumerConcurrency = shared.Coupon.ConsumerConcurrency
		cfg.Redis.URL, cfg.Redis.KeyPrefix = shared.Redis.URL, shared.Redis.KeyPrefix
	}}
	p.second = newRig(t, fleetOf, moneysim.Faults{LatencyMs: 5})
	p.first = newRig(t, fleetOf, moneysim.Faults{}, func(cfg *config.Config) {
		cfg.Database.URL = through(t, p.database, shared.Database.URL)
		cfg.Redis.URL = through(t, p.redis, shared.Redis.URL)
		cfg.Money.URL = p.second.simURL
	})
	p.first.sim, p.first.simURL = p.second.sim, p.second.simURL
	return p
}

func relayOf(t *testing.T, address string) *fleet.Relay {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	r, err := fleet.NewRelay(t.Context(), u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// through returns the address with the relay's host and port.
func through(t *testing.T, r *fleet.Relay, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = r.Addr()
	return u.String()
}

// degraded returns the parts that an instance calls degraded, or UNAVAILABLE if
// it is not ready.
func (r *rig) degraded() []string {
	r.t.Helper()
	ready, err := r.api.Ready(r.t.Context())
	if err != nil {
		return []string{"UNAVAILABLE"}
	}
	return ready.Degraded
}

// TestInstanceCutOffFromTheDatabase cuts one of two instances off from PostgreSQL
// alone. The other takes over its Kafka partitions and pays everything.
func TestInstanceCutOffFromTheDatabase(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	warm := p.second.publishing(821, 300)
	records, err := warm.Publish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.second.balance("821", records)

	p.database.Hang()
	p.first.eventually("the instance is not ready", func() bool { return slices.Equal(p.first.degraded(), []string{"UNAVAILABLE"}) })
	cut := p.second.publishing(822, 600)
	if records, err = cut.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.second.balance("822", records)
	p.first.eventually("the metric says so", func() bool { return value(p.first.scrape(), "largesse_degraded", "store") == 1 })
	p.second.eventually("the other instance does not call itself degraded", func() bool { return len(p.second.degraded()) == 0 })

	p.database.Resume()
	p.first.eventually("the instance is ready again", func() bool { return len(p.first.degraded()) == 0 })
	again := p.second.publishing(823, 300)
	if records, err = again.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.second.balance("823", records)
}

// troubled reports whether an instance of the fleet has a trouble, as this one shows
// it to operators.
func (r *rig) troubled(part string) bool {
	r.t.Helper()
	all, err := r.api.Instances(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return slices.ContainsFunc(all.Items, func(i client.Instance) bool { return explains(i.Troubles, part) })
}

// TestInstanceCutOffFromRedis makes Redis hang for one of two instances. The other
// pays everything, and both say what is wrong with the first.
func TestInstanceCutOffFromRedis(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.redis.Hang()
	p.first.eventually("the instance is degraded", func() bool { return slices.Contains(p.first.degraded(), "queue") })
	id, workload := p.second.create(2000, false, client.NewPromotion{})
	p.second.balance(id, workload)
	p.first.eventually("the metric says so", func() bool { return value(p.first.scrape(), "largesse_degraded", "queue") == 1 })
	p.second.eventually("the other instance shows it", func() bool { return p.second.troubled("queue") })
	p.second.eventually("the other instance does not call itself degraded", func() bool { return len(p.second.degraded()) == 0 })
	p.redis.Resume()
	p.first.eventually("the instance works again", func() bool { return len(p.first.degraded()) == 0 })
	p.second.eventually("the other instance shows no trouble", func() bool { return !p.second.troubled("queue") })
}

// TestDatabaseHangs makes PostgreSQL hang for the only instance in the middle of a
// promotion. Nothing is charged meanwhile, and everything continues by itself.
func TestDatabaseHangs(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.second.stop()
	const targets = 3000
	id, workload := p.first.create(targets, false, client.NewPromotion{RatePerSecond: 500})
	p.first.until(id, "begun", func(now client.Promotion) bool { return now.Counts.Succeeded > 0 })
	p.database.Hang()
	p.first.eventually("the instance is not ready", func() bool { return slices.Equal(p.first.degraded(), []string{"UNAVAILABLE"}) })
	p.first.eventually("the view is reported as too old", func() bool { return value(p.first.scrape(), "largesse_degraded", "view") == 1 })
	var charged int64
	p.first.eventually("no call is sent for a second", func() bool { // a slow machine sends late what was begun
		charged = p.second.sim.Stats().Requests
		time.Sleep(time.Second) // nothing may be sent in this time
		return p.second.sim.Stats().Requests == charged
	})
	if charged >= targets {
		t.Errorf("%d calls were sent for %d targets: the database hung too late, or stopped nothing", charged, targets)
	}
	p.database.Resume()
	p.first.balance(id, workload)
	p.first.eventually("the instance is ready again", func() bool { return len(p.first.degraded()) == 0 })
}

// TestRedisIsFull lets Redis refuse every write for lack of memory. Payouts wait in
// rows, the instance says so, and everything is paid when there is memory again.
func TestRedisIsFull(t *testing.T) {
	t.Parallel()
	redis := ownServer(t, func(in fleet.Installer) (*fleet.Server, error) { return fleet.NewRedis(t.Context(), in) })
	limit := func(bytes string) {
		t.Helper()
		conn, err := rueidis.NewClient(rueidis.MustParseURL(redis.Address()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		set := conn.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", bytes).ParameterValue("maxmemory-policy", "noeviction").Build()
		if err := conn.Do(t.Context(), set).Error(); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, servers("LARGESSE_TEST_REDIS"), moneysim.Faults{}, func(cfg *config.Config) {
		cfg.Redis.URL, cfg.Redis.Stream.MaxLen = redis.Address(), 500
	})
	warm, first := r.create(100, false, client.NewPromotion{})
	r.balance(warm, first)
	halfway, second := r.create(2000, false, client.NewPromotion{RatePerSecond: 200})
	dispatched := r.until(halfway, "half dispatched", func(now client.Promotion) bool { return now.Counts.Succeeded > 0 && now.Counts.Queued > 100 })
	// By then what was QUEUED is in the stream.
	r.until(halfway, "a while further", func(now client.Promotion) bool { return now.Counts.Succeeded > dispatched.Counts.Succeeded+20 })
	limit("1")
	id, workload := r.create(500, false, client.NewPromotion{})
	r.saysDegraded("streams")
	// What was dispatched before is paid.
	r.until(halfway, "paid as far as it was dispatched", func(now client.Promotion) bool {
		return now.Counts.Succeeded >= dispatched.Counts.Succeeded+dispatched.Counts.Queued
	})
	limit("0")
	r.balance(id, workload)
	r.balance(halfway, second)
	r.eventually("the instance works again", func() bool { return len(r.degraded()) == 0 })
}

// TestAHangingProviderStopsNoOtherWork lets the provider answer no charge and no
// lookup. Uploads, coupons and commands go on, and the instance says what is wrong.
func TestAHangingProviderStopsNoOtherWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers("LARGESSE_TEST_REDIS"), moneysim.Faults{LatencyMs: int(time.Hour.Milliseconds())})
	id, _ := r.create(500, false, client.NewPromotion{})
	r.saysDegraded("provider")
	template, err := r.api.CreateTemplate(t.Context(), client.NewTemplate{Name: t.Name(), TotalQuantity: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		issue := func() (client.IssueRequest, error) {
			return r.api.IssueCoupon(t.Context(), template.ID, "u"+strconv.Itoa(i), 10*time.Second)
		}
		res, err := issue()
		// On a busy machine Redis may not answer in time; then the caller is told to repeat.
		for tries := 0; tries < 5 && unavailable(err); tries++ {
			res, err = issue()
		}
		if err != nil || res.Status != "ISSUED" {
			t.Fatalf("coupon %d: %+v, %v", i, res, err)
		}
	}
	other, workload := r.create(500, false, client.NewPromotion{Name: "uploaded meanwhile"})
	if _, err := r.api.PausePromotion(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	r.until(other, "paused", func(p client.Promotion) bool { return p.Status == "PAUSED" })
	if _, err := r.api.ResumePromotion(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	unwanted, _ := r.create(500, false, client.NewPromotion{Name: "unwanted"})
	if _, err := r.api.CancelPromotion(t.Context(), unwanted); err != nil {
		t.Errorf("a cancel while the provider hangs: %v", err)
	}
	r.until(unwanted, "cancelled", func(now client.Promotion) bool { return now.Status == "CANCELLED" && now.Counts.Ready == 0 })
	if got := r.degraded(); !slices.Contains(got, "provider") {
		t.Errorf("degraded: %v, want provider still", got)
	}
	if err := r.sim.SetFaults(moneysim.Faults{}); err != nil {
		t.Fatal(err)
	}
	r.until(id, "settled", settled)
	r.balance(other, workload)
}

func unavailable(err error) bool {
	var p *client.Problem
	return errors.As(err, &p) && p.Code == reward.CodeUnavailable
}
