package payout

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// clockedRows are a store that has a clock only.
type clockedRows struct{ Store }

func (clockedRows) Clock(context.Context) (time.Time, error) { return time.Now(), nil }

func (clockedRows) RestoreMark(context.Context) (time.Time, error) { return time.Time{}, nil }

// countedRows are promotions with numbered changes, as the driver for SQLite has
// them.
type countedRows struct {
	clockedRows
	wholeTakes time.Duration // how long a read of the whole list takes

	mu      sync.Mutex // protects the fields below
	rows    map[reward.PromotionID]store.PromotionView
	changed map[reward.PromotionID]int64
	number  int64
	away    bool
	forgets bool // changes get no number, so only a read of the whole list finds them
	wholes  int  // reads of the whole list
	read    int  // promotions returned by other reads
}

func newCountedRows(n int, wholeTakes time.Duration) *countedRows {
	r := &countedRows{
		wholeTakes: wholeTakes, rows: make(map[reward.PromotionID]store.PromotionView), changed: make(map[reward.PromotionID]int64),
	}
	for id := range reward.PromotionID(n) {
		r.set(id+1, reward.Running)
	}
	return r
}

// set changes the status of a promotion. COMPLETED ones are not active.
func (r *countedRows) set(id reward.PromotionID, status reward.PromotionStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	expected := int64(7)
	r.rows[id] = store.PromotionView{Promotion: reward.Promotion{ID: id, Type: reward.Point, Status: status, ExpectedCount: &expected}}
	if !r.forgets {
		r.number++
		r.changed[id] = r.number
	}
}

func (r *countedRows) PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error) {
	r.mu.Lock()
	c := store.PromotionChanges{Whole: since == "", Mark: strconv.FormatInt(r.number, 10)}
	from, _ := strconv.ParseInt(since, 10, 64)
	for _, id := range slices.Sorted(maps.Keys(r.rows)) {
		v := r.rows[id]
		expected := *v.ExpectedCount
		v.ExpectedCount = &expected // every read of a database makes new values
		switch {
		case !c.Whole && r.changed[id] <= from:
		case v.Status != reward.Completed:
			c.Active = append(c.Active, v)
		case !c.Whole:
			c.Inactive = append(c.Inactive, id)
		}
	}
	if c.Whole {
		r.wholes++
	} else {
		r.read += len(c.Active) + len(c.Inactive)
	}
	away := r.away
	r.mu.Unlock()
	if away {
		return store.PromotionChanges{}, errors.New("the database is away")
	}
	if c.Whole {
		select {
		case <-time.After(r.wholeTakes):
		case <-ctx.Done():
			return store.PromotionChanges{}, ctx.Err()
		}
	}
	return c, nil
}

func (r *countedRows) counts() (wholes, read int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wholes, r.read
}

// inBackground runs functions until the returned stop, which waits for their ends.
func inBackground(t *testing.T, runs ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range runs {
		running.Go(func() { run(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// startCache runs a cache until the returned stop.
func startCache(t *testing.T, rows cacheRows) (c *StatusCache, stop func()) {
	t.Helper()
	c = newStatusCache(rows, nil, obs.Log{})
	return c, inBackground(t, c.run)
}

func (c *StatusCache) statuses() map[reward.PromotionID]reward.PromotionStatus {
	all := make(map[reward.PromotionID]reward.PromotionStatus)
	for id, v := range c.Views() {
		all[id] = v.Status
	}
	return all
}

// TestAViewIsFreshHoweverLongTheListIs: reading the whole list takes 3 s, and no
// view but the first is ever older than a second.
func TestAViewIsFreshHoweverLongTheListIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newCountedRows(100, 3*time.Second)
		c, stop := startCache(t, rows)
		defer stop()
		time.Sleep(4 * time.Second)
		begin := time.Now()
		for time.Since(begin) < 5*time.Minute {
			if _, age := c.Status(1); age > viewAgeMax {
				t.Fatalf("after %v the view is %v old", time.Since(begin), age)
			}
			time.Sleep(20 * time.Millisecond)
		}
		wholes, read := rows.counts()
		if wholes < 5*60/45 || wholes > 5*60/15+1 || read != 0 {
			t.Errorf("in 5 min, the whole list was read %d times, and %d unchanged promotions", wholes, read)
		}
	})
}

// TestCacheFollowsChanges checks the views, and what the cache tells its followers.
func TestCacheFollowsChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newCountedRows(3, time.Second)
		c, stop := startCache(t, rows)
		defer stop()
		early := c.follow(func(*store.PromotionView) bool { return true })
		defer early.end()
		time.Sleep(2 * time.Second)
		late := c.follow(func(*store.PromotionView) bool { return true })
		defer late.end()
		before := make(map[reward.PromotionID]bool) // those that have changed once
		expect := func(what string, f *follower, want ...reward.PromotionID) {
			t.Helper()
			changed, _ := f.take()
			// A change during a read of the whole list may be told again after it.
			maps.DeleteFunc(changed, func(id reward.PromotionID, _ bool) bool { return before[id] && !slices.Contains(want, id) })
			if diff := cmp.Diff(want, slices.Sorted(maps.Keys(changed))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		expect("known before the first read", early, 1, 2, 3)
		expect("known after it", late, 1, 2, 3)
		time.Sleep(2 * time.Minute) // whole lists without a difference are no change
		expect("nothing has changed", early)

		rows.set(2, reward.Paused)
		rows.set(3, reward.Completed)
		rows.set(4, reward.Running)
		time.Sleep(time.Second)
		expect("changed", early, 2, 3, 4)
		for _, id := range []reward.PromotionID{2, 3, 4} {
			before[id] = true
		}
		rows.set(2, reward.Running)
		time.Sleep(time.Second)
		expect("changed again", early, 2)
		expect("both together", late, 2, 3, 4)
		rows.set(1, reward.Paused)
		rows.set(1, reward.Running)
		time.Sleep(time.Second)
		expect("changed and changed back", early, 1)
		want := map[reward.PromotionID]reward.PromotionStatus{1: reward.Running, 2: reward.Running, 4: reward.Running}
		fixture.Equal(t, want, c.statuses())
	})
}

// TestAMissedChangeIsFoundLater: a change that no read of changes returns is found
// by the next read of the whole list. A change during that read is not lost.
func TestAMissedChangeIsFoundLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newCountedRows(3, 2*time.Second)
		c, stop := startCache(t, rows)
		defer stop()
		time.Sleep(3 * time.Second)
		f := c.follow(func(*store.PromotionView) bool { return true })
		defer f.end()
		f.take()
		rows.mu.Lock()
		rows.forgets = true
		rows.mu.Unlock()
		rows.set(1, reward.PromotionCancelled)
		rows.set(2, reward.Completed)
		rows.mu.Lock()
		rows.forgets = false
		rows.mu.Unlock()
		first, _ := rows.counts()
		for n, _ := rows.counts(); n == first; n, _ = rows.counts() {
			time.Sleep(10 * time.Millisecond)
		}
		rows.set(3, reward.Paused) // the list that is being read has the status before
		time.Sleep(time.Second)
		if got := c.statuses()[3]; got != reward.Paused {
			t.Errorf("during the read, promotion 3 is %s", got)
		}
		for range 200 {
			if got := c.statuses()[3]; got != reward.Paused {
				t.Fatalf("promotion 3 is %s again", got)
			}
			time.Sleep(20 * time.Millisecond)
		}
		want := map[reward.PromotionID]reward.PromotionStatus{1: reward.PromotionCancelled, 3: reward.Paused}
		fixture.Equal(t, want, c.statuses())
		if changed, _ := f.take(); !changed[1] || !changed[2] || !changed[3] {
			t.Errorf("the followers heard of %v", changed)
		}
	})
}

// TestAFailedReadIsFollowedByAWholeOne, and the view grows old meanwhile.
func TestAFailedReadIsFollowedByAWholeOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newCountedRows(3, 0)
		c, stop := startCache(t, rows)
		defer stop()
		time.Sleep(5 * time.Second)
		before, _ := rows.counts()
		rows.mu.Lock()
		rows.away = true
		rows.mu.Unlock()
		time.Sleep(3 * time.Second)
		if _, age := c.Status(1); age <= viewAgeMax {
			t.Errorf("without a database the view is %v old", age)
		}
		rows.mu.Lock()
		rows.away, rows.wholes = false, before
		rows.mu.Unlock()
		time.Sleep(2 * time.Second)
		if n, _ := rows.counts(); n != before+1 {
			t.Errorf("%d whole reads followed the failure", n-before)
		}
		if _, age := c.Status(1); age > viewAgeMax {
			t.Errorf("with the database the view is %v old", age)
		}
	})
}
