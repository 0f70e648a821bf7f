package rows

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	endpointColumns = `e.id, e.kind, e.url, e.recipients, e.language, e.description, e.events, e.enabled, e.disabled_reason, e.disabled_at, e.secret,
CASE WHEN e.previous_until > :clock THEN e.previous_secret ELSE '' END, CASE WHEN e.previous_until > :clock THEN e.previous_until END,
e.failing_since, e.failures, e.last_error, e.delivered_at, e.overflowing, e.dropped, e.dropped_at, e.created_at, e.created_by`

	// endpointSQL reads endpoints with at most $1 of their pending deliveries counted.
	endpointSQL = `SELECT ` + endpointColumns + `, (SELECT count(*) FROM (SELECT 1 FROM webhook_deliveries d WHERE d.endpoint_id = e.id AND d.state = 0 LIMIT $1) n)
FROM webhook_endpoints e `

	dueEndpoints = `SELECT ` + endpointColumns + `, 0 FROM webhook_endpoints e WHERE e.enabled
AND EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.endpoint_id = e.id AND d.state = 0 AND d.due_at <= (SELECT :clock)) ORDER BY e.id`

	createEndpoint = `INSERT INTO webhook_endpoints (id, url, description, events, enabled, secret, created_at, created_by, kind, recipients, language)
SELECT $1, $2, $3, CAST($4 AS bigint), CAST($5 AS boolean), $6, $7, $8, $10, $11, $12
WHERE (SELECT count(*) FROM webhook_endpoints) < CAST($9 AS bigint) ON CONFLICT DO NOTHING RETURNING id`

	changeEndpoint = `UPDATE webhook_endpoints SET url = coalesce(CAST($2 AS text), url), description = coalesce(CAST($3 AS text), description),
  recipients = coalesce(CAST($11 AS text), recipients), language = coalesce(CAST($12 AS text), language), events = coalesce(CAST($4 AS bigint), events), enabled = coalesce(CAST($5 AS boolean), enabled),
  disabled_reason = CASE WHEN CAST($5 AS boolean) IS NULL OR CAST($5 AS boolean) = enabled THEN disabled_reason ELSE '' END,
  disabled_at = CASE WHEN CAST($5 AS boolean) IS NULL OR CAST($5 AS boolean) = enabled THEN disabled_at WHEN enabled THEN :clock END,
  failing_since = CASE WHEN CAST($5 AS boolean) AND NOT enabled THEN NULL ELSE failing_since END,
  failures = CASE WHEN CAST($5 AS boolean) AND NOT enabled THEN 0 ELSE failures END,
  last_error = CASE WHEN CAST($5 AS boolean) AND NOT enabled THEN '' ELSE last_error END,
  secret = CASE WHEN secret <> '' AND url <> CAST($2 AS text) THEN CAST($10 AS text) ELSE secret END,
  previous_secret = CASE WHEN url <> CAST($2 AS text) THEN '' ELSE previous_secret END,
  previous_until = CASE WHEN url <> CAST($2 AS text) THEN NULL ELSE previous_until END
WHERE id = $1 AND (CAST($6 AS text) IS NULL OR url = CAST($6 AS text) AND description = CAST($7 AS text) AND events = CAST($8 AS bigint)
  AND enabled = CAST($9 AS boolean) AND recipients = CAST($13 AS text) AND language = CAST($14 AS text)) RETURNING id`

	rotateEndpoint = `UPDATE webhook_endpoints SET previous_secret = secret, previous_until = :clock + CAST($3 AS interval), secret = $2 WHERE id = $1 AND secret <> ''`

	deliveryColumns = `id, endpoint_id, event, at, promotion_id, target_id, coupon_id, template_id, state, attempts, tries, due_at, done_at, body`
	deliverySQL     = `SELECT ` + deliveryColumns + ` FROM webhook_deliveries `

	claimDeliveries = `WITH due AS MATERIALIZED (
  SELECT id AS delivery FROM webhook_deliveries WHERE endpoint_id = $1 AND state = 0 AND due_at <= (SELECT :clock)
  ORDER BY due_at, id LIMIT $2 :skip_locked
)
UPDATE webhook_deliveries SET due_at = :clock + CAST($3 AS interval) WHERE id IN (SELECT delivery FROM due) RETURNING ` + deliveryColumns

	// A page of deliveries comes with the attempts of each, without the bodies.
	pageColumns   = `id, endpoint_id, event, at, promotion_id, target_id, coupon_id, template_id, state, attempts, tries, due_at, done_at`
	pageSQL       = `SELECT ` + pageColumns + ` FROM webhook_deliveries `
	deliveriesAll = pageSQL + `WHERE endpoint_id = $1 AND state = 0 AND id < $2
UNION ALL ` + pageSQL + `WHERE endpoint_id = $1 AND state = 1 AND id < $2
UNION ALL ` + pageSQL + `WHERE endpoint_id = $1 AND state = 2 AND id < $2 ORDER BY id DESC LIMIT $3`
	deliveriesIn = pageSQL + `WHERE endpoint_id = $1 AND state = $4 AND id < $2 ORDER BY id DESC LIMIT $3`
	listAll      = attemptsOfPage + deliveriesAll + attemptsJoined
	listIn       = attemptsOfPage + deliveriesIn + attemptsJoined

	attemptsOfPage = `SELECT p.id, p.endpoint_id, p.event, p.at, p.promotion_id, p.target_id, p.coupon_id, p.template_id, p.state, p.attempts, p.tries, p.due_at,
  p.done_at, a.number, a.at, a.status, a.millis, a.error FROM (`
	attemptsJoined = `) p LEFT JOIN webhook_attempts a ON a.delivery_id = p.id ORDER BY p.id DESC, a.number`

	// Each statement that records an attempt locks the endpoint before the delivery.
	// Successes change the endpoint once a minute at most.
	recordSuccess = `UPDATE webhook_endpoints SET failing_since = NULL, failures = 0, last_error = '', delivered_at = :clock
WHERE id = $1 AND (failures > 0 OR delivered_at IS NULL OR delivered_at < :clock - CAST($2 AS interval))`
	recordFailure = `UPDATE webhook_endpoints SET failing_since = coalesce(failing_since, :clock), failures = failures + 1, last_error = $2 WHERE id = $1`
	disable       = `UPDATE webhook_endpoints SET enabled = FALSE, disabled_reason = $2, disabled_at = :clock
WHERE id = $1 AND enabled AND (CAST($3 AS boolean) OR failures >= CAST($4 AS integer) AND failing_since <= :clock - CAST($5 AS interval)) RETURNING id`
	recordAttempt = `UPDATE webhook_deliveries SET attempts = attempts + 1, tries = tries + 1, body = coalesce(body, $4),
  due_at = CASE WHEN state = 0 AND CAST($2 AS smallint) = 0 THEN :clock + CAST($3 AS interval) ELSE due_at END,
  done_at = CASE WHEN state = 0 AND CAST($2 AS smallint) <> 0 THEN :clock ELSE done_at END,
  state = CASE WHEN state = 0 THEN CAST($2 AS smallint) ELSE state END
WHERE id = $1`
	logAttempt = `INSERT INTO webhook_attempts (delivery_id, number, at, status, millis, error)
SELECT id, attempts, :clock, $2, $3, $4 FROM webhook_deliveries WHERE id = $1`

	resendDelivery = `UPDATE webhook_deliveries SET state = 0, tries = 0, due_at = :clock, done_at = NULL
WHERE endpoint_id = $1 AND id = $2 AND EXISTS (SELECT 1 FROM webhook_endpoints e WHERE e.id = $1 AND e.enabled) RETURNING id`
	testEndpoint = `INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at)
SELECT id, 0, now.at, now.at FROM (SELECT :clock AS at) now, webhook_endpoints WHERE id = $1 AND enabled RETURNING ` + deliveryColumns

	countPending = `SELECT count(*) FROM (SELECT 1 FROM webhook_deliveries WHERE endpoint_id = $1 AND state = 0 LIMIT $2) n`
)

var (
	isBulk = `event BETWEEN ` + strconv.Itoa(store.WebhookBulkFirst) + ` AND ` + strconv.Itoa(store.WebhookBulkLast)

	// bulkToDrop returns the $2-th oldest pending bulk event.
	bulkToDrop = `SELECT max(id) FROM (SELECT id FROM webhook_deliveries WHERE endpoint_id = $1 AND state = 0 AND ` + isBulk + ` ORDER BY id LIMIT $2) n`

	// bulkUntil selects the pending bulk events up to $2.
	bulkUntil    = `FROM webhook_deliveries WHERE endpoint_id = $1 AND state = 0 AND ` + isBulk + ` AND id <= $2`
	countDropped = `UPDATE webhook_endpoints SET overflowing = TRUE, dropped_at = :clock, dropped = dropped + (SELECT count(*) ` + bulkUntil + `)
WHERE id = $1`
	deleteBulk = `DELETE ` + bulkUntil + ` RETURNING id`
)

const (
	deleteOldDeliveries = `DELETE FROM webhook_deliveries WHERE id IN (
  SELECT id FROM webhook_deliveries WHERE endpoint_id = $1 AND done_at IS NOT NULL AND done_at < (SELECT :clock - CAST($2 AS interval))
  ORDER BY done_at LIMIT $3) RETURNING id`
	abandonOldDeliveries = `UPDATE webhook_deliveries SET state = 2, done_at = :clock WHERE id IN (
  SELECT id FROM (SELECT id, at FROM webhook_deliveries WHERE endpoint_id = $1 AND state = 0 ORDER BY id LIMIT $3) n
  WHERE at < :clock - CAST($2 AS interval)) RETURNING id`
	deleteOrphans = `DELETE FROM webhook_deliveries WHERE id IN (
  SELECT id FROM webhook_deliveries WHERE endpoint_id = $1 AND NOT EXISTS (SELECT 1 FROM webhook_endpoints e WHERE e.id = $1)
  ORDER BY state, id LIMIT $2) RETURNING id`

	// deliveryOwners visits the endpoints that have deliveries, one step of the index per
	// endpoint.
	deliveryOwners = `WITH RECURSIVE owners(id) AS (
  SELECT min(endpoint_id) FROM webhook_deliveries
  UNION ALL
  SELECT (SELECT min(d.endpoint_id) FROM webhook_deliveries d WHERE d.endpoint_id > o.id) FROM owners o WHERE o.id IS NOT NULL
)
SELECT id FROM owners WHERE id IS NOT NULL`
)

// recipients returns addresses, which have no spaces, as they are stored.
func recipients(to []string) string { return strings.Join(to, " ") }

func scanEndpoint(scan Scan, e *store.WebhookEndpoint) error {
	var events int64
	var to string
	err := scan(&e.ID, (*string)(&e.Kind), &e.URL, &to, &e.Language, &e.Description, &events, &e.Enabled, &e.DisabledReason, (*at)(&e.DisabledAt), &e.Secret,
		&e.PreviousSecret, (*at)(&e.PreviousUntil), (*at)(&e.FailingSince), &e.Failures, &e.LastError, (*at)(&e.DeliveredAt), &e.Overflowing,
		&e.Dropped, (*at)(&e.DroppedAt), (*at)(&e.CreatedAt), &e.CreatedBy, &e.Pending)
	e.Events = store.WebhookEventsOf(events)
	if to != "" {
		e.To = strings.Fields(to)
	}
	return err
}

// deliveryScanner has the columns of a delivery that need a conversion.
type deliveryScanner struct {
	event                               int
	promotion, target, coupon, template *int64
}

func (n *deliveryScanner) columns(d *store.EndpointDelivery) []any {
	return []any{
		&d.ID, &d.EndpointID, &n.event, (*at)(&d.At), &n.promotion, &n.target, &n.coupon, &n.template, &d.State, &d.Attempts, &d.Tries, (*at)(&d.DueAt), (*at)(&d.DoneAt),
	}
}

func (n *deliveryScanner) set(d *store.EndpointDelivery) {
	if n.event < len(store.WebhookEvents) {
		d.Event = store.WebhookEvents[n.event]
	}
	if n.promotion != nil {
		d.PromotionID = reward.PromotionID(*n.promotion)
	}
	if n.target != nil {
		id := reward.TargetID(*n.target)
		d.TargetID = &id
	}
	if n.coupon != nil {
		d.CouponID = reward.CouponID(*n.coupon)
	}
	if n.template != nil {
		d.TemplateID = reward.TemplateID(*n.template)
	}
}

func scanDelivery(scan Scan, d *store.EndpointDelivery) error {
	var n deliveryScanner
	err := scan(append(n.columns(d), &d.Body)...)
	n.set(d)
	return err
}

func noEndpoint(id int64) error {
	return reward.NewError(reward.KindNotFound, reward.CodeEndpointNotFound, "there is no webhook endpoint %d", id)
}

// WebhookEndpointCreate stores an endpoint under its ID, or returns CodeExists. It
// returns CodeTooManyEndpoints if there are store.WebhookEndpointsMax already.
func (t *Tables) WebhookEndpointCreate(ctx context.Context, e store.WebhookEndpoint) (store.WebhookEndpoint, error) {
	for what, text := range map[string]string{"url": e.URL, "description": e.Description, "creator": e.CreatedBy, "to": recipients(e.To), "language": e.Language} {
		if err := store.CheckText(what, text); err != nil {
			return store.WebhookEndpoint{}, err
		}
	}
	made, exists := false, []store.WebhookEndpoint(nil)
	err := t.db.Write(ctx, "create a webhook endpoint", func() []Statement {
		made, exists = false, nil
		return []Statement{
			{SQL: createEndpoint, Args: []any{
				e.ID, e.URL, e.Description, store.WebhookEventBits(e.Events), e.Enabled, e.Secret, e.CreatedAt, e.CreatedBy, store.WebhookEndpointsMax,
				string(cmp.Or(e.Kind, store.KindWebhook)), recipients(e.To), e.Language,
			}, Row: seen(&made)},
			{SQL: endpointSQL + `WHERE e.id = $2`, Args: []any{0, e.ID}, Row: into(&exists, scanEndpoint)},
		}
	})
	switch {
	case err != nil:
		return store.WebhookEndpoint{}, err
	case !made && len(exists) > 0:
		return store.WebhookEndpoint{}, reward.NewError(reward.KindConflict, reward.CodeExists, "webhook endpoint %d exists", e.ID)
	case !made:
		return store.WebhookEndpoint{}, reward.NewError(reward.KindConflict, reward.CodeTooManyEndpoints,
			"there are %d webhook endpoints already; delete one that is not used", store.WebhookEndpointsMax)
	}
	return first(exists, nil, noEndpoint(e.ID))
}

// WebhookEndpointList returns all endpoints by descending ID, with their pending
// deliveries, of which it counts at most limit per endpoint.
func (t *Tables) WebhookEndpointList(ctx context.Context, limit int) ([]store.WebhookEndpoint, error) {
	return list(ctx, t.db.Read, "list webhook endpoints", scanEndpoint, endpointSQL+`ORDER BY e.id DESC`, limit)
}

// WebhookEndpointGet returns an endpoint, or CodeEndpointNotFound.
func (t *Tables) WebhookEndpointGet(ctx context.Context, id int64, limit int) (store.WebhookEndpoint, error) {
	return one(ctx, t.db.Read, "read a webhook endpoint", noEndpoint(id), scanEndpoint, endpointSQL+`WHERE e.id = $2`, limit, id)
}

// updated runs a statement on an endpoint and returns what it is afterwards.
// It reports whether the statement returned a row.
func (t *Tables) updated(ctx context.Context, what string, id int64, sql string, args ...any) (e store.WebhookEndpoint, changed bool, err error) {
	var found []store.WebhookEndpoint
	err = t.db.Write(ctx, what, func() []Statement {
		found, changed = nil, false
		return []Statement{
			{SQL: sql, Args: append([]any{id}, args...), Row: seen(&changed)},
			{SQL: endpointSQL + `WHERE e.id = $2`, Args: []any{0, id}, Row: into(&found, scanEndpoint)},
		}
	})
	e, err = first(found, err, noEndpoint(id))
	return e, changed, err
}

// WebhookEndpointChange changes what p names. Enabling an endpoint forgets why it
// was disabled, and its failures. Its pending deliveries are due as they were. Another
// URL comes with p.NewSecret, and no earlier secret is valid.
func (t *Tables) WebhookEndpointChange(ctx context.Context, id int64, p store.WebhookEndpointChange) (store.WebhookEndpoint, error) {
	var events *int64
	if p.Events != nil {
		events = new(store.WebhookEventBits(p.Events))
	}
	var to *string
	if p.To != nil {
		to = new(recipients(p.To))
	}
	for what, text := range map[string]*string{"url": p.URL, "description": p.Description, "to": to, "language": p.Language} {
		if text == nil {
			continue
		}
		if err := store.CheckText(what, *text); err != nil {
			return store.WebhookEndpoint{}, err
		}
	}
	var url, description, wasTo, language *string
	var bits *int64
	var enabled *bool
	if p.Was != nil {
		url, description, bits, enabled = &p.Was.URL, &p.Was.Description, new(store.WebhookEventBits(p.Was.Events)), &p.Was.Enabled
		wasTo, language = new(recipients(p.Was.To)), &p.Was.Language
	}
	e, changed, err := t.updated(ctx, "change a webhook endpoint", id, changeEndpoint, p.URL, p.Description, events, p.Enabled,
		url, description, bits, enabled, p.NewSecret, to, p.Language, wasTo, language)
	if err == nil && !changed {
		err = rules.CheckTag([]string{}, "", "webhook endpoint", id)
	}
	return e, err
}

// WebhookEndpointRotate replaces the secret, if there is one. The previous one is valid for a time.
func (t *Tables) WebhookEndpointRotate(ctx context.Context, id int64, secret string, previousFor time.Duration) (store.WebhookEndpoint, error) {
	e, _, err := t.updated(ctx, "rotate the secret of a webhook endpoint", id, rotateEndpoint, secret, previousFor)
	return e, err
}

// WebhookEndpointDelete deletes an endpoint. WebhookDeliveryTrim deletes its
// deliveries.
func (t *Tables) WebhookEndpointDelete(ctx context.Context, id int64) error {
	deleted, err := t.change(ctx, "delete a webhook endpoint", `DELETE FROM webhook_endpoints WHERE id = $1 RETURNING id`, id)
	if err == nil && !deleted {
		err = noEndpoint(id)
	}
	return err
}

// WebhookEndpointsDue returns the enabled endpoints with a delivery that is due.
func (t *Tables) WebhookEndpointsDue(ctx context.Context) ([]store.WebhookEndpoint, error) {
	return list(ctx, t.db.Read, "find due webhook endpoints", scanEndpoint, dueEndpoints)
}

// WebhookDeliveryClaim returns at most limit pending deliveries of an endpoint that
// are due, the longest due first. No other caller can claim them during the lease.
func (t *Tables) WebhookDeliveryClaim(ctx context.Context, endpoint int64, limit int, lease time.Duration) ([]store.EndpointDelivery, error) {
	claimed, err := list(ctx, t.write, "claim deliveries to an endpoint", scanDelivery, claimDeliveries, endpoint, max(limit, 0), lease)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(claimed, func(a, b store.EndpointDelivery) int { return int(a.ID - b.ID) })
	return claimed, nil
}

// successInterval separates the changes of an endpoint by successes.
const successInterval = time.Minute

// WebhookDeliveryRecord stores an attempt and what follows from it. It reports
// whether it disabled the endpoint. A delivery that is not pending any more stays as it
// is, and one that was deleted is ignored.
func (t *Tables) WebhookDeliveryRecord(ctx context.Context, a store.WebhookAttemptRecord) (disabled bool, err error) {
	text := reward.SanitizeText(a.Error)
	err = t.db.Write(ctx, "record an attempt to deliver", func() []Statement {
		disabled = false
		var statements []Statement
		switch {
		case a.Test:
		case a.State == store.WebhookDelivered:
			statements = []Statement{{SQL: recordSuccess, Args: []any{a.EndpointID, successInterval}}}
		default:
			statements = []Statement{
				{SQL: recordFailure, Args: []any{a.EndpointID, text}},
				{SQL: disable, Args: []any{
					a.EndpointID, reward.SanitizeText(a.DisableReason), a.DisableNow, a.DisableFailures, a.DisableAfter,
				}, Row: seen(&disabled)},
			}
		}
		return append(statements,
			Statement{SQL: recordAttempt, Args: []any{a.DeliveryID, int(a.State), a.RetryAfter, a.Body}},
			Statement{SQL: logAttempt, Args: []any{a.DeliveryID, a.Status, a.Took.Milliseconds(), text}})
	})
	return disabled && err == nil, err
}

// WebhookDeliveryList returns a page of deliveries of an endpoint by descending ID.
func (t *Tables) WebhookDeliveryList(ctx context.Context, p store.WebhookDeliveryListParams) ([]store.EndpointDelivery, error) {
	sql, args := listAll, []any{p.EndpointID, below(p.Before), max(p.Limit, 0)}
	if p.State != nil {
		sql, args = listIn, append(args, int(*p.State))
	}
	var page []store.EndpointDelivery
	err := t.db.Read(ctx, "list deliveries", func() Statement {
		page = nil
		return Statement{SQL: sql, Args: args, Row: func(scan Scan) error {
			var d store.EndpointDelivery
			var n deliveryScanner
			var number, status *int
			var millis *int64
			var made time.Time
			var text *string
			if err := scan(append(n.columns(&d), &number, (*at)(&made), &status, &millis, &text)...); err != nil {
				return err
			}
			if len(page) == 0 || page[len(page)-1].ID != d.ID {
				n.set(&d)
				page = append(page, d)
			}
			if number != nil {
				last := &page[len(page)-1]
				last.Log = append(last.Log, store.WebhookAttempt{Number: *number, At: made, Status: *status, Millis: *millis, Error: *text})
			}
			return nil
		}}
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

func noDelivery(endpoint, id int64) error {
	return reward.NewError(reward.KindNotFound, reward.CodeDeliveryNotFound, "webhook endpoint %d has no delivery %d", endpoint, id)
}

// WebhookDeliveryGet returns a delivery and its attempts, or CodeDeliveryNotFound.
func (t *Tables) WebhookDeliveryGet(ctx context.Context, endpoint, id int64) (store.EndpointDelivery, error) {
	d, err := one(ctx, t.db.Read, "read a delivery", noDelivery(endpoint, id), scanDelivery, deliverySQL+`WHERE endpoint_id = $1 AND id = $2`, endpoint, id)
	if err != nil {
		return store.EndpointDelivery{}, err
	}
	d.Log, err = list(ctx, t.db.Read, "read the attempts of a delivery", func(scan Scan, a *store.WebhookAttempt) error {
		return scan(&a.Number, (*at)(&a.At), &a.Status, &a.Millis, &a.Error)
	}, `SELECT number, at, status, millis, error FROM webhook_attempts WHERE delivery_id = $1 ORDER BY number`, id)
	return d, err
}

// disabledOr returns missing if an endpoint is enabled, or why nothing is sent to it.
func (t *Tables) disabledOr(ctx context.Context, endpoint int64, missing error) error {
	e, err := t.WebhookEndpointGet(ctx, endpoint, 0)
	if err == nil && !e.Enabled {
		err = reward.NewError(reward.KindConflict, reward.CodeEndpointDisabled, "webhook endpoint %d is disabled; enable it first", endpoint)
	}
	if err == nil {
		err = missing
	}
	return err
}

// WebhookDeliveryResend makes a delivery pending and due, with all its tries left. It
// returns CodeEndpointDisabled if the endpoint is disabled.
func (t *Tables) WebhookDeliveryResend(ctx context.Context, endpoint, id int64) (store.EndpointDelivery, error) {
	changed, err := t.change(ctx, "resend a delivery", resendDelivery, endpoint, id)
	switch {
	case err != nil:
		return store.EndpointDelivery{}, err
	case !changed:
		return store.EndpointDelivery{}, t.disabledOr(ctx, endpoint, noDelivery(endpoint, id))
	}
	return t.WebhookDeliveryGet(ctx, endpoint, id)
}

// WebhookDeliveryTest records store.WebhookTest for an endpoint, or returns
// CodeEndpointDisabled.
func (t *Tables) WebhookDeliveryTest(ctx context.Context, endpoint int64) (store.EndpointDelivery, error) {
	made, err := list(ctx, t.write, "test a webhook endpoint", scanDelivery, testEndpoint, endpoint)
	if err == nil && len(made) == 0 {
		err = t.disabledOr(ctx, endpoint, noEndpoint(endpoint))
	}
	return first(made, err, nil)
}

// WebhookDeliveryOwners returns the IDs of endpoints with deliveries, also of deleted
// endpoints.
func (t *Tables) WebhookDeliveryOwners(ctx context.Context) ([]int64, error) {
	return list(ctx, t.db.Read, "find endpoints with deliveries", scanOne[int64], deliveryOwners)
}

// WebhookDeliveryTrim limits what is stored for an endpoint. It deletes old
// deliveries, abandons pending ones that are too old, and deletes what belonged to a
// deleted endpoint. If too many are pending, it drops the oldest bulk events among
// them.
func (t *Tables) WebhookDeliveryTrim(ctx context.Context, p store.WebhookTrimParams) (store.WebhookTrimResult, error) {
	pending, err := one(ctx, t.db.Read, "count pending deliveries", nil, scanOne[int64], countPending, p.EndpointID, p.PendingMax+p.Limit)
	if err != nil {
		return store.WebhookTrimResult{}, err
	}
	var last *int64 // the newest event to drop
	if excess := pending - int64(p.PendingMax); excess > 0 {
		last, err = one(ctx, t.db.Read, "find events to drop", nil, scanOne[*int64], bulkToDrop, p.EndpointID, excess)
		if err != nil {
			return store.WebhookTrimResult{}, err
		}
	}
	r := store.WebhookTrimResult{Pending: int(pending)}
	err = t.db.Write(ctx, "trim the deliveries to an endpoint", func() []Statement {
		r.Deleted, r.Abandoned, r.Dropped = 0, 0, 0
		var statements []Statement
		if last != nil {
			statements = []Statement{
				{SQL: countDropped, Args: []any{p.EndpointID, *last}},
				{SQL: deleteBulk, Args: []any{p.EndpointID, *last}, Row: counted(&r.Dropped)},
			}
		} else if pending <= int64(p.PendingMax)/2 {
			statements = []Statement{{SQL: `UPDATE webhook_endpoints SET overflowing = FALSE WHERE id = $1 AND overflowing`, Args: []any{p.EndpointID}}}
		}
		return append(statements,
			Statement{SQL: deleteOldDeliveries, Args: []any{p.EndpointID, p.Kept, p.Limit}, Row: counted(&r.Deleted)},
			Statement{SQL: abandonOldDeliveries, Args: []any{p.EndpointID, p.Kept, p.Limit}, Row: counted(&r.Abandoned)},
			Statement{SQL: deleteOrphans, Args: []any{p.EndpointID, p.Limit}, Row: counted(&r.Deleted)})
	})
	return r, err
}
