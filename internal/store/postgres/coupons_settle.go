package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// issueKind is what makes one SettleKind differ from another. $12 and above
// are its own parameters.
type issueKind struct {
	refused    string // why the whole is refused, as a number of rules.SettleRefusal
	shut       string // 0, or the rules.RequestOutcome of all asks
	due        string // SELECT of the asks to decide about
	generation string // of a coupon that an ask d becomes, g being the template
	ticket     string // the same; issued says whether d gets one
	fence      string // the fence afterwards
	kept       bool   // a refusal is a row
}

// issueSQL settles asks of template $1, see rules.Issue. Its row is held: what the template
// is, and how many slots its users hold, is then read as it stands.
//
// A user's asks fit as long as he has free slots; those that fit get a coupon
// as long as there is stock. Stock never comes back within a batch, so whoever
// does not get one by stock leaves his slots to nobody: he is beyond his limit
// only if all his free slots were filled before.
func issueSQL(k issueKind) string {
	rejected := ""
	if k.kept {
		rejected = `, rejected AS (
  INSERT INTO coupon_rejections (template_id, ticket, generation, version, at, user_id, reason)
  SELECT $1, d.ticket, d.generation, d.version, $2::timestamptz, d.user_id, d.verdict FROM decided d
  WHERE d.verdict <> '' ORDER BY d.ord
)`
	}
	return named(`WITH gate AS MATERIALIZED (
  SELECT t.*, (` + k.refused + `)::int2 AS refused, (` + k.shut + `)::int2 AS shut FROM coupon_templates t WHERE t.id = $1
), kept_offsets AS (
  INSERT INTO kafka_offsets AS o (topic, part, next)
  SELECT i.* FROM unnest($9::text[], $10::int4[], $11::int8[]) AS i(topic, part, next), gate g WHERE g.refused = :REFUSED_NOT
  ON CONFLICT (topic, part) DO UPDATE SET next = excluded.next WHERE o.next < excluded.next
), asks AS MATERIALIZED (
  SELECT a.user_id COLLATE "C" AS user_id, a.generation, a.ticket, a.id, a.code, a.reason, a.ord
  FROM gate g, unnest($3::text[], $4::int8[], $5::int8[], $6::int8[], $7::text[], $8::text[])
    WITH ORDINALITY AS a(user_id, generation, ticket, id, code, reason, ord)
  WHERE g.refused = :REFUSED_NOT AND g.shut = 0
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
      AND count(*) FILTER (WHERE p.reason = '' AND p.turn <= p.free) OVER (ORDER BY p.ord) <= g.total_quantity - g.live AS issued
  FROM placed p, gate g
), decided AS MATERIALIZED (
  SELECT d.ord, d.id, d.code, d.user_id, d.held, d.latest, g.version + 1 AS version, g.valid_for,
    ` + k.generation + ` AS generation, ` + k.ticket + ` AS ticket,
    CASE WHEN d.issued THEN '' WHEN d.reason <> '' THEN d.reason
      WHEN count(*) FILTER (WHERE d.issued) OVER (PARTITION BY d.user_id ORDER BY d.ord) >= d.free THEN '` + reward.ReasonUserLimit + `'
      ELSE '` + reward.ReasonSoldOut + `' END AS verdict,
    CASE WHEN g.per_user_limit = 1 THEN 1 WHEN d.issued THEN (
      SELECT n FROM generate_series(1, g.per_user_limit) AS n WHERE d.slots IS NULL OR n <> ALL (d.slots)
      ORDER BY n OFFSET d.turn - 1 LIMIT 1) END AS slot
  FROM judged d, gate g
), inserted AS (
  INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, expires_at, slot, code, user_id)
  SELECT d.id, $1, d.generation, d.ticket, d.version, $2::timestamptz,
    CASE WHEN d.valid_for > 0 THEN $2::timestamptz + make_interval(secs => d.valid_for) END, d.slot, d.code, d.user_id
  FROM decided d WHERE d.verdict = '' ORDER BY d.ord
)` + rejected + `, sums AS MATERIALIZED (
  SELECT count(*) FILTER (WHERE verdict = '') AS issued, max(ticket) AS top FROM decided
), moved AS (
  UPDATE coupon_templates t SET settled = greatest(t.settled, s.top), version = t.version + CASE WHEN s.top IS NULL THEN 0 ELSE 1 END,
    live = t.live + s.issued, issued_total = t.issued_total + s.issued, fence = ` + k.fence + `
  FROM sums s, gate g WHERE t.id = $1 AND g.refused = :REFUSED_NOT AND (s.top IS NOT NULL OR t.fence <> ` + k.fence + `)
)
SELECT g.refused, g.shut, g.version, d.ord, d.ticket, d.verdict, d.held, d.latest FROM gate g LEFT JOIN decided d ON true`)
}

var (
	// settleInOrder has $12 the epoch and $13 the generation.
	settleInOrder = issueSQL(issueKind{
		refused: `CASE WHEN t.epoch <> $12 THEN :REFUSED_EPOCH WHEN t.generation <> $13 OR t.path <> 'GATE'
    OR EXISTS (SELECT 1 FROM unnest($4::int8[]) AS a(generation) WHERE a.generation <> t.generation) THEN :REFUSED_GENERATION ELSE :REFUSED_NOT END`,
		shut: `0`,
		due: `SELECT n.* FROM gate g, (
    SELECT a.*, row_number() OVER (ORDER BY a.ord) AS step FROM asks a, gate g WHERE a.ticket > g.settled
  ) n WHERE n.ticket = g.settled + n.step`,
		generation: `d.generation`, ticket: `d.ticket`, fence: `t.fence`, kept: true,
	})
	// settleListed has $12 the generation whose ends are known.
	settleListed = issueSQL(issueKind{
		refused: `CASE WHEN t.ends_generation <> $12 THEN :REFUSED_ENDS ELSE :REFUSED_NOT END`,
		shut:    `0`,
		due: `SELECT a.* FROM asks a, gate g WHERE a.generation <= g.generation
    AND NOT EXISTS (SELECT 1 FROM coupons c WHERE c.template_id = g.id AND c.ticket = a.ticket AND c.generation = a.generation)
    AND NOT EXISTS (SELECT 1 FROM coupon_rejections r WHERE r.template_id = g.id AND r.ticket = a.ticket AND r.generation = a.generation)`,
		generation: `d.generation`, ticket: `d.ticket`, fence: `t.fence`, kept: true,
	})
	// settleDirect has $12 the path, $13 the generation and $14 the fence.
	settleDirect = issueSQL(issueKind{
		refused: `CASE WHEN t.path <> $12 THEN :REFUSED_PATH WHEN t.generation <> $13 THEN :REFUSED_GENERATION
    WHEN $14::int8 <> 0 AND t.fence >= $14::int8 THEN :REFUSED_FENCE ELSE :REFUSED_NOT END`,
		shut: `CASE WHEN clock_timestamp() < t.opens_at THEN :REQUEST_NOT_OPEN
    WHEN clock_timestamp() >= t.closes_at THEN :REQUEST_CLOSED ELSE 0 END`,
		due: `SELECT a.* FROM asks a`, generation: `g.generation`,
		ticket: `CASE WHEN d.issued THEN g.settled + count(*) FILTER (WHERE d.issued) OVER (ORDER BY d.ord) END`,
		fence:  `greatest(t.fence, $14::int8)`,
	})
)

// ownSQL reads, where the limit is 1, the coupons that users have at template
// $1. It is only read, after the decision: it tells people what they have.
var ownSQL = named(`SELECT ` + couponColumns + ` FROM coupon_templates t
CROSS JOIN (SELECT DISTINCT u.user_id COLLATE "C" AS user_id FROM unnest($2::text[]) AS u(user_id)) u
CROSS JOIN LATERAL (
  SELECT * FROM coupons c WHERE c.template_id = $1 AND c.user_id = u.user_id AND c.slot IS NOT NULL AND c.status <> :COUPON_CANCELLED
  ORDER BY c.id DESC LIMIT 1
) c WHERE t.id = $1 AND t.per_user_limit = 1`)

// CouponSettle settles asks. [issueCoupons]
func (s *Store) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if err := p.Check(); err != nil {
		return store.CouponSettleResult{}, err
	}
	batch := p.Batch()
	order := batch.Order()
	sql, args := askArgs(&p, order)
	var done rules.Settlement
	err := s.send(ctx, "settle coupons", func(b *pgx.Batch) {
		done = rules.Settlement{Decisions: make([]rules.Decision, 0, len(order))}
		b.Queue(lockTemplate, int64(p.TemplateID))
		b.Queue(sql, args...).Query(each(func(rows pgx.Rows) error {
			var refused, shut int16
			var ord, ticket, latest *int64
			var verdict *string
			var held *int32
			if err := rows.Scan(&refused, &shut, &done.From, &ord, &ticket, &verdict, &held, &latest); err != nil {
				return err
			}
			done.Refused, done.Shut = rules.SettleRefusal(refused), rules.RequestOutcome(shut) //nolint:gosec // a handful
			if ord == nil {
				return nil // no ask is due
			}
			r := rules.Decision{At: order[*ord-1], Reason: *verdict, Held: int(*held)}
			if ticket != nil {
				r.Ticket = *ticket
			}
			if latest != nil {
				r.Latest = reward.CouponID(*latest)
			}
			done.Decisions = append(done.Decisions, r)
			return nil
		}))
		queueTemplate(b, p.TemplateID, &done.Template)
		if p.Kind == rules.SettleDirect {
			done.Existing = make(map[string]reward.Coupon)
			b.Queue(ownSQL, int64(p.TemplateID), args[2]).Query(couponsInto(func(c *reward.Coupon) { done.Existing[c.UserID] = *c }))
		}
	})
	switch err := found(done.Template.ID, p.TemplateID, err); {
	case taken(err):
		return store.CouponSettleResult{}, store.CodeTaken(err)
	case hasState(err, "22003", "22021", "22P05"):
		e := reward.NewError(reward.KindInvalid, reward.CodeInvalid, "the database cannot hold an ask of the batch")
		e.Err = err
		return store.CouponSettleResult{}, e
	case err != nil:
		return store.CouponSettleResult{}, err
	}
	return store.Settled(&done, batch), nil
}

// taken says that a coupon has the id or the code already.
func taken(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23505" && (pe.ConstraintName == "coupons_pkey" || pe.ConstraintName == "coupons_code")
}

// askArgs is the statement for a batch, and the asks, in the order in which
// they are taken, as columns.
func askArgs(p *store.CouponSettleParams, order []int) (sql string, args []any) {
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
		return settleListed, append(args, p.EndsGeneration)
	default:
		return settleDirect, append(args, string(p.Path), p.Generation, p.Fence)
	}
}
