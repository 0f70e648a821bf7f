package books

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// busy is a store whose small reads and writes wait for others.
type busy struct {
	bookRows
	wait time.Duration
}

func (s *busy) PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	if !service.Sleep(ctx, s.wait) {
		return store.PromotionView{}, ctx.Err()
	}
	return s.bookRows.PromotionGet(ctx, id)
}

func (s *busy) ReconciliationSave(ctx context.Context, r store.Reconciliation) error {
	if !service.Sleep(ctx, s.wait) {
		return ctx.Err()
	}
	return s.bookRows.ReconciliationSave(ctx, r)
}

// TestARepairWaitsForABusyDatabase checks that a repair succeeds although uploads delay
// each of its reads and writes by seconds.
func TestARepairWaitsForABusyDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, 3, 1)
		l.rec = New(Config{
			Store: &busy{l.rows, 9 * time.Second}, Queue: l.queue, Charges: l.list, Views: l.activeViews,
			Interval: testInterval, DispatchHorizon: testHorizon, Metrics: l.metrics,
		})
		id := promotion
		report, err := l.rec.Run(t.Context(), ReconcileCommand{PromotionID: &id, Repair: true})
		if err != nil || len(report.Drifts) != 0 || len(report.Skipped) != 0 {
			t.Fatalf("%+v, %v", report, err)
		}
		if stored := l.report(report.ID); stored.Checked != 1 {
			t.Errorf("%+v", stored)
		}
	})
}
