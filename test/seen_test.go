package test

import (
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
)

// TestSeenFromOutside checks what an instance shows of itself while it works, and that
// nothing of it stays behind after a stop.
func TestSeenFromOutside(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]world{"Embedded": embedded, "Servers": servers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seenFromOutside(t, w)
		})
	}
}

func seenFromOutside(t *testing.T, w world) {
	t.Helper()
	r := newRig(t, w, moneysim.Faults{LatencyMs: 1000}, func(c *config.Config) {
		patient(c)
		c.Redis.Stream.InFlightPerConsumer = 2
	})
	consumers := 3
	id, workload := r.create(300, false, client.NewPromotion{ConsumersPerInstance: &consumers})
	r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 0 && p.ConsumersPerInstance == consumers })

	var seen client.Instances
	fixture.Until(t, "one instance with its pool", func() bool {
		var err error
		if seen, err = r.api.Instances(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(seen.Items) == 1 && len(seen.Items[0].Pools) == 1 && len(seen.Streams) == 1
	})
	self, stream := seen.Items[0], seen.Streams[0]
	if p := self.Pools[0]; p.PromotionID != id || p.Type != "POINT" || p.Consumers != consumers || self.Consumers != consumers || p.StartedAt.IsZero() {
		t.Errorf("pool %+v", p)
	}
	if !self.Alive || self.Version == "" || !slices.Equal(self.Roles, r.cfg.Roles) || !self.AliveUntil.After(self.SeenAt) || self.StartedAt.IsZero() {
		t.Errorf("instance %+v", self)
	}
	key, group := "", ""
	if r.cfg.Redis.URL != "" {
		key = r.cfg.Redis.KeyPrefix + "campaign-promotion-stream:POINT:" + id
		group = r.cfg.Redis.KeyPrefix + "campaign-promotion-group:POINT:" + id
	}
	if stream.PromotionID != id || stream.Key != key || stream.Length != stream.Lag+stream.Pending || stream.Consumers != consumers || len(seen.Degraded) > 0 {
		t.Errorf("stream %+v, degraded %v", stream, seen.Degraded)
	}

	whole := fixture.Must(r.api.PromotionStream(t.Context(), id))(t)
	if !whole.Exists || len(whole.Consumers) != consumers || whole.Key != key || whole.Group != group {
		t.Errorf("stream %+v", whole)
	}
	for _, c := range whole.Consumers {
		if c.Instance != self.Name || !c.Alive || !strings.HasPrefix(c.Name, self.Name+"-") {
			t.Errorf("consumer %+v of instance %s", c, self.Name)
		}
	}

	now := r.scrape()
	for name, want := range map[string]float64{"largesse_pools": 1, "largesse_consumers": float64(consumers)} {
		if got := value(now, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := value(now, "largesse_provider_calls_open"); got > float64(2*consumers) {
		t.Errorf("%v calls open of %d consumers with 2 each", got, consumers)
	}
	// As many again may wait for their outcome to be written.
	if got := value(now, "largesse_entries_in_hand"); got > float64(2*2*consumers) {
		t.Errorf("%v pending entries of %d consumers with 4 each", got, consumers)
	}
	for _, part := range []string{"store", "queue", "kafka"} {
		if got := value(now, "largesse_up", part); got != 1 {
			t.Errorf("largesse_up of %s is %v", part, got)
		}
	}
	if value(now, "go_goroutines") == 0 || value(now, "process_open_fds") == 0 {
		t.Error("nothing of the Go runtime or the process")
	}

	fixture.Until(t, "the sweeper tells of the stream", func() bool {
		return value(r.scrape(), "largesse_stream_length", id, "POINT") > 0
	})

	fixture.OK(t, r.sim.SetFaults(moneysim.Faults{}))
	r.balance(id, workload)
	fixture.Until(t, "the stream's series end", func() bool {
		return len(r.scrape()["largesse_stream_length"].GetMetric()) == 0
	})
	after := r.scrape()
	paidCalls, timed, left := value(after, "largesse_provider_calls_total", "PAID"), value(after, "largesse_provider_call_seconds"), 0.0
	for _, m := range after["largesse_provider_calls_total"].GetMetric() {
		if m.GetLabel()[0].GetValue() != "UNSENT" {
			left += m.GetCounter().GetValue() // on a busy machine one may have been cut off, and made again
		}
	}
	if paidCalls != 300 || timed != left {
		t.Errorf("%v calls paid, want 300; %v timed, want the %v that left", paidCalls, timed, left)
	}
	if paid := value(after, "largesse_payouts_total", "SUCCEEDED"); paid != 300 || value(after, "largesse_pool_starts_total") < 1 {
		t.Errorf("%v payouts succeeded, want 300", paid)
	}
	if open := value(after, "largesse_provider_calls_open"); open != 0 {
		t.Errorf("%v calls open after the last", open)
	}

	r.stop()
	rows := fixture.Must(parts.OpenStore(t.Context(), r.cfg, "test", nil, obs.Log{}))(t)
	defer rows.Close()
	if left, err := rows.InstanceList(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("after the stop: %+v, %v", left, err)
	}
}
