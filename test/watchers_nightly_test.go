//go:build nightly

package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/redisgate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
	"github.com/largesse/largesse/internal/store/rows"
)

// ticker settles the requests of a line at a constant speed, in place of an issuer.
type ticker struct {
	t    *testing.T
	id   reward.TemplateID
	rows *rows.Tables
	gate gate.Gate
	ids  *service.IDs

	epoch   int64
	settled []time.Time // when each ticket was settled
}

// newTicker takes the only template of a rig.
func newTicker(t *testing.T, r *couponRig, id, redis, prefix string) *ticker {
	t.Helper()
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	l := &ticker{t: t, id: reward.TemplateID(n), ids: service.NewIDs()}
	if l.rows, err = postgres.Open(t.Context(), postgres.Config{URL: r.database, MaxConnections: 2}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.rows.Close)
	if l.gate, err = redisgate.Open(t.Context(), redisgate.Config{URL: redis, KeyPrefix: prefix}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.gate.Close)
	epochs := fixture.Must(l.rows.TemplateAssign(t.Context(), []reward.TemplateID{l.id}, "ticker"))(t)
	l.epoch = epochs[l.id]
	return l
}

// step settles the next requests.
func (l *ticker) step(ctx context.Context, n int) error {
	began := time.Now()
	hand, err := l.gate.Read(ctx, l.id, "ticker", n)
	if err != nil || len(hand.Requests) == 0 {
		return errors.Join(err, errors.New("nobody is in line"))
	}
	p := store.CouponSettleParams{TemplateID: l.id, Kind: rules.SettleInOrder, Epoch: l.epoch, Generation: hand.Generation, Now: began}
	var tickets []int64
	for _, q := range hand.Requests {
		p.Requests = append(p.Requests, rules.CouponRequest{
			UserID: q.UserID, Generation: q.Generation, Ticket: q.Ticket, CouponID: reward.CouponID(l.ids.Next()), Code: reward.NewCouponCode(),
		})
		tickets = append(tickets, q.Ticket)
		l.settled = append(l.settled, began)
	}
	result, err := l.rows.CouponSettle(ctx, p)
	if err != nil || result.Refused != rules.NotRefused {
		return errors.Join(err, fmt.Errorf("refused: %v", result.Refused))
	}
	row := &result.Template
	_, err = l.gate.Apply(ctx, gate.ApplyParams{
		TemplateID: l.id, From: result.From, ServiceTime: 10 * time.Millisecond,
		State: gate.State{
			Generation: row.Generation, Version: row.Version, Settled: row.Settled, Base: row.Base, Total: row.TotalQuantity, Live: row.Live,
			IssuedTotal: row.IssuedTotal, Granted: row.Granted, Used: row.Used, Grants: row.Grants, PerUserLimit: row.PerUserLimit, Mode: row.Mode,
		},
	})
	_, errAck := l.gate.Ack(ctx, l.id, hand.Generation, tickets)
	return errors.Join(err, errAck)
}

// run settles n requests ten times per second until ctx ends.
func (l *ticker) run(ctx context.Context, n int) {
	beat := time.NewTicker(100 * time.Millisecond)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if err := l.step(context.WithoutCancel(ctx), n); err != nil {
				l.t.Error(err)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// cpuTime is the processor time that a process has used.
func cpuTime(t *testing.T, p *process) time.Duration {
	t.Helper()
	text := fixture.Must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)))(t)
	// The fields after the name, which may hold anything but a parenthesis at
	// its end: user and system time are the 14th and 15th of all.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, errUser := strconv.ParseInt(fields[11], 10, 64)
	system, errSystem := strconv.ParseInt(fields[12], 10, 64)
	if errUser != nil || errSystem != nil {
		t.Fatal(errUser, errSystem)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // a tick is 1/100 s on Linux
}

// TestNightlyTenThousandWatchers: one instance tells 10,000 people how their line moves, ten
// times per second. It costs less than 0.15 of a core more than the same line without
// them and less than 500 MiB, the people in front hear of every second, and results come at once.
func TestNightlyTenThousandWatchers(t *testing.T) {
	const (
		watchers  = 10_000
		ahead     = 2_000 // of the first watcher, at first
		each      = 10    // people who leave the line at a time
		period    = 15 * time.Second
		most      = 0.15 // of a core
		memoryMax = 500 << 20
	)
	redis := fixture.Address(t, fleet.VariableRedis)
	r := newCouponRig(t, 0, redis)
	p := r.startAs("api")
	id := r.create(client.NewTemplate{TotalQuantity: 1_000_000})
	ask := func(who string) time.Duration {
		began := time.Now()
		if _, code := r.ask(t.Context(), id, who); code != "" {
			t.Errorf("%s: %s", who, code)
		}
		return time.Since(began)
	}
	// Everybody is in line by name: a for those ahead, w for the watchers.
	crowd := func(name string, n int) {
		var all sync.WaitGroup
		slots := make(chan struct{}, 64)
		for i := range n {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				ask(fmt.Sprint(name, i))
			})
		}
		all.Wait()
	}
	crowd("a", ahead)
	crowd("w", watchers)
	line := newTicker(t, r, id, redis, r.prefix())

	// measure returns the cores that the instance used while the line moved, and how
	// long half of the asks took at most.
	measure := func(name string) (float64, time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), period)
		defer cancel()
		var moving sync.WaitGroup
		moving.Go(func() { line.run(ctx, each) })
		var took []time.Duration
		began, before := time.Now(), cpuTime(t, p)
		for n := 0; ctx.Err() == nil; n++ {
			took = append(took, ask(fmt.Sprint(name, n)))
			service.Sleep(ctx, 20*time.Millisecond)
		}
		cores := (cpuTime(t, p) - before).Seconds() / time.Since(began).Seconds()
		moving.Wait()
		slices.Sort(took)
		return cores, took[len(took)/2]
	}
	alone, askAlone := measure("before")

	address := strings.TrimPrefix(p.address, "http://")
	readers := make([]*reader, watchers)
	heard := make([]time.Time, watchers) // the result
	var listening, all sync.WaitGroup
	var events atomic.Int64
	slots := make(chan struct{}, 64)
	for n := range readers {
		readers[n] = &reader{path: "/v1/issue-requests/" + url.PathEscape(fmt.Sprintf("%s:w%d", id, n)) + "/events", all: &events}
		listening.Add(1)
		slots <- struct{}{}
		all.Go(func() {
			once := sync.OnceFunc(func() { <-slots; listening.Done() })
			defer once()
			one := readers[n]
			if one.err = one.connect(address); one.err == nil {
				one.read("result", once)
				heard[n] = time.Now()
			}
		})
	}
	listening.Wait()
	service.Sleep(t.Context(), 2*time.Second) // the first update of each is no part of the period
	told := events.Load()
	watched, askWatched := measure("while")
	told = events.Load() - told
	t.Logf("%.3f cores without watchers, %.3f with %d, %.0f events/s; asks p50 %s and %s", alone, watched, watchers,
		float64(told)/period.Seconds(), askAlone, askWatched)
	if watched-alone > most {
		t.Errorf("%d watchers cost %.3f cores, above %.2f", watchers, watched-alone, most)
	}
	if peak := memory(t, p.cmd.Process.Pid, "VmHWM"); peak > memoryMax {
		t.Errorf("the instance had %d MiB at the peak", peak>>20)
	}
	if askWatched > 3*askAlone {
		t.Errorf("half of the asks took %s with watchers, and %s without", askWatched, askAlone)
	}

	for _, one := range readers {
		if one.conn != nil {
			_ = one.conn.Close()
		}
	}
	all.Wait()
	var late time.Duration
	results, most1 := 0, 0
	db := r.db()
	for n, one := range readers {
		if one.ended {
			results++
			ticket := r.number(db, "SELECT ticket FROM coupons WHERE user_id = $1", fmt.Sprint("w", n))
			late = max(late, heard[n].Sub(line.settled[ticket-1]))
		}
		most1 = max(most1, one.events)
	}
	t.Logf("%d results, the latest %s after its coupon; at most %d events to one watcher", results, late, most1)
	if results < each*5 || late > 5*time.Second {
		t.Errorf("%d results, the latest after %s", results, late)
	}
	if limit := int((period + 20*time.Second) / time.Second); most1 > limit {
		t.Errorf("somebody was told %d times, more than once a second", most1)
	}
}
