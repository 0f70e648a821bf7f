package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

// TestMonitor makes each thing that an instance depends on fail, and repairs it.
func TestMonitor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			down    string
			viewAge time.Duration
			skew    time.Duration
		)
		ping := func(part string) func(context.Context) error {
			return func(ctx context.Context) error {
				if part == down {
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
			viewAge:  func() time.Duration { return viewAge },
			clock: func(context.Context) (time.Time, error) {
				time.Sleep(200 * time.Millisecond)
				return time.Now().Add(skew - 100*time.Millisecond), nil
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
			down = part
			want(part)
		}
		down = ""
		want()
		viewAge = 2 * time.Second
		want()
		viewAge = 4 * time.Second
		want(obs.PartView)
		viewAge = 0
		for _, s := range []time.Duration{-3 * time.Second, 3 * time.Second} {
			skew = s
			want(obs.PartDatabaseClock)
		}
		skew = 1900 * time.Millisecond
		want()
	})
}
