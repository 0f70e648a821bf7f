package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

const promotionColumns = rows.PromotionColumns

// addTotals inserts the summary rows of whole promotions.
const addTotals = `INSERT INTO summaries (promotion_id, summary_id)
SELECT i.id, 0 FROM unnest($1::int8[]) AS i(id)
WHERE NOT EXISTS (SELECT 1 FROM summaries s WHERE s.promotion_id = i.id AND s.summary_id = 0)
ORDER BY i.id ON CONFLICT DO NOTHING`

// authoredSQL returns the part of a WITH clause that records an author of the promotions
// in the part named changed: a refused change has none. An empty author is no author.
func authoredSQL(changed, author string) string {
	return `authored AS (INSERT INTO promotion_authors (promotion_id, author)
  SELECT id, ` + author + `::text FROM ` + changed + ` WHERE ` + author + `::text <> '' ON CONFLICT DO NOTHING)`
}

// PromotionCreate inserts a DRAFT or completes a registered promotion. It marks
// the stream as destroyed, because a DRAFT has none.
func (s *Store) PromotionCreate(ctx context.Context, p reward.Promotion) (reward.Promotion, error) {
	if err := store.CheckPromotion(p); err != nil {
		return reward.Promotion{}, err
	}
	var made bool
	var stands store.PromotionView
	err := s.send(ctx, "create a promotion", func(b *pgx.Batch) {
		made = false
		b.Queue(`WITH made AS (INSERT INTO promotions AS m (id, name, type, status, amount, voucher_code, currency, max_retries,
  consumers_per_instance, rate_per_second, weight, max_amount, canary_targets, canary_max_failure_rate, starts_at, webhook_url,
  created_by, registered, stream_gone, created_at, metadata, search, revision)
VALUES ($1, $2, $3, 'DRAFT', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, false, true, $17, $18, $19, $20)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount, voucher_code = excluded.voucher_code,
  currency = excluded.currency, max_retries = excluded.max_retries,
  consumers_per_instance = excluded.consumers_per_instance, rate_per_second = excluded.rate_per_second,
  weight = excluded.weight, max_amount = excluded.max_amount, canary_targets = excluded.canary_targets,
  canary_max_failure_rate = excluded.canary_max_failure_rate, starts_at = excluded.starts_at,
  webhook_url = excluded.webhook_url, created_by = excluded.created_by, registered = false, revision = m.revision + 1, day_granted = NULL,
  `+rows.Unapproved+`, `+rows.Unrejected+`,
  metadata = excluded.metadata, search = excluded.search, version = m.version + 1
WHERE m.registered AND m.status = 'DRAFT' AND m.type = excluded.type RETURNING m.id), `+authoredSQL("made", "$16")+`
SELECT id FROM made`,
			int64(p.ID), p.Name, string(p.Type), int64(p.Amount), p.VoucherCode, p.Currency, p.MaxRetries,
			p.ConsumersPerInstance, p.RatePerSecond, max(p.Weight, 1), int64(p.MaxAmount), p.Canary.Targets,
			p.Canary.MaxFailureRate, maybe(instant(p.StartsAt)), p.WebhookURL, p.CreatedBy, instant(p.CreatedAt),
			string(p.Metadata), reward.SearchText(&p), store.FirstRevision(p.CreatedAt),
		).Query(each(func(rows pgx.Rows) error {
			made = true
			return nil
		}))
		b.Queue(addTotals, []int64{int64(p.ID)})
		b.Queue(rows.PromotionSQL, int64(p.ID)).Query(each(func(found pgx.Rows) error { return rows.ScanDetails(found.Scan, &stands) }))
	})
	switch {
	case err != nil:
		return reward.Promotion{}, err
	case made:
		return stands.Promotion, nil
	case stands.Type != p.Type:
		return reward.Promotion{}, reward.NewError(reward.KindConflict, reward.CodeTypeMismatch,
			"promotion %d exists with type %s", p.ID, stands.Type)
	}
	return reward.Promotion{}, reward.NewError(reward.KindConflict, reward.CodeExists, "promotion %d exists", p.ID)
}

// mayBegin says that a record may start promotion m under an approval.above of $6, at $5.
var mayBegin = `(m.status = 'DRAFT' AND m.rejected_by = '' AND NOT ` + startsEarly("$6", "$5") + `)`

// PromotionRegister makes sure that the promotions named by Kafka exist.
func (s *Store) PromotionRegister(ctx context.Context, rs []store.Registration, approvalAbove reward.Limits, now time.Time) ([]reward.Promotion, error) {
	merged := store.MergeRegistrations(rs)
	if len(merged) == 0 {
		return nil, nil
	}
	ids := make([]int64, len(merged))
	types := make([]string, len(merged))
	started := make([]bool, len(merged))
	expected := make([]*int64, len(merged))
	for i, r := range merged {
		ids[i], types[i], started[i], expected[i] = int64(r.ID), string(r.Type), r.Started, r.ExpectedCount
	}
	var stand map[reward.PromotionID]reward.Promotion
	err := s.send(ctx, "register promotions", func(b *pgx.Batch) {
		stand = make(map[reward.PromotionID]reward.Promotion, len(merged))
		b.Queue(`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered,
  stream_gone, created_at, revision)
SELECT i.id, '', i.type, 'DRAFT', 0, '', '', $3::int, true, true, $4::timestamptz, $5::int8
FROM unnest($1::int8[], $2::text[]) WITH ORDINALITY AS i(id, type, ord)
WHERE NOT EXISTS (SELECT 1 FROM promotions m WHERE m.id = i.id)
ORDER BY i.id, i.ord ON CONFLICT DO NOTHING`, ids, types, reward.MaxRetries, instant(now), store.FirstRevision(now))
		b.Queue(addTotals, ids)
		// Lock in the order of IDs first. A repeat has nothing to lock.
		b.Queue(`WITH known AS MATERIALIZED (
  SELECT m.id, i.expected, `+mayBegin+` AS begins
  FROM unnest($1::int8[], $2::text[], $3::bool[], $4::int8[]) AS i(id, type, started, expected)
  JOIN promotions m ON m.id = i.id JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0
  WHERE m.type = i.type AND i.started AND (`+mayBegin+` OR (m.expected_count IS NULL AND i.expected IS NOT NULL))
  ORDER BY m.id FOR NO KEY UPDATE OF m)
UPDATE promotions m SET
  status = CASE WHEN k.begins THEN 'RUNNING' ELSE m.status END,
  started_at = CASE WHEN k.begins THEN $5::timestamptz ELSE m.started_at END,
  stream_gone = m.stream_gone AND NOT k.begins,
  day_granted = coalesce(m.day_granted, CASE WHEN k.begins
    AND EXISTS (SELECT 1 FROM promotion_authors a WHERE a.promotion_id = m.id) THEN 0 END),
  expected_count = coalesce(m.expected_count, k.expected)
FROM known k WHERE m.id = k.id`, ids, types, started, expected, instant(now), rows.Limits(approvalAbove))
		b.Queue(`SELECT `+promotionColumns+` FROM unnest($1::int8[]) AS i(id) JOIN promotions m ON m.id = i.id`, ids).
			Query(each(func(found pgx.Rows) error {
				var p reward.Promotion
				err := rows.ScanPromotion(found.Scan, &p)
				stand[p.ID] = p
				return err
			}))
	})
	if err != nil {
		return nil, err
	}
	result := make([]reward.Promotion, len(rs))
	for i, r := range rs {
		p, ok := stand[r.ID]
		if !ok {
			return nil, store.NoPromotion(r.ID) // deleted meanwhile
		}
		result[i] = p
	}
	return result, nil
}

// PromotionMove changes the status of a promotion.
func (s *Store) PromotionMove(ctx context.Context, p store.PromotionMoveParams) (reward.Promotion, error) {
	from := make([]string, len(p.From))
	for i, f := range p.From {
		from[i] = string(f)
	}
	by, reason := "", ""
	if p.To == reward.Paused {
		by, reason = p.By, reward.SanitizeText(p.Reason)
	}
	return s.change(ctx, "change the status of a promotion", p.ID, moveSQL,
		int64(p.ID), from, string(p.To), reason, instant(p.Now), p.Event, rows.Limits(p.ApprovalAbove), by, rows.Limits(p.ApprovalPerDay))
}

// moveSQL changes the status of a promotion, by rules.Move and rules.MayRun. It needs no
// lock of the counts: an approval, a rejection and a change that voids an approval write the
// row of the promotion, and this statement then sees it.
var moveSQL = `WITH moved AS (
  UPDATE promotions m SET
    status = $3::text, paused_by = $8, pause_reason = $4,
    started_at = CASE WHEN m.status = 'DRAFT' AND $3::text = 'RUNNING' THEN $5::timestamptz ELSE m.started_at END,
    finished_at = CASE WHEN $3::text = 'COMPLETED' THEN $5::timestamptz END,
    stream_gone = m.stream_gone AND $3::text <> 'RUNNING',
    day_granted = coalesce(m.day_granted, CASE WHEN $3::text = 'RUNNING' THEN CASE WHEN ` + limit(`$9`) + ` > 0 THEN 0 ELSE 9223372036854775807 END END)
  FROM summaries s
  WHERE m.id = $1 AND m.status = ANY($2::text[]) AND s.promotion_id = $1 AND s.summary_id = 0
    AND ($3::text <> 'RUNNING' OR ` + limit(`$7`) + ` <= 0 OR m.rejected_by = ''
      AND NOT ` + startsEarly("$7", "$5") + `
      AND (NOT (` + approvalNeeded(worth, "$7") + `)
      OR m.approved_rounds > 0 AND (s.queued > 0 OR s.ready + s.retrying > ` + count + ` - m.approved_count)))
  RETURNING m.id, m.webhook_url
), ` + eventSQL("moved", "$6", "$5") + `
SELECT id FROM moved`

// PromotionClose records that no more targets will come.
func (s *Store) PromotionClose(ctx context.Context, id reward.PromotionID) (reward.Promotion, error) {
	return s.change(ctx, "close a promotion", id, `UPDATE promotions m SET closed = true WHERE m.id = $1 RETURNING m.id`, int64(id))
}

// change runs an UPDATE of one promotion, which returns its ID. If it finds no
// row, the error says whether the promotion is missing or its status does not
// allow the change.
func (s *Store) change(ctx context.Context, what string, id reward.PromotionID, sql string, args ...any) (reward.Promotion, error) {
	var changed, exists bool
	var p reward.Promotion
	err := s.send(ctx, what, func(b *pgx.Batch) {
		changed, exists = false, false
		b.Queue(sql, args...).Query(each(func(pgx.Rows) error {
			changed = true
			return nil
		}))
		b.Queue(`SELECT `+promotionColumns+` FROM promotions m WHERE m.id = $1`, int64(id)).Query(each(func(found pgx.Rows) error {
			exists = true
			return rows.ScanPromotion(found.Scan, &p)
		}))
	})
	switch {
	case err != nil:
		return reward.Promotion{}, err
	case changed:
		return p, nil
	case !exists:
		return reward.Promotion{}, store.NoPromotion(id)
	}
	return reward.Promotion{}, rules.NotAllowed(p)
}

// completeSQL ends a promotion, by rules.Complete. The caller holds the lock of
// its summary row.
var completeSQL = named(`WITH ended AS (
  UPDATE promotions m SET
    status = CASE m.status WHEN 'RUNNING' THEN 'COMPLETED' ELSE m.status END, finished_at = $2::timestamptz
  FROM summaries s
  WHERE m.id = $1 AND s.promotion_id = $1 AND s.summary_id = 0 AND s.ready + s.queued + s.retrying = 0
    AND ((m.status = 'RUNNING'
        AND (m.expected_count IS NULL OR m.closed
          OR s.unknown + s.succeeded + s.failed + s.cancelled >= m.expected_count)
        AND NOT EXISTS (SELECT 1 FROM uploads u
          WHERE u.promotion_id = $1 AND u.finished_at IS NULL AND u.leased_until > $2::timestamptz))
      OR (m.status = 'CANCELLED' AND m.finished_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM payouts p
          WHERE p.promotion_id = $1 AND p.state = :UNKNOWN AND p.state < :SUCCEEDED
            AND (p.looked_at IS NULL OR p.looked_at < p.settle_from + $3::interval))))
  RETURNING m.id, m.webhook_url
), ` + eventSQL("ended", "'"+store.EventFinished+"'", "$2") + `
SELECT id FROM ended`)

// PromotionComplete ends a promotion that has nothing left to do. It locks the
// counts before it reads them.
func (s *Store) PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration, now time.Time) (bool, error) {
	var exists, moved bool
	err := s.send(ctx, "complete a promotion", func(b *pgx.Batch) {
		exists, moved = false, false
		b.Queue(lockTotals, []int64{int64(id)}).Query(each(func(pgx.Rows) error {
			exists = true
			return nil
		}))
		b.Queue(completeSQL, int64(id), instant(now), settleAfter).Query(each(func(pgx.Rows) error {
			moved = true
			return nil
		}))
	})
	if err != nil {
		return false, err
	}
	if !exists {
		return false, store.NoPromotion(id)
	}
	return moved, nil
}

// judgeSQL ends the canary of a promotion, by rules.Judge. The caller holds the
// lock of its summary row.
var judgeSQL = `WITH decided AS MATERIALIZED (
  SELECT m.id, s.failed::float8 / nullif(s.succeeded + s.failed, 0) <= m.canary_max_failure_rate AS good
  FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0
  WHERE m.id = $1 AND m.canary_targets > 0 AND m.canary_dispatched > 0
    AND s.queued + s.retrying + s.unknown = 0 AND s.succeeded + s.failed >= m.canary_dispatched
    AND m.canary_dispatched >= m.canary_targets
), judged AS (
  UPDATE promotions m SET canary_judged = true, status = CASE WHEN d.good THEN m.status ELSE 'PAUSED' END,
    pause_reason = CASE WHEN d.good THEN m.pause_reason ELSE $2 END
  FROM decided d WHERE m.id = d.id AND m.status = 'RUNNING' AND NOT m.canary_judged
  RETURNING m.id, CASE WHEN d.good THEN '' ELSE m.webhook_url END AS webhook_url
), ` + eventSQL("judged", "$3", "$4") + `
SELECT id FROM judged`

// PromotionJudge ends the canary of a promotion. It locks the counts before it
// reads them.
func (s *Store) PromotionJudge(ctx context.Context, p store.PromotionJudgeParams) (reward.PromotionStatus, bool, error) {
	var status reward.PromotionStatus
	var judged bool
	err := s.send(ctx, "judge a canary", func(b *pgx.Batch) {
		status, judged = "", false
		b.Queue(lockTotals, []int64{int64(p.ID)})
		b.Queue(judgeSQL, int64(p.ID), reward.SanitizeText(p.Reason), p.Event, instant(p.Now)).Query(each(func(pgx.Rows) error {
			judged = true
			return nil
		}))
		b.Queue(`SELECT status FROM promotions WHERE id = $1`, int64(p.ID)).Query(each(func(rows pgx.Rows) error {
			return rows.Scan(&status)
		}))
	})
	switch {
	case err != nil:
		return "", false, err
	case status == "":
		return "", false, store.NoPromotion(p.ID)
	}
	return status, judged, nil
}

// PromotionDelete removes a DRAFT and all its rows. It locks the summary row
// first, so that no other transaction saves payouts meanwhile.
func (s *Store) PromotionDelete(ctx context.Context, id reward.PromotionID) error {
	var status reward.PromotionStatus
	var deleted bool
	err := s.sendLong(ctx, "delete a promotion", func(b *pgx.Batch) {
		status, deleted = "", false
		b.Queue(lockTotals, []int64{int64(id)})
		b.Queue(`SELECT status FROM promotions WHERE id = $1 FOR UPDATE`, int64(id)).Query(each(func(rows pgx.Rows) error {
			return rows.Scan(&status)
		}))
		const draft = ` AND EXISTS (SELECT 1 FROM promotions m WHERE m.id = $1 AND m.status = 'DRAFT')`
		b.Queue(`DELETE FROM attempts WHERE promotion_id = $1`+draft, int64(id))
		b.Queue(`DELETE FROM payouts WHERE promotion_id = $1`+draft, int64(id))
		b.Queue(`DELETE FROM promotions m WHERE m.id = $1 AND m.status = 'DRAFT' RETURNING m.id`, int64(id)).
			Query(each(func(pgx.Rows) error {
				deleted = true
				return nil
			}))
	})
	switch {
	case err != nil:
		return err
	case deleted:
		return nil
	case status == "":
		return store.NoPromotion(id)
	}
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState, "promotion %d is %s; only a DRAFT can be deleted", id, status)
}
