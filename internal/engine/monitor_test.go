package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/store"
)

// TestMonitor makes each thing that an instance depends on fail, and repairs it.
func TestMonitor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			down          atomic.Value // string
			viewAge, skew atomic.Int64 // nanoseconds
			full          store.Space
		)
		down.Store("")
		ping := func(part string) func(context.Context) error {
			return func(ctx context.Context) error {
				if part == down.Load() {
					<-ctx.Done()
					return errors.New("no answer")
				}
				return nil
			}
		}
		troubles := obs.NewTroubles(nil, obs.Log{})
		m := &monitor{
			pulse: &pulse{parts: map[string]func(context.Context) error{
				partStore: ping(partStore), partQueue: ping(partQueue), partKafka: ping(partKafka),
			}},
			troubles: troubles,
			viewAge:  func() time.Duration { return time.Duration(viewAge.Load()) },
			fullAt:   full.FullAt,
			clock: func(context.Context) (time.Time, error) {
				time.Sleep(200 * time.Millisecond)
				return time.Now().Add(time.Duration(skew.Load()) - 100*time.Millisecond), nil
			},
		}
		m.Start(t.Context(), m.run)
		defer m.Stop()
		open := func() []string {
			time.Sleep(skewInterval + 3*time.Second)
			var parts []string
			for _, x := range troubles.List() {
				parts = append(parts, x.Part)
				if strings.Contains(x.Reason, "%") {
					t.Errorf("reason %q", x.Reason)
				}
			}
			return parts
		}
		want := func(parts ...string) {
			t.Helper()
			if got := open(); !slices.Equal(got, parts) {
				t.Errorf("degraded: %v, want %v", got, parts)
			}
		}
		want()
		for _, part := range []string{partStore, partQueue, partKafka} {
			down.Store(part)
			want(part)
		}
		down.Store("")
		want()
		viewAge.Store(int64(2 * time.Second))
		want()
		viewAge.Store(int64(4 * time.Second))
		want(obs.PartView)
		viewAge.Store(0)
		for _, s := range []time.Duration{-3 * time.Second, 3 * time.Second} {
			skew.Store(int64(s))
			want(obs.PartDatabaseClock)
		}
		skew.Store(int64(1900 * time.Millisecond))
		want()
		if err := full.Missed(errors.New("no space")); !errors.Is(err, store.ErrFull) {
			t.Errorf("%v is no ErrFull", err)
		}
		want(obs.PartDisk)
		want()
	})
}
