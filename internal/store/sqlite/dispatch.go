package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"math"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// PayoutDispatch moves due payouts to QUEUED.
func (s *Store) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) ([]reward.Payout, error) {
	if p.From != reward.Ready && p.From != reward.Retrying {
		return nil, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "a payout is not dispatched from %s", p.From)
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
		limit := min(int64(p.Limit), int64(p.MaxLen)-v.Counts.Payouts[reward.Queued])
		if v.Status != reward.Running || limit <= 0 {
			return nil
		}
		due := int64(math.MaxInt64) // READY is due since it was saved, whoever's clock said so
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
		allowed, err := tx.allowanceOf(&v)
		if err != nil {
			return err
		}
		switch {
		case allowed.budget < 0:
			return nil
		case p.From == reward.Ready && allowed.bounded():
			targets, err := tx.pickAllowed(p, allowed, limit)
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
		return tx.noteDispatch(&v.Promotion, micros(p.Now), first)
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// What PayoutDispatch dispatches: what is due, or, with the JSON in the last
// parameter, the refs of those that are, or targets that were picked before.
const (
	dueTargets = `SELECT target_id FROM payouts WHERE promotion_id = ?1 AND state = ?2 AND state < 4 AND due_at <= ?3
  ORDER BY due_at, target_id LIMIT ?4`
	namedTargets = `SELECT DISTINCT o.target_id FROM json_each(?6) r
  JOIN payouts o ON o.promotion_id = ?1 AND o.target_id = r.value ->> 0
  WHERE o.state = ?2 AND o.dispatch = r.value ->> 1 AND o.due_at <= ?3
  ORDER BY o.target_id LIMIT ?4`
	pickedTargets = `SELECT value FROM json_each(?6)`
)

// allowance is what budget and canary of a promotion leave for rows that
// become QUEUED, see store.Payouts.
type allowance struct {
	first  int64         // rows that were never dispatched
	budget reward.Amount // of rows that are not counted in it yet; below 0: nothing at all
}

const unbounded = math.MaxInt64

// spentReady sums READY rows that may have been called: what they may have cost
// is spent.
const spentReady = `SELECT coalesce(sum(amount), 0) FROM payouts INDEXED BY payouts_rare
WHERE promotion_id = ?1 AND state = 0 AND dispatch > 0 AND ` + rare + ` AND maybe_called`

func (t *tx) allowanceOf(v *store.PromotionView) (allowance, error) {
	a := allowance{first: unbounded, budget: unbounded}
	if c := v.Canary; c.Targets > 0 && !c.Judged {
		a.first = max(c.Targets-c.Dispatched, 0)
	}
	if v.MaxAmount > 0 {
		a.budget = v.MaxAmount
		for _, state := range []reward.State{reward.Succeeded, reward.Queued, reward.Retrying, reward.Unknown} {
			a.budget -= v.Counts.Amounts[state]
		}
		var spent int64
		if err := t.QueryRowContext(t.ctx, spentReady, int64(v.ID)).Scan(&spent); err != nil {
			return a, err
		}
		a.budget -= reward.Amount(spent)
	}
	return a, nil
}

func (a *allowance) bounded() bool { return a.first != unbounded || a.budget != unbounded }

// take says whether a READY row may become QUEUED, and counts it. The first one
// that would pass the budget ends it, so that none behind it is preferred.
func (a *allowance) take(amount reward.Amount, first bool) bool {
	switch {
	case first && a.first == 0:
		return false
	case amount > a.budget:
		a.budget = -1
		return false
	}
	if first && a.first != unbounded {
		a.first--
	}
	if a.budget != unbounded {
		a.budget -= amount
	}
	return true
}

// rare is the condition of the index payouts_rare, which only a query that
// repeats it can use.
const rare = `(state = 2 OR state = 3 OR state = 5 OR (state = 0 AND dispatch > 0))`

// unspent is what dispatching a READY row adds to what is spent.
const unspent = `CASE WHEN maybe_called THEN 0 ELSE amount END`

// pickDue finds READY rows with their amounts and dispatches, oldest first: at
// most ?2 that were never dispatched and at most ?3 that were. The index is
// named: another would walk through all that the canary holds up.
const pickDue = `SELECT target_id, amount, dispatch FROM (
SELECT * FROM (SELECT target_id, ` + unspent + ` AS amount, dispatch, due_at FROM payouts INDEXED BY payouts_open
  WHERE promotion_id = ?1 AND state = 0 AND state < 4 AND dispatch = 0 ORDER BY due_at, target_id LIMIT ?2)
UNION ALL
SELECT * FROM (SELECT target_id, ` + unspent + ` AS amount, dispatch, due_at FROM payouts INDEXED BY payouts_rare
  WHERE promotion_id = ?1 AND state = 0 AND dispatch > 0 AND ` + rare + ` ORDER BY due_at, target_id LIMIT ?3)
) ORDER BY due_at, target_id LIMIT ?3`

// pickNamed finds those of the refs in ?2.
const pickNamed = `SELECT DISTINCT o.target_id, ` + unspent + `, o.dispatch FROM json_each(?2) r
JOIN payouts o ON o.promotion_id = ?1 AND o.target_id = r.value ->> 0
WHERE o.state = 0 AND o.dispatch = r.value ->> 1 ORDER BY o.target_id`

// pickAllowed returns, as JSON, the targets of READY rows that budget and canary
// let go.
func (t *tx) pickAllowed(p store.PayoutDispatchParams, allowed allowance, limit int64) (string, error) {
	type ready struct {
		target   int64
		amount   reward.Amount
		dispatch int32
	}
	query, args := pickDue, []any{int64(p.PromotionID), min(allowed.first, limit), limit}
	if p.Refs != nil {
		refs, err := json.Marshal(refPairs(p.PromotionID, p.Refs))
		if err != nil {
			return "", err
		}
		query, args = pickNamed, []any{int64(p.PromotionID), string(refs)}
	}
	list, err := collect(t.ctx, t, func(rows *sql.Rows) (ready, error) {
		var r ready
		err := rows.Scan(&r.target, (*int64)(&r.amount), &r.dispatch)
		return r, err
	}, query, args...)
	if err != nil {
		return "", err
	}
	targets := []int64{}
	for _, r := range list {
		if int64(len(targets)) < limit && allowed.take(r.amount, r.dispatch == 0) {
			targets = append(targets, r.target)
		}
	}
	array, err := json.Marshal(targets)
	return string(array), err
}

// refPairs are the targets and dispatches of one promotion's refs.
func refPairs(promotion reward.PromotionID, refs []reward.Ref) [][2]int64 {
	pairs := make([][2]int64, 0, len(refs))
	for _, r := range refs {
		if r.PromotionID == promotion {
			pairs = append(pairs, [2]int64{int64(r.TargetID), int64(r.Dispatch)})
		}
	}
	return pairs
}

// withdraw takes rows out of their state. judge says which state follows and
// whether somebody may have called; UNKNOWN rows get their settle time.
func (t *tx) withdraw(rows []reward.Payout, lease time.Duration, now time.Time,
	judge func(*reward.Payout) (next reward.State, maybeCalled bool),
) (int, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	w, err := t.payoutWriter()
	if err != nil {
		return 0, err
	}
	defer w.close()
	for i := range rows {
		next := rows[i]
		state, maybeCalled := judge(&rows[i])
		next.MaybeCalled = next.MaybeCalled || maybeCalled
		enter(&next, state, now, lease)
		if err := w.write(&rows[i], &next, lookedUp{}); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

// enter moves a payout to a state at now. [toUnknown]
func enter(p *reward.Payout, state reward.State, now time.Time, lease time.Duration) {
	p.State, p.DueAt, p.UpdatedAt = state, instant(now), instant(now)
	if state == reward.Unknown {
		p.MaybeCalled, p.SettleFrom = true, instant(now.Add(lease))
	}
}

// PayoutGiveBack returns QUEUED rows to READY.
func (s *Store) PayoutGiveBack(ctx context.Context, p store.PayoutGiveBackParams) (int, error) {
	moved := 0
	err := s.write(ctx, "give payouts back", func(tx *tx) error {
		ids := make([]store.PayoutID, len(p.Refs))
		named := make(map[reward.Ref]bool, len(p.Refs))
		for i, r := range p.Refs {
			ids[i] = store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
			named[r] = true
		}
		found, err := payoutsOf(tx.ctx, tx, ids)
		if err != nil {
			return err
		}
		held := found[:0]
		for _, f := range found {
			ref := reward.Ref{PromotionID: f.PromotionID, TargetID: f.TargetID, Dispatch: f.Dispatch}
			if f.State == reward.Queued && named[ref] {
				held = append(held, f)
			}
		}
		views, err := tx.viewsOf(held)
		if err != nil {
			return err
		}
		if p.HandedOver {
			for i := range held {
				held[i].Handovers = min(held[i].Handovers+1, store.HandoversMax)
			}
		}
		moved, err = tx.withdraw(held, p.Lease, p.Now, func(f *reward.Payout) (reward.State, bool) {
			switch {
			case views[f.PromotionID].Status != reward.PromotionCancelled:
				return reward.Ready, p.MaybeCalled
			case f.MaybeCalled || p.MaybeCalled:
				return reward.Unknown, true
			}
			return reward.Cancelled, false
		})
		return err
	})
	if err != nil {
		return 0, err
	}
	return moved, nil
}

// viewsOf reads the promotions of payouts that exist.
func (t *tx) viewsOf(list []reward.Payout) (map[reward.PromotionID]store.PromotionView, error) {
	ids := make([]store.PayoutID, len(list))
	for i, p := range list {
		ids[i].PromotionID = p.PromotionID
	}
	return t.views(ids)
}

// PayoutSweep returns QUEUED rows that no queue holds to READY.
func (s *Store) PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (int, error) {
	moved := 0
	err := s.write(ctx, "sweep payouts", func(tx *tx) error {
		found, err := collect(tx.ctx, tx, scanPayout, `SELECT `+payoutColumns+` FROM payouts p
WHERE p.promotion_id = ? AND p.state = 1 AND p.state < 4 AND p.due_at < ? ORDER BY p.due_at, p.target_id LIMIT ?`,
			int64(p.PromotionID), micros(p.Before), store.BatchMax)
		if err != nil || len(found) == 0 {
			return err
		}
		v, err := tx.view(p.PromotionID)
		if err != nil {
			return err
		}
		moved, err = tx.withdraw(found, p.Lease, p.Now, func(*reward.Payout) (reward.State, bool) {
			if v.Status == reward.PromotionCancelled {
				return reward.Unknown, true
			}
			return reward.Ready, true
		})
		return err
	})
	if err != nil {
		return 0, err
	}
	return moved, nil
}

// PayoutCancelStep carries a cancel on: READY rows first, then RETRYING ones.
func (s *Store) PayoutCancelStep(ctx context.Context, p store.PayoutCancelStepParams) (int, error) {
	moved := 0
	err := s.write(ctx, "carry a cancel on", func(tx *tx) error {
		v, err := tx.view(p.PromotionID)
		if reward.HasCode(err, reward.CodeNotFound) || (err == nil && v.Status != reward.PromotionCancelled) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, from := range []reward.State{reward.Ready, reward.Retrying} {
			found, err := collect(tx.ctx, tx, scanPayout, `SELECT `+payoutColumns+` FROM payouts p
WHERE p.promotion_id = ? AND p.state = ? AND p.state < 4 ORDER BY p.due_at, p.target_id LIMIT ?`,
				int64(p.PromotionID), int64(from), store.BatchMax-moved)
			if err != nil {
				return err
			}
			n, err := tx.withdraw(found, p.Lease, p.Now, func(f *reward.Payout) (reward.State, bool) {
				if f.State == reward.Ready && !f.MaybeCalled {
					return reward.Cancelled, false
				}
				return reward.Unknown, true
			})
			if err != nil {
				return err
			}
			moved += n
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return moved, nil
}

// takeLookups takes payouts whose look-up is due, oldest first.
var takeLookups = `UPDATE payouts AS p SET due_at = ?1 WHERE (promotion_id, target_id) IN (
  SELECT promotion_id, target_id FROM payouts INDEXED BY payouts_lookups
  WHERE (state = 3 OR again = 1) AND due_at <= ?2 ORDER BY due_at LIMIT ?3)
RETURNING ` + payoutReturning

// PayoutTakeLookups takes payouts whose look-up is due.
func (s *Store) PayoutTakeLookups(ctx context.Context, p store.PayoutTakeLookupsParams) ([]reward.Payout, error) {
	var list []reward.Payout
	err := s.write(ctx, "take look-ups", func(tx *tx) (err error) {
		list, err = collect(tx.ctx, tx, scanPayout, takeLookups, micros(p.Until), micros(p.Now), max(p.Limit, 0))
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}
