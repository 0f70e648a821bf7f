package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"math"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// PayoutDispatch moves due payouts to QUEUED.
func (s *Store) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) ([]reward.Payout, error) {
	if p.From != reward.Ready && p.From != reward.Retrying {
		return nil, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "payouts in state %s cannot be dispatched; use READY or RETRYING", p.From)
	}
	var list []reward.Payout
	err := s.write(ctx, "dispatch payouts", func(tx *tx) error {
		v, err := tx.view(p.PromotionID)
		if reward.HasCode(err, reward.CodeNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		needed := rules.ApprovalNeeded(v.Promotion, v.Counts.AmountTotal(), p.ApprovalAbove)
		allowed, err := tx.allow(&v, needed, min(int64(p.Limit), int64(p.MaxLen)-v.Counts.Payouts[reward.Queued]))
		if err != nil || allowed.Capacity() == 0 {
			return err
		}
		limit := allowed.Capacity()
		due := int64(math.MaxInt64) // READY rows are always due, even if another clock saved them later than Now
		if p.From == reward.Retrying {
			due = micros(p.Now)
		}
		picked := dueTargets
		args := []any{int64(p.PromotionID), int64(p.From), due, limit, micros(p.Now)}
		if p.Refs != nil {
			refs, err := json.Marshal(refPairs(p.PromotionID, p.Refs))
			if err != nil {
				return err
			}
			picked = namedTargets
			args = append(args, string(refs))
		}
		if allowed.Bounds(p.From) || allowed.ApprovedOnly() {
			targets, err := tx.pickAllowed(&v, p, allowed, due)
			if err != nil {
				return err
			}
			picked = pickedTargets
			args = append(args[:5], targets)
		}
		list, err = collect(tx.ctx, tx, scanPayout, `UPDATE payouts AS p SET state = 1, dispatch = dispatch + 1, due_at = ?5,
  updated_at = ?5, first_dispatched_at = coalesce(first_dispatched_at, ?5)
WHERE promotion_id = ?1 AND target_id IN (`+picked+`)
RETURNING `+payoutReturning, args...)
		if err != nil || len(list) == 0 {
			return err
		}
		first := int64(0)
		for i := range list {
			tx.move(&list[i], p.From, 0)
			if list[i].Dispatch == 1 {
				first++
			}
		}
		return tx.recordDispatch(&v.Promotion, micros(p.Now), first)
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// These statements select the targets to dispatch: those that are due, the due
// ones among the refs in the JSON parameter ?6, or the targets in ?6.
const (
	dueTargets = `SELECT target_id FROM payouts WHERE promotion_id = ?1 AND state = ?2 AND state < 4 AND due_at <= ?3
  ORDER BY due_at, target_id LIMIT ?4`
	namedTargets = `SELECT DISTINCT o.target_id FROM json_each(?6) r
  JOIN payouts o ON o.promotion_id = ?1 AND o.target_id = r.value ->> 0
  WHERE o.state = ?2 AND o.dispatch = r.value ->> 1 AND o.due_at <= ?3
  ORDER BY o.target_id LIMIT ?4`
	pickedTargets = `SELECT value FROM json_each(?6)`
)

// flaggedSQL sums the amounts of READY rows that may have been charged. The
// budget counts them.
var flaggedSQL = dialect.Text(rows.FlaggedSQL)

// allow returns the allowance of a promotion for at most capacity rows.
// approvedOnly is the result of rules.ApprovalNeeded.
func (t *tx) allow(v *store.PromotionView, approvedOnly bool, capacity int64) (*rules.Allowance, error) {
	var flagged int64
	if v.MaxAmount > 0 {
		if err := t.QueryRowContext(t.ctx, flaggedSQL, int64(v.ID)).Scan(&flagged); err != nil {
			return nil, err
		}
	}
	return rules.Allow(v.Promotion, v.Counts, reward.Amount(flagged), approvedOnly, capacity), nil
}

// rare is the condition of the partial index payouts_rare. SQLite uses the
// index only for a query that repeats the condition.
const rare = `(state = 2 OR state = 3 OR state = 5 OR (state = 0 AND dispatch > 0))`

// pickDue reads READY rows, oldest first: at most ?2 for their first dispatch
// and at most ?3 others, all of rounds below ?4. It names its indexes, because
// others would read all the rows that the canary blocks. Rows for their first
// dispatch are due at ?5 or before, so that it does not read rows that are not
// approved.
const pickDue = `SELECT target_id, amount, dispatch, maybe_called, approval_round FROM (
SELECT * FROM (SELECT target_id, amount, dispatch, maybe_called, approval_round, due_at FROM payouts INDEXED BY payouts_open
  WHERE promotion_id = ?1 AND state = 0 AND state < 4 AND due_at <= ?5 AND dispatch = 0 AND approval_round < ?4 ORDER BY due_at, target_id LIMIT ?2)
UNION ALL
SELECT * FROM (SELECT target_id, amount, dispatch, maybe_called, approval_round, due_at FROM payouts INDEXED BY payouts_rare
  WHERE promotion_id = ?1 AND state = 0 AND dispatch > 0 AND ` + rare + ` AND approval_round < ?4 ORDER BY due_at, target_id LIMIT ?3)
) ORDER BY due_at, target_id LIMIT ?3`

// pickRetries reads RETRYING rows of rounds below ?4 that are due at ?5, oldest
// first, at most ?3.
const pickRetries = `SELECT target_id, amount, dispatch, maybe_called, approval_round FROM payouts INDEXED BY payouts_open
WHERE promotion_id = ?1 AND state = 2 AND state < 4 AND due_at <= ?5 AND approval_round < ?4 ORDER BY due_at, target_id LIMIT ?3`

// pickNamed reads the rows in state ?3 that are due at ?4 among the refs in ?2.
const pickNamed = `SELECT DISTINCT o.target_id, o.amount, o.dispatch, o.maybe_called, o.approval_round FROM json_each(?2) r
JOIN payouts o ON o.promotion_id = ?1 AND o.target_id = r.value ->> 0
WHERE o.state = ?3 AND o.due_at <= ?4 AND o.dispatch = r.value ->> 1 ORDER BY o.target_id`

// pickAllowed returns, as JSON, the targets of rows due at due that approval,
// budget and canary allow.
func (t *tx) pickAllowed(v *store.PromotionView, p store.PayoutDispatchParams, allowed *rules.Allowance, due int64) (string, error) {
	rounds, until := int64(math.MaxInt64), due
	if allowed.ApprovedOnly() {
		rounds = int64(v.Approval.Rounds)
	}
	query := pickRetries
	if p.From == reward.Ready {
		query = pickDue
		if allowed.ApprovedOnly() {
			var err error
			if until, _, err = one(t.ctx, t, scanInt, `SELECT coalesce(approved_until, 0) FROM promotions WHERE id = ?`, int64(v.ID)); err != nil {
				return "", err
			}
		}
	}
	args := []any{int64(p.PromotionID), allowed.FirstCapacity(), allowed.Capacity(), rounds, until}
	if p.Refs != nil {
		refs, err := json.Marshal(refPairs(p.PromotionID, p.Refs))
		if err != nil {
			return "", err
		}
		query, args = pickNamed, []any{int64(p.PromotionID), string(refs), int64(p.From), due}
	}
	list, err := collect(t.ctx, t, func(rows *sql.Rows) (rules.Row, error) {
		r := rules.Row{Payout: reward.Payout{State: p.From}}
		err := rows.Scan((*int64)(&r.TargetID), (*int64)(&r.Amount), &r.Dispatch, &r.MaybeCalled, &r.ApprovalRound)
		return r, err
	}, query, args...)
	if err != nil {
		return "", err
	}
	targets := []int64{}
	for _, r := range list {
		if allowed.Take(r) {
			targets = append(targets, int64(r.TargetID))
		}
	}
	array, err := json.Marshal(targets)
	return string(array), err
}

// refPairs returns the target and dispatch number of each ref of one promotion.
func refPairs(promotion reward.PromotionID, refs []reward.Ref) [][2]int64 {
	pairs := make([][2]int64, 0, len(refs))
	for _, r := range refs {
		if r.PromotionID == promotion {
			pairs = append(pairs, [2]int64{int64(r.TargetID), int64(r.Dispatch)})
		}
	}
	return pairs
}

var claimLookups = `UPDATE payouts AS p SET due_at = $3 WHERE (promotion_id, target_id) IN (
  SELECT promotion_id, target_id FROM payouts INDEXED BY payouts_lookups
  WHERE (state = 3 OR again = 1) AND due_at <= $1 ORDER BY due_at LIMIT $2)
RETURNING ` + payoutReturning
