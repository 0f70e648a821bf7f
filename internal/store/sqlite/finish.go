package sqlite

import (
	"context"
	"database/sql"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// attemptWriter records attempts.
type attemptWriter struct {
	tx   *tx
	stmt *sql.Stmt
}

// write records attempts of one payout, numbered from 0.
func (w *attemptWriter) write(id store.PayoutID, attempts ...reward.Attempt) error {
	for number, a := range attempts {
		if w.stmt == nil {
			stmt, err := w.tx.PrepareContext(w.tx.ctx, `INSERT INTO attempts (promotion_id, target_id, at, dispatch, number, class, code,
  message) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`)
			if err != nil {
				return err
			}
			w.stmt = stmt
		}
		if _, err := w.stmt.ExecContext(w.tx.ctx, int64(id.PromotionID), int64(id.TargetID), micros(a.At), a.Dispatch, number,
			string(a.Class), a.Code, a.Message); err != nil {
			return err
		}
	}
	return nil
}

func (w *attemptWriter) close() {
	if w.stmt != nil {
		_ = w.stmt.Close() // the end of the transaction reports what is wrong
	}
}

// rewrite is a batch of changes to payouts: the rows as they are inside the
// transaction, their promotions, and the writers.
type rewrite struct {
	rows     map[store.PayoutID]*rules.Row
	views    map[reward.PromotionID]store.PromotionView
	payouts  *payoutWriter
	attempts *attemptWriter
}

// rewrite reads the payouts that exist.
func (t *tx) rewrite(ids []store.PayoutID) (*rewrite, error) {
	found, err := byTargets(t.ctx, t, scanRow, rowColumns, ids)
	if err != nil {
		return nil, err
	}
	return t.rewriteRows(found)
}

// rewriteRows begins a rewrite of rows that were read inside the transaction.
func (t *tx) rewriteRows(found []rules.Row) (*rewrite, error) {
	r := &rewrite{rows: make(map[store.PayoutID]*rules.Row, len(found)), attempts: &attemptWriter{tx: t}}
	promotions := make([]store.PayoutID, len(found))
	for i := range found {
		promotions[i].PromotionID = found[i].PromotionID
		r.rows[store.PayoutID{PromotionID: found[i].PromotionID, TargetID: found[i].TargetID}] = &found[i]
	}
	var err error
	if r.views, err = t.views(promotions); err != nil {
		return nil, err
	}
	r.payouts, err = t.payoutWriter()
	return r, err
}

func (r *rewrite) close() {
	r.payouts.close()
	r.attempts.close()
}

// apply writes what a rule made of a row.
func (r *rewrite) apply(row *rules.Row, next rules.Row, tally rules.Tally, attempts ...reward.Attempt) error {
	if err := r.attempts.write(store.PayoutID{PromotionID: row.PromotionID, TargetID: row.TargetID}, attempts...); err != nil {
		return err
	}
	if !tally.Changed {
		return nil
	}
	err := r.payouts.write(row, &next, tally.Answers)
	*row = next
	return err
}

// PayoutFinish writes outcomes.
func (s *Store) PayoutFinish(ctx context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error) {
	if len(p.Outcomes) == 0 {
		return nil, nil
	}
	results := make([]store.FinishResult, len(p.Outcomes))
	err := s.write(ctx, "finish payouts", func(tx *tx) error {
		ids := make([]store.PayoutID, len(p.Outcomes))
		for i, o := range p.Outcomes {
			ids[i] = store.PayoutID{PromotionID: o.PromotionID, TargetID: o.TargetID}
		}
		rw, err := tx.rewrite(ids)
		if err != nil {
			return err
		}
		defer rw.close()
		for i, o := range p.Outcomes {
			row := rw.rows[ids[i]]
			if row == nil {
				continue
			}
			next, attempts, tally := rules.Finish(*row, o, rw.views[o.PromotionID].Promotion, p.Lease, p.Now)
			if err := rw.apply(row, next, tally, attempts...); err != nil {
				return err
			}
			results[i] = store.FinishResult{State: next.State, Attempts: next.Attempts, DueAt: next.DueAt, Changed: tally.Changed}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// PayoutSettle writes the results of lookups.
func (s *Store) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) error {
	if len(p.Lookups) == 0 {
		return nil
	}
	terms := rules.Terms{SettleAfter: p.SettleAfter, AgainAfter: p.AgainAfter}
	return s.write(ctx, "settle look-ups", func(tx *tx) error {
		ids := make([]store.PayoutID, len(p.Lookups))
		for i, l := range p.Lookups {
			ids[i] = store.PayoutID{PromotionID: l.PromotionID, TargetID: l.TargetID}
		}
		rw, err := tx.rewrite(ids)
		if err != nil {
			return err
		}
		defer rw.close()
		for i, l := range p.Lookups {
			row := rw.rows[ids[i]]
			if row == nil {
				continue
			}
			next, attempts, tally := rules.Settle(*row, l, rw.views[l.PromotionID].Promotion, terms, p.Now)
			if err := rw.apply(row, next, tally, attempts...); err != nil {
				return err
			}
		}
		return nil
	})
}

// PayoutRetry returns FAILED rows to READY.
func (s *Store) PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error) {
	moved := 0
	p.Code = reward.SanitizeText(p.Code) // as it was stored
	err := s.write(ctx, "retry payouts", func(tx *tx) error {
		v, err := tx.view(p.PromotionID)
		if err != nil {
			return err
		}
		if err := rules.CheckRetry(p.PromotionID, v.Status); err != nil {
			return err
		}
		rows, err := tx.failed(p)
		if err != nil {
			return err
		}
		moved, err = tx.changeRows(rows, func(r rules.Row, _ reward.Promotion) (rules.Row, rules.Tally) {
			return rules.Retry(r, p.Code, p.Now)
		})
		if err != nil || moved == 0 {
			return err
		}
		if reopened := rules.Reopen(v.Promotion); reopened.Status != v.Status {
			return tx.put(&reopened)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return moved, nil
}

// changeRows applies a rule to rows that were read inside the transaction, and
// returns how many it changed.
func (t *tx) changeRows(rows []rules.Row, rule func(rules.Row, reward.Promotion) (rules.Row, rules.Tally)) (moved int, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	rw, err := t.rewriteRows(rows)
	if err != nil {
		return 0, err
	}
	defer rw.close()
	for i := range rows {
		next, tally := rule(rows[i], rw.views[rows[i].PromotionID].Promotion)
		if tally.Changed {
			moved++
		}
		if err := rw.apply(&rows[i], next, tally); err != nil {
			return 0, err
		}
	}
	return moved, nil
}

// failed reads the payouts that a retry may return.
func (t *tx) failed(p store.PayoutRetryParams) ([]rules.Row, error) {
	if p.Targets == nil {
		failed := reward.Failed
		return collect(t.ctx, t, scanRow, pageSQL(rowColumns, &failed, p.Code), int64(p.PromotionID), -1, failed, p.Code, store.BatchMax)
	}
	targets := slices.Clone(p.Targets)
	slices.Sort(targets)
	var ids []store.PayoutID
	for _, target := range slices.Compact(targets) {
		ids = append(ids, store.PayoutID{PromotionID: p.PromotionID, TargetID: target})
	}
	return byTargets(t.ctx, t, scanRow, rowColumns, ids)
}

// PayoutResolve settles one UNKNOWN row as an operator says.
func (s *Store) PayoutResolve(ctx context.Context, p store.PayoutResolveParams) (reward.Payout, error) {
	var settled reward.Payout
	err := s.write(ctx, "resolve a payout", func(tx *tx) error {
		rw, err := tx.rewrite([]store.PayoutID{p.PayoutID})
		if err != nil {
			return err
		}
		defer rw.close()
		row := rw.rows[p.PayoutID]
		if row == nil {
			return store.NoPayout(p.PayoutID)
		}
		next, attempt, tally, err := rules.Resolve(*row, p.Resolution(), p.Now)
		if err != nil {
			return err
		}
		settled = next.Payout
		return rw.apply(row, next, tally, attempt)
	})
	if err != nil {
		return reward.Payout{}, err
	}
	return settled, nil
}
