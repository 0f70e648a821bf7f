package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/store"
)

// told returns the CTE that notes an event for the webhooks of promotions.
// source names a CTE with their id and webhook_url; one without an address is not
// told, and nobody is told the event ”.
func told(source, event, at string) string {
	return `told AS (
  INSERT INTO webhooks (promotion_id, event, url, at, due_at)
  SELECT id, ` + event + `::text, webhook_url, ` + at + `::timestamptz, ` + at + `::timestamptz FROM ` + source + `
  WHERE webhook_url <> '' AND ` + event + `::text <> '' ORDER BY id
)`
}

// WebhookTake takes deliveries that are due.
func (s *Store) WebhookTake(ctx context.Context, limit int, until, now time.Time) ([]store.WebhookDelivery, error) {
	var list []store.WebhookDelivery
	err := s.send(ctx, "take webhooks", func(b *pgx.Batch) {
		list = nil
		b.Queue(`WITH due AS MATERIALIZED (
  SELECT w.id FROM webhooks w WHERE w.done_at IS NULL AND w.due_at <= $1
  ORDER BY w.at, w.id LIMIT $2 FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE webhooks w SET due_at = $3 FROM due d WHERE w.id = d.id
RETURNING w.id, w.promotion_id, w.event, w.url, w.tries, w.at`, instant(now), max(limit, 0), instant(until)).
			Query(each(func(rows pgx.Rows) error {
				var d store.WebhookDelivery
				err := rows.Scan(&d.ID, &d.PromotionID, &d.Event, &d.URL, &d.Tries, &d.At)
				d.At = d.At.UTC()
				list = append(list, d)
				return err
			}))
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b store.WebhookDelivery) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return list, nil
}

// WebhookDone ends a delivery.
func (s *Store) WebhookDone(ctx context.Context, id int64, status int, detail string, now time.Time) error {
	return s.send(ctx, "end a webhook", func(b *pgx.Batch) {
		b.Queue(`UPDATE webhooks SET done_at = $2, status = $3, detail = $4 WHERE id = $1 AND done_at IS NULL`,
			id, instant(now), status, store.Text(detail))
	})
}

// WebhookLater notes a try that failed.
func (s *Store) WebhookLater(ctx context.Context, id int64, status int, detail string, nextAt time.Time) error {
	return s.send(ctx, "put a webhook off", func(b *pgx.Batch) {
		b.Queue(`UPDATE webhooks SET tries = tries + 1, due_at = $2, status = $3, detail = $4 WHERE id = $1 AND done_at IS NULL`,
			id, instant(nextAt), status, store.Text(detail))
	})
}
