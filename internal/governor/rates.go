package governor

import (
	"context"
	"errors"
	"time"
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
