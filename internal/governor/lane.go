package governor

import (
	"context"
	"time"
)

const (
	// pacing is the part of a rate that is used. It is below 1 because calls
	// take different times to reach the provider, where no second may have more
	// calls than the rate.
	pacing = 0.98
	// expiry limits how late a call may start after its send time.
	expiry = 20 * time.Millisecond

	leaseTimeout    = 250 * time.Millisecond
	leaseBackoff    = 50 * time.Millisecond  // after a failed lease
	outageAfter     = 500 * time.Millisecond // time of failing leases after which an outage begins
	tryInterval     = time.Second            // between exchanges during an outage
	backGrace       = 3 * time.Second        // time after an outage until the other instances have noticed its end
	recheckInterval = time.Second            // between checks of a parked queue without a known send time
	kindInterval    = 50 * time.Millisecond  // between checks of a parked queue whose kind has no places while the other has
)

// lane is one rate and the send times of it that this instance has leased and not
// used yet.
type lane struct {
	name     string
	pace     float64            // send times per second of all instances
	flows    [2]*promotionQueue // queues of the promotion whose rate this is, by indexOf; none: the rate of all calls
	runs     []slots            // send times, in the order of their leases
	asking   bool               // a request for send times is in flight
	askAt    time.Duration      // earliest time of the next request
	lead     time.Duration      // how far ahead of time the latest request found the next free send time
	trip     time.Duration      // duration of the latest request
	schedule rateSchedule       // send times by this instance's clock, while Config.Rates is nil or fails
}

// slots is what is left of the send times of one lease.
type slots struct {
	at, every time.Duration
	count     int
}

func (s slots) last() time.Duration { return s.at + time.Duration(s.count-1)*s.every }

func paceOf(perSecond int) float64 { return pacing * float64(perSecond) }

func (l *lane) own() bool { return l.flows != [2]*promotionQueue{} }

func newLane(name string, perSecond int) *lane { return &lane{name: name, pace: paceOf(perSecond)} }

// take adds the result of a lease that was granted at the given time.
func (l *lane) take(leased time.Duration, run Run) {
	if run.Count == 0 {
		l.askAt = leased + run.In
		l.lead = run.In + Ahead
		return
	}
	l.askAt, l.lead = 0, run.In
	l.runs = append(l.runs, slots{at: leased + run.In, every: run.Every, count: run.Count})
}

// drop removes send times that passed more than expiry ago.
func (l *lane) drop(now time.Duration) {
	for len(l.runs) > 0 {
		s := &l.runs[0]
		if late := now - expiry - s.at; late > 0 {
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

func (l *lane) due(now time.Duration) bool {
	l.drop(now)
	return len(l.runs) > 0 && l.runs[0].at <= now
}

func (l *lane) use() {
	s := &l.runs[0]
	s.at += s.every
	if s.count--; s.count == 0 {
		l.runs = l.runs[1:]
	}
}

// first returns the next send time, and whether there is one.
func (l *lane) first() (time.Duration, bool) {
	if len(l.runs) == 0 {
		return 0, false
	}
	return l.runs[0].at, true
}

// dueBy counts the send times up to the time by.
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

// held returns the number of send times and the last of them.
func (l *lane) held(now time.Duration) (count int, last time.Duration) {
	l.drop(now)
	for _, s := range l.runs {
		count += s.count
		last = max(last, s.last())
	}
	return count, last
}

// sharing says whether Config.Rates works. The governor's mutex protects it.
type sharing struct {
	failing time.Duration // when leases began to fail; 0: the latest one succeeded
	away    bool          // an outage: this instance uses its part of each rate, by its own clock
	tryAt   time.Duration // earliest time of the next exchange during an outage
	back    time.Duration // end of the grace period after an outage
	// unshared says that no instance shares anything, so this is no outage.
	unshared bool
}

// ask requests send times of a rate that can be used soon: at most demand, and at most
// this instance's part of those within Ahead. It reports whether it added some at once,
// by this instance's clock. Those of Config.Rates arrive later.
//
// ask does nothing while enough send times are left, in number and in time, so that one
// request leases several, unless exact is set. Those of a promotion's own rate are leased
// as far ahead as possible, because each of them needs a send time of all calls to match.
func (g *Governor) ask(l *lane, demand int, exact bool, now time.Duration) bool {
	if demand <= 0 || l.asking || now < l.askAt {
		return false
	}
	part := 1 / float64(max(g.cfg.Instances(), 1))
	share, rest := part, 0.5
	if l.own() && g.all != nil {
		share, rest = 1, 0.75
	}
	have, last := l.held(now)
	want := min(demand, max(int(l.pace*share*Ahead.Seconds()), 1))
	if have >= want || !exact && float64(have) > rest*float64(want) && last-now > 2*l.trip {
		return false
	}
	p := LeaseParams{Name: l.name, PerSecond: l.pace, Count: want - have}
	if s := &g.sharing; s.away || now < s.back {
		p.PerSecond *= part
		run := l.schedule.lease(now, p.Every(), p.Count)
		switch {
		case s.away: // the exchange loop tries whether Config.Rates works again
			l.take(now, run)
			return run.Count > 0
		case run.Count == 0:
			l.askAt = now + run.In
			return false
		}
		p.PerSecond, p.Count = l.pace, run.Count
	}
	if l == g.all {
		p.News = g.newsFor(now)
	}
	l.asking = true
	g.own.Go(func() { g.lease(l, p) })
	return false
}

// lease leases send times of Config.Rates, and grants the permits that they allow.
func (g *Governor) lease(l *lane, p LeaseParams) {
	sent := g.now()
	run, now, err := g.share(p, sent)
	defer g.mu.Unlock()
	l.asking = false
	if err != nil {
		l.askAt = now + leaseBackoff
	} else {
		l.trip = now - sent
		run.Count = min(max(run.Count, 0), p.Count)
		run.Every = max(run.Every, 1)
		// The reply counts from when the server made it. The middle of the trip
		// is the best estimate of that time.
		l.take(sent+l.trip/2, run)
		if p.News != nil {
			g.told.wake.Give() // so that the exchange loop notices when this instance makes no more calls
		}
	}
	for _, f := range l.flows {
		if f != nil && f.lane == l && f.waiting > 0 {
			g.place(f, now)
		}
	}
	g.pump(now)
}

// share sends a request to Config.Rates, and learns from the reply. sent is a time at or
// before the request. It returns with the mutex locked.
func (g *Governor) share(p LeaseParams, sent time.Duration) (run Run, now time.Duration, err error) {
	ctx, cancel := context.WithTimeout(g.ctx, leaseTimeout)
	defer cancel()
	run, err = g.cfg.Rates.Lease(ctx, p)
	g.mu.Lock()
	now = g.now()
	g.leased(sent, now, err)
	switch {
	case p.News == nil:
	case err == nil:
		g.learn(now, sent, *p.News, run.Shared)
	default: // the news may not have arrived
		g.told.urgent, g.told.failed, g.told.at = true, true, now
	}
	return run, now, err
}
