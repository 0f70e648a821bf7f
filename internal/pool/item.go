package pool

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/queue"
)

// Item is an entry in a consumer's hand. Whoever handles it calls Release
// exactly once: after the entry was acknowledged, or to leave it to be claimed
// by somebody once its lease has run out.
type Item struct {
	queue.Entry
	Stream queue.Stream
	// Claimed says that another holder had it and let its lease run out.
	Claimed bool

	pool     *Pool
	consumer int // index within the pool
	// leaseEnd is nanoseconds after pool.startedAt, by the monotonic clock.
	leaseEnd  atomic.Int64
	callEnded bool // under pool.mu
}

// LeaseLeft is how long nobody else may claim the entry; ≤ 0 when the lease
// has run out.
func (it *Item) LeaseLeft() time.Duration {
	return time.Duration(it.leaseEnd.Load()) - time.Since(it.pool.startedAt)
}

// Taking ends when the pool reads no more: it was stopped, or its promotion was
// paused. Whatever has no call open then should be handed back.
func (it *Item) Taking() context.Context { return it.pool.readCtx }

// CallEnded says that no call will be open for this entry any more, so that the
// consumer may have another one open while the outcome is being written. It may
// be called more than once.
func (it *Item) CallEnded() { it.pool.endCall(it) }

// Release lets go of the entry; its call has ended too.
func (it *Item) Release() { it.pool.release(it) }
