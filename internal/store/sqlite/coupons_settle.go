package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// CouponSettle settles asks. [issueCoupons]
func (s *Store) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if err := p.Check(); err != nil {
		return store.CouponSettleResult{}, err
	}
	var done rules.Settlement
	err := s.write(ctx, "settle coupons", func(tx *tx) error {
		t, err := templateOf(tx.ctx, tx, p.TemplateID)
		if err != nil {
			return err
		}
		i := &issuer{tx: tx, p: &p, users: make(map[string]*holding)}
		defer i.close()
		i.done = rules.Settlement{From: t.Version, Template: t, Refused: refusal(&p, &t), Existing: make(map[string]reward.Coupon)}
		if i.done.Refused == store.NotRefused {
			err = i.settle()
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
	return store.Settled(&done, p.Batch()), nil
}

// refusal says why a whole batch is refused.
func refusal(p *store.CouponSettleParams, t *reward.CouponTemplate) store.SettleRefusal {
	switch p.Kind {
	case store.SettleInOrder:
		if p.Epoch != t.Epoch {
			return store.RefusedEpoch
		}
		other := slices.ContainsFunc(p.Asks, func(a store.CouponAsk) bool { return a.Generation != t.Generation })
		if p.Generation != t.Generation || t.Path != reward.PathGate || other {
			return store.RefusedGeneration
		}
	case store.SettleListed:
		if p.EndsGeneration != t.EndsGeneration {
			return store.RefusedEnds
		}
	default:
		switch {
		case p.Path != t.Path:
			return store.RefusedPath
		case p.Generation != t.Generation:
			return store.RefusedGeneration
		case p.Fence != 0 && p.Fence <= t.Fence:
			return store.RefusedFence
		}
	}
	return store.NotRefused
}

// issuer settles one batch that is not refused. done.Template is the template
// as far as the batch has got.
type issuer struct {
	tx    *tx
	p     *store.CouponSettleParams
	done  rules.Settlement
	users map[string]*holding // as they stand

	lookup, coupon, rejection *sql.Stmt
}

func (i *issuer) close() {
	for _, stmt := range []*sql.Stmt{i.lookup, i.coupon, i.rejection} {
		if stmt != nil {
			_ = stmt.Close() // the transaction's end tells
		}
	}
}

// prepare makes the statements that run once per ask.
func (i *issuer) prepare() (err error) {
	if i.lookup, err = i.tx.PrepareContext(i.tx.ctx, `SELECT EXISTS (SELECT 1 FROM coupons WHERE template_id = ?1 AND ticket = ?2 AND generation = ?3)
  OR EXISTS (SELECT 1 FROM coupon_rejections WHERE template_id = ?1 AND ticket = ?2 AND generation = ?3)`); err != nil {
		return err
	}
	if i.coupon, err = i.tx.PrepareContext(i.tx.ctx, `INSERT INTO coupons
  (id, code, template_id, user_id, generation, ticket, slot, version, issued_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`); err != nil {
		return err
	}
	i.rejection, err = i.tx.PrepareContext(i.tx.ctx, `INSERT INTO coupon_rejections
  (template_id, ticket, generation, user_id, reason, at, version) VALUES (?, ?, ?, ?, ?, ?, ?)`)
	return err
}

func (i *issuer) settle() error {
	if err := i.prepare(); err != nil {
		return err
	}
	for _, o := range i.p.Offsets {
		if _, err := i.tx.exec(`INSERT INTO kafka_offsets (topic, part, next) VALUES (?, ?, ?)
ON CONFLICT (topic, part) DO UPDATE SET next = max(next, excluded.next)`, o.Topic, o.Partition, o.Next); err != nil {
			return err
		}
	}
	t := &i.done.Template
	if i.p.Kind == store.SettleDirect {
		if err := i.window(); err != nil {
			return err
		}
		t.Fence = max(t.Fence, i.p.Fence)
	}
	if i.done.Shut == 0 {
		for _, at := range i.p.Batch().Order() {
			a := i.p.Asks[at].Storable()
			due, err := i.due(&a)
			if err != nil {
				return err
			}
			if due {
				if err := i.decide(at, &a); err != nil {
					return err
				}
			}
		}
	}
	return i.tx.putTemplate(t)
}

// window asks the database's clock whether the template is open.
func (i *issuer) window() error {
	now, err := i.tx.now()
	t := &i.done.Template
	switch {
	case err != nil:
		return err
	case now.Before(t.OpensAt):
		i.done.Shut = store.OutcomeNotOpen
	case !t.ClosesAt.IsZero() && !now.Before(t.ClosesAt):
		i.done.Shut = store.OutcomeClosed
	}
	return nil
}

// due says whether an ask is to be decided now.
func (i *issuer) due(a *store.CouponAsk) (bool, error) {
	t := &i.done.Template
	switch i.p.Kind {
	case store.SettleInOrder:
		return a.Ticket == t.Settled+1, nil
	case store.SettleListed:
		if a.Generation > t.Generation {
			return false, nil
		}
		var known bool
		err := i.lookup.QueryRowContext(i.tx.ctx, int64(t.ID), a.Ticket, a.Generation).Scan(&known)
		return !known, err
	default:
		return true, nil
	}
}

// decide settles one ask.
func (i *issuer) decide(at int, a *store.CouponAsk) error {
	t := &i.done.Template
	h := i.users[a.UserID]
	if h == nil {
		var err error
		if h, err = holdingOf(i.tx.ctx, i.tx, t.ID, a.UserID); err != nil {
			return err
		}
		i.users[a.UserID] = h
	}
	direct := i.p.Kind == store.SettleDirect
	r := rules.Decision{At: at, Ticket: a.Ticket, Held: len(h.slots), Latest: h.latest}
	switch {
	case a.Reason != "":
		r.Reason = a.Reason
	case len(h.slots) >= t.PerUserLimit:
		r.Reason = reward.ReasonUserLimit
		if direct && h.latest != 0 {
			c, err := couponOf(i.tx.ctx, i.tx, h.latest)
			if err != nil {
				return err
			}
			i.done.Existing[a.UserID] = c
		}
	case t.Live >= t.TotalQuantity:
		r.Reason = reward.ReasonSoldOut
	}
	if r.Reason != "" && direct {
		r.Ticket = 0
		i.done.Decisions = append(i.done.Decisions, r)
		return nil
	}
	if direct {
		r.Ticket = t.Settled + 1
	}
	t.Version = i.done.From + 1
	t.Settled = max(t.Settled, r.Ticket)
	i.done.Decisions = append(i.done.Decisions, r)
	if r.Reason != "" {
		_, err := i.rejection.ExecContext(i.tx.ctx, int64(t.ID), r.Ticket, a.Generation, a.UserID, r.Reason, micros(i.p.Now), t.Version)
		return err
	}
	return i.issue(a, r.Ticket, h)
}

// issue makes the coupon of an ask.
func (i *issuer) issue(a *store.CouponAsk, ticket int64, h *holding) error {
	t := &i.done.Template
	generation, now := a.Generation, instant(i.p.Now)
	if i.p.Kind == store.SettleDirect {
		generation = t.Generation
	}
	var expires time.Time
	if t.ValidFor > 0 {
		expires = now.Add(t.ValidFor)
	}
	slot := h.lowest()
	h.slots[slot] = true
	h.latest = max(h.latest, a.CouponID)
	t.Live++
	t.IssuedTotal++
	_, err := i.coupon.ExecContext(i.tx.ctx, int64(a.CouponID), a.Code, int64(t.ID), a.UserID, generation, ticket, slot, t.Version,
		micros(now), maybe(expires))
	return err
}
