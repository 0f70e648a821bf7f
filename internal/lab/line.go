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

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// SlowLine makes the line of a template move once per hold: it locks the template's row,
// so that each batch waits for it.
type SlowLine struct {
	PostgresURL string
	TemplateID  reward.TemplateID
	hold        atomic.Int64
}

// Slow sets how long each batch waits.
func (l *SlowLine) Slow(hold time.Duration) { l.hold.Store(int64(hold)) }

// Run holds the lock again and again until ctx ends. PostgreSQL gives a lock to those
// who wait in their order, so one batch is settled in between.
func (l *SlowLine) Run(ctx context.Context) error {
	db, err := pgx.Connect(ctx, l.PostgresURL)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	for ctx.Err() == nil {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1 FROM coupon_templates WHERE id = $1 FOR UPDATE", int64(l.TemplateID))
			service.Sleep(ctx, time.Duration(l.hold.Load()))
			return err
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// LineWatchers is the watchers of a line.
type LineWatchers struct {
	Leave func() // ends all watching

	mu       sync.Mutex // protects promises
	promises []promise
}

// promise is a wait that somebody was told, and the real one.
type promise struct {
	at         time.Time
	told, real time.Duration
}

// JoinLine makes watchers, spread over a line of users u0, u1, … in the order of their
// numbers, watch their requests. They come during a period, so that they are not all
// told the estimate of one moment.
func JoinLine(ctx context.Context, n *coupon.Notifier, id reward.TemplateID, users, watchers int, period time.Duration) *LineWatchers {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	c := &LineWatchers{Leave: func() { cancel(); all.Wait() }}
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
func (c *LineWatchers) follow(ctx context.Context, w *coupon.Watcher) {
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

// Honesty is how the waits that people were told compare with the real ones.
type Honesty struct {
	Told   int     // how many were compared
	Middle float64 // told ÷ real, of the one in the middle
	Within float64 // share of those who were told a wait at most HonestyMargin off
}

// HonestyMargin is how far a told wait may be from the real one.
const HonestyMargin = 0.3

// Compare compares the waits told from one time on with the real ones, for those who had
// their results at another time. It leaves out those who were served within three
// batches: a batch is served all at once.
func (c *LineWatchers) Compare(from, to time.Time, batch time.Duration) (h Honesty) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ratios []float64
	within := 0
	for _, p := range c.promises {
		if p.at.Before(from) || p.at.Add(p.real).After(to) || p.real < 3*batch {
			continue
		}
		ratio := p.told.Seconds() / p.real.Seconds()
		if ratios = append(ratios, ratio); math.Abs(ratio-1) <= HonestyMargin {
			within++
		}
	}
	if h.Told = len(ratios); h.Told == 0 {
		return h
	}
	slices.Sort(ratios)
	h.Middle, h.Within = ratios[h.Told/2], float64(within)/float64(h.Told)
	return h
}

// Reload makes the gate of a template with a line invalid and returns how long its load
// takes: until one more user is in line behind all. It needs an instance that does not
// issue.
type Reload struct {
	Rows       store.Store
	Issuing    *coupon.Intake
	TemplateID reward.TemplateID
	Line       int // users in line
	Patience   time.Duration
}

// Run loads the gate. An error may also mean that it was not loaded within Patience.
func (r Reload) Run(ctx context.Context) (time.Duration, error) {
	// A gate of an earlier generation than its template must be loaded.
	raised, _, err := r.Rows.TemplateNewGeneration(ctx, store.TemplateNewGenerationParams{ID: r.TemplateID, From: -1, Path: reward.PathGate})
	if err != nil {
		return 0, err
	}
	service.Sleep(ctx, time.Second) // until the instance has read the template again
	for began := time.Now(); ; service.Sleep(ctx, 10*time.Millisecond) {
		s, err := r.Issuing.Request(ctx, coupon.IssueCommand{TemplateID: r.TemplateID, UserID: "last"})
		took := time.Since(began)
		if err == nil {
			var row reward.CouponTemplate
			if row, err = r.Rows.TemplateGet(ctx, r.TemplateID); err == nil && row.Generation > raised.Generation {
				if s.Rank != int64(r.Line) {
					return took, fmt.Errorf("the gate was loaded with %d of %d users in line", s.Rank, r.Line)
				}
				return took, nil
			}
		}
		if took > r.Patience || ctx.Err() != nil {
			return took, fmt.Errorf("the gate was not loaded within %v: %w", took.Round(time.Second), err)
		}
	}
}
