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
	// settleBatch is the number of rows claimed at once. Their lookups run in
	// parallel, so a take lasts no longer than its slowest lookup.
	settleBatch = 16
	settleTakes = 4 // takes in parallel
	// settlePermitTimeout limits the wait for a permit, and settleWriteTimeout the
	// write of the results.
	settlePermitTimeout = 10 * time.Second
	settleWriteTimeout  = 10 * time.Second
	// lookupIntervalMin and lookupIntervalMax limit the time between two
	// lookups of a payout.
	lookupIntervalMin = 2 * time.Second
	lookupIntervalMax = 5 * time.Minute
	// unaskedIntervalMax limits it after a lookup that was not sent.
	unaskedIntervalMax = 20 * time.Second
)

// Settler looks up UNKNOWN payouts until it can settle them: record a final state. "Not
// found" makes a payout FAILED (CANCELLED in a CANCELLED promotion) only if the lookup
// began at least SettleAfter after the payout's SettleFrom: by then no earlier charge can
// take effect any more. Both times are the database's.
type Settler struct {
	service.Base
	*shared
	log obs.Log
}

func newSettler(s *shared) *Settler { return &Settler{shared: s, log: s.cfg.Log.For(obs.Settler)} }

// againAfter is how long after "not found" settled a payout it is looked up once more: a
// process may stall between its last check and the first byte of a charge, send the
// charge after all, and then crash. The balance sheet shows what this lookup does not
// find.
func (l Limits) againAfter() time.Duration { return min(10*l.SettleAfter, l.IdempotencyWindow/2) }

// settleHold is how long no other instance looks up a claimed row. It outlasts the wait for
// a permit, a dial, a response and the write.
func (l Limits) settleHold() time.Duration {
	return settlePermitTimeout + 2*l.MoneyTimeout + settleWriteTimeout + 5*time.Second
}

func (s *Settler) run(ctx context.Context) {
	report := s.log.Streak("looking up payouts failed", "")
	failed := func(err error) {
		if ctx.Err() == nil {
			report(err)
		}
	}
	slots := make(chan struct{}, settleTakes)
	var working sync.WaitGroup
	defer working.Wait()
	for ctx.Err() == nil {
		slots <- struct{}{}
		rows, until, err := s.claim(ctx)
		if err != nil {
			failed(err)
		}
		working.Go(func() {
			defer func() { <-slots }()
			if len(rows) > 0 {
				failed(s.settle(ctx, rows, until))
			}
		})
		if len(rows) < settleBatch {
			service.Sleep(ctx, service.Jitter(settleInterval, 0.2))
		}
	}
}

// claim claims payouts whose lookup is due. The results must be written before until, by
// the clock of this host: after a crash, the rows are due again then.
func (s *Settler) claim(ctx context.Context) (rows []reward.Payout, until time.Time, err error) {
	began := time.Now()
	earliest, latest, err := s.rows.clock.between(ctx)
	if err != nil {
		return nil, until, err
	}
	hold := s.cfg.Limits.settleHold()
	rows, err = s.rows.PayoutClaimLookups(ctx, store.PayoutClaimLookupsParams{
		Limit: settleBatch, Until: latest.Add(hold), Now: earliest,
	})
	return rows, began.Add(hold), err
}

func (s *Settler) settle(ctx context.Context, rows []reward.Payout, until time.Time) error {
	writing, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	asking, stop := context.WithDeadline(ctx, until.Add(-settleWriteTimeout))
	defer stop()
	lookups := make([]rules.Lookup, len(rows))
	failed := make([]error, len(rows))
	var wg sync.WaitGroup
	for i, row := range rows {
		wg.Go(func() { lookups[i], failed[i] = s.lookup(asking, row) })
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	_, err := s.rows.PayoutSettle(writing, store.PayoutSettleParams{
		Lookups: lookups, SettleAfter: s.cfg.Limits.SettleAfter, AgainAfter: s.cfg.Limits.againAfter(),
	})
	if err != nil {
		return err
	}
	s.log.Debug("lookups recorded", "count", len(lookups))
	s.cache.Hint()
	return nil
}

// query looks a payout up when the governor permits it. began is when it asked the
// provider, by the database's clock: zero if there was no permit in time or no
// connection.
func (s *Settler) query(ctx context.Context, row reward.Payout) (res money.LookupResult, began time.Time, err error) {
	waiting, cancel := context.WithTimeout(ctx, settlePermitTimeout)
	defer cancel()
	permit, err := s.awaitPermit(waiting, func() governor.Job { return s.jobOf(&row) })
	if err != nil {
		return money.LookupResult{}, time.Time{}, nil // it was not asked
	}
	began, err = s.rows.clock.earliest(ctx)
	if err != nil {
		permit.Done(noSign)
		return money.LookupResult{}, time.Time{}, err
	}
	ctx, span := s.cfg.Tracer.Payout(ctx, "settle payout", &row)
	defer span.End(nil)
	if res = s.lookUpUnder(ctx, permit, row); res.Answer.Class == reward.AnswerNotSent {
		began = time.Time{}
	}
	return res, began, nil
}

// lookup looks a payout up, and sets when to look it up again if that does not settle it.
func (s *Settler) lookup(ctx context.Context, row reward.Payout) (rules.Lookup, error) {
	res, began, err := s.query(ctx, row)
	if err != nil {
		return rules.Lookup{}, err
	}
	now, err := s.rows.clock.earliest(ctx)
	if err != nil {
		return rules.Lookup{}, err
	}
	decides := row.SettleFrom.Add(s.cfg.Limits.SettleAfter)
	out := rules.Lookup{
		Ref:   row.Ref(),
		Found: res.Found, TransactionKey: res.TransactionKey,
		NotFound: res.NotFound, BeganAt: began,
	}
	// The longer the payout has been UNKNOWN, the longer the interval.
	since := max(now.Sub(row.SettleFrom), 0)
	interval := min(max(since/2, lookupIntervalMin), lookupIntervalMax)
	if began.IsZero() {
		interval = min(interval, unaskedIntervalMax)
	}
	out.NextAt = now.Add(service.Jitter(interval, 0.25))
	if res.NotFound && began.Before(decides) && out.NextAt.Before(decides) {
		// "Not found" settles nothing before then.
		out.NextAt = decides.Add(service.Jitter(100*time.Millisecond, 0.5))
	}
	return out, nil
}
