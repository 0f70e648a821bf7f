package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// beatTTL is how long an instance that tells nothing counts as alive, and
	// beatEvery how often it tells; two may get lost.
	beatTTL   = 15 * time.Second
	beatEvery = beatTTL / 3
	// beatSettle gathers the changes of a moment into one beat.
	beatSettle = 200 * time.Millisecond
	// beatTimeout bounds one write.
	beatTimeout = 2 * time.Second
)

// heartbeat tells the other instances, and people, what this one does: a row
// that it writes while it runs and removes when it ends in order.
type heartbeat struct {
	service.Base
	rows  store.Instances
	self  store.Instance // Pools aside
	pools func() []pool.Status
	hints chan struct{} // holds one when the pools have changed
	alive atomic.Int64  // instances, this one included, at the latest beat
	log   obs.Log
}

// newHeartbeat makes a heartbeat that does not beat yet; pools must be set
// before Start.
func newHeartbeat(rows store.Instances, self store.Instance, log obs.Log) *heartbeat {
	return &heartbeat{rows: rows, self: self, hints: make(chan struct{}, 1), log: log.For(obs.Engine)}
}

// instances is how many instances are alive, as of the latest beat.
func (h *heartbeat) instances() int { return max(int(h.alive.Load()), 1) }

// hint says that the pools have changed. It never waits.
func (h *heartbeat) hint() {
	select {
	case h.hints <- struct{}{}:
	default:
	}
}

// Start beats at once and then until Stop.
func (h *heartbeat) Start(ctx context.Context) { h.Base.Start(ctx, h.run) }

func (h *heartbeat) run(ctx context.Context) {
	failed := false
	for ctx.Err() == nil {
		switch err := h.beat(ctx); {
		case err == nil && failed:
			failed = false
			h.log.Info(obs.Recovered, "instance", h.self.Name)
		case err != nil && !failed && ctx.Err() == nil:
			failed = true
			h.log.Warn(obs.Unavailable, err, "instance", h.self.Name)
		}
		h.rest(ctx)
	}
	h.leave()
}

// rest waits for the next beat: for beatEvery, or for beatSettle after the
// pools have changed.
func (h *heartbeat) rest(ctx context.Context) {
	t := time.NewTimer(beatEvery)
	defer t.Stop()
	select {
	case <-h.hints:
		service.Sleep(ctx, beatSettle)
	case <-t.C:
	case <-ctx.Done():
	}
}

func (h *heartbeat) beat(ctx context.Context) error {
	// What changes from here on is told by another beat.
	select {
	case <-h.hints:
	default:
	}
	self := h.self
	for _, p := range h.pools() {
		self.Pools = append(self.Pools, store.InstancePool{
			PromotionID: p.Stream.PromotionID, Type: p.Stream.Type, Consumers: len(p.Consumers),
			Pending: p.Pending, StartedAt: p.StartedAt.UTC(),
		})
	}
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	if err := h.rows.InstanceHeartbeat(ctx, self, beatTTL); err != nil {
		return err
	}
	all, err := h.rows.InstanceList(ctx)
	if err != nil {
		return err
	}
	alive := int64(0)
	for _, i := range all {
		if i.Alive {
			alive++
		}
	}
	h.alive.Store(alive)
	return nil
}

// leave takes the row away; when that fails it reads as dead after beatTTL.
func (h *heartbeat) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
	defer cancel()
	if err := h.rows.InstanceRemove(ctx, h.self.Name); err != nil {
		h.log.Warn(obs.CleanupFailed, err, "instance", h.self.Name)
	}
}
