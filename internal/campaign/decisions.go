package campaign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// transactionKeyMax limits the transaction key that an operator enters, in bytes, like
// the provider's own keys.
const transactionKeyMax = 500

// RetryFailed returns the FAILED payouts of a promotion with an ErrorCode ("": all) to
// READY and returns their number. It takes each once, so that those that fail again do
// not keep it running. After an error, calling it again continues.
func (s *Promotions) RetryFailed(ctx context.Context, id reward.PromotionID, code string) (int, error) {
	view, err := s.cfg.Store.PromotionGet(ctx, id)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(actionRetry.from, view.Status) {
		return 0, illegal(actionRetry, view.Promotion)
	}
	if err := rules.CheckArchived(id, !view.ArchivedAt.IsZero()); err != nil {
		return 0, err
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

// ResolveCommand settles an UNKNOWN payout with what an operator has found out.
type ResolveCommand struct {
	store.PayoutID
	Outcome        string // SUCCEEDED or FAILED
	TransactionKey string // the provider's; required for SUCCEEDED, empty for FAILED
	Note           string // the reason, 1 to 1000 characters
	By             string // the caller
}

// Check returns every field that is invalid.
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
		refuse(key, "is missing: SUCCEEDED needs the provider's transaction key")
	case !paid && c.TransactionKey != "":
		refuse(key, "is for SUCCEEDED only")
	case len(c.TransactionKey) > transactionKeyMax:
		refuse(key, "must have at most %d bytes, not %d", transactionKeyMax, len(c.TransactionKey))
	case err != nil:
		refuse(key, "%v", err)
	case reward.HasControl(c.TransactionKey):
		refuse(key, "contains a control character")
	}
	return append(wrong, checkReason("note", c.Note)...)
}

// Resolve settles an UNKNOWN payout; any other is CodeIllegalState.
func (s *Promotions) Resolve(ctx context.Context, c ResolveCommand) (reward.Payout, error) {
	if wrong := c.Check(); len(wrong) > 0 {
		return reward.Payout{}, reward.InvalidFields("the resolution", wrong)
	}
	p, err := s.cfg.Store.PayoutResolve(ctx, store.PayoutResolveParams{
		PayoutID: c.PayoutID, Paid: c.Outcome == reward.Succeeded.String(), TransactionKey: c.TransactionKey,
		Note: c.Note, By: c.By, Now: time.Now(),
	})
	if reward.HasCode(err, reward.CodePayoutNotFound) {
		_, getErr := s.cfg.Store.PromotionGet(ctx, c.PromotionID)
		if reward.HasCode(getErr, reward.CodeNotFound) {
			return reward.Payout{}, getErr // the promotion does not exist either
		}
		err = errors.Join(err, getErr)
	}
	if err != nil {
		return reward.Payout{}, err
	}
	s.log.Info("payout resolved", "promotion_id", c.PromotionID, "target_id", c.TargetID, "state", p.State, "actor", c.By)
	s.cfg.Hint(c.PromotionID)
	return p, nil
}
