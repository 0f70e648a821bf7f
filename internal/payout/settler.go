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
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	settleEvery = time.Second
	settleBatch = 200
	settleCalls = 16 // look-ups side by side
	// settleHold keeps a taken row from other instances meanwhile.
	settleHold = 30 * time.Second
	// lookupBase and lookupLimit bound the pause before the next look-up.
	lookupBase  = 2 * time.Second
	lookupLimit = 5 * time.Minute
)

// Settler looks UNKNOWN payouts up at the provider until they are known. A yes
// always counts; a no only when the look-up began after settleFrom +
// settle-after: no call of ours can be under way then.
type Settler struct {
	service.Base
	rows     store.Payouts
	provider Provider
	governor *governor.Governor
	cache    *StatusCache
	limits   Limits
	log      obs.Log
}

// NewSettler makes a settler that asks when the governor lets it.
func NewSettler(rows store.Payouts, p Provider, g *governor.Governor, cache *StatusCache, limits Limits, log obs.Log) *Settler {
	return &Settler{rows: rows, provider: p, governor: g, cache: cache, limits: limits, log: log.For(obs.Settler)}
}

// againAfter is when a payout that a no has decided is looked up once more: a
// process that stood still between its last check and its write, and then
// died, may have charged it after all. No rule closes that gap; this narrows
// it, and the balance sheet shows what is left.
func (l Limits) againAfter() time.Duration { return min(10*l.SettleAfter, l.IdempotencyWindow/2) }

func (s *Settler) run(ctx context.Context) {
	for ctx.Err() == nil {
		n, err := s.round(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("looking up payouts failed", err)
		}
		if n < settleBatch {
			service.Sleep(ctx, service.Jitter(settleEvery, 0.2))
		}
	}
}

// round takes due rows, asks for each of them, and writes what came back.
// Dying in between only delays them by settleHold.
func (s *Settler) round(ctx context.Context) (int, error) {
	now := time.Now()
	rows, err := s.rows.PayoutTakeLookups(ctx, store.PayoutTakeLookupsParams{Limit: settleBatch, Until: now.Add(settleHold), Now: now})
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	lookups := make([]store.Lookup, len(rows))
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

// ask asks the provider, in its turn; began is set to when it did. Whoever
// does not get a turn in time has learned nothing.
func (s *Settler) ask(ctx context.Context, row reward.Payout, began *time.Time) money.LookupResult {
	waiting, cancel := context.WithTimeout(ctx, settleHold/3)
	defer cancel()
	permit, err := s.governor.Acquire(waiting, s.cache.job(row.PromotionID))
	for errors.Is(err, governor.ErrKicked) { // that is for calls; a look-up has to be made all the same
		permit, err = s.governor.Acquire(waiting, s.cache.job(row.PromotionID))
	}
	if err != nil {
		return money.LookupResult{}
	}
	*began = time.Now()
	return lookup(ctx, s.provider, permit, row)
}

func (s *Settler) lookup(ctx context.Context, row reward.Payout) store.Lookup {
	began := time.Now()
	res := s.ask(ctx, row, &began)
	decides := row.SettleFrom.Add(s.limits.SettleAfter)
	out := store.Lookup{
		Ref:   row.Ref(),
		Found: res.Found, TransactionKey: res.TransactionKey,
		NotFound: res.NotFound, BeganAt: began,
	}
	// The pause grows with the time that the row has been unknown.
	since := max(began.Sub(row.SettleFrom), 0)
	out.NextAt = time.Now().Add(service.Jitter(min(max(since/2, lookupBase), lookupLimit), 0.25))
	if res.NotFound && began.Before(decides) && out.NextAt.Before(decides) {
		// A no decides nothing before then; a yes is still worth asking for once.
		out.NextAt = decides.Add(service.Jitter(100*time.Millisecond, 0.5))
	}
	return out
}
