package rows

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// A rejection is read as a coupon without an ID: IssuedAt is its time, and CancelReason its
// reason.
const (
	rejectionSQL = `SELECT 0, '', r.template_id, r.user_id, r.generation, r.ticket, 0, r.at, ` + noTime + `, ` + noTime + `, ` + noTime + `, ` + noTime + `, r.reason, '' `
	noTime       = `CAST(NULL AS timestamptz)`

	// latestOutcomes reads the latest coupon and the latest rejection of each of the users $2
	// at template $1. With MATERIALIZED, the subqueries run once for each user.
	latestOutcomes = `WITH latest AS MATERIALIZED (
  SELECT u.value AS user_id, (SELECT l.id FROM coupons l` + latestOfUser + `) AS id,
    (SELECT l.ticket FROM coupon_rejections l` + latestOfUser + `) AS ticket, (SELECT l.generation FROM coupon_rejections l` + latestOfUser + `) AS generation
  FROM :list2 u
)
SELECT ` + couponColumns + ` FROM latest :latest_coupon
UNION ALL
` + rejectionSQL + `FROM latest :latest_rejection`
	latestOfUser = ` WHERE l.template_id = $1 AND l.user_id = u.value ORDER BY l.generation DESC, l.ticket DESC LIMIT 1`

	// historyOfUser reads the latest $2 outcomes of user $1.
	historyOfUser = `SELECT * FROM (
  SELECT ` + couponColumns + ` FROM coupons c WHERE c.user_id = $1 ORDER BY c.issued_at DESC, c.id DESC LIMIT $2) AS c
UNION ALL
SELECT * FROM (` + rejectionSQL + `FROM coupon_rejections r WHERE r.user_id = $1 ORDER BY r.at DESC LIMIT $2) AS r
ORDER BY issued_at DESC, template_id DESC, ticket DESC, generation DESC LIMIT $2`
)

// scanOutcome reads couponColumns, or the columns of rejectionSQL.
func scanOutcome(scan Scan, o *reward.IssueOutcome) error {
	var c reward.Coupon
	err := scanCoupon(scan, &c)
	*o = reward.IssueOutcome{TemplateID: c.TemplateID, UserID: c.UserID, Generation: c.Generation, Ticket: c.Ticket, At: c.IssuedAt}
	if c.ID == 0 {
		o.Reason = c.CancelReason
	} else {
		o.Coupon = c
	}
	return err
}

// IssueOutcomes returns the latest outcome of each user at a template. The latest is the one
// of the highest generation, then with the highest ticket: after Redis lost its data, a lower
// ticket may be the later one. Users without an outcome are left out.
func (t *Tables) IssueOutcomes(ctx context.Context, id reward.TemplateID, users []string) (latest map[string]reward.IssueOutcome, err error) {
	err = t.db.Read(ctx, "read the outcomes of requests", func() Statement {
		latest = make(map[string]reward.IssueOutcome)
		return Statement{SQL: latestOutcomes, Args: []any{int64(id), jsonList(store.StorableUsers(users))}, Row: func(scan Scan) error {
			var o reward.IssueOutcome
			err := scanOutcome(scan, &o)
			known, ok := latest[o.UserID]
			if !ok || cmp.Or(cmp.Compare(o.Generation, known.Generation), cmp.Compare(o.Ticket, known.Ticket)) > 0 {
				latest[o.UserID] = o
			}
			return err
		}}
	})
	if err != nil {
		return nil, err
	}
	return latest, nil
}

// IssueHistory returns at most limit outcomes of a user at all templates, the latest first.
func (t *Tables) IssueHistory(ctx context.Context, user string, limit int) ([]reward.IssueOutcome, error) {
	return list(ctx, t.db.Read, "read the history of a user", scanOutcome, historyOfUser, reward.SanitizeText(user), max(limit, 0))
}

const (
	// expiredHolds reads which of the users $2 have let $3 holds of template $1 end, when the
	// latest of them ended, how long a hold lasts, and the time.
	expiredHolds = `SELECT u.value, (SELECT max(c.cancelled_at)` + holdsOfUser + `), t.hold_seconds, :clock
FROM coupon_templates t CROSS JOIN :list2 u WHERE t.id = $1 AND (SELECT count(*)` + holdsOfUser + `) >= $3`
	// holdsOfUser does not name the status, which the reason implies: the planner would read all
	// cancelled coupons of the template for each user.
	holdsOfUser = ` FROM coupons c WHERE c.template_id = $1 AND c.user_id = u.value AND c.cancel_reason = '` + reward.ReasonHoldExpired + `'`
)

// ExpiredHolds returns those users who have let at least holds holds of a template end
// without a confirmation, the latest within the time that a hold lasts. The value is the rest
// of that time, by the clock of the database.
func (t *Tables) ExpiredHolds(ctx context.Context, id reward.TemplateID, users []string, holds int) (rest map[string]time.Duration, err error) {
	err = t.db.Read(ctx, "read the holds that ended", func() Statement {
		rest = make(map[string]time.Duration)
		return Statement{SQL: expiredHolds, Args: []any{int64(id), jsonList(store.StorableUsers(users)), holds}, Row: func(scan Scan) error {
			var user string
			var ended, now time.Time
			var seconds int64
			err := scan(&user, (*at)(&ended), &seconds, (*at)(&now))
			if left := ended.Add(time.Duration(seconds) * time.Second).Sub(now); left > 0 {
				rest[user] = left
			}
			return err
		}}
	})
	return rest, err
}

const (
	// settledAbove reads the tickets of template $1 that were settled above version $2, at
	// most $3 of coupons and of rejections each.
	settledAbove = `SELECT * FROM (
  SELECT c.user_id, c.generation, c.ticket, false FROM coupons c WHERE c.template_id = $1 AND c.version > $2 ORDER BY c.version LIMIT $3) AS c
UNION ALL
SELECT * FROM (
  SELECT r.user_id, r.generation, r.ticket, r.reason = '` + reward.ReasonLeft + `' FROM coupon_rejections r WHERE r.template_id = $1 AND r.version > $2 ORDER BY r.version LIMIT $3) AS r
ORDER BY ticket, generation`

	// holdingsAbove reads the holdings of the users of coupons that changed above version $2.
	// It reads nothing if these are $3 or more.
	holdingsAbove = `WITH changed AS MATERIALIZED (
  SELECT c.user_id FROM coupons c WHERE c.template_id = $1 AND c.version > $2 ORDER BY c.version LIMIT $3
)
` + holdingsOf + `(SELECT DISTINCT user_id FROM changed WHERE (SELECT count(*) FROM changed) < $3) u ORDER BY u.user_id`

	holders = `SELECT c.user_id, count(*), coalesce(max(c.id) FILTER (WHERE c.status <> 2), 0)
FROM coupons c WHERE c.template_id = $1 AND c.slot IS NOT NULL GROUP BY c.user_id ORDER BY c.user_id`
)

// CouponChanges returns what changed above a version, from one snapshot: the template, the
// holding of every user whose coupons changed, by user, and the tickets that were settled or
// whose coupon was cancelled, by ticket, then generation. The tickets may be of any
// generation. If there are more than limit, More is set and both lists are empty: there are
// never more holdings than tickets.
func (t *Tables) CouponChanges(ctx context.Context, id reward.TemplateID, above int64, limit int) (c store.CouponChanges, err error) {
	limit = max(limit, 0)
	err = t.db.Snapshot(ctx, "read the changes of a coupon template", func() []Statement {
		c = store.CouponChanges{}
		args := []any{int64(id), above, int64(limit) + 1}
		return []Statement{
			{SQL: templateSQL, Args: args[:1], Row: func(scan Scan) error { return ScanTemplate(scan, &c.Template) }},
			{SQL: settledAbove, Args: args, Row: into(&c.Settled, func(scan Scan, s *store.SettledRequest) error {
				return scan(&s.UserID, &s.Generation, &s.Ticket, &s.Left)
			})},
			{SQL: holdingsAbove, Args: args, Row: into(&c.Holdings, scanHolding)},
		}
	})
	if err == nil && c.Template.ID == 0 {
		err = store.NoTemplate(id)
	}
	if err != nil {
		return store.CouponChanges{}, err
	}
	if len(c.Settled) > limit {
		c.More, c.Holdings, c.Settled = true, nil, nil
	}
	return c, nil
}

// CouponSnapshot reads a template and the holdings of all users with a slot, from one
// snapshot. It calls begin once, and then facts with at most BatchMax holdings at a time,
// ordered by the bytes of the user ID. It stops at an error of begin or facts and returns it.
//
// The rows arrive in one stream as the caller takes them, so the connection is never idle in
// a transaction.
func (t *Tables) CouponSnapshot(ctx context.Context, id reward.TemplateID, begin func(reward.CouponTemplate) error, facts func([]store.CouponHolding) error) error {
	var begun bool
	var part []store.CouponHolding
	err := t.db.SnapshotLong(ctx, "read a snapshot of a coupon template", func() []Statement {
		return []Statement{
			{SQL: templateSQL, Args: []any{int64(id)}, Row: func(scan Scan) error {
				if begun { // the caller has parts of an earlier try
					return errors.New("the database ended the snapshot")
				}
				begun = true
				var c reward.CouponTemplate
				if err := ScanTemplate(scan, &c); err != nil {
					return err
				}
				return begin(c)
			}},
			{SQL: holders, Args: []any{int64(id)}, Row: func(scan Scan) error {
				if len(part) == store.BatchMax {
					if err := facts(part); err != nil {
						return err
					}
					part = nil
				}
				return into(&part, scanHolding)(scan)
			}},
		}
	})
	switch {
	case err != nil:
		return err
	case !begun:
		return store.NoTemplate(id)
	case len(part) > 0:
		return facts(part)
	}
	return nil
}

// waitingLine reads which requests $3 still wait at template $1, whose gate has generation
// $2. The LIMITs keep the planner from comparing them with all rows of the template, which is
// good only while these are few.
const waitingLine = `SELECT a.place FROM :line3 a
WHERE (SELECT 1 FROM coupons c
    WHERE c.template_id = $1 AND c.ticket = a.ticket AND c.generation <= $2 AND c.user_id = a.user_id LIMIT 1) IS NULL
  AND (SELECT 1 FROM coupon_rejections r
    WHERE r.template_id = $1 AND r.ticket = a.ticket AND r.generation <= $2 AND r.user_id = a.user_id
      AND (r.reason <> '` + reward.ReasonLeft + `' OR r.generation = a.generation) LIMIT 1) IS NULL
  AND (SELECT 1 FROM coupons c WHERE c.template_id = $1 AND c.user_id = a.user_id AND c.generation > $2 LIMIT 1) IS NULL
  AND (SELECT 1 FROM coupon_rejections r WHERE r.user_id = a.user_id AND r.template_id = $1 AND r.generation > $2 LIMIT 1) IS NULL`

// lineRecord is a request in a waiting line.
type lineRecord struct {
	Place      int    `json:"place"`
	UserID     string `json:"user_id"`
	Ticket     int64  `json:"ticket"`
	Generation int64  `json:"generation"`
}

// lineColumns are the fields of lineRecord.
var lineColumns = []string{"place bigint", "user_id text", "ticket bigint", "generation bigint"}

// CouponWaiting reports which users in the line of a gate still wait, in order. generation is
// the gate's, and there are at most BatchMax users. A user no longer waits if their ticket was
// settled under this generation or an earlier one, or if exactly their request, with its
// generation, left the line. They do not wait either if a request of theirs was settled or
// left under a later generation, with any ticket: that answered them.
func (t *Tables) CouponWaiting(ctx context.Context, id reward.TemplateID, generation int64, line []store.LineTicket) ([]bool, error) {
	records := make([]lineRecord, len(line))
	for i, l := range line {
		records[i] = lineRecord{Place: i, UserID: reward.SanitizeText(l.UserID), Ticket: l.Ticket, Generation: l.Generation}
	}
	waiting, err := list(ctx, t.db.Read, "look up a waiting line", scanOne[int64], waitingLine, int64(id), generation, jsonOf(records))
	if err != nil {
		return nil, err
	}
	waits := make([]bool, len(line))
	for _, place := range waiting {
		waits[place] = true
	}
	return waits, nil
}
