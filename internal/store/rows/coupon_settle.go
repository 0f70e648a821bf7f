package rows

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// settleRecord is a request that a batch issues, or rejects with a row.
type settleRecord struct {
	Place      int             `json:"place"` // among the issued ones, from 1
	ID         reward.CouponID `json:"id"`
	UserID     string          `json:"user_id"`
	Code       string          `json:"code"`
	Generation int64           `json:"generation"`
	Ticket     int64           `json:"ticket"` // 0 if the request gets the next one
	Slot       int             `json:"slot"`
	Held       int             `json:"held"` // of the user before the batch
	Reason     string          `json:"reason"`
}

// settleColumns are the fields of settleRecord.
var settleColumns = []string{
	"place bigint", "id bigint", "user_id text", "code text", "generation bigint", "ticket bigint", "slot integer", "held bigint", "reason text",
}

// What a batch of requests $2 of template $1 is decided by, next to the template.
const (
	// slotsOfUsers reads the slots of the users $2.
	slotsOfUsers = `SELECT u.value, coalesce((SELECT string_agg(CAST(c.slot AS text), ' ')` + ofUser + `), '') FROM :list2 u`
	ofUser       = ` FROM coupons c WHERE c.template_id = $1 AND c.user_id = u.value AND c.slot IS NOT NULL`

	// latestOfUsers reads the latest coupon of each of the users $2 that is not cancelled and
	// has a slot. With MATERIALIZED, the subquery runs once for each user.
	latestOfUsers = `WITH latest AS MATERIALIZED (
  SELECT u.value AS user_id, (SELECT max(c.id) FILTER (WHERE c.status <> 2)` + ofUser + `) AS id FROM :list2 u
)
SELECT ` + couponColumns + ` FROM latest :latest_coupon`

	// settledRequests reads whether requests $2 are settled, and the reason of a rejection.
	// With $3, a coupon of a later generation counts, too.
	settledRequests = `SELECT r.place, (` + issuedAlready + `) IS NOT NULL OR $3 AND (` + issuedLater + `) IS NOT NULL,
  coalesce((SELECT j.reason` + rejectedAlready + `), '') FROM :line2 r`
	issuedAlready   = `SELECT 1 FROM coupons c WHERE c.template_id = $1 AND c.ticket = r.ticket AND c.generation = r.generation LIMIT 1`
	issuedLater     = `SELECT 1 FROM coupons c WHERE c.template_id = $1 AND c.user_id = r.user_id AND c.generation > r.generation LIMIT 1`
	rejectedAlready = ` FROM coupon_rejections j WHERE j.template_id = $1 AND j.ticket = r.ticket AND j.generation = r.generation LIMIT 1`
)

// The statements that write a batch. The first one has locked template $1.
const (
	// sameRequests returns a row if nothing of records $2 is settled, with $3 by a later
	// generation either, and the users of new coupons hold no more than they held. A coupon
	// that was cancelled leaves them more room: otherwise a batch would not get its turn
	// while coupons of its users are cancelled. $4 and $5 are the lowest and the highest ticket:
	// usually nothing between them is settled, so that no ticket is looked for by itself. They
	// are compared with the first row in order: without ORDER BY the planner may scan the table.
	sameRequests = `SELECT t.id FROM coupon_templates t WHERE t.id = $1 AND NOT EXISTS (SELECT 1 FROM :records2 r
  WHERE r.reason = '' AND r.held < (SELECT count(*) FROM coupons c WHERE c.template_id = $1 AND c.user_id = r.user_id AND c.slot IS NOT NULL)
  OR r.ticket > 0 AND (coalesce((SELECT c.ticket FROM coupons c WHERE c.template_id = $1 AND c.ticket >= $4 ORDER BY c.ticket LIMIT 1) <= $5, false) AND (` + issuedAlready + `) IS NOT NULL
    OR coalesce((SELECT j.ticket FROM coupon_rejections j WHERE j.template_id = $1 AND j.ticket >= $4 ORDER BY j.ticket LIMIT 1) <= $5, false) AND (SELECT 1` + rejectedAlready + `) IS NOT NULL)
  OR $3 AND (` + issuedLater + `) IS NOT NULL)`

	// settleTemplate counts $9 coupons and $12 used places, if the template is still one for
	// which the batch was decided, and has room for the coupons. The last settled ticket is then
	// at least $10. $11 is 1 for coupons that get the next tickets: nothing that is promised is
	// for them. $13 is the token of a lock, $14 whether the tickets are no longer those of
	// the gate, and $15 whether the gate must know. With $16, the template must be open. $17 is
	// the last settled ticket before, or -1 for any.
	settleTemplate = `UPDATE coupon_templates SET version = version + $15, live = live + $9, issued_total = issued_total + $9,
  settled = CASE WHEN settled + $9 * $11 < $10 THEN $10 ELSE settled + $9 * $11 END,
  used = CASE WHEN used + $12 > granted THEN granted ELSE used + $12 END,
  fence = CASE WHEN fence < $13 THEN $13 ELSE fence END, base = CASE WHEN $14 THEN generation ELSE base END
WHERE id = $1 AND archived_at IS NULL AND epoch = $2 AND generation = $3 AND path = $4 AND mode = $5 AND floor = $6
  AND per_user_limit = $7 AND hold_seconds = $8 AND valid_for = $18 AND (CAST($13 AS bigint) = 0 OR fence < $13) AND (CAST($17 AS bigint) = -1 OR settled = $17)
  AND (CAST($9 AS bigint) = 0 OR live + $9 + (granted - used) * $11 <= total_quantity
    AND (codes_imported = 0 OR issued_total + $9 + (granted - used) * $11 <= codes_imported))
  AND (NOT $16 OR (opens_at IS NULL OR opens_at <= :clock) AND (closes_at IS NULL OR closes_at > :clock)) RETURNING id`

	// insertCoupons inserts the coupons of records $2, $7 in number, that are issued at $3, end at $4, and have
	// status $5 for $6. One without an imported code fails the batch.
	insertCoupons = `INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, expires_at, slot, user_id, status, held_until, code_unseen, code)
SELECT r.id, t.id, r.generation, CASE WHEN r.ticket > 0 THEN r.ticket ELSE t.settled - $7 + r.place END, t.version, CAST($3 AS timestamptz), CAST($4 AS timestamptz),
  r.slot, r.user_id, CAST($5 AS smallint), :clock + CAST($6 AS interval), $5 = 4 AND t.codes_imported > 0, CASE WHEN t.codes_imported = 0 THEN r.code ELSE (
    SELECT k.code FROM coupon_code_imports i JOIN coupon_codes k ON k.import_id = i.id AND k.line = t.issued_total - $7 + r.place - i.first_number + 1
    WHERE i.template_id = t.id AND i.first_number <= t.issued_total - $7 + r.place ORDER BY i.first_number DESC LIMIT 1) END
FROM coupon_templates t CROSS JOIN :records2 r WHERE t.id = $1 AND r.reason = '' ORDER BY r.place RETURNING id, ticket, code, held_until`

	insertRejections = `INSERT INTO coupon_rejections (template_id, ticket, generation, version, at, user_id, reason)
SELECT t.id, r.ticket, r.generation, t.version, CAST($3 AS timestamptz), r.user_id, r.reason
FROM coupon_templates t CROSS JOIN :records2 r WHERE t.id = $1 AND r.reason <> ''`
)

// CouponSettle settles coupon requests in one transaction, by rules.SettleKind.
// CouponSettleParams.Check lists what is CodeInvalid. A coupon ID that is in use, or a code
// that is in use at the template, is CodeConflict. After an error nothing has changed.
//
// A batch whose users all get their first coupon is written without a read, if the caller
// knows the template. Any other one costs a read before. Before and after a batch, the
// template counts its coupons, and no ticket is settled twice. If the process dies in
// between, the batch is written with its offsets, or none of it.
func (t *Tables) CouponSettle(ctx context.Context, p store.CouponSettleParams) (result store.CouponSettleResult, err error) {
	if err := p.Check(); err != nil {
		return result, err
	}
	const what = "settle coupons"
	batch := p.Batch()
	if p.Known != nil {
		if s, sure := batch.Assume(*p.Known); sure {
			result, err = t.writeSettlement(ctx, what, &p, batch, s, nil)
			if !errors.Is(err, ErrStale) {
				return result, err
			}
		}
	}
	err = whileStale(what, func() error {
		was, facts, err := t.settleFacts(ctx, what, &p)
		if err != nil {
			return err
		}
		result, err = t.writeSettlement(ctx, what, &p, batch, batch.Settle(was, facts), facts.Existing)
		return err
	})
	if err != nil {
		return store.CouponSettleResult{}, err
	}
	return result, nil
}

// settleFacts reads what a batch is decided by.
func (t *Tables) settleFacts(ctx context.Context, what string, p *store.CouponSettleParams) (was reward.CouponTemplate, f rules.Facts, err error) {
	users, line := make([]string, len(p.Requests)), make([]lineRecord, len(p.Requests))
	for i, r := range p.Requests {
		r = r.Storable()
		users[i], line[i] = r.UserID, lineRecord{Place: i, UserID: r.UserID, Ticket: r.Ticket, Generation: r.Generation}
	}
	ofUsers := []any{int64(p.TemplateID), jsonList(users)}
	err = t.db.Snapshot(ctx, what, func() []Statement {
		was = reward.CouponTemplate{}
		f = rules.Facts{Holdings: make(map[string]rules.Holding), Existing: make(map[string]reward.Coupon), Known: make(map[int]bool), Left: make(map[int]bool)}
		all := []Statement{
			{SQL: drawNow, Args: ofUsers[:1], Row: func(scan Scan) error { return ScanTemplate(scan, &was, (*at)(&f.Clock)) }},
			{SQL: slotsOfUsers, Args: ofUsers, Row: func(scan Scan) error {
				var user, slots string
				if err := scan(&user, &slots); err != nil {
					return err
				}
				var h rules.Holding
				for slot := range strings.FieldsSeq(slots) {
					n, err := strconv.Atoi(slot)
					if err != nil {
						return err
					}
					h.Slots = append(h.Slots, n)
				}
				f.Holdings[user] = h
				return nil
			}},
			{SQL: latestOfUsers, Args: ofUsers, Row: func(scan Scan) error {
				var c reward.Coupon
				err := scanCoupon(scan, &c)
				f.Existing[c.UserID] = c
				f.Holdings[c.UserID] = rules.Holding{Slots: f.Holdings[c.UserID].Slots, Latest: c.ID}
				return err
			}},
		}
		if p.Kind == rules.SettleDirect {
			return all // the tickets are new
		}
		args := []any{int64(p.TemplateID), jsonOf(line), p.Kind == rules.SettleListed}
		return append(all, Statement{SQL: settledRequests, Args: args, Row: func(scan Scan) error {
			var place int
			var issued bool
			var reason string
			err := scan(&place, &issued, &reason)
			f.Known[place], f.Left[place] = issued || reason != "", reason == reward.ReasonLeft
			return err
		}})
	})
	if err == nil && was.ID == 0 {
		err = store.NoTemplate(p.TemplateID)
	}
	return was, f, err
}

// writeSettlement writes what was decided about a batch. It fails with ErrStale if that is not
// what would be decided now: a request is settled, a user holds more, or there is no
// room for the coupons.
func (t *Tables) writeSettlement(ctx context.Context, what string, p *store.CouponSettleParams, b *rules.IssueBatch, s rules.Settlement,
	existing map[string]reward.Coupon,
) (store.CouponSettleResult, error) {
	offsets := p.Offsets
	if s.Refused != rules.NotRefused || slices.ContainsFunc(b.Requests, func(r rules.CouponRequest) bool { return s.Unsettled(b, &r) == rules.RequestNeverGiven }) {
		offsets = nil
	}
	was, next := &s.Was, s.Template
	grows := next.Version - was.Version
	if grows == 0 && next.Fence == was.Fence && len(offsets) == 0 {
		return store.Settled(&s, b, existing), nil
	}
	id, direct, later := int64(was.ID), b.Kind == rules.SettleDirect, b.Kind == rules.SettleListed
	records := []settleRecord{}
	issued, rejected, used := 0, 0, 0
	held := false                                     // a user who gets a coupon had some, which may be cancelled by now
	lowest, highest := int64(math.MaxInt64), int64(0) // tickets
	byID := make(map[reward.CouponID]*rules.Decision)
	for i := range s.Decisions {
		d := &s.Decisions[i]
		if d.Reason == reward.ReasonLeft || direct && d.Reason != "" {
			continue // stored already, or not at all
		}
		r := b.Requests[d.At].Storable()
		record := settleRecord{UserID: r.UserID, Generation: r.Generation, Ticket: d.Ticket, Reason: d.Reason}
		if d.Reason == "" {
			issued++
			record.Place, record.ID, record.Code, record.Slot, record.Held = issued, r.CouponID, r.Code, d.Slot, d.Held
			byID[r.CouponID] = d
			held = held || d.Held > 0
		} else {
			rejected++
		}
		if direct {
			record.Generation, record.Ticket = was.Generation, 0
		} else {
			used++
			lowest, highest = min(lowest, d.Ticket), max(highest, d.Ticket)
		}
		records = append(records, record)
	}
	top, expected, nextTickets := next.Settled, int64(-1), 0
	switch b.Kind {
	case rules.SettleInOrder:
		expected = was.Settled
	case rules.SettleDirect:
		top, nextTickets = 0, 1
	}
	counts := []any{
		id, was.Epoch, was.Generation, string(was.Path), string(was.Mode), was.Floor, was.PerUserLimit, int64(was.HoldFor / time.Second),
		issued, top, nextTickets, used, b.Fence, next.Base != was.Base, grows, direct && issued > 0, expected,
		int64(was.ValidFor / time.Second),
	}
	written := jsonOf(records)
	var holdings []store.CouponHolding
	stored, err := t.inTemplate(ctx, what, p.TemplateID, func() []Statement {
		holdings = nil
		all := []Statement{
			{SQL: sameRequests, Args: []any{id, written, later, lowest, highest}, Must: true},
			{SQL: settleTemplate, Args: counts, Must: true},
		}
		if issued > 0 {
			c := b.Coupon(was, rules.Decision{})
			var hold any
			if lasts := rules.HoldLasts(was); lasts > 0 {
				hold = lasts
			}
			all = append(all, Statement{
				SQL: insertCoupons, Args: []any{id, written, c.IssuedAt, orNull(c.ExpiresAt), int16(c.Status), hold, issued},
				Row: func(scan Scan) error {
					var coupon reward.CouponID
					var d rules.Decision
					err := scan((*int64)(&coupon), &d.Ticket, &d.Code, (*at)(&d.HeldUntil))
					into := byID[coupon]
					into.Ticket, into.Code, into.HeldUntil = d.Ticket, d.Code, d.HeldUntil
					return err
				},
			})
			if held {
				all = append(all, Statement{SQL: changedHolders, Args: []any{id}, Row: into(&holdings, scanHolding)})
			}
			if hold == nil && t.dialect.TellIssued != "" {
				all = append(all, Statement{SQL: t.dialect.TellIssued, Args: []any{id}})
			}
		}
		if rejected > 0 {
			all = append(all, Statement{SQL: insertRejections, Args: []any{id, written, b.Now}})
		}
		return append(all, PutOffsets(offsets)...)
	})
	switch {
	case errors.Is(err, ErrTaken):
		return store.CouponSettleResult{}, store.CodeTaken(err)
	case err != nil:
		return store.CouponSettleResult{}, err
	}
	s.Was.Version, s.Template = stored.Version-grows, stored
	result := store.Settled(&s, b, existing)
	if held {
		result.Holdings = holdings
	}
	return result, nil
}

// PutOffsets returns the statements that store the next offsets of partitions. An offset never
// moves back.
func PutOffsets(offsets []store.Offset) []Statement {
	var all []Statement
	for _, o := range highest(offsets) { // transactions lock them in one order
		all = append(all, Statement{SQL: `INSERT INTO kafka_offsets (topic, part, next) VALUES ($1, $2, $3)
ON CONFLICT (topic, part) DO UPDATE SET next = excluded.next WHERE kafka_offsets.next < excluded.next`, Args: []any{o.Topic, o.Partition, o.Next}})
	}
	return all
}
