package rows

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// Payouts reads payouts, and writes what rules make of them. No transaction stays open
// between the two: a client that falls silent would hold its locks.
type Payouts interface {
	PromotionViews(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error)
	PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error)
	// RowsOf returns the payouts among ids that exist, and their promotions.
	RowsOf(ctx context.Context, what string, ids []store.PayoutID) (map[store.PayoutID]rules.Row, map[reward.PromotionID]reward.Promotion, error)
	// Rewrite writes changes of different payouts, ordered by PayoutID.Compare, in one
	// transaction: those whose row, and the status of whose promotion, is still as it was,
	// with their attempts and the counts. A promotion that had ended and has payouts to do
	// again continues. Rewrite returns the positions of the other changes. shared is for
	// batches of several promotions; see store.ErrLocked.
	Rewrite(ctx context.Context, what string, shared bool, changes []Change) (stale []int, err error)
}

// Change is what a rule makes of one payout.
type Change struct {
	Was, Next rules.Row
	Status    reward.PromotionStatus // of its promotion, when the rule was applied
	Tally     rules.Tally
	// Attempts are recorded with the change. Those of a row that does not change are
	// recorded if it exists.
	Attempts []reward.Attempt
}

// Reopens reports whether a change gives its promotion something to do again.
func (c *Change) Reopens() bool {
	return c.Tally.Changed && c.Was.State.Final() && c.Next.State == reward.Ready
}

// rewrite applies a rule to the payout of each item. Items of one payout take effect one
// after the other. rule gets the position of the item, its row and its promotion, and fills
// in all but Was and Status. It is called again if another transaction has changed the row
// meanwhile. Items without a row are left out.
func (t *Tables) rewrite(ctx context.Context, what string, shared bool, ids []store.PayoutID, rule func(i int, r rules.Row, p reward.Promotion) Change) error {
	left := make([]int, len(ids))
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		rounds := store.Rounds(left, func(i *int) store.PayoutID { return ids[*i] })
		read := make([]store.PayoutID, len(rounds[0]))
		for n, i := range rounds[0] {
			read[n] = ids[left[i]]
		}
		found, promotions, err := t.payouts.RowsOf(ctx, what, read)
		if err != nil {
			return err
		}
		var changes []Change
		var of []int // the item of each change
		for n, i := range rounds[0] {
			row, ok := found[read[n]]
			if !ok {
				continue
			}
			c := rule(left[i], row, promotions[row.PromotionID])
			c.Was, c.Status = row, promotions[row.PromotionID].Status
			if c.Tally.Changed || len(c.Attempts) > 0 {
				changes, of = append(changes, c), append(of, left[i])
			}
		}
		var stale []int
		if len(changes) > 0 {
			if stale, err = t.payouts.Rewrite(ctx, what, shared, changes); err != nil {
				return err
			}
		}
		var next []int
		for _, n := range stale {
			next = append(next, of[n])
		}
		for _, round := range rounds[1:] {
			for _, i := range round {
				next = append(next, left[i])
			}
		}
		slices.Sort(next)
		left = next
	}
	return nil
}

// idsOf returns the payouts that items are about.
func idsOf[T any](items []T, of func(*T) reward.Ref) []store.PayoutID {
	ids := make([]store.PayoutID, len(items))
	for i := range items {
		r := of(&items[i])
		ids[i] = store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
	}
	return ids
}

// PayoutFinish writes the outcomes of dispatches.
func (t *Tables) PayoutFinish(ctx context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error) {
	results := make([]store.FinishResult, len(p.Outcomes))
	ids := idsOf(p.Outcomes, func(o *rules.Outcome) reward.Ref { return o.Ref })
	err := t.rewrite(ctx, "finish payouts", true, ids, func(i int, r rules.Row, m reward.Promotion) (c Change) {
		o := p.Outcomes[i]
		c.Next, c.Attempts, c.Tally = rules.Finish(r, o, m, p.Lease, p.Now)
		results[i] = store.FinishResult{State: c.Next.State, Attempts: c.Next.Attempts, DueAt: c.Next.DueAt, Changed: c.Tally.Changed}
		if o.Kind == rules.OutcomePaid && rules.SecondCharge(r, o.TransactionKey) {
			results[i].Recorded = r.TransactionKey
		}
		return c
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// PayoutSettle writes the results of lookups.
func (t *Tables) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) ([]store.SecondCharge, error) {
	terms := rules.Terms{SettleAfter: p.SettleAfter, AgainAfter: p.AgainAfter}
	recorded := make([]string, len(p.Lookups))
	ids := idsOf(p.Lookups, func(l *rules.Lookup) reward.Ref { return l.Ref })
	err := t.rewrite(ctx, "settle lookups", false, ids, func(i int, r rules.Row, m reward.Promotion) (c Change) {
		l := p.Lookups[i]
		c.Next, c.Attempts, c.Tally = rules.Settle(r, l, m, terms, p.Now)
		if recorded[i] = ""; l.Found && rules.SecondCharge(r, l.TransactionKey) {
			recorded[i] = r.TransactionKey
		}
		return c
	})
	if err != nil {
		return nil, err
	}
	var twice []store.SecondCharge
	for i, key := range recorded {
		if l := &p.Lookups[i]; key != "" {
			twice = append(twice, store.SecondCharge{Ref: l.Ref, Recorded: key, TransactionKey: l.TransactionKey})
		}
	}
	return twice, nil
}

// PayoutReturn returns QUEUED rows to READY.
func (t *Tables) PayoutReturn(ctx context.Context, p store.PayoutReturnParams) (int, error) {
	return t.withdraw(ctx, "return payouts", true, idsOf(p.Refs, func(r *reward.Ref) reward.Ref { return *r }), func(i int) rules.Withdrawal {
		return rules.Withdrawal{Kind: rules.WithdrawReturn, Dispatch: p.Refs[i].Dispatch, MaybeCalled: p.MaybeCalled, DeliveryFailed: p.DeliveryFailed}
	}, p.Lease, p.Now)
}

// withdraw takes payouts out of their state, and returns how many it moved.
func (t *Tables) withdraw(ctx context.Context, what string, shared bool, ids []store.PayoutID, why func(i int) rules.Withdrawal, lease time.Duration, now time.Time) (int, error) {
	moved := make([]bool, len(ids))
	err := t.rewrite(ctx, what, shared, ids, func(i int, r rules.Row, p reward.Promotion) (c Change) {
		c.Next, c.Tally = rules.Withdraw(r, why(i), p, lease, now)
		moved[i] = c.Tally.Changed
		return c
	})
	if err != nil {
		return 0, err
	}
	return count(moved), nil
}

// count returns how many are true.
func count(list []bool) (n int) {
	for _, b := range list {
		if b {
			n++
		}
	}
	return n
}

const (
	// queuedBefore lists the QUEUED payouts of promotion $1 that were dispatched before $2.
	// It leaves out those that a session holds, so that it cannot delay the others. The
	// comparison p.state < 4 lets SQLite use the index. Both hold for openAfter too.
	queuedBefore = `SELECT p.target_id FROM payouts p
WHERE p.promotion_id = $1 AND p.state = 1 AND p.state < 4 AND p.due_at < $2 ORDER BY p.due_at, p.target_id LIMIT $3 :skip_locked`

	// openAfter lists the payouts of promotion $1 in state $2 after the place $3, $4.
	openAfter = `SELECT p.target_id, p.due_at FROM payouts p
WHERE p.promotion_id = $1 AND p.state = $2 AND p.state < 4 AND (p.due_at, p.target_id) > ($3, $4) ORDER BY p.due_at, p.target_id LIMIT $5 :skip_locked`
)

// PayoutSweep returns QUEUED rows that no stream has to READY.
func (t *Tables) PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (int, error) {
	found, err := list(ctx, t.db.Read, "find payouts to sweep", func(scan Scan, id *store.PayoutID) error {
		id.PromotionID = p.PromotionID
		return scan((*int64)(&id.TargetID))
	}, t.queuedBefore, int64(p.PromotionID), p.Before, store.BatchMax)
	if err != nil {
		return 0, err
	}
	why := rules.Withdrawal{Kind: rules.WithdrawSweep, Before: p.Before}
	return t.withdraw(ctx, "sweep payouts", false, found, func(int) rules.Withdrawal { return why }, p.Lease, p.Now)
}

// PayoutCancelStep takes READY and RETRYING rows of a CANCELLED promotion out of
// the work, READY rows first.
func (t *Tables) PayoutCancelStep(ctx context.Context, p store.PayoutCancelStepParams) (int, error) {
	moved := 0
	for _, from := range []reward.State{reward.Ready, reward.Retrying} {
		key := markKey{p.PromotionID, from}
		for after := t.cancelled.get(key); moved < store.BatchMax; after = beginning {
			last := after
			found, err := list(ctx, t.db.Read, "find payouts to cancel", func(scan Scan, id *store.PayoutID) error {
				err := scan(&last.target, (*at)(&last.dueAt))
				*id = store.PayoutID{PromotionID: p.PromotionID, TargetID: reward.TargetID(last.target)}
				return err
			}, t.openAfter, int64(p.PromotionID), int16(from), after.dueAt, after.target, store.BatchMax-moved)
			if err != nil {
				return moved, err
			}
			if len(found) < store.BatchMax-moved {
				last = beginning
			}
			n, err := t.withdraw(ctx, "cancel payouts", false, found, func(int) rules.Withdrawal { return rules.Withdrawal{Kind: rules.WithdrawCancel} }, p.Lease, p.Now)
			if err != nil {
				return moved, err
			}
			moved += n
			t.cancelled.set(key, last)
			if after == beginning {
				break
			}
		}
	}
	return moved, nil
}

// PayoutRetry returns FAILED rows to READY.
func (t *Tables) PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error) {
	p.Code = reward.SanitizeText(p.Code) // the stored codes are sanitized too
	views, err := t.payouts.PromotionViews(ctx, []reward.PromotionID{p.PromotionID})
	if err != nil {
		return 0, err
	}
	if len(views) == 0 {
		return 0, store.NoPromotion(p.PromotionID)
	}
	if err := cmp.Or(rules.CheckRetry(p.PromotionID, views[0].Status), rules.CheckArchived(p.PromotionID, !views[0].ArchivedAt.IsZero())); err != nil {
		return 0, err
	}
	targets := slices.Clone(p.Targets)
	if p.Targets == nil {
		failed, err := t.payouts.PayoutList(ctx, store.PayoutListParams{PromotionID: p.PromotionID, State: new(reward.Failed), Code: p.Code, Limit: store.BatchMax})
		if err != nil {
			return 0, err
		}
		for _, f := range failed {
			targets = append(targets, f.TargetID)
		}
	}
	slices.Sort(targets)
	var ids []store.PayoutID
	for _, target := range slices.Compact(targets) {
		ids = append(ids, store.PayoutID{PromotionID: p.PromotionID, TargetID: target})
	}
	moved := make([]bool, len(ids))
	err = t.rewrite(ctx, "retry payouts", false, ids, func(i int, r rules.Row, _ reward.Promotion) (c Change) {
		c.Next, c.Tally = rules.Retry(r, p.Code, p.Now)
		moved[i] = c.Tally.Changed
		return c
	})
	if err != nil {
		return 0, err
	}
	return count(moved), nil
}

// PayoutResolve settles one UNKNOWN row as an operator decided.
func (t *Tables) PayoutResolve(ctx context.Context, p store.PayoutResolveParams) (settled reward.Payout, err error) {
	refused := store.NoPayout(p.PayoutID)
	err = t.rewrite(ctx, "resolve a payout", false, []store.PayoutID{p.PayoutID}, func(_ int, r rules.Row, _ reward.Promotion) (c Change) {
		var attempt reward.Attempt
		if c.Next, attempt, c.Tally, refused = rules.Resolve(r, p.Resolution(), p.Now); refused == nil {
			settled, c.Attempts = c.Next.Payout, []reward.Attempt{attempt}
		}
		return c
	})
	if err := cmp.Or(err, refused); err != nil {
		return reward.Payout{}, err
	}
	return settled, nil
}
