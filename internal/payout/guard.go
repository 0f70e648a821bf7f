package payout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// failureWindow is how many decided payouts the failure rate is taken over,
	// and failureRateMax the share of FAILED among them that pauses.
	failureWindow  = 1000
	failureRateMax = 0.5
	// spentFor is how long a budget must have kept everything waiting. The feeder
	// looks several times a second.
	spentFor = 3 * time.Second
	// startLook is how often scheduled starts are looked for.
	startLook  = time.Second
	startBatch = store.BatchMax
)

// Guard stops promotions that should not go on without a person, and starts
// those whose time has come: it judges canaries, pauses what fails more often
// than not, what has spent its budget, and what is worth more than one person
// may decide.
type Guard struct {
	service.Base
	cfg GuardConfig
	log obs.Log
	// decided is, per promotion, how its counts have moved. Only run's goroutine
	// looks at it.
	decided map[reward.PromotionID][]decidedAt
	waiting map[reward.PromotionID]waitingSince // likewise
}

// GuardConfig is what a Guard needs.
type GuardConfig struct {
	Store store.Promotions
	Cache *StatusCache
	// ApprovalAbove is what a promotion may be worth without a second person; 0
	// = anything.
	ApprovalAbove reward.Amount
	// Start starts a promotion as a person would.
	Start func(ctx context.Context, id reward.PromotionID) error
	Log   obs.Log
}

// decidedAt is what was decided by the time of a read.
type decidedAt struct{ succeeded, failed int64 }

func (d decidedAt) sum() int64 { return d.succeeded + d.failed }

// NewGuard makes a guard that works on what the cache says.
func NewGuard(cfg GuardConfig) *Guard {
	return &Guard{cfg: cfg, log: cfg.Log.For(obs.Guard), decided: make(map[reward.PromotionID][]decidedAt), waiting: make(map[reward.PromotionID]waitingSince)}
}

// run watches until ctx ends.
func (g *Guard) run(ctx context.Context) {
	startAt := time.Now()
	for ctx.Err() == nil {
		fresh := g.cfg.Cache.next()
		views := g.cfg.Cache.Views()
		for id := range g.decided {
			if v := views[id]; v == nil || v.Status != reward.Running {
				delete(g.decided, id) // a resume begins anew
			}
		}
		for id := range g.waiting {
			if v := views[id]; v == nil || v.Status != reward.Running {
				delete(g.waiting, id)
			}
		}
		for _, v := range views {
			if err := g.watch(ctx, *v); err != nil && ctx.Err() == nil && !reward.HasCode(err, reward.CodeIllegalState) {
				g.log.Warn("checking promotion failed", err, "promotion_id", v.ID)
			}
		}
		if now := time.Now(); !now.Before(startAt) && g.cfg.Start != nil {
			startAt = now.Add(service.Jitter(startLook, 0.2))
			g.startDue(ctx, now)
		}
		select {
		case <-fresh:
		case <-ctx.Done():
		}
	}
}

// watch looks at one promotion.
func (g *Guard) watch(ctx context.Context, v store.PromotionView) error {
	if v.Status != reward.Running {
		return nil
	}
	if v.CanaryDecided() {
		return g.judge(ctx, v)
	}
	if above := g.cfg.ApprovalAbove; above > 0 && v.ApprovedBy == "" && v.Counts.AmountTotal() > above {
		return g.pause(ctx, v, "", fmt.Sprintf("it is worth %d, and what is worth more than approval.above = %d needs the approval of a second person", v.Counts.AmountTotal(), above))
	}
	if g.spent(v) {
		return g.pause(ctx, v, "", fmt.Sprintf("the next payout would pass its budget, maxAmount = %d, of which %d is spent", v.MaxAmount, v.Counts.Amounts[reward.Succeeded]))
	}
	if failed, of := g.failureRate(v); failed > 0 {
		return g.pause(ctx, v, "", fmt.Sprintf("%d of the last %d payouts that were decided failed: look at their error codes before you resume", failed, of))
	}
	return nil
}

func (g *Guard) judge(ctx context.Context, v store.PromotionView) error {
	reason := fmt.Sprintf("the canary is bad: %d of the first %d failed, more than a share of %g; resume to pay the others all the same",
		v.Counts.Payouts[reward.Failed], v.Canary.Dispatched, v.Canary.MaxFailureRate)
	status, did, err := g.cfg.Store.PromotionJudge(ctx, store.PromotionJudgeParams{ID: v.ID, Reason: reason, Event: store.EventCanary, Now: time.Now()})
	if err != nil || !did {
		return err
	}
	g.log.Info("canary judged", "promotion_id", v.ID, "canary", v.Canary.Dispatched, "status", status)
	g.cfg.Cache.Hint()
	return nil
}

// spent says that what is left of a budget is too little for the payout that is
// next: it is too little for all that waits, something waits, nothing is open that could free money by failing, and
// that has been so for spentFor, in which the feeder has tried.
func (g *Guard) spent(v store.PromotionView) bool {
	n := &v.Counts.Payouts
	waits := v.MaxAmount > 0 && n[reward.Ready] > 0 && v.MaxAmount-v.Counts.Amounts[reward.Succeeded] < v.Counts.Amounts[reward.Ready] && n[reward.Queued]+n[reward.Retrying]+n[reward.Unknown] == 0
	if !waits {
		delete(g.waiting, v.ID)
		return false
	}
	since, known := g.waiting[v.ID]
	if !known || since.ready != n[reward.Ready] || since.dispatched != v.LastDispatchedAt {
		g.waiting[v.ID] = waitingSince{n[reward.Ready], v.LastDispatchedAt, time.Now()}
		return false
	}
	return time.Since(since.at) >= spentFor
}

// waitingSince is a promotion with a budget of which nothing moves.
type waitingSince struct {
	ready      int64
	dispatched time.Time
	at         time.Time
}

// failureRate says how many of the last failureWindow decided payouts failed,
// when that is more than failureRateMax of them; else 0. It goes by the counts,
// so it sees what all instances do.
func (g *Guard) failureRate(v store.PromotionView) (failed, of int64) {
	now := decidedAt{v.Counts.Payouts[reward.Succeeded], v.Counts.Payouts[reward.Failed]}
	past := g.decided[v.ID]
	if n := len(past); n > 0 && (now.failed < past[n-1].failed || now.sum() < past[n-1].sum()) {
		past = nil // somebody has retried what had failed
	}
	if n := len(past); n == 0 || now != past[n-1] {
		past = append(past, now)
	}
	for len(past) > 2 && now.sum()-past[1].sum() >= failureWindow {
		past = past[1:]
	}
	g.decided[v.ID] = past
	failed, of = now.failed-past[0].failed, now.sum()-past[0].sum()
	if of < failureWindow || float64(failed) <= failureRateMax*float64(of) {
		return 0, 0
	}
	return failed, of
}

func (g *Guard) pause(ctx context.Context, v store.PromotionView, event, reason string) error {
	_, err := g.cfg.Store.PromotionMove(ctx, store.PromotionMoveParams{
		ID: v.ID, From: []reward.PromotionStatus{reward.Running}, To: reward.Paused, Reason: reason, Event: event, Now: time.Now(),
	})
	if err != nil {
		return err
	}
	// Whoever resumes it gives it a window of its own.
	delete(g.decided, v.ID)
	delete(g.waiting, v.ID)
	g.log.Warn("promotion paused", errors.New(reason), "promotion_id", v.ID)
	g.cfg.Cache.Hint()
	return nil
}

// startDue starts what was scheduled. What may not start (it needs an approval)
// is asked again at every look.
func (g *Guard) startDue(ctx context.Context, now time.Time) {
	due, err := g.cfg.Store.PromotionDue(ctx, now, startBatch)
	if err != nil {
		if ctx.Err() == nil {
			g.log.Warn("reading scheduled promotions failed", err)
		}
		return
	}
	for _, v := range due {
		if err := g.cfg.Start(ctx, v.ID); err != nil && ctx.Err() == nil {
			g.log.Debug("scheduled start refused", "error", err, "promotion_id", v.ID)
		}
	}
}
