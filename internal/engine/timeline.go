package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// timelineTimeout limits the calls that store the points of a step. Points that
	// take longer are dropped, so that a slow database has less to do.
	timelineTimeout = 3 * time.Second
	// linesMax limits the templates whose waiting lines are read for a step.
	linesMax = 50
	// foldLease is the lease of the instance that folds points, foldTTL its duration,
	// foldInterval the pause between two rounds, and foldMax the points that one
	// transaction folds.
	foldLease    = "timelines"
	foldTTL      = 30 * time.Second
	foldInterval = time.Minute
	foldMax      = 2000
)

// recorder stores what this instance does as points of the timelines: one write per
// step for everything, and none if nothing happens. If the instance crashes, the
// points of its last step are missing.
type recorder struct {
	rows interface {
		TimelineWrite(ctx context.Context, instance string, p []store.PromotionPoint, t []store.TemplatePoint) error
		Clock(ctx context.Context) (time.Time, error)
	}
	metrics *obs.Metrics
	views   func() map[reward.PromotionID]*store.PromotionView
	pools   func() []pool.Status
	line    func(ctx context.Context, id reward.TemplateID) (coupon.View, error)
	// name is the instance with its start. Another process with the same name may
	// write points of the same step.
	name   string
	report func(error, ...any)
}

// startTimelines starts to record, and to fold if the instance does the housekeeping.
func (e *Engine) startTimelines(ctx context.Context) {
	r := &recorder{
		rows: e.store, metrics: e.metrics, views: e.flow.Views, pools: e.flow.Pools, line: e.coupons.Catalog.Get,
		name: fmt.Sprintf("%s %d", e.instance, time.Now().UnixMilli()), report: e.own.Streak("storing timelines failed", "storing timelines works again"),
	}
	e.background(ctx, r.run)
	if !e.plays(config.RoleHousekeeping) {
		return
	}
	e.background(ctx, func(ctx context.Context) {
		store.Lead(ctx, store.LeadParams{
			Rows: e.store, Lease: store.LeaseTakeParams{Name: foldLease, Owner: e.instance, TTL: foldTTL}, Log: e.own,
			Lead: func(ctx context.Context) {
				every(ctx, foldInterval, e.own.Streak("folding timelines failed", "folding timelines works again"), func(ctx context.Context) error {
					return foldAll(ctx, e.store.TimelineFold, e.store.Clock)
				})
			},
		})
	})
}

// run stores the points of each step at its end, by the clock of the database, and
// those of the last one when ctx ends.
func (r *recorder) run(ctx context.Context) {
	for {
		end, wait := r.next(ctx)
		more := service.Sleep(ctx, wait)
		if err := r.record(context.WithoutCancel(ctx), end.Add(-store.TimelineStep)); err != nil || more {
			r.report(err)
		}
		if !more {
			return
		}
	}
}

// next returns the end of the current step and the time until then. While the
// database does not answer, the instance's own clock decides.
func (r *recorder) next(ctx context.Context) (end time.Time, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timelineTimeout)
	defer cancel()
	now, err := r.rows.Clock(ctx)
	if err != nil {
		now = time.Now()
	}
	end = now.UTC().Truncate(store.TimelineStep).Add(store.TimelineStep)
	return end, end.Sub(now)
}

func (r *recorder) record(ctx context.Context, begin time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, timelineTimeout)
	defer cancel()
	sums := r.metrics.TimelineTake()
	promotions, templates := r.promotions(sums, begin), r.templates(ctx, sums, begin)
	if len(promotions)+len(templates) == 0 {
		return nil
	}
	err := r.rows.TimelineWrite(ctx, r.name, promotions, templates)
	if err != nil {
		r.metrics.TimelineDropped(len(promotions) + len(templates))
	}
	return err
}

// promotions returns the points of the promotions for which anything happened, or
// that have pending entries here.
func (r *recorder) promotions(sums obs.TimelineSums, begin time.Time) []store.PromotionPoint {
	views := r.views()
	active := make(map[reward.PromotionID]bool)
	for id := range sums.Promotions {
		active[id] = true
	}
	for _, p := range r.pools() {
		if p.Pending > 0 && len(active) < obs.SeriesMax {
			active[p.Stream.PromotionID] = true
		}
	}
	if len(active) == 0 {
		return nil
	}
	active[0] = true
	var all int64
	for _, v := range views {
		all += waiting(v)
	}
	points := make([]store.PromotionPoint, 0, len(active))
	for id := range active {
		p := store.PromotionPoint{PromotionID: id, At: begin, Step: store.TimelineStep}
		if s := sums.Promotions[id]; s != nil {
			p.PromotionSums = *s
		}
		switch v := views[id]; {
		case id == 0:
			p.Waiting, p.Samples = all, 1
		case v != nil:
			p.Waiting, p.Samples = waiting(v), 1
		}
		points = append(points, p)
	}
	slices.SortFunc(points, func(a, b store.PromotionPoint) int { return cmp.Compare(a.PromotionID, b.PromotionID) })
	return points
}

func waiting(v *store.PromotionView) int64 {
	return v.Counts.Payouts[reward.Ready] + v.Counts.Payouts[reward.Queued] + v.Counts.Payouts[reward.Retrying]
}

func (r *recorder) templates(ctx context.Context, sums obs.TimelineSums, begin time.Time) []store.TemplatePoint {
	points := make([]store.TemplatePoint, 0, len(sums.Templates))
	lines := 0
	for id, s := range sums.Templates {
		p := store.TemplatePoint{TemplateID: id, At: begin, Step: store.TimelineStep, TemplateSums: *s}
		if id != 0 && lines < linesMax {
			lines++
			if v, err := r.line(ctx, id); err == nil {
				p.Waiting, p.Samples = v.Waiting, 1
			}
		}
		points = append(points, p)
	}
	slices.SortFunc(points, func(a, b store.TemplatePoint) int { return cmp.Compare(a.TemplateID, b.TemplateID) })
	return points
}

// foldAll makes all points coarser that are old enough.
func foldAll(ctx context.Context, foldSome func(context.Context, store.TimelineFoldParams) (int, error), clock func(context.Context) (time.Time, error)) error {
	now, err := clock(ctx)
	if err != nil {
		return err
	}
	from := store.TimelineStep
	for _, f := range store.TimelineFolds {
		for {
			n, err := foldSome(ctx, store.TimelineFoldParams{From: from, To: f.Step, Before: now.Add(-f.Age), Limit: foldMax})
			if err != nil {
				return err
			}
			if n < foldMax {
				break
			}
		}
		from = f.Step
	}
	return nil
}
