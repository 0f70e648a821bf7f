package pool

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/queue"
)

// Item is an entry delivered to a consumer. The handler calls Release exactly
// once: after it has acknowledged the entry, or to leave the entry to be
// claimed when its lease expires.
type Item struct {
	queue.Entry
	Stream queue.Stream
	// Claimed reports whether the entry was claimed after another consumer's
	// lease expired.
	Claimed bool

	pool     *Pool
	consumer int // index within the pool
	// leaseEnd is in nanoseconds after pool.startedAt, by the monotonic clock.
	leaseEnd  atomic.Int64
	callEnded bool // protected by pool.mu
}

// LeaseLeft returns the time during which no other consumer may claim the
// entry. Zero or less means that the lease has expired.
func (it *Item) LeaseLeft() time.Duration {
	return time.Duration(it.leaseEnd.Load()) - time.Since(it.pool.startedAt)
}

// ReadContext returns a context that ends when the pool stops reading, because it
// was stopped or its promotion was paused. The handler should then return every
// entry without a call in flight.
func (it *Item) ReadContext() context.Context { return it.pool.readCtx }

// CallEnded records that this entry will have no more calls in flight, so that
// the consumer can start another call while the outcome is written. It may be
// called more than once.
func (it *Item) CallEnded() { it.pool.endCall(it) }

// Release ends the handler's ownership of the entry, and its call. A second
// Release panics.
func (it *Item) Release() { it.pool.release(it) }
