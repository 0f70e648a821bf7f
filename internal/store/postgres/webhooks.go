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

// couponEventsSQL returns the CTE that records which coupons issueSQL has issued.
func couponEventsSQL() string {
	event := strconv.Itoa(store.WebhookCouponIssued)
	return `told AS (
  INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, coupon_id)
  SELECT e.id, ` + event + `, now.at, now.at, d.id
  FROM (SELECT clock_timestamp() AS at) now, webhook_endpoints e, decided d
  WHERE ` + asks("e", event) + ` AND d.verdict = '' AND d.hold_seconds = 0 ORDER BY e.id, d.ord
)`
}
