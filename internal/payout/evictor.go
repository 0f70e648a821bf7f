package payout

import (
	"context"
	"slices"
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
	*shared
	log   obs.Log
	crew  *crew
	alive *service.View[[]string] // the names of the living instances

	mu sync.Mutex // protects consumed
	// consumed holds the promotions whose streams may have consumers, each with the
	// LastDispatchedAt of its view. A promotion is added when it is readable, and removed
	// when it has neither QUEUED payouts nor consumers. Promotions of other instances are
	// there too, because this one may take them over. After a start, it gets the
	// promotions of all pools that instances reported in the last day: one of these may
	// have crashed.
	consumed map[reward.PromotionID]time.Time
	inherits bool // consumed has the pools of the last day; only the reads of alive use it
}

func newEvictor(s *shared, log obs.Log) *evictor {
	lease := s.cfg.Limits.Lease
	e := &evictor{shared: s, log: log, consumed: make(map[reward.PromotionID]time.Time)}
	e.crew = newCrew(evictSlots, evictTimeout, lease, log.Streak("removing consumers failed", ""), e.evict)
	report := log.Streak("reading living instances failed", "")
	e.alive = service.NewView(lease/2, 0, func(ctx context.Context) ([]string, error) {
		ctx, cancel := context.WithTimeout(ctx, evictTimeout)
		defer cancel()
		if err := e.inherit(ctx); err != nil {
			return nil, err
		}
		return s.rows.InstanceAlive(ctx)
	}, func(err error) { report(err) })
	return e
}

func (e *evictor) inherit(ctx context.Context) error {
	if e.inherits {
		return nil
	}
	instances, err := e.rows.InstanceList(ctx)
	if err != nil {
		return err
	}
	e.inherits = true
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range instances {
		for _, p := range i.Pools {
			if _, known := e.consumed[p.PromotionID]; !known {
				e.consumed[p.PromotionID] = time.Time{}
			}
		}
	}
	return nil
}

// readable reports whether a promotion has QUEUED payouts that somebody may read.
func readable(v *store.PromotionView) bool {
	return v.Counts.Payouts[reward.Queued] > 0 && v.Status != reward.Paused
}

// offer adds promotions that are readable to consumed, forgets those that are no longer
// active, and gives the crew those that this instance owns. views has all active
// promotions; busy are those that may have QUEUED payouts.
func (e *evictor) offer(ctx context.Context, busy map[reward.PromotionID]bool, views map[reward.PromotionID]*store.PromotionView, owns func(reward.PromotionID) bool) {
	e.mu.Lock()
	for id := range busy {
		if v := views[id]; v != nil && readable(v) {
			e.consumed[id] = v.LastDispatchedAt
		}
	}
	checked := make([]*store.PromotionView, 0, len(e.consumed))
	for id := range e.consumed {
		switch v := views[id]; {
		case v == nil && len(views) > 0: // before the first read, nothing is known
			delete(e.consumed, id)
		case v == nil:
		case owns(id):
			checked = append(checked, v)
		}
	}
	e.mu.Unlock()
	e.crew.offer(ctx, checked)
}

// evict removes the consumers of one stream that belong to dead instances. A consumer has
// to be idle for a lease, and the list of the living is younger than that, so newer than
// its latest command. An instance registers no consumer before its first heartbeat. So
// the instance of an idle consumer that is missing in the list is dead.
func (e *evictor) evict(ctx context.Context, v store.PromotionView) (result, error) {
	alive, readAt := e.alive.Get()
	if time.Since(readAt) >= e.cfg.Limits.Lease {
		return stepWaits, nil
	}
	stream := queue.StreamOf(v.Promotion)
	consumers, err := e.cfg.Queue.Consumers(ctx, stream)
	if err != nil {
		return 0, err
	}
	heir := ""
	var dead []string
	for _, c := range consumers {
		switch {
		case slices.Contains(alive, pool.InstanceOf(c.Name)):
			heir = c.Name
		case c.Idle > e.cfg.Limits.Lease:
			dead = append(dead, c.Name)
		}
	}
	left := len(consumers)
	for _, name := range dead {
		removed, err := e.cfg.Queue.RemoveConsumer(ctx, stream, name, heir)
		if err != nil {
			return 0, err
		}
		if removed {
			left--
			e.log.Info("dead consumer removed", "promotion_id", stream.PromotionID, "consumer", name)
		}
	}
	if left == 0 && !readable(&v) {
		e.mu.Lock()
		if !e.consumed[v.ID].After(v.LastDispatchedAt) { // otherwise offer has added it again from a newer view
			delete(e.consumed, v.ID)
		}
		e.mu.Unlock()
	}
	return stepDone, nil
}
