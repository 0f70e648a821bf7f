package payout

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// evictor removes the consumers of dead instances, once per lease and stream.
// Their pending entries go to a consumer of a living instance and keep their idle
// time, so that their leases still expire. If there is no such consumer, a
// consumer with pending entries stays. An instance that was only slow registers
// its consumers again, but has lost its entries.
type evictor struct {
	queue queue.Queue
	lease time.Duration
	log   obs.Log
	crew  *crew
	alive *service.View[map[string]bool] // the names of the living instances

	mu sync.Mutex // protects consumed
	// consumed holds the streams that may have consumers. One is added when its
	// promotion has QUEUED payouts, and removed when it has no consumers left.
	consumed map[reward.PromotionID]bool
}

func newEvictor(rows store.Instances, q queue.Queue, lease time.Duration, log obs.Log) *evictor {
	e := &evictor{queue: q, lease: lease, log: log, consumed: make(map[reward.PromotionID]bool)}
	e.crew = newCrew(evictSlots, evictTimeout, lease, log.Streak("removing consumers failed", ""), e.evict)
	report := log.Streak("reading living instances failed", "")
	e.alive = service.NewView(lease/2, 0, func(ctx context.Context) (map[string]bool, error) {
		ctx, cancel := context.WithTimeout(ctx, evictTimeout)
		defer cancel()
		names, err := rows.InstanceAlive(ctx)
		alive := make(map[string]bool, len(names))
		for _, name := range names {
			alive[name] = true
		}
		return alive, err
	}, func(err error) { report(err) })
	return e
}

// offer replaces the promotions whose streams are checked: the busy ones, which
// have QUEUED payouts and are not paused, and those that may still have consumers. owned returns the
// view of a promotion, or nil if this instance does not check its stream.
func (e *evictor) offer(ctx context.Context, busy []*store.PromotionView, owned func(reward.PromotionID) *store.PromotionView) {
	e.mu.Lock()
	for _, v := range busy {
		e.consumed[v.ID] = true
	}
	checked := make([]*store.PromotionView, 0, len(e.consumed))
	for id := range e.consumed {
		if v := owned(id); v != nil {
			checked = append(checked, v)
		} else {
			delete(e.consumed, id)
		}
	}
	e.mu.Unlock()
	e.crew.offer(ctx, checked)
}

// evict removes the consumers of one stream that belong to dead instances. The
// names of the living are younger than a lease, and a consumer has to be idle for
// a lease. So an instance that is not among the living was not alive when its
// consumer was last seen: an instance registers no consumer before its first
// heartbeat.
func (e *evictor) evict(ctx context.Context, v store.PromotionView) (result, error) {
	alive, readAt := e.alive.Get()
	if time.Since(readAt) >= e.lease {
		return stepWaits, nil
	}
	stream := queue.StreamOf(v.Promotion)
	consumers, err := e.queue.Consumers(ctx, stream)
	if err != nil {
		return 0, err
	}
	heir := ""
	var dead []string
	for _, c := range consumers {
		switch {
		case alive[pool.InstanceOf(c.Name)]:
			heir = c.Name
		case c.Idle > e.lease:
			dead = append(dead, c.Name)
		}
	}
	left := len(consumers)
	for _, name := range dead {
		removed, err := e.queue.RemoveConsumer(ctx, stream, name, heir)
		if err != nil {
			return 0, err
		}
		if removed {
			left--
			e.log.Info("dead consumer removed", "promotion_id", stream.PromotionID, "consumer", name)
		}
	}
	if left == 0 {
		e.mu.Lock()
		delete(e.consumed, v.ID)
		e.mu.Unlock()
	}
	return stepDone, nil
}
