package payout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// failureWindow is the number of ended payouts that the failure rate covers. If more
	// than the share failureRateMax of them is FAILED, the promotion is paused.
	failureWindow  = 1000
	failureRateMax = 0.5
	// spentAfter is how long a budget must block every payout before the
	// promotion is paused. The feeder tries to dispatch several times per second.
	spentAfter = 3 * time.Second
	// startInterval separates searches for scheduled starts that are due.
	startInterval = time.Second
	startBatch    = store.BatchMax
	// askInterval separates searches for scheduled promotions that wait for an approval.
	askInterval = 5 * time.Second
)

// Guard pauses promotions that a person must decide about: those with a bad
// canary, too many failures, a spent budget, or an amount that needs an approval, and
// those that have ended. It also starts scheduled promotions, and asks for their approval
// before.
type Guard struct {
	service.Base
	*shared
	log obs.Log
	// decided holds each promotion's counts of recent reads, oldest first, waiting the
	// promotions whose budget blocks every payout, and again those to check at the next
	// read although they may not have changed: their check failed, or they were paused,
	// and may be resumed by then. Only run's goroutine uses these maps.
	decided map[reward.PromotionID][]decidedCounts
	waiting map[reward.PromotionID]waitingSince
	again   map[reward.PromotionID]bool
}

// decidedCounts holds how many payouts were SUCCEEDED and FAILED at one read.
type decidedCounts struct{ succeeded, failed int64 }

func (d decidedCounts) sum() int64 { return d.succeeded + d.failed }

func newGuard(s *shared) *Guard {
	return &Guard{
		shared: s, log: s.cfg.Log.For(obs.Guard),
		decided: make(map[reward.PromotionID][]decidedCounts), waiting: make(map[reward.PromotionID]waitingSince),
		again: make(map[reward.PromotionID]bool),
	}
}

func (g *Guard) run(ctx context.Context) {
	follow := g.cache.follow(func(v *store.PromotionView) bool { return v.Status == reward.Running && !v.EndsAt.IsZero() })
	defer follow.end()
	startAt, askAt := time.Now(), time.Now()
	for ctx.Err() == nil {
		g.round(ctx, follow)
		if g.cfg.Start != nil {
			now := time.Now()
			if !now.Before(startAt) {
				startAt = now.Add(service.Jitter(startInterval, 0.2))
				g.startDue(ctx)
			}
			if !now.Before(askAt) && !g.cfg.ApprovalAbove.None() {
				askAt = now.Add(service.Jitter(askInterval, 0.2))
				g.askScheduled(ctx)
			}
		}
		select {
		case <-follow.fresh:
		case <-ctx.Done():
		}
	}
}

// round checks the promotions that have changed, those that will end, and those of again
// and waiting.
func (g *Guard) round(ctx context.Context, follow *follower) {
	due, views := follow.take()
	maps.Copy(due, follow.wanted)
	maps.Copy(due, g.again)
	for id := range g.waiting {
		due[id] = true
	}
	clear(g.again)
	for id := range due {
		v := views[id]
		if v == nil || v.Status != reward.Running {
			delete(g.decided, id) // a resumed promotion starts over
			delete(g.waiting, id)
			continue
		}
		if err := g.watch(ctx, *v); err != nil && ctx.Err() == nil {
			g.again[id] = true
			if !reward.HasCode(err, reward.CodeIllegalState) {
				g.log.Warn("checking promotion failed", err, "promotion_id", id)
			}
		}
	}
}

func (g *Guard) watch(ctx context.Context, v store.PromotionView) error {
	if ended, err := g.end(ctx, v); err != nil || ended {
		return err
	}
	if v.CanaryDecided() {
		return g.judge(ctx, v)
	}
	if rules.ApprovalNeeded(v.Promotion, v.Counts.AmountTotal(), g.cfg.ApprovalAbove) {
		if paused, err := g.awaitApproval(ctx, v); err != nil || paused {
			return err
		}
	}
	if g.spent(v) {
		return g.pause(ctx, v, fmt.Sprintf("the next payout would exceed the budget maxAmount = %s, of which %s is spent",
			v.MaxAmount.In(v.Currency), v.Counts.Amounts[reward.Succeeded].In(v.Currency)))
	}
	if failed, of := g.failureRate(v); failed > 0 {
		return g.pause(ctx, v, fmt.Sprintf("%d of the last %d payouts that ended failed: check their error codes before you resume", failed, of))
	}
	return nil
}

// end pauses a promotion that has ended and has payouts left.
func (g *Guard) end(ctx context.Context, v store.PromotionView) (bool, error) {
	if v.EndsAt.IsZero() {
		return false, nil
	}
	now, err := g.rows.clock.earliest(ctx)
	if err != nil {
		return false, err
	}
	next, ends := rules.End(v.Promotion, v.Counts, now)
	if !ends {
		return false, nil
	}
	ended, err := g.rows.PromotionEnd(ctx, v.ID)
	if ended {
		g.paused(v.ID, next.PauseReason)
	}
	return ended, err
}

// awaitApproval pauses a promotion that needs an approval, unless its authors have enough
// left for the day, or it has approved payouts left.
func (g *Guard) awaitApproval(ctx context.Context, v store.PromotionView) (bool, error) {
	if v.Counts.Payouts[reward.Ready]+v.Counts.Payouts[reward.Retrying] == 0 || rules.ApprovedLeft(v.Promotion, v.Counts) {
		return false, nil
	}
	if rules.AsksForGrant(v.Promotion, v.Counts.AmountTotal(), g.cfg.ApprovalAbove, g.cfg.ApprovalPerDay) {
		granted, err := g.rows.PromotionGrant(ctx, store.PromotionGrantParams{ID: v.ID, PerDay: g.cfg.ApprovalPerDay, Now: time.Now()})
		if err != nil || granted {
			g.cache.Hint()
			return false, err
		}
	}
	reason := fmt.Sprintf("waits for an approval: it %s; ask someone who did not create, change or fill it to approve it, then resume",
		rules.WhyApproval(v.Promotion, v.Counts, g.cfg.ApprovalAbove))
	paused, err := g.rows.PromotionAwaitApproval(ctx, store.PromotionAwaitApprovalParams{
		ID: v.ID, ApprovalAbove: g.cfg.ApprovalAbove, Reason: reason, Event: store.EventApproval, Now: time.Now(),
	})
	if err == nil && paused {
		g.paused(v.ID, reason)
	}
	return paused, err
}

// judge judges a canary of which every payout is SUCCEEDED or FAILED.
func (g *Guard) judge(ctx context.Context, v store.PromotionView) error {
	reason := fmt.Sprintf("the canary is bad: %d of the first %d failed, more than a share of %g; resume to pay the others anyway",
		v.Counts.Payouts[reward.Failed], v.Canary.Dispatched, v.Canary.MaxFailureRate)
	status, did, err := g.rows.PromotionJudge(ctx, store.PromotionJudgeParams{
		ID: v.ID, Reason: reason, Event: store.EventCanary, Now: time.Now(),
	})
	if err != nil || !did {
		return err
	}
	g.log.Info("canary judged", "promotion_id", v.ID, "canary", v.Canary.Dispatched, "status", status)
	g.cache.Hint()
	return nil
}

// spent reports whether, for spentAfter, the READY payouts together exceed what is left
// of the budget, no payout is QUEUED, RETRYING or UNKNOWN, which could free money by
// failing, and the feeder dispatches nothing.
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

// waitingSince is the state of a promotion when its budget began to block every payout.
type waitingSince struct {
	ready      int64     // READY payouts
	dispatched time.Time // of the latest dispatch
	at         time.Time // when this state was first seen
}

// failureRate covers about the last failureWindow payouts of all instances that became
// SUCCEEDED or FAILED. It returns the FAILED ones and all of them if the share of FAILED
// ones exceeds failureRateMax, and zeros otherwise.
func (g *Guard) failureRate(v store.PromotionView) (failed, of int64) {
	now := decidedCounts{v.Counts.Payouts[reward.Succeeded], v.Counts.Payouts[reward.Failed]}
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

func (g *Guard) pause(ctx context.Context, v store.PromotionView, reason string) error {
	err := g.movePaused(ctx, v.ID, reason)
	if err == nil {
		g.paused(v.ID, reason)
	}
	return err
}

// paused forgets a promotion that was paused: if it is resumed, it starts with an empty
// window.
func (g *Guard) paused(id reward.PromotionID, reason string) {
	g.again[id] = true
	delete(g.decided, id)
	delete(g.waiting, id)
	g.log.Warn("promotion paused", errors.New(reason), "promotion_id", id)
	g.cache.Hint()
}

// startDue starts the scheduled promotions that are due. Each round tries again those
// that could not start.
func (g *Guard) startDue(ctx context.Context) {
	due, err := g.rows.PromotionDue(ctx, startBatch)
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

// askScheduled asks for the approvals of scheduled promotions, so that somebody has the time
// until the start.
func (g *Guard) askScheduled(ctx context.Context) {
	unasked, err := g.rows.PromotionUnasked(ctx, time.Now(), startBatch)
	if err != nil {
		if ctx.Err() == nil {
			g.log.Warn("reading scheduled promotions failed", err)
		}
		return
	}
	for _, v := range unasked {
		if !rules.AwaitsApproval(v.Promotion, v.Counts, g.cfg.ApprovalAbove) {
			continue
		}
		if _, err := g.rows.PromotionAskApproval(ctx, v.ID, g.cfg.ApprovalAbove); err != nil && ctx.Err() == nil {
			g.log.Warn("asking for an approval failed", err, "promotion_id", v.ID)
		}
	}
}
