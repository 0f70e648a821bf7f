package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// attemptWriter keeps answers.
type attemptWriter struct {
	tx   *tx
	stmt *sql.Stmt
}

func (w *attemptWriter) write(r reward.Ref, number int, a reward.Attempt) error {
	if w.stmt == nil {
		stmt, err := w.tx.PrepareContext(w.tx.ctx, `INSERT INTO attempts (promotion_id, target_id, at, dispatch, number, class, code,
  message) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`)
		if err != nil {
			return err
		}
		w.stmt = stmt
	}
	_, err := w.stmt.ExecContext(w.tx.ctx, int64(r.PromotionID), int64(r.TargetID), micros(a.At), a.Dispatch, number,
		string(a.Class), store.Text(a.Code), store.Text(a.Message))
	return err
}

func (w *attemptWriter) close() {
	if w.stmt != nil {
		_ = w.stmt.Close() // the transaction's end tells
	}
}

// rewrite is a batch of changes to payouts: the rows as they stand inside the
// transaction, the rules of their promotions, and the writers.
type rewrite struct {
	rows     map[store.PayoutID]*reward.Payout
	views    map[reward.PromotionID]store.PromotionView
	payouts  *payoutWriter
	attempts *attemptWriter
}

func (t *tx) rewrite(ids []store.PayoutID) (*rewrite, error) {
	found, err := payoutsOf(t.ctx, t, ids)
	if err != nil {
		return nil, err
	}
	r := &rewrite{rows: make(map[store.PayoutID]*reward.Payout, len(found)), attempts: &attemptWriter{tx: t}}
	for i := range found {
		r.rows[store.PayoutID{PromotionID: found[i].PromotionID, TargetID: found[i].TargetID}] = &found[i]
	}
	if r.views, err = t.viewsOf(found); err != nil {
		return nil, err
	}
	r.payouts, err = t.payoutWriter()
	return r, err
}

func (r *rewrite) close() {
	r.payouts.close()
	r.attempts.close()
}

// PayoutFinish writes outcomes. [updateSuccess, updateFailed, updateError]
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
		for i := range p.Outcomes {
			o := &p.Outcomes[i]
			row := rw.rows[ids[i]]
			if row == nil {
				continue
			}
			for n, a := range o.Attempts {
				if err := rw.attempts.write(o.Ref, n, a); err != nil {
					return err
				}
			}
			next := *row
			changed := finish(&next, o, rw.views[o.PromotionID].Promotion, p.Lease, p.Now)
			if changed {
				next.Handovers = 0
				if err := rw.payouts.write(row, &next, lookedUp{}); err != nil {
					return err
				}
				*row = next
			}
			results[i] = store.FinishResult{State: next.State, Attempts: next.Attempts, DueAt: next.DueAt, Changed: changed}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// finish applies an outcome to a row by the rules of store.OutcomeKind and
// says whether it changed.
func finish(row *reward.Payout, o *store.Outcome, m reward.Promotion, lease time.Duration, now time.Time) bool {
	if o.Kind == store.OutcomePaid {
		if row.State == reward.Succeeded {
			return false
		}
		enter(row, reward.Succeeded, now, lease)
		row.Attempts++
		row.TransactionKey, row.ErrorCode, row.ErrorMessage = store.Text(o.TransactionKey), "", ""
		return true
	}
	if row.State != reward.Queued || row.Dispatch != o.Dispatch {
		return false
	}
	called := row.MaybeCalled || o.Sent
	live := m.Status != reward.PromotionCancelled
	next := reward.Unknown
	switch o.Kind {
	case store.OutcomeRefused:
		row.Attempts++
		if !called {
			next = reward.Failed
		}
	case store.OutcomeFailed:
		row.Attempts++
		if live && int(row.Attempts) <= m.MaxRetries {
			next = reward.Retrying
		}
	case store.OutcomeNoAnswer:
		if live && !o.GiveUp {
			next = reward.Retrying
		}
	case store.OutcomeNoLookup:
	case store.OutcomeCancelled:
		if !called {
			next = reward.Cancelled
		}
	default:
		return false
	}
	enter(row, next, now, lease)
	if next == reward.Retrying {
		row.MaybeCalled = true
		if !o.RetryAt.IsZero() {
			row.DueAt = instant(o.RetryAt)
		}
	}
	if o.Code != "" || o.Message != "" {
		row.ErrorCode, row.ErrorMessage = store.Text(o.Code), store.Text(o.Message)
	}
	return true
}

// PayoutSettle writes what look-ups told.
func (s *Store) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) error {
	if len(p.Lookups) == 0 {
		return nil
	}
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
		again, err := tx.againOf(rw.rows)
		if err != nil {
			return err
		}
		for i := range p.Lookups {
			l := &p.Lookups[i]
			row := rw.rows[ids[i]]
			if row == nil {
				continue
			}
			if l.Attempt != nil {
				if err := rw.attempts.write(l.Ref, 0, *l.Attempt); err != nil {
					return err
				}
			}
			next := *row
			left := lookedUp{again: again[ids[i]]}
			if settle(&next, l, rw.views[l.PromotionID].Promotion, &left, &p) {
				if err := rw.payouts.write(row, &next, left); err != nil {
					return err
				}
				*row, again[ids[i]] = next, left.again
			}
		}
		return nil
	})
}

// againOf says which of the rows are to be looked up once more.
func (t *tx) againOf(rows map[store.PayoutID]*reward.Payout) (map[store.PayoutID]bool, error) {
	again := make(map[store.PayoutID]bool)
	decided := make(map[reward.PromotionID][]reward.TargetID)
	for id, row := range rows {
		if row.State == reward.Failed || row.State == reward.Cancelled {
			decided[id.PromotionID] = append(decided[id.PromotionID], id.TargetID)
		}
	}
	for promotion, targets := range decided {
		array, err := json.Marshal(targets)
		if err != nil {
			return nil, err
		}
		found, err := collect(t.ctx, t, scanInt, `SELECT target_id FROM payouts
WHERE promotion_id = ? AND target_id IN (SELECT value FROM json_each(?)) AND +again = 1`, int64(promotion), string(array))
		if err != nil {
			return nil, err
		}
		for _, target := range found {
			again[store.PayoutID{PromotionID: promotion, TargetID: reward.TargetID(target)}] = true
		}
	}
	return again, nil
}

// settle applies a look-up to a row, and to what earlier ones have left, by the
// rules of store.Lookup and says whether it changed. A row that a 404 decides
// keeps what was said about it before.
func settle(row *reward.Payout, l *store.Lookup, m reward.Promotion, left *lookedUp, p *store.PayoutSettleParams) bool {
	again := left.again
	*left = lookedUp{}
	if l.Found {
		if row.State == reward.Succeeded {
			return false
		}
		enter(row, reward.Succeeded, p.Now, 0)
		row.TransactionKey, row.ErrorCode, row.ErrorMessage = store.Text(l.TransactionKey), "", ""
		return true
	}
	if row.Dispatch != l.Dispatch {
		return false
	}
	if again {
		if instant(l.BeganAt).Before(row.UpdatedAt) {
			return false
		}
		if !l.NotFound {
			row.DueAt, left.again = instant(l.NextAt), true
		}
		return true
	}
	if row.State != reward.Unknown {
		return false
	}
	if !l.NotFound || instant(l.BeganAt).Before(row.SettleFrom.Add(p.SettleAfter)) {
		row.DueAt, left.at = instant(l.NextAt), l.BeganAt
		return true
	}
	next := reward.Failed
	if m.Status == reward.PromotionCancelled {
		next = reward.Cancelled
	}
	enter(row, next, p.Now, 0)
	if p.AgainAfter > 0 {
		row.DueAt, left.again = instant(p.Now.Add(p.AgainAfter)), true
	}
	if row.ErrorCode == "" && row.ErrorMessage == "" && l.Attempt != nil {
		row.ErrorCode, row.ErrorMessage = store.Text(l.Attempt.Code), store.Text(l.Attempt.Message)
	}
	return true
}

// PayoutRetry returns FAILED rows to READY.
func (s *Store) PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error) {
	moved := 0
	p.Code = store.Text(p.Code) // as it was kept
	err := s.write(ctx, "retry payouts", func(tx *tx) error {
		v, err := tx.view(p.PromotionID)
		if err != nil {
			return err
		}
		if v.Status == reward.Draft || v.Status == reward.PromotionCancelled {
			return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
				"promotion %d is %s, which does not allow a retry", p.PromotionID, v.Status)
		}
		rows, err := tx.failed(p)
		if err != nil || len(rows) == 0 {
			return err
		}
		w, err := tx.payoutWriter()
		if err != nil {
			return err
		}
		defer w.close()
		for i := range rows {
			next := rows[i]
			enter(&next, reward.Ready, p.Now, 0)
			next.Attempts = 0
			if err := w.write(&rows[i], &next, lookedUp{}); err != nil {
				return err
			}
		}
		moved = len(rows)
		if v.Status == reward.Completed {
			return tx.reopen(p.PromotionID)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return moved, nil
}

// failed reads the payouts that a retry takes, by target.
func (t *tx) failed(p store.PayoutRetryParams) ([]reward.Payout, error) {
	failed := reward.Failed
	if p.Targets == nil {
		return collect(t.ctx, t, scanPayout, listSQL(&failed, p.Code), int64(p.PromotionID), -1, failed, p.Code, store.BatchMax)
	}
	ids := make([]store.PayoutID, len(p.Targets))
	for i, target := range p.Targets {
		ids[i] = store.PayoutID{PromotionID: p.PromotionID, TargetID: target}
	}
	rows, err := payoutsOf(t.ctx, t, ids)
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r reward.Payout) bool {
		return r.State != failed || p.Code != "" && r.ErrorCode != p.Code
	})
	slices.SortFunc(rows, func(a, b reward.Payout) int { return cmp.Compare(a.TargetID, b.TargetID) })
	return rows, nil
}

// PayoutResolve settles one UNKNOWN row as somebody says.
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
		if row.State != reward.Unknown {
			return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
				"target %d of promotion %d is %s; only an UNKNOWN one can be resolved", p.TargetID, p.PromotionID, row.State)
		}
		settled = *row
		if p.Paid {
			enter(&settled, reward.Succeeded, p.Now, 0)
			settled.TransactionKey, settled.ErrorCode, settled.ErrorMessage = store.Text(p.TransactionKey), "", ""
		} else {
			enter(&settled, reward.Failed, p.Now, 0)
		}
		ref := reward.Ref{PromotionID: p.PromotionID, TargetID: p.TargetID, Dispatch: row.Dispatch}
		if err := rw.attempts.write(ref, 0, reward.Attempt{
			Dispatch: row.Dispatch, At: p.Now, Class: reward.AnswerResolved, Code: p.By, Message: p.Note,
		}); err != nil {
			return err
		}
		return rw.payouts.write(row, &settled, lookedUp{})
	})
	if err != nil {
		return reward.Payout{}, err
	}
	return settled, nil
}
