package rows

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const claimWebhooks = `WITH due AS MATERIALIZED (
  SELECT id AS delivery FROM webhooks WHERE done_at IS NULL AND due_at <= $1 ORDER BY at, id LIMIT $2 :skip_locked
)
UPDATE webhooks SET due_at = $3 WHERE id IN (SELECT delivery FROM due) RETURNING id, promotion_id, event, url, tries, at`

// WebhookClaim returns at most limit open deliveries that are due at now,
// ordered by At, then ID. No other caller can claim them before until. A new
// delivery is due at once.
func (t *Tables) WebhookClaim(ctx context.Context, limit int, until, now time.Time) ([]store.WebhookDelivery, error) {
	taken, err := list(ctx, t.write, "claim webhook deliveries", func(scan Scan, d *store.WebhookDelivery) error {
		return scan(&d.ID, &d.PromotionID, &d.Event, &d.URL, &d.FailedAttempts, (*at)(&d.At))
	}, claimWebhooks, now, max(limit, 0), until)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(taken, func(a, b store.WebhookDelivery) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return taken, nil
}

// WebhookDone ends a delivery that succeeded or was abandoned. Status is the
// HTTP status; 0 means no response. An unknown or ended delivery stays as it
// is.
func (t *Tables) WebhookDone(ctx context.Context, id int64, status int, detail string, now time.Time) error {
	return t.exec(ctx, "end a webhook delivery", `UPDATE webhooks SET done_at = $2, status = $3, detail = $4 WHERE id = $1 AND done_at IS NULL`,
		id, now, status, reward.SanitizeText(detail))
}

// WebhookReschedule counts a failed attempt. The delivery is due again at
// nextAt. An unknown or ended delivery stays as it is.
func (t *Tables) WebhookReschedule(ctx context.Context, id int64, status int, detail string, nextAt time.Time) error {
	return t.exec(ctx, "reschedule a webhook delivery", `UPDATE webhooks SET tries = tries + 1, due_at = $2, status = $3, detail = $4
WHERE id = $1 AND done_at IS NULL`, id, nextAt, status, reward.SanitizeText(detail))
}
