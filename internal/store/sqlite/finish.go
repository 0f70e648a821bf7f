package sqlite

import (
	"context"
	"database/sql"
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
				if err := rw.payouts.write(row, &next, time.Time{}); err != nil {
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
			if settle(&next, l, rw.views[l.PromotionID].Promotion, p.SettleAfter, p.Now) {
				var lookedAt time.Time
				if next.State == reward.Unknown {
					lookedAt = l.BeganAt
				}
				if err := rw.payouts.write(row, &next, lookedAt); err != nil {
					return err
				}
				*row = next
			}
		}
		return nil
	})
}

// settle applies a look-up to a row by the rules of store.Lookup and says
// whether it changed. A row that a 404 decides keeps what was said about it
// before.
func settle(row *reward.Payout, l *store.Lookup, m reward.Promotion, settleAfter time.Duration, now time.Time) bool {
	if l.Found {
		if row.State == reward.Succeeded {
			return false
		}
		enter(row, reward.Succeeded, now, 0)
		row.TransactionKey, row.ErrorCode, row.ErrorMessage = store.Text(l.TransactionKey), "", ""
		return true
	}
	if row.State != reward.Unknown || row.Dispatch != l.Dispatch {
		return false
	}
	if !l.NotFound || instant(l.BeganAt).Before(row.SettleFrom.Add(settleAfter)) {
		row.DueAt = instant(l.NextAt)
		return true
	}
	next := reward.Failed
	if m.Status == reward.PromotionCancelled {
		next = reward.Cancelled
	}
	enter(row, next, now, 0)
	if row.ErrorCode == "" && row.ErrorMessage == "" && l.Attempt != nil {
		row.ErrorCode, row.ErrorMessage = store.Text(l.Attempt.Code), store.Text(l.Attempt.Message)
	}
	return true
}
