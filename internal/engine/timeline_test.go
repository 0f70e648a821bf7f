package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// fakeTimelines remembers the points, and can hang.
type fakeTimelines struct {
	ahead time.Duration // of the database's clock

	mu     sync.Mutex // protects what follows
	writes int
	points []store.PromotionPoint
	others []store.TemplatePoint
	hangs  bool
}

func (f *fakeTimelines) Clock(context.Context) (time.Time, error) {
	return time.Now().Add(f.ahead), nil
}

func (f *fakeTimelines) TimelineWrite(ctx context.Context, _ string, p []store.PromotionPoint, t []store.TemplatePoint) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	if f.hangs {
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		return ctx.Err()
	}
	f.points, f.others = append(f.points, p...), append(f.others, t...)
	return nil
}

func (f *fakeTimelines) take() (writes int, p []store.PromotionPoint, t []store.TemplatePoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	writes, p, t = f.writes, f.points, f.others
	f.writes, f.points, f.others = 0, nil, nil
	return writes, p, t
}

func newRecorder(rows *fakeTimelines, pools *atomic.Pointer[[]pool.Status]) (*recorder, *obs.Metrics) {
	m := obs.NewMetrics()
	views := make(map[reward.PromotionID]*store.PromotionView)
	for id := range reward.PromotionID(10_000) {
		v := &store.PromotionView{}
		v.ID, v.Status = id+1, reward.Running
		views[id+1] = v
	}
	views[1].Counts.Payouts[reward.Ready], views[1].Counts.Payouts[reward.Queued] = 5, 2
	views[2].Counts.Payouts[reward.Retrying] = 4
	return &recorder{
		rows: rows, metrics: m, views: func() map[reward.PromotionID]*store.PromotionView { return views },
		pools:  func() []pool.Status { return *pools.Load() },
		line:   func(context.Context, reward.TemplateID) (coupon.View, error) { return coupon.View{Waiting: 33}, nil },
		report: func(error, ...any) {},
	}, m
}

// TestRecorder: each step of the database's clock is one write with what happened,
// and a fleet of idle promotions writes nothing.
func TestRecorder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := &fakeTimelines{ahead: 3 * time.Second}
		var pools atomic.Pointer[[]pool.Status]
		pools.Store(new([]pool.Status))
		r, m := newRecorder(rows, &pools)
		running := run(t, r.run)
		begin := time.Now().Add(rows.ahead).Truncate(store.TimelineStep).UTC()

		time.Sleep(25 * time.Second)
		synctest.Wait()
		if n, _, _ := rows.take(); n != 0 {
			t.Errorf("10,000 idle promotions were written %d times", n)
		}
		m.Finished(1, reward.Succeeded, 9)
		m.TemplateAsked(7, true, "")
		pools.Store(&[]pool.Status{{Stream: queue.Stream{PromotionID: 2}, Pending: 3}, {Stream: queue.Stream{PromotionID: 3}}})
		time.Sleep(store.TimelineStep)
		synctest.Wait()
		n, points, others := rows.take()
		at := begin.Add(20 * time.Second)
		if n != 1 || len(points) != 3 || len(others) != 2 {
			t.Fatalf("%d writes of %+v and %+v", n, points, others)
		}
		for i, want := range []struct{ id, succeeded, waiting int64 }{{0, 1, 11}, {1, 1, 7}, {2, 0, 4}} {
			if p := points[i]; int64(p.PromotionID) != want.id || p.Succeeded != want.succeeded || p.Amount != reward.Amount(9*want.succeeded) || p.Waiting != want.waiting || p.Samples != 1 || !p.At.Equal(at) {
				t.Errorf("point %+v at %v, want %+v at %v", p, p.At, want, at)
			}
		}
		if p := others[1]; p.TemplateID != 7 || p.Issued != 1 || p.Waiting != 33 || p.Samples != 1 || others[0].Asked != 1 {
			t.Errorf("points of templates %+v", others)
		}

		// What happens until the stop is written, too.
		pools.Store(new([]pool.Status))
		m.Finished(1, reward.Failed, 1)
		running.Stop()
		if n, points, _ := rows.take(); n != 1 || len(points) != 2 || points[1].Failed != 1 {
			t.Errorf("at the stop %d writes of %+v", n, points)
		}
	})
}

// TestRecorderDrops: a database that is slow costs the points, not memory or time.
func TestRecorderDrops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := &fakeTimelines{hangs: true}
		var pools atomic.Pointer[[]pool.Status]
		pools.Store(new([]pool.Status))
		r, m := newRecorder(rows, &pools)
		var failed []error
		r.report = func(err error, _ ...any) { failed = append(failed, err) }
		running := run(t, r.run)
		m.Finished(1, reward.Succeeded, 9)
		time.Sleep(store.TimelineStep + timelineTimeout + time.Millisecond)
		synctest.Wait()
		if len(failed) == 0 || !errors.Is(failed[len(failed)-1], context.DeadlineExceeded) {
			t.Errorf("reported %v", failed)
		}
		rows.mu.Lock()
		rows.hangs = false
		rows.mu.Unlock()
		m.Finished(1, reward.Succeeded, 1)
		time.Sleep(store.TimelineStep)
		synctest.Wait()
		if _, points, _ := rows.take(); len(points) != 2 || points[1].Succeeded != 1 {
			t.Errorf("after the dropped ones: %+v", points)
		}
		running.Stop()
	})
}

func TestFoldAll(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	left := map[time.Duration]int{10 * time.Second: 2*foldMax + 1, time.Minute: 5}
	var calls []store.TimelineFoldParams
	err := foldAll(t.Context(), func(_ context.Context, p store.TimelineFoldParams) (int, error) {
		calls = append(calls, p)
		n := min(left[p.From], p.Limit)
		left[p.From] -= n
		return n, nil
	}, func(context.Context) (time.Time, error) { return now, nil })
	if err != nil || len(calls) != 5 {
		t.Fatalf("%d calls, %v", len(calls), err)
	}
	for from, n := range left {
		if n != 0 {
			t.Errorf("%d points of %v are left", n, from)
		}
	}
	for i, want := range []struct{ to, age time.Duration }{
		{time.Minute, time.Hour}, {time.Minute, time.Hour}, {time.Minute, time.Hour}, {10 * time.Minute, 24 * time.Hour}, {time.Hour, 30 * 24 * time.Hour},
	} {
		if calls[i].To != want.to || now.Sub(calls[i].Before) != want.age {
			t.Errorf("call %d: %+v, want %+v", i, calls[i], want)
		}
	}
	if err := foldAll(t.Context(), nil, func(context.Context) (time.Time, error) { return now, errors.New("away") }); err == nil {
		t.Error("without a clock it folds")
	}
}
