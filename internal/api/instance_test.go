package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// busy starts a promotion with so many dispatched payouts.
func (b *bundle) busy(t *testing.T, id reward.PromotionID, dispatched int) queue.Stream {
	t.Helper()
	fixture.Must(b.store.PromotionRegister(t.Context(), []store.Registration{{ID: id, Type: reward.Point, Started: true}}, reward.Limits{}, testTime))(t)
	rows := make([]store.NewPayout, dispatched)
	for i := range rows {
		rows[i] = store.NewPayout{PromotionID: id, TargetID: reward.TargetID(i), Amount: 1}
	}
	fixture.Must(b.store.PayoutSave(t.Context(), store.PayoutSaveParams{Rows: rows, MaxLen: dispatched, Now: testTime}))(t)
	return queue.Stream{Type: reward.Point, PromotionID: id}
}

func TestInstances(t *testing.T) {
	t.Parallel()

	t.Run("Shape", func(t *testing.T) {
		t.Parallel()
		b := setup(t, named)
		b.busy(t, 1, 0)
		b.busy(t, 2, 5)
		s := b.busy(t, 3, 8)
		b.queue.infos[s] = queue.Info{Exists: true, Len: 8, Pending: 3, OldestPendingAt: time.Now().Add(-time.Hour)}
		b.queue.consumers[s] = []queue.ConsumerInfo{{Name: "host-1-0"}, {Name: "host-1-1"}}
		b.queue.infos[queue.Stream{Type: reward.Point, PromotionID: 2}] = queue.Info{OldestPendingAt: time.Now().Add(time.Hour)}
		b.store.present = []store.Instance{
			{
				Name: "host-1", Version: "1.2.3", Roles: []string{"api", "payout"}, Alive: true,
				StartedAt: testTime, SeenAt: testTime.Add(time.Minute), AliveUntil: testTime.Add(time.Hour).In(time.FixedZone("KST", 9*3600)),
				Pools: []store.InstancePool{
					{PromotionID: 2, Type: reward.Point, Consumers: 1, StartedAt: testTime},
					{PromotionID: 3, Type: reward.Voucher, Consumers: 2, Pending: 4, StartedAt: testTime},
				},
				Troubles: []obs.Trouble{{Part: "provider", Reason: "it does not answer", Since: testTime}},
			},
			{
				Name: "host-2", StartedAt: testTime, SeenAt: testTime, AliveUntil: testTime,
				Pools:    []store.InstancePool{{PromotionID: 2, Type: reward.Point, Consumers: 3, Pending: 9, StartedAt: testTime}}, // it had them
				Troubles: []obs.Trouble{{Part: "kafka", Reason: "it did not answer", Since: testTime}},
			},
		}
		a := b.json(t, "GET", "/v1/instances", "")
		a.want(t, http.StatusOK)
		got := a.object(t)
		streams, _ := got["streams"].([]any)
		if len(streams) != 2 {
			t.Fatalf("streams: %s", a.body)
		}
		busiest := streams[0].(map[string]any)
		if age, err := busiest["oldestPendingAgeMillis"].(json.Number).Int64(); err != nil || age < 3_600_000 || age > 3_700_000 {
			t.Errorf("an hour is %v ms, %v", age, err)
		}
		delete(busiest, "oldestPendingAgeMillis")
		n := func(s string) json.Number { return json.Number(s) }
		want := map[string]any{
			"items": []any{
				map[string]any{
					"name": "host-1", "version": "1.2.3", "roles": []any{"api", "payout"}, "alive": true,
					"startedAt": "2026-11-21T01:02:03Z", "seenAt": "2026-11-21T01:03:03Z", "aliveUntil": "2026-11-21T02:02:03Z", "consumers": n("3"),
					"pools": []any{
						map[string]any{"promotionId": "2", "type": "POINT", "consumers": n("1"), "inHand": n("0"), "startedAt": "2026-11-21T01:02:03Z"},
						map[string]any{"promotionId": "3", "type": "VOUCHER", "consumers": n("2"), "inHand": n("4"), "startedAt": "2026-11-21T01:02:03Z"},
					},
					"troubles": []any{map[string]any{"part": "provider", "reason": "it does not answer", "since": "2026-11-21T01:02:03Z"}},
				},
				map[string]any{
					"name": "host-2", "version": "", "roles": []any{}, "alive": false, "consumers": n("0"), "pools": []any{},
					"startedAt": "2026-11-21T01:02:03Z", "seenAt": "2026-11-21T01:02:03Z", "aliveUntil": "2026-11-21T01:02:03Z",
				},
			},
			"streams": []any{
				map[string]any{"promotionId": "3", "type": "POINT", "key": "stream:3", "length": n("8"), "lag": n("5"), "pending": n("3"), "consumers": n("2")},
				map[string]any{
					"promotionId": "2", "type": "POINT", "key": "stream:2", "length": n("0"), "lag": n("0"), "pending": n("0"), "consumers": n("0"),
					"oldestPendingAgeMillis": n("0"),
				},
			},
		}
		fixture.Equal(t, want, got)
	})

	t.Run("NothingToDo", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		want := map[string]any{"items": []any{}, "streams": []any{}}
		fixture.Equal(t, want, b.json(t, "GET", "/v1/instances", "").object(t))
	})

	t.Run("TheBusiestStreamsAFewAtATime", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for id := reward.PromotionID(1); id <= streamsMax+3; id++ {
			b.busy(t, id, int(id))
		}
		b.queue.gathered = make(chan struct{})
		got := b.json(t, "GET", "/v1/instances", "").object(t)
		streams, _ := got["streams"].([]any)
		if len(streams) != streamsMax {
			t.Fatalf("%d streams, want %d: %v", len(streams), streamsMax, got["degraded"])
		}
		for i, s := range streams {
			if id := s.(map[string]any)["promotionId"]; id != fmt.Sprint(streamsMax+3-i) {
				t.Fatalf("stream %d is of promotion %v", i, id)
			}
		}
		if b.queue.openMax != streamReaders || len(b.queue.asked) != streamsMax {
			t.Errorf("%d calls at a time, want %d; %d streams were asked for", b.queue.openMax, streamReaders, len(b.queue.asked))
		}
	})

	for _, tt := range []struct {
		name string
		fail func(f *fakeStreams)
	}{
		{"TheQueueIsAway", func(f *fakeStreams) { f.away = errors.New("refused") }},
		{"TheQueueSaysNothing", func(f *fakeStreams) { f.silent = true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.busy(t, 1, 1)
			b.store.present = []store.Instance{{Name: "host-1"}}
			tt.fail(b.queue)
			a := b.json(t, "GET", "/v1/instances", "")
			a.want(t, http.StatusOK)
			got := a.object(t)
			if items, _ := got["items"].([]any); len(items) != 1 {
				t.Errorf("instances: %s", a.body)
			}
			if _, there := got["streams"]; there {
				t.Errorf("streams of an unavailable queue: %s", a.body)
			}
			fixture.Equal(t, []any{"queue"}, got["degraded"])
		})
	}

	t.Run("TheStoreIsAway", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.store.fail("InstanceList", reward.NewError(reward.KindUnavailable, "UNAVAILABLE", "the database does not answer"))
		b.json(t, "GET", "/v1/instances", "").wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
	})
}
