package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// Payouts reads payouts, and writes what rules make of them. No transaction stays open
// between the two: a client that falls silent would hold its locks.
type Payouts interface {
	// FinishPaid writes the outcomes that are rules.OutcomePaid and whose row is QUEUED under
	// their dispatch, if that is faster than to read the rows first. It sets their results,
	// and returns the positions of the other outcomes.
	FinishPaid(ctx context.Context, p store.PayoutFinishParams, results []store.FinishResult) (rest []int, err error)
	// RowsOf returns the payouts among ids that exist, and their promotions.
	RowsOf(ctx context.Context, what string, ids []store.PayoutID) (map[store.PayoutID]rules.Row, map[reward.PromotionID]reward.Promotion, error)
	// Rewrite writes changes of different payouts, ordered by PayoutID.Compare, in one
	// transaction: those whose row, and the status of whose promotion, is still as it was,
	// with their attempts and the counts. A promotion that had ended and has payouts to do
	// again continues. Rewrite returns the positions of the other changes. shared is for
	// batches of several promotions; see store.ErrLocked.
	Rewrite(ctx context.Context, what string, shared bool, changes []Change) (stale []int, err error)
	// Insert inserts those rows that do not exist, with the counts, the offsets and the dead
	// letters.
	Insert(ctx context.Context, what string, in Insertion) (Inserted, error)
	// Queue moves due payouts to QUEUED, each with the next dispatch number, and returns them
	// as they are afterwards: at most Limit, and at most MaxLen minus those that are QUEUED
	// already. It leaves out those that another transaction has locked.
	Queue(ctx context.Context, what string, q Queueing) ([]reward.Payout, error)
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

// rereadsMax limits how often a call reads again what has changed before it was written.
const rereadsMax = 100

// reread calls try until it reports that everything that it had read was still so when it
// wrote. A try that reports that it was not has written nothing.
func reread(what string, try func() (done bool, err error)) error {
	for range rereadsMax {
		if done, err := try(); done || err != nil {
			return err
		}
	}
	return store.Busy(fmt.Errorf("%s: what it reads changes before each write", what))
}

// rewrite applies a rule to the payout of each item. Items of one payout take effect one
// after the other. rule gets the position of the item, its row and its promotion, and fills
// in all but Was and Status. It is called again if another transaction has changed the row
// meanwhile. done gets each change when it is written, and each that changes nothing. Items
// without a row are left out.
func (t *Tables) rewrite(ctx context.Context, what string, shared bool, ids []store.PayoutID,
	rule func(i int, r rules.Row, p reward.Promotion) Change, done func(i int, c *Change),
) error {
	left := make([]int, len(ids))
	for i := range left {
		left[i] = i
	}
	for reads := 0; len(left) > 0; reads++ {
		if reads == rereadsMax {
			return store.Busy(fmt.Errorf("%s: %d payouts changed whenever they were read", what, len(left)))
		}
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
			} else {
				done(left[i], &c)
			}
		}
		var stale []int
		if len(changes) > 0 {
			if stale, err = t.payouts.Rewrite(ctx, what, shared, changes); err != nil {
				return err
			}
		}
		var next []int
		for n := range changes {
			if slices.Contains(stale, n) {
				next = append(next, of[n])
			} else {
				done(of[n], &changes[n])
			}
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

// PayoutFinish writes the outcomes of dispatches, by rules.Finish, with their
// counts. It returns one result per outcome, in order. After an error, some of
// the outcomes may be written; to write them again changes nothing. Several promotions
// share a batch, so PayoutFinish and PayoutReturn do not wait long for a locked
// row; see store.ErrLocked and store.ConstraintError.
//
// An outcome whose row has moved on changes nothing unless it is
// rules.OutcomePaid, but its attempts are recorded. An outcome that changes its
// row sets FailedDeliveries to 0.
func (t *Tables) PayoutFinish(ctx context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error) {
	results := make([]store.FinishResult, len(p.Outcomes))
	rest, err := t.payouts.FinishPaid(ctx, p, results)
	if err != nil {
		return nil, err
	}
	ids := idsOf(rest, func(i *int) reward.Ref { return p.Outcomes[*i].Ref })
	err = t.rewrite(ctx, "finish payouts", true, ids, func(n int, r rules.Row, m reward.Promotion) (c Change) {
		c.Next, c.Attempts, c.Tally = rules.Finish(r, p.Outcomes[rest[n]], m, p.Lease, p.Now)
		return c
	}, func(n int, c *Change) {
		i := rest[n]
		results[i] = store.FinishResult{State: c.Next.State, Attempts: c.Next.Attempts, DueAt: c.Next.DueAt, Changed: c.Tally.Changed}
		if o := p.Outcomes[i]; o.Kind == rules.OutcomePaid && rules.SecondCharge(c.Was, o.TransactionKey) {
			results[i].Recorded = c.Was.TransactionKey
		}
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// PayoutSettle writes the results of lookups, by rules.Settle. It returns those that
// prove a second charge. After an error, some of them may be written; to write them again
// changes nothing.
func (t *Tables) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) ([]store.SecondCharge, error) {
	terms := rules.Terms{SettleAfter: p.SettleAfter, AgainAfter: p.AgainAfter}
	twice := make([]store.SecondCharge, len(p.Lookups))
	ids := idsOf(p.Lookups, func(l *rules.Lookup) reward.Ref { return l.Ref })
	err := t.rewrite(ctx, "settle lookups", false, ids, func(i int, r rules.Row, m reward.Promotion) (c Change) {
		c.Next, c.Attempts, c.Tally = rules.Settle(r, p.Lookups[i], m, terms, p.Now)
		return c
	}, func(i int, c *Change) {
		if l := &p.Lookups[i]; l.Found && rules.SecondCharge(c.Was, l.TransactionKey) {
			twice[i] = store.SecondCharge{Ref: l.Ref, Recorded: c.Was.TransactionKey, TransactionKey: l.TransactionKey}
		}
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(twice, func(c store.SecondCharge) bool { return c.Recorded == "" }), nil
}

// PayoutReturn moves QUEUED rows back to READY and returns how many it moved.
// It expects the dispatch numbers of Refs. In a CANCELLED promotion a row
// becomes UNKNOWN if it was flagged before or p.MaybeCalled flags it, otherwise
// CANCELLED.
func (t *Tables) PayoutReturn(ctx context.Context, p store.PayoutReturnParams) (int, error) {
	return t.withdraw(ctx, "return payouts", true, idsOf(p.Refs, func(r *reward.Ref) reward.Ref { return *r }), func(i int) rules.Withdrawal {
		return rules.Withdrawal{Kind: rules.WithdrawReturn, Dispatch: p.Refs[i].Dispatch, MaybeCalled: p.MaybeCalled, DeliveryFailed: p.DeliveryFailed}
	}, p.Lease, p.Now)
}

// withdraw takes payouts out of their state, and returns how many it moved.
func (t *Tables) withdraw(ctx context.Context, what string, shared bool, ids []store.PayoutID, why func(i int) rules.Withdrawal, lease time.Duration, now time.Time) (int, error) {
	moved := 0
	err := t.rewrite(ctx, what, shared, ids, func(i int, r rules.Row, p reward.Promotion) (c Change) {
		c.Next, c.Tally = rules.Withdraw(r, why(i), p, lease, now)
		return c
	}, counting(&moved))
	if err != nil {
		return 0, err
	}
	return moved, nil
}

// counting returns a function that counts changes.
func counting(n *int) func(int, *Change) {
	return func(_ int, c *Change) {
		if c.Tally.Changed {
			*n++
		}
	}
}

const (
	// queuedBefore lists the QUEUED payouts of promotion $1 that were dispatched before $2.
	// It leaves out those that a session holds while it reads, so that the others do not wait
	// for them. The comparison p.state < 4 lets SQLite use the index. Both hold for openAfter too.
	queuedBefore = `SELECT p.target_id FROM payouts p
WHERE p.promotion_id = $1 AND p.state = 1 AND p.state < 4 AND p.due_at < $2 ORDER BY p.due_at, p.target_id LIMIT $3 :skip_locked`

	// openAfter lists the payouts of promotion $1 in state $2 after the place $3, $4.
	openAfter = `SELECT p.target_id, p.due_at FROM payouts p
WHERE p.promotion_id = $1 AND p.state = $2 AND p.state < 4 AND (p.due_at, p.target_id) > ($3, $4) ORDER BY p.due_at, p.target_id LIMIT $5 :skip_locked`
)

// PayoutSweep returns rows of one promotion that no stream has any more. It
// takes QUEUED rows dispatched before Before, at most store.BatchMax, and returns
// how many it moved. They become READY, or UNKNOWN in a CANCELLED promotion.
// All are flagged afterwards.
func (t *Tables) PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (int, error) {
	found, err := list(ctx, t.db.Read, "find payouts to sweep", func(scan Scan, id *store.PayoutID) error {
		id.PromotionID = p.PromotionID
		return scan((*int64)(&id.TargetID))
	}, queuedBefore, int64(p.PromotionID), p.Before, store.BatchMax)
	if err != nil {
		return 0, err
	}
	why := rules.Withdrawal{Kind: rules.WithdrawSweep, Before: p.Before}
	return t.withdraw(ctx, "sweep payouts", false, found, func(int) rules.Withdrawal { return why }, p.Lease, p.Now)
}

// PayoutCancelStep takes the READY and RETRYING rows of a CANCELLED promotion
// out of the work, at most store.BatchMax, and returns how many it moved. READY rows
// become CANCELLED, or UNKNOWN if they are flagged. RETRYING rows become
// UNKNOWN. Call it until it returns 0. QUEUED rows leave their state by
// PayoutFinish, PayoutReturn or PayoutSweep.
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
			}, openAfter, int64(p.PromotionID), int16(from), after.dueAt, after.target, store.BatchMax-moved)
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

// PayoutRetry moves FAILED rows of one promotion back to READY, at most
// store.BatchMax in the order of their targets. It returns how many it moved. Call
// it until it returns 0.
//
// The rows are due at Now and have no counted attempts. Dispatch number, flag,
// first dispatch and idempotency key stay. ErrorCode and ErrorMessage stay
// until the next outcome. A COMPLETED promotion becomes RUNNING again if any
// row moved. A DRAFT or CANCELLED promotion is CodeIllegalState, an archived one
// CodeArchived.
func (t *Tables) PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error) {
	p.Code = reward.SanitizeText(p.Code) // the stored codes are sanitized too
	views, err := t.PromotionViews(ctx, []reward.PromotionID{p.PromotionID})
	if err != nil {
		return 0, err
	}
	if len(views) == 0 {
		return 0, store.NoPromotion(p.PromotionID)
	}
	check := func(m *reward.Promotion) error {
		return cmp.Or(rules.CheckRetry(m.ID, m.Status), rules.CheckArchived(m.ID, !m.ArchivedAt.IsZero()))
	}
	if err := check(&views[0].Promotion); err != nil {
		return 0, err
	}
	targets := slices.Clone(p.Targets)
	if p.Targets == nil {
		failed, err := t.PayoutList(ctx, store.PayoutListParams{PromotionID: p.PromotionID, State: new(reward.Failed), Code: p.Code, Limit: store.BatchMax})
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
	moved := 0
	var refused error
	err = t.rewrite(ctx, "retry payouts", false, ids, func(_ int, r rules.Row, m reward.Promotion) (c Change) {
		if refused = check(&m); refused == nil { // it may be cancelled since
			c.Next, c.Tally = rules.Retry(r, p.Code, p.Now)
		}
		return c
	}, counting(&moved))
	if err == nil && moved == 0 {
		err = refused
	}
	if err != nil {
		return 0, err
	}
	return moved, nil
}

// PayoutResolve settles one UNKNOWN row as an operator decided, and returns
// it. This works in a CANCELLED promotion too. A row in another state is
// CodeIllegalState, a missing one CodePayoutNotFound.
//
// The decision is recorded as an attempt of class RESOLVED, which is not
// counted. Its Code is the operator and its Message the note. A row that
// becomes FAILED keeps the provider's last error.
func (t *Tables) PayoutResolve(ctx context.Context, p store.PayoutResolveParams) (settled reward.Payout, err error) {
	refused := store.NoPayout(p.PayoutID)
	err = t.rewrite(ctx, "resolve a payout", false, []store.PayoutID{p.PayoutID}, func(_ int, r rules.Row, _ reward.Promotion) (c Change) {
		var attempt reward.Attempt
		var why error
		if c.Next, attempt, c.Tally, why = rules.Resolve(r, p.Resolution(), p.Now); why == nil {
			c.Attempts = []reward.Attempt{attempt}
		} else {
			refused = why
		}
		return c
	}, func(_ int, c *Change) {
		if c.Tally.Changed {
			settled, refused = c.Next.Payout, nil
		}
	})
	if err := cmp.Or(err, refused); err != nil {
		return reward.Payout{}, err
	}
	return settled, nil
}
