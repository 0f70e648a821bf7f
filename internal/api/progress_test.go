package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// fakeViews are promotions that a hub reads.
type fakeViews struct {
	mu    sync.Mutex // protects what follows
	views map[reward.PromotionID]store.PromotionView
	away  error                  // answer of every read while set
	asked [][]reward.PromotionID // by each read
	// hold, when set, is called in each read after it has looked.
	hold func(ctx context.Context)
}

func newFakeViews(ids ...reward.PromotionID) *fakeViews {
	f := &fakeViews{views: make(map[reward.PromotionID]store.PromotionView)}
	for _, id := range ids {
		f.views[id] = store.PromotionView{Promotion: reward.Promotion{ID: id, Status: reward.Running}}
	}
	return f
}

func (f *fakeViews) read(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error) {
	f.mu.Lock()
	f.asked = append(f.asked, slices.Clone(ids))
	var views []store.PromotionView
	for _, id := range ids {
		if v, ok := f.views[id]; ok {
			views = append(views, v)
		}
	}
	away, hold := f.away, f.hold
	f.mu.Unlock()
	if hold != nil {
		hold(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return views, away
}

func (f *fakeViews) edit(id reward.PromotionID, edit func(v *store.PromotionView)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.views[id]
	edit(&v)
	f.views[id] = v
}

// pay makes a promotion move.
func (f *fakeViews) pay(id reward.PromotionID) {
	f.edit(id, func(v *store.PromotionView) { v.Counts.Payouts[reward.Succeeded]++ })
}

func (f *fakeViews) set(away error, hold func(context.Context)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away, f.hold = away, hold
}

// reads takes the reads since the last call.
func (f *fakeViews) reads() [][]reward.PromotionID {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

func (f *fakeViews) hub() *progressHub[reward.PromotionID, store.PromotionView] {
	h := newPromotionHub(&API{rates: newEstimator()})
	h.read = f.read
	return h
}

// standing returns the number of watchers, and whether the reader runs.
func (h *progressHub[ID, V]) standing() (watchers, promotions int, reading bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers, len(h.topics), h.reading
}

// wantIdle waits, in fake time, until the reader has ended, which it must when
// nobody watches.
func (h *progressHub[ID, V]) wantIdle(t *testing.T) {
	t.Helper()
	time.Sleep(2 * progressGatherTime)
	synctest.Wait()
	if watchers, promotions, reading := h.standing(); reading || promotions != 0 || watchers != 0 {
		t.Errorf("%d watch %d promotions, reading %v", watchers, promotions, reading)
	}
}

// paid checks a view.
func paid(t *testing.T, n progressUpdate) (status reward.PromotionStatus) {
	t.Helper()
	if n.err != nil {
		t.Fatal(n.err)
	}
	return reward.PromotionStatus(n.status)
}

func TestProgressHub(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "OneReadServesAll", func(t *testing.T) {
		f := newFakeViews(1, 2, 3)
		h := f.hub()
		var watchers []*progressWatcher[reward.PromotionID]
		for n := range 300 {
			watchers = append(watchers, h.watch(reward.PromotionID(n%3+1)))
		}
		for _, w := range watchers {
			paid(t, <-w.updates)
		}
		if reads := len(f.reads()); reads > 3 { // the hub may read before all have joined
			t.Errorf("%d reads for 300 concurrent watchers of three promotions", reads)
		}
		for range 100 { // each promotion moves all the time
			for id := range reward.PromotionID(3) {
				f.pay(id + 1)
			}
			time.Sleep(100 * time.Millisecond)
		}
		reads := f.reads()
		if n, most := len(reads), int(10*time.Second/progressInterval); n > most || n < most*9/10 {
			t.Errorf("%d reads in 10 s, want about %d", n, most)
		}
		for _, ids := range reads {
			if slices.Sort(ids); !slices.Equal(ids, []reward.PromotionID{1, 2, 3}) {
				t.Errorf("asked for %v", ids)
			}
		}
		for _, w := range watchers {
			if n := <-w.updates; n.err != nil || len(w.updates) != 0 {
				t.Errorf("%+v, and %d more", n, len(w.updates))
			}
			h.leave(w)
		}
		h.leave(watchers[0]) // twice is once
		h.wantIdle(t)
	})

	fixture.OnFakeTime(t, "WhatMakesNoProgressIsReadLessOften", func(t *testing.T) {
		f := newFakeViews(1, 2)
		h := f.hub()
		still, moving := h.watch(1), h.watch(2)
		time.Sleep(5 * time.Second)
		f.reads()
		for range 200 {
			f.pay(2)
			time.Sleep(100 * time.Millisecond)
		}
		counts := map[reward.PromotionID]int{}
		for _, ids := range f.reads() {
			for _, id := range ids {
				counts[id]++
			}
		}
		if counts[1] < 19 || counts[1] > 26 || counts[2] < 65 || counts[2] > 80 {
			t.Errorf("read so often in 20 s: %v", counts)
		}
		h.leave(still)
		h.leave(moving)
		h.wantIdle(t)
	})

	t.Run("TheMoreWatchTheLessOftenEachHears", func(t *testing.T) {
		t.Parallel()
		h := newFakeViews().hub()
		for _, tc := range []struct {
			watchers int
			want     time.Duration
		}{{1, progressInterval}, {6000, progressInterval}, {10_000, 400 * time.Millisecond}, {1_000_000, progressIntervalMax}} {
			h.watchers = tc.watchers
			if got := h.intervalLocked(); got != tc.want {
				t.Errorf("%d watchers: every %s, want %s", tc.watchers, got, tc.want)
			}
		}
	})

	fixture.OnFakeTime(t, "ManyAreReadInPieces", func(t *testing.T) {
		f := newFakeViews()
		h := f.hub()
		var watchers []*progressWatcher[reward.PromotionID]
		for n := range 2*store.BatchMax + 1 {
			id := reward.PromotionID(n + 1)
			f.edit(id, func(v *store.PromotionView) { v.ID, v.Status = id, reward.Running })
			watchers = append(watchers, h.watch(id))
		}
		for _, w := range watchers {
			paid(t, <-w.updates)
		}
		seen := map[reward.PromotionID]int{}
		for _, ids := range f.reads() {
			if len(ids) > store.BatchMax {
				t.Errorf("asked for %d at once", len(ids))
			}
			for _, id := range ids {
				seen[id]++
			}
		}
		if len(seen) != len(watchers) {
			t.Errorf("%d of %d were read", len(seen), len(watchers))
		}
		for _, w := range watchers {
			h.leave(w)
		}
		h.wantIdle(t)
	})

	fixture.OnFakeTime(t, "NobodyWatchesNothingIsRead", func(t *testing.T) {
		f := newFakeViews(1)
		h := f.hub()
		for range 3 {
			w := h.watch(1)
			paid(t, <-w.updates)
			h.leave(w)
			h.wantIdle(t)
			f.reads()
			time.Sleep(time.Minute)
			if n := len(f.reads()); n != 0 {
				t.Errorf("%d reads without a watcher", n)
			}
		}
	})

	fixture.OnFakeTime(t, "AReadForNobodyIsGivenUp", func(t *testing.T) {
		f := newFakeViews(1)
		h := f.hub()
		begun := make(chan struct{}, 10)
		f.set(nil, func(ctx context.Context) {
			begun <- struct{}{}
			<-ctx.Done()
		})
		w := h.watch(1)
		<-begun
		h.leave(w)
		again := h.watch(1) // while the reader has not noticed yet
		f.set(nil, nil)
		if n := <-again.updates; n.err != nil {
			t.Errorf("a later watcher gets the error: %v", n.err)
		}
		h.leave(again)
		h.wantIdle(t)
	})

	// A view that was read before a watcher came may be older than a change that
	// they made.
	fixture.OnFakeTime(t, "WhatIsHeardFirstWasReadAfterwards", func(t *testing.T) {
		f := newFakeViews(1)
		h := f.hub()
		looked, goOn := make(chan struct{}), make(chan struct{})
		f.edit(1, func(v *store.PromotionView) { v.Status = reward.Completed })
		f.set(nil, func(context.Context) {
			looked <- struct{}{}
			<-goOn
		})
		first := h.watch(1)
		<-looked
		f.set(nil, nil)
		f.edit(1, func(v *store.PromotionView) { v.Status = reward.Running })
		second := h.watch(1)
		close(goOn)
		if got := paid(t, <-first.updates); got != reward.Completed {
			t.Errorf("the first watcher gets %s", got)
		}
		if got := paid(t, <-second.updates); got != reward.Running {
			t.Errorf("a watcher after the change gets %s", got)
		}
		h.leave(first)
		h.leave(second)
		h.wantIdle(t)
	})

	fixture.OnFakeTime(t, "WhoIsSlowHearsTheLatest", func(t *testing.T) {
		f := newFakeViews(1)
		h := f.hub()
		slow, quick := h.watch(1), h.watch(1)
		paid(t, <-slow.updates)
		paid(t, <-quick.updates)
		for n := range 10 {
			f.edit(1, func(v *store.PromotionView) { v.Counts.Payouts[reward.Failed] = int64(n + 1) })
			paid(t, <-quick.updates) // neither waits for the other
		}
		f.edit(1, func(v *store.PromotionView) { v.Status = reward.Paused })
		paid(t, <-quick.updates)
		if got := paid(t, <-slow.updates); got != reward.Paused || len(slow.updates) > 0 {
			t.Errorf("the watcher gets %s", got)
		}
		h.leave(slow)
		h.leave(quick)
		h.wantIdle(t)
	})

	fixture.OnFakeTime(t, "FailuresAreSatOut", func(t *testing.T) {
		f := newFakeViews(1)
		h := f.hub()
		w := h.watch(1)
		paid(t, <-w.updates)
		refused := errors.New("refused")
		f.set(refused, nil)
		time.Sleep(progressFailTimeout - 2*time.Second)
		late := h.watch(1)
		n := <-late.updates
		if e, ok := errors.AsType[*reward.Error](n.err); !ok || e.Kind != reward.KindUnavailable || !errors.Is(e, refused) {
			t.Errorf("a watcher in the meantime gets %+v", n)
		}
		h.leave(late)
		f.pay(1)
		f.set(nil, nil)
		paid(t, <-w.updates)
		h.leave(w)
		h.wantIdle(t)
	})

	fixture.OnFakeTime(t, "LongFailuresEndIt", func(t *testing.T) {
		f := newFakeViews(1)
		h := f.hub()
		w := h.watch(1)
		paid(t, <-w.updates)
		f.reads()
		f.set(errors.New("refused"), nil)
		began := time.Now()
		n := <-w.updates
		if took := time.Since(began); n.err == nil || took < progressFailTimeout-progressIntervalMax || took > progressFailTimeout+2*time.Second {
			t.Errorf("%v after %s", n.err, took)
		}
		if n := len(f.reads()); n > 15 {
			t.Errorf("an unavailable store was read %d times", n)
		}
		h.wantIdle(t)
		h.leave(w)
		h.wantIdle(t)
	})

	fixture.OnFakeTime(t, "AHangingReadIsCut", func(t *testing.T) {
		f := newFakeViews(1)
		h := f.hub()
		f.set(nil, func(ctx context.Context) { <-ctx.Done() })
		began := time.Now()
		w := h.watch(1)
		if n := <-w.updates; !errors.Is(n.err, context.DeadlineExceeded) || time.Since(began) > progressTimeout+time.Second {
			t.Errorf("%v after %s", n.err, time.Since(began))
		}
		h.wantIdle(t)
	})

	fixture.OnFakeTime(t, "WhatIsGoneEnds", func(t *testing.T) {
		f := newFakeViews(1, 2)
		h := f.hub()
		gone, other := h.watch(1), h.watch(2)
		paid(t, <-gone.updates)
		paid(t, <-other.updates)
		f.mu.Lock()
		delete(f.views, 1)
		f.mu.Unlock()
		if n := <-gone.updates; !reward.HasCode(n.err, reward.CodeNotFound) {
			t.Errorf("%+v", n)
		}
		f.pay(2)
		paid(t, <-other.updates)
		if n := <-h.watch(7).updates; !reward.HasCode(n.err, reward.CodeNotFound) {
			t.Errorf("%+v", n)
		}
		h.leave(other)
		h.wantIdle(t)
	})
}

// TestProgressReport checks that an outage of the store is logged once, and so is its end.
func TestProgressReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeViews(1)
		var text fixture.Buffer
		log := fixture.Must(obs.NewLog(&text, "info", "text"))(t)
		h := f.hub()
		h.log = log.For(obs.API)
		w := h.watch(1)
		paid(t, <-w.updates)
		f.set(errors.New("refused"), nil)
		time.Sleep(5 * time.Second)
		f.set(nil, nil)
		time.Sleep(5 * time.Second)
		h.leave(w)
		h.wantIdle(t)
		if got := text.String(); strings.Count(got, `msg="promotion updates unavailable"`) != 1 || strings.Count(got, `msg="promotion updates available again"`) != 1 {
			t.Errorf("%s", got)
		}
	})
}
