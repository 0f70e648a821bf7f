package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// fakeStreams is a work queue that is looked at and nothing else.
type fakeStreams struct {
	mu        sync.Mutex // protects what follows
	away      error      // answer of every call while set
	silent    bool       // no call is answered before its context ends
	infos     map[queue.Stream]queue.Info
	consumers map[queue.Stream][]queue.ConsumerInfo
	open      int // calls in progress
	openMax   int
	asked     map[reward.PromotionID]bool
	gathered  chan struct{} // when set, calls of Info wait until it is closed
}

func newFakeStreams() *fakeStreams {
	return &fakeStreams{
		infos: map[queue.Stream]queue.Info{}, consumers: map[queue.Stream][]queue.ConsumerInfo{}, asked: map[reward.PromotionID]bool{},
	}
}

func (f *fakeStreams) begin(ctx context.Context, s queue.Stream) error {
	f.mu.Lock()
	f.asked[s.PromotionID] = true
	f.open++
	f.openMax = max(f.openMax, f.open)
	if f.open == streamReaders && f.gathered != nil {
		close(f.gathered)
		f.gathered = nil
	}
	away, silent, gathered := f.away, f.silent, f.gathered
	f.mu.Unlock()
	if gathered != nil {
		select {
		case <-gathered:
		case <-ctx.Done():
		}
	}
	if silent {
		<-ctx.Done()
	}
	f.mu.Lock()
	f.open--
	f.mu.Unlock()
	return errors.Join(away, ctx.Err())
}

func (f *fakeStreams) Info(ctx context.Context, s queue.Stream) (queue.Info, error) {
	err := f.begin(ctx, s)
	return f.infos[s], err
}

func (f *fakeStreams) Consumers(ctx context.Context, s queue.Stream) ([]queue.ConsumerInfo, error) {
	err := f.begin(ctx, s)
	return f.consumers[s], err
}

// named gives streams names as Redis does.
func named(c *Config) {
	c.StreamNames = func(s queue.Stream) (string, string) {
		return "stream:" + s.PromotionID.String(), "group:" + s.PromotionID.String()
	}
}

func TestPromotionStream(t *testing.T) {
	t.Parallel()

	t.Run("Shape", func(t *testing.T) {
		t.Parallel()
		b := setup(t, named)
		b.store.promotion(t, 7, reward.Running, func(p *reward.Promotion) { p.Type = reward.Voucher })
		b.store.present = []store.Instance{{Name: "host-1", Alive: true}, {Name: "host-1.2"}, {Name: "host-12", Alive: true}}
		s := queue.Stream{Type: reward.Voucher, PromotionID: 7}
		oldest := time.Date(2026, 11, 21, 12, 0, 0, 0, time.FixedZone("KST", 9*3600))
		b.queue.infos[s] = queue.Info{Exists: true, Len: 9, Pending: 4, OldestAt: oldest, OldestPendingAt: oldest.Add(time.Second)}
		b.queue.consumers[s] = []queue.ConsumerInfo{
			{Name: "host-1-10", Pending: 1, Idle: 1500 * time.Millisecond},
			{Name: "host-1-2", Pending: 3},
			{Name: "host-1.2-0"},
			{Name: "gone-9-0"},
			{Name: "foreign"},
		}
		a := b.json(t, "GET", "/v1/promotions/7/stream", "")
		a.want(t, http.StatusOK)
		n := func(s string) json.Number { return json.Number(s) }
		consumer := func(name, instance string, alive bool, pending, idle string) map[string]any {
			return map[string]any{"name": name, "instance": instance, "alive": alive, "pending": n(pending), "idleMillis": n(idle)}
		}
		want := map[string]any{
			"key": "stream:7", "group": "group:7", "exists": true, "length": n("9"), "lag": n("5"), "pending": n("4"),
			"oldestAt": "2026-11-21T03:00:00Z", "oldestPendingAt": "2026-11-21T03:00:01Z",
			"consumers": []any{
				consumer("foreign", "", false, "0", "0"), consumer("gone-9-0", "gone-9", false, "0", "0"),
				consumer("host-1-2", "host-1", true, "3", "0"), consumer("host-1-10", "host-1", true, "1", "1500"),
				consumer("host-1.2-0", "host-1.2", false, "0", "0"),
			},
		}
		fixture.Equal(t, want, a.object(t))
	})

	t.Run("NoneInProcess", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.create(t, `{"name":"x","type":"POINT"}`)
		want := map[string]any{
			"key": "", "group": "", "exists": false, "length": json.Number("0"), "lag": json.Number("0"), "pending": json.Number("0"),
			"consumers": []any{},
		}
		fixture.Equal(t, want, b.json(t, "GET", "/v1/promotions/"+id+"/stream", "").object(t))
	})

	t.Run("Refusals", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.json(t, "GET", "/v1/promotions/7/stream", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
		b.json(t, "GET", "/v1/promotions/x/stream", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
		id := b.create(t, `{"name":"x","type":"POINT"}`)
		b.queue.away = errors.New("dial tcp 10.0.0.1: refused")
		a := b.json(t, "GET", "/v1/promotions/"+id+"/stream", "")
		a.wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
		if strings.Contains(a.body, "10.0.0.1") || a.header.Get("Retry-After") == "" {
			t.Errorf("%+v", a)
		}
		if !strings.Contains(b.log.String(), "10.0.0.1") {
			t.Error("the cause is not logged")
		}
	})

	t.Run("AQueueThatSaysNothingIsNotWaitedForLong", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.create(t, `{"name":"x","type":"POINT"}`)
		b.queue.silent = true
		b.json(t, "GET", "/v1/promotions/"+id+"/stream", "").wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
	})
}
