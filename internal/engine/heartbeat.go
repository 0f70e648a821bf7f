package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// heartbeatTTL is how long an instance counts as alive after a heartbeat.
	// It is three intervals long: an instance still counts as alive after it missed
	// two heartbeats in a row.
	heartbeatTTL      = 15 * time.Second
	heartbeatInterval = heartbeatTTL / 3
	// heartbeatDelay is the time from a change of the pools to the heartbeat, so
	// that one heartbeat covers a burst of changes.
	heartbeatDelay = 200 * time.Millisecond
	// heartbeatTimeout limits the database calls of one heartbeat.
	heartbeatTimeout = 2 * time.Second
	// reasonMax is the number of bytes of a trouble's reason in a heartbeat.
	reasonMax = 500
)

// heartbeat reports what this instance does: it writes a row while the instance
// runs, and removes it when the instance stops.
type heartbeat struct {
	service.Base
	heartbeatConfig
	view *service.View[int] // the number of instances that are alive
}

type instanceRows interface {
	InstanceHeartbeat(ctx context.Context, self store.Instance, ttl time.Duration) (alive int, err error)
	InstanceOtherApprovals(ctx context.Context, approvals string) ([]string, error)
	InstanceReportDead(ctx context.Context) ([]string, error)
	InstanceRemove(ctx context.Context, name string) error
}

type heartbeatConfig struct {
	rows  instanceRows
	self  store.Instance // without Pools, Troubles and Governor
	pools func() []pool.Status
	// troubles holds what degrades this instance.
	troubles *obs.Troubles
	metrics  *obs.Metrics
	governed bool // self makes calls to the provider
	log      obs.Log
}

func newHeartbeat(cfg heartbeatConfig) *heartbeat {
	cfg.log = cfg.log.For(obs.Engine)
	h := &heartbeat{heartbeatConfig: cfg}
	failed := false
	h.view = service.NewView(heartbeatInterval, heartbeatDelay, h.beat, func(err error) {
		switch {
		case err == nil && failed:
			h.log.Info("heartbeat available again", "instance", h.self.Name)
		case err != nil && !failed:
			h.log.Warn("heartbeat unavailable", err, "instance", h.self.Name)
		}
		failed = err != nil
	}).Steady()
	return h
}

// instances returns the number of instances that were alive at the latest
// heartbeat, including this one.
func (h *heartbeat) instances() int {
	alive, _ := h.view.Get()
	return max(alive, 1)
}

// hint reports that the pools have changed. It never blocks.
func (h *heartbeat) hint() { h.view.Hint() }

// Start writes the first heartbeat at once, and others until Stop.
func (h *heartbeat) Start(ctx context.Context) { h.Base.Start(ctx, h.run) }

func (h *heartbeat) run(ctx context.Context) {
	h.view.Run(ctx)
	h.remove()
}

// beat writes the row and returns the number of instances that are alive.
func (h *heartbeat) beat(ctx context.Context) (int, error) {
	self := h.self
	for _, p := range h.pools() {
		self.Pools = append(self.Pools, store.InstancePool{
			PromotionID: p.Stream.PromotionID, Type: p.Stream.Type, Consumers: len(p.Consumers),
			Pending: p.Pending, StartedAt: p.StartedAt.UTC(),
		})
	}
	self.Troubles = h.troubles.List()
	for n, t := range self.Troubles {
		self.Troubles[n].Reason = strings.ToValidUTF8(t.Reason[:min(len(t.Reason), reasonMax)], "")
	}
	if h.governed {
		f := h.metrics.Governor()
		self.Governor = &store.InstanceGovernor{
			Limit: f.Limit, InFlight: f.Open, Waiting: f.Waiting, BreakerOpen: f.BreakerOpen, RatesUnshared: f.RatesUnshared, BlockedUntil: f.BlockedUntil.UTC(),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	alive, err := h.rows.InstanceHeartbeat(ctx, self, heartbeatTTL)
	if err != nil {
		return alive, err
	}
	h.metrics.InstancesAlive(alive)
	others, err := h.rows.InstanceOtherApprovals(ctx, self.Approvals)
	if err != nil {
		return alive, err
	}
	if len(others) > 0 {
		h.troubles.Set(obs.PartApproval, fmt.Sprintf(
			"approvals are set to %s here and otherwise on %s: each instance applies its own settings, so set the same on all", self.Approvals, strings.Join(others, ", ")))
	} else {
		h.troubles.Clear(obs.PartApproval)
	}
	dead, err := h.rows.InstanceReportDead(ctx)
	for _, name := range dead {
		h.log.Warn("instance died", errNoHeartbeat, "instance", name)
	}
	return alive, err
}

var errNoHeartbeat = errors.New("its heartbeats ended, and it did not say that it stops; others take over its work when its leases expire")

// remove removes the row. If it fails, the instance counts as alive until
// heartbeatTTL has passed.
func (h *heartbeat) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), heartbeatTimeout)
	defer cancel()
	if err := h.rows.InstanceRemove(ctx, h.self.Name); err != nil {
		h.log.Warn("removing instance failed", err, "instance", h.self.Name)
	}
}
