package api

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func TestOverview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.store
	b.create(t, `{"id":1,"name":"p","type":"POINT","amount":10}`)
	b.upload(t, "/v1/promotions/1/targets", "targetId\n1\n2\n").result(t)
	b.json(t, "POST", "/v1/promotions/1/start", "").want(t, 202)
	b.create(t, `{"id":2,"name":"a draft","type":"POINT","amount":10}`)
	troubles := map[string][]obs.Trouble{
		"a": {{Part: "queue", Reason: "Redis is away", Since: testTime}}, "b": {{Part: "queue", Reason: "too", Since: testTime.Add(time.Hour)}, {Part: "disk", Reason: "full", Since: testTime}},
	}
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for name, g := range map[string]store.InstanceGovernor{
		"a": {Limit: 100, InFlight: 7, Waiting: 3, BreakerOpen: true, BlockedUntil: until}, "b": {Limit: 50, InFlight: 5, RatesUnshared: true, BlockedUntil: testTime},
	} {
		fixture.Must(s.InstanceHeartbeat(t.Context(), store.Instance{Name: name, StartedAt: testTime, Troubles: troubles[name], Governor: &g}, time.Hour))(t)
	}
	fixture.Must(s.InstanceHeartbeat(t.Context(), store.Instance{Name: "dead", StartedAt: testTime, Governor: &store.InstanceGovernor{Limit: 9}, Troubles: []obs.Trouble{{Part: "view"}}}, -time.Second))(t)
	now := time.Now().Truncate(store.TimelineStep)
	for n, step := range []time.Duration{4, 3, 2, 1, 400} {
		p := store.PromotionPoint{At: now.Add(-step * store.TimelineStep), Step: store.TimelineStep, PromotionSums: obs.PromotionSums{Succeeded: 150}}
		c := store.TemplatePoint{At: p.At, Step: store.TimelineStep, TemplateSums: obs.TemplateSums{Asked: 9, Issued: 3}}
		fixture.OK(t, s.TimelineWrite(t.Context(), string(rune('a'+n)), []store.PromotionPoint{p}, []store.TemplatePoint{c}))
	}
	a := b.json(t, "GET", "/v1/overview", "")
	a.want(t, 200)
	var got client.Overview
	fixture.OK(t, json.Unmarshal([]byte(a.body), &got))
	if got.Running != 1 || len(got.Promotions) != 1 || got.Promotions[0].ID != "1" || got.Waiting != 2 || got.Instances != (client.InstanceCount{Alive: 2, Dead: 1}) {
		t.Errorf("overview %s", a.body)
	}
	fixture.Equal(t, client.GovernorState{Limit: 150, InFlight: 12, Waiting: 3, BreakerOpen: true, BlockedUntil: &until}, got.Governor)
	if got.PaidPerSecond != 15 || got.CouponsPerSecond != 0.3 {
		t.Errorf("%v payouts and %v coupons per second", got.PaidPerSecond, got.CouponsPerSecond)
	}
	if n := len(got.Points); n != 91 && n != 90 || len(got.CouponPoints) != n {
		t.Errorf("%d points", n)
	}
	parts := make(map[string]client.PartHealth)
	for _, p := range got.Health {
		parts[p.Part] = p
	}
	if p := parts["queue"]; p.OK || p.Reason != "Redis is away" || len(p.Instances) != 2 || !parts["store"].OK || parts["disk"].OK || len(parts) != 5 {
		t.Errorf("health %+v", parts)
	}
}

// TestOverviewNamesWhatIsAway: an overview comes without Redis and without Kafka, and says
// which is away.
func TestOverviewNamesWhatIsAway(t *testing.T) {
	t.Parallel()
	var kafka error
	b := setup(t, func(c *Config) {
		c.KafkaLags = func(context.Context) ([]bus.TopicLag, error) {
			return []bus.TopicLag{{Topic: "t", Group: "g", Records: 3}, {Topic: "u", Group: "h", Records: 4}}, kafka
		}
	})
	s := b.busy(t, 1, 5)
	b.store.pay(t, 1, testTime.Add(time.Hour), ended(100, rules.OutcomeNoLookup, ""))
	ready := []store.NewPayout{{PromotionID: 1, TargetID: 101, Amount: 1}}
	fixture.Must(b.store.PayoutSave(t.Context(), store.PayoutSaveParams{Rows: ready, Now: testTime}))(t)
	b.queue.infos[s] = queue.Info{Exists: true, Len: 5, Pending: 3}
	for _, test := range []struct {
		name         string
		queue, kafka error
		want         []string
	}{
		{"nothing", nil, nil, nil},
		{"the queue", errors.New("refused"), nil, []string{"queue"}},
		{"Kafka", nil, errors.New("refused"), []string{"kafka"}},
		{"both", errors.New("refused"), errors.New("refused"), []string{"queue", "kafka"}},
	} {
		b.queue.away, kafka = test.queue, test.kafka
		got, err := b.api.readOverview(t.Context())
		if err != nil || !slices.Equal(got.Degraded, test.want) {
			t.Fatalf("without %s: degraded %v, %v; want %v", test.name, got.Degraded, err, test.want)
		}
		if !got.OldestReadyAt.Equal(testTime) || !got.OldestUnknownAt.Equal(testTime.Add(time.Hour)) {
			t.Errorf("oldest READY %s, UNKNOWN %s", got.OldestReadyAt, got.OldestUnknownAt)
		}
		if (got.StreamLag == nil) != (test.queue != nil) || got.StreamLag != nil && *got.StreamLag != 2 {
			t.Errorf("without %s: stream lag %v", test.name, got.StreamLag)
		}
		if (got.KafkaLag == nil) != (test.kafka != nil) || got.KafkaLag != nil && (*got.KafkaLag != 7 || len(got.KafkaTopics) != 2 || got.KafkaTopics[1] != client.TopicLag{Topic: "u", Group: "h", Lag: 4}) {
			t.Errorf("without %s: Kafka lag %v of %v", test.name, got.KafkaLag, got.KafkaTopics)
		}
	}
}

// TestOverviewsAreShared: callers share one read, which a caller who leaves does not
// end, and a failed one is repeated.
func TestOverviewsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var o overviews
		reads := 0
		read := func(ctx context.Context) (*client.Overview, error) {
			reads++
			time.Sleep(100 * time.Millisecond)
			return &client.Overview{Running: reads}, ctx.Err()
		}
		leaving, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := o.get(leaving, read)
			left <- err
		}()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller who left got %v", err)
		}
		for range 5 {
			if got, err := o.get(t.Context(), read); err != nil || got.Running != 1 {
				t.Errorf("%+v, %v", got, err)
			}
		}
		time.Sleep(overviewTTL)
		failing := func(context.Context) (*client.Overview, error) { return nil, errors.New("away") }
		if _, err := o.get(t.Context(), failing); err == nil {
			t.Error("a failed read has an overview")
		}
		if got, err := o.get(t.Context(), read); err != nil || got.Running != 2 {
			t.Errorf("after a failure %+v, %v", got, err)
		}
		synctest.Wait()
	})
}
