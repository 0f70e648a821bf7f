package web

import (
	"context"
	"sync"
)

// drain is the part of a Router that ends the responses which wait for something and would
// delay a stop. It is safe for concurrent use.
type drain struct {
	mu   sync.Mutex      // protects what follows
	ctx  context.Context // ends when draining begins
	stop context.CancelFunc
}

// Drain ends the responses that wait for something, such as event streams.
func (d *drain) Drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stop()
}

// Undrain reverts Drain.
func (d *drain) Undrain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil || d.ctx.Err() != nil {
		d.ctx, d.stop = context.WithCancel(context.Background())
	}
}

// IsDraining reports whether the Router drains.
func (d *drain) IsDraining() bool {
	select {
	case <-d.DrainBegins():
		return true
	default:
		return false
	}
}

// DrainBegins returns a channel that is closed once draining begins, or has begun.
func (d *drain) DrainBegins() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx.Done()
}
