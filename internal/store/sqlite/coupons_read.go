package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

const couponSQL = `SELECT ` + rows.CouponColumns + ` FROM coupons c `

func scanCoupon(found *sql.Rows) (c reward.Coupon, err error) {
	err = rows.ScanCoupon(found.Scan, &c)
	return c, err
}

const (
	// latestCoupons and latestRejections read the outcomes of the users ?2 at
	// template ?1. store.LatestOutcomes then picks the latest of each user.
	latestCoupons    = couponSQL + `WHERE c.template_id = ?1 AND c.user_id IN (SELECT value FROM json_each(?2))`
	latestRejections = rejectionSQL + `WHERE r.user_id IN (SELECT value FROM json_each(?2)) AND r.template_id = ?1`

	rejectionSQL = `SELECT r.template_id, r.user_id, r.generation, r.ticket, r.reason, r.at FROM coupon_rejections r `

	historyCoupons    = couponSQL + `WHERE c.user_id = ?1 ORDER BY c.issued_at DESC, c.id DESC LIMIT ?2`
	historyRejections = rejectionSQL + `WHERE r.user_id = ?1 ORDER BY r.at DESC LIMIT ?2`
)

// outcomes runs two statements, one for coupons and one for rejections, and
// returns the outcomes that they read.
func (s *Store) outcomes(ctx context.Context, what, coupons, rejections string, args ...any) ([]reward.IssueOutcome, error) {
	list, err := collect(ctx, s.reader.as(what), func(rows *sql.Rows) (reward.IssueOutcome, error) {
		c, err := scanCoupon(rows)
		return store.IssuedOutcome(&c), err
	}, coupons, args...)
	if err != nil {
		return nil, err
	}
	rejected, err := collect(ctx, s.reader.as(what), func(rows *sql.Rows) (o reward.IssueOutcome, err error) {
		var at int64
		err = rows.Scan(&o.TemplateID, &o.UserID, &o.Generation, &o.Ticket, &o.Reason, &at)
		o.At = timeOf(at)
		return o, err
	}, rejections, args...)
	return append(list, rejected...), err
}

// IssueOutcomes returns the latest outcome of each user at a template.
func (s *Store) IssueOutcomes(ctx context.Context, id reward.TemplateID, users []string) (map[string]reward.IssueOutcome, error) {
	array, err := json.Marshal(store.StorableUsers(users))
	if err != nil {
		return nil, err
	}
	list, err := s.outcomes(ctx, "read the outcomes of requests", latestCoupons, latestRejections, int64(id), string(array))
	if err != nil {
		return nil, fmt.Errorf("read the outcomes of requests: %w", err)
	}
	return store.LatestOutcomes(list), nil
}

// expiredHolds reads who of ?2 has let ?3 holds of template ?1 end, the latest within the time
// that a hold lasts, and how much longer each waits.
const expiredHolds = `SELECT c.user_id, max(c.cancelled_at) + t.hold_seconds * 1000000 - ` + clock + ` AS rest FROM coupons c JOIN coupon_templates t ON t.id = c.template_id
WHERE c.template_id = ?1 AND c.user_id IN (SELECT value FROM json_each(?2)) AND c.status = 2 AND c.cancel_reason = '` + reward.ReasonHoldExpired + `'
GROUP BY c.user_id HAVING count(*) >= ?3 AND rest > 0`

// ExpiredHolds returns who has let holds end, and how much longer they wait.
func (s *Store) ExpiredHolds(ctx context.Context, id reward.TemplateID, users []string, holds int) (map[string]time.Duration, error) {
	array, err := json.Marshal(store.StorableUsers(users))
	if err != nil {
		return nil, err
	}
	out := make(map[string]time.Duration)
	_, err = collect(ctx, s.reader.as("read the holds that ended"), func(rows *sql.Rows) (struct{}, error) {
		var user string
		var micros int64
		err := rows.Scan(&user, &micros)
		out[user] = time.Duration(micros) * time.Microsecond
		return struct{}{}, err
	}, expiredHolds, int64(id), string(array), holds)
	return out, err
}

// IssueHistory returns the outcomes of a user at all templates, the latest
// first.
func (s *Store) IssueHistory(ctx context.Context, user string, limit int) ([]reward.IssueOutcome, error) {
	limit = max(limit, 0)
	list, err := s.outcomes(ctx, "read the history of a user", historyCoupons, historyRejections, reward.SanitizeText(user), limit)
	if err != nil {
		return nil, fmt.Errorf("read the history of a user: %w", err)
	}
	store.SortOutcomes(list)
	return list[:min(len(list), limit)], nil
}

const (
	changedCoupons = `SELECT user_id, generation, ticket, 0 FROM coupons WHERE template_id = ? AND version > ? ORDER BY version LIMIT ?`

	changedRejections = `SELECT user_id, generation, ticket, reason = '` + reward.ReasonLeft + `' FROM coupon_rejections
WHERE template_id = ? AND version > ? ORDER BY version LIMIT ?`

	holdersSQL = `SELECT user_id, count(*), coalesce(max(CASE WHEN status <> 2 THEN id END), 0) FROM coupons
WHERE template_id = ? AND slot IS NOT NULL GROUP BY user_id ORDER BY user_id`
)

func scanSettled(rows *sql.Rows) (a store.SettledRequest, err error) {
	err = rows.Scan(&a.UserID, &a.Generation, &a.Ticket, &a.Left)
	return a, err
}

// CouponChanges returns what changed above a version.
func (s *Store) CouponChanges(ctx context.Context, id reward.TemplateID, above int64, limit int) (store.CouponChanges, error) {
	limit = max(limit, 0)
	var c store.CouponChanges
	err := s.snapshot(ctx, "read the changes of a coupon template", func(ctx context.Context, q querier) (err error) {
		if c.Template, err = templateOf(ctx, q, id); err != nil {
			return err
		}
		coupons, err := collect(ctx, q, scanSettled, changedCoupons, int64(id), above, limit+1)
		if err != nil {
			return err
		}
		rejections, err := collect(ctx, q, scanSettled, changedRejections, int64(id), above, limit+1)
		if err != nil {
			return err
		}
		if c.Settled = append(coupons, rejections...); len(c.Settled) > limit {
			return nil
		}
		seen := make(map[string]bool, len(coupons))
		for _, a := range coupons {
			if seen[a.UserID] {
				continue
			}
			seen[a.UserID] = true
			h, err := holdingOf(ctx, q, id, a.UserID)
			if err != nil {
				return err
			}
			c.Holdings = append(c.Holdings, store.CouponHolding{UserID: a.UserID, Held: len(h.Slots), CouponID: h.Latest})
		}
		return nil
	})
	if err != nil {
		return store.CouponChanges{}, err
	}
	c.Bound(limit)
	return c, nil
}

// CouponSnapshot reads the holdings of all users with a slot.
func (s *Store) CouponSnapshot(ctx context.Context, id reward.TemplateID, begin func(reward.CouponTemplate) error,
	facts func([]store.CouponHolding) error,
) error {
	return s.snapshot(ctx, "read a snapshot of a coupon template", func(ctx context.Context, q querier) error {
		t, err := templateOf(ctx, q, id)
		if err != nil {
			return err
		}
		if err := begin(t); err != nil {
			return err
		}
		portion := make([]store.CouponHolding, 0, store.BatchMax)
		_, err = collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
			var f store.CouponHolding
			if err := rows.Scan(&f.UserID, &f.Held, &f.CouponID); err != nil {
				return struct{}{}, err
			}
			if portion = append(portion, f); len(portion) < store.BatchMax {
				return struct{}{}, nil
			}
			full := portion
			portion = make([]store.CouponHolding, 0, store.BatchMax)
			return struct{}{}, facts(full)
		}, holdersSQL, int64(id))
		if err != nil || len(portion) == 0 {
			return err
		}
		return facts(portion)
	})
}

// waitingLine reads the positions of those users of the line ?3 that still wait at
// template ?1, whose gate has generation ?2. ?3 is a list of [user, ticket, generation].
const waitingLine = `SELECT a.key FROM json_each(?3) a
WHERE NOT EXISTS (SELECT 1 FROM coupons c WHERE c.template_id = ?1 AND c.ticket = a.value ->> 1 AND c.generation <= ?2 AND c.user_id = a.value ->> 0)
  AND NOT EXISTS (SELECT 1 FROM coupon_rejections r
    WHERE r.template_id = ?1 AND r.ticket = a.value ->> 1 AND r.generation <= ?2 AND r.user_id = a.value ->> 0
      AND (r.reason <> '` + reward.ReasonLeft + `' OR r.generation = a.value ->> 2))
  AND NOT EXISTS (SELECT 1 FROM coupons c WHERE c.template_id = ?1 AND c.user_id = a.value ->> 0 AND c.generation > ?2)
  AND NOT EXISTS (SELECT 1 FROM coupon_rejections r WHERE r.template_id = ?1 AND r.user_id = a.value ->> 0 AND r.generation > ?2)`

// CouponWaiting reports which users in line still wait.
func (s *Store) CouponWaiting(ctx context.Context, id reward.TemplateID, generation int64, line []store.LineTicket) ([]bool, error) {
	requests := make([][3]any, len(line))
	for i, l := range line {
		requests[i] = [3]any{reward.SanitizeText(l.UserID), l.Ticket, l.Generation}
	}
	array, err := json.Marshal(requests)
	if err != nil {
		return nil, err
	}
	waiting, err := collect(ctx, s.reader.as("look up a waiting line"), scanInt, waitingLine, int64(id), generation, string(array))
	if err != nil {
		return nil, fmt.Errorf("look up a waiting line: %w", err)
	}
	out := make([]bool, len(line))
	for _, i := range waiting {
		out[i] = true
	}
	return out, nil
}
