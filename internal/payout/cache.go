package payout

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	refreshInterval = 500 * time.Millisecond
	// viewAgeMax is the age above which a view allows no new call.
	viewAgeMax = time.Second
	// markInterval separates reads of the restore mark. The mark is set before instances
	// start again, and the first read of an instance includes it.
	markInterval = 10 * time.Second
	// wholeInterval separates reads of all active promotions.
	wholeInterval = 30 * time.Second
	// wholeJitter spreads these reads, so that few instances do them at once.
	wholeJitter = 0.5
	// hintDelay limits how often hints cause a read.
	hintDelay = 20 * time.Millisecond
)

// StatusCache holds the active promotions as of the latest read. It reads what has
// changed every refreshInterval, and sooner on a hint. It reads the whole list at first,
// after a failed read, and every wholeInterval in case that a change was missed: the
// latter in the background, so that it makes no view old. It is safe for concurrent use.
type StatusCache struct {
	service.Base
	rows cacheRows
	view *service.View[active]

	// The next fields are used by reads alone, which do not overlap.
	mark     string    // of the latest read; empty: the next one reads the whole list
	markedAt time.Time // when the restore mark was read
	wholeAt  time.Time // when to read the whole list again

	background  sync.WaitGroup
	reportWhole func(err error, attrs ...any) // logs failed reads in the background
	whole       chan store.PromotionChanges   // a whole list that was read in the background
	reading     atomic.Bool                   // a whole list is being read in the background

	mu        sync.Mutex // protects followers
	followers map[*follower]bool
}

// active is the result of one read.
type active struct {
	views map[reward.PromotionID]*store.PromotionView
	// changed are the promotions that this read has found changed or no longer active.
	changed []reward.PromotionID
	// restoredAt is when the database was restored from a backup, or zero.
	restoredAt time.Time
}

// cacheRows is the part of the store that the cache reads.
type cacheRows interface {
	PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error)
	RestoreMark(ctx context.Context) (time.Time, error)
}

// newStatusCache returns a cache that calls onRefresh, unless that is nil, after each
// successful read.
func newStatusCache(rows cacheRows, onRefresh func(active), log obs.Log) *StatusCache {
	c := &StatusCache{rows: rows, whole: make(chan store.PromotionChanges, 1), followers: make(map[*follower]bool)}
	log = log.For(obs.Manager)
	c.reportWhole = log.Streak("reading all active promotions failed", "")
	report := log.Streak("status cache unavailable", "status cache available again")
	c.view = service.NewView(refreshInterval, hintDelay, c.read, func(err error) {
		report(err)
		if err != nil {
			return
		}
		now, _ := c.view.Get()
		c.mu.Lock()
		for f := range c.followers {
			f.add(now.changed)
		}
		c.mu.Unlock()
		if onRefresh != nil {
			onRefresh(now)
		}
	})
	return c
}

// Hint brings the next read forward. It never blocks.
func (c *StatusCache) Hint() { c.view.Hint() }

func (c *StatusCache) run(ctx context.Context) {
	c.view.Run(ctx)
	c.background.Wait()
}

// read reads what has changed, and the restore mark if it is due.
func (c *StatusCache) read(life context.Context) (active, error) {
	ctx, cancel := context.WithTimeout(life, 5*time.Second)
	defer cancel()
	readAt := time.Now()
	before, _ := c.view.Get()
	now := active{views: before.views, restoredAt: before.restoredAt}
	since := c.mark
	c.mark = "" // unless this read succeeds
	select {
	case w := <-c.whole:
		now.apply(w)
		since = w.Mark
	default:
	}
	changes, err := c.rows.PromotionChanges(ctx, since)
	if err != nil {
		return active{}, err
	}
	now.apply(changes)
	if readAt.Sub(c.markedAt) >= markInterval {
		if now.restoredAt, err = c.rows.RestoreMark(ctx); err != nil {
			return active{}, err
		}
		c.markedAt = readAt
	}
	c.mark = changes.Mark
	if changes.Whole || !readAt.Before(c.wholeAt) {
		c.wholeAt = readAt.Add(service.Jitter(wholeInterval, wholeJitter))
		if !changes.Whole {
			c.readWhole(life)
		}
	}
	return now, nil
}

// readWhole reads the whole list in the background. The next regular read takes it over,
// and reads again all changes that were made since this call.
func (c *StatusCache) readWhole(ctx context.Context) {
	if c.reading.Swap(true) {
		return
	}
	since := c.mark // older than the list: a change that the list already contains is read again
	c.background.Go(func() {
		defer c.reading.Store(false)
		ctx, cancel := context.WithTimeout(ctx, wholeInterval)
		defer cancel()
		w, err := c.rows.PromotionChanges(ctx, "")
		if ctx.Err() == nil {
			c.reportWhole(err)
		}
		if err == nil {
			w.Mark = since
			select {
			case c.whole <- w:
			case <-ctx.Done():
			}
		}
	})
}

// apply applies changes to a copy of the views, and notes them. A promotion in a list of
// changes may have changed twice, so it counts even if its view is the same as before. In
// a whole list, only those with another view count.
func (a *active) apply(c store.PromotionChanges) {
	if !c.Whole && len(c.Active)+len(c.Inactive) == 0 {
		return
	}
	next := make(map[reward.PromotionID]*store.PromotionView, len(c.Active))
	if !c.Whole {
		next = maps.Clone(a.views)
	}
	for i := range c.Active {
		v := new(store.PromotionView) // a pointer into c.Active would keep all of it
		*v = c.Active[i]
		if before := a.views[v.ID]; c.Whole && before != nil && sameView(*before, *v) {
			v = before
		} else {
			a.changed = append(a.changed, v.ID)
		}
		next[v.ID] = v
	}
	gone := c.Inactive
	if c.Whole {
		gone = slices.Collect(maps.Keys(a.views))
	}
	for _, id := range gone {
		if _, known := a.views[id]; known && (!c.Whole || next[id] == nil) {
			a.changed = append(a.changed, id)
			delete(next, id)
		}
	}
	a.views = next
}

func sameView(a, b store.PromotionView) bool {
	if a.ExpectedCount != nil && b.ExpectedCount != nil && *a.ExpectedCount == *b.ExpectedCount {
		a.ExpectedCount = b.ExpectedCount
	}
	return a == b
}

// follower collects the promotions that have changed, and those that its part wants.
type follower struct {
	cache *StatusCache
	wants func(*store.PromotionView) bool
	fresh service.Hint // given by each successful read
	// wanted are the promotions that wants is true for. Only take uses it.
	wanted map[reward.PromotionID]bool

	mu      sync.Mutex // protects changed
	changed map[reward.PromotionID]bool
}

// follow returns a follower, for which every active promotion has changed at first.
// Call end when it is not needed any more.
func (c *StatusCache) follow(wants func(*store.PromotionView) bool) *follower {
	f := &follower{
		cache: c, wants: wants, fresh: service.NewHint(), wanted: make(map[reward.PromotionID]bool), changed: make(map[reward.PromotionID]bool),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.followers[f] = true
	f.add(slices.Collect(maps.Keys(c.Views())))
	return f
}

func (f *follower) end() {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	delete(f.cache.followers, f)
}

func (f *follower) add(ids []reward.PromotionID) {
	f.mu.Lock()
	for _, id := range ids {
		f.changed[id] = true
	}
	f.mu.Unlock()
	f.fresh.Give()
}

// take returns the promotions that have changed since the call before, and all views. A
// promotion without a view is no longer active.
func (f *follower) take() (changed map[reward.PromotionID]bool, views map[reward.PromotionID]*store.PromotionView) {
	f.mu.Lock()
	changed, f.changed = f.changed, make(map[reward.PromotionID]bool)
	f.mu.Unlock()
	views = f.cache.Views()
	for id := range changed {
		if v := views[id]; v != nil && f.wants(v) {
			f.wanted[id] = true
		} else {
			delete(f.wanted, id)
		}
	}
	return changed, views
}

// Status returns the status of a promotion, "" if the view does not have it, and the age
// of the view.
func (c *StatusCache) Status(id reward.PromotionID) (reward.PromotionStatus, time.Duration) {
	now, readAt := c.view.Get()
	if v := now.views[id]; v != nil {
		return v.Status, time.Since(readAt)
	}
	return "", time.Since(readAt)
}

// currency returns the currency of a promotion. It is false unless the view has the
// promotion as RUNNING: a DRAFT's currency can change.
func (c *StatusCache) currency(id reward.PromotionID) (string, bool) {
	if v := c.Views()[id]; v != nil && v.Status == reward.Running {
		return v.Currency, true
	}
	return "", false
}

// job returns what the governor must know about a promotion's calls.
func (c *StatusCache) job(id reward.PromotionID) governor.Job {
	if v := c.Views()[id]; v != nil {
		return governor.Job{PromotionID: id, Weight: v.Weight, RatePerSecond: v.RatePerSecond}
	}
	return governor.Job{PromotionID: id}
}

// restoreDistrust is how long after a restore a first dispatch is not trusted: the row
// may not show a charge that was made after the backup. Kafka records that are newer than
// the backup arrive again within this time.
const restoreDistrust = 24 * time.Hour

// LookupUntil returns the time before which a first dispatch means that the payout must
// be looked up before a charge, because the database was restored; zero if it was not.
func (c *StatusCache) LookupUntil() time.Time {
	now, _ := c.view.Get()
	if now.restoredAt.IsZero() {
		return time.Time{}
	}
	return now.restoredAt.Add(restoreDistrust)
}

// FreshWithin reports whether the view is younger than d. An instance with an older view
// than a lease must let other instances claim its entries.
func (c *StatusCache) FreshWithin(lease time.Duration) bool {
	_, readAt := c.view.Get()
	return time.Since(readAt) < lease
}

// Views returns the active promotions. Callers must not change them.
func (c *StatusCache) Views() map[reward.PromotionID]*store.PromotionView {
	now, _ := c.view.Get()
	return now.views
}
