package rows

import (
	"cmp"
	"context"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	hasCoupon   = `EXISTS (SELECT 1 FROM coupons c WHERE c.template_id = t.id AND c.ticket = $2 AND c.generation = $3)`
	ofRejection = ` FROM coupon_rejections r WHERE r.template_id = t.id AND r.ticket = $2 AND r.generation = $3`

	// lineOf reads template $1, whether ticket $2 of generation $3 has a coupon, and the
	// reason of its rejection.
	lineOf = `SELECT ` + TemplateColumns + `, ` + hasCoupon + `, coalesce((SELECT r.reason` + ofRejection + `), '')
FROM coupon_templates t WHERE t.id = $1`

	// storeLeft stores that user $4 left the line with ticket $2 of generation $3 at $5, if
	// everything that rules.Leave looks at is still as it was.
	storeLeft = `INSERT INTO coupon_rejections (template_id, ticket, generation, user_id, at, version, reason)
SELECT t.id, $2, $3, $4, $5, t.version + 1, '` + reward.ReasonLeft + `' FROM coupon_templates t
WHERE t.id = $1 AND t.archived_at IS NULL AND t.path = $6 AND t.mode = $7 AND t.generation = $8
  AND (t.settled < $2) = $9 AND (t.used < t.granted) = $10 AND NOT ` + hasCoupon + ` AND NOT EXISTS (SELECT 1` + ofRejection + `) RETURNING ticket`

	// countLeft follows storeLeft.
	countLeft = `UPDATE coupon_templates SET version = version + 1, used = used + $2, settled = CASE WHEN settled < $3 THEN $3 ELSE settled END WHERE id = $1`
)

// CouponLeave takes a request out of the waiting line, by rules.Leave. It stores the request
// with ReasonLeft, and raises Version.
func (t *Tables) CouponLeave(ctx context.Context, p store.CouponLeaveParams) (result store.CouponLeaveResult, err error) {
	if err := store.CheckText("user id", p.UserID); err != nil {
		return result, err
	}
	request := []any{int64(p.TemplateID), p.Ticket, p.Generation}
	const what = "leave a waiting line"
	err = whileStale(what, func() error {
		var coupon bool
		var reason string
		was, err := t.templateWith(ctx, what, p.TemplateID, lineOf, request, &coupon, &reason)
		if err = cmp.Or(err, archivedError(&was)); err != nil {
			return err
		}
		next := was
		outcome := p.Apply(&next, coupon || reason != "", reason == reward.ReasonLeft)
		if outcome != rules.LeaveDone {
			result = store.CouponLeaveResult{Outcome: outcome, CouponChange: store.CouponChange{From: was.Version, To: was.Version, Template: was}}
			return nil
		}
		now, err := t.inTemplate(ctx, what, p.TemplateID, func() []Statement {
			return []Statement{
				{SQL: storeLeft, Must: true, Args: slices.Concat(request, []any{
					p.UserID, p.Now, string(was.Path), string(was.Mode), was.Generation, was.Settled < p.Ticket, was.Promised() > 0,
				})},
				{SQL: countLeft, Args: []any{int64(p.TemplateID), next.Used - was.Used, next.Settled}},
			}
		})
		result = store.CouponLeaveResult{Outcome: outcome, CouponChange: store.CouponChange{From: now.Version - 1, To: now.Version, Template: now}}
		return err
	})
	if err != nil {
		return store.CouponLeaveResult{}, err
	}
	return result, nil
}

const leftRequests = `SELECT r.user_id, r.ticket, r.generation FROM coupon_rejections r
WHERE r.template_id = $1 AND (r.ticket, r.generation) > ($2, $3) AND r.reason = '` + reward.ReasonLeft + `'
ORDER BY r.ticket, r.generation LIMIT $4`

// CouponLeft returns at most limit requests with ReasonLeft, ordered by ticket, then
// generation. Only those after the given ticket and generation count.
func (t *Tables) CouponLeft(ctx context.Context, id reward.TemplateID, ticket, generation int64, limit int) ([]store.LineTicket, error) {
	return list(ctx, t.db.Read, "list requests that left", func(scan Scan, l *store.LineTicket) error {
		return scan(&l.UserID, &l.Ticket, &l.Generation)
	}, leftRequests, int64(id), ticket, generation, max(limit, 0))
}
