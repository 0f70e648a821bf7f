// Package service has what every long-lived component shares: starting and stopping,
// hints, cached views, reloaded files, IDs, and the name of this instance.
package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// ErrStop is the cancel cause of a stopped component, not of a cancelled caller.
var ErrStop = errors.New("service: stop")

// Base is embedded by long-lived components. Stop may be called more than once, by
// several goroutines, and without a Start. A component can be started again after it
// has stopped.
type Base struct {
	mu     sync.Mutex // protects cancel, done
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// Start runs fn in the background, until ctx ends or Stop. It does nothing if fn still runs.
func (b *Base) Start(ctx context.Context, fn func(ctx context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		select {
		case <-b.done:
		default:
			return // fn still runs
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	b.cancel, b.done = cancel, done
	go func() {
		defer close(done)
		defer cancel(ErrStop)
		fn(ctx)
	}()
}

// StartEvery runs fn in the background every interval, and once more at the end, then for
// at most last.
func (b *Base) StartEvery(ctx context.Context, interval, last time.Duration, fn func(ctx context.Context)) {
	b.Start(ctx, func(ctx context.Context) {
		for Sleep(ctx, interval) {
			fn(ctx)
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), last)
		defer cancel()
		fn(ending)
	})
}

// Stop cancels the run function and waits for it.
func (b *Base) Stop() {
	b.mu.Lock()
	cancel, done := b.cancel, b.done
	b.mu.Unlock()
	if done == nil {
		return
	}
	cancel(ErrStop)
	<-done
}

// Sleep waits for d, or until ctx ends. It reports whether d has passed.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Jitter returns a random duration from d·(1−part) to d·(1+part).
func Jitter(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*rand.Float64()-1))) //nolint:gosec // not security relevant
}

// Backoff returns the pause before attempt n, which counts from 0: base doubled
// n times, at most limit, jittered by a quarter.
func Backoff(n int, base, limit time.Duration) time.Duration {
	d := limit
	if n >= 0 && n < 32 && base<<n > 0 && base<<n < limit {
		d = base << n
	}
	return Jitter(d, 0.25)
}

// InstanceID returns the name of this process among all instances: {hostname}-{pid}.
func InstanceID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// idEpoch keeps IDs positive until the year 2093, and small.
var idEpoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// IDs generates time-ordered 63-bit IDs, larger than those of upstream systems: 41 bits of
// milliseconds, 10 bits per process, 12 bits of sequence. Two processes may have the same
// 10 bits, so a unique key in the database must protect each ID. It is safe for
// concurrent use.
type IDs struct {
	node int64
	mu   sync.Mutex // protects last
	last int64      // milliseconds and sequence of the latest id
}

// NewIDs returns a generator.
func NewIDs() *IDs {
	return &IDs{node: rand.Int64N(1 << 10)} //nolint:gosec // not security relevant
}

// Next returns an ID above all earlier ones of this generator.
func (g *IDs) Next() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	tick := time.Since(idEpoch).Milliseconds() << 12
	if tick <= g.last {
		tick = g.last + 1
	}
	g.last = tick
	return tick>>12<<22 | g.node<<12 | tick&(1<<12-1)
}
