package payout

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// result is how a step of a crew ended, unless it failed.
type result int

const (
	stepDone  result = iota // there is nothing left to do for now
	stepAgain               // there is more to do at once
	stepWaits               // what it waits for has not happened yet
	stepRests               // nothing is urgent until the promotion changes
)

const (
	// The pauses of a promotion whose step failed or waits, from the shortest to
	// the longest.
	stepPause    = 500 * time.Millisecond
	stepPauseMax = 10 * time.Second
	// stepRest is the pause of a promotion that rests.
	stepRest = 30 * time.Second
)

// crew does one kind of work for many promotions. Its steps run in parallel, at most one
// of a promotion at a time. Each step has a deadline and does a bounded part of the work;
// a promotion with more to do goes to the end of the line.
//
// A promotion whose latest steps failed waits in a line of its own, which has one slot.
// So promotions whose stream or rows hang leave the other slots to the others. All
// methods are safe for concurrent use.
type crew struct {
	timeout time.Duration // of a step
	pause   time.Duration // between a step that is done and the next one of the promotion
	step    func(ctx context.Context, v store.PromotionView) (result, error)
	report  func(error, ...any) // logs failed steps, and that none fails any more
	working sync.WaitGroup

	mu       sync.Mutex // protects the fields below, and those of all jobs
	jobs     map[reward.PromotionID]*job
	healthy  line
	failing  line
	failures int // promotions whose latest step failed
	// failedFrom is when the first step failed since one succeeded, or since there
	// were no promotions; zero if none has.
	failedFrom time.Time
}

type job struct {
	view      *store.PromotionView
	waits     bool // in a line, or its step runs
	gone      bool // no longer offered, but it waits: forget it then
	failed    int  // steps that failed in a row
	inVain    int  // steps in a row that ended as stepWaits
	early     bool // a change of the promotion ends its pause
	notBefore time.Time
}

// line holds the promotions that wait for a slot, the longest waiting one first.
type line struct {
	slots, busy int
	waiting     []reward.PromotionID
}

func newCrew(slots int, timeout, pause time.Duration, report func(error, ...any), step func(context.Context, store.PromotionView) (result, error)) *crew {
	return &crew{
		timeout: timeout, pause: pause, report: report, step: step, jobs: make(map[reward.PromotionID]*job),
		healthy: line{slots: slots}, failing: line{slots: 1},
	}
}

// offer replaces the promotions that the crew works on. It does not wait for steps.
func (c *crew) offer(ctx context.Context, views []*store.PromotionView) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	offered := make(map[reward.PromotionID]bool, len(views))
	for _, v := range views {
		offered[v.ID] = true
		j := c.jobs[v.ID]
		if j == nil {
			j = &job{view: v}
			c.jobs[v.ID] = j
		}
		changed := j.view.Counts != v.Counts || j.view.Status != v.Status
		j.view, j.gone = v, false
		if !j.waits && (!now.Before(j.notBefore) || j.early && changed) {
			c.enqueue(v.ID, j)
		}
	}
	for id, j := range c.jobs {
		if offered[id] {
			continue
		}
		c.recover(j)
		// It must not be in the line twice, or have two steps at once, if it is offered
		// again.
		if j.gone = true; !j.waits {
			delete(c.jobs, id)
		}
	}
	if len(offered) == 0 {
		c.failedFrom = time.Time{}
	}
	c.begin(ctx)
}

// enqueue puts a promotion at the end of its line. The caller holds mu.
func (c *crew) enqueue(id reward.PromotionID, j *job) {
	j.waits = true
	l := &c.healthy
	if j.failed > 1 { // a single failure may have a cause that is gone
		l = &c.failing
	}
	l.waiting = append(l.waiting, id)
}

// begin begins steps while there are free slots. The caller holds mu.
func (c *crew) begin(ctx context.Context) {
	for _, l := range []*line{&c.healthy, &c.failing} {
		for l.busy < l.slots && len(l.waiting) > 0 && ctx.Err() == nil {
			id := l.waiting[0]
			l.waiting = l.waiting[1:]
			j := c.jobs[id]
			if j.gone {
				delete(c.jobs, id)
				continue
			}
			l.busy++
			v := *j.view
			c.working.Go(func() {
				bounded, cancel := context.WithTimeout(ctx, c.timeout)
				defer cancel()
				r, err := c.step(bounded, v)
				c.end(ctx, l, id, j, r, err)
			})
		}
	}
}

// end records how a step ended, and begins further ones.
func (c *crew) end(ctx context.Context, l *line, id reward.PromotionID, j *job, r result, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.busy--
	j.waits, j.early = false, err == nil && (r == stepWaits || r == stepRests)
	switch {
	case j.gone:
		delete(c.jobs, id)
	case ctx.Err() != nil:
	case err != nil:
		if c.failedFrom.IsZero() {
			c.failedFrom = time.Now()
		}
		if j.failed == 0 {
			c.failures++
		}
		j.notBefore = time.Now().Add(service.Backoff(j.failed, stepPause, stepPauseMax))
		j.failed++
		c.report(err, "promotion_id", id, "promotions", c.failures)
	default:
		c.failedFrom = time.Time{}
		c.recover(j)
		switch r {
		case stepAgain:
			c.enqueue(id, j)
		case stepWaits:
			j.notBefore = time.Now().Add(service.Backoff(j.inVain, stepPause, stepPauseMax))
			j.inVain++
		case stepRests:
			j.notBefore = time.Now().Add(service.Jitter(stepRest, 0.2))
		case stepDone:
			j.inVain = 0
			j.notBefore = time.Now().Add(service.Jitter(c.pause, 0.2))
		}
	}
	c.begin(ctx)
}

// stuck reports whether steps have failed for so long and none has succeeded.
func (c *crew) stuck(since time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.failedFrom.IsZero() && time.Since(c.failedFrom) >= since
}

// recover records that a promotion does not fail any more. The caller holds mu.
func (c *crew) recover(j *job) {
	if j.failed == 0 {
		return
	}
	j.failed = 0
	if c.failures--; c.failures == 0 {
		c.report(nil)
	}
}
