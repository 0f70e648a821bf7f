package governor

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

const (
	// Ahead limits how far in the future a leased send time may be.
	Ahead = 100 * time.Millisecond
	// NameOfAll is the name of the rate of all calls. The other rates are named by
	// promotion ID.
	NameOfAll = "all"
	// RetryAfterMax is the longest Retry-After: a longer one counts as this.
	RetryAfterMax = 5 * time.Minute
)

// Rates is what the instances share: send times, and what they know of the
// provider. Implementations are safe for concurrent use and pass the suite
// governortest.
//
// Send times: a rate is identified by its name. Its send times follow each other at
// equal intervals. Each of them is leased once, to one instance, at most Ahead
// before it comes. A send time that is not leased before it comes is lost.
//
// The provider: the instances share the end of the latest Retry-After that blocks all
// calls, whether a person has ended a block, whether the
// provider is down, and whose turn it is to probe it. An outage begins with the first
// report of an open breaker. It ends when an instance that knows of it reports an
// answer that came afterwards: times of different clocks are not compared, and news
// that arrive late change nothing. During an outage, at most one instance at a time
// has the turn. A turn lasts TurnLength, and as long as its owner asks again within
// that time. What is shared is forgotten after KeptFor without a change.
type Rates interface {
	// Lease leases the next send times of a rate, and exchanges what the instances
	// know of the provider, if p has News. After an error, the send times may or may
	// not be leased: they are lost. The news may or may not be known: tell them
	// again.
	Lease(ctx context.Context, p LeaseParams) (Run, error)
}

// ErrUnshared is the error of a Rates whose instances share nothing, because they
// have no server for that.
var ErrUnshared = errors.New("governor: instances share nothing")

const (
	// TurnLength is how long a turn to probe lasts if its owner does not ask again.
	TurnLength = 2 * time.Second
	// KeptFor is how long what is shared of the provider is kept without a change.
	KeptFor = 15 * time.Minute
	// ProbeInMax limits how far ahead a News may set the next probe.
	ProbeInMax = 10 * time.Second
)

// LeaseParams is a request for send times.
type LeaseParams struct {
	Name      string  // name of the rate
	PerSecond float64 // rate, above 0; a change applies from this lease on
	Count     int     // maximum number of send times, at least 1; 0 with News leases none
	// News is what this instance knows of the provider; nil exchanges nothing. Only
	// the rate with the name NameOfAll exchanges.
	News *News
}

// News is what an instance tells the others about the provider. All times count
// from the moment that it was sent.
type News struct {
	Instance string        // who sends it: unique
	Block    time.Duration // no call of any instance may start for so long; 0: no news; at most RetryAfterMax
	Lift     bool          // a person ended the block that the instances know; Block is a later one
	Answered int64         // the outage that ended: after this instance heard of it, the provider answered and worked; 0: none
	Down     bool          // this instance's breaker opened
	Want     bool          // this instance could probe, or is probing in its turn
	Probe    ProbeResult
	ProbeIn  time.Duration // with Down or Probe.Ended: time until the next probe, at most ProbeInMax
}

// ProbeResult says how a probe in this instance's turn ended, or that it has been in
// flight for too long to wait for it. A successful one is an answer instead.
type ProbeResult struct {
	Ended bool
	Tries int // failed probes so far
}

// Shared is what the instances know of the provider. All times count from the
// reply.
type Shared struct {
	Blocked time.Duration // no call may start for so long
	Lifted  int64         // number of the latest Lift; 0: none
	Outage  int64         // number of the current outage; 0: there is none
	// Up, without Outage, reports that there was one and that the provider has
	// answered since. Without both, nothing is known.
	Up      bool
	Turn    bool          // with Outage: it is the asking instance's turn to probe
	ProbeIn time.Duration // with Outage and without Turn: earliest time of a turn
	Tries   int           // with Outage: failed probes so far
}

// Validate returns an error if a field is missing or out of range.
func (p LeaseParams) Validate() error {
	switch {
	case p.Name == "":
		return errors.New("governor: the lease has no name")
	case !(p.PerSecond > 0):
		return errors.New("governor: the lease's rate must be above 0 per second")
	case p.Count < 0, p.Count == 0 && p.News == nil:
		return errors.New("governor: the lease must be for at least 1 send time, or have news")
	case p.News == nil:
		return nil
	case p.Name != NameOfAll:
		return errors.New("governor: only the rate of all calls exchanges news")
	case p.News.Instance == "":
		return errors.New("governor: the news have no instance")
	case p.News.Block < 0, p.News.Answered < 0, p.News.ProbeIn < 0, p.News.Probe.Tries < 0:
		return errors.New("governor: a number in the news is below 0")
	}
	return nil
}

// Every returns the time between two send times.
func (p LeaseParams) Every() time.Duration {
	return max(time.Duration(float64(time.Second)/p.PerSecond), 1)
}

// Run is a sequence of Count send times. The first one comes In after the reply, and
// each other one comes Every after the one before it. A Count of zero means that no
// send time can be leased before In has passed.
type Run struct {
	In, Every time.Duration
	Count     int
	Shared    Shared // with LeaseParams.News
}

// rateSchedule leases the send times of one rate to this instance alone.
type rateSchedule struct{ next time.Duration } // the next send time to lease

func (k *rateSchedule) lease(now, every time.Duration, count int) Run {
	next := max(k.next, now)
	// A next send time so far ahead belongs to an earlier, slower rate.
	if next > now+Ahead+every {
		next = now + every
	}
	if next > now+Ahead {
		return Run{In: next - now - Ahead, Every: every}
	}
	run := Run{In: next - now, Every: every, Count: min(count, int((now+Ahead-next)/every)+1)}
	k.next = next + time.Duration(run.Count)*every
	return run
}

// exchangeInterval separates the exchanges of an instance that makes calls: a call may
// start so long after another instance has received a Retry-After.
const exchangeInterval = 50 * time.Millisecond

// exchangeIdleInterval separates those of an instance that has nothing to call while
// the breaker is open.
const exchangeIdleInterval = time.Second

// told says what this instance has told the others about the provider, and knows
// from them. The governor's mutex protects it, apart from wake.
type told struct {
	instance string        // name of this instance
	block    time.Duration // end of a Retry-After that the others do not know; 0: none
	lift     bool          // a person ended a block, which the others may not know
	lifted   int64         // number of the latest end in a reply; 0: none
	informed bool          // the latest exchange is recent
	at       time.Duration // end of the latest exchange
	failed   bool          // the latest exchange failed
	urgent   bool          // there is news
	outage   int64         // outage in the latest reply; 0: none
	heardAt  time.Duration // with outage: end of the first exchange whose reply had it
	wake     service.Hint  // brings the next exchange forward
}

// forget says that the next call must wait for an exchange. Only answers after that
// exchange can end an outage in its reply.
func (t *told) forget() { t.informed, t.outage = false, 0 }

// news says that the others should hear of the provider at once. It never blocks.
func (t *told) news() {
	t.urgent = true
	t.wake.Give()
}

// exchanges reports whether this instance exchanges what it knows with others.
func (g *Governor) exchanges() bool { return !g.sharing.away }

// takesTurns reports whether probes wait for a turn. They do not if the other instances
// have calls answered: then this instance alone cannot reach the provider.
func (g *Governor) takesTurns() bool { return g.exchanges() && !g.breaker.single }

// informed reports whether this instance knows what the others know of the provider. If
// not, it brings the next exchange forward.
func (g *Governor) informed() bool {
	if !g.exchanges() || g.told.informed {
		return true
	}
	g.told.wake.Give()
	return false
}

// exchangeLoop exchanges at intervals while this instance makes calls.
func (g *Governor) exchangeLoop() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-g.told.wake:
		case <-timer.C:
		}
		wait, again := g.exchange()
		timer.Stop()
		if again {
			timer.Reset(wait)
		}
	}
}

// exchange makes an exchange if one is due. It returns when the next one is due, and
// false if there is none: this instance makes no calls.
func (g *Governor) exchange() (wait time.Duration, again bool) {
	g.mu.Lock()
	now := g.now()
	due := g.exchangeAt(now)
	var p LeaseParams
	if due > 0 && due <= now {
		p = LeaseParams{Name: NameOfAll, PerSecond: 1, News: g.newsFor(now)}
		if g.all != nil {
			p.PerSecond = g.all.pace
		}
		if g.sharing.away {
			g.sharing.tryAt = now + tryInterval
		}
	}
	g.mu.Unlock()
	if p.News == nil {
		return due - now, due > 0
	}
	_, now, _ = g.share(p, now)
	defer g.mu.Unlock()
	g.pump(now)
	if due = g.exchangeAt(now); due == 0 {
		return 0, false
	}
	return max(due-now, timerMin), true
}

// exchangeAt returns when the next exchange is due, or 0 if none is.
func (g *Governor) exchangeAt(now time.Duration) time.Duration {
	t := &g.told
	switch {
	case g.closed, g.sharing.unshared:
		return 0
	case g.open() == 0 && g.waiting() == 0 && !t.urgent && !g.breaker.opened && !g.sharing.away:
		t.forget()
		return 0
	case g.sharing.away:
		return g.sharing.tryAt
	case (t.urgent || !t.informed) && !t.failed:
		return now
	}
	if g.open() == 0 && g.waiting() == 0 && !t.urgent {
		return t.at + exchangeIdleInterval // the breaker is open, and nothing can be a probe
	}
	return t.at + exchangeInterval
}

// newsFor returns what to tell the others.
func (g *Governor) newsFor(now time.Duration) *News {
	t, b := &g.told, &g.breaker
	n := &News{Instance: t.instance}
	t.urgent = false
	if t.block > now {
		n.Block = t.block - now
	}
	n.Lift = t.lift
	if t.outage != 0 && g.alive > t.heardAt {
		n.Answered = t.outage
	}
	if b.opened {
		n.Want = !b.single && g.wantsTurn(now)
		if b.turn && len(b.probes) > 0 && !n.Want {
			b.giveUp(now)
		}
		n.Down = !b.adopted && !b.told
		n.Probe = b.ended
		n.ProbeIn = min(max(b.probeAt-now, 0), ProbeInMax)
	}
	return n
}

// learn takes the reply to n into account. It was asked for at sent.
func (g *Governor) learn(now, sent time.Duration, n News, known Shared) {
	t, b := &g.told, &g.breaker
	t.informed, t.failed, t.at = true, false, now
	if t.outage != known.Outage {
		t.outage, t.heardAt = known.Outage, now
	}
	down := known.Outage != 0
	if n.Block > 0 && t.block <= sent+n.Block {
		t.block = 0
	}
	if known.Lifted != 0 && known.Lifted != t.lifted && !n.Lift {
		g.unblocked()
	}
	t.lifted = known.Lifted
	if n.Lift {
		t.lift = false
	}
	if known.Blocked > 0 {
		g.blocked = max(g.blocked, now+min(known.Blocked, RetryAfterMax))
		g.throttling.confirmed = true
		g.reportBlock("on another instance")
	}
	if n.Probe == b.ended {
		b.ended = ProbeResult{}
	}
	switch {
	case down && !b.opened:
		if g.alive <= sent {
			b.open(now)
			b.adopted, b.probeAt = true, now+known.ProbeIn
		}
	case down && (n.Down || b.told || b.adopted):
		b.told, b.single = true, false
		switch {
		case len(b.probes) > 0:
			b.turn = known.Turn
		case b.ended.Ended: // the others do not know yet how the latest probe ended
		case known.Turn:
			b.turn, b.probeAt = true, min(b.probeAt, now-probeGrace)
		default:
			b.turn, b.tries = false, known.Tries
			if known.ProbeIn > 0 || b.probeAt > now {
				b.probeAt = now + known.ProbeIn // a probe that is due stays due since then
			}
		}
	case down, !b.opened: // this instance has yet to tell what it knows
	case b.adopted: // other instances have calls answered
		if now > b.allowAt { // after a moment without calls, the limit is still right
			g.limit.restart(now, g.open())
		}
		g.breaker = breaker{}
	case b.told && known.Up && !b.single:
		// Others have calls answered. Look at once whether this instance does, too.
		b.single, b.turn, b.tries, b.probeAt = true, false, 0, now
	case b.told && !known.Up:
		b.told, b.single, b.turn = false, false, false // what was shared is lost
		t.news()
	}
}

// unsharedReason returns the reason of a trouble.
func unsharedReason(err error) string {
	const effect = "this instance uses its part of each rate, and its own circuit breaker"
	if reason := service.Refusal(err, "Redis", "instances share of rates", effect); reason != "" {
		return reason
	}
	return "what instances share of rates through Redis cannot be read: " + effect + "; check that Redis answers"
}

// leased updates sharing with the result of a lease. Failures for less than outageAfter
// are no outage.
func (g *Governor) leased(sent, now time.Duration, err error) {
	s := &g.sharing
	switch {
	case g.closed:
	case err == nil:
		s.failing = 0
		if s.away {
			s.away, s.back = false, now+backGrace
			g.told.forget()
			g.breaker.told, g.breaker.single = false, false
			g.cfg.Troubles.Clear(obs.PartRates)
		}
	case errors.Is(err, ErrUnshared):
		if !s.unshared {
			s.away, s.unshared = true, true
			g.log.Info("instances share no rates: this one uses its part of them", "instances", max(g.cfg.Instances(), 1))
		}
	case s.failing == 0:
		s.failing = sent
	case !s.away && now-s.failing >= outageAfter:
		s.away, s.tryAt = true, now+tryInterval
		g.log.Debug("shared rates unavailable", "error", err)
		g.cfg.Troubles.Set(obs.PartRates, unsharedReason(err))
	}
}
