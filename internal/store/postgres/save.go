package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// addSummaries inserts the summary rows that a batch needs. A promotion that
// does not exist lacks its own summary row too. The foreign key then refuses
// the whole transaction.
const addSummaries = `INSERT INTO summaries (promotion_id, summary_id)
SELECT i.promotion_id, i.summary_id FROM unnest($1::int8[], $2::int8[]) AS i(promotion_id, summary_id)
WHERE NOT EXISTS (SELECT 1 FROM summaries s WHERE s.promotion_id = i.promotion_id AND s.summary_id = i.summary_id)
ORDER BY i.promotion_id, i.summary_id ON CONFLICT DO NOTHING`

// insertSQL inserts the new rows of a batch. The first row of each promotion has
// what the budget leaves, so that it is added up once. The caller holds the locks of the
// summary rows, so no other transaction can insert the same targets or use the
// capacity. It returns the rows that were known, those that it queued, and those that it
// refused because their promotion is archived.
var insertSQL = named(`WITH probed AS MATERIALIZED (
  SELECT i.*, e.user_id AS known_user, e.amount AS known_amount, e.voucher_code AS known_code
  FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[], $5::int8[], $6::text[], $13::text[])
    WITH ORDINALITY AS i(promotion_id, target_id, summary_id, user_id, amount, voucher_code, trace, ord)
  LEFT JOIN payouts e ON e.promotion_id = i.promotion_id AND e.target_id = i.target_id
), ranked AS MATERIALIZED (
  SELECT i.*, m.status, m.archived_at IS NOT NULL AS archived, m.approval_round, row_number() OVER front AS place, least($7::int8 - s.queued, ` + canaryCapacity + `) AS capacity,
    sum(i.amount) OVER front AS worth,
    CASE WHEN row_number() OVER front = 1 AND m.status = 'RUNNING' AND m.max_amount > 0
        AND ` + budgetUnspent + ` < s.ready_amount + sum(i.amount) OVER (PARTITION BY i.promotion_id)
      THEN ` + budgetCapacity + ` END AS budget,
    m.status = 'RUNNING' AND ` + limit(`$12`) + ` > 0 AND (bool_or(i.amount = 0) OVER (PARTITION BY i.promotion_id)
      OR ` + approvalNeeded(worth+` + sum(i.amount) OVER (PARTITION BY i.promotion_id)`, "$12") + `) AS blocked
  FROM probed i
  JOIN promotions m ON m.id = i.promotion_id
  JOIN summaries s ON s.promotion_id = i.promotion_id AND s.summary_id = 0
  WHERE i.known_amount IS NULL
  WINDOW front AS (PARTITION BY i.promotion_id ORDER BY i.ord ROWS UNBOUNDED PRECEDING)
), fresh AS MATERIALIZED (
  SELECT p.*, (CASE
      WHEN p.status = 'CANCELLED' THEN :CANCELLED
      WHEN p.status = 'RUNNING' AND NOT p.blocked AND p.place <= p.capacity
        AND coalesce(p.worth <= first_value(p.budget) OVER (PARTITION BY p.promotion_id ORDER BY p.ord), true) THEN :QUEUED
      ELSE :READY END)::int2 AS state
  FROM ranked p
), inserted AS (
  INSERT INTO payouts (promotion_id, target_id, summary_id, user_id, amount, voucher_code, state, dispatch, attempts,
    maybe_called, due_at, first_dispatched_at, transaction_key, error_code, error_message, updated_at, approval_round, trace)
  SELECT f.promotion_id, f.target_id, f.summary_id, f.user_id, f.amount, f.voucher_code, f.state, (f.state = :QUEUED)::int, 0,
    false, $8::timestamptz, CASE f.state WHEN :QUEUED THEN least($8::timestamptz, clock_timestamp()) END, '', '', '', $8::timestamptz, f.approval_round, nullif(f.trace, '')
  FROM fresh f WHERE NOT f.archived
  RETURNING promotion_id, target_id, summary_id, amount, NULL::int2 AS was, state AS became, 0 AS answers
), ` + tally("inserted") + `, dispatched AS MATERIALIZED (
  SELECT m.id, d.rows FROM (SELECT promotion_id, sum(n)::int8 AS rows FROM moves WHERE became = :QUEUED GROUP BY promotion_id) d
  JOIN promotions m ON m.id = d.promotion_id
  ORDER BY m.id FOR NO KEY UPDATE OF m
), noted AS (
  UPDATE promotions m SET last_dispatched_at = greatest(m.last_dispatched_at, $8::timestamptz), stream_gone = false,
    canary_dispatched = m.canary_dispatched + CASE WHEN ` + canaryOpen + ` THEN d.rows ELSE 0 END
  FROM dispatched d WHERE m.id = d.id
), placed AS (` + offsetsSQL(9, `WHERE NOT EXISTS (SELECT 1 FROM probed c WHERE c.known_amount IS NOT NULL
    AND (c.known_user, c.known_amount, c.known_code) IS DISTINCT FROM (c.user_id, c.amount, c.voucher_code))
    AND NOT EXISTS (SELECT 1 FROM fresh f WHERE f.archived)`) + `
)
SELECT promotion_id, target_id, known_user, known_amount, known_code, false FROM probed WHERE known_amount IS NOT NULL
UNION ALL SELECT promotion_id, target_id, NULL, NULL, NULL, false FROM inserted WHERE became = :QUEUED
UNION ALL SELECT promotion_id, target_id, NULL, NULL, NULL, true FROM fresh WHERE archived`)

// unvaluedSQL records that promotions got rows without an amount in this round. It
// is given the rows of the batch without an amount, which may have existed before. The
// subquery keeps the planner from reading a whole table, which is good only while the
// table is small.
const unvaluedSQL = `WITH unvalued AS MATERIALIZED (
  SELECT DISTINCT i.promotion_id FROM unnest($1::int8[], $2::int8[]) AS i(promotion_id, target_id)
  WHERE (SELECT p.amount = 0 AND p.approval_round = (SELECT o.approval_round FROM promotions o WHERE o.id = p.promotion_id)
    FROM payouts p WHERE p.promotion_id = i.promotion_id AND p.target_id = i.target_id)
), gained AS MATERIALIZED (
  SELECT m.id FROM promotions m WHERE m.unvalued_rounds <= m.approval_round AND m.id IN (SELECT u.promotion_id FROM unvalued u)
  ORDER BY m.id FOR NO KEY UPDATE OF m
)
UPDATE promotions m SET unvalued_rounds = m.approval_round + 1 FROM gained g WHERE m.id = g.id`

// reopenSQL makes COMPLETED promotions that gained rows RUNNING again. It is a
// separate statement, so that it sees promotions that ended while this
// transaction waited for the counts. A CANCELLED promotion that gained rows
// needs another cancel step.
const reopenSQL = `WITH gained AS MATERIALIZED (
  SELECT m.id FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0
  WHERE m.id = ANY($1::int8[]) AND m.finished_at IS NOT NULL
    AND s.ready + s.queued + s.retrying > 0
  ORDER BY m.id FOR NO KEY UPDATE OF m
)
UPDATE promotions m SET finished_at = NULL, stream_gone = m.stream_gone AND m.status <> 'COMPLETED',
  status = CASE m.status WHEN 'COMPLETED' THEN 'RUNNING' ELSE m.status END
FROM gained g WHERE m.id = g.id`

// putOffsets stores the offsets of a batch without rows.
var putOffsets = offsetsSQL(1, "")

// offsetsSQL stores offsets, given as parameters from first on, if where holds.
func offsetsSQL(first int, where string) string {
	return fmt.Sprintf(`INSERT INTO kafka_offsets AS o (topic, part, next)
SELECT n.* FROM unnest($%d::text[], $%d::int4[], $%d::int8[]) AS n(topic, part, next) %s
ON CONFLICT (topic, part) DO UPDATE SET next = excluded.next WHERE o.next < excluded.next`, first, first+1, first+2, where)
}

// PayoutSave inserts a batch of payouts with their counts, offsets and dead
// letters.
func (s *Store) PayoutSave(ctx context.Context, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	now := instant(p.Now)
	batch, err := newSaveBatch(p.Rows)
	if err != nil {
		return store.PayoutSaveResult{}, err
	}
	offsets := newOffsetBatch(p.Offsets)
	if batch.conflicting {
		offsets = offsetBatch{}
	}
	var known map[store.PayoutID]store.NewPayout
	var queued []store.PayoutID
	var archived map[store.PayoutID]bool
	err = s.send(ctx, "save payouts", func(b *pgx.Batch) {
		known, queued, archived = make(map[store.PayoutID]store.NewPayout), nil, make(map[store.PayoutID]bool)
		if len(batch.promotions) > 0 {
			b.Queue(lockTotals, batch.ids)
			b.Queue(addSummaries, batch.summaryPromotions, batch.summaryIDs)
			b.Queue(insertSQL, batch.promotions, batch.targets, batch.summaries, batch.users, batch.amounts, batch.codes,
				int64(p.MaxLen), now, offsets.topics, offsets.parts, offsets.nexts, rows.Limits(p.ApprovalAbove), batch.traces).Query(each(func(rows pgx.Rows) error {
				var id store.PayoutID
				var user, code *string
				var amount *int64
				var refused bool
				if err := rows.Scan((*int64)(&id.PromotionID), (*int64)(&id.TargetID), &user, &amount, &code, &refused); err != nil {
					return err
				}
				switch {
				case refused:
					archived[id] = true
				case amount == nil:
					queued = append(queued, id)
				default:
					known[id] = store.NewPayout{UserID: *user, Amount: reward.Amount(*amount), VoucherCode: *code}
				}
				return nil
			}))
			if len(batch.unvaluedTargets) > 0 {
				b.Queue(unvaluedSQL, batch.unvaluedPromotions, batch.unvaluedTargets)
			}
			b.Queue(reopenSQL, batch.ids)
		} else if len(offsets.topics) > 0 {
			b.Queue(putOffsets, offsets.topics, offsets.parts, offsets.nexts)
		}
		queue(b, rows.AddDeadLetters(p.DeadLetters))
	})
	switch {
	case hasState(err, "23503"):
		e := reward.NewError(reward.KindNotFound, reward.CodeNotFound, "a payout names a promotion that does not exist")
		e.Err = err
		return store.PayoutSaveResult{}, e
	case hasState(err, "22003"):
		return store.PayoutSaveResult{}, rules.AmountOverflow(batch.ids...)
	case hasState(err, "22021", "22P05"):
		// The encoding of the database lacks a character.
		e := reward.NewError(reward.KindInvalid, reward.CodeInvalid, "the database cannot store a payout of the batch")
		e.Err = err
		return store.PayoutSaveResult{}, e
	case err != nil:
		return store.PayoutSaveResult{}, err
	}
	return batch.result(p.Rows, known, archived, queued, p), nil
}

// saveBatch has the first row of each target of a batch, as columns.
type saveBatch struct {
	promotions, targets, summaries, amounts []int64
	users, codes                            []string
	traces                                  []string               // none if no row has one: unnest adds NULLs
	first                                   map[store.PayoutID]int // its position in the caller's rows
	conflicting                             bool                   // two rows of a target differ

	ids                           []int64 // promotions, ascending
	summaryPromotions, summaryIDs []int64

	unvaluedPromotions, unvaluedTargets []int64 // rows without an amount
}

func newSaveBatch(rows []store.NewPayout) (*saveBatch, error) {
	b := &saveBatch{first: make(map[store.PayoutID]int, len(rows))}
	type summary struct{ promotion, id int64 }
	needed := make(map[summary]bool)
	for i, r := range rows {
		if err := r.Check(); err != nil {
			return nil, err
		}
		id := store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
		if at, ok := b.first[id]; ok {
			b.conflicting = b.conflicting || !sameContent(&rows[at], &r)
			continue
		}
		b.first[id] = i
		b.promotions = append(b.promotions, int64(r.PromotionID))
		b.targets = append(b.targets, int64(r.TargetID))
		b.summaries = append(b.summaries, int64(r.SummaryID))
		b.users = append(b.users, r.UserID)
		b.amounts = append(b.amounts, int64(r.Amount))
		b.codes = append(b.codes, r.VoucherCode)
		if r.Trace != "" {
			b.traces = append(b.traces, make([]string, len(b.codes)-len(b.traces)-1)...)
			b.traces = append(b.traces, r.Trace)
		}
		if r.Amount == 0 {
			b.unvaluedPromotions = append(b.unvaluedPromotions, int64(r.PromotionID))
			b.unvaluedTargets = append(b.unvaluedTargets, int64(r.TargetID))
		}
		needed[summary{int64(r.PromotionID), 0}] = true
		needed[summary{int64(r.PromotionID), int64(r.SummaryID)}] = true
	}
	for n := range needed {
		b.summaryPromotions = append(b.summaryPromotions, n.promotion)
		b.summaryIDs = append(b.summaryIDs, n.id)
		if n.id == 0 {
			b.ids = append(b.ids, n.promotion)
		}
	}
	slices.Sort(b.ids)
	return b, nil
}

// result returns the outcome of every row of the caller. It compares a row with
// the stored row of its target: the one that was known before, or the first one
// of the batch.
func (b *saveBatch) result(rows []store.NewPayout, known map[store.PayoutID]store.NewPayout, archived map[store.PayoutID]bool,
	queued []store.PayoutID, p store.PayoutSaveParams,
) store.PayoutSaveResult {
	res := store.PayoutSaveResult{Outcomes: make([]store.SaveOutcome, len(rows)), Queued: make([]reward.Payout, 0, len(queued))}
	for i, r := range rows {
		id := store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
		if archived[id] {
			res.Outcomes[i] = store.Archived
			continue
		}
		stands, old := known[id]
		if !old {
			if b.first[id] == i {
				continue // Accepted
			}
			stands = rows[b.first[id]]
		}
		res.Outcomes[i] = store.Conflict
		if sameContent(&stands, &r) {
			res.Outcomes[i] = store.Duplicate
		}
	}
	now := instant(p.Now)
	for _, id := range queued {
		r := rows[b.first[id]]
		res.Queued = append(res.Queued, reward.Payout{
			PromotionID: r.PromotionID, TargetID: r.TargetID, SummaryID: r.SummaryID, UserID: r.UserID, Amount: r.Amount,
			VoucherCode: r.VoucherCode, State: reward.Queued, Dispatch: 1, DueAt: now, FirstDispatchedAt: now, UpdatedAt: now, Trace: r.Trace,
		})
	}
	return res
}

// sameContent reports whether two rows of a target pay the same.
func sameContent(a, b *store.NewPayout) bool {
	return a.Amount == b.Amount && a.UserID == b.UserID && a.VoucherCode == b.VoucherCode
}

// offsetBatch has the highest offset of each partition, in key order.
type offsetBatch struct {
	topics []string
	parts  []int32
	nexts  []int64
}

func newOffsetBatch(offsets []store.Offset) offsetBatch {
	sorted := slices.Clone(offsets)
	slices.SortFunc(sorted, func(a, b store.Offset) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(b.Next, a.Next))
	})
	var batch offsetBatch
	for i, o := range sorted {
		if i > 0 && sorted[i-1].Topic == o.Topic && sorted[i-1].Partition == o.Partition {
			continue
		}
		batch.topics = append(batch.topics, o.Topic)
		batch.parts = append(batch.parts, o.Partition)
		batch.nexts = append(batch.nexts, o.Next)
	}
	return batch
}
