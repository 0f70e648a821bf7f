package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// PayoutSave inserts a batch of payouts with their counts, offsets and dead
// letters.
func (s *Store) PayoutSave(ctx context.Context, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	for _, r := range p.Rows {
		if err := r.Check(); err != nil {
			return store.PayoutSaveResult{}, err
		}
	}
	var res store.PayoutSaveResult
	err := s.write(ctx, "save payouts", func(tx *tx) error {
		res = store.PayoutSaveResult{Outcomes: make([]store.SaveOutcome, len(p.Rows))}
		sv, err := newSaver(tx, p)
		if err != nil {
			return err
		}
		defer sv.close()
		for i := range p.Rows {
			outcome, inserted, err := sv.save(&p.Rows[i])
			if err != nil {
				return err
			}
			res.Outcomes[i] = outcome
			if inserted.State == reward.Queued {
				res.Queued = append(res.Queued, inserted)
			}
		}
		if err := tx.writeMoves(); errors.Is(err, errOverflow) || hasCode(err, badType, badCheck) {
			return rules.AmountOverflow(slices.Collect(maps.Keys(sv.promotions))...)
		} else if err != nil {
			return err
		}
		if err := sv.finish(); err != nil {
			return err
		}
		if !slices.Contains(res.Outcomes, store.Conflict) && !slices.Contains(res.Outcomes, store.Archived) {
			if err := tx.putOffsets(p.Offsets); err != nil {
				return err
			}
		}
		for _, l := range rows.AddDeadLetters(p.DeadLetters) {
			if err := tx.exec(l.SQL, bind(l.Args)...); err != nil {
				return err
			}
		}
		return nil
	})
	if hasCode(err, badType, badCheck) {
		e := reward.NewError(reward.KindInvalid, reward.CodeInvalid, "the database cannot store a payout of the batch")
		e.Err = err
		return store.PayoutSaveResult{}, e
	}
	if err != nil {
		return store.PayoutSaveResult{}, err
	}
	return res, nil
}

// saver inserts the rows of one batch.
type saver struct {
	tx         *tx
	params     store.PayoutSaveParams
	stmt       *sql.Stmt
	known      map[store.PayoutID]reward.Payout // including those inserted by this batch
	promotions map[reward.PromotionID]*saverPromotion
	summaries  map[summaryKey]bool // the summary rows that exist
}

// saverPromotion is a promotion with what the batch did to it.
type saverPromotion struct {
	reward.Promotion
	allowed  *rules.Allowance
	inserted bool
	queued   int64
}

func newSaver(tx *tx, p store.PayoutSaveParams) (*saver, error) {
	ids := make([]store.PayoutID, len(p.Rows))
	for i, r := range p.Rows {
		ids[i] = store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
	}
	views, err := tx.views(ids)
	if err != nil {
		return nil, err
	}
	list, err := payoutsOf(tx.ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	s := &saver{
		tx: tx, params: p,
		known:      make(map[store.PayoutID]reward.Payout, len(ids)),
		promotions: make(map[reward.PromotionID]*saverPromotion, len(views)),
		summaries:  make(map[summaryKey]bool),
	}
	for _, k := range list {
		s.known[store.PayoutID{PromotionID: k.PromotionID, TargetID: k.TargetID}] = k
	}
	added := make(map[reward.PromotionID]reward.Amount)
	unvalued := make(map[reward.PromotionID]bool)
	fresh := make(map[store.PayoutID]bool)
	for i, r := range p.Rows {
		if _, known := s.known[ids[i]]; !known && !fresh[ids[i]] {
			fresh[ids[i]] = true
			added[r.PromotionID] = rules.Worth(added[r.PromotionID], r.Amount)
			unvalued[r.PromotionID] = unvalued[r.PromotionID] || r.Amount == 0
		}
	}
	for id, v := range views {
		if unvalued[id] && v.Approval.Unvalued <= v.Approval.Round {
			v.Approval.Unvalued = v.Approval.Round + 1
			if err := tx.exec(`UPDATE promotions SET unvalued_rounds = ? WHERE id = ?`, v.Approval.Unvalued, int64(id)); err != nil {
				return s, err
			}
		}
		needed := rules.ApprovalNeeded(v.Promotion, rules.Worth(v.Counts.AmountTotal(), added[id]), p.ApprovalAbove)
		allowed, err := tx.allow(&v, needed, int64(p.MaxLen)-v.Counts.Payouts[reward.Queued])
		if err != nil {
			return s, err
		}
		s.promotions[id] = &saverPromotion{Promotion: v.Promotion, allowed: allowed}
	}
	s.stmt, err = tx.PrepareContext(tx.ctx, `INSERT INTO payouts (promotion_id, target_id, summary_id, user_id, amount, voucher_code,
  state, dispatch, attempts, maybe_called, due_at, first_dispatched_at, transaction_key, error_code, error_message, updated_at, approval_round, trace)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7 = 1, 0, 0, ?8, CASE ?7 WHEN 1 THEN ?8 END, '', '', '', ?8, ?9, nullif(?10, ''))`)
	return s, err
}

func (s *saver) close() { _ = s.stmt.Close() } // a failure shows at the end of the transaction

// save inserts one row, unless the target is known. It returns the outcome and
// the row that it inserted.
func (s *saver) save(r *store.NewPayout) (store.SaveOutcome, reward.Payout, error) {
	id := store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
	if k, ok := s.known[id]; ok {
		if k.Amount == r.Amount && k.UserID == r.UserID && k.VoucherCode == r.VoucherCode {
			return store.Duplicate, reward.Payout{}, nil
		}
		return store.Conflict, reward.Payout{}, nil
	}
	m := s.promotions[r.PromotionID]
	if !m.ArchivedAt.IsZero() {
		return store.Archived, reward.Payout{}, nil
	}
	now := instant(s.params.Now)
	p := reward.Payout{
		PromotionID: r.PromotionID, TargetID: r.TargetID, SummaryID: r.SummaryID, UserID: r.UserID, Amount: r.Amount,
		VoucherCode: r.VoucherCode, State: reward.Ready, DueAt: now, UpdatedAt: now, Trace: r.Trace,
	}
	switch {
	case m.Status == reward.PromotionCancelled:
		p.State = reward.Cancelled
	case m.allowed.Take(rules.Row{Payout: p, ApprovalRound: m.Approval.Round}):
		p.State, p.Dispatch, p.FirstDispatchedAt = reward.Queued, 1, now
		m.queued++
	}
	if key := (summaryKey{r.PromotionID, r.SummaryID}); r.SummaryID > 0 && !s.summaries[key] {
		if err := s.tx.exec(`INSERT INTO summaries (promotion_id, summary_id) VALUES (?, ?) ON CONFLICT DO NOTHING`,
			int64(r.PromotionID), int64(r.SummaryID)); err != nil {
			return 0, reward.Payout{}, err
		}
		s.summaries[key] = true
	}
	if _, err := s.stmt.ExecContext(s.tx.ctx, int64(p.PromotionID), int64(p.TargetID), int64(p.SummaryID), p.UserID,
		int64(p.Amount), p.VoucherCode, int64(p.State), micros(now), m.Approval.Round, p.Trace); err != nil {
		return 0, reward.Payout{}, err
	}
	s.tx.move(&p, none, 0)
	s.known[id] = p
	m.inserted = true
	return store.Accepted, p, nil
}

// finish updates the promotions that gained rows.
func (s *saver) finish() error {
	for _, m := range s.promotions {
		if m.Status == reward.Completed && m.inserted {
			reopened := rules.Reopen(m.Promotion)
			if err := s.tx.reopen(&reopened); err != nil {
				return err
			}
		}
		if m.queued > 0 {
			if err := s.tx.recordDispatch(&m.Promotion, micros(s.params.Now), m.queued); err != nil {
				return err
			}
		}
	}
	return nil
}

// recordDispatch records a dispatch of a promotion: its stream exists and may
// get entries. first is the number of rows dispatched for the first time.
func (t *tx) recordDispatch(p *reward.Promotion, at, first int64) error {
	if !rules.CanaryOpen(*p) {
		first = 0
	}
	err := t.exec(`UPDATE promotions SET last_dispatched_at = max(coalesce(last_dispatched_at, ?1), ?1), stream_gone = 0,
  canary_dispatched = canary_dispatched + ?3 WHERE id = ?2`, at, int64(p.ID), first)
	return err
}
