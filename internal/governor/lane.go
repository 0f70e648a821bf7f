package governor

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

const (
	nameOfAll = "all" // the rate of all calls; the others have a promotion's id

	// pacing keeps the calls of any second below the limit although they do not
	// take equally long to get to the provider.
	pacing = 0.98
	// lapse is how late a call may start after its send time.
	lapse = 20 * time.Millisecond

	leaseTimeout   = 250 * time.Millisecond
	askPause       = 50 * time.Millisecond  // after a failed lease
	awayAfter      = 500 * time.Millisecond // of leases that fail: then each keeps to its part
	tryEvery       = time.Second            // while away
	backGrace      = 3 * time.Second        // each still keeps to its part: others may not know yet
	lookAgainAfter = time.Second            // at a parked lane that nothing is known of
)

// lane is one rate as this instance sees it: the send times it holds.
type lane struct {
	name   string
	pace   float64       // send times per second of all instances
	flow   *flow         // whose rate it is; nil: the rate of all calls
	runs   []slots       // in the order they were given out
	asking bool          // a lease is under way
	askAt  time.Duration // not before
	lead   time.Duration // how far ahead the latest lease was
	trip   time.Duration // how long it took
	keeper keeper        // this process's own, when there is no other
}

// slots are send times that are left of a lease.
type slots struct {
	at, every time.Duration
	count     int
}

func (s slots) last() time.Duration { return s.at + time.Duration(s.count-1)*s.every }

func paceOf(perSecond int) float64 { return pacing * float64(perSecond) }

func newLane(name string, perSecond int) *lane { return &lane{name: name, pace: paceOf(perSecond)} }

// take adds what was leased at a time.
func (l *lane) take(leased time.Duration, run Run) {
	if run.Count == 0 {
		l.askAt = leased + run.In
		l.lead = run.In + Ahead
		return
	}
	l.askAt, l.lead = 0, run.In
	l.runs = append(l.runs, slots{at: leased + run.In, every: run.Every, count: run.Count})
}

// drop forgets what has lapsed.
func (l *lane) drop(now time.Duration) {
	for len(l.runs) > 0 {
		s := &l.runs[0]
		if late := now - lapse - s.at; late > 0 {
			gone := min(int((late-1)/s.every)+1, s.count)
			s.at += time.Duration(gone) * s.every
			s.count -= gone
		}
		if s.count > 0 {
			return
		}
		l.runs = l.runs[1:]
	}
	l.runs = nil
}

// due says whether a call may start now.
func (l *lane) due(now time.Duration) bool {
	l.drop(now)
	return len(l.runs) > 0 && l.runs[0].at <= now
}

// use spends the send time that is due.
func (l *lane) use() {
	s := &l.runs[0]
	s.at += s.every
	if s.count--; s.count == 0 {
		l.runs = l.runs[1:]
	}
}

// first is the next send time.
func (l *lane) first() (time.Duration, bool) {
	if len(l.runs) == 0 {
		return 0, false
	}
	return l.runs[0].at, true
}

// dueBy counts the send times up to a time.
func (l *lane) dueBy(now, by time.Duration) int {
	l.drop(now)
	total := 0
	for _, s := range l.runs {
		if s.at <= by {
			total += min(int((by-s.at)/s.every)+1, s.count)
		}
	}
	return total
}

// held counts them all, and says when the last one is.
func (l *lane) held(now time.Duration) (count int, last time.Duration) {
	l.drop(now)
	for _, s := range l.runs {
		count += s.count
		last = max(last, s.last())
	}
	return count, last
}

// sharing is how it stands with Config.Rates. The governor's mutex protects it.
type sharing struct {
	failing time.Duration // since when no lease came, 0: the latest did
	away    bool          // for so long that each instance keeps to its part
	tryAt   time.Duration // while away: not before
	trying  bool
	back    time.Duration // until then each still keeps to its part
}

// ask sees to it that a lane holds the send times that can be used soon: never
// more than this instance's share of what is given out ahead, and asked for
// before the last ones are used. It says whether there are new ones already;
// those of other keepers arrive later.
//
// Asking waits until some are used, but not when they are wanted at certain
// times (exact). A promotion's own send times are known as far ahead as
// possible, because the shared ones have to be asked for to match.
func (g *Governor) ask(l *lane, demand int, exact bool, now time.Duration) bool {
	if demand <= 0 || l.asking || now < l.askAt {
		return false
	}
	alone := g.cfg.Rates == nil
	part := 1.0
	if !alone {
		part = 1 / float64(max(g.cfg.Instances(), 1))
	}
	share, rest := part, 0.5
	if l.flow != nil && g.all != nil {
		share, rest = 1, 0.75
	}
	have, last := l.held(now)
	want := min(demand, max(int(l.pace*share*Ahead.Seconds()), 1))
	if have >= want || !exact && float64(have) > rest*float64(want) && last-now > 2*l.trip {
		return false
	}
	p := LeaseParams{Name: l.name, PerSecond: l.pace, Count: want - have}
	s := &g.sharing
	switch {
	case alone:
		return l.takeOwn(now, p)
	case s.away:
		g.try(l, now)
		p.PerSecond *= part
		return l.takeOwn(now, p)
	case now < s.back:
		p.PerSecond *= part
		run := l.keeper.lease(now, p.Every(), p.Count)
		if run.Count == 0 {
			l.askAt = now + run.In
			return false
		}
		p.PerSecond, p.Count = l.pace, run.Count
	}
	l.asking = true
	g.own.Go(func() { g.lease(l, p) })
	return false
}

func (l *lane) takeOwn(now time.Duration, p LeaseParams) bool {
	run := l.keeper.lease(now, p.Every(), p.Count)
	l.take(now, run)
	return run.Count > 0
}

// try finds out whether rates are shared again, by a send time that nobody
// uses.
func (g *Governor) try(l *lane, now time.Duration) {
	s := &g.sharing
	if s.trying || now < s.tryAt {
		return
	}
	s.trying, s.tryAt = true, now+tryEvery
	p := LeaseParams{Name: l.name, PerSecond: l.pace, Count: 1}
	g.own.Go(func() {
		_, err := g.leaseOnce(p)
		g.mu.Lock()
		defer g.mu.Unlock()
		s.trying = false
		g.leased(g.now(), g.now(), err)
	})
}

// lease asks for send times and hands out what came.
func (g *Governor) lease(l *lane, p LeaseParams) {
	sent := g.now()
	run, err := g.leaseOnce(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	l.asking = false
	g.leased(sent, now, err)
	if err != nil {
		l.askAt = now + askPause
	} else {
		l.trip = now - sent
		run.Count = min(max(run.Count, 0), p.Count)
		run.Every = max(run.Every, 1)
		// It was answered somewhere between; the middle is nearest.
		l.take(sent+l.trip/2, run)
	}
	if l.flow != nil && l.flow.lane == l && l.flow.waiting > 0 {
		g.place(l.flow, now)
	}
	g.pump(now)
}

func (g *Governor) leaseOnce(p LeaseParams) (Run, error) {
	ctx, cancel := context.WithTimeout(g.ctx, leaseTimeout)
	defer cancel()
	return g.cfg.Rates.Lease(ctx, p)
}

// leased learns from a lease whether rates are shared. A few that fail are a
// hiccup: the send times of that moment are lost, no more.
func (g *Governor) leased(sent, now time.Duration, err error) {
	s := &g.sharing
	switch {
	case g.closed:
	case err == nil:
		s.failing = 0
		if s.away {
			s.away, s.back = false, now+backGrace
			g.log.Info(obs.Recovered, "what", "shared rates")
		}
	case s.failing == 0:
		s.failing = sent
	case !s.away && now-s.failing >= awayAfter:
		s.away, s.tryAt = true, now+tryEvery
		g.log.Warn(obs.Unavailable, err, "what", "shared rates", "instances", max(g.cfg.Instances(), 1))
	}
}
