package coupon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TestBatcher checks that a single caller is served at once, that callers who arrive
// during a call share the next one in order, and that cancelled callers are skipped.
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
		wg.Wait()
		b.open.Wait()
		want := [][]string{{"u0"}, {"u1", "u2"}, {"u3", "u4", "u5"}, {"u6", "u7", "u8"}}
		if !slices.EqualFunc(calls, want, slices.Equal) {
			t.Errorf("%v", calls)
		}
	})
}
