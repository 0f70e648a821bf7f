package sqlite

import (
	"context"
	"database/sql"
	"maps"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// RowsOf returns the payouts among ids that exist, and their promotions.
func (s *Store) RowsOf(ctx context.Context, what string, ids []store.PayoutID) (found map[store.PayoutID]rules.Row, promotions map[reward.PromotionID]reward.Promotion, err error) {
	err = s.snapshot(ctx, what, func(ctx context.Context, q querier) error {
		found, promotions = make(map[store.PayoutID]rules.Row, len(ids)), make(map[reward.PromotionID]reward.Promotion)
		list, err := byTargets(ctx, q, scanRow, rowColumns, ids)
		if err != nil {
			return err
		}
		for _, r := range list {
			found[store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}] = r
			if _, ok := promotions[r.PromotionID]; ok {
				continue
			}
			v, err := viewOf(ctx, q, r.PromotionID)
			if err != nil {
				return err
			}
			promotions[r.PromotionID] = v.Promotion
		}
		return nil
	})
	return found, promotions, err
}

// FinishPaid leaves all outcomes to be read: a statement is no round trip.
func (s *Store) FinishPaid(_ context.Context, p store.PayoutFinishParams, _ []store.FinishResult) (rest []int, err error) {
	for i := range p.Outcomes {
		rest = append(rest, i)
	}
	return rest, nil
}

const (
	rewriteSQL = `UPDATE payouts SET state = ?1, attempts = ?2, maybe_called = ?3, due_at = ?4, settle_from = ?5, transaction_key = ?6, error_code = ?7,
  error_message = ?8, updated_at = ?9, looked_at = ?10, handovers = ?11, again = ?12
WHERE promotion_id = ?13 AND target_id = ?14 AND state = ?15 AND dispatch = ?16 AND attempts = ?17 AND maybe_called = ?18 AND again = ?19
  AND looked_at IS ?20 AND updated_at = ?21 AND (SELECT m.status FROM promotions m WHERE m.id = ?13) = ?22`

	attemptSQL = `INSERT INTO attempts (promotion_id, target_id, at, dispatch, number, class, code, message)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE EXISTS (SELECT 1 FROM payouts WHERE promotion_id = ?1 AND target_id = ?2) ON CONFLICT DO NOTHING`
)

// Rewrite writes those changes whose row is still as it was.
func (s *Store) Rewrite(ctx context.Context, what string, _ bool, changes []rows.Change) (stale []int, err error) {
	err = s.write(ctx, what, func(tx *tx) error {
		stale = nil
		payout, err := tx.PrepareContext(tx.ctx, rewriteSQL)
		if err != nil {
			return err
		}
		defer payout.Close()
		attempt, err := tx.PrepareContext(tx.ctx, attemptSQL)
		if err != nil {
			return err
		}
		defer attempt.Close()
		reopened := make(map[reward.PromotionID]bool)
		for i := range changes {
			c := &changes[i]
			if written, err := tx.rewrite(payout, c); err != nil {
				return err
			} else if !written {
				stale = append(stale, i)
				continue
			}
			for n, a := range c.Attempts {
				if _, err := attempt.ExecContext(tx.ctx, int64(c.Was.PromotionID), int64(c.Was.TargetID), micros(a.At), a.Dispatch,
					store.AttemptNumber(n, a), string(a.Class), a.Code, a.Message); err != nil {
					return err
				}
			}
			if c.Reopens() {
				reopened[c.Was.PromotionID] = true
			}
		}
		if err := tx.writeMoves(); err != nil {
			return err
		}
		return tx.runAll(rows.ContinueEnded(slices.Sorted(maps.Keys(reopened))...))
	})
	return stale, refused(err)
}

// rewrite writes a change by rewriteSQL, and reports whether the row was as it was. A change
// that writes no row has nothing to compare.
func (t *tx) rewrite(stmt *sql.Stmt, c *rows.Change) (bool, error) {
	if !c.Tally.Changed {
		return true, nil
	}
	was, next := &c.Was, &c.Next
	written, err := changesOne(t.ctx, stmt, int64(next.State), next.Attempts, next.MaybeCalled, micros(next.DueAt), maybe(next.SettleFrom),
		next.TransactionKey, next.ErrorCode, next.ErrorMessage, micros(next.UpdatedAt), maybe(next.LookedAt), next.FailedDeliveries, next.Again,
		int64(was.PromotionID), int64(was.TargetID), int64(was.State), was.Dispatch, was.Attempts, was.MaybeCalled, was.Again,
		maybe(was.LookedAt), micros(was.UpdatedAt), string(c.Status))
	if written && err == nil {
		t.move(&next.Payout, was.State, c.Tally.Answers)
	}
	return written, err
}
