package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
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
			refusal:  full.Refusal,
			clock: func(context.Context) (time.Time, error) {
				time.Sleep(200 * time.Millisecond)
				return time.Now().Add(time.Duration(skew.Load()) - 100*time.Millisecond), nil
			},
		}
		running := run(t, m.run)
		defer running.Stop()
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
			want(outages[part].part)
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
		if err := full.RefusedConnection(replied{errors.New("too many clients")}); !reward.HasCode(err, reward.CodeUnavailable) {
			t.Errorf("a refused connection: %v", err)
		}
		want(obs.PartDatabase)
		if reason := troubles.List()[0].Reason; !strings.Contains(reason, "(too many clients), so calls wait for each other: lower database.max-connections") {
			t.Errorf("reason %q", reason)
		}
		want()
	})
}

// replied is an error with a server's reply.
type replied struct{ error }

func (replied) SQLState() string { return "25006" }

// TestARefusalIsReportedWithinASecond lets a server answer that it refuses, and go silent.
func TestARefusalIsReportedWithinASecond(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		within time.Duration
		words  string
	}{
		"Refused": {replied{errors.New("READONLY it says so")}, time.Second, "READONLY it says so"},
		"Gone":    {fmt.Errorf("dial: %w", syscall.ECONNREFUSED), 3 * time.Second, "Redis accepts no connection"},
		"Silent":  {nil, 3 * time.Second, "Redis did not answer within 1 s"},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			var broken atomic.Bool
			troubles := obs.NewTroubles(nil, obs.Log{})
			m := &monitor{
				pulse: &pulse{parts: map[string]func(context.Context) error{partQueue: func(ctx context.Context) error {
					switch {
					case !broken.Load():
						return nil
					case c.err == nil:
						<-ctx.Done()
						return ctx.Err()
					}
					return c.err
				}}},
				troubles: troubles,
				viewAge:  func() time.Duration { return 0 },
				fullAt:   func() time.Time { return time.Time{} },
				refusal:  func() (time.Time, string) { return time.Time{}, "" },
				clock:    func(context.Context) (time.Time, error) { return time.Now(), nil },
			}
			running := run(t, m.run)
			defer running.Stop()
			time.Sleep(time.Minute)
			broken.Store(true)
			time.Sleep(c.within)
			if list := troubles.List(); len(list) != 1 || list[0].Part != partQueue || !strings.Contains(list[0].Reason, c.words) {
				t.Errorf("after %s: %+v, want %q", c.within, list, c.words)
			}
			broken.Store(false)
			time.Sleep(2 * time.Second)
			if list := troubles.List(); len(list) != 0 {
				t.Errorf("afterwards: %+v", list)
			}
		})
	}
}
