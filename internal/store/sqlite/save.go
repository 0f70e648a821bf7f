package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

const insertSQL = `INSERT INTO payouts (promotion_id, target_id, summary_id, user_id, amount, voucher_code,
  state, dispatch, attempts, maybe_called, due_at, first_dispatched_at, transaction_key, error_code, error_message, updated_at, approval_round, trace)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7 = 1, 0, 0, ?8, CASE ?7 WHEN 1 THEN ?8 END, '', '', '', ?8, ?9, nullif(?10, ''))`

// Insert inserts a batch of payouts.
func (s *Store) Insert(ctx context.Context, what string, in rows.Insertion) (done rows.Inserted, err error) {
	err = s.write(ctx, what, func(tx *tx) error {
		done, err = tx.insert(&in)
		return err
	})
	if hasCode(err, badType, badCheck) {
		err = store.Unstorable(err, "a payout")
	}
	return done, err
}

// insert inserts the rows of a batch that do not exist.
func (t *tx) insert(in *rows.Insertion) (done rows.Inserted, err error) {
	done.Known = make(map[store.PayoutID]store.NewPayout)
	ids := make([]store.PayoutID, len(in.Rows))
	for i := range in.Rows {
		ids[i] = store.PayoutID{PromotionID: in.Rows[i].PromotionID, TargetID: in.Rows[i].TargetID}
	}
	if len(ids) > 0 {
		if err := t.runText(in.Guard); err != nil {
			return done, err
		}
	}
	known, err := payoutsOf(t.ctx, t, ids)
	if err != nil {
		return done, err
	}
	for _, p := range known {
		done.Known[store.PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}] = store.NewPayout{UserID: p.UserID, Amount: p.Amount, VoucherCode: p.VoucherCode}
	}
	conflict := false
	fresh := make(map[reward.PromotionID][]*store.NewPayout)
	for i := range in.Rows {
		r := &in.Rows[i]
		if old, ok := done.Known[ids[i]]; !ok {
			fresh[r.PromotionID] = append(fresh[r.PromotionID], r)
		} else {
			conflict = conflict || !rows.SameContent(&old, r)
		}
	}
	var then []rows.Statement
	promotions := make([]reward.PromotionID, len(in.Intakes))
	for i := range in.Intakes {
		k := &in.Intakes[i]
		promotions[i] = k.ID
		if k.Refuses {
			conflict = conflict || len(fresh[k.ID]) > 0
		} else if err := t.insertOf(k, fresh[k.ID], in, &done); err != nil {
			return done, err
		}
		if !k.FinishedAt.IsZero() {
			then = append(then, rows.ContinueEnded(k.ID)...)
		}
	}
	if err := t.writeMoves(); errors.Is(err, errOverflow) || hasCode(err, badType, badCheck) {
		return done, rules.AmountOverflow(promotions...)
	} else if err != nil {
		return done, err
	}
	if !conflict {
		then = append(then, rows.PutOffsets(in.Offsets)...)
	}
	return done, t.runAll(append(then, in.DeadLetters...))
}

// insertOf inserts the new rows of one promotion.
func (t *tx) insertOf(k *rows.Intake, fresh []*store.NewPayout, in *rows.Insertion, done *rows.Inserted) error {
	if len(fresh) == 0 {
		return nil
	}
	v, err := t.view(k.ID)
	if err != nil {
		return err
	}
	with := v.Counts
	for _, r := range fresh {
		with.Amounts[reward.Ready] = rules.Worth(with.Amounts[reward.Ready], r.Amount)
	}
	room := int64(0)
	if k.Hold(with) {
		room = int64(in.MaxLen) - v.Counts.Payouts[reward.Queued]
	}
	stmt, err := t.PrepareContext(t.ctx, insertSQL)
	if err != nil {
		return err
	}
	defer stmt.Close()
	summaries := make(map[reward.SummaryID]bool)
	unvalued, queued := false, int64(0)
	for _, r := range fresh {
		p := reward.Payout{PromotionID: r.PromotionID, TargetID: r.TargetID, SummaryID: r.SummaryID, Amount: r.Amount, State: k.State}
		if queued < room {
			p.State = reward.Queued
			queued++
			done.Queued = append(done.Queued, store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID})
		}
		unvalued = unvalued || r.Amount == 0
		if r.SummaryID > 0 && !summaries[r.SummaryID] {
			if err := t.exec(`INSERT INTO summaries (promotion_id, summary_id) VALUES (?, ?) ON CONFLICT DO NOTHING`, int64(r.PromotionID), int64(r.SummaryID)); err != nil {
				return err
			}
			summaries[r.SummaryID] = true
		}
		if _, err := stmt.ExecContext(t.ctx, int64(r.PromotionID), int64(r.TargetID), int64(r.SummaryID), r.UserID,
			int64(r.Amount), r.VoucherCode, int64(p.State), micros(in.Now), k.Approval.Round, r.Trace); err != nil {
			return err
		}
		t.move(&p, none, 0)
	}
	if unvalued && k.Unvalued > 0 {
		if err := t.exec(`UPDATE promotions SET unvalued_rounds = ? WHERE id = ?`, k.Unvalued, int64(k.ID)); err != nil {
			return err
		}
	}
	if queued == 0 {
		return nil
	}
	return t.recordDispatch(k.ID, in.Now, 0)
}

// recordDispatch records that payouts of a promotion became QUEUED: its stream exists and may
// get entries. The canary counts first of them.
func (t *tx) recordDispatch(id reward.PromotionID, at time.Time, first int64) error {
	return t.exec(`UPDATE promotions SET last_dispatched_at = max(coalesce(last_dispatched_at, ?1), ?1), stream_gone = 0,
  canary_dispatched = canary_dispatched + ?3 WHERE id = ?2`, micros(at), int64(id), first)
}
