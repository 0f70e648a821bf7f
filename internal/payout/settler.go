package payout

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	settleInterval = time.Second // between rounds
	settleBatch    = 200         // rows claimed at once
	settleCalls    = 16          // lookups in parallel
	// settleLease is how long no other instance looks up a row that this
	// instance has claimed.
	settleLease = 30 * time.Second
	// lookupIntervalMin and lookupIntervalMax limit the time between two
	// lookups of a payout.
	lookupIntervalMin = 2 * time.Second
	lookupIntervalMax = 5 * time.Minute
)

// Settler looks up UNKNOWN payouts until it can settle them: record a final state.
// "Confirmed" makes a payout SUCCEEDED. "Not found" makes it FAILED (CANCELLED in a
// CANCELLED promotion), but only if the lookup began at least SettleAfter after
// the payout's SettleFrom: by then no earlier charge can take effect any more.
type Settler struct {
	service.Base
	rows     store.Payouts
	provider Provider
	governor *governor.Governor
	cache    *StatusCache
	limits   Limits
	log      obs.Log
}

// NewSettler returns a settler whose lookups wait for the governor.
func NewSettler(rows store.Payouts, p Provider, g *governor.Governor, cache *StatusCache, limits Limits, log obs.Log) *Settler {
	return &Settler{rows: rows, provider: p, governor: g, cache: cache, limits: limits, log: log.For(obs.Settler)}
}

// againAfter is how long after "not found" settled a payout it is looked up once
// more. A process may stall between its last check and the first byte of a charge,
// send the charge after all, and then crash. No rule prevents that. The second
// lookup finds most of these charges, and the balance sheet shows the others.
func (l Limits) againAfter() time.Duration { return min(10*l.SettleAfter, l.IdempotencyWindow/2) }

// run looks up payouts until ctx ends.
func (s *Settler) run(ctx context.Context) {
	report := s.log.Streak("looking up payouts failed", "")
	for ctx.Err() == nil {
		n, err := s.round(ctx)
		if ctx.Err() == nil {
			report(err)
		}
		if n < settleBatch {
			service.Sleep(ctx, service.Jitter(settleInterval, 0.2))
		}
	}
}

// round claims payouts whose lookup is due, looks each of them up, and records the
// results. It returns how many there were. After a crash in between, their next
// lookup is due when settleLease has passed.
func (s *Settler) round(ctx context.Context) (int, error) {
	now := time.Now()
	rows, err := s.rows.PayoutClaimLookups(ctx, store.PayoutClaimLookupsParams{
		Limit: settleBatch, Until: now.Add(settleLease), Now: now,
	})
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	lookups := make([]rules.Lookup, len(rows))
	slots := make(chan struct{}, settleCalls)
	var wg sync.WaitGroup
	for i, row := range rows {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			lookups[i] = s.lookup(ctx, row)
		})
	}
	wg.Wait()
	err = s.rows.PayoutSettle(ctx, store.PayoutSettleParams{
		Lookups: lookups, SettleAfter: s.limits.SettleAfter, AgainAfter: s.limits.againAfter(), Now: time.Now(),
	})
	if err != nil {
		return 0, err
	}
	s.log.Debug("lookups recorded", "count", len(rows))
	s.cache.Hint()
	return len(rows), nil
}

// query looks a payout up when the governor permits it, and sets began to that
// time. If there is no permit within a third of settleLease, the result is empty.
func (s *Settler) query(ctx context.Context, row reward.Payout, began *time.Time) money.LookupResult {
	waiting, cancel := context.WithTimeout(ctx, settleLease/3)
	defer cancel()
	permit, err := s.governor.Acquire(waiting, jobOf(s.cache, row))
	for errors.Is(err, governor.ErrWaitCancelled) { // a pause or cancel stops charges, not lookups
		permit, err = s.governor.Acquire(waiting, jobOf(s.cache, row))
	}
	if err != nil {
		return money.LookupResult{}
	}
	*began = time.Now()
	return lookup(ctx, s.provider, permit, row)
}

// lookup looks a payout up, and sets when it is looked up again if the result does
// not settle it.
func (s *Settler) lookup(ctx context.Context, row reward.Payout) rules.Lookup {
	began := time.Now()
	res := s.query(ctx, row, &began)
	decides := row.SettleFrom.Add(s.limits.SettleAfter)
	out := rules.Lookup{
		Ref:   row.Ref(),
		Found: res.Found, TransactionKey: res.TransactionKey,
		NotFound: res.NotFound, BeganAt: began,
	}
	// The longer the payout has been UNKNOWN, the longer the interval.
	since := max(began.Sub(row.SettleFrom), 0)
	out.NextAt = time.Now().Add(service.Jitter(min(max(since/2, lookupIntervalMin), lookupIntervalMax), 0.25))
	if res.NotFound && began.Before(decides) && out.NextAt.Before(decides) {
		// "Not found" settles nothing before then.
		out.NextAt = decides.Add(service.Jitter(100*time.Millisecond, 0.5))
	}
	return out
}
