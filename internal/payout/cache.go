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
	// refreshEvery is how often an instance reads what should run.
	refreshEvery = 500 * time.Millisecond
	// viewAgeMax is the age above which a view opens no new call.
	viewAgeMax = time.Second
	// markEvery is how often the restore mark is read. It is set before the
	// instances start, which read it first of all.
	markEvery = 10 * time.Second
	// hintPause bounds how often hints make the view read anew.
	hintPause = 20 * time.Millisecond
)

// StatusCache holds what should run as of the latest read: one query for all
// promotions, every refreshEvery, sooner on a hint, never one per payout.
// [CampaignPromotionStatusCacheService]
type StatusCache struct {
	service.Base
	rows      cacheRows
	log       obs.Log
	onRefresh func(views []store.PromotionView) // after each good read; nil = nothing
	hints     chan struct{}
	markedAt  time.Time // when the restore mark was read; only refresh uses it

	mu    sync.Mutex // protects what follows
	views map[reward.PromotionID]*store.PromotionView
	// restoredAt is when the database was restored from a backup; zero = never.
	restoredAt time.Time
	readAt     time.Time     // before the query of the latest good read began
	fresh      chan struct{} // closed and replaced at each good read
}

// cacheRows is what the cache reads.
type cacheRows interface {
	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
	RestoreMark(ctx context.Context) (time.Time, error)
}

// NewStatusCache makes a cache that has read nothing yet.
func NewStatusCache(rows cacheRows, log obs.Log) *StatusCache {
	return &StatusCache{
		rows: rows, log: log.For(obs.Manager), hints: make(chan struct{}, 1),
		views: make(map[reward.PromotionID]*store.PromotionView), fresh: make(chan struct{}),
	}
}

// Hint makes the next read come sooner.
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
		timer := time.NewTimer(service.Jitter(refreshEvery, 0.1))
		select {
		case <-timer.C:
		case <-c.hints:
			service.Sleep(ctx, hintPause)
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
	if readAt.Sub(c.markedAt) >= markEvery {
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

// Status returns the status of a promotion and how old that knowledge is. A
// promotion that is not among the active ones is "" .
func (c *StatusCache) Status(id reward.PromotionID) (reward.PromotionStatus, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	age := time.Since(c.readAt)
	if v := c.views[id]; v != nil {
		return v.Status, age
	}
	return "", age
}

// job says for whom a call is, as far as the governor has to know.
func (c *StatusCache) job(id reward.PromotionID) governor.Job {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.views[id]; v != nil {
		return governor.Job{PromotionID: id, Weight: v.Weight, RatePerSecond: v.RatePerSecond}
	}
	return governor.Job{PromotionID: id}
}

// restoreDistrust is how long after a restore the rows are not believed when
// they say that nobody was called: what was lost comes in again by then, and
// the provider's memory of its keys is not relied on.
const restoreDistrust = 24 * time.Hour

func (c *StatusCache) restored() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restoredAt
}

// DistrustBefore is the time up to which a first dispatch says nothing about
// earlier calls: zero, or a day after the database was restored.
func (c *StatusCache) DistrustBefore() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.restoredAt.IsZero() {
		return time.Time{}
	}
	return c.restoredAt.Add(restoreDistrust)
}

// Alive says whether the view is young enough to hold on to entries: an
// instance that cannot read the rows must let others claim them.
func (c *StatusCache) Alive(lease time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.readAt) < lease
}

// Views returns the active promotions.
func (c *StatusCache) Views() map[reward.PromotionID]*store.PromotionView {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.views // replaced whole, never changed
}

// next is closed at the next good read.
func (c *StatusCache) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh
}
