package gatekeeper

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// slowRows is a store that needs a second for each template. Its version is the number of the
// read, and read fails before that number.
type slowRows struct {
	templateRows
	reads, failing int
}

func (r *slowRows) TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error) {
	r.reads++ // reads of a template do not overlap
	version := r.reads
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return reward.CouponTemplate{}, ctx.Err()
	}
	if version <= r.failing {
		return reward.CouponTemplate{}, errors.New("unavailable")
	}
	return reward.CouponTemplate{ID: id, Version: int64(version)}, nil
}

// TestConcurrentReadsShareOne checks that callers who come during a read of a template share the
// next one, whether it succeeds or fails, and that a caller who gives up takes nobody along.
func TestConcurrentReadsShareOne(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		failing int
		cancel  bool // the first caller gives up
		reads   int
	}{
		"BothSucceed":        {0, false, 2},
		"BothFail":           {2, false, 2},
		"TheFirstIsCanceled": {0, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rows := &slowRows{failing: tc.failing}
				cache := NewTemplateCache(rows, time.Hour, obs.Log{})
				first, cancel := context.WithCancel(t.Context())
				defer cancel()
				var wg sync.WaitGroup
				read := func(ctx context.Context, want int64) {
					wg.Go(func() {
						got, err := cache.Read(ctx, 7)
						switch {
						case ctx.Err() != nil:
							if !errors.Is(err, context.Canceled) {
								t.Errorf("canceled: %v, %v", got, err)
							}
						case tc.failing > 0:
							if err == nil {
								t.Errorf("read %d succeeded", want)
							}
						case err != nil || got.Version != want:
							t.Errorf("%+v, %v, want read %d", got, err, want)
						}
					})
					synctest.Wait()
				}
				read(first, 1)
				for range 10 {
					read(t.Context(), 2)
				}
				if tc.cancel {
					cancel()
				}
				wg.Wait()
				if rows.reads != tc.reads {
					t.Errorf("%d reads, want %d", rows.reads, tc.reads)
				}
			})
		})
	}
}
