package payout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	parkedWorkers = 4 // promotions whose parked outcomes are written in parallel
	// parkedBackoff is the pause after the first failed write of a promotion's parked
	// outcomes, doubled after each further one.
	parkedBackoff    = 20 * time.Millisecond
	parkedBackoffMax = 5 * time.Second
	// stuckAfter is the number of failed writes in a row, without outcomes of other
	// promotions, after which a promotion is stuck.
	stuckAfter = 4
)

// parking holds, by promotion, the outcomes that could not be written; new outcomes of
// such a promotion join them. The Finisher writes the outcomes of one promotion at a
// time, apart from all others. Meanwhile its pool reads no new entries, which bounds the
// memory.
//
// A stuck promotion makes the instance degraded (see obs.Troubles). If a constraint of
// the database refuses its rows, it is also paused. When the rows are repaired, the next
// try writes the outcomes. All methods are safe for concurrent use.
type parking struct {
	troubles *obs.Troubles
	changed  service.Hint // outcomes were parked, or a try has ended

	mu    sync.Mutex // protects what follows
	lanes map[reward.PromotionID]*lane
	ended bool // park accepts nothing any more
}

// lane holds the parked outcomes of one promotion.
type lane struct {
	outcomes []finished
	// size is how many outcomes the next try writes. A failure because of their rows, but
	// not of a lock, halves it; a success doubles it. So one bad row does not hold the
	// others up.
	size     int
	failures int // in a row
	err      error
	due      time.Time // of the next try
	trying   bool
}

func newParking(troubles *obs.Troubles) *parking {
	return &parking{troubles: troubles, changed: service.NewHint(), lanes: make(map[reward.PromotionID]*lane)}
}

func (p *parking) has(id reward.PromotionID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes[id] != nil
}

func (p *parking) vacant() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lanes) == 0
}

// sift parks the outcomes of promotions that have parked ones, and returns the others.
func (p *parking) sift(batch []finished) []finished {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lanes) == 0 {
		return batch
	}
	others := make([]finished, 0, len(batch))
	for _, x := range batch {
		if l := p.lanes[x.promotion()]; l != nil {
			l.outcomes = append(l.outcomes, x)
		} else {
			others = append(others, x)
		}
	}
	return others
}

// park parks outcomes of one promotion that could not be written because of err.
func (p *parking) park(part []finished, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		release(part)
		return
	}
	id := part[0].promotion()
	l := p.lanes[id]
	if l == nil {
		l = &lane{size: finishBatch, failures: 1, err: err, due: time.Now().Add(service.Backoff(0, parkedBackoff, parkedBackoffMax))}
		p.lanes[id] = l
	}
	l.outcomes = append(l.outcomes, part...)
	p.changed.Give()
}

// end ends the parking, and releases the outcomes that no try holds.
func (p *parking) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for id, l := range p.lanes {
		if !l.trying {
			release(l.outcomes)
			delete(p.lanes, id)
		}
	}
}

// release leaves entries pending until a consumer claims them.
func release(outcomes []finished) {
	for _, x := range outcomes {
		x.item.Release()
	}
}

// next takes the lane whose try is due first, with the outcomes to write. If none is due,
// it returns the pause until one is, or 0 if no lane waits for a try.
func (p *parking) next() (id reward.PromotionID, part []finished, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first *lane
	for of, l := range p.lanes {
		if !l.trying && (first == nil || l.due.Before(first.due)) {
			id, first = of, l
		}
	}
	if first == nil || p.ended {
		return 0, nil, 0
	}
	if pause = time.Until(first.due); pause > 0 {
		return 0, nil, pause
	}
	first.trying = true
	return id, slices.Clone(first.outcomes[:min(first.size, len(first.outcomes))]), 0
}

// nearlyStuck reports whether a promotion is stuck, or will be after one more failure.
func (p *parking) nearlyStuck(id reward.PromotionID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes[id].failures+1 >= stuckAfter
}

// tried records how the try of a part has ended. It returns the outcomes to
// release, and the reason to pause the promotion, or "".
func (p *parking) tried(id reward.PromotionID, part []finished, err error) (left []finished, pause string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[id]
	l.trying = false
	rest := slices.Clone(l.outcomes[len(part):])
	switch {
	case err == nil:
		l.outcomes, l.size, l.failures, l.due = rest, min(2*l.size, finishBatch), 0, time.Now()
	case len(part) == 1 && reward.KindOf(err) == reward.KindInvalid:
		// The database can never store this one.
		left, l.outcomes, l.due = part, rest, time.Now()
	default:
		l.outcomes, l.err = append(rest, part...), err
		l.due = time.Now().Add(service.Backoff(l.failures, parkedBackoff, parkedBackoffMax))
		l.failures++
		if ofRows(err) && !errors.Is(err, store.ErrLocked) {
			l.size = max(len(part)/2, 1)
		}
		if l.failures >= stuckAfter && urgency(err) == 0 {
			pause = whyStuck(id, err)
		}
	}
	if p.ended {
		left, l.outcomes = append(left, l.outcomes...), nil
	}
	if len(l.outcomes) == 0 {
		delete(p.lanes, id)
	}
	p.report()
	p.changed.Give()
	return left, pause
}

// report reports the stuck promotions as a trouble. The caller holds mu.
func (p *parking) report() {
	stuck := slices.DeleteFunc(slices.Collect(maps.Keys(p.lanes)), func(id reward.PromotionID) bool { return p.lanes[id].failures < stuckAfter })
	if len(stuck) == 0 {
		p.troubles.Clear(obs.PartOutcomes)
		return
	}
	// Those whose rows need a repair come first: the others may recover by themselves.
	first := slices.MinFunc(stuck, func(a, b reward.PromotionID) int {
		return cmp.Or(cmp.Compare(urgency(p.lanes[a].err), urgency(p.lanes[b].err)), cmp.Compare(a, b))
	})
	reason := whyStuck(first, p.lanes[first].err)
	if len(stuck) > 1 {
		reason += fmt.Sprintf(" (other promotions with waiting outcomes: %d)", len(stuck)-1)
	}
	p.troubles.Set(obs.PartOutcomes, reason)
}

func urgency(err error) int {
	switch _, broken := errors.AsType[*store.ConstraintError](err); {
	case broken:
		return 0
	case errors.Is(err, store.ErrLocked):
		return 1
	}
	return 2
}

// ofRows reports whether an error comes from rows of a batch, so that other rows
// may be written.
func ofRows(err error) bool { return urgency(err) < 2 || reward.KindOf(err) == reward.KindInvalid }

// whyStuck says why outcomes of a promotion cannot be recorded, and what to do.
func whyStuck(id reward.PromotionID, err error) string {
	what := fmt.Sprintf("outcomes of promotion %s cannot be recorded: ", id)
	switch broken, known := errors.AsType[*store.ConstraintError](err); {
	case known:
		return what + fmt.Sprintf("its rows or counts violate the constraint %s of the database; run largesse reconcile --promotion %s --repair, then resume it", broken.Constraint, id)
	case errors.Is(err, store.ErrLocked):
		return what + "another session holds a lock on its rows; find it with pg_locks and pg_stat_activity, and end it"
	case errors.Is(err, store.ErrFull):
		return what + store.ErrFull.Error()
	}
	return what + "the database does not take them; see the log"
}

func (f *Finisher) retryParked(ctx context.Context) {
	var trying sync.WaitGroup
	slots := make(chan struct{}, parkedWorkers)
	for ctx.Err() == nil {
		slots <- struct{}{}
		id, part, pause := f.parking.next()
		if part != nil {
			trying.Go(func() {
				defer func() { <-slots }()
				f.try(ctx, id, part)
			})
			continue
		}
		<-slots
		if pause == 0 {
			pause = time.Hour
		}
		select {
		case <-time.After(pause):
		case <-f.parking.changed:
		case <-ctx.Done():
		}
	}
	f.parking.end()
	trying.Wait()
}

// try writes parked outcomes of one promotion. It pauses the promotion only if that was
// running before: somebody may repair the rows and resume it between a failed write and
// the pause.
func (f *Finisher) try(ctx context.Context, id reward.PromotionID, part []finished) {
	running := f.parking.nearlyStuck(id) && f.runs(ctx, id)
	err := f.commit(ctx, part)
	left, pause := f.parking.tried(id, part, err)
	if len(left) > 0 {
		f.log.Warn("outcomes left pending", err, "promotion_id", id, "count", len(left))
	}
	release(left)
	if err == nil && f.parking.vacant() {
		f.report(nil)
	}
	if pause != "" && running {
		f.pause(ctx, id, pause)
	}
}
