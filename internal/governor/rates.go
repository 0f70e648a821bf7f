package governor

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Ahead is how far ahead of its clock a keeper of rates gives out send times.
const Ahead = 100 * time.Millisecond

// Rates keeps the send times that instances share: under one name they follow
// each other at one pace, and each is given out once, at most Ahead before it
// comes. Time in which nobody asked is gone: what was not given out is never
// made up for. Implementations are safe for concurrent use and pass the suite
// governortest.
type Rates interface {
	// Lease gives out the next send times. An error means that it is not known
	// whether any were.
	Lease(ctx context.Context, p LeaseParams) (Run, error)
}

// LeaseParams asks for send times.
type LeaseParams struct {
	Name      string  // which rate
	PerSecond float64 // its pace, above 0; a new one holds from this lease on
	Count     int     // how many at most, 1 or more
}

// Validate refuses what makes no sense.
func (p LeaseParams) Validate() error {
	switch {
	case p.Name == "":
		return errors.New("governor: a lease needs the name of its rate")
	case !(p.PerSecond > 0):
		return errors.New("governor: a lease needs a pace above 0 per second")
	case p.Count < 1:
		return errors.New("governor: a lease is for 1 send time or more")
	}
	return nil
}

// Every is the time from one send time to the next.
func (p LeaseParams) Every() time.Duration {
	return max(time.Duration(float64(time.Second)/p.PerSecond), 1)
}

// Run is send times that follow each other: the first one In after the lease
// was answered, then one Every. Count 0: all that may be given out are; ask
// again In later.
type Run struct {
	In, Every time.Duration
	Count     int
}

// LocalRates keeps rates for those who share this process. The zero value is
// ready to use.
type LocalRates struct {
	mu      sync.Mutex // protects the rest
	born    time.Time
	keepers map[string]*keeper
}

var _ Rates = (*LocalRates)(nil)

// Lease implements Rates.
func (r *LocalRates) Lease(ctx context.Context, p LeaseParams) (Run, error) {
	if err := ctx.Err(); err != nil {
		return Run{}, err
	}
	if err := p.Validate(); err != nil {
		return Run{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepers == nil {
		r.born, r.keepers = time.Now(), make(map[string]*keeper)
	}
	now := time.Since(r.born)
	k := r.keepers[p.Name]
	if k == nil {
		r.forget(now)
		k = &keeper{}
		r.keepers[p.Name] = k
	}
	return k.lease(now, p.Every(), p.Count), nil
}

// forget drops the rates whose next send time has passed: a new keeper knows
// as much.
func (r *LocalRates) forget(now time.Duration) {
	if len(r.keepers) < oldFlowsMost {
		return
	}
	for name, k := range r.keepers {
		if k.next <= now {
			delete(r.keepers, name)
		}
	}
}

// keeper keeps one rate: the next send time that may be given out.
type keeper struct{ next time.Duration }

func (k *keeper) lease(now, every time.Duration, count int) Run {
	next := max(k.next, now)
	// Only a slower pace can have put it so far ahead.
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
