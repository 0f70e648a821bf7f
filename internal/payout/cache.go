package payout

import (
	"context"
	"sync"
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
	log       obs.Log
	onRefresh func(views []store.PromotionView) // called after each good read; may be nil
	hints     chan struct{}
	markedAt  time.Time // when refresh read the restore mark

	mu    sync.Mutex // protects the fields below
	views map[reward.PromotionID]*store.PromotionView
	// restoredAt is when the database was restored from a backup; zero means
	// never.
	restoredAt time.Time
	readAt     time.Time     // before the query of the latest good read began
	fresh      chan struct{} // closed and replaced at each good read
}

// cacheRows is the part of the store that the cache reads.
type cacheRows interface {
	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
	RestoreMark(ctx context.Context) (time.Time, error)
}

// NewStatusCache returns a cache that has read nothing yet.
func NewStatusCache(rows cacheRows, log obs.Log) *StatusCache {
	return &StatusCache{
		rows: rows, log: log.For(obs.Manager), hints: make(chan struct{}, 1),
		views: make(map[reward.PromotionID]*store.PromotionView), fresh: make(chan struct{}),
	}
}

// Hint brings the next read forward. It never blocks.
func (c *StatusCache) Hint() {
	select {
	case c.hints <- struct{}{}:
	default:
	}
}

// run reads until ctx ends.
func (c *StatusCache) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		if err := c.refresh(ctx); err != nil && ctx.Err() == nil {
			failures++
			if failures&(failures-1) == 0 {
				c.log.Warn("status cache unavailable", err, "failures", failures)
			}
		} else if failures > 0 {
			c.log.Info("status cache available again", "failures", failures)
			failures = 0
		}
		timer := time.NewTimer(service.Jitter(refreshInterval, 0.1))
		select {
		case <-timer.C:
		case <-c.hints:
			service.Sleep(ctx, hintDelay)
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (c *StatusCache) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	readAt := time.Now()
	list, err := c.rows.PromotionActive(ctx)
	if err != nil {
		return err
	}
	mark := c.restored()
	if readAt.Sub(c.markedAt) >= markInterval {
		if mark, err = c.rows.RestoreMark(ctx); err != nil {
			return err
		}
		c.markedAt = readAt
	}
	views := make(map[reward.PromotionID]*store.PromotionView, len(list))
	for i := range list {
		views[list[i].ID] = &list[i]
	}
	c.mu.Lock()
	c.views, c.readAt, c.restoredAt = views, readAt, mark
	close(c.fresh)
	c.fresh = make(chan struct{})
	c.mu.Unlock()
	if c.onRefresh != nil {
		c.onRefresh(list)
	}
	return nil
}

// Status returns the status of a promotion and the age of that knowledge. The
// status is "" if the promotion is not active.
func (c *StatusCache) Status(id reward.PromotionID) (reward.PromotionStatus, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	age := time.Since(c.readAt)
	if v := c.views[id]; v != nil {
		return v.Status, age
	}
	return "", age
}

// job describes a promotion's calls for the governor.
func (c *StatusCache) job(id reward.PromotionID) governor.Job {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.views[id]; v != nil {
		return governor.Job{PromotionID: id, Weight: v.Weight, RatePerSecond: v.RatePerSecond}
	}
	return governor.Job{PromotionID: id}
}

// restoreDistrust is the time after a restore in which a row cannot prove that
// its payout was never called: the backup may be older than the call. Lost
// records arrive again within this time.
const restoreDistrust = 24 * time.Hour

func (c *StatusCache) restored() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restoredAt
}

// DistrustBefore returns the time before which a first dispatch does not
// exclude earlier calls: a day after the database was restored, or zero.
func (c *StatusCache) DistrustBefore() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.restoredAt.IsZero() {
		return time.Time{}
	}
	return c.restoredAt.Add(restoreDistrust)
}

// Alive reports whether the view is younger than the lease. An instance that
// cannot read the rows must let other instances claim its entries.
func (c *StatusCache) Alive(lease time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.readAt) < lease
}

// Views returns the active promotions.
func (c *StatusCache) Views() map[reward.PromotionID]*store.PromotionView {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.views // replaced at each read, never changed
}

// next returns a channel that closes at the next good read.
func (c *StatusCache) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh
}
