package payout

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

const (
	compareInterval = 2 * time.Second // between two comparisons of the clocks
	compareTimeout  = 2 * time.Second // of one comparison
)

// queueClock compares the clocks of the queue's servers with the database's, which sets
// the time of each dispatch, and reports a difference that matters as a trouble. A
// comparison that fails changes nothing. Its methods are safe for concurrent use.
type queueClock struct {
	service.Base
	*shared
	// local reports whether the queue is in this process. Its clock is that of this
	// instance then, which may differ from the database's as much as it likes.
	local bool
	log   obs.Log

	clocks   atomic.Pointer[queue.Clocks] // nil before the first comparison
	compared chan struct{}                // closed after the first comparison
	once     sync.Once                    // closes compared
}

func newQueueClock(s *shared) *queueClock {
	return &queueClock{
		shared: s, local: s.cfg.Direct || s.cfg.QueueIsLocal, log: s.cfg.Log.For(obs.Producer), compared: make(chan struct{}),
	}
}

func (c *queueClock) horizon() time.Duration { return c.cfg.Limits.DispatchHorizon() }

func (c *queueClock) run(ctx context.Context) {
	for {
		c.compare(ctx)
		if !service.Sleep(ctx, service.Jitter(compareInterval, 0.2)) {
			return
		}
	}
}

func (c *queueClock) compare(ctx context.Context) {
	defer c.once.Do(func() { close(c.compared) })
	bounded, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	clocks, err := c.cfg.Queue.Clocks(bounded)
	var earliest, latest time.Time
	if err == nil {
		earliest, latest, err = c.rows.clock.between(bounded)
	}
	if err != nil {
		c.log.Debug("comparing clocks failed", "error", err)
		return
	}
	accuracy := latest.Sub(earliest)
	here := time.Since(earliest.Add(accuracy / 2)) // how far this instance is ahead
	relative := func(k service.Clock) service.Clock {
		return service.Clock{Ahead: k.Ahead + here, RoundTrip: k.RoundTrip + accuracy}
	}
	of := clocks.Of
	clocks = queue.Clocks{Worst: relative(clocks.Worst), Of: func(s queue.Stream) service.Clock { return relative(of(s)) }}
	c.clocks.Store(&clocks)
	if reason := c.judge(clocks.Worst); reason != "" {
		c.cfg.Troubles.Set(obs.PartRedisClock, reason)
	} else {
		c.cfg.Troubles.Clear(obs.PartRedisClock)
	}
}

// judge returns what is wrong with a clock, or "" for a difference that is small.
func (c *queueClock) judge(clock service.Clock) string {
	if c.local || clock.Skew() <= c.horizon()/10 {
		return ""
	}
	skew := clock.Ahead.Abs().Round(100 * time.Millisecond)
	const remedy = "synchronize both clocks by NTP"
	switch {
	case clock.Ahead > c.aheadMax():
		return fmt.Sprintf("Redis's clock is %s ahead of the database's: this instance dispatches no payouts until the difference is below %s; %s", skew, c.aheadMax(), remedy)
	case clock.Ahead > 0:
		return fmt.Sprintf("Redis's clock is %s ahead of the database's: this instance stops dispatching if the difference exceeds %s; %s", skew, c.aheadMax(), remedy)
	}
	return fmt.Sprintf("Redis's clock is %s behind the database's: payouts that Redis loses are noticed that much later; %s", skew, remedy)
}

// aheadMax is the largest difference at which an instance dispatches: a quarter of the
// horizon is left for the add then, because the deadline is at most one horizon after the
// dispatch.
func (c *queueClock) aheadMax() time.Duration { return c.horizon() * 3 / 4 }

func (c *queueClock) ahead(s queue.Stream) time.Duration {
	if clocks := c.clocks.Load(); clocks != nil {
		return clocks.Of(s).Ahead
	}
	return 0
}

// accepts reports whether the queue would accept a payout of a stream that is
// dispatched now.
func (c *queueClock) accepts(s queue.Stream) bool {
	return c.local || c.ahead(s) <= c.aheadMax()
}

// acceptsAll reports whether the queue would accept every payout.
func (c *queueClock) acceptsAll() bool {
	clocks := c.clocks.Load()
	return c.local || clocks == nil || clocks.Worst.Ahead <= c.aheadMax()
}

// deadline returns the time by the clock of a stream's server after which the queue must
// refuse a payout that was dispatched at dispatchedAt: half a horizon later, corrected by
// the difference of the clocks, but never more than one horizon later. So the sweeper
// returns no payout that has an entry or still gets one, even if the difference was
// measured wrong; see Sweeper.sweep. A queue in this process has the clock of this
// instance, so its difference is known exactly and needs no limit.
func (c *queueClock) deadline(s queue.Stream, dispatchedAt time.Time) time.Time {
	ahead := c.ahead(s)
	if !c.local {
		ahead = min(ahead, c.horizon()/2)
	}
	return dispatchedAt.Add(c.horizon()/2 + ahead)
}
