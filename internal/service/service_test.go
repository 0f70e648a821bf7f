package service

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBase(t *testing.T) {
	t.Parallel()

	t.Run("StopWithoutStartReturns", func(t *testing.T) {
		t.Parallel()
		var b Base
		b.Stop()
		b.Stop()
	})

	t.Run("StopWaitsForTheRunFunctionAndTellsItWhy", func(t *testing.T) {
		t.Parallel()
		var b Base
		var cause error
		ended := false
		b.Start(t.Context(), func(ctx context.Context) {
			<-ctx.Done()
			cause, ended = context.Cause(ctx), true
		})
		b.Stop()
		if !ended {
			t.Fatal("Stop returned before the run function did")
		}
		if !errors.Is(cause, ErrStop) {
			t.Fatalf("the run function saw the cause %v, want ErrStop", cause)
		}
		b.Stop()
	})

	t.Run("ACancelledCallerIsNoStop", func(t *testing.T) {
		t.Parallel()
		var b Base
		ctx, cancel := context.WithCancel(t.Context())
		cause := make(chan error, 1)
		b.Start(ctx, func(ctx context.Context) {
			<-ctx.Done()
			cause <- context.Cause(ctx)
		})
		cancel()
		if err := <-cause; !errors.Is(err, context.Canceled) || errors.Is(err, ErrStop) {
			t.Fatalf("the run function saw the cause %v, want only context.Canceled", err)
		}
		b.Stop()
	})

	t.Run("StartingWhatRunsDoesNothing", func(t *testing.T) {
		t.Parallel()
		var b Base
		var runs atomic.Int32
		for range 3 {
			b.Start(t.Context(), func(ctx context.Context) {
				runs.Add(1)
				<-ctx.Done()
			})
		}
		b.Stop()
		// The one run may have been stopped before its first statement, but
		// it has begun by the time Stop returns, as Stop waits for it.
		if n := runs.Load(); n != 1 {
			t.Fatalf("three starts made %d runs, want 1", n)
		}
	})

	t.Run("StartsAgainAfterAStopAndAfterEndingByItself", func(t *testing.T) {
		t.Parallel()
		var b Base
		ran := make(chan int, 3)
		for i := range 3 {
			ended := make(chan struct{})
			b.Start(t.Context(), func(context.Context) { ran <- i; close(ended) })
			<-ended
			b.Stop()
		}
		if len(ran) != 3 {
			t.Fatalf("three starts after stops made %d runs", len(ran))
		}
	})
}

func TestBaseStartStopStress(t *testing.T) {
	t.Parallel()
	const goroutines, rounds = 10, 300
	var b Base
	var at, most, runs atomic.Int32
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				b.Start(t.Context(), func(ctx context.Context) {
					n := at.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					runs.Add(1)
					<-ctx.Done()
					at.Add(-1)
				})
				b.Stop()
			}
		})
	}
	wg.Wait()
	b.Stop()
	if at.Load() != 0 {
		t.Errorf("%d runs are left after the last Stop", at.Load())
	}
	if most.Load() != 1 {
		t.Errorf("up to %d runs at once, want 1", most.Load())
	}
	if n := runs.Load(); n < rounds {
		t.Errorf("%d runs, want at least one a round: %d", n, rounds)
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()

	onFakeTime(t, "WaitsTheWholeTime", func(t *testing.T) {
		began := time.Now()
		if !Sleep(t.Context(), time.Hour) {
			t.Error("Sleep says that it was cut short")
		}
		if d := time.Since(began); d != time.Hour {
			t.Errorf("Sleep took %s, want 1h", d)
		}
	})

	onFakeTime(t, "EndsWithItsContext", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if Sleep(ctx, time.Hour) {
			t.Error("Sleep says that the hour has passed")
		}
		if d := time.Since(began); d != time.Minute {
			t.Errorf("Sleep took %s, want 1m", d)
		}
	})
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	const base, limit = 100 * time.Millisecond, 10 * time.Second
	tests := []struct {
		n    int
		want time.Duration // before jitter
	}{
		{0, base},
		{1, 2 * base},
		{3, 8 * base},
		{6, 64 * base},
		{7, limit},
		{31, limit},
		{32, limit},
		{1 << 40, limit},
		{-1, limit},
	}
	for _, test := range tests {
		t.Run(strconv.Itoa(test.n), func(t *testing.T) {
			t.Parallel()
			low, high := limit*2, time.Duration(0)
			for range 2000 {
				d := Backoff(test.n, base, limit)
				low, high = min(low, d), max(high, d)
			}
			if least, most := test.want*3/4, test.want*5/4; low < least || high > most {
				t.Errorf("between %s and %s, want within %s and %s", low, high, least, most)
			}
			if high-low < test.want/4 {
				t.Errorf("between %s and %s: hardly any jitter", low, high)
			}
		})
	}

	t.Run("AnOverflowingBaseStaysAtTheLimit", func(t *testing.T) {
		t.Parallel()
		if d := Backoff(31, 200*time.Hour, limit); d < limit*3/4 || d > limit*5/4 {
			t.Errorf("got %s, want about %s", d, limit)
		}
	})
}

func TestJitter(t *testing.T) {
	t.Parallel()
	if d := Jitter(time.Second, 0); d != time.Second {
		t.Errorf("no jitter made %s of 1s", d)
	}
	for range 2000 {
		if d := Jitter(time.Second, 0.1); d < 900*time.Millisecond || d > 1100*time.Millisecond {
			t.Fatalf("a tenth of jitter made %s of 1s", d)
		}
	}
}

func TestInstanceID(t *testing.T) {
	t.Parallel()
	host, pid, ok := strings.Cut(InstanceID(), "-"+strconv.Itoa(os.Getpid()))
	if !ok || host == "" || pid != "" {
		t.Errorf("%q is not {hostname}-%d", InstanceID(), os.Getpid())
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()

	t.Run("AreUniquePositiveAndRiseInEveryGoroutine", func(t *testing.T) {
		t.Parallel()
		const goroutines, each = 10, 20_000 // far above 4,096 a millisecond
		ids := NewIDs()
		made := make([][]int64, goroutines)
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for range each {
					made[g] = append(made[g], ids.Next())
				}
			})
		}
		wg.Wait()
		for g, mine := range made {
			for i, id := range mine {
				if id <= 0 {
					t.Fatalf("goroutine %d got %d, which is not positive", g, id)
				}
				if i > 0 && id <= mine[i-1] {
					t.Fatalf("goroutine %d got %d after %d", g, id, mine[i-1])
				}
			}
		}
		all := slices.Concat(made...)
		slices.Sort(all)
		if n := len(slices.Compact(all)); n != goroutines*each {
			t.Fatalf("%d different ids of %d", n, goroutines*each)
		}
	})

	t.Run("StayAboveUpstreamNumbersAndBelow63Bits", func(t *testing.T) {
		t.Parallel()
		if id := NewIDs().Next(); id < 1<<50 {
			t.Errorf("%d could meet an upstream id", id)
		}
	})

	t.Run("StayInOrderWhenTheSequenceOverflows", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { // the clock does not move in here
			ids := NewIDs()
			first := ids.Next()
			last := first
			for range 10_000 {
				id := ids.Next()
				if id <= last {
					t.Fatalf("%d after %d", id, last)
				}
				last = id
			}
			time.Sleep(time.Second) // of the bubble's clock
			if id := ids.Next(); id <= last {
				t.Fatalf("%d after %d, a second later", id, last)
			}
		})
	})
}

// onFakeTime runs a subtest on fake time, at the same time as others. Package fixture,
// which has such a function, imports this one.
func onFakeTime(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}
