package campaign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Codes of approvals.
const (
	CodeApprovalNeeded = "APPROVAL_NEEDED"
	CodeSamePerson     = "SAME_PERSON"
)

// Bounds of what an operator says about a payout.
const (
	ResolveNoteMax           = 1000 // characters
	ResolveTransactionKeyMax = 500  // bytes, as of the provider's own
)

// Approve notes that a second person lets a promotion pay more than
// ApprovalAbove; CodeSamePerson when it is the one who made it. What only Kafka
// has registered may be approved by anybody. Approving again puts the latter
// person in the place of the former. One that the Guard has paused for want of
// it goes on by Resume.
func (s *Promotions) Approve(ctx context.Context, id reward.PromotionID, by string) (store.PromotionView, error) {
	view, err := s.Get(ctx, id)
	switch {
	case err != nil:
		return store.PromotionView{}, err
	case !slices.Contains(actionApprove.from, view.Status):
		return store.PromotionView{}, illegal(actionApprove, view.Promotion)
	case strings.EqualFold(by, view.CreatedBy):
		return store.PromotionView{}, reward.NewError(reward.KindConflict, CodeSamePerson,
			"promotion %s was made by %s, so somebody else has to approve it", id, reward.Quote(view.CreatedBy))
	}
	if _, err := s.cfg.Store.PromotionApprove(ctx, id, by); err != nil {
		return store.PromotionView{}, s.explain(ctx, id, actionApprove, err)
	}
	return s.changed(ctx, id, actionApprove.name, "actor", by)
}

// checkApproval refuses to let run what a second person has not approved. What
// comes in after this look is the Guard's.
func (s *Promotions) checkApproval(ctx context.Context, id reward.PromotionID, a action) error {
	if s.cfg.ApprovalAbove == 0 {
		return nil
	}
	view, err := s.Get(ctx, id)
	if err != nil {
		return err
	}
	total := view.Counts.AmountTotal()
	if !slices.Contains(a.from, view.Status) || view.ApprovedBy != "" || total <= s.cfg.ApprovalAbove {
		return nil
	}
	return reward.NewError(reward.KindConflict, CodeApprovalNeeded,
		"promotion %s is worth %d, and above %d (approval.above) somebody other than who made it has to approve it before %s",
		id, total, s.cfg.ApprovalAbove, a.name)
}

// RetryFailed returns the FAILED payouts of a promotion to READY, each once,
// those with ErrorCode code when that is not "", and says how many. One that
// fails again meanwhile is not taken again, so it comes to an end. After an
// error some may be READY; repeating it goes on.
func (s *Promotions) RetryFailed(ctx context.Context, id reward.PromotionID, code string) (int, error) {
	view, err := s.Get(ctx, id)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(actionRetry.from, view.Status) {
		return 0, illegal(actionRetry, view.Promotion)
	}
	failed := reward.Failed
	p := store.PayoutListParams{PromotionID: id, Limit: store.BatchMax, State: &failed, Code: code}
	requeued := 0
	for {
		rows, err := s.cfg.Store.PayoutList(ctx, p)
		if err != nil {
			return requeued, err
		}
		if len(rows) > 0 {
			targets := make([]reward.TargetID, len(rows))
			for i, r := range rows {
				targets[i] = r.TargetID
			}
			n, err := s.retry(ctx, store.PayoutRetryParams{PromotionID: id, Code: code, Targets: targets, Now: time.Now()})
			requeued += n
			if err != nil {
				return requeued, err
			}
			p.After = &targets[len(targets)-1]
		}
		if len(rows) < p.Limit {
			return requeued, nil
		}
	}
}

// retry requeues one batch and lets it be dispatched.
func (s *Promotions) retry(ctx context.Context, p store.PayoutRetryParams) (int, error) {
	n, err := s.cfg.Store.PayoutRetry(ctx, p)
	if err != nil {
		return 0, s.explain(ctx, p.PromotionID, actionRetry, err)
	}
	if n > 0 {
		s.log.Info("failed payouts requeued", "promotion_id", p.PromotionID, "count", n)
		s.cfg.Hint(p.PromotionID)
	}
	return n, nil
}

// ResolveCommand settles an UNKNOWN payout as a person has found out.
type ResolveCommand struct {
	store.PayoutID
	Outcome        string // SUCCEEDED or FAILED
	TransactionKey string // the provider's; for SUCCEEDED, and only then
	Note           string // why, 1 to 1000 characters
	By             string // who says so
}

// Check returns every field that is wrong.
func (c ResolveCommand) Check() []reward.FieldError {
	var wrong []reward.FieldError
	refuse := func(field, format string, args ...any) {
		wrong = append(wrong, reward.FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
	paid := c.Outcome == reward.Succeeded.String()
	if !paid && c.Outcome != reward.Failed.String() {
		refuse("outcome", "must be SUCCEEDED or FAILED, not %s", reward.Quote(c.Outcome))
	}
	const key = "transactionKey"
	switch err := reward.CheckText(c.TransactionKey); {
	case paid && c.TransactionKey == "":
		refuse(key, "is missing: a payout that SUCCEEDED has the provider's transaction key")
	case !paid && c.TransactionKey != "":
		refuse(key, "is for SUCCEEDED only")
	case len(c.TransactionKey) > ResolveTransactionKeyMax:
		refuse(key, "must have at most %d bytes, not %d", ResolveTransactionKeyMax, len(c.TransactionKey))
	case err != nil:
		refuse(key, "%v", err)
	case reward.HasControl(c.TransactionKey):
		refuse(key, "holds a control character")
	}
	if n := utf8.RuneCountInString(c.Note); strings.TrimSpace(c.Note) == "" || n > ResolveNoteMax {
		refuse("note", "must say why, in 1 to %d characters", ResolveNoteMax)
	} else if err := reward.CheckText(c.Note); err != nil {
		refuse("note", "%v", err)
	}
	return wrong
}

// Resolve settles an UNKNOWN payout; CodeIllegalState when it is in another
// state.
func (s *Promotions) Resolve(ctx context.Context, c ResolveCommand) (reward.Payout, error) {
	if wrong := c.Check(); len(wrong) > 0 {
		return reward.Payout{}, &reward.Error{
			Kind: reward.KindInvalid, Code: reward.CodeInvalid,
			Detail: fmt.Sprintf("the resolution has %d wrong fields", len(wrong)), Fields: wrong,
		}
	}
	p, err := s.cfg.Store.PayoutResolve(ctx, store.PayoutResolveParams{
		PayoutID: c.PayoutID, Paid: c.Outcome == reward.Succeeded.String(), TransactionKey: c.TransactionKey,
		Note: c.Note, By: c.By, Now: time.Now(),
	})
	if err != nil {
		return reward.Payout{}, s.explainPayout(ctx, c.PayoutID, err)
	}
	s.log.Info("payout resolved", "promotion_id", c.PromotionID, "target_id", c.TargetID, "state", p.State, "actor", c.By)
	s.cfg.Hint(c.PromotionID)
	return p, nil
}

// explainPayout tells a payout that is not there from a promotion that is not.
func (s *Promotions) explainPayout(ctx context.Context, id store.PayoutID, err error) error {
	if !reward.HasCode(err, reward.CodePayoutNotFound) {
		return err
	}
	if _, getErr := s.Get(ctx, id.PromotionID); getErr != nil {
		if reward.HasCode(getErr, reward.CodeNotFound) {
			return getErr
		}
		return errors.Join(err, getErr)
	}
	return err
}
