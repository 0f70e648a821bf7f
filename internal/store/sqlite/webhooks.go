package sqlite

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// recordEvent records an event for the webhook of a promotion, if it has one, and a
// breach or a needed approval for endpoints, which alone hear of the latter. It does nothing if the event is empty. Triggers record the other
// events of endpoints.
func (t *tx) recordEvent(p *reward.Promotion, event string, now time.Time) error {
	if number := map[string]int{store.EventBreach: store.WebhookBreach, store.EventApproval: store.WebhookApprovalNeeded}[event]; number > 0 {
		at, err := t.now()
		if err != nil {
			return err
		}
		if err := t.exec(`INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, promotion_id)
SELECT id, ?1, ?3, ?3, ?2 FROM webhook_endpoints WHERE enabled AND events >> ?1 & 1 = 1 ORDER BY id`,
			number, int64(p.ID), micros(at)); err != nil {
			return err
		}
	}
	if event == "" || event == store.EventApproval || p.WebhookURL == "" {
		return nil
	}
	return t.exec(`INSERT INTO webhooks (promotion_id, event, url, at, due_at) VALUES (?1, ?2, ?3, ?4, ?4)`,
		int64(p.ID), event, p.WebhookURL, micros(now))
}
