package campaign

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// PromotionsConfig is what Promotions needs.
type PromotionsConfig struct {
	Store store.Store
	IDs   *service.IDs
	Log   obs.Log
	// Hint is told which promotion has changed.
	Hint func(reward.PromotionID)
	// MaxRetries is for promotions that name none; nil = reward.MaxRetries.
	MaxRetries *int
	// ApprovalAbove is the worth above which a promotion does not start before a
	// second person has approved it; 0 = never asked for.
	ApprovalAbove reward.Amount
	// Webhooks says that webhooks can be signed; without it a promotion cannot
	// have one.
	Webhooks bool
}

// Promotions is what people do with promotions.
type Promotions struct {
	cfg PromotionsConfig
	log obs.Log
}

// NewPromotions makes Promotions.
func NewPromotions(cfg PromotionsConfig) *Promotions {
	return &Promotions{cfg: cfg, log: cfg.Log.For(obs.Engine)}
}

// Get returns a promotion with its counts.
func (s *Promotions) Get(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.cfg.Store.PromotionGet(ctx, id)
}

// Summaries returns the counts per promotionSummaryId, by id, at most
// store.BatchMax of them.
func (s *Promotions) Summaries(ctx context.Context, id reward.PromotionID) ([]reward.Summary, error) {
	return s.cfg.Store.SummaryList(ctx, id, store.BatchMax)
}

// List pages over promotions, the newest first.
func (s *Promotions) List(ctx context.Context, p store.PromotionListParams) ([]store.PromotionView, error) {
	return s.cfg.Store.PromotionList(ctx, p)
}

// action is something to do with a promotion, and when it may be done.
type action struct {
	name string
	from []reward.PromotionStatus
	to   reward.PromotionStatus // "" = the status stays, or goes with the row
}

// The actions.
var (
	actionStart   = action{"start", []reward.PromotionStatus{reward.Draft}, reward.Running}
	actionPause   = action{"pause", []reward.PromotionStatus{reward.Running}, reward.Paused}
	actionResume  = action{"resume", []reward.PromotionStatus{reward.Paused}, reward.Running}
	actionCancel  = action{"cancel", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused}, reward.PromotionCancelled}
	actionApprove = action{"approve", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused}, ""}
	actionRetry   = action{"retry", []reward.PromotionStatus{reward.Running, reward.Paused, reward.Completed}, ""}
	actionClose   = action{"close", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed}, ""}
	actionDelete  = action{"delete", []reward.PromotionStatus{reward.Draft}, ""}

	actions = []action{actionStart, actionApprove, actionPause, actionResume, actionCancel, actionRetry, actionClose, actionDelete}
)

// Start moves a DRAFT to RUNNING; CodeApprovalNeeded when it is worth more than
// ApprovalAbove and nobody has approved it.
func (s *Promotions) Start(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	if err := s.checkApproval(ctx, id, actionStart); err != nil {
		return store.PromotionView{}, err
	}
	return s.move(ctx, id, actionStart, "")
}

// Pause stops a RUNNING promotion from opening new calls.
func (s *Promotions) Pause(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.move(ctx, id, actionPause, "paused by an operator")
}

// Resume lets a PAUSED promotion go on; CodeApprovalNeeded as for Start.
func (s *Promotions) Resume(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	if err := s.checkApproval(ctx, id, actionResume); err != nil {
		return store.PromotionView{}, err
	}
	return s.move(ctx, id, actionResume, "")
}

// Cancel ends a promotion for good: what has not been called is not paid.
func (s *Promotions) Cancel(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.move(ctx, id, actionCancel, "")
}

// Close says that no more targets will come, so that an announced promotion
// may complete below its expected count.
func (s *Promotions) Close(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	view, err := s.Get(ctx, id)
	if err != nil {
		return store.PromotionView{}, err
	}
	if !slices.Contains(actionClose.from, view.Status) {
		return store.PromotionView{}, illegal(actionClose, view.Promotion)
	}
	if _, err := s.cfg.Store.PromotionClose(ctx, id); err != nil {
		return store.PromotionView{}, s.explain(ctx, id, actionClose, err)
	}
	return s.changed(ctx, id, actionClose.name)
}

// Delete removes a DRAFT and its targets.
func (s *Promotions) Delete(ctx context.Context, id reward.PromotionID) error {
	if err := s.cfg.Store.PromotionDelete(ctx, id); err != nil {
		return s.explain(ctx, id, actionDelete, err)
	}
	s.log.Info("promotion updated", "promotion_id", id, "action", actionDelete.name)
	s.cfg.Hint(id)
	return nil
}

func (s *Promotions) move(ctx context.Context, id reward.PromotionID, a action, reason string) (store.PromotionView, error) {
	_, err := s.cfg.Store.PromotionMove(ctx, store.PromotionMoveParams{
		ID: id, From: a.from, To: a.to, Reason: reason, Now: time.Now(),
	})
	if err != nil {
		return store.PromotionView{}, s.explain(ctx, id, a, err)
	}
	return s.changed(ctx, id, a.name)
}

// changed tells everybody and returns the promotion as it stands; more are
// attributes for the log.
func (s *Promotions) changed(ctx context.Context, id reward.PromotionID, what string, more ...any) (store.PromotionView, error) {
	s.log.Info("promotion updated", append([]any{"promotion_id", id, "action", what}, more...)...)
	s.cfg.Hint(id)
	return s.Get(ctx, id)
}

// explain makes a refused move say what is allowed instead.
func (s *Promotions) explain(ctx context.Context, id reward.PromotionID, a action, err error) error {
	if !reward.HasCode(err, reward.CodeIllegalState) {
		return err
	}
	view, getErr := s.Get(ctx, id)
	if getErr != nil {
		return errors.Join(err, getErr)
	}
	return illegal(a, view.Promotion)
}

func illegal(a action, p reward.Promotion) error {
	var allowed []string
	for _, other := range actions {
		if slices.Contains(other.from, p.Status) {
			allowed = append(allowed, other.name)
		}
	}
	if len(allowed) == 0 {
		allowed = []string{"nothing"}
	}
	from := make([]string, len(a.from))
	for i, f := range a.from {
		from[i] = string(f)
	}
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"promotion %s is %s, and %s needs %s; allowed now: %s",
		p.ID, p.Status, a.name, strings.Join(from, " or "), strings.Join(allowed, ", "))
}

// Payouts pages over the payouts of a promotion, by target id.
func (s *Promotions) Payouts(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error) {
	if p.After == nil {
		// An empty page of an unknown promotion would look like success.
		if _, err := s.Get(ctx, p.PromotionID); err != nil {
			return nil, err
		}
	}
	return s.cfg.Store.PayoutList(ctx, p)
}

// Payout returns one payout with its attempts.
func (s *Promotions) Payout(ctx context.Context, id store.PayoutID) (reward.Payout, []reward.Attempt, error) {
	return s.cfg.Store.PayoutGet(ctx, id)
}
