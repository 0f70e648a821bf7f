package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// attemptWriter stores attempts. It prepares its statement at the first one.
type attemptWriter struct {
	tx   *tx
	stmt *sql.Stmt
}

// write stores attempts of one payout, numbered from 0.
func (w *attemptWriter) write(id store.PayoutID, attempts ...reward.Attempt) error {
	for number, a := range attempts {
		if a.Code == reward.CodeSecondCharge && a.Class == reward.AnswerPaid {
			number = store.SecondChargeNumber
		}
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
		_ = w.stmt.Close() // a failure shows at the end of the transaction
	}
}

// rewrite is a batch of changes to payouts. It has the rows as they are inside
// the transaction, their promotions, and the writers.
type rewrite struct {
	rows     map[store.PayoutID]*rules.Row
	views    map[reward.PromotionID]store.PromotionView
	payouts  *payoutWriter
	attempts *attemptWriter
}

// rewrite begins a rewrite of the payouts among ids that exist.
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

// apply stores the result of a rule.
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

// rewriteEach applies a rule to the row of each item, in order, and stores the
// results. rule gets the position of the item, its row and its promotion. Items
// whose row does not exist are skipped.
func rewriteEach[T any](t *tx, items []T, refOf func(T) reward.Ref,
	rule func(i int, r rules.Row, p reward.Promotion) (rules.Row, []reward.Attempt, rules.Tally),
) error {
	ids := make([]store.PayoutID, len(items))
	for i, item := range items {
		ref := refOf(item)
		ids[i] = store.PayoutID{PromotionID: ref.PromotionID, TargetID: ref.TargetID}
	}
	rw, err := t.rewrite(ids)
	if err != nil {
		return err
	}
	defer rw.close()
	for i, id := range ids {
		row := rw.rows[id]
		if row == nil {
			continue
		}
		next, attempts, tally := rule(i, *row, rw.views[id.PromotionID].Promotion)
		if err := rw.apply(row, next, tally, attempts...); err != nil {
			return err
		}
	}
	return nil
}

// PayoutFinish writes the outcomes of dispatches.
func (s *Store) PayoutFinish(ctx context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error) {
	if len(p.Outcomes) == 0 {
		return nil, nil
	}
	results := make([]store.FinishResult, len(p.Outcomes))
	err := s.write(ctx, "finish payouts", func(tx *tx) error {
		return rewriteEach(tx, p.Outcomes, func(o rules.Outcome) reward.Ref { return o.Ref },
			func(i int, r rules.Row, m reward.Promotion) (rules.Row, []reward.Attempt, rules.Tally) {
				next, attempts, tally := rules.Finish(r, p.Outcomes[i], m, p.Lease, p.Now)
				results[i] = store.FinishResult{State: next.State, Attempts: next.Attempts, DueAt: next.DueAt, Changed: tally.Changed}
				if o := p.Outcomes[i]; o.Kind == rules.OutcomePaid && rules.SecondCharge(r, o.TransactionKey) {
					results[i].Recorded = r.TransactionKey
				}
				return next, attempts, tally
			})
	})
	if err != nil {
		return nil, refused(err)
	}
	return results, nil
}

// PayoutSettle writes the results of lookups.
func (s *Store) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) ([]store.SecondCharge, error) {
	if len(p.Lookups) == 0 {
		return nil, nil
	}
	terms := rules.Terms{SettleAfter: p.SettleAfter, AgainAfter: p.AgainAfter}
	var twice []store.SecondCharge
	err := s.write(ctx, "settle lookups", func(tx *tx) error {
		return rewriteEach(tx, p.Lookups, func(l rules.Lookup) reward.Ref { return l.Ref },
			func(i int, r rules.Row, m reward.Promotion) (rules.Row, []reward.Attempt, rules.Tally) {
				l := p.Lookups[i]
				if l.Found && rules.SecondCharge(r, l.TransactionKey) {
					twice = append(twice, store.SecondCharge{Ref: l.Ref, Recorded: r.TransactionKey, TransactionKey: l.TransactionKey})
				}
				return rules.Settle(r, l, m, terms, p.Now)
			})
	})
	if err != nil {
		return nil, err
	}
	return twice, nil
}

// PayoutRetry returns FAILED rows to READY.
func (s *Store) PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error) {
	moved := 0
	p.Code = reward.SanitizeText(p.Code) // the stored codes are sanitized too
	err := s.write(ctx, "retry payouts", func(tx *tx) error {
		v, err := tx.view(p.PromotionID)
		if err != nil {
			return err
		}
		if err := cmp.Or(rules.CheckRetry(p.PromotionID, v.Status), rules.CheckArchived(p.PromotionID, !v.ArchivedAt.IsZero())); err != nil {
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

// failed reads the FAILED rows that a retry selects.
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

// PayoutResolve settles one UNKNOWN row as an operator decided.
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
