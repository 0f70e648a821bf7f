package coupon

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// holdSweeper cancels coupons that were not confirmed in time. Several instances
// may sweep at once: the statement that cancels a coupon also counts it, so its
// place is free exactly once. After a crash between the commit and the apply, the
// GateMaintainer applies the change.
type holdSweeper struct {
	rows    Store
	ended   func(ctx context.Context, change *store.CouponChange) // called after each change
	metrics *obs.Metrics
	log     obs.Log
}

// run sweeps until ctx ends.
func (s *holdSweeper) run(ctx context.Context) {
	report := s.log.Streak("ending holds failed", "")
	for ctx.Err() == nil {
		more, err := s.sweep(ctx)
		if ctx.Err() == nil {
			report(err)
		}
		if !more || err != nil {
			service.Sleep(ctx, service.Jitter(sweepInterval, 0.2))
		}
	}
}

// sweep cancels at most sweepBatch coupons of each template. It reports whether a
// template may have more. The failure of one template does not stop the others.
func (s *holdSweeper) sweep(ctx context.Context) (more bool, err error) {
	var errs []error
	for after := reward.TemplateID(0); ctx.Err() == nil; {
		due, err := s.rows.HoldsEnded(ctx, after, sweepPage)
		if err != nil {
			return more, errors.Join(append(errs, err)...)
		}
		var wg sync.WaitGroup
		for _, id := range due {
			change, n, err := s.rows.CouponEndHolds(ctx, id, sweepBatch)
			if err != nil {
				errs = append(errs, fmt.Errorf("template %s: %w", id, err))
				continue
			}
			more = more || n == sweepBatch
			if n > 0 {
				s.metrics.HoldsExpired(n)
				wg.Go(func() { s.ended(ctx, &change) }) // not in turn: a gate may hang
			}
		}
		wg.Wait()
		if len(due) < sweepPage {
			break
		}
		after = due[len(due)-1]
	}
	return more, errors.Join(errs...)
}
