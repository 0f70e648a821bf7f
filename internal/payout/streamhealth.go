package payout

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

const (
	// tryInterval separates the tries whether streams work again, of tryMax streams at a
	// time, each for at most tryTimeout.
	tryInterval = time.Second
	tryMax      = 8
	tryTimeout  = time.Second
)

// streamHealth reports when entries cannot be added to the work streams, or read from
// them. It is safe for concurrent use. A nil streamHealth reports nothing.
type streamHealth struct {
	service.Base
	queue    queue.Queue
	troubles *obs.Troubles

	mu      sync.Mutex            // protects failing
	failing map[queue.Stream]bool // the latest command failed
}

func newStreamHealth(q queue.Queue, troubles *obs.Troubles) *streamHealth {
	return &streamHealth{queue: q, troubles: troubles, failing: make(map[queue.Stream]bool)}
}

// failed notes that a command on a stream failed, and why.
func (h *streamHealth) failed(s queue.Stream, err error) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failing[s] = true
	h.troubles.Set(obs.PartStreams, streamsReason(s, err))
}

// streamsReason says why a stream does not work, and what that means.
func streamsReason(s queue.Stream, err error) string {
	const effect = "dispatched payouts wait until it does"
	if reason := service.Refusal(err, "Redis", "the work stream of promotion "+s.PromotionID.String()+" needs", effect); reason != "" {
		return reason + "; largesse doctor has the remedy"
	}
	return "Redis did not say whether it took entries into the work streams: " + effect + "; check that it answers"
}

// works notes that a stream works.
func (h *streamHealth) works(s queue.Stream) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.failing[s] {
		return
	}
	if delete(h.failing, s); len(h.failing) == 0 {
		h.troubles.Clear(obs.PartStreams)
	}
}

// run finds out when streams work again, until ctx ends. Their promotions may have nothing
// to add or to read for long.
func (h *streamHealth) run(ctx context.Context) {
	for service.Sleep(ctx, service.Jitter(tryInterval, 0.1)) {
		var trying sync.WaitGroup
		for _, s := range h.some() {
			trying.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, tryTimeout)
				defer cancel()
				if h.queue.Try(ctx, s) == nil {
					h.works(s)
				}
			})
		}
		trying.Wait()
	}
}

// some returns at most tryMax of the streams that do not work.
func (h *streamHealth) some() []queue.Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []queue.Stream
	for s := range h.failing {
		if out = append(out, s); len(out) == tryMax {
			break
		}
	}
	return out
}
