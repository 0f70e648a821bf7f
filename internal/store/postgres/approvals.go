package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// count is the number of payouts that the summary row s counts.
const count = `(s.ready + s.queued + s.retrying + s.unknown + s.succeeded + s.failed + s.cancelled)`

// approveSQL approves the targets of promotion $1 that exist. The caller holds the
// lock of its summary row.
var approveSQL = named(`UPDATE promotions m SET approved_by = $2, approved_rounds = m.approval_round + 1,
  approval_round = m.approval_round + 1, approved_amount = ` + worth + `, approved_count = ` + count + `,
  approved_until = (SELECT max(p.due_at) FROM payouts p WHERE p.promotion_id = $1 AND p.state = :READY AND p.state < :SUCCEEDED),
  ` + rows.Unrejected + `, revision = m.revision + 1
FROM summaries s
WHERE m.id = $1 AND s.promotion_id = $1 AND s.summary_id = 0 AND m.status IN ('DRAFT', 'RUNNING', 'PAUSED')
  AND m.revision = $3 AND ($4::int8 IS NULL OR (` + count + `, ` + worth + `) = ($4::int8, $5::int8)) RETURNING m.id`)

// PromotionApprove approves the targets of a promotion.
func (s *Store) PromotionApprove(ctx context.Context, p store.PromotionApproveParams) (store.PromotionView, error) {
	if err := store.CheckText("approver", p.By); err != nil {
		return store.PromotionView{}, err
	}
	var seenCount, seenAmount *int64
	if p.Seen != nil {
		seenCount, seenAmount = &p.Seen.Count, (*int64)(&p.Seen.Amount)
	}
	var approved bool
	var stands []store.PromotionView
	err := s.send(ctx, "approve a promotion", func(b *pgx.Batch) {
		approved, stands = false, nil
		b.Queue(lockTotals, []int64{int64(p.ID)})
		b.Queue(approveSQL, int64(p.ID), p.By, p.Revision, seenCount, seenAmount).Query(each(func(pgx.Rows) error {
			approved = true
			return nil
		}))
		b.Queue(rows.ViewSQL+`WHERE m.id = $1`, int64(p.ID)).Query(each(func(found pgx.Rows) error {
			var v store.PromotionView
			err := rows.ScanView(found.Scan, &v)
			stands = append(stands, v)
			return err
		}))
	})
	switch {
	case err != nil:
		return store.PromotionView{}, err
	case len(stands) == 0:
		return store.PromotionView{}, store.NoPromotion(p.ID)
	case approved:
		return stands[0], nil
	}
	_, err = rules.Approve(stands[0].Promotion, stands[0].Counts, p.By, p.Revision-1) // cannot match the revision
	return store.PromotionView{}, err
}

// rejectSQL rejects a promotion, by rules.Reject.
var rejectSQL = `UPDATE promotions m SET ` + rows.Unapproved + `, rejected_by = $2, reject_reason = $3, revision = m.revision + 1,
  status = CASE m.status WHEN 'RUNNING' THEN 'PAUSED' ELSE m.status END,
  paused_by = CASE m.status WHEN 'DRAFT' THEN m.paused_by ELSE $2 END,
  pause_reason = CASE m.status WHEN 'DRAFT' THEN m.pause_reason ELSE $4 END
WHERE m.id = $1 AND m.status IN ('DRAFT', 'RUNNING', 'PAUSED') RETURNING m.id`

// PromotionReject rejects a promotion.
func (s *Store) PromotionReject(ctx context.Context, p store.PromotionRejectParams) (reward.Promotion, error) {
	if err := store.CheckText("person who rejects", p.By); err != nil {
		return reward.Promotion{}, err
	}
	return s.change(ctx, "reject a promotion", p.ID, rejectSQL, int64(p.ID), p.By, reward.SanitizeText(p.Reason), reward.SanitizeText(p.PauseReason))
}

// awaitSQL pauses promotion $1 if it needs an approval and has nothing left that is
// approved. It needs no lock of the counts: an approval writes the
// row of the promotion, and this statement then sees it.
var awaitSQL = named(`WITH moved AS (
  UPDATE promotions m SET status = 'PAUSED', pause_reason = $2
  FROM summaries s
  WHERE m.id = $1 AND m.status = 'RUNNING' AND s.promotion_id = $1 AND s.summary_id = 0 AND s.ready + s.retrying > 0
    AND ` + approvalNeeded(worth, "$3") + ` AND (m.approved_rounds = 0 OR s.queued = 0 AND NOT EXISTS (
      SELECT 1 FROM payouts p WHERE p.promotion_id = $1 AND p.state = :READY AND p.state < :SUCCEEDED
        AND p.dispatch = 0 AND p.due_at <= m.approved_until AND p.approval_round < m.approved_rounds)
    AND NOT EXISTS (SELECT 1 FROM payouts p WHERE p.promotion_id = $1 AND p.state = :READY AND p.dispatch > 0
        AND p.approval_round < m.approved_rounds)
    AND NOT EXISTS (SELECT 1 FROM payouts p WHERE p.promotion_id = $1 AND p.state = :RETRYING AND p.state < :SUCCEEDED
        AND p.approval_round < m.approved_rounds))
  RETURNING m.id, m.webhook_url
), ` + eventSQL("moved", "$4", "$5") + `
SELECT id FROM moved`)

// PromotionAwaitApproval pauses a promotion that waits for an approval.
func (s *Store) PromotionAwaitApproval(ctx context.Context, p store.PromotionAwaitApprovalParams) (bool, error) {
	var paused bool
	err := s.send(ctx, "pause a promotion for its approval", func(b *pgx.Batch) {
		paused = false
		b.Queue(awaitSQL, int64(p.ID), reward.SanitizeText(p.Reason), rows.Limits(p.ApprovalAbove), p.Event, instant(p.Now)).
			Query(each(func(pgx.Rows) error {
				paused = true
				return nil
			}))
	})
	return paused && err == nil, err
}
