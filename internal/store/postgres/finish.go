package postgres

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// outcomesGiven are the outcomes of a round, in key order.
const outcomesGiven = `unnest($3::int8[], $4::int8[], $5::int4[], $6::int2[], $7::bool[], $8::text[], $9::text[], $10::text[],
      $11::timestamptz[], $12::bool[])
    WITH ORDINALITY AS o(promotion_id, target_id, named, kind, sent, key, code, message, retry_at, give_up, ord)`

// finishHeldSQL writes the outcomes of rows that are QUEUED under the named
// dispatch, by rules.Finish. These are nearly all. Its WHERE names the state, so
// that one UPDATE knows the state before it, and locks the rows in key order. It
// returns nothing for the other outcomes. The state is a column of the outcomes, and
// the promotion is no part of the join: otherwise, a plan made for a small table
// reads all rows of a promotion.
var finishHeldSQL = named(strings.ReplaceAll(`WITH written AS (
  UPDATE payouts p SET state = :became, attempts = p.attempts + (o.kind <= :OUTCOME_FAILED)::int, updated_at = $1::timestamptz,
    due_at = CASE WHEN :became = :RETRYING THEN o.retry_at ELSE $1::timestamptz END,
    handovers = 0, again = false, maybe_called = p.maybe_called OR :became IN (:RETRYING, :UNKNOWN),
    settle_from = CASE :became WHEN :UNKNOWN THEN $2::timestamptz ELSE p.settle_from END,
    looked_at = CASE :became WHEN :UNKNOWN THEN NULL ELSE p.looked_at END,
    transaction_key = CASE o.kind WHEN :OUTCOME_PAID THEN o.key ELSE p.transaction_key END,
    error_code = CASE WHEN o.kind = :OUTCOME_PAID THEN '' WHEN o.code = '' AND o.message = '' THEN p.error_code ELSE o.code END,
    error_message = CASE WHEN o.kind = :OUTCOME_PAID THEN '' WHEN o.code = '' AND o.message = '' THEN p.error_message ELSE o.message END
  FROM (SELECT o.*, :QUEUED AS state FROM `+outcomesGiven+` WHERE o.kind <= :OUTCOME_CANCELLED OFFSET 0) o
  WHERE p.promotion_id = o.promotion_id AND p.target_id = o.target_id AND p.state = o.state AND p.dispatch = o.named
  RETURNING o.ord, p.promotion_id, p.target_id, p.summary_id, p.amount, p.state, p.attempts, p.due_at, (o.kind <= :OUTCOME_FAILED)::int AS answers
), moved AS MATERIALIZED (
  SELECT promotion_id, target_id, summary_id, amount, :QUEUED::int2 AS was, state AS became, answers FROM written
), `+tally("moved")+`, `+payoutEventsSQL()+`
SELECT ord, state, attempts, due_at, true, '' FROM written`, ":became", `(CASE o.kind
      WHEN :OUTCOME_PAID THEN :SUCCEEDED
      WHEN :OUTCOME_REFUSED THEN CASE WHEN p.maybe_called OR o.sent THEN :UNKNOWN ELSE :FAILED END
      WHEN :OUTCOME_FAILED
        THEN CASE WHEN (SELECT m.status <> 'CANCELLED' AND p.attempts + 1 <= m.max_retries FROM promotions m WHERE m.id = o.promotion_id)
          THEN :RETRYING ELSE :UNKNOWN END
      WHEN :OUTCOME_NO_ANSWER
        THEN CASE WHEN NOT o.give_up AND (SELECT m.status <> 'CANCELLED' FROM promotions m WHERE m.id = o.promotion_id)
          THEN :RETRYING ELSE :UNKNOWN END
      WHEN :OUTCOME_CANCELLED THEN CASE WHEN p.maybe_called OR o.sent THEN :UNKNOWN ELSE :CANCELLED END
      ELSE :UNKNOWN END)`))

// finishSQL writes outcomes of rows in any state, by rules.Finish. It locks the
// rows in key order, and decides by the state that it then finds.
var finishSQL = named(`WITH found AS MATERIALIZED (
  SELECT o.*, p.summary_id, p.amount, p.state AS was, p.attempts, p.maybe_called, p.due_at,
    p.state = :QUEUED AND p.dispatch = o.named AS held,
    CASE WHEN o.kind = :OUTCOME_PAID AND ` + secondCharge + ` THEN p.transaction_key ELSE '' END AS recorded
  FROM ` + outcomesGiven + `
  JOIN payouts p ON p.promotion_id = o.promotion_id AND p.target_id = o.target_id
  ORDER BY p.promotion_id, p.target_id FOR NO KEY UPDATE OF p
), judged AS MATERIALIZED (
  SELECT f.*, (CASE
      WHEN f.kind = :OUTCOME_PAID THEN :SUCCEEDED
      WHEN NOT f.held THEN f.was
      WHEN f.kind = :OUTCOME_REFUSED THEN CASE WHEN f.maybe_called OR f.sent THEN :UNKNOWN ELSE :FAILED END
      WHEN f.kind = :OUTCOME_FAILED
        THEN CASE WHEN m.status <> 'CANCELLED' AND f.attempts + 1 <= m.max_retries THEN :RETRYING ELSE :UNKNOWN END
      WHEN f.kind = :OUTCOME_NO_ANSWER THEN CASE WHEN m.status <> 'CANCELLED' AND NOT f.give_up THEN :RETRYING ELSE :UNKNOWN END
      WHEN f.kind = :OUTCOME_NO_LOOKUP THEN :UNKNOWN
      WHEN f.kind = :OUTCOME_CANCELLED THEN CASE WHEN f.maybe_called OR f.sent THEN :UNKNOWN ELSE :CANCELLED END
      ELSE f.was END)::int2 AS became
  FROM found f JOIN promotions m ON m.id = f.promotion_id
), moved AS MATERIALIZED (
  SELECT j.promotion_id, j.target_id, j.summary_id, j.amount, j.was, j.became, (j.kind <= :OUTCOME_FAILED)::int AS answers,
    j.key, j.code, j.message, CASE j.became WHEN :RETRYING THEN j.retry_at ELSE $1::timestamptz END AS due_at
  FROM judged j WHERE j.became <> j.was
), written AS (
  UPDATE payouts p SET state = v.became, attempts = p.attempts + v.answers, due_at = v.due_at, updated_at = $1::timestamptz,
    handovers = 0, again = false, maybe_called = p.maybe_called OR v.became IN (:RETRYING, :UNKNOWN),
    settle_from = CASE v.became WHEN :UNKNOWN THEN $2::timestamptz ELSE p.settle_from END,
    looked_at = CASE v.became WHEN :UNKNOWN THEN NULL ELSE p.looked_at END,
    transaction_key = CASE v.became WHEN :SUCCEEDED THEN v.key ELSE p.transaction_key END,
    error_code = CASE WHEN v.became = :SUCCEEDED THEN '' WHEN v.code = '' AND v.message = '' THEN p.error_code ELSE v.code END,
    error_message = CASE WHEN v.became = :SUCCEEDED THEN '' WHEN v.code = '' AND v.message = '' THEN p.error_message ELSE v.message END
  FROM moved v WHERE p.promotion_id = v.promotion_id AND p.target_id = v.target_id
), ` + keepSecondCharges + `, ` + tally("moved") + `, ` + payoutEventsSQL() + `
SELECT ord, became, attempts + CASE WHEN became <> was AND kind <= :OUTCOME_FAILED THEN 1 ELSE 0 END,
  CASE WHEN became = was THEN due_at WHEN became = :RETRYING THEN retry_at ELSE $1::timestamptz END, became <> was, recorded
FROM judged`)

var (
	// secondCharge is rules.SecondCharge for row p and a confirmation o.
	secondCharge = `p.state = :SUCCEEDED AND p.transaction_key <> '' AND o.key <> '' AND o.key <> p.transaction_key`

	// keepSecondCharges records the transaction keys of second charges that found
	// has.
	keepSecondCharges = `kept AS (
  INSERT INTO attempts (promotion_id, target_id, at, dispatch, number, class, code, message)
  SELECT f.promotion_id, f.target_id, $1::timestamptz, f.named, ` + strconv.Itoa(store.SecondChargeNumber) + `, '` + string(reward.AnswerPaid) + `', '` + reward.CodeSecondCharge + `', f.key
  FROM found f WHERE f.recorded <> '' ORDER BY f.promotion_id, f.target_id ON CONFLICT DO NOTHING
)`
)

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

// add appends an attempt. number is its position among the attempts of one
// outcome.
func (b *attemptBatch) add(r reward.Ref, number int, a reward.Attempt) {
	b.promotions = append(b.promotions, int64(r.PromotionID))
	b.targets = append(b.targets, int64(r.TargetID))
	b.ats = append(b.ats, instant(a.At))
	b.dispatches = append(b.dispatches, a.Dispatch)
	b.numbers = append(b.numbers, int16(number)) //nolint:gosec // few attempts per outcome
	b.classes = append(b.classes, string(a.Class))
	b.codes = append(b.codes, reward.SanitizeText(a.Code))
	b.messages = append(b.messages, reward.SanitizeText(a.Message))
}

func (b *attemptBatch) queue(batch *pgx.Batch) {
	if len(b.promotions) > 0 {
		batch.Queue(attemptsSQL, b.promotions, b.targets, b.ats, b.dispatches, b.numbers, b.classes, b.codes, b.messages)
	}
}

// PayoutFinish writes the outcomes of dispatches. Outcomes of rows that are not
// QUEUED under their dispatch follow in a second transaction: with both statements
// in one, two batches with the same rows could lock them in different orders.
func (s *Store) PayoutFinish(ctx context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error) {
	if len(p.Outcomes) == 0 {
		return nil, nil
	}
	f := finishing{outcomes: p.Outcomes, now: instant(p.Now), settleFrom: instant(p.Now.Add(p.Lease)), results: make([]store.FinishResult, len(p.Outcomes))}
	rounds := store.Rounds(p.Outcomes, func(o *rules.Outcome) store.PayoutID {
		return store.PayoutID{PromotionID: o.PromotionID, TargetID: o.TargetID}
	})
	if len(rounds) == 1 {
		rest, err := f.send(ctx, s, finishHeldSQL, rounds)
		switch {
		case err != nil:
			return nil, err
		case len(rest) == 0:
			return f.results, nil
		}
		rounds = [][]int{rest}
	}
	if _, err := f.send(ctx, s, finishSQL, rounds); err != nil {
		return nil, err
	}
	return f.results, nil
}

// finishing is one call of PayoutFinish.
type finishing struct {
	outcomes        []rules.Outcome
	now, settleFrom time.Time
	results         []store.FinishResult
	noted           bool // the attempts are stored
}

// send writes rounds of outcomes by a statement, and the attempts of all outcomes
// if they are not stored yet, in one transaction. It returns the outcomes that the
// statement left out.
func (f *finishing) send(ctx context.Context, s *Store, sql string, rounds [][]int) (rest []int, err error) {
	var attempts attemptBatch
	if !f.noted {
		for _, o := range f.outcomes {
			for n, a := range o.Attempts {
				attempts.add(o.Ref, n, a)
			}
		}
	}
	done := make([]bool, len(f.outcomes))
	err = s.sendShared(ctx, "finish payouts", func(b *pgx.Batch) {
		clear(done)
		for _, round := range rounds {
			args := finishArgs(f.outcomes, round, f.now)
			b.Queue(sql, append([]any{f.now, f.settleFrom}, args...)...).Query(each(func(rows pgx.Rows) error {
				var ord int64
				var r store.FinishResult
				if err := rows.Scan(&ord, (*int16)(&r.State), &r.Attempts, &r.DueAt, &r.Changed, &r.Recorded); err != nil {
					return err
				}
				r.DueAt = r.DueAt.UTC()
				f.results[round[ord-1]], done[round[ord-1]] = r, true
				return nil
			}))
		}
		attempts.queue(b)
	})
	switch {
	case hasState(err, "22003", "22021", "22P05"):
		e := reward.NewError(reward.KindInvalid, reward.CodeInvalid, "the database cannot store an outcome of the batch")
		e.Err = err
		return nil, e
	case err != nil:
		return nil, err
	}
	f.noted = true
	for _, round := range rounds {
		for _, i := range round {
			if !done[i] {
				rest = append(rest, i)
			}
		}
	}
	return rest, nil
}

// finishArgs returns the outcomes of one round as columns.
func finishArgs(outcomes []rules.Outcome, round []int, now time.Time) []any {
	n := len(round)
	promotions, targets, dispatches := make([]int64, n), make([]int64, n), make([]int32, n)
	kinds, sents, giveUps := make([]int16, n), make([]bool, n), make([]bool, n)
	keys, codes, messages, retryAts := make([]string, n), make([]string, n), make([]string, n), make([]time.Time, n)
	for i, at := range round {
		o := &outcomes[at]
		promotions[i], targets[i], dispatches[i] = int64(o.PromotionID), int64(o.TargetID), o.Dispatch
		kinds[i], sents[i], giveUps[i] = int16(o.Kind), o.Sent, o.GiveUp
		keys[i], codes[i], messages[i] = reward.SanitizeText(o.TransactionKey), reward.SanitizeText(o.Code), reward.SanitizeText(o.Message)
		retryAts[i] = instant(o.RetryAt)
		if o.RetryAt.IsZero() {
			retryAts[i] = now
		}
	}
	return []any{promotions, targets, dispatches, kinds, sents, keys, codes, messages, retryAts, giveUps}
}

// settleSQL writes the results of lookups, by rules.Settle. A row that "not
// found" decides keeps its error code and message. It is looked up again at
// $13, unless that is NULL. A row that stays UNKNOWN only gets the time of its
// next lookup and the begin of the latest one.
var settleSQL = named(`WITH found AS MATERIALIZED (
  SELECT o.*, p.summary_id, p.amount, p.state AS was, p.settle_from, p.state = :UNKNOWN AND p.dispatch = o.named AS held,
    p.again AND p.dispatch = o.named AND o.began_at >= p.updated_at AS repeated,
    CASE WHEN o.found AND ` + secondCharge + ` THEN p.transaction_key ELSE '' END AS recorded
  FROM unnest($3::int8[], $4::int8[], $5::int4[], $6::bool[], $7::text[], $8::bool[], $9::timestamptz[], $10::timestamptz[],
      $11::text[], $12::text[]) WITH ORDINALITY
    AS o(promotion_id, target_id, named, found, key, missing, began_at, next_at, code, message, ord)
  JOIN payouts p ON p.promotion_id = o.promotion_id AND p.target_id = o.target_id
  ORDER BY p.promotion_id, p.target_id FOR NO KEY UPDATE OF p
), judged AS MATERIALIZED (
  SELECT f.*, (CASE
      WHEN f.found THEN :SUCCEEDED
      WHEN f.held AND f.missing AND f.began_at >= f.settle_from + $2::interval
        THEN CASE m.status WHEN 'CANCELLED' THEN :CANCELLED ELSE :FAILED END
      ELSE f.was END)::int2 AS became
  FROM found f JOIN promotions m ON m.id = f.promotion_id
), postponed AS (
  UPDATE payouts p SET due_at = CASE WHEN j.repeated AND j.missing THEN p.due_at ELSE j.next_at END,
    looked_at = CASE WHEN j.held THEN greatest(p.looked_at, j.began_at) ELSE p.looked_at END, again = j.repeated AND NOT j.missing
  FROM judged j
  WHERE p.promotion_id = j.promotion_id AND p.target_id = j.target_id AND (j.held OR j.repeated) AND j.became = j.was
), moved AS MATERIALIZED (
  SELECT j.promotion_id, j.target_id, j.summary_id, j.amount, j.was, j.became, 0 AS answers, j.key, j.code, j.message
  FROM judged j WHERE j.became <> j.was
), written AS (
  UPDATE payouts p SET state = v.became, updated_at = $1::timestamptz,
    due_at = CASE v.became WHEN :SUCCEEDED THEN $1::timestamptz ELSE coalesce($13::timestamptz, $1::timestamptz) END,
    again = v.became <> :SUCCEEDED AND $13::timestamptz IS NOT NULL,
    transaction_key = CASE v.became WHEN :SUCCEEDED THEN v.key ELSE p.transaction_key END,
    error_code = CASE WHEN v.became = :SUCCEEDED THEN '' WHEN p.error_code = '' AND p.error_message = '' THEN v.code ELSE p.error_code END,
    error_message = CASE WHEN v.became = :SUCCEEDED THEN '' WHEN p.error_code = '' AND p.error_message = '' THEN v.message
      ELSE p.error_message END
  FROM moved v WHERE p.promotion_id = v.promotion_id AND p.target_id = v.target_id
), ` + keepSecondCharges + `, ` + tally("moved") + `, ` + payoutEventsSQL() + `
SELECT ord, recorded FROM found WHERE recorded <> ''`)

// PayoutSettle writes the results of lookups.
func (s *Store) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) ([]store.SecondCharge, error) {
	if len(p.Lookups) == 0 {
		return nil, nil
	}
	rounds := store.Rounds(p.Lookups, func(l *rules.Lookup) store.PayoutID {
		return store.PayoutID{PromotionID: l.PromotionID, TargetID: l.TargetID}
	})
	var attempts attemptBatch
	for _, l := range p.Lookups {
		if l.Attempt != nil {
			attempts.add(l.Ref, 0, *l.Attempt)
		}
	}
	now := instant(p.Now)
	var again *time.Time
	if p.AgainAfter > 0 {
		again = maybe(instant(p.Now.Add(p.AgainAfter)))
	}
	var twice []store.SecondCharge
	err := s.send(ctx, "settle lookups", func(b *pgx.Batch) {
		twice = nil
		for _, round := range rounds {
			args := append(append([]any{now, p.SettleAfter}, lookupArgs(p.Lookups, round)...), again)
			b.Queue(settleSQL, args...).Query(each(func(rows pgx.Rows) error {
				var ord int64
				var c store.SecondCharge
				if err := rows.Scan(&ord, &c.Recorded); err != nil {
					return err
				}
				l := &p.Lookups[round[ord-1]]
				c.Ref, c.TransactionKey = l.Ref, l.TransactionKey
				twice = append(twice, c)
				return nil
			}))
		}
		attempts.queue(b)
	})
	if err != nil {
		return nil, err
	}
	return twice, nil
}

// lookupArgs returns the lookups of one round as columns.
func lookupArgs(lookups []rules.Lookup, round []int) []any {
	n := len(round)
	promotions, targets, dispatches := make([]int64, n), make([]int64, n), make([]int32, n)
	founds, missings := make([]bool, n), make([]bool, n)
	begans, nexts := make([]*time.Time, n), make([]time.Time, n)
	keys, codes, messages := make([]string, n), make([]string, n), make([]string, n)
	for i, at := range round {
		l := &lookups[at]
		promotions[i], targets[i], dispatches[i] = int64(l.PromotionID), int64(l.TargetID), l.Dispatch
		founds[i], missings[i] = l.Found, l.NotFound
		nexts[i] = instant(l.NextAt)
		if !l.BeganAt.IsZero() {
			begans[i] = maybe(instant(l.BeganAt))
		}
		keys[i] = reward.SanitizeText(l.TransactionKey)
		if l.Attempt != nil {
			codes[i], messages[i] = reward.SanitizeText(l.Attempt.Code), reward.SanitizeText(l.Attempt.Message)
		}
	}
	return []any{promotions, targets, dispatches, founds, keys, missings, begans, nexts, codes, messages}
}

// retrySQL returns the statement that moves FAILED rows back to READY, by
// rules.Retry. It deducts their counted attempts from the counts. Its last
// columns say whether the promotion allows the retry.
func retrySQL(from, where string) string {
	return named(`WITH found AS MATERIALIZED (
  SELECT p.promotion_id, p.target_id, p.summary_id, p.amount, p.attempts
  FROM ` + from + ` JOIN promotions m ON m.id = p.promotion_id AND m.status NOT IN ('DRAFT', 'CANCELLED') AND m.archived_at IS NULL
  WHERE ` + where + `
  ORDER BY p.target_id LIMIT $3::int8 FOR NO KEY UPDATE OF p
), moved AS MATERIALIZED (
  SELECT promotion_id, target_id, summary_id, amount, :FAILED::int2 AS was, :READY::int2 AS became, -attempts AS answers FROM found
), written AS (
  UPDATE payouts p SET state = :READY, attempts = 0, due_at = $1::timestamptz, updated_at = $1::timestamptz, again = false
  FROM moved v WHERE p.promotion_id = v.promotion_id AND p.target_id = v.target_id
), ` + tally("moved") + `
SELECT m.status, m.archived_at IS NOT NULL, (SELECT count(*) FROM moved) FROM promotions m WHERE m.id = $2`)
}

var (
	retryAny   = retrySQL(`payouts p`, `p.promotion_id = $2 AND p.state = :FAILED`+listed)
	retryCode  = retrySQL(`payouts p`, `p.promotion_id = $2 AND p.state = :FAILED AND p.error_code = $4 AND p.error_code <> ''`)
	retryNamed = retrySQL(`(SELECT DISTINCT $2::int8 AS promotion_id, :FAILED AS state, target_id FROM unnest($5::int8[]) AS n(target_id)) i
    JOIN payouts p ON p.promotion_id = i.promotion_id AND p.target_id = i.target_id`, `p.state = i.state AND ($4 = '' OR p.error_code = $4)`)
)

// PayoutRetry returns FAILED rows to READY.
func (s *Store) PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error) {
	sql, args := retryAny, []any{instant(p.Now), int64(p.PromotionID), int64(store.BatchMax)}
	switch {
	case p.Targets != nil:
		sql, args = retryNamed, append(args, reward.SanitizeText(p.Code), p.Targets)
	case p.Code != "":
		sql, args = retryCode, append(args, reward.SanitizeText(p.Code))
	}
	var status reward.PromotionStatus
	var archived bool
	var moved int
	err := s.send(ctx, "retry payouts", func(b *pgx.Batch) {
		status, moved = "", 0
		b.Queue(sql, args...).Query(each(func(rows pgx.Rows) error { return rows.Scan(&status, &archived, &moved) }))
		b.Queue(reopenSQL, []int64{int64(p.PromotionID)})
	})
	switch {
	case err != nil:
		return 0, err
	case status == "":
		return 0, store.NoPromotion(p.PromotionID)
	}
	if err := cmp.Or(rules.CheckRetry(p.PromotionID, status), rules.CheckArchived(p.PromotionID, archived)); err != nil {
		return 0, err
	}
	return moved, nil
}

// resolveSQL settles an UNKNOWN row as an operator decided, by rules.Resolve.
var resolveSQL = named(`WITH found AS MATERIALIZED (
  SELECT p.promotion_id, p.target_id, p.summary_id, p.amount, p.dispatch FROM payouts p
  WHERE p.promotion_id = $2 AND p.target_id = $3 AND p.state + 0 = :UNKNOWN FOR NO KEY UPDATE OF p
), moved AS MATERIALIZED (
  SELECT f.*, :UNKNOWN::int2 AS was, (CASE WHEN $4::bool THEN :SUCCEEDED ELSE :FAILED END)::int2 AS became, 0 AS answers FROM found f
), written AS (
  UPDATE payouts p SET state = v.became, due_at = $1::timestamptz, updated_at = $1::timestamptz,
    transaction_key = CASE v.became WHEN :SUCCEEDED THEN $5 ELSE p.transaction_key END,
    error_code = CASE v.became WHEN :SUCCEEDED THEN '' ELSE p.error_code END,
    error_message = CASE v.became WHEN :SUCCEEDED THEN '' ELSE p.error_message END
  FROM moved v WHERE p.promotion_id = v.promotion_id AND p.target_id = v.target_id
  RETURNING ` + payoutColumns + `
), noted AS (
  INSERT INTO attempts (promotion_id, target_id, at, dispatch, number, class, code, message)
  SELECT f.promotion_id, f.target_id, $1::timestamptz, f.dispatch, 0, '` + string(reward.AnswerResolved) + `', $6, $7 FROM found f
  ON CONFLICT DO NOTHING
), ` + tally("moved") + `, ` + payoutEventsSQL() + `
SELECT ` + payoutColumns + ` FROM written p`)

// PayoutResolve settles one UNKNOWN row as an operator decided.
func (s *Store) PayoutResolve(ctx context.Context, p store.PayoutResolveParams) (reward.Payout, error) {
	var settled, stands []reward.Payout
	err := s.send(ctx, "resolve a payout", func(b *pgx.Batch) {
		settled, stands = nil, nil
		b.Queue(resolveSQL, instant(p.Now), int64(p.PromotionID), int64(p.TargetID), p.Paid, reward.SanitizeText(p.TransactionKey),
			reward.SanitizeText(p.By), reward.SanitizeText(p.Note)).Query(payoutsInto(&settled))
		b.Queue(headsSQL, []int64{int64(p.PromotionID)}, []int64{int64(p.TargetID)}).Query(payoutsInto(&stands))
	})
	switch {
	case err != nil:
		return reward.Payout{}, err
	case len(settled) > 0:
		return settled[0], nil
	case len(stands) == 0:
		return reward.Payout{}, store.NoPayout(p.PayoutID)
	}
	return reward.Payout{}, rules.NotResolvable(stands[0])
}
