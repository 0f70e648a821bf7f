package rows

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// PromotionMove changes the status and returns the promotion afterwards. A
// status that is not in From is CodeIllegalState, and nothing changes.
//
// DRAFT → RUNNING sets StartedAt. Leaving PAUSED clears the reason. A move to
// CANCELLED does not set FinishedAt: PromotionComplete does.
//
// It compares no counts. An approval, a rejection, and what voids an approval change the
// row of the promotion, and every dispatch checks the approval again under the lock of the
// counts; so rows that are saved or finished meanwhile are as those of a moment later.
func (t *Tables) PromotionMove(ctx context.Context, p store.PromotionMoveParams) (reward.Promotion, error) {
	v, _, err := t.changePromotion(ctx, "change the status of a promotion", p.ID, func(v store.PromotionView) (promotionChange, error) {
		next, err := rules.Move(v.Promotion, p.From, p.To, p.By, p.Reason, p.Now)
		if err == nil && p.To == reward.Running {
			if !rules.MayRun(v.Promotion, v.Counts, p.ApprovalAbove, p.Now) {
				err = rules.NotAllowed(v.Promotion)
			}
			next = rules.NeedsGrants(next, p.ApprovalPerDay.Of(next.Currency) > 0)
		}
		return promotionChange{next: next, event: p.Event, at: p.Now}, err
	})
	return v.Promotion, err
}

// PromotionClose records that no more targets will come. The promotion may
// then complete below its expected count.
func (t *Tables) PromotionClose(ctx context.Context, id reward.PromotionID) (reward.Promotion, error) {
	v, _, err := t.changePromotion(ctx, "close a promotion", id, func(v store.PromotionView) (promotionChange, error) {
		v.Closed = true
		return promotionChange{next: v.Promotion}, nil
	})
	return v.Promotion, err
}

// PromotionChange changes the settings of a promotion by
// rules.PromotionChange, whose Apply says which errors it returns. It returns
// the promotion afterwards. What limits it by the counts holds under their lock.
//
// Under the lock of the counts, a new budget must still not be below what is spent, and a
// new currency must still have no amounts: a decision by other counts may be right, but
// these limits must hold.
func (t *Tables) PromotionChange(ctx context.Context, c rules.PromotionChange) (store.PromotionView, error) {
	if err := store.CheckText("author", c.By); err != nil {
		return store.PromotionView{}, err
	}
	const what = "change a promotion"
	v, _, err := t.changePromotion(ctx, what, c.ID, func(v store.PromotionView) (promotionChange, error) {
		var flagged int64
		if c.MaxAmount != nil {
			var err error
			if flagged, err = one(ctx, t.db.Read, what, nil, scanOne[int64], flaggedSQL, int64(c.ID)); err != nil {
				return promotionChange{}, err
			}
		}
		next, err := c.Apply(v.Promotion, v.Counts, reward.Amount(flagged))
		if err == nil {
			err = store.CheckPromotion(next)
		}
		change := promotionChange{next: next}
		if !c.NotesOnly() {
			change.author = c.By
		}
		budget, currency := next.MaxAmount != v.MaxAmount && next.MaxAmount > 0, next.Currency != v.Currency && v.Currency != ""
		if budget || currency {
			spentMax, worthMax := int64(math.MaxInt64), int64(math.MaxInt64)
			if budget {
				spentMax = int64(next.MaxAmount)
			}
			if currency {
				worthMax = 0
			}
			change.underLock = true
			change.counts = &Statement{SQL: countsWithin, Args: []any{int64(c.ID), spentMax, worthMax}, Must: true}
		}
		return change, err
	})
	return v, err
}

// flaggedSQL reads the amount of the READY rows of promotion $1 that may have been charged.
const flaggedSQL = `SELECT CAST(coalesce(sum(p.amount), 0) AS bigint) FROM :returned AND p.maybe_called`

// countsWithin finds the counts of promotion $1 if at most $2 is spent, as rules.Spent says,
// and all payouts together are worth at most $3.
var countsWithin = `SELECT s.promotion_id FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0 AND ` + Worth + ` <= $3
  AND ` + spent + ` + (` + flaggedSQL + `) <= $2`

// sameCounts returns the statement that finds the counts of promotion $1 if those of the
// given states are still $2, $3 and so on.
func sameCounts(states []reward.State) string {
	sql := `SELECT s.promotion_id FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0`
	for i, state := range states {
		sql += ` AND s.` + CountColumns[state] + ` = $` + strconv.Itoa(2+i)
	}
	return sql
}

var (
	// judgedStates are those that rules.Judge reads. Once a canary is decided, only a retry
	// or a late lookup changes their counts, and targets that are saved do not.
	judgedStates = []reward.State{reward.Queued, reward.Retrying, reward.Unknown, reward.Succeeded, reward.Failed}
	judgedCounts = sameCounts(judgedStates)

	// endedStates are those that rules.Complete reads. A promotion that may end has nothing to
	// do, so that only saves, retries and lookups change their counts.
	endedStates = []reward.State{reward.Ready, reward.Queued, reward.Retrying, reward.Unknown, reward.Succeeded, reward.Failed, reward.Cancelled}
	endedCounts = sameCounts(endedStates)
)

// expect has a change fail as stale if the counts of the given states are not those of v any
// more. sql is sameCounts of them.
func (c *promotionChange) expect(sql string, v store.PromotionView, states []reward.State) {
	args := []any{int64(v.ID)}
	for _, state := range states {
		args = append(args, v.Counts.Payouts[state])
	}
	c.underLock, c.counts = true, &Statement{SQL: sql, Args: args, Must: true}
}

// PromotionJudge ends the canary of a RUNNING promotion. It returns the status
// afterwards and reports whether it changed anything.
//
// It does nothing unless the canary is decided (rules.CanaryDecided) and not
// yet judged. It decides under the lock of the promotion's counts. A good
// canary (rules.CanaryGood) is marked as judged. A bad one is marked as judged
// too, and pauses the promotion with Reason. Resuming the promotion then pays
// the other targets.
func (t *Tables) PromotionJudge(ctx context.Context, p store.PromotionJudgeParams) (reward.PromotionStatus, bool, error) {
	v, judged, err := t.changePromotion(ctx, "judge a canary", p.ID, func(v store.PromotionView) (promotionChange, error) {
		c := promotionChange{at: p.Now}
		c.next, _ = rules.Judge(v.Promotion, v.Counts, p.Reason, p.Now)
		if c.next.Status == reward.Paused && v.Status != reward.Paused {
			c.event = p.Event
		}
		c.expect(judgedCounts, v, judgedStates)
		return c, nil
	})
	return v.Status, judged, err
}

// PromotionEnd pauses a promotion by rules.End, and reports whether it did. Counts that
// change meanwhile are as those of a moment later: a resume finds what is left.
func (t *Tables) PromotionEnd(ctx context.Context, id reward.PromotionID, now time.Time) (bool, error) {
	_, ended, err := t.changePromotion(ctx, "end a promotion", id, func(v store.PromotionView) (promotionChange, error) {
		next, _ := rules.End(v.Promotion, v.Counts, now)
		return promotionChange{next: next}, nil
	})
	return ended, err
}

const (
	// openUpload finds an upload of promotion $1 whose lease ends after $2.
	openUpload = `SELECT 1 FROM uploads WHERE promotion_id = $1 AND finished_at IS NULL AND leased_until > $2 LIMIT 1`

	// undecided finds a payout of promotion $1 that is one of rules.Blockers.Lookups, with $2
	// as settleAfter. It names the index, because SQLite would otherwise read all payouts
	// of the promotion.
	undecided = `SELECT 1 FROM payouts p :by_open
WHERE p.promotion_id = $1 AND p.state = 3 AND p.state < 4 AND (p.looked_at IS NULL OR p.looked_at < p.settle_from + CAST($2 AS interval))
ORDER BY p.due_at, p.target_id LIMIT 1`
)

// PromotionComplete ends a promotion that has nothing left to do, and reports
// whether it did. It decides under the lock of the promotion's counts.
//
// No payout may be READY, QUEUED or RETRYING. In addition:
//
//   - A RUNNING promotion becomes COMPLETED if no upload has a lease that is
//     valid at now. Its expected count (if any) must be reached, or it must be
//     closed.
//   - A CANCELLED promotion gets its FinishedAt if PayoutSettle has written,
//     for every payout that is still UNKNOWN, a result whose BeganAt is
//     SettleFrom + settleAfter or later. Such a result was inconclusive: any
//     other would have ended UNKNOWN.
//
// It reads what else blocks the end after the counts, which must then still be the same. A
// lookup only stops blocking: without QUEUED rows, no row becomes UNKNOWN. An upload that
// begins meanwhile is no harm: its first target makes the promotion RUNNING again.
func (t *Tables) PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration, now time.Time) (bool, error) {
	const what = "complete a promotion"
	_, ended, err := t.changePromotion(ctx, what, id, func(v store.PromotionView) (promotionChange, error) {
		c := promotionChange{next: v.Promotion, event: store.EventFinished, at: now}
		if _, ends := rules.Complete(v.Promotion, v.Counts, rules.Blockers{}, now); !ends {
			return c, nil // the counts alone prevent it
		}
		var blockers rules.Blockers
		var err error
		if v.Status == reward.PromotionCancelled {
			blockers.Lookups, err = t.found(ctx, what, undecided, int64(id), settleAfter)
		} else {
			blockers.Uploads, err = t.found(ctx, what, openUpload, int64(id), now)
		}
		c.next, _ = rules.Complete(v.Promotion, v.Counts, blockers, now)
		c.expect(endedCounts, v, endedStates)
		return c, err
	})
	return ended, err
}

// found reports whether a statement returns a row.
func (t *Tables) found(ctx context.Context, what, sql string, args ...any) (found bool, err error) {
	err = t.db.Read(ctx, what, func() Statement {
		found = false
		return Statement{SQL: sql, Args: args, Row: seen(&found)}
	})
	return found, err
}
