package test

import (
	"errors"
	"net/url"
	"slices"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// cutOff is an instance that reaches PostgreSQL and Redis only through relays, so that a
// test can cut it off.
type cutOff struct {
	*rig
	database, redis *fleet.Relay
}

func newCutOff(t *testing.T, w world, faults moneysim.Faults, change ...func(*config.Config)) cutOff {
	t.Helper()
	var c cutOff
	c.rig = newRig(t, func(t *testing.T, cfg *config.Config) {
		t.Helper()
		w(t, cfg)
		c.database, cfg.Database.URL = relayTo(t, cfg.Database.URL)
		c.redis, cfg.Redis.URL = relayTo(t, cfg.Redis.URL)
	}, faults, change...)
	return c
}

// relayTo returns a relay to an address, and the address with the relay's host and port.
func relayTo(t *testing.T, address string) (relay *fleet.Relay, through string) {
	t.Helper()
	u := fixture.Must(url.Parse(address))(t)
	relay = fixture.Must(fleet.NewRelay(t.Context(), u.Host))(t)
	t.Cleanup(relay.Close)
	u.Host = relay.Addr()
	return relay, u.String()
}

// newPair returns two instances of one fleet, of which a test can cut off the first.
func newPair(t *testing.T) (first cutOff, second *rig) {
	t.Helper()
	shared := config.Default()
	servers(t, &shared)
	same := func(_ *testing.T, cfg *config.Config) {
		cfg.Database, cfg.Kafka = shared.Database, shared.Kafka
		cfg.Coupon.ConsumerConcurrency = shared.Coupon.ConsumerConcurrency
		cfg.Redis.URL, cfg.Redis.KeyPrefix = shared.Redis.URL, shared.Redis.KeyPrefix
	}
	second = newRig(t, same, moneysim.Faults{LatencyMs: 5})
	first = newCutOff(t, same, moneysim.Faults{}, func(cfg *config.Config) { cfg.Money.URL = second.simURL })
	return first, second
}

// TestInstanceCutOffFromTheDatabase cuts one of two instances off from PostgreSQL
// alone. The other takes over its Kafka partitions and pays everything.
func TestInstanceCutOffFromTheDatabase(t *testing.T) {
	t.Parallel()
	first, second := newPair(t)
	warm := second.publishing(821, 100)
	records, err := warm.Publish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second.balance("821", records)

	first.database.Hang()
	fixture.Until(t, "the instance is not ready", func() bool { return slices.Equal(first.degraded(), []string{"UNAVAILABLE"}) })
	cut := second.publishing(822, 300)
	if records, err = cut.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	second.balance("822", records)
	fixture.Until(t, "the metric says so", func() bool { return value(first.scrape(), "largesse_degraded", "database") == 1 })
	fixture.Until(t, "the other instance does not call itself degraded", func() bool { return len(second.degraded()) == 0 })

	first.database.Resume()
	fixture.Until(t, "the instance is ready again", func() bool { return len(first.degraded()) == 0 })
	again := second.publishing(823, 100)
	if records, err = again.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	second.balance("823", records)
}

// troubled reports whether an instance of the fleet has a trouble, as this one shows
// it to operators.
func (r *rig) troubled(part string) bool {
	r.t.Helper()
	all := fixture.Must(r.api.Instances(r.t.Context()))(r.t)
	return slices.ContainsFunc(all.Items, func(i client.Instance) bool { return explains(i.Troubles, part) })
}

// TestInstanceCutOffFromRedis makes Redis hang for one of two instances. The other
// pays everything, and both say what is wrong with the first.
func TestInstanceCutOffFromRedis(t *testing.T) {
	t.Parallel()
	first, second := newPair(t)
	first.redis.Hang()
	fixture.Until(t, "the instance is degraded", func() bool { return slices.Contains(first.degraded(), "queue") })
	id, workload := second.create(500, false, client.NewPromotion{})
	second.balance(id, workload)
	fixture.Until(t, "the metric says so", func() bool { return value(first.scrape(), "largesse_degraded", "queue") == 1 })
	fixture.Until(t, "the other instance shows it", func() bool { return second.troubled("queue") })
	fixture.Until(t, "the other instance does not call itself degraded", func() bool { return len(second.degraded()) == 0 })
	first.redis.Resume()
	fixture.Until(t, "the instance works again", func() bool { return len(first.degraded()) == 0 })
	fixture.Until(t, "the other instance shows no trouble", func() bool { return !second.troubled("queue") })
}

// TestDatabaseHangs makes PostgreSQL hang for the only instance in the middle of a
// promotion. Nothing is charged meanwhile, and everything continues by itself.
func TestDatabaseHangs(t *testing.T) {
	t.Parallel()
	r := newCutOff(t, servers, moneysim.Faults{LatencyMs: 5}, patient)
	const targets = 1500
	id, workload := r.create(targets, false, client.NewPromotion{RatePerSecond: 200})
	r.until(id, "begun", func(now client.Promotion) bool { return now.Counts.Succeeded > 0 })
	r.database.Hang()
	fixture.Until(t, "the view is reported as too old", func() bool { return value(r.scrape(), "largesse_degraded", "view") == 1 })
	var charged int64
	fixture.Until(t, "no call is open", func() bool {
		before := r.sim.Stats().Requests
		open := value(r.scrape(), "largesse_provider_calls_open")
		charged = r.sim.Stats().Requests
		return open == 0 && charged == before
	})
	fixture.Until(t, "the instance is not ready", func() bool { return slices.Equal(r.degraded(), []string{"UNAVAILABLE"}) })
	if n := r.sim.Stats().Requests; n != charged {
		t.Errorf("%d calls were sent although the view was too old", n-charged)
	}
	if charged >= targets {
		t.Errorf("%d calls were sent for %d targets: the database hung too late, or stopped nothing", charged, targets)
	}
	r.database.Resume()
	r.balance(id, workload)
	fixture.Until(t, "the instance is ready again", func() bool { return len(r.degraded()) == 0 })
}

// TestRedisHangs makes Redis hang for the only instance. Uploads and commands go on,
// what is not dispatched of a promotion is cancelled, and coupons are issued in the
// database. What waits for a dispatch is paid afterwards.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	r := newCutOff(t, servers, moneysim.Faults{LatencyMs: 5})
	template := r.template(client.NewTemplate{})
	r.issue(template, 0, 20)
	r.redis.Hang()
	r.saysDegraded("queue")

	id, workload := r.create(500, false, client.NewPromotion{})
	unwanted, _ := r.create(1000, false, client.NewPromotion{Name: "unwanted"})
	_, paused := r.api.PausePromotion(t.Context(), id)
	_, resumed := r.api.ResumePromotion(t.Context(), id)
	_, cancelled := r.api.CancelPromotion(t.Context(), unwanted)
	if err := errors.Join(paused, resumed, cancelled); err != nil {
		t.Errorf("commands while Redis hangs: %v", err)
	}
	r.until(unwanted, "cancelled but for what is dispatched", func(now client.Promotion) bool {
		return now.Status == "CANCELLED" && now.Counts.Ready == 0 && now.Counts.Cancelled == 1000-now.Counts.Queued
	})
	r.issue(template, 20, 20)
	if got := r.degraded(); !slices.Contains(got, "queue") {
		t.Errorf("degraded: %v, want queue still", got)
	}

	r.redis.Resume()
	r.balance(id, workload)
	r.until(unwanted, "cancelled whole", func(now client.Promotion) bool {
		return now.FinishedAt != nil && now.Counts.Cancelled+now.Counts.Succeeded == 1000
	})
	r.onePerUser(template, 40)
	fixture.Until(t, "the instance works again", func() bool { return len(r.degraded()) == 0 })
}
