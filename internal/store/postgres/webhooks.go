package postgres

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
