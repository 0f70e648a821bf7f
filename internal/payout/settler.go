package payout

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	settleEvery = 500 * time.Millisecond
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
	limits   Limits
	hint     func()
	log      obs.Log
}

// NewSettler makes a settler; hint is called when rows were decided.
func NewSettler(rows store.Payouts, p Provider, limits Limits, hint func(), log obs.Log) *Settler {
	return &Settler{rows: rows, provider: p, limits: limits, hint: hint, log: log.For(obs.Settler)}
}

func (s *Settler) run(ctx context.Context) {
	for ctx.Err() == nil {
		n, err := s.round(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn(obs.Failed, err)
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
	err = s.rows.PayoutSettle(ctx, store.PayoutSettleParams{Lookups: lookups, SettleAfter: s.limits.SettleAfter, Now: time.Now()})
	if err != nil {
		return 0, err
	}
	s.log.Debug(obs.Settled, "count", len(rows))
	s.hint()
	return len(rows), nil
}

func (s *Settler) lookup(ctx context.Context, row reward.Payout) store.Lookup {
	began := time.Now()
	res := s.provider.Lookup(ctx, row.PromotionID, row.TargetID)
	decides := row.SettleFrom.Add(s.limits.SettleAfter)
	out := store.Lookup{
		Ref:   refOf(row),
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
