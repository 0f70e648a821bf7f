package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// CouponSettle settles coupon requests.
func (s *Store) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if err := p.Check(); err != nil {
		return store.CouponSettleResult{}, err
	}
	batch := p.Batch()
	var done rules.Settlement
	err := s.write(ctx, "settle coupons", func(tx *tx) error {
		t, err := templateOf(tx.ctx, tx, p.TemplateID)
		if err != nil {
			return err
		}
		i := &issuer{tx: tx, batch: batch, holdings: make(map[string]rules.Holding)}
		defer i.close()
		i.done = rules.Settlement{From: t.Version, Settled: t.Settled, Template: t, Refused: rules.Refuse(&t, batch), Existing: make(map[string]reward.Coupon)}
		if i.done.Refused == rules.NotRefused {
			err = i.settle(p.Offsets)
		}
		done = i.done
		return err
	})
	switch {
	case hasCode(err, uniqueRow, uniqueKey) && (strings.Contains(err.Error(), "coupons.id") || strings.Contains(err.Error(), "coupons.code")):
		return store.CouponSettleResult{}, store.CodeTaken(err)
	case err != nil:
		return store.CouponSettleResult{}, err
	}
	return store.Settled(&done, batch), nil
}

// importedCode reads the imported code with the number ?2 of template ?1.
const importedCode = `SELECT k.code FROM coupon_code_imports i JOIN coupon_codes k ON k.import_id = i.id AND k.line = ?2 - i.first_number + 1
WHERE i.template_id = ?1 AND i.first_number <= ?2 ORDER BY i.first_number DESC LIMIT 1`

// issuer settles one batch that is not refused. It lives inside the
// transaction.
type issuer struct {
	tx       *tx
	batch    *rules.IssueBatch
	done     rules.Settlement
	holdings map[string]rules.Holding // of the users, before the batch

	lookup, coupon, rejection *sql.Stmt
	code                      *sql.Stmt // nil unless the template has imported codes
}

func (i *issuer) close() {
	for _, stmt := range []*sql.Stmt{i.lookup, i.coupon, i.rejection, i.code} {
		if stmt != nil {
			_ = stmt.Close() // a failure shows at the end of the transaction
		}
	}
}

// prepare prepares the statements that run once per request.
func (i *issuer) prepare() (err error) {
	if i.lookup, err = i.tx.PrepareContext(i.tx.ctx, `SELECT EXISTS (SELECT 1 FROM coupons WHERE template_id = ?1 AND ticket = ?2 AND generation = ?3)
  OR EXISTS (SELECT 1 FROM coupon_rejections WHERE template_id = ?1 AND ticket = ?2 AND generation = ?3)
  OR EXISTS (SELECT 1 FROM coupons WHERE template_id = ?1 AND user_id = ?4 AND generation > ?3)`); err != nil {
		return err
	}
	if i.coupon, err = i.tx.PrepareContext(i.tx.ctx, `INSERT INTO coupons
  (id, code, template_id, user_id, generation, ticket, slot, version, issued_at, expires_at, status, held_until, code_unseen)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`); err != nil {
		return err
	}
	if i.done.Template.CodesImported > 0 {
		if i.code, err = i.tx.PrepareContext(i.tx.ctx, importedCode); err != nil {
			return err
		}
	}
	i.rejection, err = i.tx.PrepareContext(i.tx.ctx, `INSERT INTO coupon_rejections
  (template_id, ticket, generation, user_id, reason, at, version) VALUES (?, ?, ?, ?, ?, ?, ?)`)
	return err
}

func (i *issuer) settle(offsets []store.Offset) error {
	if err := i.prepare(); err != nil {
		return err
	}
	t := i.done.Template
	never := func(r rules.CouponRequest) bool { return i.done.Unsettled(i.batch, &r) == rules.RequestNeverGiven }
	if !slices.ContainsFunc(i.batch.Requests, never) {
		if err := i.tx.putOffsets(offsets); err != nil {
			return err
		}
	}
	var due []int
	var clock time.Time
	var err error
	if i.batch.Kind == rules.SettleDirect || t.HoldFor > 0 {
		if clock, err = i.tx.now(); err != nil {
			return err
		}
	}
	i.done.Clock = clock
	if i.done.Shut = rules.Shut(&t, i.batch, clock); i.done.Shut == 0 {
		if due, err = rules.Due(&t, i.batch, i.known); err != nil {
			return err
		}
	}
	for _, at := range due {
		if err := i.hold(&i.batch.Requests[at]); err != nil {
			return err
		}
	}
	left, err := i.left(due)
	if err != nil {
		return err
	}
	i.done.Template, i.done.Decisions = rules.Issue(t, i.batch, due, left, i.holdings)
	if err := i.write(); err != nil {
		return err
	}
	return i.tx.putTemplate(&i.done.Template)
}

// known reports whether the generation and ticket of a request are settled.
func (i *issuer) known(r *rules.CouponRequest) (known bool, err error) {
	err = i.lookup.QueryRowContext(i.tx.ctx, int64(i.done.Template.ID), r.Ticket, r.Generation, r.Storable().UserID).Scan(&known)
	return known, err
}

// left returns the positions of those due requests that left the line.
func (i *issuer) left(due []int) (map[int]bool, error) {
	left := make(map[int]bool)
	if i.batch.Kind != rules.SettleInOrder || len(due) == 0 {
		return left, nil
	}
	first, last := &i.batch.Requests[due[0]], &i.batch.Requests[due[len(due)-1]]
	found, err := collect(i.tx.ctx, i.tx, scanLineTicket, `SELECT '', ticket, generation FROM coupon_rejections
WHERE template_id = ? AND ticket BETWEEN ? AND ? AND reason = '`+reward.ReasonLeft+`'`, int64(i.done.Template.ID), first.Ticket, last.Ticket)
	if err != nil {
		return nil, err
	}
	gone := make(map[store.LineTicket]bool, len(found))
	for _, r := range found {
		gone[r] = true
	}
	for _, at := range due {
		r := &i.batch.Requests[at]
		left[at] = gone[store.LineTicket{Ticket: r.Ticket, Generation: r.Generation}]
	}
	return left, nil
}

// hold reads the holding of the user of a request, once per user.
func (i *issuer) hold(r *rules.CouponRequest) error {
	if _, ok := i.holdings[r.UserID]; ok || r.Reason != "" {
		return nil // a rejection does not need it
	}
	h, err := holdingOf(i.tx.ctx, i.tx, i.done.Template.ID, r.UserID)
	i.holdings[r.UserID] = h
	return err
}

// holdingOf reads the holding of a user at a template.
func holdingOf(ctx context.Context, q querier, id reward.TemplateID, user string) (h rules.Holding, err error) {
	_, err = collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
		var slot int
		var coupon reward.CouponID
		var status reward.CouponStatus
		err := rows.Scan(&slot, &coupon, &status)
		h.Slots = append(h.Slots, slot)
		if status != reward.CouponCancelled {
			h.Latest = max(h.Latest, coupon)
		}
		return struct{}{}, err
	}, holdingSQL, int64(id), user)
	return h, err
}

const holdingSQL = `SELECT slot, id, status FROM coupons WHERE template_id = ? AND user_id = ? AND slot IS NOT NULL`

// now returns the time of the database.
func (t *tx) now() (time.Time, error) {
	n, _, err := one(t.ctx, t, scanInt, `SELECT `+clock)
	return timeOf(n), err
}

// write stores the coupons and rejections. It also reads the coupons to report
// to users beyond a limit of 1.
func (i *issuer) write() error {
	t := &i.done.Template
	direct := i.batch.Kind == rules.SettleDirect
	latest := make(map[string]reward.CouponID)
	for n := range i.done.Decisions {
		d := &i.done.Decisions[n]
		r := i.batch.Requests[d.At].Storable()
		switch {
		case d.Reason == "":
			if d.CodeNumber > 0 {
				if err := i.code.QueryRowContext(i.tx.ctx, int64(t.ID), d.CodeNumber).Scan(&d.Code); err != nil {
					return fmt.Errorf("read imported code %d of template %d: %w", d.CodeNumber, t.ID, err)
				}
			}
			c := i.batch.Coupon(&i.done, *d)
			if _, err := i.coupon.ExecContext(i.tx.ctx, int64(c.ID), cmp.Or(d.Code, r.Code), int64(t.ID), c.UserID, c.Generation, c.Ticket, d.Slot, t.Version,
				micros(c.IssuedAt), maybe(c.ExpiresAt), int64(c.Status), maybe(c.HeldUntil), d.Code != "" && c.Status == reward.CouponHeld); err != nil {
				return err
			}
			latest[c.UserID] = c.ID
		case d.Reason == reward.ReasonLeft: // stored when the user left
		case !direct:
			if _, err := i.rejection.ExecContext(i.tx.ctx, int64(t.ID), d.Ticket, r.Generation, r.UserID, d.Reason, micros(i.batch.Now),
				t.Version); err != nil {
				return err
			}
		case d.Reason == reward.ReasonUserLimit && t.PerUserLimit == 1:
			id := max(d.Latest, latest[r.UserID])
			if id == 0 {
				continue
			}
			c, _, err := one(i.tx.ctx, i.tx, scanCoupon, couponSQL+`WHERE c.id = ?`, int64(id))
			if err != nil {
				return err
			}
			i.done.Existing[r.UserID] = c
		}
	}
	return nil
}

func scanLineTicket(rows *sql.Rows) (l store.LineTicket, err error) {
	err = rows.Scan(&l.UserID, &l.Ticket, &l.Generation)
	return l, err
}

const couponSQL = `SELECT ` + rows.CouponColumns + ` FROM coupons c `

func scanCoupon(found *sql.Rows) (c reward.Coupon, err error) {
	err = rows.ScanCoupon(found.Scan, &c)
	return c, err
}
