package payout

import (
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// destroyedTwice is how long after a stream was destroyed its absence counts. A
// Redis that fails over or crashes may lose its last second, and bring the stream
// back with entries that were acknowledged.
const destroyedTwice = 10 * time.Second

// destroyedStreams remembers when this instance destroyed streams that it must
// look at once more. It is lost with the process: the next one destroys the
// stream again and waits again. It is safe for concurrent use.
type destroyedStreams struct {
	mu sync.Mutex
	at map[reward.PromotionID]destroyedStream
}

type destroyedStream struct {
	dispatchedAt time.Time // the promotion's last dispatch before
	at           time.Time
}

// add records that a stream was found empty and destroyed now.
func (d *destroyedStreams) add(id reward.PromotionID, dispatchedAt time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for other, s := range d.at { // promotions that another instance has finished
		if now.Sub(s.at) > 10*destroyedTwice {
			delete(d.at, other)
		}
	}
	if d.at == nil {
		d.at = make(map[reward.PromotionID]destroyedStream)
	}
	d.at[id] = destroyedStream{dispatchedAt: dispatchedAt, at: now}
}

// remove forgets a stream.
func (d *destroyedStreams) remove(id reward.PromotionID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.at, id)
}

// since returns how long ago the stream was destroyed, or false if it was not
// destroyed since the promotion's last dispatch.
func (d *destroyedStreams) since(id reward.PromotionID, dispatchedAt time.Time) (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.at[id]
	if !ok || !s.dispatchedAt.Equal(dispatchedAt) {
		return 0, false
	}
	return time.Since(s.at), true
}
