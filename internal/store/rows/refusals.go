package rows

import (
	"cmp"
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	// latestRefusal reads whether template $1 is archived, and of its refusal intervals the
	// number of the latest, the reason of the one that lasts, and the latest time.
	latestRefusal = `SELECT t.archived_at IS NOT NULL, coalesce(r.number, 0), CASE WHEN r.until IS NULL THEN coalesce(r.reason, '') ELSE '' END, coalesce(r.until, r.since)
FROM coupon_templates t LEFT JOIN (
  SELECT r.number, r.reason, r.since, r.until FROM coupon_refusals r WHERE r.template_id = $1 ORDER BY r.number DESC LIMIT 1
) r ON true WHERE t.id = $1`

	endRefusal = `UPDATE coupon_refusals SET until = $3 WHERE template_id = $1 AND number = $2 AND until IS NULL
  AND EXISTS (SELECT 1 FROM coupon_templates t WHERE t.id = $1 AND t.archived_at IS NULL)`

	// beginRefusal begins an interval at $3, if interval $2 is still the latest and ends by then.
	beginRefusal = `INSERT INTO coupon_refusals (template_id, number, since, reason) SELECT t.id, $2 + 1, $3, $4 FROM coupon_templates t
WHERE t.id = $1 AND t.archived_at IS NULL AND NOT EXISTS (
  SELECT 1 FROM coupon_refusals r WHERE r.template_id = $1 AND r.number >= $2 AND (r.number > $2 OR r.until > $3)) RETURNING number`
)

// RefusalRecord records that a template refuses every request from at on, for reason
// (CodeSoldOut or CodeClosed). An empty reason ends that interval. A repeat changes nothing.
// An at before the latest recorded time counts as that time.
func (t *Tables) RefusalRecord(ctx context.Context, id reward.TemplateID, reason string, from time.Time) error {
	reason, from = reward.SanitizeText(reason), instant(from)
	const what = "record a refusal"
	return whileStale(what, func() error {
		var known, archived bool
		var number int64
		var lasts string
		var latest time.Time
		err := t.db.Read(ctx, what, func() Statement {
			return Statement{SQL: latestRefusal, Args: []any{int64(id)}, Row: func(scan Scan) error {
				known = true
				return scan(&archived, &number, &lasts, (*at)(&latest))
			}}
		})
		if err == nil && !known {
			err = store.NoTemplate(id)
		}
		since, ends, begins := rules.ChangeRefusal(lasts, latest, reason, from)
		if err = cmp.Or(err, rules.CheckTemplateArchived(id, archived)); err != nil || !ends && !begins {
			return err
		}
		_, err = t.inTemplate(ctx, what, id, func() (statements []Statement) {
			if ends { // unless another transaction has ended it
				statements = append(statements, Statement{SQL: endRefusal, Args: []any{int64(id), number, since}})
			}
			if begins {
				statements = append(statements, Statement{SQL: beginRefusal, Args: []any{int64(id), number, since, reason}, Must: true})
			}
			return statements
		})
		return err
	})
}

const listRefusals = `SELECT reason, since, until FROM coupon_refusals WHERE template_id = $1 ORDER BY number DESC LIMIT $2`

// RefusalList returns the refusal intervals of a template, the latest first.
func (t *Tables) RefusalList(ctx context.Context, id reward.TemplateID, limit int) ([]store.Refusal, error) {
	return list(ctx, t.db.Read, "list refusals", func(scan Scan, r *store.Refusal) error {
		return scan(&r.Reason, (*at)(&r.Since), (*at)(&r.Until))
	}, listRefusals, int64(id), max(limit, 0))
}
