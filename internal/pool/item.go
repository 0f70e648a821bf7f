package pool

import (
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

	pool     *Pool
	consumer int // index within the pool
	// leaseEnd is nanoseconds after pool.startedAt, by the monotonic clock.
	leaseEnd atomic.Int64
}

// LeaseLeft is how long nobody else may claim the entry; ≤ 0 when the lease
// has run out.
func (it *Item) LeaseLeft() time.Duration {
	return time.Duration(it.leaseEnd.Load()) - time.Since(it.pool.startedAt)
}

// Release frees the consumer's place for another entry.
func (it *Item) Release() { it.pool.release(it) }
