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
	// settleLease is the time for which a claimed row belongs to this instance.
	settleLease = 30 * time.Second
	// lookupIntervalMin and lookupIntervalMax limit the time between two
	// lookups of a payout.
	lookupIntervalMin = 2 * time.Second
	lookupIntervalMax = 5 * time.Minute
)

// Settler looks up UNKNOWN payouts until they are settled. "Confirmed" always
// settles a payout. "Not found" settles it only if the lookup began SettleAfter
// after SettleFrom, when no earlier charge can take effect any more.
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

// againAfter is the time after which a payout that "not found" settled is
// looked up once more. A process that stalls between its last check and its
// write, and then crashes, may have charged it. No rule closes that gap; this
// narrows it, and the balance sheet shows what remains.
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

// round claims due rows, looks each of them up, and writes the results. A crash
// in between only delays them by settleLease.
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

// query looks a payout up when the governor permits it and sets began to that
// time. Without a permit in time the result is empty.
func (s *Settler) query(ctx context.Context, row reward.Payout, began *time.Time) money.LookupResult {
	waiting, cancel := context.WithTimeout(ctx, settleLease/3)
	defer cancel()
	permit, err := s.governor.Acquire(waiting, s.cache.job(row.PromotionID))
	for errors.Is(err, governor.ErrWaitCancelled) { // only charges need to stop
		permit, err = s.governor.Acquire(waiting, s.cache.job(row.PromotionID))
	}
	if err != nil {
		return money.LookupResult{}
	}
	*began = time.Now()
	return lookup(ctx, s.provider, permit, row)
}

// lookup looks a payout up and decides when to look again.
func (s *Settler) lookup(ctx context.Context, row reward.Payout) rules.Lookup {
	began := time.Now()
	res := s.query(ctx, row, &began)
	decides := row.SettleFrom.Add(s.limits.SettleAfter)
	out := rules.Lookup{
		Ref:   row.Ref(),
		Found: res.Found, TransactionKey: res.TransactionKey,
		NotFound: res.NotFound, BeganAt: began,
	}
	// The interval grows with the time for which the payout has been UNKNOWN.
	since := max(began.Sub(row.SettleFrom), 0)
	out.NextAt = time.Now().Add(service.Jitter(min(max(since/2, lookupIntervalMin), lookupIntervalMax), 0.25))
	if res.NotFound && began.Before(decides) && out.NextAt.Before(decides) {
		// "Not found" settles nothing before then.
		out.NextAt = decides.Add(service.Jitter(100*time.Millisecond, 0.5))
	}
	return out
}
