package rows

import (
	"context"
	"math"
	"strconv"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	couponSQL = `SELECT ` + couponColumns + ` FROM coupons c WHERE c.id = $1`

	couponsOfUser = `SELECT ` + couponColumns + ` FROM coupons c WHERE c.user_id = $1 AND c.id < $2 ORDER BY c.id DESC LIMIT $3`

	couponsByCode = `SELECT ` + couponColumns + ` FROM coupons c WHERE c.code = $1 AND c.held_until IS NULL ORDER BY c.template_id LIMIT $2`
)

// countCoupons counts the coupons of template $1 in each status that has an index, up to $2,
// and the ended holds among the first $3 cancelled ones.
var countCoupons = func() string {
	count := func(column string, status reward.CouponStatus, limit, where string) string {
		return `(SELECT count(*) FROM (SELECT ` + column + ` FROM coupons c WHERE c.template_id = $1 AND c.status = ` + strconv.Itoa(int(status)) +
			` AND c.status <> 0 ORDER BY c.ticket, c.generation LIMIT ` + limit + `) counted` + where + `)`
	}
	return `SELECT t.archived_at IS NOT NULL, t.live, t.issued_total - t.live,
  ` + count(`1`, reward.CouponUsed, `$2`, ``) + `,
  ` + count(`1`, reward.CouponExpired, `$2`, ``) + `,
  ` + count(`1`, reward.CouponHeld, `$2`, ``) + `,
  ` + count(`c.cancel_reason`, reward.CouponCancelled, `$3`, ` WHERE counted.cancel_reason = '`+reward.ReasonHoldExpired+`'`) + `
FROM coupon_templates t WHERE t.id = $1`
}()

// countRejections counts the first $2 rejections of template $1 by reason.
const countRejections = `SELECT r.reason, count(*) FROM (
  SELECT j.reason FROM coupon_rejections j WHERE j.template_id = $1 ORDER BY j.ticket, j.generation LIMIT $2
) r GROUP BY r.reason ORDER BY count(*) DESC, r.reason`

// countCancelled counts the first $2 cancelled coupons of template $1 by who cancelled them,
// for $3 people.
var countCancelled = `SELECT n.cancelled_by, count(*) FROM (
  SELECT c.cancelled_by FROM coupons c WHERE c.template_id = $1 AND c.status = ` + strconv.Itoa(int(reward.CouponCancelled)) + ` AND c.status <> 0
  ORDER BY c.ticket, c.generation LIMIT $2
) n WHERE n.cancelled_by <> '' GROUP BY n.cancelled_by ORDER BY count(*) DESC, n.cancelled_by LIMIT $3`

// CouponCounts counts the coupons of a template by status, and its rejections by reason, most
// first, from one snapshot.
func (t *Tables) CouponCounts(ctx context.Context, id reward.TemplateID) (n store.CouponCounts, err error) {
	known := false
	err = t.db.SnapshotLong(ctx, "count the coupons of a template", func() []Statement {
		n, known = store.CouponCounts{}, false
		return []Statement{
			{SQL: countCoupons, Args: []any{int64(id), store.CouponCountMax, store.EndedHoldsMax}, Row: func(scan Scan) error {
				known = true
				return scan(&n.Archived, &n.Live, &n.Cancelled, &n.Used, &n.Expired, &n.Held, &n.EndedHolds)
			}},
			{SQL: countCancelled, Args: []any{int64(id), store.EndedHoldsMax, store.CancellersMax}, Row: into(&n.CancelledBy, func(scan Scan, c *store.Canceller) error {
				return scan(&c.Name, &c.Count)
			})},
			{SQL: countRejections, Args: []any{int64(id), store.CouponCountMax}, Row: into(&n.Rejected, func(scan Scan, r *store.RejectionCount) error {
				return scan(&r.Reason, &r.Count)
			})},
		}
	})
	if err == nil && !known {
		err = store.NoTemplate(id)
	}
	if n.Archived { // page by page, the others are removed
		n = store.CouponCounts{Archived: true, Live: n.Live, Cancelled: n.Cancelled}
	}
	return n, err
}

// scanCoupon reads couponColumns.
func scanCoupon(scan Scan, c *reward.Coupon) error {
	return scan((*int64)(&c.ID), &c.Code, (*int64)(&c.TemplateID), &c.UserID, &c.Generation, &c.Ticket, (*int16)(&c.Status),
		(*at)(&c.IssuedAt), (*at)(&c.UsedAt), (*at)(&c.CancelledAt), (*at)(&c.ExpiresAt), (*at)(&c.HeldUntil), &c.CancelReason, &c.CancelledBy)
}

// CouponGet returns a coupon, or CodeCouponNotFound.
func (t *Tables) CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	return one(ctx, t.db.Read, "read a coupon", store.NoCoupon(id), scanCoupon, couponSQL, int64(id))
}

// templatePage returns the statement that reads a page of the coupons of a template, and its
// arguments. Those of a user or with a code are few: they are read first, so that the planner
// does not walk the order of tickets to find them. Coupons in a status have an index in that
// order, except ISSUED ones, for which it would cost each issue a write. Their list passes the
// others in the order of tickets, some million per second.
func templatePage(p store.CouponListParams) (sql string, args []any) {
	args = []any{int64(p.TemplateID), p.After.Ticket, p.After.Generation, max(p.Limit, 0)}
	compare, direction := ">", ""
	if p.Newest {
		compare, direction = "<", " DESC"
		if p.After == (store.CouponPlace{}) {
			args[1] = int64(math.MaxInt64)
		}
	}
	from, few := "coupons", ""
	for _, f := range []struct{ where, value string }{{"user_id = ", p.UserID}, {"held_until IS NULL AND code = ", p.Code}} {
		if f.value != "" {
			args = append(args, reward.SanitizeText(f.value))
			from, few = "few", few+" AND "+f.where+"$"+strconv.Itoa(len(args))
		}
	}
	if few != "" {
		sql = `WITH few AS MATERIALIZED (SELECT * FROM coupons WHERE template_id = $1` + few + `) `
	}
	sql += `SELECT ` + couponColumns + ` FROM ` + from + ` c WHERE c.template_id = $1 AND (c.ticket, c.generation) ` + compare + ` ($2, $3)`
	if p.Status != nil {
		sql += ` AND c.status = ` + strconv.Itoa(int(*p.Status))
		if *p.Status != reward.CouponIssued {
			sql += ` AND c.status <> 0` // as in the condition of the index
		}
	}
	return sql + ` ORDER BY c.ticket` + direction + `, c.generation` + direction + ` LIMIT $4`, args
}

// CouponList returns a page of coupons. Without a template and a user, it returns CodeInvalid.
func (t *Tables) CouponList(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error) {
	if err := p.CheckList(); err != nil {
		return nil, err
	}
	sql, args := couponsOfUser, []any{reward.SanitizeText(p.UserID), below(int64(p.Before)), max(p.Limit, 0)}
	if p.TemplateID != 0 {
		sql, args = templatePage(p)
	}
	return list(ctx, t.db.Read, "list coupons", scanCoupon, sql, args...)
}

// CouponsByCode returns at most limit coupons that have a code, by template. A code belongs to
// one coupon of a template; other templates may have it too.
func (t *Tables) CouponsByCode(ctx context.Context, code string, limit int) ([]reward.Coupon, error) {
	return list(ctx, t.db.Read, "find coupons by code", scanCoupon, couponsByCode, reward.SanitizeText(code), max(limit, 0))
}
