package campaign

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// CodeApprovalNeeded is the code of an action that needs an approval first.
const CodeApprovalNeeded = "APPROVAL_NEEDED"

// reasonMax limits the reason of a decision, in characters.
const reasonMax = 1000

// approveTries limits how often an approval that met a change is decided again.
const approveTries = 5

// ApproveCommand approves all targets that a promotion has.
type ApproveCommand struct {
	ID reward.PromotionID
	// Persons are the names of the caller, by auth.Persons. The first one approves.
	Persons []string
	// Seen is what the caller has looked at; nil means that they did not say.
	Seen *Seen
}

// Seen is the state of a promotion that a caller has looked at.
type Seen struct {
	Revision int64
	store.PromotionWorth
}

// SeenOf returns the state of a promotion that a caller who reads it looks at.
func SeenOf(v store.PromotionView) Seen {
	return Seen{Revision: v.Revision, PromotionWorth: store.PromotionWorth{Count: v.Counts.Total(), Amount: v.Counts.AmountTotal()}}
}

// Approve approves all targets that a promotion has now, and replaces an earlier
// approval. It fails with CodeSamePerson if the caller created, changed or filled the
// promotion (nobody did if only Kafka records have), and with CodePreconditionFailed if
// it is not as the caller has seen it. A paused promotion continues after Resume.
func (s *Promotions) Approve(ctx context.Context, c ApproveCommand) (store.PromotionView, error) {
	for try := 1; ; try++ {
		view, err := s.cfg.Store.PromotionGet(ctx, c.ID)
		if err != nil {
			return store.PromotionView{}, err
		}
		authors, err := s.cfg.Store.PromotionAuthors(ctx, c.ID)
		switch {
		case err != nil:
			return store.PromotionView{}, err
		case !slices.Contains(actionApprove.from, view.Status):
			return store.PromotionView{}, illegal(actionApprove, view.Promotion)
		case c.Seen != nil && c.Seen.Revision != view.Revision:
			return store.PromotionView{}, rules.NotAsSeen(c.ID)
		}
		if view.CreatedBy != "" {
			authors = append(authors, view.CreatedBy)
		}
		if err := rules.CheckApprover(c.Persons, authors, fmt.Sprintf("created or changed promotion %s, or added targets to it", c.ID)); err != nil {
			return store.PromotionView{}, err
		}
		p := store.PromotionApproveParams{ID: c.ID, By: c.Persons[0], Revision: view.Revision}
		if c.Seen != nil {
			p.Seen = &c.Seen.PromotionWorth
		}
		approved, err := s.cfg.Store.PromotionApprove(ctx, p)
		if reward.HasCode(err, reward.CodePreconditionFailed) && c.Seen == nil && try < approveTries {
			continue // there may be another author
		}
		if err != nil {
			return store.PromotionView{}, s.explain(ctx, c.ID, actionApprove, err)
		}
		s.report(c.ID, actionApprove.name, "actor", p.By, "count", approved.Approval.Count, "amount", approved.Approval.Amount)
		return approved, nil
	}
}

// Reject refuses or withdraws an approval. A RUNNING promotion becomes PAUSED. It is
// not started or resumed until somebody approves it, changes it or uploads targets.
func (s *Promotions) Reject(ctx context.Context, id reward.PromotionID, by, reason string) (store.PromotionView, error) {
	if wrong := checkReason("reason", reason); len(wrong) > 0 {
		return store.PromotionView{}, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "reason %s", wrong[0].Detail).With(wrong...)
	}
	_, err := s.cfg.Store.PromotionReject(ctx, store.PromotionRejectParams{
		ID: id, By: by, Reason: reason, PauseReason: fmt.Sprintf("rejected by %s: %s", reward.Quote(by), reason), Now: time.Now(),
	})
	if err != nil {
		return store.PromotionView{}, s.explain(ctx, id, actionReject, err)
	}
	return s.changed(ctx, id, actionReject.name, "actor", by)
}

// AskApproval tells those who may approve that a promotion waits for that, once for each of
// its changes. It pays nothing. If the promotion does not wait, it is CodeIllegalState.
func (s *Promotions) AskApproval(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	v, err := s.cfg.Store.PromotionGet(ctx, id)
	if err != nil {
		return store.PromotionView{}, err
	}
	if !rules.AwaitsApproval(v.Promotion, v.Counts, s.cfg.ApprovalAbove) {
		return store.PromotionView{}, reward.NewError(reward.KindConflict, reward.CodeIllegalState, "promotion %s does not wait for an approval: it needs none, has one, or was rejected", id)
	}
	if _, err := s.cfg.Store.PromotionAskApproval(ctx, id, s.cfg.ApprovalAbove); err != nil {
		return store.PromotionView{}, err
	}
	return s.changed(ctx, id, "ask for an approval")
}

// checkReason returns what is wrong with the reason that a person gives for a decision.
func checkReason(field, reason string) []reward.FieldError {
	if n := utf8.RuneCountInString(reason); reward.IsBlank(reason) || n > reasonMax {
		return []reward.FieldError{{Field: field, Detail: fmt.Sprintf("must give the reason in 1 to %d characters", reasonMax)}}
	}
	if err := reward.CheckLabel(reason); err != nil {
		return []reward.FieldError{{Field: field, Detail: err.Error()}}
	}
	return nil
}

// approvalNeeded says why rules.MayRun refuses an action.
func (s *Promotions) approvalNeeded(v store.PromotionView, a action) error {
	var detail string
	switch {
	case v.RejectedBy != "":
		detail = fmt.Sprintf("was rejected by %s (%s): change it, or ask someone else to approve it,", reward.Quote(v.RejectedBy), v.RejectReason)
	case !rules.ApprovalNeeded(v.Promotion, v.Counts.AmountTotal(), s.cfg.ApprovalAbove):
		detail = fmt.Sprintf("is approved for a start at %s: wait, or change startsAt and ask another person to approve it again",
			v.StartsAt.UTC().Format(time.RFC3339))
	default:
		detail = rules.WhyApproval(v.Promotion, v.Counts, s.cfg.ApprovalAbove) + ": ask someone who did not create, change or fill it to approve it"
	}
	return reward.NewError(reward.KindConflict, CodeApprovalNeeded, "promotion %s %s before %s", v.ID, detail, a.name)
}

// PausedByLargesse reports whether a promotion is paused until a person resumes it,
// without a decision of a person. Its end was one.
func PausedByLargesse(v *store.PromotionView, above reward.Limits) bool {
	return v.Status == reward.Paused && v.PausedBy == "" && !rules.Ended(&v.Promotion, v.PausedAt) && v.RejectedBy == "" && !rules.AwaitsApproval(v.Promotion, v.Counts, above)
}
