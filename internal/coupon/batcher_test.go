package coupon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TestBatcher checks that a single caller is served at once, that callers who arrive
// during a call share the next one in order, and that callers who have left are skipped.
func TestBatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls [][]string
		var mu sync.Mutex // protects calls
		b := newBatcher(3, time.Minute, func(_ context.Context, _ reward.TemplateID, users []string) ([]string, error) {
			mu.Lock()
			calls = append(calls, slices.Clone(users))
			n := len(calls)
			mu.Unlock()
			time.Sleep(time.Second)
			if n == 4 {
				return nil, errors.New("unavailable")
			}
			out := make([]string, len(users))
			for i, u := range users {
				out[i] = "to " + u
			}
			return out, nil
		})
		var wg sync.WaitGroup
		do := func(ctx context.Context, user string) {
			wg.Go(func() {
				got, err := b.do(ctx, 1, user)
				switch {
				case user == "gone":
					if !errors.Is(err, context.Canceled) {
						t.Errorf("gone: %q, %v", got, err)
					}
				case user >= "u6":
					if err == nil || err.Error() != "unavailable" {
						t.Errorf("%s: %q, %v", user, got, err)
					}
				case err != nil || got != "to "+user:
					t.Errorf("%s: %q, %v", user, got, err)
				}
			})
			synctest.Wait()
		}
		do(t.Context(), "u0")
		gone, leave := context.WithCancel(t.Context())
		do(gone, "gone")
		leave()
		for n := 1; n < 9; n++ {
			do(t.Context(), fmt.Sprint("u", n))
		}
		wg.Go(func() {
			if got, err := b.doUntil(t.Context(), time.Now().Add(time.Millisecond), 1, "late"); !errors.Is(err, errLate) {
				t.Errorf("late: %q, %v", got, err)
			}
		})
		synctest.Wait()
		wg.Wait()
		b.open.Wait()
		want := [][]string{{"u0"}, {"u1", "u2"}, {"u3", "u4", "u5"}, {"u6", "u7", "u8"}}
		if !slices.EqualFunc(calls, want, slices.Equal) {
			t.Errorf("%v", calls)
		}
	})
}

// TestBatcherAfterASlowCall checks that a call that takes too long fails its own callers
// only, and that a server that hangs fails those who wait after two calls.
func TestBatcherAfterASlowCall(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		slow   int // calls that take too long, from the first on
		failed int // of ten callers
		most   time.Duration
	}{
		"OneIsSlow":      {1, 2, 10 * time.Second},
		"TheServerHangs": {100, 10, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls := 0 // the only lane makes one call at a time
				b := newBatcher(2, time.Minute, func(ctx context.Context, _ reward.TemplateID, users []string) ([]string, error) {
					if calls++; calls <= tc.slow {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return users, nil
				})
				var wg sync.WaitGroup
				var failed atomic.Int64
				began := time.Now()
				for n := range 10 {
					wg.Go(func() {
						if _, err := b.do(t.Context(), 1, fmt.Sprint("u", n)); err != nil {
							failed.Add(1)
						}
					})
					if n == 1 {
						time.Sleep(time.Second) // the others come during the first call
					}
				}
				wg.Wait()
				if took := time.Since(began); int(failed.Load()) > tc.failed || tc.slow > 1 && int(failed.Load()) < tc.failed || took > time.Minute+tc.most {
					t.Errorf("%d of 10 failed, after %v and %d calls", failed.Load(), took, calls)
				}
				b.open.Wait()
			})
		})
	}
}
