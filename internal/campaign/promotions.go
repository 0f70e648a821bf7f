package campaign

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

type promotionRows interface {
	PromotionCreate(ctx context.Context, p reward.Promotion) (reward.Promotion, error)
	PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error)
	PromotionChange(ctx context.Context, c rules.PromotionChange) (store.PromotionView, error)
	PromotionMove(ctx context.Context, p store.PromotionMoveParams) (reward.Promotion, error)
	PromotionClose(ctx context.Context, id reward.PromotionID) (reward.Promotion, error)
	PromotionDelete(ctx context.Context, id reward.PromotionID) error
	PromotionAuthors(ctx context.Context, id reward.PromotionID) ([]string, error)
	PromotionApprove(ctx context.Context, p store.PromotionApproveParams) (store.PromotionView, error)
	PromotionReject(ctx context.Context, p store.PromotionRejectParams) (reward.Promotion, error)
	PromotionAskApproval(ctx context.Context, id reward.PromotionID, above reward.Limits) (asked bool, err error)
	PromotionGrant(ctx context.Context, p store.PromotionGrantParams) (granted bool, err error)
	PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error)
	PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error)
	PayoutResolve(ctx context.Context, p store.PayoutResolveParams) (reward.Payout, error)
}

// PromotionsConfig configures Promotions.
type PromotionsConfig struct {
	Store promotionRows
	IDs   *service.IDs
	Log   obs.Log
	// Hint is called with each promotion that changed.
	Hint func(reward.PromotionID)
	// MaxRetries is the default of promotions; nil means reward.MaxRetries.
	MaxRetries *int
	// ApprovalAbove is the worth above which another person must approve; zero: never.
	ApprovalAbove reward.Limits
	// ApprovalPerDay is the worth of the promotions of one author that start within
	// rules.GrantsDay above which that is so, too. Zero means no limit.
	ApprovalPerDay reward.Limits
	// Payable says which promotions the provider can pay.
	Payable reward.Payable
	// Webhooks means that deliveries can be signed, so that promotions may have one.
	Webhooks bool
}

// Promotions carries out commands on promotions. It is safe for concurrent use.
type Promotions struct {
	cfg PromotionsConfig
	log obs.Log
}

// NewPromotions returns Promotions with the given configuration.
func NewPromotions(cfg PromotionsConfig) *Promotions {
	return &Promotions{cfg: cfg, log: cfg.Log.For(obs.Engine)}
}

// action is a command on a promotion and the statuses that allow it.
type action struct {
	name string
	from []reward.PromotionStatus
	to   reward.PromotionStatus // "" if the action does not change the status
}

// The actions.
var (
	actionStart   = action{"start", []reward.PromotionStatus{reward.Draft}, reward.Running}
	actionPause   = action{"pause", []reward.PromotionStatus{reward.Running}, reward.Paused}
	actionResume  = action{"resume", []reward.PromotionStatus{reward.Paused}, reward.Running}
	actionCancel  = action{"cancel", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused}, reward.PromotionCancelled}
	actionApprove = action{"approve", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused}, ""}
	actionReject  = action{"reject", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused}, ""}
	actionRetry   = action{"retry", []reward.PromotionStatus{reward.Running, reward.Paused, reward.Completed}, ""}
	actionClose   = action{"close", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed}, ""}
	actionDelete  = action{"delete", []reward.PromotionStatus{reward.Draft}, ""}

	actions = []action{
		actionStart, actionApprove, actionReject, actionPause, actionResume, actionCancel, actionRetry, actionClose, actionDelete,
	}
)

// Start moves a DRAFT to RUNNING. It fails with CodeApprovalNeeded, and with
// CodeIllegalState if the provider cannot pay the promotion.
func (s *Promotions) Start(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.run(ctx, id, actionStart)
}

// Pause pauses a RUNNING promotion for a person, so that it opens no new call. They may
// give a reason.
func (s *Promotions) Pause(ctx context.Context, id reward.PromotionID, by, reason string) (store.PromotionView, error) {
	if reason == "" {
		reason = "paused by " + reward.Quote(by)
	} else if wrong := checkReason("reason", reason); len(wrong) > 0 {
		return store.PromotionView{}, reward.InvalidFields("the pause", wrong)
	}
	return s.move(ctx, id, actionPause, by, reason)
}

// Resume moves a PAUSED promotion to RUNNING. It fails like Start.
func (s *Promotions) Resume(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.run(ctx, id, actionResume)
}

// run starts or resumes a promotion, which may be older than the settings of Payable.
func (s *Promotions) run(ctx context.Context, id reward.PromotionID, a action) (store.PromotionView, error) {
	view, err := s.cfg.Store.PromotionGet(ctx, id)
	if err != nil {
		return store.PromotionView{}, err
	}
	if slices.Contains(a.from, view.Status) {
		if wrong := s.cfg.Payable.Check(view.Type, view.Currency); wrong != nil {
			return store.PromotionView{}, reward.NewError(reward.KindConflict, reward.CodeIllegalState,
				"promotion %s cannot %s: its %s %s", id, a.name, wrong.Field, wrong.Detail)
		}
	}
	if rules.AsksForGrant(view.Promotion, view.Counts.AmountTotal(), s.cfg.ApprovalAbove, s.cfg.ApprovalPerDay) {
		// Without the grant, the move is refused.
		if _, err := s.cfg.Store.PromotionGrant(ctx, store.PromotionGrantParams{ID: id, PerDay: s.cfg.ApprovalPerDay, Now: time.Now()}); err != nil {
			return store.PromotionView{}, err
		}
	}
	return s.move(ctx, id, a, "", "")
}

// Cancel ends a promotion permanently for a person, without further charges.
func (s *Promotions) Cancel(ctx context.Context, id reward.PromotionID, by string) (store.PromotionView, error) {
	return s.move(ctx, id, actionCancel, by, "")
}

// Close declares that no more targets will come, whatever count was expected.
func (s *Promotions) Close(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	view, err := s.cfg.Store.PromotionGet(ctx, id)
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
	s.report(id, actionDelete.name)
	return nil
}

// move changes the status of a promotion. by is who pauses or cancels it.
func (s *Promotions) move(ctx context.Context, id reward.PromotionID, a action, by, reason string) (store.PromotionView, error) {
	_, err := s.cfg.Store.PromotionMove(ctx, store.PromotionMoveParams{
		ID: id, From: a.from, To: a.to, By: by, Reason: reason, ApprovalAbove: s.cfg.ApprovalAbove,
		ApprovalPerDay: s.cfg.ApprovalPerDay, Now: time.Now(),
	})
	if err != nil {
		return store.PromotionView{}, s.explain(ctx, id, a, err)
	}
	return s.changed(ctx, id, a.name)
}

// changed reports a change, and returns the promotion.
func (s *Promotions) changed(ctx context.Context, id reward.PromotionID, what string, more ...any) (store.PromotionView, error) {
	s.report(id, what, more...)
	return s.cfg.Store.PromotionGet(ctx, id)
}

// report logs a change, with more attributes, and hints at it.
func (s *Promotions) report(id reward.PromotionID, what string, more ...any) {
	s.log.Info("promotion updated", append([]any{"promotion_id", id, "action", what}, more...)...)
	s.cfg.Hint(id)
}

// explain adds the allowed actions to the error of a refused one.
func (s *Promotions) explain(ctx context.Context, id reward.PromotionID, a action, err error) error {
	if !reward.HasCode(err, reward.CodeIllegalState) {
		return err
	}
	view, getErr := s.cfg.Store.PromotionGet(ctx, id)
	if getErr != nil {
		return errors.Join(err, getErr)
	}
	now := time.Now()
	switch {
	case a.to != reward.Running || !slices.Contains(a.from, view.Status):
	case rules.EndsAtOnce(view.Promotion, view.Counts, now):
		return reward.NewError(reward.KindConflict, reward.CodeIllegalState, "promotion %s ended at %s: set a later endsAt, or none, before %s",
			id, view.EndsAt.UTC().Format(time.RFC3339), a.name)
	case !rules.MayRun(view.Promotion, view.Counts, s.cfg.ApprovalAbove, now):
		if _, err := s.cfg.Store.PromotionAskApproval(ctx, id, s.cfg.ApprovalAbove); err != nil {
			s.log.Warn("asking for an approval failed", err, "promotion_id", id)
		}
		return s.approvalNeeded(view, a)
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
