package postgres

import (
	"fmt"
	"strconv"

	"github.com/largesse/largesse/internal/store"
)

// asks is the condition that an endpoint asks for an event.
func asks(endpoint, event string) string {
	return fmt.Sprintf("%[1]s.enabled AND %[1]s.events >> %[2]s & 1 = 1", endpoint, event)
}

// payoutEventsSQL returns the CTE that records which payouts became FAILED or UNKNOWN.
// moved is the source of tally, with target_id. Without an endpoint that asks for it, moved
// is not read.
func payoutEventsSQL() string {
	event := fmt.Sprintf("(CASE v.became WHEN :FAILED THEN %d ELSE %d END)", store.WebhookPayoutFailed, store.WebhookPayoutUnknown)
	return `told AS (
  INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, promotion_id, target_id)
  SELECT e.id, ` + event + `, now.at, now.at, v.promotion_id, v.target_id
  FROM (SELECT clock_timestamp() AS at) now, webhook_endpoints e, moved v
  WHERE v.became IN (:FAILED, :UNKNOWN) AND ` + asks("e", event) + ` ORDER BY e.id, v.promotion_id, v.target_id
)`
}

// tellIssued records for endpoints which coupons the latest version of template $1 has issued.
// Without an endpoint that asks for it, no coupon is read.
var tellIssued = `INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, coupon_id)
SELECT e.id, ` + strconv.Itoa(store.WebhookCouponIssued) + `, now.at, now.at, c.id
FROM (SELECT clock_timestamp() AS at) now, webhook_endpoints e, coupon_templates t JOIN coupons c ON c.template_id = t.id AND c.version = t.version
WHERE t.id = $1 AND c.status = 0 AND ` + asks("e", strconv.Itoa(store.WebhookCouponIssued)) + ` ORDER BY e.id, c.ticket`
