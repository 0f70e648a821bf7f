package payout

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// shift is a crew whose steps a test scripts.
type shift struct {
	*crew
	ctx  context.Context
	stop context.CancelFunc

	mu       sync.Mutex // protects the fields below
	script   func(id reward.PromotionID, n int) (time.Duration, result, error)
	steps    map[reward.PromotionID]int
	order    []reward.PromotionID
	busy     map[reward.PromotionID]int
	busyMost int
	overlaps int
	reports  []error
}

func newShift(t *testing.T, slots int, script func(id reward.PromotionID, n int) (time.Duration, result, error)) *shift {
	t.Helper()
	s := &shift{script: script, steps: make(map[reward.PromotionID]int), busy: make(map[reward.PromotionID]int)}
	s.ctx, s.stop = context.WithCancel(t.Context())
	s.crew = newCrew(slots, 5*time.Second, time.Second, func(err error, _ ...any) { s.reports = append(s.reports, err) }, s.work)
	t.Cleanup(func() {
		s.stop()
		s.working.Wait()
	})
	return s
}

func (s *shift) work(ctx context.Context, v store.PromotionView) (result, error) {
	s.mu.Lock()
	n := s.steps[v.ID]
	s.steps[v.ID]++
	s.order = append(s.order, v.ID)
	if s.busy[v.ID]++; s.busy[v.ID] > 1 {
		s.overlaps++
	}
	running := 0
	for _, b := range s.busy {
		running += b
	}
	s.busyMost = max(s.busyMost, running)
	takes, r, err := s.script(v.ID, n)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.busy[v.ID]--
		s.mu.Unlock()
	}()
	select {
	case <-time.After(takes):
		return r, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *shift) count(id reward.PromotionID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps[id]
}

// during offers the promotions every half second for d.
func (s *shift) during(d time.Duration, ids ...reward.PromotionID) {
	for range int(d / (500 * time.Millisecond)) {
		var views []*store.PromotionView
		for _, id := range ids {
			v := &store.PromotionView{}
			v.ID = id
			views = append(views, v)
		}
		s.offer(s.ctx, views)
		time.Sleep(500 * time.Millisecond)
	}
	synctest.Wait() // so that the test may read what the steps wrote
}

func TestCrew(t *testing.T) {
	t.Parallel()
	fixture.OnFakeTime(t, "WorksInParallelAndOnOnePromotionOnce", func(t *testing.T) {
		s := newShift(t, 3, func(reward.PromotionID, int) (time.Duration, result, error) { return 2 * time.Second, stepDone, nil })
		s.during(time.Minute, 1, 2, 3, 4, 5)
		if s.busyMost != 3 || s.overlaps != 0 || s.count(1) < 10 {
			t.Errorf("at most %d at once, %d overlaps, %d steps of one", s.busyMost, s.overlaps, s.count(1))
		}
	})

	fixture.OnFakeTime(t, "PausesAfterAStepThatIsDone", func(t *testing.T) {
		s := newShift(t, 3, func(reward.PromotionID, int) (time.Duration, result, error) { return 0, stepDone, nil })
		s.during(time.Minute, 1)
		if n := s.count(1); n < 35 || n > 62 {
			t.Errorf("%d steps in a minute, want one every second or so", n)
		}
	})

	fixture.OnFakeTime(t, "WhoHasMoreToDoGoesToTheEndOfTheLine", func(t *testing.T) {
		s := newShift(t, 1, func(_ reward.PromotionID, n int) (time.Duration, result, error) {
			if n < 3 {
				return 100 * time.Millisecond, stepAgain, nil
			}
			return 100 * time.Millisecond, stepDone, nil
		})
		s.during(time.Second, 1, 2, 3)
		if want := []reward.PromotionID{1, 2, 3, 1, 2, 3, 1, 2, 3}; len(s.order) < 9 || !slices.Equal(s.order[:9], want) {
			t.Errorf("order %v, want %v first", s.order, want)
		}
	})

	fixture.OnFakeTime(t, "WhoFailsKeepsOneSlotOnly", func(t *testing.T) {
		s := newShift(t, 2, func(id reward.PromotionID, _ int) (time.Duration, result, error) {
			if id >= 100 {
				return time.Hour, stepDone, nil // its deadline ends it
			}
			return 0, stepDone, nil
		})
		ids := []reward.PromotionID{1}
		for id := range reward.PromotionID(20) {
			ids = append(ids, 100+id)
		}
		s.during(2*time.Minute, ids...) // each of the twenty fails once
		before := s.count(1)
		s.during(time.Minute, ids...)
		if n := s.count(1) - before; n < 35 {
			t.Errorf("%d steps in a minute beside twenty that hang", n)
		}
		failed := 0
		for id := range reward.PromotionID(20) {
			if s.count(100+id) > 1 {
				failed++
			}
		}
		if failed < 10 {
			t.Errorf("only %d of twenty were tried again", failed)
		}
	})

	fixture.OnFakeTime(t, "ReportsFailuresUntilNoneFails", func(t *testing.T) {
		broken := errors.New("broken")
		s := newShift(t, 2, func(id reward.PromotionID, n int) (time.Duration, result, error) {
			if id == 1 && n < 3 {
				return 0, 0, broken
			}
			return 0, stepDone, nil
		})
		s.during(time.Minute, 1, 2)
		if want := []error{broken, broken, broken, nil}; !slices.Equal(s.reports, want) {
			t.Errorf("reports %v, want %v", s.reports, want)
		}
	})

	fixture.OnFakeTime(t, "IsStuckOnlyIfNothingSucceeds", func(t *testing.T) {
		broken, works := errors.New("broken"), false
		s := newShift(t, 2, func(id reward.PromotionID, _ int) (time.Duration, result, error) {
			if id == 2 && works {
				return 0, stepDone, nil
			}
			return 0, 0, broken
		})
		s.during(10*time.Second, 1, 2)
		if s.stuck(15*time.Second) || !s.stuck(9*time.Second) {
			t.Error("failing for 10 s is stuck after 9 s, and not yet after 15 s")
		}
		s.during(10*time.Second, 1, 2)
		if !s.stuck(15 * time.Second) {
			t.Error("not stuck although nothing succeeded for 20 s")
		}
		s.mu.Lock()
		works = true
		s.mu.Unlock()
		s.during(time.Minute, 1, 2)
		if s.stuck(20 * time.Second) {
			t.Error("stuck although steps succeed")
		}
		s.mu.Lock()
		works = false
		s.mu.Unlock()
		s.during(time.Minute, 1, 2)
		s.during(time.Second) // nothing is offered
		if s.stuck(0) {
			t.Error("stuck without work")
		}
	})

	fixture.OnFakeTime(t, "WhoWaitsIsTriedLessAndLessOftenUntilItChanges", func(t *testing.T) {
		s := newShift(t, 2, func(reward.PromotionID, int) (time.Duration, result, error) { return 0, stepWaits, nil })
		s.during(5*time.Minute, 1)
		if n := s.count(1); n < 25 || n > 50 {
			t.Errorf("%d steps in five minutes", n)
		}
		before := s.count(1)
		changed := &store.PromotionView{}
		changed.ID, changed.Counts.Attempts = 1, 7
		s.offer(s.ctx, []*store.PromotionView{changed})
		synctest.Wait()
		if s.count(1) != before+1 {
			t.Error("a change does not end the pause")
		}
	})

	fixture.OnFakeTime(t, "ForgetsWhatIsNoLongerOffered", func(t *testing.T) {
		s := newShift(t, 1, func(id reward.PromotionID, _ int) (time.Duration, result, error) {
			if id == 1 {
				return 3 * time.Second, stepAgain, nil
			}
			return 0, 0, errors.New("broken")
		})
		s.during(10*time.Second, 1, 2, 3)
		s.during(10 * time.Second)
		before := s.count(1)
		time.Sleep(time.Minute)
		if s.count(1) != before || len(s.jobs) != 0 || s.failures != 0 {
			t.Errorf("%d further steps, %d jobs, %d failures", s.count(1)-before, len(s.jobs), s.failures)
		}
		s.during(time.Second, 3)
		if s.count(3) == 0 {
			t.Error("a promotion that is offered again gets no step")
		}
	})

	// A promotion is handed to another instance and back while it waits in the line,
	// or while its step runs.
	fixture.OnFakeTime(t, "WhoIsOfferedAgainWaitsOnce", func(t *testing.T) {
		s := newShift(t, 3, func(reward.PromotionID, int) (time.Duration, result, error) { return 2 * time.Second, stepDone, nil })
		for _, ids := range [][]reward.PromotionID{{1, 2}, {1, 2, 3, 4, 5, 6}} {
			for range 10 {
				s.during(500*time.Millisecond, ids...)
				s.during(500 * time.Millisecond)
				if w := s.healthy.waiting; len(slices.Compact(slices.Sorted(slices.Values(w)))) != len(w) {
					t.Errorf("the line is %v", w)
				}
			}
		}
		s.during(time.Minute, 1, 2, 3, 4, 5, 6)
		if s.overlaps != 0 || s.busyMost != 3 || s.count(6) < 5 {
			t.Errorf("%d overlaps, at most %d at once, %d steps of one", s.overlaps, s.busyMost, s.count(6))
		}
		s.during(time.Minute)
		if len(s.jobs) != 0 || len(s.healthy.waiting) != 0 {
			t.Errorf("%d jobs, and %d in the line", len(s.jobs), len(s.healthy.waiting))
		}
	})

	fixture.OnFakeTime(t, "BeginsNothingAfterTheEnd", func(t *testing.T) {
		s := newShift(t, 1, func(reward.PromotionID, int) (time.Duration, result, error) { return time.Second, stepAgain, nil })
		s.during(2*time.Second, 1, 2)
		s.stop()
		s.working.Wait()
		before := len(s.order)
		s.during(2*time.Second, 1, 2)
		if len(s.order) != before || len(s.reports) != 0 {
			t.Errorf("%d steps after the end, reports %v", len(s.order)-before, s.reports)
		}
	})
}
