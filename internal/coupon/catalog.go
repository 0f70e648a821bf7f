package coupon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// Catalog manages templates and coupons. It is safe for concurrent use.
type Catalog struct {
	parts
	refusals *refusals
	noGate   bool  // see FlowConfig
	limit    int64 // FlowConfig.CodesAbove
}

// View is a template with the state of its gate.
type View struct {
	reward.CouponTemplate
	// Waiting is the number of requests in the waiting line. Stock is the number of
	// coupons left for new requests.
	Waiting, Stock int64
	// Wait is what a request that joins the line now is told about its wait. Zero means
	// that nobody waits.
	Wait time.Duration
	// SoldOutAt is since when it is sold out, or was until it closed. Only Get sets it; zero
	// means that it is not, or that this is not recorded yet.
	SoldOutAt time.Time
	// GateUnavailable reports whether the gate could not be read. Then Waiting is 0,
	// and Stock includes coupons that waiting requests will get.
	GateUnavailable bool
}

// Create creates a template. It generates an ID if t.ID is 0. For a template with a
// draw, set only t.Draw.From; Create sets the other fields of Draw. A quantity above
// FlowConfig.CodesAbove waits for an approval, by rules.LimitQuantity.
func (c *Catalog) Create(ctx context.Context, t reward.CouponTemplate) (View, error) {
	if t.ID == 0 {
		t.ID = reward.TemplateID(c.ids.Next())
	}
	if t.Mode == "" {
		t.Mode = reward.ModeStream
	}
	if t.WhenRedisAway == "" {
		t.WhenRedisAway = reward.FallbackDatabase
	}
	if !t.Draw.From.IsZero() {
		t.Draw.State, t.Draw.Seed = reward.DrawOpen, NewSeed()
	}
	t.CreatedAt = time.Now()
	fields := reward.CheckTemplate(&t)
	if !t.ClosesAt.IsZero() && !t.ClosesAt.After(t.CreatedAt) {
		fields = append(fields, reward.FieldError{Field: "closesAt", Detail: "must be in the future"})
	}
	if len(fields) > 0 {
		return View{}, reward.InvalidFields("the template", fields)
	}
	if err := c.checkFallback(&t.WhenRedisAway); err != nil {
		return View{}, err
	}
	rules.LimitQuantity(&t, 0, c.limit)
	created, err := c.rows.TemplateCreate(ctx, t)
	if err != nil {
		return View{}, err
	}
	c.templates.Hint()
	return View{CouponTemplate: created, Stock: created.TotalQuantity}, nil
}

// copyOpens is how long after its creation the copy of a template opens, unless somebody
// says when: it must not give coupons before people have looked at it.
const copyOpens = 30 * 24 * time.Hour

// CopyOf returns a template to create with the settings of another one. An empty name is
// that of the other one, followed by (copy). It opens at opensAt, and its other times keep
// their distance to that. Coupons, imported codes and notes are not copied.
func (c *Catalog) CopyOf(ctx context.Context, id reward.TemplateID, name string, opensAt *time.Time) (reward.CouponTemplate, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return reward.CouponTemplate{}, err
	}
	was, opens := cmp.Or(t.OpensAt, t.CreatedAt), time.Now().Add(copyOpens).UTC().Truncate(time.Minute)
	if opensAt != nil {
		opens = *opensAt
	}
	if name == "" {
		name = reward.CopyName(t.Name)
	}
	moved := func(at time.Time) time.Time {
		if at.IsZero() {
			return at
		}
		return at.Add(opens.Sub(was))
	}
	return reward.CouponTemplate{
		Name: name, Metadata: t.Metadata, TotalQuantity: max(t.TotalQuantity, t.AwaitingQuantity), PerUserLimit: t.PerUserLimit,
		OpensAt: opens, ClosesAt: moved(t.ClosesAt), ValidFor: t.ValidFor, HoldFor: t.HoldFor, Mode: t.Mode,
		ReissueAfterCancel: t.ReissueAfterCancel, WhenRedisAway: t.WhenRedisAway, Codes: t.Codes, Draw: reward.Draw{From: moved(t.Draw.From)},
	}, nil
}

// Get returns a template.
func (c *Catalog) Get(ctx context.Context, id reward.TemplateID) (View, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return View{}, err
	}
	v := c.views(ctx, []reward.CouponTemplate{t})[0]
	if v.Stock == 0 {
		refusals, err := c.rows.RefusalList(ctx, id, 2)
		if err != nil {
			return View{}, err
		}
		v.SoldOutAt = soldOutSince(refusals)
	}
	return v, nil
}

// soldOutSince returns since when a template is sold out, or was until it closed, by its latest
// refusals. Zero means that it is not.
func soldOutSince(latest []store.Refusal) time.Time {
	untilClosed := len(latest) == 2 && latest[0].Reason == reward.CodeClosed && latest[1].Until.Equal(latest[0].Since)
	if untilClosed {
		latest = latest[1:]
	}
	if len(latest) == 0 || latest[0].Reason != reward.CodeSoldOut || !untilClosed && !latest[0].Until.IsZero() {
		return time.Time{}
	}
	return latest[0].Since
}

// Known returns a template as this instance knows it: at most a second old, and without a
// read of the database if the template is active.
func (c *Catalog) Known(ctx context.Context, id reward.TemplateID) (View, error) {
	t, err := c.templates.Get(ctx, id)
	if err != nil {
		return View{}, err
	}
	return c.views(ctx, []reward.CouponTemplate{*t})[0], nil
}

// GetMany returns the templates that exist of some IDs, in the order of the IDs.
func (c *Catalog) GetMany(ctx context.Context, ids []reward.TemplateID) ([]View, error) {
	list := make([]reward.CouponTemplate, 0, len(ids))
	for _, id := range ids {
		t, err := c.rows.TemplateGet(ctx, id)
		switch {
		case reward.HasCode(err, reward.CodeTemplateNotFound):
		case err != nil:
			return nil, err
		default:
			list = append(list, t)
		}
	}
	return c.views(ctx, list), nil
}

// List returns at most limit templates, by descending ID. If before is not 0, all
// their IDs are below it. If selects is not nil, it returns only those that selects
// accepts, and reads up to all templates to find them.
func (c *Catalog) List(ctx context.Context, before reward.TemplateID, limit int, selects func(*reward.CouponTemplate) bool) ([]View, error) {
	read := limit
	if selects != nil {
		read = store.BatchMax
	}
	var list []reward.CouponTemplate
	for {
		page, err := c.rows.TemplateList(ctx, before, read)
		if err != nil {
			return nil, err
		}
		for i := range page {
			if len(list) < limit && (selects == nil || selects(&page[i])) {
				list = append(list, page[i])
			}
		}
		if len(list) == limit || len(page) < read {
			return c.views(ctx, list), nil
		}
		before = page[len(page)-1].ID
	}
}

// views returns templates with what is read from their gates. If the gates cannot be
// read within a second, it sets GateUnavailable.
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
			// Requests whose tickets are settled no longer wait, even if that has not
			// been applied to the gate yet.
			v.Waiting = headers[i].Waiting
			if t.Mode != reward.ModeKafka {
				v.Waiting = max(min(v.Waiting, headers[i].LastTicket-t.Settled), 0)
			}
			if v.Waiting > 0 {
				v.Wait = waitOf(v.Waiting, headers[i].ServiceTime)
			}
		}
		v.Stock = max(t.LiveMax()-t.Live-v.Waiting, 0)
		out[i] = v
	}
	return out
}

// Change changes a template. CodeConflict means that the quantity would be below the
// number of live coupons and promised places, or that the mode would change while
// requests wait. CodeCodesExhausted means that it would be above what the imported
// codes allow. A higher quantity may wait for an approval, by rules.LimitQuantity.
// CodeIllegalState means that no quantity waits that could be approved or rejected, and
// CodeSamePerson that an author would approve it.
func (c *Catalog) Change(ctx context.Context, p rules.TemplateChange) (View, error) {
	p.CodesAbove = c.limit
	before, err := c.Get(ctx, p.ID)
	if err != nil {
		return View{}, err
	}
	otherMode := p.Mode != nil && *p.Mode != before.Mode
	if otherMode && (before.Waiting > 0 || before.GateUnavailable) {
		return View{}, reward.NewError(reward.KindConflict, reward.CodeConflict, "%d requests wait in line; change the mode when the line is empty", before.Waiting)
	}
	if err := c.checkFallback(p.WhenRedisAway); err != nil {
		return View{}, err
	}
	var t reward.CouponTemplate
	if p.TotalQuantity != nil && *p.TotalQuantity < before.TotalQuantity || otherMode {
		t, err = c.granter.Change(ctx, p, &before.CouponTemplate)
	} else {
		t, err = c.rows.TemplateChange(ctx, p)
	}
	if err != nil {
		return View{}, err
	}
	c.afterChange(ctx, gatekeeper.LastChange(&t))
	return c.views(ctx, []reward.CouponTemplate{t})[0], nil
}

// checkFallback returns CodeInvalid if a template would wait for a gate although there
// is none. Nil means that the template keeps its fallback.
func (c *Catalog) checkFallback(fallback *reward.RedisFallback) error {
	if !c.noGate || fallback == nil || *fallback != reward.FallbackWait {
		return nil
	}
	return reward.InvalidFields("the template", []reward.FieldError{{
		Field: "whenRedisAway", Detail: "must be DATABASE, because redis.url is empty: a template that waits for Redis would never issue a coupon",
	}})
}

// Close closes a template for new requests. Requests in the waiting line still get
// their coupons.
// CodeIllegalState means that the template has not opened yet.
func (c *Catalog) Close(ctx context.Context, id reward.TemplateID) (View, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return View{}, err
	}
	now := time.Now()
	if !now.After(t.OpensAt) {
		return View{}, reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"template %s opens at %s and cannot be closed before; to keep it from opening, set opensAt and closesAt to past times",
			id, t.OpensAt.UTC().Format(time.RFC3339))
	}
	return c.Change(ctx, rules.TemplateChange{ID: id, ClosesAt: &now})
}

// ReleasePlaces gives the places that are set aside for the gate of a template to
// everybody, and returns their number. It is for a template whose Redis was removed
// permanently: users who wait in its line get a coupon only if one is left when the line
// is served, and nobody may ever serve it.
//
// CodeIllegalState means that this instance has a gate, or that the template does not
// issue through the database.
func (c *Catalog) ReleasePlaces(ctx context.Context, id reward.TemplateID) (int64, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil || t.Promised() == 0 {
		return 0, err
	}
	switch {
	case !c.noGate:
		return 0, reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"redis.url is set, or this is the only process, so the gate of template %s still needs its places; remove Redis from all instances first", id)
	case t.Path != reward.PathDatabase:
		return 0, reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"template %s does not issue through the database yet; set whenRedisAway to DATABASE, or wait until its path is DATABASE", id)
	}
	after, released, err := c.rows.TemplateReleasePlaces(ctx, id)
	if err != nil || !released {
		return 0, err
	}
	c.templates.Hint()
	c.refusals.forget(id)
	return t.Granted - after.Granted, nil
}

// afterChange applies a committed change to the gate, and gives hints to the parts
// that must know of it. If the apply fails, the gatekeeper applies it later.
func (c *Catalog) afterChange(ctx context.Context, change *store.CouponChange) {
	c.templates.Hint()
	id := change.Template.ID
	c.applier.ApplyBestEffort(ctx, id, change, gatekeeper.Extras{})
	c.refusals.forget(id)
	c.settled(id)
}

// Coupon returns a coupon.
func (c *Catalog) Coupon(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	return c.rows.CouponGet(ctx, id)
}

// CouponsByCode returns the coupons that have a code, of at most limit templates. People
// type codes in any case, so generated codes are also found in the other case.
func (c *Catalog) CouponsByCode(ctx context.Context, code string, limit int) ([]reward.Coupon, error) {
	found, err := c.rows.CouponsByCode(ctx, code, limit)
	for _, other := range []string{strings.ToUpper(code), strings.ToLower(code)} {
		if other == code || err != nil {
			continue
		}
		var more []reward.Coupon
		if more, err = c.rows.CouponsByCode(ctx, other, limit); err != nil {
			break
		}
		for _, m := range more {
			t, err := c.rows.TemplateGet(ctx, m.TemplateID)
			if err != nil {
				return nil, err
			}
			if ignoresCase(&t) {
				found = append(found, m)
			}
		}
	}
	slices.SortFunc(found, func(a, b reward.Coupon) int { return cmp.Compare(a.TemplateID, b.TemplateID) })
	return found[:min(limit, len(found))], err
}

// ignoresCase reports whether the codes of a template are found in any case.
func ignoresCase(t *reward.CouponTemplate) bool {
	return t.CodesImported == 0 && t.Codes.IgnoresCase()
}

// Coupons returns a page of the coupons of a template or of a user. A code is found as by
// CouponsByCode.
func (c *Catalog) Coupons(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error) {
	if p.TemplateID == 0 {
		return c.rows.CouponList(ctx, p)
	}
	t, err := c.templates.Get(ctx, p.TemplateID)
	if err != nil {
		return nil, err
	}
	list, err := c.rows.CouponList(ctx, p)
	if p.Code == "" || !ignoresCase(t) {
		return list, err
	}
	for _, code := range []string{strings.ToUpper(p.Code), strings.ToLower(p.Code)} {
		if p.Code = code; err == nil && len(list) == 0 {
			list, err = c.rows.CouponList(ctx, p)
		}
	}
	return list, err
}

// Use sets a coupon to USED.
func (c *Catalog) Use(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	return c.rows.CouponUse(ctx, id, time.Now())
}

// Confirm sets a HELD coupon to ISSUED. An ISSUED coupon stays as it is.
// CodeHoldExpired means that it was not confirmed in time.
func (c *Catalog) Confirm(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
	confirmed, once, err := c.rows.CouponConfirm(ctx, id)
	if once {
		c.metrics.HoldsConfirmed(1)
	}
	return confirmed, err
}

// Cancel cancels a coupon, also one that is HELD. The template can issue another one in its place.
func (c *Catalog) Cancel(ctx context.Context, id reward.CouponID, by string) (reward.Coupon, error) {
	found, err := c.rows.CouponGet(ctx, id)
	if err != nil {
		return reward.Coupon{}, err
	}
	r, err := c.CancelMany(ctx, found.TemplateID, []reward.CouponID{id}, by)
	if err = cmp.Or(err, r.Refused[id]); err != nil {
		return reward.Coupon{}, err
	}
	return r.Cancelled[0], nil
}

// CancelMany cancels coupons of a template, at most store.BatchMax, in one transaction. Those
// that cannot be cancelled stay as they are.
func (c *Catalog) CancelMany(ctx context.Context, id reward.TemplateID, coupons []reward.CouponID, by string) (store.CouponCancelResult, error) {
	r, err := c.rows.CouponCancel(ctx, store.CouponCancelParams{TemplateID: id, IDs: coupons, By: by, Now: time.Now()})
	if err == nil && len(r.Cancelled) > 0 {
		c.afterChange(ctx, &r.CouponChange)
	}
	return r, err
}

// endHolds cancels coupons that were not confirmed in time, at most sweepBatch of each
// template. It reports whether a template may have more. The failure of one template does
// not stop the others. Several instances may do this at once: the statement that cancels a
// coupon also counts it, so its place is free exactly once. After a crash between the
// commit and the apply, the gatekeeper applies the change.
func (c *Catalog) endHolds(ctx context.Context) (more bool, err error) {
	var errs []error
	for after := reward.TemplateID(0); ctx.Err() == nil; {
		due, err := c.rows.HoldsEnded(ctx, after, sweepPage)
		if err != nil {
			return more, errors.Join(append(errs, err)...)
		}
		var wg sync.WaitGroup
		for _, id := range due {
			change, n, err := c.rows.CouponEndHolds(ctx, id, sweepBatch)
			if err != nil {
				errs = append(errs, fmt.Errorf("template %s: %w", id, err))
				continue
			}
			more = more || n == sweepBatch
			if n > 0 {
				c.metrics.HoldsExpired(n)
				wg.Go(func() { c.afterChange(ctx, &change) }) // not in turn: a gate may hang
			}
		}
		wg.Wait()
		if len(due) < sweepPage {
			break
		}
		after = due[len(due)-1]
	}
	return more, errors.Join(errs...)
}

// Entrants returns a page of the closed list of a draw: at most limit user IDs that
// come after the given one, in the order of their bytes. The hash of the whole list
// (see entrantList) is published.
func (c *Catalog) Entrants(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return nil, err
	}
	if t.Draw.State != reward.DrawClosed && t.Draw.State != reward.DrawDone {
		return nil, reward.NewError(reward.KindConflict, reward.CodeIllegalState, "template %s has no draw with a closed list", id)
	}
	return c.rows.EntrantList(ctx, id, after, limit)
}

// History explains why a user did or did not get coupons. It has the outcome of each
// of the user's requests, and the times when the templates refused all users.
type History struct {
	Outcomes []reward.IssueOutcome
	Refusals map[reward.TemplateID][]store.Refusal
}

const (
	historyMax          = 1000 // outcomes
	refusalsPerTemplate = 100
)

// History returns the history of a user. It includes the refusals of the templates
// in more, because a refused request leaves no row. CodeTemplateNotFound means that one
// of these does not exist.
func (c *Catalog) History(ctx context.Context, user string, more ...reward.TemplateID) (History, error) {
	for _, id := range more {
		if _, err := c.templates.Get(ctx, id); err != nil {
			return History{}, err
		}
	}
	outcomes, err := c.rows.IssueHistory(ctx, user, historyMax)
	if err != nil {
		return History{}, err
	}
	if outcomes, err = c.addDraws(ctx, user, outcomes); err != nil {
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

// addDraws adds the draws in which a user was not drawn, and after which the user has
// no other outcome, to the outcomes of a user. It returns at most historyMax, the
// latest first.
func (c *Catalog) addDraws(ctx context.Context, user string, outcomes []reward.IssueOutcome) ([]reward.IssueOutcome, error) {
	entered, err := c.rows.DrawsEntered(ctx, user, historyMax)
	if err != nil || len(entered) == 0 {
		return outcomes, err
	}
	known := make(map[reward.TemplateID]bool)
	for i := range outcomes {
		known[outcomes[i].TemplateID] = true
	}
	for _, d := range entered {
		if !known[d.TemplateID] {
			outcomes = append(outcomes, notDrawn(d.TemplateID, user, d.OpensAt))
		}
	}
	// A user with more than historyMax outcomes has the outcome of a draw, which is
	// later than its opening, among those left out, or not at all.
	slices.SortFunc(outcomes, func(a, b reward.IssueOutcome) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.TemplateID, a.TemplateID),
			cmp.Compare(b.Ticket, a.Ticket), cmp.Compare(b.Generation, a.Generation))
	})
	return outcomes[:min(len(outcomes), historyMax)], nil
}
