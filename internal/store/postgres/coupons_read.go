package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// couponsInto returns a row reader for statements that select rows.CouponColumns.
func couponsInto(take func(*reward.Coupon)) func(pgx.Rows) error {
	return each(func(found pgx.Rows) error {
		var c reward.Coupon
		err := rows.ScanCoupon(found.Scan, &c)
		take(&c)
		return err
	})
}

const (
	// latestCoupons and latestRejections read the latest coupon and the latest
	// rejection of each of the users $2 at template $1.
	latestCoupons = `SELECT ` + rows.CouponColumns + ` FROM (SELECT DISTINCT u.user_id COLLATE "C" AS user_id FROM unnest($2::text[]) AS u(user_id)) u
CROSS JOIN LATERAL (
  SELECT * FROM coupons c WHERE c.template_id = $1 AND c.user_id = u.user_id ORDER BY c.generation DESC, c.ticket DESC LIMIT 1
) c`

	latestRejections = `SELECT ` + rejectionColumns + ` FROM (SELECT DISTINCT u.user_id COLLATE "C" AS user_id FROM unnest($2::text[]) AS u(user_id)) u
CROSS JOIN LATERAL (
  SELECT * FROM coupon_rejections r WHERE r.user_id = u.user_id AND r.template_id = $1 ORDER BY r.generation DESC, r.ticket DESC LIMIT 1
) r`

	rejectionColumns = `r.template_id, r.user_id, r.generation, r.ticket, r.reason, r.at`

	historyCoupons    = `SELECT ` + rows.CouponColumns + ` FROM coupons c WHERE c.user_id = $1 ORDER BY c.issued_at DESC, c.id DESC LIMIT $2`
	historyRejections = `SELECT ` + rejectionColumns + ` FROM coupon_rejections r WHERE r.user_id = $1 ORDER BY r.at DESC LIMIT $2`
)

// outcomes runs two statements, one for coupons and one for rejections, and
// returns the outcomes that they read.
func (s *Store) outcomes(ctx context.Context, what, coupons, rejections string, args []any) ([]reward.IssueOutcome, error) {
	var list []reward.IssueOutcome
	err := s.read(ctx, what, func(b *pgx.Batch) {
		list = nil
		b.Queue(coupons, args...).Query(couponsInto(func(c *reward.Coupon) { list = append(list, store.IssuedOutcome(c)) }))
		b.Queue(rejections, args...).Query(each(func(rows pgx.Rows) error {
			var o reward.IssueOutcome
			err := rows.Scan((*int64)(&o.TemplateID), &o.UserID, &o.Generation, &o.Ticket, &o.Reason, &o.At)
			o.At = o.At.UTC()
			list = append(list, o)
			return err
		}))
	})
	return list, err
}

// IssueOutcomes returns the latest outcome of each user at a template.
func (s *Store) IssueOutcomes(ctx context.Context, id reward.TemplateID, users []string) (map[string]reward.IssueOutcome, error) {
	list, err := s.outcomes(ctx, "read the outcomes of requests", latestCoupons, latestRejections, []any{int64(id), store.StorableUsers(users)})
	if err != nil {
		return nil, err
	}
	return store.LatestOutcomes(list), nil
}

// expiredHoldsSQL reads who of $2 has let $3 holds of template $1 end, and how much longer each
// waits.
var expiredHoldsSQL = named(`SELECT u.user_id, (extract(epoch FROM h.ended + make_interval(secs => t.hold_seconds) - clock_timestamp()) * 1000000)::int8
FROM coupon_templates t CROSS JOIN unnest($2::text[]) AS u(user_id) CROSS JOIN LATERAL (
  SELECT count(*) AS n, max(c.cancelled_at) AS ended FROM coupons c
  WHERE c.user_id = u.user_id COLLATE "C" AND c.template_id = $1 AND c.status = :COUPON_CANCELLED AND c.cancel_reason = '` + reward.ReasonHoldExpired + `') h
WHERE t.id = $1 AND h.n >= $3 AND h.ended + make_interval(secs => t.hold_seconds) > clock_timestamp()`)

// ExpiredHolds returns who has let holds end, and how much longer they wait.
func (s *Store) ExpiredHolds(ctx context.Context, id reward.TemplateID, users []string, holds int) (map[string]time.Duration, error) {
	var expiredHolds map[string]time.Duration
	err := s.read(ctx, "read the holds that ended", func(b *pgx.Batch) {
		expiredHolds = make(map[string]time.Duration)
		b.Queue(expiredHoldsSQL, int64(id), store.StorableUsers(users), holds).Query(each(func(rows pgx.Rows) error {
			var user string
			var micros int64
			err := rows.Scan(&user, &micros)
			expiredHolds[user] = time.Duration(micros) * time.Microsecond
			return err
		}))
	})
	return expiredHolds, err
}

// IssueHistory returns the outcomes of a user at all templates, the latest
// first.
func (s *Store) IssueHistory(ctx context.Context, user string, limit int) ([]reward.IssueOutcome, error) {
	limit = max(limit, 0)
	list, err := s.outcomes(ctx, "read the history of a user", historyCoupons, historyRejections, []any{reward.SanitizeText(user), int64(limit)})
	if err != nil {
		return nil, err
	}
	store.SortOutcomes(list)
	return list[:min(len(list), limit)], nil
}

const (
	// changedSQL reads the tickets of template $1 that were settled above
	// version $2, at most $3 of coupons and of rejections each.
	changedSQL = `(SELECT c.user_id, c.generation, c.ticket, false FROM coupons c WHERE c.template_id = $1 AND c.version > $2 ORDER BY c.version LIMIT $3)
UNION ALL
(SELECT r.user_id, r.generation, r.ticket, r.reason = '` + reward.ReasonLeft + `' FROM coupon_rejections r WHERE r.template_id = $1 AND r.version > $2 ORDER BY r.version LIMIT $3)`

	// changedHoldings reads the holdings of the users of coupons that changed
	// above version $2. It reads nothing if these are $3 or more.
	changedHoldings = `WITH changed AS MATERIALIZED (
  SELECT c.user_id FROM coupons c WHERE c.template_id = $1 AND c.version > $2 ORDER BY c.version LIMIT $3
)
SELECT u.user_id, h.held, h.latest FROM (SELECT DISTINCT user_id FROM changed WHERE (SELECT count(*) FROM changed) < $3) u
CROSS JOIN LATERAL (
  SELECT count(*)::int4 AS held, coalesce(max(c.id) FILTER (WHERE c.status <> 2), 0) AS latest
  FROM coupons c WHERE c.template_id = $1 AND c.user_id = u.user_id AND c.slot IS NOT NULL
) h`

	holdersSQL = `SELECT c.user_id, count(*)::int4, coalesce(max(c.id) FILTER (WHERE c.status <> 2), 0)
FROM coupons c WHERE c.template_id = $1 AND c.slot IS NOT NULL GROUP BY c.user_id ORDER BY c.user_id`
)

// waitingLine reads the positions, from 1, of those users $3 with tickets $4 of
// generations $5 that still wait at template $1, whose gate has generation $2. The
// subqueries keep the planner from comparing them with all rows of the template, which is
// good only while these are few.
const waitingLine = `SELECT a.ord FROM unnest($3::text[], $4::int8[], $5::int8[]) WITH ORDINALITY AS a(user_id, ticket, generation, ord)
WHERE (SELECT 1 FROM coupons c
    WHERE c.template_id = $1 AND c.ticket = a.ticket AND c.generation <= $2 AND c.user_id = a.user_id COLLATE "C" LIMIT 1) IS NULL
  AND (SELECT 1 FROM coupon_rejections r
    WHERE r.template_id = $1 AND r.ticket = a.ticket AND r.generation <= $2 AND r.user_id = a.user_id COLLATE "C"
      AND (r.reason <> '` + reward.ReasonLeft + `' OR r.generation = a.generation) LIMIT 1) IS NULL
  AND (SELECT 1 FROM coupons c WHERE c.template_id = $1 AND c.user_id = a.user_id COLLATE "C" AND c.generation > $2 LIMIT 1) IS NULL
  AND (SELECT 1 FROM coupon_rejections r WHERE r.user_id = a.user_id COLLATE "C" AND r.template_id = $1 AND r.generation > $2 LIMIT 1) IS NULL`

// CouponWaiting reports which users in line still wait.
func (s *Store) CouponWaiting(ctx context.Context, id reward.TemplateID, generation int64, line []store.LineTicket) ([]bool, error) {
	users, tickets, generations := make([]string, len(line)), make([]int64, len(line)), make([]int64, len(line))
	for i, l := range line {
		users[i], tickets[i], generations[i] = reward.SanitizeText(l.UserID), l.Ticket, l.Generation
	}
	var out []bool
	err := s.read(ctx, "look up a waiting line", func(b *pgx.Batch) {
		out = make([]bool, len(line))
		b.Queue(waitingLine, int64(id), generation, users, tickets, generations).Query(each(func(rows pgx.Rows) error {
			var ord int64
			err := rows.Scan(&ord)
			if err == nil {
				out[ord-1] = true
			}
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// holdingsInto returns a row reader of holdings.
func holdingsInto(list *[]store.CouponHolding) func(pgx.Rows) error {
	return each(func(rows pgx.Rows) error {
		var f store.CouponHolding
		err := rows.Scan(&f.UserID, &f.Held, (*int64)(&f.CouponID))
		*list = append(*list, f)
		return err
	})
}

// CouponChanges returns what changed above a version.
func (s *Store) CouponChanges(ctx context.Context, id reward.TemplateID, above int64, limit int) (store.CouponChanges, error) {
	limit = max(limit, 0)
	most := int64(limit) + 1
	var c store.CouponChanges
	err := s.send(ctx, "read the changes of a coupon template", func(b *pgx.Batch) {
		c = store.CouponChanges{}
		b.Queue(oneSnapshot)
		queueTemplate(b, id, &c.Template)
		b.Queue(changedSQL, int64(id), above, most).Query(each(func(rows pgx.Rows) error {
			var a store.SettledRequest
			err := rows.Scan(&a.UserID, &a.Generation, &a.Ticket, &a.Left)
			c.Settled = append(c.Settled, a)
			return err
		}))
		b.Queue(changedHoldings, int64(id), above, most).Query(holdingsInto(&c.Holdings))
		b.Queue(`COMMIT`)
	})
	if err := templateError(c.Template.ID, id, err); err != nil {
		return store.CouponChanges{}, err
	}
	c.Bound(limit)
	return c, nil
}

// CouponSnapshot reads the holdings of all users with a slot. The rows arrive
// in one stream as the caller takes them, so the connection is never idle in a
// transaction.
func (s *Store) CouponSnapshot(ctx context.Context, id reward.TemplateID, begin func(reward.CouponTemplate) error,
	facts func([]store.CouponHolding) error,
) (err error) {
	var t reward.CouponTemplate
	b := &pgx.Batch{}
	b.Queue(oneSnapshot)
	b.Queue(rows.TemplateSQL, int64(id)).Query(func(found pgx.Rows) error {
		if err := templateInto(&t)(found); err != nil || t.ID == 0 {
			return err
		}
		return begin(t)
	})
	b.Queue(holdersSQL, int64(id)).Query(func(rows pgx.Rows) error {
		portion := make([]store.CouponHolding, 0, store.BatchMax)
		err := each(func(rows pgx.Rows) error {
			var f store.CouponHolding
			if err := rows.Scan(&f.UserID, &f.Held, (*int64)(&f.CouponID)); err != nil {
				return err
			}
			if portion = append(portion, f); len(portion) < store.BatchMax {
				return nil
			}
			full := portion
			portion = make([]store.CouponHolding, 0, store.BatchMax)
			return facts(full)
		})(rows)
		if err != nil || len(portion) == 0 {
			return err
		}
		return facts(portion)
	})
	b.Queue(`COMMIT`)
	const what = "read a snapshot of a coupon template"
	began := time.Now()
	_, err = s.once(ctx, 0, what, b)
	s.metrics.DatabaseCalled(what, time.Since(began))
	return templateError(t.ID, id, err)
}
