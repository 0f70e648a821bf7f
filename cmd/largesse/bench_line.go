package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/service"
)

const (
	// lineUsers is the length of the line that is watched: 200 batches.
	lineUsers = 200_000
	// lineHold is how long each batch of the line waits, and lineHoldSlow how long after
	// the database has slowed down.
	lineHold, lineHoldSlow = 100 * time.Millisecond, 500 * time.Millisecond
	linePeriod             = 5 * time.Second
	lineSlowPeriod         = 2 * linePeriod
	loadWait               = 2 * time.Minute // for the load of a gate
)

// measureWatchers measures what the watchers of a line cost, and compares the waits that
// they are told with the real ones.
func (b *couponBench) measureWatchers(ctx context.Context, f *figures) error {
	e, stop, err := b.engine(ctx, "issue", config.RoleAPI)
	if err != nil {
		return err
	}
	defer stop()
	id, err := b.template(ctx, e, lineUsers)
	if err != nil {
		return err
	}
	if _, err := b.fill(ctx, e, id, lineUsers); err != nil {
		return err
	}
	line := &lab.SlowLine{PostgresURL: b.schema, TemplateID: id}
	line.Slow(lineHold)
	moving, end := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() { end(line.Run(moving)) })
	defer func() { end(nil); running.Wait() }()
	_, stopIssuer, err := b.engine(ctx, "issue", config.RoleIssuer)
	if err != nil {
		return err
	}
	defer stopIssuer()
	cores := func(period time.Duration) float64 {
		before, began := lab.CPU(), time.Now()
		service.Sleep(moving, period)
		return (lab.CPU() - before).Seconds() / time.Since(began).Seconds()
	}
	cores(2 * time.Second) // until the line moves
	alone := cores(linePeriod)
	crowd := lab.JoinLine(moving, e.Coupons().Notifier, id, lineUsers, b.watchers, linePeriod)
	defer crowd.Leave()
	watched := cores(linePeriod)
	slowed := time.Now()
	line.Slow(lineHoldSlow)
	cores(lineSlowPeriod)
	if moving.Err() != nil {
		return fmt.Errorf("move the line: %w", context.Cause(moving))
	}
	crowd.Leave()
	f.add("CPU while a line moves ten times per second", alone, fmt.Sprintf("%.3f cores", alone))
	f.add(fmt.Sprintf("the same with %s watchers", number(int64(b.watchers))), watched,
		fmt.Sprintf("%.3f cores, %+.3f; ratio %.2f", watched, watched-alone, watched/alone))
	honest(f, "told ÷ real waits", crowd.Compare(time.Time{}, slowed, lineHold))
	honest(f, "told ÷ real waits after a fivefold slowdown", crowd.Compare(slowed.Add(3*lineHoldSlow), time.Now(), lineHoldSlow))
	return nil
}

// honest adds how told waits compare with real ones.
func honest(f *figures, name string, h lab.Honesty) {
	if h.Told == 0 {
		f.note(name, "nobody was told a wait and served in time")
		return
	}
	f.add(name, h.Middle, fmt.Sprintf("%.2f in the middle; %.1f %% of %s within ±%.0f %%", h.Middle, 100*h.Within, number(int64(h.Told)), 100*lab.HonestyMargin))
}

// measureLoad loads the gate of a long line, and measures how long Redis answers nobody
// else meanwhile.
func (b *couponBench) measureLoad(ctx context.Context, f *figures) error {
	e, stop, err := b.engine(ctx, "issue", config.RoleAPI)
	if err != nil {
		return err
	}
	defer stop()
	id, err := b.template(ctx, e, b.line+1)
	if err != nil {
		return err
	}
	pause, stopPings, err := b.ping(ctx)
	if err != nil {
		return err
	}
	defer stopPings()
	filled, err := b.fill(ctx, e, id, b.line)
	if err != nil {
		return err
	}
	pauseBefore := pause()
	took, err := lab.Reload{Rows: e.Store(), Issuing: e.Coupons().Intake, TemplateID: id, Line: b.line, Patience: loadWait}.Run(ctx)
	pauseDuring := pause()
	if err != nil {
		f.correct("loaded gate", "NO: "+err.Error(), false)
		return ctx.Err()
	}
	f.correct("loaded gate", "everybody is still in line", true)
	name := fmt.Sprintf("load of a gate with %s in line", number(int64(b.line)))
	f.add(name, took.Seconds(), fmt.Sprintf("%.2f s; ratio to the requests that filled it %.2f", took.Seconds(), took.Seconds()/filled.Seconds()))
	f.add("the longest PING of Redis during the load", pauseDuring.Seconds(),
		fmt.Sprintf("%.1f ms; while the line was filled %.1f ms, ratio %.1f", pauseDuring.Seconds()*1000, pauseBefore.Seconds()*1000,
			pauseDuring.Seconds()/pauseBefore.Seconds()))
	return nil
}

// ping sends PING to Redis all the time until stop. The function pause returns the longest
// one since its last call.
func (b *couponBench) ping(ctx context.Context) (pause func() time.Duration, stop func(), err error) {
	c, _, err := b.connectRedis()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var longest, since atomic.Int64 // since: when the PING in flight was sent, in microseconds; 0 = none
	var running sync.WaitGroup
	running.Go(func() {
		for service.Sleep(ctx, time.Millisecond) {
			began := time.Now()
			since.Store(began.UnixMicro())
			_ = c.Do(ctx, c.B().Ping().Build()).Error() // BUSY comes as late as a pong
			longest.Store(max(longest.Load(), int64(time.Since(began))))
			since.Store(0)
		}
	})
	pause = func() time.Duration {
		took := time.Duration(longest.Swap(0))
		if open := since.Load(); open != 0 {
			took = max(took, time.Since(time.UnixMicro(open)))
		}
		return took
	}
	return pause, func() { cancel(); running.Wait(); c.Close() }, nil
}
