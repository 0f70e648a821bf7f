package payout

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// lockedRows are RUNNING promotions with READY payouts. A dispatch of a locked one
// waits for 16 s, as long as the store waits for a lock in all its tries.
type lockedRows struct {
	clockedRows

	mu       sync.Mutex // protects the fields below
	ids      []reward.PromotionID
	locked   map[reward.PromotionID]bool
	waiting  int // dispatches that wait for a lock
	waitMax  int
	fedAt    map[reward.PromotionID]time.Time
	longest  map[reward.PromotionID]time.Duration // between two dispatches
	attempts map[reward.PromotionID]int
}

func (r *lockedRows) PromotionChanges(context.Context, string) (store.PromotionChanges, error) {
	var list []store.PromotionView
	for _, id := range r.ids {
		v := store.PromotionView{Promotion: reward.Promotion{ID: id, Type: reward.Point, Status: reward.Running}}
		v.Counts.Payouts[reward.Ready] = 1000
		list = append(list, v)
	}
	return store.PromotionChanges{Whole: true, Active: list, Mark: "1"}, nil
}

func (r *lockedRows) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) ([]reward.Payout, error) {
	r.mu.Lock()
	locked := r.locked[p.PromotionID]
	r.attempts[p.PromotionID]++
	if locked {
		r.waiting++
		r.waitMax = max(r.waitMax, r.waiting)
	}
	r.mu.Unlock()
	if locked {
		for until := time.Now().Add(16 * time.Second); locked && time.Now().Before(until) && ctx.Err() == nil; {
			service.Sleep(ctx, 50*time.Millisecond)
			r.mu.Lock()
			locked = r.locked[p.PromotionID]
			r.mu.Unlock()
		}
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
		if locked {
			return nil, errors.New("lock timeout")
		}
	}
	time.Sleep(5 * time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.longest[p.PromotionID] = max(r.longest[p.PromotionID], now.Sub(r.fedAt[p.PromotionID]))
	r.fedAt[p.PromotionID] = now
	return []reward.Payout{{PromotionID: p.PromotionID, TargetID: reward.TargetID(r.attempts[p.PromotionID]), State: reward.Queued, Dispatch: 1, DueAt: now}}, nil
}

// feed runs a feeder over the promotions until stop is called.
func (r *lockedRows) feed(t *testing.T) (stop func()) {
	t.Helper()
	q := queue.NewMemory()
	shared := newShared(Config{Store: r, Queue: q, QueueIsLocal: true, MaxLen: 1 << 20, Limits: Limits{Lease: time.Hour}}, nil)
	f := newFeeder(shared, newProducer(shared), nil)
	end := inBackground(t, shared.cache.run, shared.clock.run, f.run)
	return func() {
		end()
		q.Close()
	}
}

// TestFeederPassesLockedPromotions checks that promotions whose counts are locked do
// not keep the feeder from the others, do not use many connections, and are fed
// soon after the locks are gone.
func TestFeederPassesLockedPromotions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const healthy, locked = 20, 10
		// First, locked promotions may have all feeds until their dispatches end; the rounds
		// before and after wait for some of them.
		const most = feedTimeout + 4*2*feedPatience
		r := &lockedRows{
			locked: make(map[reward.PromotionID]bool), fedAt: make(map[reward.PromotionID]time.Time),
			longest: make(map[reward.PromotionID]time.Duration), attempts: make(map[reward.PromotionID]int),
		}
		for id := range reward.PromotionID(healthy + locked) {
			r.ids = append(r.ids, id+1)
			r.fedAt[id+1] = time.Now()
		}
		stop := r.feed(t)
		time.Sleep(5 * time.Second)
		r.mu.Lock()
		for id := range r.ids[:locked] {
			r.locked[r.ids[id]] = true
		}
		r.mu.Unlock()
		time.Sleep(time.Minute)
		r.mu.Lock()
		for _, id := range r.ids[locked:] {
			if r.longest[id] > most {
				t.Errorf("promotion %s was not fed for %v while others were locked", id, r.longest[id])
			}
		}
		if r.waitMax > 2*feedWorkers {
			t.Errorf("%d dispatches waited for locks at once", r.waitMax)
		}
		clear(r.locked)
		unlocked := time.Now()
		r.mu.Unlock()
		time.Sleep(15 * time.Second)
		r.mu.Lock()
		for _, id := range slices.Sorted(maps.Keys(r.fedAt)) {
			if r.fedAt[id].Before(unlocked) {
				t.Errorf("promotion %s was not fed within 15 s after its lock was gone", id)
			}
		}
		r.mu.Unlock()
		stop()
	})
}

// TestFeederReturnsToALockedPromotion checks that a promotion is fed after its lock
// is gone, although nothing else happens.
func TestFeederReturnsToALockedPromotion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &lockedRows{
			locked: map[reward.PromotionID]bool{1: true}, ids: []reward.PromotionID{1}, fedAt: make(map[reward.PromotionID]time.Time),
			longest: make(map[reward.PromotionID]time.Duration), attempts: make(map[reward.PromotionID]int),
		}
		stop := r.feed(t)
		time.Sleep(time.Minute)
		r.mu.Lock()
		tries, unlocked := r.attempts[1], time.Now()
		clear(r.locked)
		r.mu.Unlock()
		if tries < 5 {
			t.Errorf("a locked promotion was tried %d times in a minute", tries)
		}
		time.Sleep(5 * time.Second)
		r.mu.Lock()
		if r.fedAt[1].Before(unlocked) {
			t.Error("not fed within 5 s after the lock was gone")
		}
		r.mu.Unlock()
		stop()
	})
}

// TestAStopLeavesNoPayoutWithoutItsEntry stops a flow while the feeder adds entries.
func TestAStopLeavesNoPayoutWithoutItsEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := make(chan struct{})
		begin := sync.OnceFunc(func() { close(began) })
		s := newStage(t, newProvider(nil))
		slow := &queuetest.Hooked{Queue: s.queue, Before: func(ctx context.Context, call string, _ queue.Stream) error {
			if call == "Add" {
				begin()
				service.Sleep(ctx, time.Second) // it fails if its caller gives up
			}
			return ctx.Err()
		}}
		s.with(func(cfg *Config) { cfg.Queue = slow }, dropPublisher{})
		defer s.queue.Close()
		defer s.store.Close()
		s.create(100, 5)
		s.start()
		<-began
		s.flow.Stop()
		v := fixture.Must(s.store.PromotionGet(t.Context(), promotion))(t)
		info := fixture.Must(s.queue.Info(t.Context(), queue.StreamOf(v.Promotion)))(t)
		if queued := v.Counts.Payouts[reward.Queued]; queued == 0 || queued != info.Len {
			t.Errorf("%d payouts are QUEUED, and %d have an entry", queued, info.Len)
		}
	})
}
