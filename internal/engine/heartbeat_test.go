package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// fakeInstances remembers the beats, and can be away.
type fakeInstances struct {
	mu    sync.Mutex // protects what follows
	away  bool
	beats []store.Instance
	at    []time.Time
	ttl   time.Duration
	gone  []string
	dead  []string // not reported yet
	// others have other settings of approvals.
	others []string
}

func (f *fakeInstances) InstanceHeartbeat(_ context.Context, i store.Instance, ttl time.Duration) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beats, f.at, f.ttl = append(f.beats, i), append(f.at, time.Now()), ttl
	if f.away {
		return 0, errors.New("the database is away")
	}
	return 3, nil
}

func (f *fakeInstances) InstanceReportDead(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dead := f.dead
	f.dead = nil
	return dead, nil
}

func (f *fakeInstances) InstanceRemove(ctx context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = append(f.gone, name)
	return ctx.Err()
}

func (f *fakeInstances) InstanceOtherApprovals(context.Context, string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.others, nil
}

func (f *fakeInstances) set(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
}

// since says how long after begin each beat came.
func (f *fakeInstances) since(begin time.Time) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []time.Duration
	for _, at := range f.at {
		out = append(out, at.Sub(begin))
	}
	return out
}

func noPools() []pool.Status { return nil }

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	self := store.Instance{Name: "host-1", Version: "v1", Roles: []string{config.RoleAPI}}

	fixture.OnFakeTime(t, "TellsEveryFiveSecondsAndSoonAfterAChange", func(t *testing.T) {
		rows := &fakeInstances{}
		var mu sync.Mutex // protects pools
		var pools []pool.Status
		h := newHeartbeat(heartbeatConfig{rows: rows, self: self, pools: func() []pool.Status {
			mu.Lock()
			defer mu.Unlock()
			return pools
		}})
		begin := time.Now()
		h.hint() // before it beats: the first beat tells it
		h.Start(t.Context())
		time.Sleep(6 * time.Second)
		mu.Lock()
		pools = []pool.Status{{
			Stream:    queue.Stream{Type: reward.Voucher, PromotionID: 7},
			Consumers: []string{"host-1-0", "host-1-1"}, Pending: 3, StartedAt: begin.In(time.FixedZone("KST", 9*3600)),
		}}
		mu.Unlock()
		for range 100 { // a storm of changes is one beat
			h.hint()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(6 * time.Second)
		h.Stop()
		h.Stop()
		want := []time.Duration{0, 5 * time.Second, 6200 * time.Millisecond, 11200 * time.Millisecond}
		fixture.Equal(t, want, rows.since(begin))
		told := self
		told.Pools = []store.InstancePool{{PromotionID: 7, Type: reward.Voucher, Consumers: 2, Pending: 3, StartedAt: begin.UTC()}}
		fixture.Equal(t, []store.Instance{self, self, told, told}, rows.beats)
		if n := h.instances(); n != 3 {
			t.Errorf("%d instances, want 3", n)
		}
		if rows.ttl != 15*time.Second {
			t.Errorf("alive for %v", rows.ttl)
		}
		fixture.Equal(t, []string{"host-1"}, rows.gone)
	})

	fixture.OnFakeTime(t, "AnOutageIsOneLine", func(t *testing.T) {
		var out strings.Builder
		log := fixture.Must(obs.NewLog(&out, "info", "text"))(t)
		rows := &fakeInstances{}
		h := newHeartbeat(heartbeatConfig{rows: rows, self: self, pools: noPools, log: log})
		rows.set(true)
		h.Start(t.Context())
		time.Sleep(time.Minute)
		rows.set(false)
		time.Sleep(time.Minute)
		h.Stop()
		if n := strings.Count(out.String(), "\n"); n != 2 || !strings.Contains(out.String(), `"heartbeat unavailable"`) || !strings.Contains(out.String(), `"heartbeat available again"`) {
			t.Errorf("%d lines:\n%s", n, out.String())
		}
	})

	fixture.OnFakeTime(t, "ShowsThatApprovalsDiffer", func(t *testing.T) {
		rows, troubles := &fakeInstances{others: []string{"b", "c"}}, obs.NewTroubles(nil, obs.Log{})
		h := newHeartbeat(heartbeatConfig{
			rows: rows, self: store.Instance{Name: "a", Approvals: "approval.above: 100"}, pools: noPools, troubles: troubles,
		})
		h.Start(t.Context())
		defer h.Stop()
		time.Sleep(time.Second)
		if list := troubles.List(); len(list) != 1 || list[0].Part != obs.PartApproval || !strings.Contains(list[0].Reason, "approval.above: 100 here and otherwise on b, c") {
			t.Errorf("%+v", list)
		}
		rows.mu.Lock()
		rows.others = nil
		rows.mu.Unlock()
		time.Sleep(2 * heartbeatInterval)
		if list := troubles.List(); len(list) != 0 {
			t.Errorf("%+v", list)
		}
	})

	fixture.OnFakeTime(t, "ShowsWhatDegradesTheInstance", func(t *testing.T) {
		rows, troubles := &fakeInstances{}, obs.NewTroubles(nil, obs.Log{})
		h := newHeartbeat(heartbeatConfig{rows: rows, self: self, pools: noPools, troubles: troubles})
		troubles.Set(obs.PartProvider, strings.Repeat("é", reasonMax))
		since := time.Now().UTC()
		h.Start(t.Context())
		time.Sleep(time.Second)
		troubles.Clear(obs.PartProvider)
		time.Sleep(heartbeatInterval)
		h.Stop()
		told := self
		told.Troubles = []obs.Trouble{{Part: obs.PartProvider, Reason: strings.Repeat("é", reasonMax/2), Since: since}}
		fixture.Equal(t, []store.Instance{told, self}, rows.beats, cmpopts.EquateEmpty())
	})

	t.Run("AStopBeforeAStartSaysNothing", func(t *testing.T) {
		t.Parallel()
		rows := &fakeInstances{}
		newHeartbeat(heartbeatConfig{rows: rows, self: self}).Stop()
		if len(rows.gone) > 0 {
			t.Errorf("gone: %v", rows.gone)
		}
	})
}

// TestADeadInstanceIsLoggedOnce: the first instance that finds it writes the line.
func TestADeadInstanceIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := fixture.Must(obs.NewLog(&out, "info", "text"))(t)
		rows := &fakeInstances{dead: []string{"host-9"}}
		for _, name := range []string{"host-1", "host-2"} {
			h := newHeartbeat(heartbeatConfig{rows: rows, self: store.Instance{Name: name}, pools: noPools, log: log})
			h.Start(t.Context())
			time.Sleep(6 * time.Second)
			h.Stop()
		}
		if n := strings.Count(out.String(), `msg="instance died"`); n != 1 || !strings.Contains(out.String(), "instance=host-9") {
			t.Errorf("%d lines:\n%s", n, out.String())
		}
	})
}
