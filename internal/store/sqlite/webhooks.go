package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// tell notes an event for the webhook of a promotion, if it has one.
func (t *tx) tell(p *reward.Promotion, event string, now time.Time) error {
	if event == "" || p.WebhookURL == "" {
		return nil
	}
	_, err := t.exec(`INSERT INTO webhooks (promotion_id, event, url, at, due_at) VALUES (?1, ?2, ?3, ?4, ?4)`,
		int64(p.ID), event, p.WebhookURL, micros(now))
	return err
}

// takeWebhooks finds deliveries that are due, the oldest first.
const takeWebhooks = `SELECT id FROM webhooks WHERE done_at IS NULL AND due_at <= ?2 ORDER BY at, id LIMIT ?3`

// WebhookTake takes deliveries that are due.
func (s *Store) WebhookTake(ctx context.Context, limit int, until, now time.Time) ([]store.WebhookDelivery, error) {
	var list []store.WebhookDelivery
	err := s.write(ctx, "take webhooks", func(tx *tx) (err error) {
		list, err = collect(tx.ctx, tx, func(rows *sql.Rows) (store.WebhookDelivery, error) {
			var d store.WebhookDelivery
			var at int64
			err := rows.Scan(&d.ID, &d.PromotionID, &d.Event, &d.URL, &d.Tries, &at)
			d.At = timeOf(at)
			return d, err
		}, `UPDATE webhooks SET due_at = ?1 WHERE id IN (`+takeWebhooks+`)
RETURNING id, promotion_id, event, url, tries, at`, micros(until), micros(now), max(limit, 0))
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b store.WebhookDelivery) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return list, nil
}

// WebhookDone ends a delivery.
func (s *Store) WebhookDone(ctx context.Context, id int64, status int, detail string, now time.Time) error {
	return s.write(ctx, "end a webhook", func(tx *tx) error {
		_, err := tx.exec(`UPDATE webhooks SET done_at = ?, status = ?, detail = ? WHERE id = ? AND done_at IS NULL`,
			micros(now), status, store.Text(detail), id)
		return err
	})
}

// WebhookLater notes a try that failed.
func (s *Store) WebhookLater(ctx context.Context, id int64, status int, detail string, nextAt time.Time) error {
	return s.write(ctx, "put a webhook off", func(tx *tx) error {
		_, err := tx.exec(`UPDATE webhooks SET tries = tries + 1, due_at = ?, status = ?, detail = ?
WHERE id = ? AND done_at IS NULL`, micros(nextAt), status, store.Text(detail), id)
		return err
	})
}
