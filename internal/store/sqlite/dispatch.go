package sqlite

import (
	"context"
	"encoding/json"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store/rows"
)

// These statements select the targets to queue: those that are due, or those that are due
// among the refs in ?6.
const (
	dueTargets = `SELECT target_id FROM payouts WHERE promotion_id = ?1 AND state = ?2 AND state < 4 AND due_at <= ?3
  ORDER BY due_at, target_id LIMIT ?4`
	namedTargets = `SELECT o.target_id FROM json_each(?6) r
  JOIN payouts o ON o.promotion_id = ?1 AND o.target_id = r.value ->> 'TargetID'
  WHERE o.state = ?2 AND o.dispatch = r.value ->> 'Dispatch' AND o.due_at <= ?3
  ORDER BY o.target_id LIMIT ?4`
)

// Queue moves due payouts to QUEUED.
func (s *Store) Queue(ctx context.Context, what string, q rows.Queueing) (list []reward.Payout, err error) {
	err = s.write(ctx, what, func(tx *tx) error {
		if err := tx.runAll(q.Guards); err != nil {
			return err
		}
		v, err := tx.view(q.PromotionID)
		if err != nil {
			return err
		}
		room := max(0, min(int64(q.Limit), int64(q.MaxLen)-v.Counts.Payouts[reward.Queued]))
		picked := dueTargets
		args := []any{int64(q.PromotionID), int64(q.From), micros(rows.DueUntil(q.PayoutDispatchParams)), room, micros(q.Now)}
		if q.Refs != nil {
			refs, err := json.Marshal(q.Refs)
			if err != nil {
				return err
			}
			picked, args = namedTargets, append(args, string(refs))
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
			tx.move(&list[i], q.From, 0)
			if q.Canary && list[i].Dispatch == 1 {
				first++
			}
		}
		return tx.recordDispatch(q.PromotionID, q.Now, first)
	})
	return list, err
}

// rare is the condition of the partial index payouts_rare. SQLite uses the
// index only for a query that repeats the condition.
const rare = `(state = 2 OR state = 3 OR state = 5 OR (state = 0 AND dispatch > 0))`

var claimLookups = `UPDATE payouts AS p SET due_at = $3 WHERE (promotion_id, target_id) IN (
  SELECT promotion_id, target_id FROM payouts INDEXED BY payouts_lookups
  WHERE (state = 3 OR again = 1) AND due_at <= $1 ORDER BY due_at LIMIT $2)
RETURNING ` + payoutReturning
