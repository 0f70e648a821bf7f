package pool

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/queue"
)

// Item is an entry that was delivered to a consumer. The handler calls Release
// exactly once: after it has acknowledged the entry, or to leave the entry pending
// until a consumer claims it.
type Item struct {
	queue.Entry
	Stream queue.Stream
	// Claimed reports whether a consumer got the entry by a claim, after an
	// earlier lease of the entry had expired.
	Claimed bool

	pool     *Pool
	readCtx  context.Context //nolint:containedctx // see ReadContext
	consumer int             // index within the pool
	// leaseEnd is the end of the lease, in nanoseconds after pool.startedAt, by
	// the monotonic clock.
	leaseEnd  atomic.Int64
	callEnded bool // protected by pool.mu
}

// LeaseLeft returns how much longer no consumer may claim the entry. Zero or less
// means that the lease has expired.
func (it *Item) LeaseLeft() time.Duration {
	return time.Duration(it.leaseEnd.Load()) - it.pool.sinceStart()
}

// ReadContext returns a context that ends when the pool stops reading, because the
// instance stops, or because the promotion was paused or has ended. The handler
// should then return the payouts of all items for which no call is in flight.
func (it *Item) ReadContext() context.Context { return it.readCtx }

// CallEnded says that the handler makes no more calls for this item. The consumer
// may then start another call while the outcome of this one is written. CallEnded
// may be called more than once.
func (it *Item) CallEnded() { it.pool.endCall(it) }

// Release ends the handler's ownership of the item, and frees the capacity that
// the item used. A second Release panics.
func (it *Item) Release() { it.pool.release(it) }
