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
	// failureWindow is the number of settled payouts that the failure rate
	// covers. A share of FAILED above failureRateMax pauses the promotion.
	failureWindow  = 1000
	failureRateMax = 0.5
	// spentAfter is the time for which a budget must block every payout before
	// the promotion is paused. The feeder tries several times per second.
	spentAfter = 3 * time.Second
	// startInterval separates looks for scheduled starts.
	startInterval = time.Second
	startBatch    = store.BatchMax
)

// Guard pauses promotions that a person must decide on, and starts scheduled
// ones. It judges canaries, and pauses promotions with too many failures, a
// spent budget, or a value that needs an approval.
type Guard struct {
	service.Base
	cfg GuardConfig
	log obs.Log
	// decided holds each promotion's settled counts of recent reads. Only run's
	// goroutine uses it and waiting.
	decided map[reward.PromotionID][]decidedAt
	waiting map[reward.PromotionID]waitingSince
}

// GuardConfig configures a Guard.
type GuardConfig struct {
	Store store.Promotions
	Cache *StatusCache
	// ApprovalAbove is the value above which a promotion needs a second
	// person's approval, in minor units. Zero means no limit.
	ApprovalAbove reward.Amount
	// Start starts a promotion as an operator would; nil starts none.
	Start func(ctx context.Context, id reward.PromotionID) error
	Log   obs.Log
}

// decidedAt holds the settled counts of one read.
type decidedAt struct{ succeeded, failed int64 }

func (d decidedAt) sum() int64 { return d.succeeded + d.failed }

// NewGuard returns a guard that watches the promotions of the cache.
func NewGuard(cfg GuardConfig) *Guard {
	return &Guard{
		cfg: cfg, log: cfg.Log.For(obs.Guard),
		decided: make(map[reward.PromotionID][]decidedAt), waiting: make(map[reward.PromotionID]waitingSince),
	}
}

// run watches until ctx ends.
func (g *Guard) run(ctx context.Context) {
	startAt := time.Now()
	for ctx.Err() == nil {
		fresh := g.cfg.Cache.next()
		views := g.cfg.Cache.Views()
		for id := range g.decided {
			if v := views[id]; v == nil || v.Status != reward.Running {
				delete(g.decided, id) // a resumed promotion starts over
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
			startAt = now.Add(service.Jitter(startInterval, 0.2))
			g.startDue(ctx, now)
		}
		select {
		case <-fresh:
		case <-ctx.Done():
		}
	}
}

// watch checks one promotion.
func (g *Guard) watch(ctx context.Context, v store.PromotionView) error {
	if v.Status != reward.Running {
		return nil
	}
	if v.CanaryDecided() {
		return g.judge(ctx, v)
	}
	if above := g.cfg.ApprovalAbove; above > 0 && v.ApprovedBy == "" && v.Counts.AmountTotal() > above {
		return g.pause(ctx, v, "", fmt.Sprintf("its value %d exceeds approval.above = %d: ask a second person to approve it, then resume", v.Counts.AmountTotal(), above))
	}
	if g.spent(v) {
		return g.pause(ctx, v, "", fmt.Sprintf("the next payout would exceed the budget maxAmount = %d, of which %d is spent", v.MaxAmount, v.Counts.Amounts[reward.Succeeded]))
	}
	if failed, of := g.failureRate(v); failed > 0 {
		return g.pause(ctx, v, "", fmt.Sprintf("%d of the last %d settled payouts failed: check their error codes before you resume", failed, of))
	}
	return nil
}

// judge judges a canary whose targets are settled.
func (g *Guard) judge(ctx context.Context, v store.PromotionView) error {
	reason := fmt.Sprintf("the canary is bad: %d of the first %d failed, more than a share of %g; resume to pay the others anyway",
		v.Counts.Payouts[reward.Failed], v.Canary.Dispatched, v.Canary.MaxFailureRate)
	status, did, err := g.cfg.Store.PromotionJudge(ctx, store.PromotionJudgeParams{
		ID: v.ID, Reason: reason, Event: store.EventCanary, Now: time.Now(),
	})
	if err != nil || !did {
		return err
	}
	g.log.Info("canary judged", "promotion_id", v.ID, "canary", v.Canary.Dispatched, "status", status)
	g.cfg.Cache.Hint()
	return nil
}

// spent reports whether the budget blocks every waiting payout: it is too small
// for all that is READY, no open payout could free money by failing, and the
// feeder has dispatched nothing for spentAfter.
func (g *Guard) spent(v store.PromotionView) bool {
	n := &v.Counts.Payouts
	left := v.MaxAmount - v.Counts.Amounts[reward.Succeeded]
	open := n[reward.Queued] + n[reward.Retrying] + n[reward.Unknown]
	blocked := v.MaxAmount > 0 && n[reward.Ready] > 0 && left < v.Counts.Amounts[reward.Ready] && open == 0
	if !blocked {
		delete(g.waiting, v.ID)
		return false
	}
	since, known := g.waiting[v.ID]
	if !known || since.ready != n[reward.Ready] || since.dispatched != v.LastDispatchedAt {
		g.waiting[v.ID] = waitingSince{n[reward.Ready], v.LastDispatchedAt, time.Now()}
		return false
	}
	return time.Since(since.at) >= spentAfter
}

// waitingSince holds the state of a promotion whose budget blocks its payouts.
type waitingSince struct {
	ready      int64
	dispatched time.Time
	at         time.Time
}

// failureRate returns how many of the last failureWindow settled payouts failed
// if their share exceeds failureRateMax, and zeros otherwise. It compares the
// promotion's counts, so it covers all instances.
func (g *Guard) failureRate(v store.PromotionView) (failed, of int64) {
	now := decidedAt{v.Counts.Payouts[reward.Succeeded], v.Counts.Payouts[reward.Failed]}
	past := g.decided[v.ID]
	if n := len(past); n > 0 && (now.failed < past[n-1].failed || now.sum() < past[n-1].sum()) {
		past = nil // an operator has retried failed payouts
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

// pause pauses a promotion.
func (g *Guard) pause(ctx context.Context, v store.PromotionView, event, reason string) error {
	_, err := g.cfg.Store.PromotionMove(ctx, store.PromotionMoveParams{
		ID: v.ID, From: []reward.PromotionStatus{reward.Running}, To: reward.Paused,
		Reason: reason, Event: event, Now: time.Now(),
	})
	if err != nil {
		return err
	}
	// A resumed promotion starts with an empty window.
	delete(g.decided, v.ID)
	delete(g.waiting, v.ID)
	g.log.Warn("promotion paused", errors.New(reason), "promotion_id", v.ID)
	g.cfg.Cache.Hint()
	return nil
}

// startDue starts scheduled promotions that are due. It tries those that may
// not start yet, because they need an approval, again in each round.
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
