//go:build nightly

package redisgate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
)

// TestALongLineIsLoadedInShortCommands checks that with a million users in line and half
// a million holders no step of a load keeps the server busy for longer than 20 ms: first
// a load that keeps the line, then one that writes it again. It counts the CPU time of
// the server's main thread, because other programs on the machine also need time; since
// they share its caches, one step in a hundred may take longer. A Sentinel that gives the server up after 5 s never does so.
func TestALongLineIsLoadedInShortCommands(t *testing.T) {
	const inLine, holders, bound = 1_000_000, 500_000, 20 * time.Millisecond
	server := ownRedis(t)
	r := newRig(t, server.Address())
	down := watchedBySentinel(t, server, 5*time.Second)
	took := map[string][]time.Duration{}
	busy := func() time.Duration {
		sum := 0.0
		for _, line := range strings.Split(r.do("INFO", "cpu").(string), "\r\n") {
			if name, value, _ := strings.Cut(line, ":"); strings.HasSuffix(name, "_main_thread") {
				seconds, err := strconv.ParseFloat(value, 64)
				r.ok(err)
				sum += seconds
			}
		}
		return time.Duration(sum * float64(time.Second))
	}
	step := func(name string, call func() error) {
		t.Helper()
		before := busy()
		r.ok(call())
		took[name] = append(took[name], busy()-before)
	}
	load := func(s gate.State) {
		t.Helper()
		clear(took)
		p := r.begin("loader", s)
		step("LoadClose", func() error { return r.g.LoadClose(t.Context(), p.Load) })
		for first := 0; first < holders; first += gate.LoadMax {
			list := make([]gate.Holding, gate.LoadMax)
			for i := range list {
				list[i] = gate.Holding{UserID: fmt.Sprint("holder-", first+i), Held: 1, CouponID: reward.CouponID(1e17 + first + i)}
			}
			step("LoadHoldings", func() error { return r.g.LoadHoldings(t.Context(), p.Load, list) })
		}
		p.Holdings = holders
		for left := int64(1); p.Kind == gate.LoadKeep && left > 0; {
			step("LoadTrim", func() (err error) {
				left, err = r.g.LoadTrim(t.Context(), p.Load, s.Settled)
				return err
			})
		}
		for from := int64(0); p.Kind == gate.LoadRemake; {
			var page []gate.Request
			step("LoadPage", func() (err error) {
				page, err = r.g.LoadPage(t.Context(), p.Load, from)
				return err
			})
			if len(page) == 0 {
				break
			}
			users := make([]string, len(page))
			for i, w := range page {
				users[i] = w.UserID
			}
			step("LoadCopy", func() error {
				return r.g.LoadCopy(t.Context(), p.Load, s.Generation, s.Settled+p.Copied+1, users)
			})
			from += int64(len(page))
			p.Copied += int64(len(users))
		}
		step("LoadSwap", func() error {
			if result := r.swap(p); !result.Done {
				t.Fatal("the swap was refused")
			}
			return nil
		})
		for name, all := range took {
			slices.Sort(all)
			usual := all[(len(all)*99+99)/100-1]
			t.Logf("kind %d, %s: %d, 99 %% of them within %v, all within %v", p.Kind, name, len(all), usual, all[len(all)-1])
			if usual > bound {
				t.Errorf("%s keeps the server busy for %v", name, usual)
			}
		}
	}

	s := r.state(1)
	s.Total = inLine + holders
	load(s)
	for first := 0; first < inLine; first += gate.AdmitMax {
		users := make([]string, min(gate.AdmitMax, inLine-first))
		for i := range users {
			users[i] = "user-" + strconv.Itoa(first+i)
		}
		r.admit(users...)
	}
	for range 500 { // half a million of them are pending at a consumer
		_, err := r.g.Read(t.Context(), r.id, "issuer", gate.ReadMax)
		r.ok(err)
	}
	s.Generation, s.Version, s.Settled = 2, 2, 300_000
	load(s)
	if h := r.header(); h.Waiting != inLine-300_000 || h.LastTicket != inLine {
		t.Fatalf("header %+v", h)
	}
	s.Generation, s.Version, s.Base = 4, 3, 3
	load(s)
	if h := r.header(); h.Waiting != inLine-300_000 || h.Backlog != h.Waiting || h.LastTicket != inLine {
		t.Fatalf("header %+v", h)
	}

	if seen := down(); seen != 0 {
		t.Errorf("Sentinel found the server down %d times", seen)
	}
	r.ok(server.Hang()) // what Sentinel does see
	r.until("Sentinel finds a hung server down", func() bool { return down() > 0 })
	r.ok(server.Resume())
}

// watchedBySentinel lets a Sentinel watch a server, and returns a function that returns
// how often it has found the server down.
func watchedBySentinel(t *testing.T, server *fleet.Server, downAfter time.Duration) func() int64 {
	t.Helper()
	in, err := fleet.Look()
	if err != nil {
		t.Fatal(err)
	}
	sentinel, err := fleet.NewSentinel(t.Context(), in, "gate", server, downAfter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sentinel.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := sentinel.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{strings.TrimPrefix(sentinel.Address(), "redis://")}, ForceSingleClient: true, DisableCache: true, AlwaysRESP2: true,
	})
	if err != nil {
		t.Fatal(err)
	}
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
