package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

const (
	// liveMaxSQL is reward.CouponTemplate.LiveMax of template t.
	liveMaxSQL = `CASE WHEN t.codes_imported = 0 THEN t.total_quantity
    ELSE least(t.total_quantity, t.live + greatest(t.codes_imported - t.issued_total, 0)) END`

	// importedCodeSQL is the imported code of the coupon of request d, the nth one that
	// the batch issues at template g. A code that is missing is null, and fails the
	// batch.
	importedCodeSQL = `(
      SELECT k.code FROM coupon_code_imports i JOIN coupon_codes k ON k.import_id = i.id AND k.line = g.issued_total + d.nth - i.first_number + 1
      WHERE i.template_id = g.id AND i.first_number <= g.issued_total + d.nth ORDER BY i.first_number DESC LIMIT 1)`
)

// issueKind has the SQL in which the kinds of settlement differ. A kind has its
// own parameters from $12 on.
type issueKind struct {
	refused    string // why the batch is refused, as a rules.SettleRefusal
	shut       string // 0, or the rules.RequestOutcome of all requests
	room       string // places for coupons; g is the template
	noRoom     string // why a request without a place is rejected
	used       string // the used places afterwards; s.settled is the number of settled tickets that did not leave
	offsets    string // whether the offsets are stored
	due        string // SELECT of the requests to decide
	generation string // of the coupon of request d; g is the template
	ticket     string // of the coupon of request d; d.issued says whether it gets one
	fence      string // the fence afterwards
	base       string // the base afterwards, if a request was settled
	kept       bool   // a rejection is stored as a row
}

// issueSQL returns the statement that settles requests of template $1, by
// rules.Issue. The caller holds the lock of the template row. The statement
// therefore sees the latest template and slots.
//
// A request fits if its user has a free slot. Requests that fit get a coupon
// while there is stock. Stock never returns within a batch. A user whose
// request failed for lack of stock therefore leaves free slots unused. A
// request is rejected for the user limit only if issued coupons fill all free
// slots before it.
func issueSQL(k issueKind) string {
	rejected := ""
	if k.kept {
		rejected = `, rejected AS (
  INSERT INTO coupon_rejections (template_id, ticket, generation, version, at, user_id, reason)
  SELECT $1, d.ticket, d.generation, d.version, $2::timestamptz, d.user_id, d.verdict FROM decided d
  WHERE d.verdict NOT IN ('', '` + reward.ReasonLeft + `') ORDER BY d.ord
)`
	}
	return named(`WITH gate AS MATERIALIZED (
  SELECT t.*, ` + liveMaxSQL + ` AS live_max, clock_timestamp() AS clock, (CASE WHEN t.archived_at IS NOT NULL THEN :REFUSED_ARCHIVED ELSE ` + k.refused + ` END)::int2 AS refused, (` + k.shut + `)::int2 AS shut FROM coupon_templates t WHERE t.id = $1
), asks AS MATERIALIZED (
  SELECT g.id AS template_id, a.user_id COLLATE "C" AS user_id, a.generation, a.ticket, a.id, a.code, a.reason, a.ord,
    a.generation BETWEEN g.floor AND g.generation AS valid, a.ticket - g.settled > g.total_quantity AS beyond
  FROM gate g, unnest($3::text[], $4::int8[], $5::int8[], $6::int8[], $7::text[], $8::text[])
    WITH ORDINALITY AS a(user_id, generation, ticket, id, code, reason, ord)
  WHERE g.refused = :REFUSED_NOT AND g.shut = 0
), kept_offsets AS (
  INSERT INTO kafka_offsets AS o (topic, part, next)
  SELECT i.* FROM unnest($9::text[], $10::int4[], $11::int8[]) AS i(topic, part, next), gate g WHERE g.refused = :REFUSED_NOT AND ` + k.offsets + `
  ON CONFLICT (topic, part) DO UPDATE SET next = excluded.next WHERE o.next < excluded.next
), due AS MATERIALIZED (
  ` + k.due + `
), placed AS MATERIALIZED (
  SELECT d.*, h.held, h.latest, h.slots, g.per_user_limit - h.held AS free,
    row_number() OVER (PARTITION BY d.user_id, d.reason = '' ORDER BY d.ord) AS turn
  FROM gate g, due d CROSS JOIN LATERAL (
    SELECT count(*)::int4 AS held, array_agg(c.slot) AS slots, max(c.id) FILTER (WHERE c.status <> :COUPON_CANCELLED) AS latest
    FROM coupons c WHERE c.template_id = $1 AND c.user_id = d.user_id AND c.slot IS NOT NULL) h
), judged AS MATERIALIZED (
  SELECT p.*, p.reason = '' AND p.turn <= p.free
      AND count(*) FILTER (WHERE p.reason = '' AND p.turn <= p.free) OVER (ORDER BY p.ord) <= ` + k.room + ` AS issued,
    count(*) FILTER (WHERE p.reason = '' AND p.turn <= p.free) OVER (ORDER BY p.ord) AS nth
  FROM placed p, gate g
), decided AS MATERIALIZED (
  SELECT d.ord, d.id, CASE WHEN d.issued AND g.codes_imported > 0 THEN ` + importedCodeSQL + ` ELSE d.code END AS code, d.user_id, d.held, d.latest, g.version + 1 AS version, g.valid_for, g.hold_seconds, g.clock, g.codes_imported > 0 AS imported,
    ` + k.generation + ` AS generation, ` + k.ticket + ` AS ticket,
    CASE WHEN d.issued THEN '' WHEN d.reason <> '' THEN d.reason
      WHEN count(*) FILTER (WHERE d.issued) OVER (PARTITION BY d.user_id ORDER BY d.ord) >= d.free THEN '` + reward.ReasonUserLimit + `'
      ELSE ` + k.noRoom + ` END AS verdict,
    CASE WHEN g.per_user_limit = 1 THEN 1 WHEN d.issued THEN (
      SELECT n FROM generate_series(1, g.per_user_limit) AS n WHERE d.slots IS NULL OR n <> ALL (d.slots)
      ORDER BY n OFFSET d.turn - 1 LIMIT 1) END AS slot
  FROM judged d, gate g
), inserted AS (
  INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, expires_at, slot, code, user_id, status, held_until, code_unseen)
  SELECT d.id, $1, d.generation, d.ticket, d.version, $2::timestamptz,
    CASE WHEN d.valid_for > 0 THEN $2::timestamptz + make_interval(secs => d.valid_for) END, d.slot, d.code, d.user_id,
    CASE WHEN d.hold_seconds > 0 THEN :COUPON_HELD ELSE :COUPON_ISSUED END,
    CASE WHEN d.hold_seconds > 0 THEN d.clock + make_interval(secs => d.hold_seconds) END, d.hold_seconds > 0 AND d.imported
  FROM decided d WHERE d.verdict = '' ORDER BY d.ord
), ` + couponEventsSQL() + rejected + `, sums AS MATERIALIZED (
  SELECT count(*) FILTER (WHERE verdict = '') AS issued, max(ticket) AS top,
    count(ticket) FILTER (WHERE verdict <> '` + reward.ReasonLeft + `') AS settled FROM decided
), moved AS (
  UPDATE coupon_templates t SET settled = greatest(t.settled, s.top), version = t.version + CASE WHEN s.top IS NULL THEN 0 ELSE 1 END,
    live = t.live + s.issued, issued_total = t.issued_total + s.issued, fence = ` + k.fence + `,
    used = ` + k.used + `, base = CASE WHEN s.top IS NULL THEN t.base ELSE ` + k.base + ` END
  FROM sums s, gate g WHERE t.id = $1 AND g.refused = :REFUSED_NOT AND (s.top IS NOT NULL OR t.fence <> ` + k.fence + `)
)
SELECT g.refused, g.shut, g.version, g.settled, g.clock, d.ord, d.ticket, d.verdict, d.held, d.latest, d.code FROM gate g LEFT JOIN decided d ON true`)
}

const (
	soldOutSQL = `'` + reward.ReasonSoldOut + `'`
	usedSQL    = `least(t.used + s.settled, t.granted)`
)

var (
	// settleInOrder gets the epoch in $12 and the generation in $13.
	settleInOrder = issueSQL(issueKind{
		room: `g.live_max - g.live`, noRoom: soldOutSQL, used: usedSQL, offsets: `true`,
		refused: `CASE WHEN t.epoch <> $12 THEN :REFUSED_EPOCH WHEN t.generation <> $13 OR t.path <> 'GATE' THEN :REFUSED_GENERATION ELSE :REFUSED_NOT END`,
		shut:    `0`,
		due: `WITH gone AS MATERIALIZED (
    SELECT r.ticket, r.generation, r.reason FROM coupon_rejections r, gate g
    WHERE r.template_id = $1 AND r.ticket > g.settled AND r.ticket <= g.settled + cardinality($5::int8[]) AND r.reason = '` + reward.ReasonLeft + `'
  )
  SELECT n.template_id, n.user_id, n.generation, n.ticket, n.id, n.code, coalesce(l.reason, n.reason) AS reason, n.ord FROM gate g, (
    SELECT a.*, row_number() OVER (ORDER BY a.ord) AS step FROM asks a, gate g WHERE a.ticket > g.settled
  ) n LEFT JOIN gone l ON l.ticket = n.ticket AND l.generation = n.generation
  WHERE n.ticket = g.settled + n.step`,
		generation: `d.generation`, ticket: `d.ticket`, fence: `t.fence`, base: `t.base`, kept: true,
	})
	settleListed = issueSQL(issueKind{
		room: `g.live_max - g.live`, noRoom: soldOutSQL, used: usedSQL,
		offsets: `NOT EXISTS (SELECT 1 FROM asks a WHERE a.valid AND a.beyond)`,
		refused: `:REFUSED_NOT`,
		shut:    `0`,
		due: `SELECT a.* FROM asks a WHERE a.valid AND NOT a.beyond
    AND NOT EXISTS (SELECT 1 FROM coupons c WHERE c.template_id = a.template_id AND c.ticket = a.ticket AND c.generation = a.generation)
    AND NOT EXISTS (SELECT 1 FROM coupon_rejections r WHERE r.template_id = a.template_id AND r.ticket = a.ticket AND r.generation = a.generation)
    AND NOT EXISTS (SELECT 1 FROM coupons c WHERE c.template_id = a.template_id AND c.user_id = a.user_id AND c.generation > a.generation)`,
		generation: `d.generation`, ticket: `d.ticket`, fence: `t.fence`, base: `t.base`, kept: true,
	})
	// settleDirect gets the path in $12, the generation in $13 and the fence in
	// $14.
	settleDirect = issueSQL(issueKind{
		room:   `g.live_max - g.live - (g.granted - g.used)`,
		noRoom: `CASE WHEN g.granted > g.used THEN '` + reward.ReasonPromised + `' ELSE ` + soldOutSQL + ` END`,
		used:   `t.used`, offsets: `true`,
		refused: `CASE WHEN t.path <> $12 OR $14::int8 <> 0 AND t.path = 'GATE' AND t.mode <> 'SYNC' THEN :REFUSED_PATH WHEN t.generation <> $13 THEN :REFUSED_GENERATION
    WHEN $14::int8 <> 0 AND t.fence >= $14::int8 THEN :REFUSED_FENCE ELSE :REFUSED_NOT END`,
		shut: `CASE WHEN clock_timestamp() < t.opens_at THEN :REQUEST_NOT_OPEN
    WHEN clock_timestamp() >= t.closes_at THEN :REQUEST_CLOSED ELSE 0 END`,
		due: `SELECT a.* FROM asks a`, generation: `g.generation`,
		ticket: `CASE WHEN d.issued THEN g.settled + count(*) FILTER (WHERE d.issued) OVER (ORDER BY d.ord) END`,
		fence:  `greatest(t.fence, $14::int8)`,
		base:   `CASE WHEN $12 = 'DATABASE' THEN t.generation ELSE t.base END`,
	})
)

// existingSQL reads the coupons of users at template $1 if its limit is 1. It
// runs after the decision, and only reports what the users have.
var existingSQL = named(`SELECT ` + rows.CouponColumns + ` FROM coupon_templates t
CROSS JOIN (SELECT DISTINCT u.user_id COLLATE "C" AS user_id FROM unnest($2::text[]) AS u(user_id)) u
CROSS JOIN LATERAL (
  SELECT * FROM coupons c WHERE c.template_id = $1 AND c.user_id = u.user_id AND c.slot IS NOT NULL AND c.status <> :COUPON_CANCELLED
  ORDER BY c.id DESC LIMIT 1
) c WHERE t.id = $1 AND t.per_user_limit = 1`)

// CouponSettle settles coupon requests.
func (s *Store) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if err := p.Check(); err != nil {
		return store.CouponSettleResult{}, err
	}
	batch := p.Batch()
	order := batch.Order()
	sql, args := settleArgs(&p, order)
	var done rules.Settlement
	err := s.send(ctx, "settle coupons", func(b *pgx.Batch) {
		done = rules.Settlement{Decisions: make([]rules.Decision, 0, len(order))}
		b.Queue(lockTemplate, int64(p.TemplateID))
		b.Queue(sql, args...).Query(each(func(rows pgx.Rows) error {
			var refused, shut int16
			var ord, ticket, latest *int64
			var verdict, code *string
			var held *int32
			if err := rows.Scan(&refused, &shut, &done.From, &done.Settled, &done.Clock, &ord, &ticket, &verdict, &held, &latest, &code); err != nil {
				return err
			}
			done.Refused, done.Shut = rules.SettleRefusal(refused), rules.RequestOutcome(shut) //nolint:gosec // small constants
			if ord == nil {
				return nil // no request is due
			}
			r := rules.Decision{At: order[*ord-1], Reason: *verdict, Held: int(*held)}
			if ticket != nil {
				r.Ticket = *ticket
			}
			if latest != nil {
				r.Latest = reward.CouponID(*latest)
			}
			if r.Reason == "" {
				r.Code = *code
			}
			done.Decisions = append(done.Decisions, r)
			return nil
		}))
		queueTemplate(b, p.TemplateID, &done.Template)
		if p.Kind == rules.SettleDirect {
			done.Existing = make(map[string]reward.Coupon)
			b.Queue(existingSQL, int64(p.TemplateID), args[2]).Query(couponsInto(func(c *reward.Coupon) { done.Existing[c.UserID] = *c }))
		}
	})
	switch err := templateError(done.Template.ID, p.TemplateID, err); {
	case taken(err):
		return store.CouponSettleResult{}, store.CodeTaken(err)
	case err != nil:
		return store.CouponSettleResult{}, unstorable(err, "a request")
	}
	return store.Settled(&done, batch), nil
}

// taken reports whether err means that another coupon has the ID or the code.
func taken(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23505" && (pe.ConstraintName == "coupons_pkey" || pe.ConstraintName == "coupons_code_of_template")
}

// settleArgs returns the statement for a batch, and its arguments: the requests
// as columns, in the order of settlement.
func settleArgs(p *store.CouponSettleParams, order []int) (sql string, args []any) {
	n := len(order)
	users, generations, tickets := make([]string, n), make([]int64, n), make([]int64, n)
	ids, codes, reasons := make([]int64, n), make([]string, n), make([]string, n)
	for i, at := range order {
		a := p.Requests[at].Storable()
		users[i], generations[i], tickets[i] = a.UserID, a.Generation, a.Ticket
		ids[i], codes[i], reasons[i] = int64(a.CouponID), a.Code, a.Reason
	}
	offsets := newOffsetBatch(p.Offsets)
	args = []any{
		int64(p.TemplateID), instant(p.Now), users, generations, tickets, ids, codes, reasons, offsets.topics, offsets.parts, offsets.nexts,
	}
	switch p.Kind {
	case rules.SettleInOrder:
		return settleInOrder, append(args, p.Epoch, p.Generation)
	case rules.SettleListed:
		return settleListed, args
	default:
		return settleDirect, append(args, string(p.Path), p.Generation, p.Fence)
	}
}

// couponsInto returns a row reader for statements that select rows.CouponColumns.
func couponsInto(take func(*reward.Coupon)) func(pgx.Rows) error {
	return each(func(found pgx.Rows) error {
		var c reward.Coupon
		err := rows.ScanCoupon(found.Scan, &c)
		take(&c)
		return err
	})
}
