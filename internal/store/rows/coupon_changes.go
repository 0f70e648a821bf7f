package rows

import (
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	// useCoupon and confirmCoupon write what nearly every call wants, without a read before.
	// Their conditions are a status and a time; of every other coupon, rules tell what is
	// wrong. Both need no lock of the template: the coupon counts as before.
	useCoupon     = `UPDATE coupons SET status = 1, used_at = $2 WHERE id = $1 AND status = 0 AND (expires_at IS NULL OR expires_at > $2) RETURNING id`
	confirmCoupon = `UPDATE coupons SET status = 0, held_until = NULL WHERE id = $1 AND status = 4 AND held_until > :clock RETURNING id`

	// cancelled follows the SET of the statements that cancel coupons c of template t. A slot
	// that is not freed counts for the limit of the user.
	cancelled = ` status = 2, version = t.version + 1, slot = CASE WHEN t.reissue THEN NULL ELSE c.slot END`

	// couponsNamed reads which of coupons $2 template $1 has.
	couponsNamed = `SELECT ` + couponColumns + ` FROM :cancels2 r :named_coupon`

	// cancelCoupons cancels coupons $2 of template $1 whose status is still the given one.
	cancelCoupons = `WITH due AS MATERIALIZED (SELECT r.id AS coupon, r.status AS was FROM :cancels2 r)
UPDATE coupons AS c SET` + cancelled + `, cancelled_at = $3, cancelled_by = $4
FROM due d, coupon_templates t WHERE t.id = $1 AND t.archived_at IS NULL AND c.id = d.coupon AND c.status = d.was RETURNING ticket`

	// cancelledAll returns a row if $2 coupons of template $1 are cancelled by then.
	cancelledAll = `SELECT t.id FROM coupon_templates t WHERE t.id = $1 AND (SELECT count(*) FROM coupons c WHERE ` + nextVersion + `) = $2`

	// endHolds cancels at most $2 coupons of template $1 whose hold has ended, the oldest
	// first. One that is confirmed at the same time stays.
	endHolds = `WITH due AS MATERIALIZED (
  SELECT id AS coupon FROM coupons WHERE template_id = $1 AND status = 4 AND held_until <= (SELECT :clock) ORDER BY held_until LIMIT $2
)
UPDATE coupons AS c SET` + cancelled + `, cancelled_at = :clock, cancel_reason = '` + reward.ReasonHoldExpired + `'
FROM due d, coupon_templates t WHERE t.id = $1 AND t.archived_at IS NULL AND c.id = d.coupon AND c.status = 4 RETURNING ticket`
)

// The statements that follow the cancelling of coupons of template $1, in this order. The
// coupons have the next version of the template: the transaction has locked it, so that
// nobody else gives that version.
const (
	nextVersion = `c.template_id = t.id AND c.version = t.version + 1`
	// unseen is true of a coupon that was HELD until its end: nobody has seen its imported code.
	unseen = `c.code_unseen AND c.held_until IS NOT NULL`
	// lastImport has the last codes of a template.
	lastImport = `(SELECT i.id FROM coupon_code_imports i WHERE i.template_id = $1 AND i.first_number IS NOT NULL ORDER BY i.first_number DESC LIMIT 1)`

	// returnCodes moves unseen codes behind the last one, so that they are given again. The
	// LIMIT keeps the planner from joining all codes of an import with the coupons.
	returnCodes = `WITH freed AS MATERIALIZED (
  SELECT i.id AS import_id, c.held_until, c.id AS coupon, (SELECT k.line FROM coupon_codes k WHERE k.import_id = i.id AND k.code = c.code:by_locale LIMIT 1) AS line
  FROM coupon_templates t JOIN coupons c ON ` + nextVersion + ` AND ` + unseen + `
    JOIN coupon_code_imports i ON i.template_id = t.id AND i.first_number IS NOT NULL
  WHERE t.id = $1
), moved AS MATERIALIZED (
  SELECT f.import_id, f.line, row_number() OVER (ORDER BY f.held_until, f.coupon) AS place FROM freed f WHERE f.line IS NOT NULL
)
UPDATE coupon_codes AS k SET import_id = l.id, line = l.codes + m.place
FROM moved m, coupon_code_imports l WHERE l.template_id = $1 AND l.id = ` + lastImport + ` AND k.import_id = m.import_id AND k.line = m.line`

	// forgetCodesOf lets other coupons have the codes.
	forgetCodesOf = `UPDATE coupons AS c SET code = 'returned-' || c.id FROM coupon_templates t WHERE t.id = $1 AND ` + nextVersion + ` AND ` + unseen

	// returnedNow are the codes that returnCodes has moved: those behind the end of import i.
	returnedNow = ` FROM coupon_codes k WHERE k.import_id = i.id AND k.line > i.codes`

	// freePlaces frees the places of the coupons. A code that returns gets a new number.
	freePlaces = `UPDATE coupon_templates AS t SET version = t.version + 1, live = t.live - n.ended,
  codes_imported = t.codes_imported + n.returned, codes_returned = t.codes_returned + n.returned
FROM (SELECT count(*) AS ended, coalesce((SELECT (SELECT count(*)` + returnedNow + `) FROM coupon_code_imports i WHERE i.template_id = $1 AND i.id = ` + lastImport + `), 0) AS returned
  FROM coupon_templates t JOIN coupons c ON ` + nextVersion + ` WHERE t.id = $1) n
WHERE t.id = $1 AND n.ended > 0`

	// lengthenImport counts the codes that returned.
	lengthenImport = `UPDATE coupon_code_imports AS i SET codes = i.codes + (SELECT count(*)` + returnedNow + `)
WHERE i.template_id = $1 AND i.id = ` + lastImport + ` AND EXISTS (SELECT 1` + returnedNow + `)`

	// changedHolders reads the holdings of the users of the coupons that the latest version
	// has changed. As subqueries, they read no coupons of other users.
	changedHolders = `WITH changed AS MATERIALIZED (
  SELECT c.user_id FROM coupon_templates t JOIN coupons c ON c.template_id = t.id AND c.version = t.version WHERE t.id = $1
)
` + holdingsOf + `(SELECT DISTINCT user_id FROM changed) u ORDER BY u.user_id`

	// holdingsOf comes before a FROM item with users u of template $1.
	holdingsOf = `SELECT u.user_id, (SELECT count(*)` + ofHolder + `), coalesce((SELECT max(c.id) FILTER (WHERE c.status <> 2)` + ofHolder + `), 0)
FROM `
	ofHolder = ` FROM coupons c WHERE c.template_id = $1 AND c.user_id = u.user_id AND c.slot IS NOT NULL`
)

// changeCoupon runs a statement that returns a row if it changes coupon $1, and reads the
// coupon.
func (t *Tables) changeCoupon(ctx context.Context, what string, id reward.CouponID, sql string, args ...any) (c reward.Coupon, changed bool, err error) {
	err = t.db.Write(ctx, what, func() []Statement {
		c, changed = reward.Coupon{}, false
		return []Statement{
			{SQL: sql, Args: append([]any{int64(id)}, args...), Row: seen(&changed)},
			{SQL: couponSQL, Args: []any{int64(id)}, Row: func(scan Scan) error { return scanCoupon(scan, &c) }},
		}
	})
	if err == nil && c.ID == 0 {
		err = store.NoCoupon(id)
	}
	return c, changed, err
}

// CouponUse marks an ISSUED coupon as USED. Its errors are those of rules.CheckUse, and
// CodeCouponNotFound.
func (t *Tables) CouponUse(ctx context.Context, id reward.CouponID, now time.Time) (used reward.Coupon, err error) {
	now = instant(now)
	const what = "use a coupon"
	err = reread(what, func() (done bool, err error) {
		used, done, err = t.changeCoupon(ctx, what, id, useCoupon, now)
		if err == nil && !done {
			err = rules.CheckUse(&used, now) // nil if it was confirmed in between
		}
		return done, err
	})
	if err != nil {
		return reward.Coupon{}, err
	}
	return used, nil
}

// CouponConfirm makes a HELD coupon ISSUED, if the clock of the database is before HeldUntil,
// and reports whether it did. An ISSUED coupon stays as it is. Otherwise it returns the error
// of rules.CheckConfirm, or CodeCouponNotFound.
func (t *Tables) CouponConfirm(ctx context.Context, id reward.CouponID) (reward.Coupon, bool, error) {
	c, confirmed, err := t.changeCoupon(ctx, "confirm a coupon", id, confirmCoupon)
	if err == nil && !confirmed {
		err = rules.CheckConfirm(&c)
	}
	if err != nil {
		return reward.Coupon{}, false, err
	}
	return c, confirmed, nil
}

// cancelRecord is a coupon to cancel.
type cancelRecord struct {
	ID     int64 `json:"id"`
	Status int16 `json:"status"` // as it was read
}

// cancelColumns are the fields of cancelRecord.
var cancelColumns = []string{"id bigint", "status smallint"}

// CouponCancel cancels those of some coupons of a template that are ISSUED or HELD, all in one
// transaction, and lowers Live of the template. A coupon counts as expired from ExpiresAt on,
// even if its status is still ISSUED.
func (t *Tables) CouponCancel(ctx context.Context, p store.CouponCancelParams) (r store.CouponCancelResult, err error) {
	id, now, by := int64(p.TemplateID), instant(p.Now), reward.SanitizeText(p.By)
	const what = "cancel coupons"
	ids := slices.Compact(slices.Sorted(slices.Values(p.IDs)))
	named := make([]cancelRecord, len(ids))
	for i, coupon := range ids {
		named[i].ID = int64(coupon)
	}
	err = whileStale(what, func() error {
		var due []cancelRecord
		r = store.CouponCancelResult{Refused: make(map[reward.CouponID]error)}
		for _, coupon := range ids {
			r.Refused[coupon] = store.NoCoupon(coupon)
		}
		var found []reward.Coupon
		err := t.db.Snapshot(ctx, what, func() []Statement {
			r.Template, found = reward.CouponTemplate{}, nil
			return []Statement{
				{SQL: templateSQL, Args: []any{id}, Row: func(scan Scan) error { return ScanTemplate(scan, &r.Template) }},
				{SQL: couponsNamed, Args: []any{id, jsonOf(named)}, Row: into(&found, scanCoupon)},
			}
		})
		if err == nil && r.Template.ID == 0 {
			err = store.NoTemplate(p.TemplateID)
		}
		for _, c := range found {
			if r.Refused[c.ID] = rules.CheckCancel(&c, now); r.Refused[c.ID] == nil {
				delete(r.Refused, c.ID)
				due = append(due, cancelRecord{int64(c.ID), int16(c.Status)})
				c.Status, c.CancelledAt, c.CancelledBy = reward.CouponCancelled, now, by
				r.Cancelled = append(r.Cancelled, c)
			}
		}
		r.From, r.To = r.Template.Version, r.Template.Version
		if err != nil || len(due) == 0 {
			return err
		}
		if err := archivedError(&r.Template); err != nil {
			return err
		}
		r.CouponChange, _, err = t.cancel(ctx, what, p.TemplateID,
			Statement{SQL: cancelCoupons, Args: []any{id, jsonOf(due), now, by}},
			Statement{SQL: cancelledAll, Args: []any{id, len(due)}, Must: true})
		return err
	})
	if err != nil {
		return store.CouponCancelResult{}, err
	}
	return r, nil
}

// CouponEndHolds cancels at most limit HELD coupons of a template whose HeldUntil is not after
// the clock of the database, the oldest first, with the reason ReasonHoldExpired. It lowers
// Live by as many, and returns the change and the number. Two calls at once never cancel the
// same coupon.
func (t *Tables) CouponEndHolds(ctx context.Context, id reward.TemplateID, limit int) (store.CouponChange, int, error) {
	change, n, err := t.cancel(ctx, "cancel coupons that were not confirmed", id, Statement{SQL: endHolds, Args: []any{int64(id), max(limit, 0)}})
	if err != nil {
		return store.CouponChange{}, 0, err
	}
	return change, n, nil
}

// cancel runs a statement that cancels coupons of template $1 and returns a row for each, and
// those that check it. It frees the places, and returns the change and the number of coupons.
func (t *Tables) cancel(ctx context.Context, what string, id reward.TemplateID, s Statement, checks ...Statement) (change store.CouponChange, n int, err error) {
	stands, err := t.inTemplate(ctx, what, id, func() []Statement {
		n, change = 0, store.CouponChange{}
		s.Row = counted(&n)
		args := []any{int64(id)}
		return slices.Concat([]Statement{s}, checks, []Statement{
			{SQL: returnCodes, Args: args},
			{SQL: forgetCodesOf, Args: args},
			{SQL: freePlaces, Args: args},
			{SQL: lengthenImport, Args: args},
			{SQL: changedHolders, Args: args, Row: into(&change.Holdings, scanHolding)},
		})
	})
	change.Template, change.From, change.To = stands, stands.Version, stands.Version
	if n == 0 {
		change.Holdings = nil
	} else {
		change.From--
	}
	return change, n, err
}

func scanHolding(scan Scan, h *store.CouponHolding) error {
	return scan(&h.UserID, &h.Held, (*int64)(&h.CouponID))
}
