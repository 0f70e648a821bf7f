package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// addSummaries inserts the summary rows that a batch needs.
const addSummaries = `INSERT INTO summaries (promotion_id, summary_id)
SELECT i.promotion_id, i.summary_id FROM unnest($1::int8[], $2::int8[]) AS i(promotion_id, summary_id)
WHERE NOT EXISTS (SELECT 1 FROM summaries s WHERE s.promotion_id = i.promotion_id AND s.summary_id = i.summary_id)
ORDER BY i.promotion_id, i.summary_id ON CONFLICT DO NOTHING`

// insertSQL inserts the new rows of a batch ($1 to $7), by the intakes of their promotions ($8
// to $13). The caller holds the locks of the summary rows, so no other transaction can insert
// the same targets or use the room. It returns the rows that were known, and those that it
// queued. The subquery looks each target up by its key, also if the table was analyzed while
// it was empty: otherwise each batch reads all of it. The intakes have what is the same for all
// rows of a promotion: sums are numeric, and slow to add and compare for each row.
var insertSQL = named(`WITH probed AS MATERIALIZED (
  SELECT i.*, e.user_id AS known_user, e.amount AS known_amount, e.voucher_code AS known_code
  FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[], $5::int8[], $6::text[], $7::text[])
    WITH ORDINALITY AS i(promotion_id, target_id, summary_id, user_id, amount, voucher_code, trace, ord)
  LEFT JOIN LATERAL (SELECT * FROM payouts p WHERE p.promotion_id = i.promotion_id AND p.target_id = i.target_id OFFSET 0) e ON true
), intakes AS MATERIALIZED (
  SELECT k.*, $14::int8 - s.queued AS room, ` + rows.Worth + ` + f.worth <= k.most_worth AND ` + rows.Committed + ` + f.worth <= k.most_committed AS within
  FROM (SELECT promotion_id, sum(amount) AS worth FROM probed WHERE known_amount IS NULL GROUP BY promotion_id) f
  JOIN unnest($8::int8[], $9::int2[], $10::int4[], $11::bool[], $12::int8[], $13::int8[])
    AS k(promotion_id, state, approval_round, refuses, most_worth, most_committed) ON k.promotion_id = f.promotion_id
  JOIN summaries s ON s.promotion_id = f.promotion_id AND s.summary_id = 0
), fresh AS (
  SELECT i.*, k.approval_round, CASE
      WHEN row_number() OVER (PARTITION BY i.promotion_id ORDER BY i.ord) <= k.room AND k.within
      THEN :QUEUED::int2 ELSE k.state END AS state
  FROM probed i JOIN intakes k ON k.promotion_id = i.promotion_id
  WHERE i.known_amount IS NULL AND NOT k.refuses
), inserted AS (
  INSERT INTO payouts (promotion_id, target_id, summary_id, user_id, amount, voucher_code, state, dispatch, attempts,
    maybe_called, due_at, first_dispatched_at, transaction_key, error_code, error_message, updated_at, approval_round, trace)
  SELECT f.promotion_id, f.target_id, f.summary_id, f.user_id, f.amount, f.voucher_code, f.state, (f.state = :QUEUED)::int, 0,
    false, $15::timestamptz, CASE f.state WHEN :QUEUED THEN least($15::timestamptz, clock_timestamp()) END, '', '', '', $15::timestamptz, f.approval_round, nullif(f.trace, '')
  FROM fresh f
  RETURNING promotion_id, target_id, summary_id, amount, NULL::int2 AS was, state AS became, 0 AS answers
), ` + tally("inserted") + `, dispatched AS MATERIALIZED (
  SELECT m.id FROM promotions m WHERE m.id IN (SELECT promotion_id FROM moves WHERE became = :QUEUED)
  ORDER BY m.id FOR NO KEY UPDATE OF m
), noted AS (
  UPDATE promotions m SET last_dispatched_at = greatest(m.last_dispatched_at, $15::timestamptz), stream_gone = false
  FROM dispatched d WHERE m.id = d.id
), placed AS (
  INSERT INTO kafka_offsets AS o (topic, part, next)
  SELECT n.* FROM unnest($16::text[], $17::int4[], $18::int8[]) AS n(topic, part, next)
  WHERE NOT EXISTS (SELECT 1 FROM probed c WHERE c.known_amount IS NOT NULL
      AND (c.known_user, c.known_amount, c.known_code) IS DISTINCT FROM (c.user_id, c.amount, c.voucher_code))
    AND NOT EXISTS (SELECT 1 FROM intakes k WHERE k.refuses)
  ON CONFLICT (topic, part) DO UPDATE SET next = excluded.next WHERE o.next < excluded.next
)
SELECT promotion_id, target_id, known_user, known_amount, known_code FROM probed WHERE known_amount IS NOT NULL
UNION ALL SELECT promotion_id, target_id, NULL, NULL, NULL FROM inserted WHERE became = :QUEUED`)

// unvaluedSQL records that promotions got rows without an amount in this round. It
// is given the rows of the batch without an amount, which may have existed before. The
// subquery keeps the planner from reading a whole table, which is good only while the
// table is small.
const unvaluedSQL = `WITH unvalued AS MATERIALIZED (
  SELECT DISTINCT i.promotion_id, i.unvalued FROM unnest($1::int8[], $2::int8[], $3::int4[]) AS i(promotion_id, target_id, unvalued)
  WHERE (SELECT p.amount = 0 AND p.approval_round = i.unvalued - 1 FROM payouts p WHERE p.promotion_id = i.promotion_id AND p.target_id = i.target_id)
), gained AS MATERIALIZED (
  SELECT m.id, u.unvalued FROM unvalued u JOIN promotions m ON m.id = u.promotion_id ORDER BY m.id FOR NO KEY UPDATE OF m
)
UPDATE promotions m SET unvalued_rounds = g.unvalued FROM gained g WHERE m.id = g.id`

// Insert inserts a batch of payouts.
func (s *Store) Insert(ctx context.Context, what string, in rows.Insertion) (rows.Inserted, error) {
	now := instant(in.Now)
	batch := newInsertBatch(&in)
	var done rows.Inserted
	err := s.send(ctx, what, func(b *pgx.Batch) {
		done = rows.Inserted{Known: make(map[store.PayoutID]store.NewPayout)}
		if len(in.Rows) > 0 {
			b.Queue(lockTotals, batch.ids)
			queue(b, []rows.Statement{in.Guard})
			b.Queue(addSummaries, batch.summaryPromotions, batch.summaryIDs)
		}
		if len(in.Rows)+len(in.Offsets) > 0 {
			var id store.PayoutID // each row replaces them
			var user, code *string
			var amount *int64
			b.Queue(insertSQL, append(batch.columns(), int64(in.MaxLen), now, batch.topics, batch.parts, batch.nexts)...).Query(each(func(rows pgx.Rows) error {
				if err := rows.Scan((*int64)(&id.PromotionID), (*int64)(&id.TargetID), &user, &amount, &code); err != nil {
					return err
				}
				if amount == nil {
					done.Queued = append(done.Queued, id)
				} else {
					done.Known[id] = store.NewPayout{UserID: *user, Amount: reward.Amount(*amount), VoucherCode: *code}
				}
				return nil
			}))
		}
		if len(batch.unvaluedTargets) > 0 {
			b.Queue(unvaluedSQL, batch.unvaluedPromotions, batch.unvaluedTargets, batch.unvaluedRounds)
		}
		queue(b, rows.ContinueEnded(batch.ended...))
		queue(b, in.DeadLetters)
	})
	switch {
	case hasState(err, "22003"):
		return rows.Inserted{}, rules.AmountOverflow(batch.ids...)
	case err != nil:
		return rows.Inserted{}, writeError(unstorable(err, "a payout")) // the encoding of the database may lack a character
	}
	return done, nil
}

// insertBatch has an insertion as columns.
type insertBatch struct {
	promotions, targets, summaries, amounts []int64
	users, codes, traces                    []string

	ids, worths, committed []int64
	states                 []int16
	rounds                 []int32
	refuses                []bool
	ended                  []reward.PromotionID

	summaryPromotions, summaryIDs []int64

	unvaluedPromotions, unvaluedTargets []int64 // rows without an amount that matter
	unvaluedRounds                      []int32

	topics []string
	parts  []int32
	nexts  []int64
}

func newInsertBatch(in *rows.Insertion) *insertBatch {
	n := len(in.Rows)
	b := &insertBatch{
		promotions: make([]int64, 0, n), targets: make([]int64, 0, n), summaries: make([]int64, 0, n), amounts: make([]int64, 0, n),
		users: make([]string, 0, n), codes: make([]string, 0, n), traces: make([]string, 0, n),
	}
	unvalued := make(map[reward.PromotionID]int32)
	for i := range in.Intakes {
		k := &in.Intakes[i]
		b.ids, b.worths, b.committed = append(b.ids, int64(k.ID)), append(b.worths, int64(k.Worth)), append(b.committed, int64(k.Committed))
		b.states, b.rounds, b.refuses = append(b.states, int16(k.State)), append(b.rounds, k.Approval.Round), append(b.refuses, k.Refuses)
		if !k.FinishedAt.IsZero() {
			b.ended = append(b.ended, k.ID)
		}
		unvalued[k.ID] = k.Unvalued
	}
	type summary struct{ promotion, id int64 }
	needed := make(map[summary]bool)
	for i := range in.Rows {
		r := &in.Rows[i]
		b.promotions, b.targets = append(b.promotions, int64(r.PromotionID)), append(b.targets, int64(r.TargetID))
		b.summaries, b.amounts = append(b.summaries, int64(r.SummaryID)), append(b.amounts, int64(r.Amount))
		b.users, b.codes, b.traces = append(b.users, r.UserID), append(b.codes, r.VoucherCode), append(b.traces, r.Trace)
		if round := unvalued[r.PromotionID]; round > 0 && r.Amount == 0 {
			b.unvaluedPromotions, b.unvaluedTargets = append(b.unvaluedPromotions, int64(r.PromotionID)), append(b.unvaluedTargets, int64(r.TargetID))
			b.unvaluedRounds = append(b.unvaluedRounds, round)
		}
		if n := (summary{int64(r.PromotionID), int64(r.SummaryID)}); n.id > 0 && !needed[n] {
			needed[n] = true
			b.summaryPromotions, b.summaryIDs = append(b.summaryPromotions, n.promotion), append(b.summaryIDs, n.id)
		}
	}
	for _, o := range in.Offsets {
		b.topics, b.parts, b.nexts = append(b.topics, o.Topic), append(b.parts, o.Partition), append(b.nexts, o.Next)
	}
	return b
}

// columns returns the parameters $1 to $13 of insertSQL.
func (b *insertBatch) columns() []any {
	return []any{
		b.promotions, b.targets, b.summaries, b.users, b.amounts, b.codes, b.traces,
		b.ids, b.states, b.rounds, b.refuses, b.worths, b.committed,
	}
}
