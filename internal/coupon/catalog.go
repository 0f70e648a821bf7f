package coupon

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// Catalog is what people do with templates and coupons.
type Catalog struct {
	rows      store.Store
	gate      gate.Gate
	templates *TemplateCache
	applier   *Applier
	refusals  *refusals
	ids       *service.IDs
	settled   func(id reward.TemplateID)
}

// View is a template with what its gate knows.
type View struct {
	reward.CouponTemplate
	// Waiting is how many people are in line, Stock what is left to promise.
	Waiting, Stock int64
	// GateAway says that the gate could not be asked: Waiting is not known, and
	// Stock counts as if nobody waited.
	GateUnavailable bool
}

// Create makes a template. ID 0 = one is made; a draw only needs its From.
func (c *Catalog) Create(ctx context.Context, t reward.CouponTemplate) (View, error) {
	if t.ID == 0 {
		t.ID = reward.TemplateID(c.ids.Next())
	}
	if t.Mode == "" {
		t.Mode = reward.ModeStream
	}
	if t.WhenRedisAway == "" {
		t.WhenRedisAway = reward.AwayDatabase
	}
	if !t.Draw.From.IsZero() {
		t.Draw.State, t.Draw.Seed = reward.DrawOpen, NewSeed()
	}
	t.CreatedAt = time.Now()
	fields := reward.CheckTemplate(&t)
	if !t.ClosesAt.IsZero() && !t.ClosesAt.After(t.CreatedAt) {
		fields = append(fields, reward.FieldError{Field: "closesAt", Detail: "is over already"})
	}
	if len(fields) > 0 {
		return View{}, &reward.Error{Kind: reward.KindInvalid, Code: reward.CodeInvalid, Detail: "the template is not right", Fields: fields}
	}
	made, err := c.rows.TemplateCreate(ctx, t)
	if err != nil {
		return View{}, err
	}
	c.templates.hint()
	return View{CouponTemplate: made, Stock: made.TotalQuantity}, nil
}

// Get returns a template.
func (c *Catalog) Get(ctx context.Context, id reward.TemplateID) (View, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return View{}, err
	}
	return c.views(ctx, []reward.CouponTemplate{t})[0], nil
}

// List pages by descending id, below before when that is not 0.
func (c *Catalog) List(ctx context.Context, before reward.TemplateID, limit int) ([]View, error) {
	list, err := c.rows.TemplateList(ctx, before, limit)
	if err != nil {
		return nil, err
	}
	return c.views(ctx, list), nil
}

// views adds what the gates know; without them the rows have to do.
func (c *Catalog) views(ctx context.Context, list []reward.CouponTemplate) []View {
	ids := make([]reward.TemplateID, len(list))
	for i, t := range list {
		ids[i] = t.ID
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	headers, err := c.gate.Headers(ctx, ids)
	out := make([]View, len(list))
	for i, t := range list {
		v := View{CouponTemplate: t, GateUnavailable: err != nil}
		if err == nil && headers[i].Exists && t.Path == reward.PathGate {
			// Those whose tickets are settled wait no more, though the gate may not
			// have heard yet.
			v.Waiting = headers[i].Waiting
			if t.Mode != reward.ModeKafka {
				v.Waiting = max(min(v.Waiting, headers[i].LastTicket-t.Settled), 0)
			}
		}
		v.Stock = max(t.TotalQuantity-t.Live-v.Waiting, 0)
		out[i] = v
	}
	return out
}

// Change changes a template. CodeConflict when the quantity would be below
// what lives and who waits, or the mode is changed while somebody waits.
func (c *Catalog) Change(ctx context.Context, p store.TemplateChangeParams) (View, error) {
	before, err := c.Get(ctx, p.ID)
	if err != nil {
		return View{}, err
	}
	if p.Mode != nil && *p.Mode != before.Mode && (before.Waiting > 0 || before.GateUnavailable) {
		return View{}, reward.NewError(reward.KindConflict, reward.CodeConflict, "%d people wait: the mode can be changed while nobody does", before.Waiting)
	}
	if p.TotalQuantity != nil && *p.TotalQuantity < before.TotalQuantity {
		if err := c.capTotal(ctx, before, *p.TotalQuantity); err != nil {
			return View{}, err
		}
	}
	// It has to be made while the gate is kept from promising more.
	changing, cancel := context.WithTimeout(ctx, gate.CapTTL*3/4)
	defer cancel()
	t, err := c.rows.TemplateChange(changing, p)
	if err != nil {
		c.liftCap(ctx, p, before.TotalQuantity)
		return View{}, err
	}
	c.afterChange(ctx, &store.CouponChange{From: t.Version - 1, To: t.Version, Template: t})
	c.liftCap(ctx, p, t.TotalQuantity)
	return c.views(ctx, []reward.CouponTemplate{t})[0], nil
}

// lower keeps the gate for a moment from promising more than the new quantity,
// so that nobody is let in before the rows have it, and refused afterwards.
func (c *Catalog) capTotal(ctx context.Context, before View, total int64) error {
	conflict := reward.NewError(reward.KindConflict, reward.CodeConflict,
		"totalQuantity %d is below the %d coupons that are not cancelled and the %d people who wait", total, before.Live, before.Waiting)
	if total < before.Live+before.Waiting {
		return conflict
	}
	if before.Path == reward.PathDatabase {
		return unavailable(nil, "Redis is away, so who waits cannot be told; lower the quantity when it is back")
	}
	fits, err := c.gate.CapTotal(ctx, before.ID, total)
	switch {
	case errors.Is(err, gate.ErrNotLoaded):
		return nil // it will be loaded from the rows
	case err != nil:
		return unavailable(err, "who waits cannot be told at the moment; try again")
	case !fits:
		return conflict
	}
	return nil
}

// lift ends what lower, of this change or of one a moment ago, has done: the gate
// may promise up to total. Without it that lapses by itself.
func (c *Catalog) liftCap(ctx context.Context, p store.TemplateChangeParams, total int64) {
	if p.TotalQuantity == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bestEffortTimeout)
	defer cancel()
	_, _ = c.gate.CapTotal(ctx, p.ID, total)
}

// Close ends the asking. Who is in line is still served. CodeIllegalState before
// the opening: nothing can end that has not begun.
func (c *Catalog) Close(ctx context.Context, id reward.TemplateID) (View, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return View{}, err
	}
	now := time.Now()
	if !now.After(t.OpensAt) {
		return View{}, reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"template %s opens at %s and cannot be closed before; to keep it from opening, set opensAt and closesAt to times that are over",
			id, t.OpensAt.UTC().Format(time.RFC3339))
	}
	return c.Change(ctx, store.TemplateChangeParams{ID: id, ClosesAt: &now})
}

// told passes a change on to the gate. What it does not hear the keeper tells.
func (c *Catalog) afterChange(ctx context.Context, change *store.CouponChange) {
	c.templates.hint()
	id := change.Template.ID
	c.applier.applyBestEffort(ctx, id, change, applyExtras{})
	c.refusals.drop(id)
	c.settled(id)
}

// Coupon returns a coupon.
func (c *Catalog) Coupon(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	return c.rows.CouponGet(ctx, id)
}

// Coupons pages over the coupons of a template or of a user.
func (c *Catalog) Coupons(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error) {
	if p.TemplateID != 0 {
		if _, err := c.templates.get(ctx, p.TemplateID); err != nil {
			return nil, err
		}
	}
	return c.rows.CouponList(ctx, p)
}

// Use uses a coupon.
func (c *Catalog) Use(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	return c.rows.CouponUse(ctx, id, time.Now())
}

// Cancel cancels a coupon, whose place is free then. [cancelCoupon]
func (c *Catalog) Cancel(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	change, err := c.rows.CouponCancel(ctx, id, time.Now())
	if err != nil {
		return reward.Coupon{}, err
	}
	c.afterChange(ctx, &change)
	return change.Coupon, nil
}

// Entrants pages over the closed list of a draw, in the order of the bytes of
// the user ids, above after: the list that ListHash stands for.
func (c *Catalog) Entrants(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return nil, err
	}
	if t.Draw.State != reward.DrawClosed && t.Draw.State != reward.DrawDone {
		return nil, reward.NewError(reward.KindConflict, reward.CodeIllegalState, "template %s has no draw whose list is closed", id)
	}
	return c.rows.EntrantList(ctx, id, after, limit)
}

// History says why a user did or did not get a coupon: what became of each of
// his requests, and when the templates he asked at refused everybody.
type History struct {
	Outcomes []reward.IssueOutcome
	Refusals map[reward.TemplateID][]store.Refusal
}

const (
	historyMax          = 1000
	refusalsPerTemplate = 100 // per template
)

// History returns the history of a user. More are templates that he says he
// has asked at, where nothing was kept of him: who is refused leaves no row.
func (c *Catalog) History(ctx context.Context, user string, more ...reward.TemplateID) (History, error) {
	outcomes, err := c.rows.IssueHistory(ctx, user, historyMax)
	if err != nil {
		return History{}, err
	}
	h := History{Outcomes: outcomes, Refusals: make(map[reward.TemplateID][]store.Refusal)}
	for _, o := range outcomes {
		more = append(more, o.TemplateID)
	}
	for _, id := range more {
		if _, known := h.Refusals[id]; known {
			continue
		}
		if h.Refusals[id], err = c.rows.RefusalList(ctx, id, refusalsPerTemplate); err != nil {
			return History{}, err
		}
	}
	return h, nil
}
