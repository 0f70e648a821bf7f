package engine

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// waitsInterval separates two reads of how long payouts wait.
	waitsInterval = 15 * time.Second
	// waitsTimeout limits such a read.
	waitsTimeout = store.ViewerWait + store.ViewerTimeout
)

// waits measures how long the oldest payouts wait, and counts promotions that wait for a
// person, for the metrics. It reads on the connections for reads that are only shown, so
// that it takes none from payouts.
type waits struct {
	rows interface {
		PayoutOldest(ctx context.Context) (store.OldestPayouts, error)
		Clock(ctx context.Context) (time.Time, error)
	}
	// promotions returns the active promotions as of the latest read.
	promotions    func() map[reward.PromotionID]*store.PromotionView
	approvalAbove reward.Limits
	metrics       *obs.Metrics
}

// startWaits starts to measure, if the instance does the housekeeping.
func (e *Engine) startWaits(ctx context.Context) {
	if !e.plays(config.RoleHousekeeping) {
		return
	}
	w := &waits{rows: e.store, promotions: e.flow.Views, approvalAbove: e.above, metrics: e.metrics}
	e.background(ctx, func(ctx context.Context) {
		every(ctx, waitsInterval, e.own.Streak("measuring waits of payouts failed", "waits of payouts are measured again"), w.measure)
	})
}

// measure counts the promotions that a person must resume, and reads the oldest payouts.
// Their times are the database's, so it translates them to the clock of this instance.
func (w *waits) measure(ctx context.Context) error {
	paused := 0
	for _, v := range w.promotions() {
		if campaign.PausedByLargesse(v, w.approvalAbove) {
			paused++
		}
	}
	w.metrics.PromotionsPaused(paused)
	ctx, cancel := context.WithTimeout(store.ForViewer(ctx), waitsTimeout)
	defer cancel()
	there, err := w.rows.Clock(ctx)
	if err != nil {
		return err
	}
	here := time.Now()
	oldest, err := w.rows.PayoutOldest(ctx)
	if err != nil {
		return err
	}
	local := func(since time.Time) time.Time {
		if since.IsZero() {
			return since
		}
		return here.Add(since.Sub(there))
	}
	w.metrics.SetWaits(local(oldest.ReadySince), local(oldest.StalledSince), local(oldest.UnknownSince))
	return nil
}
