package lab

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// lineUsers is the length of the line that is watched: 200 batches.
	lineUsers = 200_000
	// lineHold is how long each batch of the line waits, and lineHoldSlow how long after
	// the database has slowed down.
	lineHold, lineHoldSlow = 100 * time.Millisecond, 500 * time.Millisecond
	linePeriod             = 5 * time.Second
	lineSlowPeriod         = 2 * linePeriod
	loadTimeout            = 2 * time.Minute // of a gate
)

// watchers measures what the watchers of a line cost, and compares the waits that they are
// told with the real ones.
func (c CouponBench) watchers(ctx context.Context, s *stage, f *Figures) error {
	e, stop, err := s.coupons(ctx, "issue", config.RoleAPI)
	if err != nil {
		return err
	}
	defer stop()
	id, _, err := c.fill(ctx, e, lineUsers, lineUsers)
	if err != nil {
		return err
	}
	var hold atomic.Int64
	hold.Store(int64(lineHold))
	moving, end := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() { end(slowLine(moving, s.database, id, &hold)) })
	defer func() { end(nil); running.Wait() }()
	_, stopIssuer, err := s.coupons(ctx, "issue", config.RoleIssuer)
	if err != nil {
		return err
	}
	defer stopIssuer()
	cores := func(period time.Duration) float64 {
		before, began := processorTime(), time.Now()
		service.Sleep(moving, period)
		return (processorTime() - before).Seconds() / time.Since(began).Seconds()
	}
	cores(2 * time.Second) // until the line moves
	alone := cores(linePeriod)
	crowd := joinLine(moving, e.Coupons().Notifier, id, lineUsers, c.Watchers, linePeriod)
	defer crowd.leave()
	watched := cores(linePeriod)
	slowed := time.Now()
	hold.Store(int64(lineHoldSlow))
	cores(lineSlowPeriod)
	if moving.Err() != nil {
		return fmt.Errorf("move the line: %w", context.Cause(moving))
	}
	crowd.leave()
	f.add("CPU while a line moves ten times per second", alone, fmt.Sprintf("%.3f cores", alone))
	f.add(fmt.Sprintf("the same with %s watchers", number(int64(c.Watchers))), watched,
		fmt.Sprintf("%.3f cores, %+.3f; ratio %.2f", watched, watched-alone, watched/alone))
	crowd.compare(f, "told ÷ real waits", time.Time{}, slowed, lineHold)
	crowd.compare(f, "told ÷ real waits after a fivefold slowdown", slowed.Add(3*lineHoldSlow), time.Now(), lineHoldSlow)
	return nil
}

// load loads the gate of a long line, and measures how long Redis answers nobody else
// meanwhile.
func (c CouponBench) load(ctx context.Context, s *stage, f *Figures) error {
	e, stop, err := s.coupons(ctx, "issue", config.RoleAPI)
	if err != nil {
		return err
	}
	defer stop()
	longest, stopPings, err := ping(ctx, s.Redis)
	if err != nil {
		return err
	}
	defer stopPings()
	id, filled, err := c.fill(ctx, e, c.Line+1, c.Line)
	if err != nil {
		return err
	}
	before := longest()
	took, err := reload(ctx, e, id, c.Line)
	during := longest()
	if err != nil {
		f.correct("loaded gate", "NO: "+err.Error(), false)
		return ctx.Err()
	}
	f.correct("loaded gate", "everybody is still in line", true)
	name := fmt.Sprintf("load of a gate with %s in line", number(int64(c.Line)))
	f.add(name, took.Seconds(), fmt.Sprintf("%.2f s; ratio to the requests that filled it %.2f", took.Seconds(), took.Seconds()/filled.took.Seconds()))
	f.add("the longest PING of Redis during the load", during.Seconds(),
		fmt.Sprintf("%.1f ms; while the line was filled %.1f ms, ratio %.1f", during.Seconds()*1000, before.Seconds()*1000, during.Seconds()/before.Seconds()))
	return nil
}

// ping sends PING to Redis all the time until stop. The function longest returns the
// longest one since its last call.
func ping(ctx context.Context, url string) (longest func() time.Duration, stop func(), err error) {
	c, _, err := connectRedis(url)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var most, since atomic.Int64 // since: when the PING in flight was sent, in microseconds; 0 = none
	var running sync.WaitGroup
	running.Go(func() {
		for service.Sleep(ctx, time.Millisecond) {
			began := time.Now()
			since.Store(began.UnixMicro())
			_ = c.Do(ctx, c.B().Ping().Build()).Error() // BUSY comes as late as a pong
			most.Store(max(most.Load(), int64(time.Since(began))))
			since.Store(0)
		}
	})
	longest = func() time.Duration {
		took := time.Duration(most.Swap(0))
		if open := since.Load(); open != 0 {
			took = max(took, time.Since(time.UnixMicro(open)))
		}
		return took
	}
	return longest, func() { cancel(); running.Wait(); c.Close() }, nil
}

// slowLine makes the line of a template move once per hold, in nanoseconds: it locks the
// template's row again and again until ctx ends. PostgreSQL gives a lock to those who wait
// in their order, so one batch is settled in between.
func slowLine(ctx context.Context, database string, template reward.TemplateID, hold *atomic.Int64) error {
	db, err := pgx.Connect(ctx, database)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	for ctx.Err() == nil {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1 FROM coupon_templates WHERE id = $1 FOR UPDATE", int64(template))
			service.Sleep(ctx, time.Duration(hold.Load()))
			return err
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// lineWatchers is the watchers of a line.
type lineWatchers struct {
	leave func() // ends all watching

	mu       sync.Mutex // protects promises
	promises []promise
}

// promise is a wait that somebody was told, and the real one.
type promise struct {
	at         time.Time
	told, real time.Duration
}

// joinLine makes watchers, spread over a line of users u0, u1, … in the order of their
// numbers, watch their requests. They come during a period, so that they are not all
// told the estimate of one moment.
func joinLine(ctx context.Context, n *coupon.Notifier, id reward.TemplateID, users, watchers int, period time.Duration) *lineWatchers {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	c := &lineWatchers{leave: func() { cancel(); all.Wait() }}
	const parts = 50
	for i := range watchers {
		if i%(watchers/parts+1) == 0 {
			service.Sleep(ctx, period/parts)
		}
		place := i%parts*(users/parts) + i/parts*(users/watchers)
		w, stop := n.Watch(id, fmt.Sprint("u", place), coupon.Status{})
		all.Go(func() {
			defer stop()
			c.follow(ctx, w)
		})
	}
	return c
}

// follow notes what a watcher is told until the result.
func (c *lineWatchers) follow(ctx context.Context, w *coupon.Watcher) {
	var told []promise
	for {
		select {
		case s := <-w.Updates():
			now := time.Now()
			if s.Kind == coupon.StatusWaiting {
				told = append(told, promise{at: now, told: s.Wait})
				continue
			}
			for i := range told {
				told[i].real = now.Sub(told[i].at)
			}
			c.mu.Lock()
			c.promises = append(c.promises, told...)
			c.mu.Unlock()
			return
		case <-ctx.Done():
			return
		}
	}
}

// honestyMargin is how far a told wait may be from the real one.
const honestyMargin = 0.3

// compare adds how the waits told from one time on compare with the real ones, for those
// who had their results before another time. It leaves out those who were served within
// three batches: a batch is served all at once.
func (c *lineWatchers) compare(f *Figures, name string, from, to time.Time, batch time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ratios []float64 // told ÷ real
	within := 0
	for _, p := range c.promises {
		if p.at.Before(from) || p.at.Add(p.real).After(to) || p.real < 3*batch {
			continue
		}
		ratio := p.told.Seconds() / p.real.Seconds()
		if ratios = append(ratios, ratio); math.Abs(ratio-1) <= honestyMargin {
			within++
		}
	}
	n := len(ratios)
	if n == 0 {
		f.note(name, "nobody was told a wait and served in time")
		return
	}
	slices.Sort(ratios)
	f.add(name, ratios[n/2], fmt.Sprintf("%.2f in the middle; %.1f %% of %s within ±%.0f %%",
		ratios[n/2], 100*float64(within)/float64(n), number(int64(n)), 100*honestyMargin))
}

// reload makes the gate of a template with a line invalid and returns how long its load
// takes: until one more user is in line behind all. It needs an instance that does not
// issue. An error may also mean that the gate was not loaded within loadTimeout.
func reload(ctx context.Context, e *engine.Engine, id reward.TemplateID, line int) (time.Duration, error) {
	// A gate of an earlier generation than its template must be loaded.
	raised, _, err := e.Store().TemplateNewGeneration(ctx, store.TemplateNewGenerationParams{ID: id, From: -1, Path: reward.PathGate})
	if err != nil {
		return 0, err
	}
	service.Sleep(ctx, time.Second) // until the instance has read the template again
	for began := time.Now(); ; service.Sleep(ctx, 10*time.Millisecond) {
		s, err := e.Coupons().Intake.Request(ctx, coupon.IssueCommand{TemplateID: id, UserID: "last"})
		took := time.Since(began)
		if err == nil {
			var row reward.CouponTemplate
			if row, err = e.Store().TemplateGet(ctx, id); err == nil && row.Generation > raised.Generation {
				if s.Rank != int64(line) {
					return took, fmt.Errorf("the gate was loaded with %d of %d users in line", s.Rank, line)
				}
				return took, nil
			}
		}
		if took > loadTimeout || ctx.Err() != nil {
			return took, fmt.Errorf("the gate was not loaded within %v: %w", took.Round(time.Second), err)
		}
	}
}
