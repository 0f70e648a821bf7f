package gatekeeper

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Applier applies committed changes to gates. An apply may come late, twice, in
// another order, or never: the Maintainer finds a gate whose version is older
// than that of the rows. Applier is safe for concurrent use.
type Applier struct {
	parts
	loader *Loader
}

// Extras is what an apply carries in addition to the change itself.
type Extras struct {
	Done        []gate.Request // leave the line in KAFKA mode
	Left        []gate.Request // leave the line in any mode
	Outcomes    []gate.Outcome
	ServiceTime time.Duration // per request; 0 = not measured
}

// LastChange returns the change to the version of a row, which changed no holdings.
func LastChange(t *reward.CouponTemplate) *store.CouponChange {
	return &store.CouponChange{From: t.Version - 1, To: t.Version, Template: *t}
}

// Apply applies a change to the gate of a template.
func (a *Applier) Apply(ctx context.Context, id reward.TemplateID, change *store.CouponChange, with Extras) error {
	if change.From == change.To {
		return nil
	}
	result, err := a.call(ctx, gate.ApplyParams{
		TemplateID: id, From: change.From, State: StateOf(&change.Template), Holdings: change.Holdings,
		Done: with.Done, Left: with.Left, Outcomes: with.Outcomes, ServiceTime: with.ServiceTime,
	})
	switch {
	case errors.Is(err, gate.ErrNotLoaded):
		return nil // the next load includes the change
	case err != nil:
		return err
	case result.Behind:
		return a.CatchUp(ctx, id, result.Version)
	}
	return nil
}

// call makes one apply. An apply that times out may take effect nevertheless.
func (a *Applier) call(ctx context.Context, p gate.ApplyParams) (gate.ApplyResult, error) {
	ctx, cancel := context.WithTimeout(ctx, GateTimeout)
	defer cancel()
	return a.gate.Apply(ctx, p)
}

// ApplyBestEffort applies a change on behalf of a waiting user: it takes at most
// GateTimeout and ignores failures.
func (a *Applier) ApplyBestEffort(ctx context.Context, id reward.TemplateID, change *store.CouponChange, with Extras) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), GateTimeout)
	defer cancel()
	_ = a.Apply(ctx, id, change, with) // the Maintainer finds a gate that is behind
}

// CatchUp brings a gate from the given version to the version of the rows. If there
// are more than changesMax changes in between, it loads the gate instead.
func (a *Applier) CatchUp(ctx context.Context, id reward.TemplateID, version int64) error {
	for {
		changes, err := a.rows.CouponChanges(ctx, id, version, changesMax)
		if err != nil {
			return err
		}
		if changes.More {
			return a.loader.reload(ctx, id, version+1)
		}
		if changes.Template.Version <= version {
			return nil
		}
		result, err := a.call(ctx, applyOf(version, &changes))
		switch {
		case errors.Is(err, gate.ErrNotLoaded):
			return nil
		case err != nil:
			return err
		case !result.Behind:
			return nil
		}
		version = result.Version // the gate was loaded from an older snapshot in the meantime
	}
}

// applyOf returns an apply of what changed since a version.
func applyOf(version int64, changes *store.CouponChanges) gate.ApplyParams {
	t := &changes.Template
	p := gate.ApplyParams{TemplateID: t.ID, From: version, State: StateOf(t), Holdings: changes.Holdings}
	for _, s := range changes.Settled {
		r := gate.Request{UserID: s.UserID, Ticket: s.Ticket, Generation: s.Generation}
		if s.Generation == t.Generation {
			p.Done = append(p.Done, r)
		}
		if s.Left {
			p.Left = append(p.Left, r)
		}
	}
	return p
}
