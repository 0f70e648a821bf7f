package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

const (
	rowsSQL = `SELECT ` + payoutColumns + `, p.again, p.looked_at, p.approval_round FROM ` + byKeys

	promotionsSQL = `SELECT ` + rows.PromotionColumns + ` FROM promotions m WHERE m.id = ANY($1::int8[])`
)

// RowsOf returns the payouts among ids that exist, and their promotions.
func (s *Store) RowsOf(ctx context.Context, what string, ids []store.PayoutID) (map[store.PayoutID]rules.Row, map[reward.PromotionID]reward.Promotion, error) {
	of, targets := idColumns(ids)
	var found map[store.PayoutID]rules.Row
	var promotions map[reward.PromotionID]reward.Promotion
	err := s.send(ctx, what, func(b *pgx.Batch) {
		found, promotions = make(map[store.PayoutID]rules.Row, len(ids)), make(map[reward.PromotionID]reward.Promotion)
		b.Queue(rowsSQL, of, targets).Query(each(func(result pgx.Rows) error {
			var r rules.Row
			err := rows.ScanRow(result.Scan, &r)
			found[store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}] = r
			return err
		}))
		b.Queue(promotionsSQL, of).Query(each(func(found pgx.Rows) error {
			var p reward.Promotion
			err := rows.ScanPromotion(found.Scan, &p)
			promotions[p.ID] = p
			return err
		}))
	})
	return found, promotions, err
}

// rewriteSQL writes rows that are as they were. It locks them in key order, in which they are
// given: a subquery reads the promotion, because a join could change the order. The state is
// a column of what is given, and the promotion is no part of the join: otherwise, a plan made
// for a small table reads all rows of a promotion.
var rewriteSQL = named(`WITH written AS (
  UPDATE payouts p SET state = g.state, attempts = g.attempts, maybe_called = g.maybe_called, handovers = g.handovers, due_at = g.due_at,
    settle_from = g.settle_from, looked_at = g.looked_at, again = g.again, transaction_key = g.key, error_code = g.code,
    error_message = g.message, updated_at = g.updated_at
  FROM (
    SELECT g.* FROM unnest($1::int8[], $2::int8[], $3::text[], $4::int2[], $5::int4[], $6::int4[], $7::bool[], $8::bool[], $9::timestamptz[], $10::timestamptz[],
      $11::int2[], $12::int4[], $13::bool[], $14::int4[], $15::timestamptz[], $16::timestamptz[], $17::timestamptz[], $18::bool[], $19::text[], $20::text[],
      $21::text[], $22::timestamptz[])
    WITH ORDINALITY AS g(promotion_id, target_id, status, was, dispatch, had, called, repeats, looked, changed,
      state, attempts, maybe_called, handovers, due_at, settle_from, looked_at, again, key, code, message, updated_at, ord)
    WHERE (SELECT m.status FROM promotions m WHERE m.id = g.promotion_id) = g.status OFFSET 0
  ) g
  WHERE p.promotion_id = g.promotion_id AND p.target_id = g.target_id AND p.state = g.was AND p.dispatch = g.dispatch AND p.attempts = g.had
    AND p.maybe_called = g.called AND p.again = g.repeats AND p.looked_at IS NOT DISTINCT FROM g.looked AND p.updated_at = g.changed
  RETURNING g.ord, p.promotion_id, p.target_id, p.summary_id, p.amount, g.was, p.state AS became, p.attempts - g.had AS answers
), moved AS MATERIALIZED (
  SELECT * FROM written WHERE was <> became
), noted AS (
  INSERT INTO attempts (promotion_id, target_id, at, dispatch, number, class, code, message)
  SELECT i.promotion_id, i.target_id, i.at, i.dispatch, i.number, i.class, i.code, i.message
  FROM unnest($23::int8[], $24::int8[], $25::timestamptz[], $26::int4[], $27::int2[], $28::text[], $29::text[], $30::text[])
    AS i(promotion_id, target_id, at, dispatch, number, class, code, message)
  JOIN written w ON w.promotion_id = i.promotion_id AND w.target_id = i.target_id
  ORDER BY 1, 2, 3, 4, 5, 6, 7 ON CONFLICT DO NOTHING
), ` + tally("moved") + `, ` + payoutEventsSQL() + `
SELECT ord FROM written`)

// attemptsSQL stores attempts of payouts that exist.
const attemptsSQL = `INSERT INTO attempts (promotion_id, target_id, at, dispatch, number, class, code, message)
SELECT i.* FROM unnest($1::int8[], $2::int8[], $3::timestamptz[], $4::int4[], $5::int2[], $6::text[], $7::text[], $8::text[])
  AS i(promotion_id, target_id, at, dispatch, number, class, code, message)
WHERE EXISTS (SELECT 1 FROM payouts p WHERE p.promotion_id = i.promotion_id AND p.target_id = i.target_id)
ORDER BY 1, 2, 3, 4, 5, 6, 7 ON CONFLICT DO NOTHING`

// attemptBatch has attempts as columns.
type attemptBatch struct {
	promotions, targets      []int64
	ats                      []time.Time
	dispatches               []int32
	numbers                  []int16
	classes, codes, messages []string
}

// add appends the attempts of one outcome.
func (b *attemptBatch) add(id store.PayoutID, attempts []reward.Attempt) {
	for n, a := range attempts {
		b.promotions = append(b.promotions, int64(id.PromotionID))
		b.targets = append(b.targets, int64(id.TargetID))
		b.ats = append(b.ats, instant(a.At))
		b.dispatches = append(b.dispatches, a.Dispatch)
		b.numbers = append(b.numbers, store.AttemptNumber(n, a))
		b.classes = append(b.classes, string(a.Class))
		b.codes = append(b.codes, reward.SanitizeText(a.Code))
		b.messages = append(b.messages, reward.SanitizeText(a.Message))
	}
}

func (b *attemptBatch) columns() []any {
	return []any{b.promotions, b.targets, b.ats, b.dispatches, b.numbers, b.classes, b.codes, b.messages}
}

// queue adds a statement that stores the attempts.
func (b *attemptBatch) queue(batch *pgx.Batch) {
	if len(b.promotions) > 0 {
		batch.Queue(attemptsSQL, b.columns()...)
	}
}

// rewriteBatch has rows as columns: as they were, and as they become.
type rewriteBatch struct {
	promotions, targets                  []int64
	statuses                             []string
	wereStates, states                   []int16
	dispatches, wereAttempts, attempts   []int32
	wereCalled, called, wereAgain, again []bool
	wereLooked, looked, settleFrom       []*time.Time
	wereUpdated, updated, due            []time.Time
	failedDeliveries                     []int32
	keys, codes, messages                []string
}

func (b *rewriteBatch) add(c *rows.Change) {
	was, next := &c.Was, &c.Next
	b.promotions, b.targets = append(b.promotions, int64(was.PromotionID)), append(b.targets, int64(was.TargetID))
	b.statuses = append(b.statuses, string(c.Status))
	b.wereStates, b.states = append(b.wereStates, int16(was.State)), append(b.states, int16(next.State))
	b.dispatches = append(b.dispatches, was.Dispatch)
	b.wereAttempts, b.attempts = append(b.wereAttempts, was.Attempts), append(b.attempts, next.Attempts)
	b.wereCalled, b.called = append(b.wereCalled, was.MaybeCalled), append(b.called, next.MaybeCalled)
	b.wereAgain, b.again = append(b.wereAgain, was.Again), append(b.again, next.Again)
	b.wereLooked, b.looked = append(b.wereLooked, maybe(was.LookedAt)), append(b.looked, maybe(next.LookedAt))
	b.settleFrom = append(b.settleFrom, maybe(next.SettleFrom))
	b.wereUpdated, b.updated = append(b.wereUpdated, was.UpdatedAt), append(b.updated, next.UpdatedAt)
	b.due = append(b.due, next.DueAt)
	b.failedDeliveries = append(b.failedDeliveries, next.FailedDeliveries)
	b.keys, b.codes, b.messages = append(b.keys, next.TransactionKey), append(b.codes, next.ErrorCode), append(b.messages, next.ErrorMessage)
}

func (b *rewriteBatch) columns() []any {
	return []any{
		b.promotions, b.targets, b.statuses, b.wereStates, b.dispatches, b.wereAttempts, b.wereCalled, b.wereAgain, b.wereLooked, b.wereUpdated,
		b.states, b.attempts, b.called, b.failedDeliveries, b.due, b.settleFrom, b.looked, b.again, b.keys, b.codes, b.messages, b.updated,
	}
}

// Rewrite writes those changes whose row is still as it was.
func (s *Store) Rewrite(ctx context.Context, what string, shared bool, changes []rows.Change) (stale []int, err error) {
	var batch rewriteBatch
	var attempts, others attemptBatch
	var of []int // the change of each row
	var reopened []reward.PromotionID
	for i := range changes {
		c := &changes[i]
		id := store.PayoutID{PromotionID: c.Was.PromotionID, TargetID: c.Was.TargetID}
		if !c.Tally.Changed {
			others.add(id, c.Attempts)
			continue
		}
		batch.add(c)
		attempts.add(id, c.Attempts)
		of = append(of, i)
		if c.Reopens() {
			reopened = append(reopened, id.PromotionID)
		}
	}
	send := s.send
	if shared {
		send = s.sendShared
	}
	var written []bool
	err = send(ctx, what, func(b *pgx.Batch) {
		written = make([]bool, len(of))
		if len(of) > 0 {
			b.Queue(rewriteSQL, append(batch.columns(), attempts.columns()...)...).Query(each(func(rows pgx.Rows) error {
				var ord int
				err := rows.Scan(&ord)
				written[ord-1] = true
				return err
			}))
		}
		others.queue(b)
		slices.Sort(reopened)
		queue(b, rows.ContinueEnded(slices.Compact(reopened)...))
	})
	if err != nil {
		return nil, unstorable(err, "an outcome")
	}
	for n, done := range written {
		if !done {
			stale = append(stale, of[n])
		}
	}
	return stale, nil
}

// unstorable returns CodeInvalid for a batch with something that the database cannot store.
func unstorable(err error, what string) error {
	if !hasState(err, "22003", "22021", "22P05") {
		return err
	}
	return store.Unstorable(err, what)
}

// finishPaidSQL makes rows SUCCEEDED that are QUEUED under the named dispatch, as
// rules.Finish does. These are nearly all. It locks the rows in key order, and returns
// nothing for the other ones.
var finishPaidSQL = named(`WITH written AS (
  UPDATE payouts p SET state = :SUCCEEDED, attempts = p.attempts + 1, due_at = $1::timestamptz, updated_at = $1::timestamptz,
    handovers = 0, again = false, transaction_key = o.key, error_code = '', error_message = ''
  FROM (SELECT o.*, :QUEUED AS state FROM unnest($2::int8[], $3::int8[], $4::int4[], $5::text[])
    WITH ORDINALITY AS o(promotion_id, target_id, named, key, ord) OFFSET 0) o
  WHERE p.promotion_id = o.promotion_id AND p.target_id = o.target_id AND p.state = o.state AND p.dispatch = o.named
  RETURNING o.ord, p.promotion_id, p.summary_id, p.amount, p.attempts
), moved AS MATERIALIZED (
  SELECT promotion_id, summary_id, amount, :QUEUED::int2 AS was, :SUCCEEDED::int2 AS became, 1 AS answers FROM written
), ` + tally("moved") + `
SELECT ord, attempts FROM written`)

// FinishPaid writes charges that are paid, as nearly all are, in one round trip.
func (s *Store) FinishPaid(ctx context.Context, p store.PayoutFinishParams, results []store.FinishResult) (rest []int, err error) {
	rounds := store.Rounds(p.Outcomes, func(o *rules.Outcome) store.PayoutID {
		return store.PayoutID{PromotionID: o.PromotionID, TargetID: o.TargetID}
	})
	var paid []int
	var promotions, targets []int64
	var dispatches []int32
	var keys []string
	var attempts attemptBatch
	done := make([]bool, len(p.Outcomes))
	if len(rounds) == 1 { // each payout has one outcome
		for _, i := range rounds[0] {
			if o := &p.Outcomes[i]; o.Kind == rules.OutcomePaid {
				paid = append(paid, i)
				promotions, targets, dispatches = append(promotions, int64(o.PromotionID)), append(targets, int64(o.TargetID)), append(dispatches, o.Dispatch)
				keys = append(keys, reward.SanitizeText(o.TransactionKey))
				attempts.add(store.PayoutID{PromotionID: o.PromotionID, TargetID: o.TargetID}, o.Attempts)
			}
		}
	}
	if len(paid) > 0 {
		now := instant(p.Now)
		err := s.sendShared(ctx, "finish payouts", func(b *pgx.Batch) {
			clear(done)
			r := store.FinishResult{State: reward.Succeeded, DueAt: now, Changed: true}
			var ord int // each row replaces it and r.Attempts
			b.Queue(finishPaidSQL, now, promotions, targets, dispatches, keys).Query(each(func(rows pgx.Rows) error {
				if err := rows.Scan(&ord, &r.Attempts); err != nil {
					return err
				}
				results[paid[ord-1]], done[paid[ord-1]] = r, true
				return nil
			}))
			attempts.queue(b)
		})
		if err != nil {
			return nil, unstorable(err, "an outcome")
		}
	}
	for i := range done {
		if !done[i] {
			rest = append(rest, i)
		}
	}
	return rest, nil
}
