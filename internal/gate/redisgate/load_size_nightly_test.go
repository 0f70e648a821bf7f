//go:build nightly

package redisgate

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// TestNightlyALongLineIsLoadedInShortCommands checks that with a million users in line and half
// a million holders no step of a load keeps the server busy for longer than 20 ms: first
// a load that keeps the line, then one that writes it again. It counts the CPU time of
// the server's main thread, because other programs on the machine also need time; since
// they share its caches, one step in a hundred may take longer. A Sentinel that gives the server up after 5 s never does so.
func TestNightlyALongLineIsLoadedInShortCommands(t *testing.T) { //nolint:paralleltest // it measures
	const bound = 20 * time.Millisecond
	server := fixture.Own(t, fleet.NewRedis)
	r := newRig(t, server.Address())
	down := watchedBySentinel(t, server, 5*time.Second)
	took := map[string][]time.Duration{}
	busy := func() time.Duration {
		sum := 0.0
		for _, line := range strings.Split(r.do("INFO", "cpu").(string), "\r\n") {
			if name, value, _ := strings.Cut(line, ":"); strings.HasSuffix(name, "_main_thread") {
				sum += fixture.Must(strconv.ParseFloat(value, 64))(r)
			}
		}
		return time.Duration(sum * float64(time.Second))
	}
	l := &longLine{rig: r, inLine: 1_000_000, holders: 500_000}
	l.step = func(name string, call func() error) {
		before := busy()
		fixture.OK(r, call())
		took[name] = append(took[name], busy()-before)
	}
	l.loaded = func(kind gate.LoadKind) {
		for name, all := range took {
			slices.Sort(all)
			usual := all[(len(all)*99+99)/100-1]
			t.Logf("kind %d, %s: %d, 99 %% of them within %v, all within %v", kind, name, len(all), usual, all[len(all)-1])
			if usual > bound {
				t.Errorf("%s keeps the server busy for %v", name, usual)
			}
		}
		clear(took)
	}
	l.exercise()
	if seen := down(); seen != 0 {
		t.Errorf("Sentinel found the server down %d times", seen)
	}
	fixture.OK(r, server.Hang()) // what Sentinel does see
	fixture.Until(t, "Sentinel finds a hung server down", func() bool { return down() > 0 })
	fixture.OK(r, server.Resume())
}

// watchedBySentinel lets a Sentinel watch a server, and returns a function that returns
// how often it has found the server down.
func watchedBySentinel(t *testing.T, server *fleet.Server, downAfter time.Duration) func() int64 {
	t.Helper()
	sentinel := fixture.Own(t, func(ctx context.Context, in fleet.Installer) (*fleet.Server, error) {
		return fleet.NewSentinel(ctx, in, "gate", server, downAfter)
	})
	c := fixture.Must(rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{strings.TrimPrefix(sentinel.Address(), "redis://")}, ForceSingleClient: true, DisableCache: true, AlwaysRESP2: true,
	}))(t)
	var found atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := c.Receive(ctx, c.B().Subscribe().Channel("+sdown").Build(), func(rueidis.PubSubMessage) { found.Add(1) })
		if ctx.Err() == nil {
			t.Errorf("events of Sentinel: %v", err)
		}
	}()
	t.Cleanup(func() { stop(); <-ended; c.Close() })
	return found.Load
}
