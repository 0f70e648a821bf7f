package governor

import (
	"context"
	"errors"
	"time"
)

// Ahead limits how far in the future a leased send time may be.
const Ahead = 100 * time.Millisecond

// Rates leases send times to instances. A rate is identified by its name. Its send
// times follow each other at equal intervals. Each of them is leased once, to one
// instance, at most Ahead before it comes. A send time that is not leased before it
// comes is lost. Implementations are safe for concurrent use and pass the suite
// governortest.
type Rates interface {
	// Lease leases the next send times of a rate. After an error, the send times
	// may or may not be leased: they are lost.
	Lease(ctx context.Context, p LeaseParams) (Run, error)
}

// LeaseParams is a request for send times.
type LeaseParams struct {
	Name      string  // name of the rate
	PerSecond float64 // rate, above 0; a change applies from this lease on
	Count     int     // maximum number of send times, at least 1
}

// Validate returns an error if a field is missing or out of range.
func (p LeaseParams) Validate() error {
	switch {
	case p.Name == "":
		return errors.New("governor: the lease has no name")
	case !(p.PerSecond > 0):
		return errors.New("governor: the lease's rate must be above 0 per second")
	case p.Count < 1:
		return errors.New("governor: the lease must be for at least 1 send time")
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
