package sqlite

import (
	"context"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// putApproval stores what an approval, a rejection or a change that ends one writes.
// approvedUntil is the value of that column, as SQL without parameters.
func (t *tx) putApproval(p *reward.Promotion, approvedUntil string) error {
	return t.exec(`UPDATE promotions SET approved_by = ?2, approved_rounds = ?3, approval_round = ?4, approved_amount = ?5,
  approved_count = ?6, approved_until = `+approvedUntil+`, rejected_by = ?7, reject_reason = ?8, revision = ?9 WHERE id = ?1`,
		int64(p.ID), p.ApprovedBy, p.Approval.Rounds, p.Approval.Round, int64(p.Approval.Amount), p.Approval.Count,
		p.RejectedBy, p.RejectReason, p.Revision)
}

// lastReady is the latest due time of a READY row of promotion ?1.
const lastReady = `(SELECT max(due_at) FROM payouts WHERE promotion_id = ?1 AND state = 0 AND state < 4)`

// PromotionApprove approves the targets of a promotion.
func (s *Store) PromotionApprove(ctx context.Context, p store.PromotionApproveParams) (store.PromotionView, error) {
	if err := store.CheckText("approver", p.By); err != nil {
		return store.PromotionView{}, err
	}
	var v store.PromotionView
	err := s.write(ctx, "approve a promotion", func(tx *tx) (err error) {
		if v, err = tx.view(p.ID); err != nil {
			return err
		}
		if v.Promotion, err = rules.Approve(v.Promotion, v.Counts, p.By, p.Revision); err != nil {
			return err
		}
		if p.Seen != nil && (p.Seen.Count != v.Approval.Count || p.Seen.Amount != v.Approval.Amount) {
			return rules.NotAsSeen(p.ID)
		}
		return tx.putApproval(&v.Promotion, lastReady)
	})
	if err != nil {
		return store.PromotionView{}, err
	}
	return v, nil
}

// PromotionReject rejects a promotion.
func (s *Store) PromotionReject(ctx context.Context, p store.PromotionRejectParams) (reward.Promotion, error) {
	if err := store.CheckText("person who rejects", p.By); err != nil {
		return reward.Promotion{}, err
	}
	return s.change(ctx, "reject a promotion", p.ID, func(tx *tx, m *reward.Promotion) error {
		next, err := rules.Reject(*m, p.By, p.Reason, p.PauseReason)
		if err != nil {
			return err
		}
		*m = next
		return tx.putApproval(m, `NULL`)
	})
}

// approvedLeft finds a READY or RETRYING row of promotion ?1 that is approved.
var approvedLeft = `SELECT 1 FROM promotions m WHERE m.id = ?1 AND (EXISTS (
  SELECT 1 FROM payouts p INDEXED BY payouts_open WHERE p.promotion_id = ?1 AND p.state = 0 AND p.state < 4
    AND p.dispatch = 0 AND p.due_at <= m.approved_until AND p.approval_round < m.approved_rounds)
OR EXISTS (SELECT 1 FROM payouts p INDEXED BY payouts_rare WHERE p.promotion_id = ?1 AND p.state = 0 AND p.dispatch > 0
    AND ` + rare + ` AND p.approval_round < m.approved_rounds)
OR EXISTS (SELECT 1 FROM payouts p INDEXED BY payouts_open WHERE p.promotion_id = ?1 AND p.state = 2 AND p.state < 4
    AND p.approval_round < m.approved_rounds))`

// PromotionAwaitApproval pauses a promotion that waits for an approval.
func (s *Store) PromotionAwaitApproval(ctx context.Context, p store.PromotionAwaitApprovalParams) (bool, error) {
	paused := false
	err := s.write(ctx, "pause a promotion for its approval", func(tx *tx) error {
		paused = false
		v, err := tx.view(p.ID)
		if reward.HasCode(err, reward.CodeNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		waiting := v.Counts.Payouts[reward.Ready]+v.Counts.Payouts[reward.Retrying] > 0
		if v.Status != reward.Running || !waiting || !rules.ApprovalNeeded(v.Promotion, v.Counts.AmountTotal(), p.ApprovalAbove) {
			return nil
		}
		if rules.ApprovedLeft(v.Promotion, v.Counts) {
			return nil
		}
		if v.Approval.Rounds > 0 {
			if _, left, err := one(tx.ctx, tx, scanInt, approvedLeft, int64(p.ID)); err != nil || left {
				return err
			}
		}
		if v.Promotion, err = rules.Move(v.Promotion, []reward.PromotionStatus{reward.Running}, reward.Paused, "", p.Reason, p.Now); err != nil {
			return err
		}
		paused = true
		if err := tx.recordEvent(&v.Promotion, p.Event, p.Now); err != nil {
			return err
		}
		return tx.put(&v.Promotion)
	})
	return paused && err == nil, err
}

// addAuthor records an author of a promotion.
func (t *tx) addAuthor(id reward.PromotionID, author string) error {
	if author == "" {
		return nil
	}
	return t.exec(rows.AddAuthor, int64(id), author)
}
