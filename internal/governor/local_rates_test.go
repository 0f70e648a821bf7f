package governor

import (
	"context"
	"sync"
	"time"
)

// LocalRates implements Rates for the governors of one process. The zero value
// is ready to use.
type LocalRates struct {
	mu        sync.Mutex // protects the rest
	born      time.Time
	schedules map[string]*rateSchedule
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
	if r.schedules == nil {
		r.born, r.schedules = time.Now(), make(map[string]*rateSchedule)
	}
	now := time.Since(r.born)
	k := r.schedules[p.Name]
	if k == nil {
		r.forget(now)
		k = &rateSchedule{}
		r.schedules[p.Name] = k
	}
	return k.lease(now, p.Every(), p.Count), nil
}

// forget drops the rates whose next send time has passed: a new schedule leases
// the same times.
func (r *LocalRates) forget(now time.Duration) {
	if len(r.schedules) < idleQueuesMax {
		return
	}
	for name, k := range r.schedules {
		if k.next <= now {
			delete(r.schedules, name)
		}
	}
}
