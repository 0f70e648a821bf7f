package books

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// ReconcileCommand describes a reconciliation to run.
type ReconcileCommand struct {
	PromotionID *reward.PromotionID // nil means all active promotions
	// Repair sets the stored counts to those of the rows, lets an ended promotion go on
	// that has payouts left, and acknowledges stream entries that no QUEUED row needs.
	Repair bool
}

// doubt holds the differences that count only if a second check finds them.
type doubt struct {
	id      reward.PromotionID
	charges []store.Drift
	surplus map[string]bool // by entry id; true if the entry may be acknowledged
}

// Run compares the stored counts, the stream and the provider's charges with the rows,
// for one promotion or all active ones. What may be transient it checks again after
// 10 s. It pauses a running promotion whose charges do not match, and stores the report.
func (r *Reconciler) Run(ctx context.Context, cmd ReconcileCommand) (store.ReconciliationReport, error) {
	var ids []reward.PromotionID
	if cmd.PromotionID != nil {
		ids = append(ids, *cmd.PromotionID)
	} else {
		active, err := r.cfg.Store.PromotionActive(ctx)
		if err != nil {
			return store.ReconciliationReport{}, err
		}
		for _, v := range active {
			ids = append(ids, v.ID)
		}
	}
	report := store.ReconciliationReport{ID: r.ids.Next(), Checked: len(ids), Drifts: []store.Drift{}}
	var doubts []doubt
	for _, id := range ids {
		d, err := r.inspect(ctx, id, cmd.Repair, &report)
		if err != nil {
			return store.ReconciliationReport{}, fmt.Errorf("promotion %s: %w", id, err)
		}
		if len(d.charges) > 0 || len(d.surplus) > 0 {
			doubts = append(doubts, d)
		}
	}
	if len(doubts) > 0 && !service.Sleep(ctx, confirmAfter) {
		return store.ReconciliationReport{}, context.Cause(ctx)
	}
	for _, d := range doubts {
		if err := r.confirm(ctx, d, cmd.Repair, &report); err != nil {
			return store.ReconciliationReport{}, fmt.Errorf("promotion %s: %w", d.id, err)
		}
	}
	report.At = time.Now().UTC()
	return report, r.save(ctx, report)
}

// inspect compares once, reports what is certain, and returns the rest.
func (r *Reconciler) inspect(ctx context.Context, id reward.PromotionID, repair bool, report *store.ReconciliationReport) (doubt, error) {
	drifts, err := r.compareRows(ctx, id, repair)
	if err != nil {
		return doubt{}, err
	}
	report.Drifts = append(report.Drifts, drifts...)
	d := doubt{id: id}
	if _, d.charges, err = r.compareFromStart(ctx, id, report); err != nil {
		return d, err
	}
	v, err := r.view(ctx, id)
	if err != nil || r.cfg.Queue == nil {
		return d, err
	}
	if d.surplus, err = r.inspectStream(ctx, queue.StreamOf(v.Promotion), report); err != nil {
		skip(report, id, fmt.Errorf("the stream cannot be compared: %w", err))
	}
	return d, nil
}

func skip(report *store.ReconciliationReport, id reward.PromotionID, err error) {
	report.Skipped = append(report.Skipped, fmt.Sprintf("promotion %s: %v", id, err))
}

// compareFromStart reads the provider's list from its start, or reports why it cannot.
func (r *Reconciler) compareFromStart(ctx context.Context, id reward.PromotionID, report *store.ReconciliationReport) (store.PromotionView, []store.Drift, error) {
	v, drifts, unlisted, err := r.compare(ctx, id, &chargeBook{})
	if unlisted != nil && ctx.Err() == nil {
		skip(report, id, unlisted)
		return v, nil, nil
	}
	return v, drifts, cmp.Or(err, unlisted)
}

// inspectStream compares a stream with the QUEUED rows, which it reads later. An entry
// gets into its stream within one dispatch horizon, so if more rows are QUEUED for
// longer than the stream has entries, some are lost. Surplus entries it returns: a
// consumer may be about to acknowledge them.
func (r *Reconciler) inspectStream(ctx context.Context, s queue.Stream, report *store.ReconciliationReport) (surplus map[string]bool, err error) {
	before := time.Now().Add(-r.cfg.DispatchHorizon)
	info, err := r.cfg.Queue.Info(ctx, s)
	if err != nil {
		return nil, err
	}
	v, err := r.view(ctx, s.PromotionID)
	if err != nil {
		return nil, err
	}
	queued := v.Counts.Payouts[reward.Queued]
	switch {
	case info.Len > queued:
		return r.surplus(ctx, s)
	case info.Len < queued:
		old, err := r.queuedBefore(ctx, s.PromotionID, before)
		if lost := old - info.Len; err == nil && lost > 0 {
			report.Drifts = append(report.Drifts, store.Drift{
				PromotionID: s.PromotionID, What: driftStream, Store: &queued, Redis: &info.Len,
				Detail: fmt.Sprintf("the stream has %d entries, but %d payouts are QUEUED; at least %d of those dispatched more than %v ago lost their entries: the sweeper (role housekeeping) returns them to READY",
					info.Len, queued, lost, r.cfg.DispatchHorizon),
			})
		}
		return nil, err
	}
	return nil, nil
}

func (r *Reconciler) queuedBefore(ctx context.Context, id reward.PromotionID, at time.Time) (int64, error) {
	state, n := reward.Queued, int64(0)
	p := store.PayoutListParams{PromotionID: id, Limit: store.BatchMax, State: &state}
	for {
		rows, err := r.cfg.Store.PayoutList(ctx, p)
		if err != nil {
			return 0, err
		}
		for _, row := range rows {
			if row.DueAt.Before(at) {
				n++
			}
		}
		if len(rows) < store.BatchMax {
			return n, nil
		}
		p.After = &rows[len(rows)-1].TargetID
	}
}

// surplus returns those of a stream's oldest entries that no QUEUED row needs: true if
// the row is not QUEUED under its dispatch any more, so that the entry may be
// acknowledged; false if the entry is unreadable or repeats another one.
func (r *Reconciler) surplus(ctx context.Context, s queue.Stream) (map[string]bool, error) {
	entries, err := r.cfg.Queue.Range(ctx, s, store.BatchMax)
	if err != nil {
		return nil, err
	}
	var ids []store.PayoutID
	for _, e := range entries {
		if e.Readable {
			ids = append(ids, store.PayoutID{PromotionID: s.PromotionID, TargetID: e.TargetID})
		}
	}
	rows, err := r.cfg.Store.PayoutGetMany(ctx, ids)
	if err != nil {
		return nil, err
	}
	live := make(map[reward.Ref]bool, len(rows))
	for _, row := range rows {
		live[row.Ref()] = row.State == reward.Queued
	}
	surplus, seen := make(map[string]bool), make(map[reward.Ref]bool, len(entries))
	for _, e := range entries {
		ref := reward.Ref{PromotionID: s.PromotionID, TargetID: e.TargetID, Dispatch: e.Dispatch}
		switch {
		case !e.Readable:
			surplus[e.ID] = false
		case !live[ref]:
			surplus[e.ID] = true
		case seen[ref]:
			surplus[e.ID] = false
		}
		if e.Readable {
			seen[ref] = true
		}
	}
	return surplus, nil
}

func (r *Reconciler) confirm(ctx context.Context, d doubt, repair bool, report *store.ReconciliationReport) error {
	if len(d.charges) > 0 {
		v, drifts, err := r.compareFromStart(ctx, d.id, report)
		if err != nil {
			return err
		}
		again := confirmed(d.charges, drifts)
		report.Drifts = append(report.Drifts, again...)
		if len(again) > 0 {
			if err := r.handle(ctx, v, again); err != nil {
				return err
			}
		}
	}
	if len(d.surplus) == 0 {
		return nil
	}
	if err := r.confirmStream(ctx, d, repair, report); err != nil {
		skip(report, d.id, fmt.Errorf("the stream cannot be compared: %w", err))
	}
	return nil
}

func (r *Reconciler) confirmStream(ctx context.Context, d doubt, repair bool, report *store.ReconciliationReport) error {
	v, err := r.view(ctx, d.id)
	if err != nil {
		return err
	}
	info, err := r.cfg.Queue.Info(ctx, queue.StreamOf(v.Promotion))
	if err != nil {
		return err
	}
	now, err := r.surplus(ctx, queue.StreamOf(v.Promotion))
	if err != nil {
		return err
	}
	var settled []string
	stuck := 0
	for id, isSettled := range now {
		if _, before := d.surplus[id]; !before {
			continue
		}
		stuck++
		if isSettled {
			settled = append(settled, id)
		}
	}
	if stuck == 0 {
		return nil
	}
	queued := v.Counts.Payouts[reward.Queued]
	drift := store.Drift{
		PromotionID: d.id, What: driftStream, Store: &queued, Redis: &info.Len,
		Detail: fmt.Sprintf("the stream has %d entries, but %d payouts are QUEUED; %d of its oldest entries are surplus, %d of them because their dispatch is settled: consumers acknowledge these when they claim them, a repair does it immediately",
			info.Len, queued, stuck, len(settled)),
	}
	if repair && len(settled) > 0 {
		if err := r.cfg.Queue.Ack(ctx, queue.StreamOf(v.Promotion), settled); err != nil {
			return err
		}
		drift.Repaired = len(settled) == stuck
	}
	report.Drifts = append(report.Drifts, drift)
	return nil
}
