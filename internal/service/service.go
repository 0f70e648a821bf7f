// Package service holds the bones that every long-lived part shares: one way
// to start and stop, ids, and the name of this instance.
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

// ErrStop is the cancel cause that a stopped part sees, so that a stop is told
// from a cancelled caller.
var ErrStop = errors.New("service: stop")

// Base is embedded by whatever lives long. Start backgrounds the run function
// and returns; Stop asks it to end and waits, may be called twice, and by
// several goroutines, and without a Start. A part can be started again after
// it stopped.
type Base struct {
	mu     sync.Mutex // protects cancel, done
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// Start runs fn in the background under a context that ends with ctx or with
// Stop. Starting what runs already does nothing.
func (b *Base) Start(ctx context.Context, fn func(ctx context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		select {
		case <-b.done:
		default:
			return
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

// Stop ends the run function and waits for it.
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

// Sleep waits for d, or less when ctx ends; it says whether d has passed.
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

// Jitter returns a duration between d·(1−part) and d·(1+part).
func Jitter(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*rand.Float64()-1))) //nolint:gosec // jitter is no secret
}

// Backoff is the pause before try n (from 0): base doubled n times, at most
// limit, jittered by a quarter.
func Backoff(n int, base, limit time.Duration) time.Duration {
	d := limit
	if n >= 0 && n < 32 && base<<n > 0 && base<<n < limit {
		d = base << n
	}
	return Jitter(d, 0.25)
}

// InstanceID names this process among all instances: {hostname}-{pid}.
// [generateInstanceId]
func InstanceID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// idEpoch keeps ids positive and small until the year 2093.
var idEpoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// IDs makes time-ordered 63-bit ids: 41 bits of milliseconds, 10 bits that
// differ between processes, 12 bits of sequence. They never meet the small
// numbers of upstream systems. Two processes may draw the same 10 bits, so a
// unique key in the database stands behind each id.
type IDs struct {
	node int64
	mu   sync.Mutex // protects last
	last int64      // milliseconds and sequence of the latest id
}

// NewIDs returns a maker of ids for this process.
func NewIDs() *IDs {
	return &IDs{node: rand.Int64N(1 << 10)} //nolint:gosec // spreads ids, keeps no secret
}

// Next returns an id above every earlier one of this maker.
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
