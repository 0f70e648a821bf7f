package payout

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// refreshInterval separates reads of the active promotions.
	refreshInterval = 500 * time.Millisecond
	// viewAgeMax is the age above which a view allows no new call.
	viewAgeMax = time.Second
	// markInterval separates reads of the restore mark. Restoring sets the mark
	// before the instances start, and each instance reads it first.
	markInterval = 10 * time.Second
	// hintDelay limits how often hints cause a read.
	hintDelay = 20 * time.Millisecond
)

// StatusCache holds the active promotions as of the latest read. One query
// reads all of them, every refreshInterval and sooner on a hint, never one
// query per payout. It is safe for concurrent use.
type StatusCache struct {
	service.Base
	rows      cacheRows
	view      *service.View[active]
	onRefresh func(views []store.PromotionView) // called after each good read; may be nil
	markedAt  time.Time                         // when the restore mark was read; only read uses it
}

// active is the result of one read.
type active struct {
	list  []store.PromotionView
	views map[reward.PromotionID]*store.PromotionView
	// restoredAt is when the database was restored from a backup; zero means
	// never.
	restoredAt time.Time
}

// cacheRows is the part of the store that the cache reads.
type cacheRows interface {
	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
	RestoreMark(ctx context.Context) (time.Time, error)
}

// NewStatusCache returns a cache that has read nothing yet.
func NewStatusCache(rows cacheRows, log obs.Log) *StatusCache {
	c := &StatusCache{rows: rows}
	report := log.For(obs.Manager).Streak("status cache unavailable", "status cache available again")
	c.view = service.NewView(refreshInterval, hintDelay, c.read, func(err error) {
		report(err)
		if err == nil && c.onRefresh != nil {
			now, _ := c.view.Get()
			c.onRefresh(now.list)
		}
	})
	return c
}

// Hint brings the next read forward. It never blocks.
func (c *StatusCache) Hint() { c.view.Hint() }

// run reads until ctx ends.
func (c *StatusCache) run(ctx context.Context) { c.view.Run(ctx) }

// read reads the active promotions, and the restore mark if it is due.
func (c *StatusCache) read(ctx context.Context) (active, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	readAt := time.Now()
	list, err := c.rows.PromotionActive(ctx)
	if err != nil {
		return active{}, err
	}
	before, _ := c.view.Get()
	now := active{list: list, views: make(map[reward.PromotionID]*store.PromotionView, len(list)), restoredAt: before.restoredAt}
	if readAt.Sub(c.markedAt) >= markInterval {
		if now.restoredAt, err = c.rows.RestoreMark(ctx); err != nil {
			return active{}, err
		}
		c.markedAt = readAt
	}
	for i := range list {
		now.views[list[i].ID] = &list[i]
	}
	return now, nil
}

// Status returns the status of a promotion and the age of that knowledge. The
// status is "" if the promotion is not active.
func (c *StatusCache) Status(id reward.PromotionID) (reward.PromotionStatus, time.Duration) {
	now, readAt := c.view.Get()
	if v := now.views[id]; v != nil {
		return v.Status, time.Since(readAt)
	}
	return "", time.Since(readAt)
}

// job describes a promotion's calls for the governor.
func (c *StatusCache) job(id reward.PromotionID) governor.Job {
	now, _ := c.view.Get()
	if v := now.views[id]; v != nil {
		return governor.Job{PromotionID: id, Weight: v.Weight, RatePerSecond: v.RatePerSecond}
	}
	return governor.Job{PromotionID: id}
}

// restoreDistrust is the time after a restore in which a row cannot prove that
// its payout was never called: the backup may be older than the call. Lost
// records arrive again within this time.
const restoreDistrust = 24 * time.Hour

// LookupUntil returns the time before which a first dispatch does not
// exclude earlier calls: a day after the database was restored, or zero.
func (c *StatusCache) LookupUntil() time.Time {
	now, _ := c.view.Get()
	if now.restoredAt.IsZero() {
		return time.Time{}
	}
	return now.restoredAt.Add(restoreDistrust)
}

// FreshWithin reports whether the view is younger than the lease. An instance that
// cannot read the rows must let other instances claim its entries.
func (c *StatusCache) FreshWithin(lease time.Duration) bool {
	_, readAt := c.view.Get()
	return time.Since(readAt) < lease
}

// Views returns the active promotions. Callers must not change them.
func (c *StatusCache) Views() map[reward.PromotionID]*store.PromotionView {
	now, _ := c.view.Get()
	return now.views
}

// next returns a channel that closes at the next good read.
func (c *StatusCache) next() <-chan struct{} { return c.view.Next() }
