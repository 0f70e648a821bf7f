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
	provider  sharedProvider
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
	now := time.Since(r.born) + 1
	var known Shared
	if p.News != nil {
		known = r.provider.exchange(now, *p.News)
	}
	if p.Count == 0 {
		return Run{Shared: known}, nil
	}
	k := r.schedules[p.Name]
	if k == nil {
		k = &rateSchedule{}
		r.schedules[p.Name] = k
	}
	run := k.lease(now, p.Every(), p.Count)
	run.Shared = known
	return run, nil
}

// sharedProvider is what the governors know of the provider, as the script of
// redisrate keeps it. Times of 0 mean "none".
type sharedProvider struct {
	blocked, down, probe, until time.Duration
	up                          bool
	owner                       string
	tries                       int
	lifted                      int64
}

func (s *sharedProvider) exchange(now time.Duration, n News) Shared {
	n.Block, n.ProbeIn = min(n.Block, RetryAfterMax), min(n.ProbeIn, ProbeInMax)
	if n.Lift {
		s.blocked, s.lifted = 0, int64(now)
	}
	if n.Block > 0 {
		s.blocked = max(s.blocked, now+n.Block)
	}
	if n.Down && s.down == 0 {
		s.down, s.up, s.probe, s.owner, s.tries = now, false, now+n.ProbeIn, "", 0
	}
	if s.down > 0 && n.Answered == int64(s.down) {
		s.down, s.up, s.owner = 0, true, ""
	}
	known := Shared{Blocked: max(s.blocked-now, 0), Up: s.up, Tries: s.tries, Lifted: s.lifted}
	if s.down == 0 {
		return known
	}
	if s.until <= now {
		s.owner = ""
	}
	if s.owner == n.Instance && (n.Probe.Ended || !n.Want) {
		s.owner = ""
		if n.Probe.Ended {
			s.tries, s.probe = n.Probe.Tries, now+n.ProbeIn
		}
	}
	known.Outage, known.Tries = int64(s.down), s.tries
	if n.Want && !n.Probe.Ended && (s.owner == n.Instance || s.owner == "" && s.probe <= now) {
		s.owner, s.until = n.Instance, now+TurnLength
		known.Turn = true
		return known
	}
	known.ProbeIn = max(s.probe-now, 0)
	if s.owner != "" {
		known.ProbeIn = max(known.ProbeIn, s.until-now)
	}
	return known
}
