package rows

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// These statements look at the oldest rows only, by an index in the order of their IDs, so
// their cost and the locks they hold are bounded by $2 whatever the size of the table.
const (
	forgetAudit   = `DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id > 0 ORDER BY id LIMIT $2) AND at < $1 RETURNING id`
	forgetLetters = `DELETE FROM dead_letters WHERE id IN (SELECT id FROM dead_letters WHERE status = $3 ORDER BY id LIMIT $2) AND settled_at < $1 RETURNING id`
)

// AuditForget looks at the limit oldest lines of the audit, removes those that began
// before a time, and returns how many.
func (t *Tables) AuditForget(ctx context.Context, before time.Time, limit int) (int, error) {
	return t.changeOld(ctx, "forget audit lines", forgetAudit, before, limit)
}

// DeadLetterForget looks at the limit oldest dead letters with a status, removes those
// that were closed before a time, and returns how many. OPEN is CodeInvalid.
func (t *Tables) DeadLetterForget(ctx context.Context, status reward.DeadLetterStatus, before time.Time, limit int) (int, error) {
	if status == reward.DeadLetterOpen {
		return 0, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "a dead letter that is open cannot be forgotten")
	}
	return t.changeOld(ctx, "forget dead letters", forgetLetters, before, limit, string(status))
}

// changeOld runs a statement that changes or removes at most $2 rows from before $1, and
// returns their IDs. It returns their number.
func (t *Tables) changeOld(ctx context.Context, what, sql string, before time.Time, limit int, more ...any) (int, error) {
	changed, err := list(ctx, t.write, what, scanOne[int64], sql, append([]any{before, max(limit, 0)}, more...)...)
	return len(changed), err
}

// The statements that archive promotions and remove their payouts.
const (
	// endedAfter lists promotions that ended before $1, after the position $2, $3.
	endedAfter = `SELECT id, finished_at, archived_at IS NOT NULL FROM promotions
WHERE finished_at IS NOT NULL AND NOT rows_removed AND finished_at < $1 AND (finished_at, id) > ($2, $3)
ORDER BY finished_at, id LIMIT $4`

	// beginArchive locks the counts, as every transaction that adds payouts does first.
	// The statements after it see what was committed before the lock.
	beginArchive = `UPDATE summaries SET archived = true WHERE promotion_id = $1 AND summary_id = 0 AND NOT archived
  AND ready + queued + retrying + unknown = 0
  AND EXISTS (SELECT 1 FROM promotions m WHERE m.id = $1 AND m.archived_at IS NULL AND m.finished_at < $2 AND m.stream_gone)`
	archive = `UPDATE promotions SET archived_at = $3
WHERE id = $1 AND archived_at IS NULL AND status IN ('COMPLETED', 'CANCELLED') AND finished_at < $2 AND stream_gone
  AND EXISTS (SELECT 1 FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0 AND s.archived)
  AND NOT EXISTS (SELECT 1 FROM uploads u WHERE u.promotion_id = $1 AND u.finished_at IS NULL AND u.leased_until > $3)
RETURNING id`
	undoArchive = `UPDATE summaries SET archived = false WHERE promotion_id = $1 AND summary_id = 0 AND archived
  AND EXISTS (SELECT 1 FROM promotions m WHERE m.id = $1 AND m.archived_at IS NULL)`

	// pageOfPayouts reads the targets of a page. The statements after it name their
	// range, so that they touch no more rows, whatever the size of the promotion.
	pageOfPayouts = `SELECT target_id FROM payouts WHERE promotion_id = $1 AND target_id > $2 ORDER BY target_id LIMIT $3`
	isArchived    = ` AND EXISTS (SELECT 1 FROM promotions m WHERE m.id = $1 AND m.archived_at IS NOT NULL)`
	forgetPayouts = `DELETE FROM payouts WHERE promotion_id = $1 AND target_id > $2 AND target_id <= $3
  AND state > 3 AND NOT again AND updated_at < $4` + isArchived + ` RETURNING target_id`
	// forgetAttempts removes the attempts of the payouts that this transaction removed.
	forgetAttempts = `DELETE FROM attempts WHERE promotion_id = $1 AND target_id > $2 AND target_id <= $3
  AND NOT EXISTS (SELECT 1 FROM payouts p WHERE p.promotion_id = attempts.promotion_id AND p.target_id = attempts.target_id)` + isArchived
	// forgetLines removes lines that uploads refused: they may name people.
	forgetLines = `DELETE FROM upload_errors WHERE (upload_id, line) IN (
  SELECT e.upload_id, e.line FROM uploads u JOIN upload_errors e ON e.upload_id = u.id WHERE u.promotion_id = $1 LIMIT $2)` + isArchived + ` RETURNING line`
	nothingLeft = `UPDATE promotions SET rows_removed = true WHERE id = $1 AND archived_at IS NOT NULL AND NOT rows_removed
  AND NOT EXISTS (SELECT 1 FROM payouts p WHERE p.promotion_id = $1)`
)

// PromotionEnded returns at most limit promotions that ended before a time and may
// have payouts left, ordered by FinishedAt, then ID. It begins after a promotion of
// an earlier page; the zero value begins at the first one.
func (t *Tables) PromotionEnded(ctx context.Context, before time.Time, after store.EndedPromotion, limit int) ([]store.EndedPromotion, error) {
	from := after.FinishedAt
	if from.IsZero() {
		from = time.Unix(0, 0)
	}
	return list(ctx, t.db.Read, "list ended promotions", func(scan Scan, p *store.EndedPromotion) error {
		return scan((*int64)(&p.ID), (*at)(&p.FinishedAt), &p.Archived)
	}, endedAfter, before, from, int64(after.ID), max(limit, 0))
}

// PromotionArchive archives a promotion that ended before a time, and reports whether
// it did. It decides under the lock of the counts. No payout may be READY, QUEUED,
// RETRYING or UNKNOWN, no upload may be open at now, and the stream must be
// destroyed.
//
// An archived promotion stays archived. PayoutSave inserts no row for it and
// PayoutRetry none retries, and the database refuses a count of open payouts. Its
// counts stay, and SummaryCompare compares them with nothing.
func (t *Tables) PromotionArchive(ctx context.Context, id reward.PromotionID, before, now time.Time) (bool, error) {
	var archived bool
	err := t.db.Write(ctx, "archive a promotion", func() []Statement {
		archived = false
		return []Statement{
			{SQL: beginArchive, Args: []any{int64(id), before}},
			{SQL: archive, Args: []any{int64(id), before, now}, Row: seen(&archived)},
			{SQL: undoArchive, Args: []any{int64(id)}},
		}
	})
	return archived && err == nil, err
}

// PayoutForget removes payouts of an archived promotion, with their attempts, and then the
// lines that its uploads refused. It looks at one page of them.
func (t *Tables) PayoutForget(ctx context.Context, p store.PayoutForgetParams) (store.PayoutForgotten, error) {
	id, after, limit := int64(p.PromotionID), int64(-1), max(p.Limit, 1)
	if p.After != nil {
		after = int64(*p.After)
	}
	page, err := list(ctx, t.db.Read, "read a page of old payouts", scanOne[int64], pageOfPayouts, id, after, limit)
	if err != nil {
		return store.PayoutForgotten{}, err
	}
	removed := 0
	if len(page) == 0 {
		err := t.db.Write(ctx, "remove refused lines", func() []Statement {
			removed = 0
			return []Statement{{SQL: forgetLines, Args: []any{id, limit}, Row: counted(&removed)}}
		})
		if err != nil || removed == limit {
			return store.PayoutForgotten{Removed: removed, Last: new(reward.TargetID(after))}, err
		}
		return store.PayoutForgotten{Removed: removed}, t.exec(ctx, "end the removal of payouts", nothingLeft, id)
	}
	last := reward.TargetID(page[len(page)-1])
	err = t.db.Write(ctx, "remove old payouts", func() []Statement {
		removed = 0
		return []Statement{
			{SQL: forgetPayouts, Args: []any{id, after, int64(last), p.Before}, Row: counted(&removed)},
			{SQL: forgetAttempts, Args: []any{id, after, int64(last)}},
		}
	})
	return store.PayoutForgotten{Removed: removed, Last: &last}, err
}
