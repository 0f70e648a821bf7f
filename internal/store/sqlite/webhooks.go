package sqlite

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// recordEvent records an event for the webhook of a promotion. It does nothing
// if the promotion has no webhook or the event is empty.
func (t *tx) recordEvent(p *reward.Promotion, event string, now time.Time) error {
	if event == "" || p.WebhookURL == "" {
		return nil
	}
	err := t.exec(`INSERT INTO webhooks (promotion_id, event, url, at, due_at) VALUES (?1, ?2, ?3, ?4, ?4)`,
		int64(p.ID), event, p.WebhookURL, micros(now))
	return err
}
