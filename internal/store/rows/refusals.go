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

	// capacity is how many live coupons a template t can reach, as CouponTemplate.LiveMax.
	capacity = `CASE WHEN t.codes_imported = 0 OR t.total_quantity < t.live + t.codes_imported - t.issued_total
  THEN t.total_quantity ELSE t.live + t.codes_imported - t.issued_total END`
	isSoldOutFirst = `t.id = $1 AND t.archived_at IS NULL AND t.sold_out_quantity < ` + capacity

	// soldOutEvent records event $2 of template $1 for each endpoint that asks for it, if none
	// has said yet that so many coupons are sold out. countSoldOut follows it.
	soldOutEvent = `INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, template_id)
SELECT e.id, CAST($2 AS integer), now.at, now.at, t.id FROM (SELECT :clock AS at) now, coupon_templates t, webhook_endpoints e
WHERE ` + isSoldOutFirst + ` AND e.enabled AND e.events >> CAST($2 AS integer) & 1 = 1 ORDER BY e.id`
	countSoldOut = `UPDATE coupon_templates AS t SET sold_out_quantity = ` + capacity + ` WHERE ` + isSoldOutFirst
)

// RefusalRecord records that a template refuses every request from at on, for reason
// (CodeSoldOut or CodeClosed). An empty reason ends that interval. A repeat changes nothing.
// The event that a template is sold out comes with the interval, but again only once the
// template could have more coupons: not each time that a cancelled coupon is issued again.
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
			if begins && reason == reward.CodeSoldOut {
				statements = append(statements, Statement{SQL: soldOutEvent, Args: []any{int64(id), store.WebhookSoldOut}}, Statement{SQL: countSoldOut, Args: []any{int64(id)}})
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
