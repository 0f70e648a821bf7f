package postgres

// eventSQL returns the CTE that records an event for the webhooks of
// promotions. source names a CTE with their id and webhook_url. It records
// nothing for a promotion without a webhook, or for the empty event.
func eventSQL(source, event, at string) string {
	return `told AS (
  INSERT INTO webhooks (promotion_id, event, url, at, due_at)
  SELECT id, ` + event + `::text, webhook_url, ` + at + `::timestamptz, ` + at + `::timestamptz FROM ` + source + `
  WHERE webhook_url <> '' AND ` + event + `::text <> '' ORDER BY id
)`
}
