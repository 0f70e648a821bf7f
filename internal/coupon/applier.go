package coupon

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Applier tells gates what was committed. All of it may come late, twice, in
// another order, or never: the keeper makes up for it.
type Applier struct {
	rows   store.Store
	gate   gate.Gate
	loader *Loader
}

// after is what an apply carries beside the change itself.
type applyExtras struct {
	done        []gate.SettledTicket // who leaves the line, where the gate is in KAFKA mode
	outcomes    []gate.Outcome
	serviceTime time.Duration
}

// apply tells the gate of a change.
func (a *Applier) apply(ctx context.Context, id reward.TemplateID, change *store.CouponChange, with applyExtras) error {
	if change.From == change.To {
		return nil
	}
	result, err := a.gate.Apply(ctx, gate.ApplyParams{
		TemplateID: id, From: change.From, State: stateOf(&change.Template), Holdings: holdingsOf(change.Facts),
		Done: with.done, Outcomes: with.outcomes, ServiceTime: with.serviceTime,
	})
	switch {
	case errors.Is(err, gate.ErrNotLoaded):
		return nil // a load brings it
	case err != nil:
		return err
	case result.Behind:
		return a.catchUp(ctx, id, result.Version)
	}
	return nil
}

// tellTimeout bounds the telling of what is committed: nobody waits for a gate
// that hangs, since the keeper makes up for it.
const bestEffortTimeout = 500 * time.Millisecond

// tell is apply for those who have somebody waiting for them: it is soon over,
// and fails silently.
func (a *Applier) applyBestEffort(ctx context.Context, id reward.TemplateID, change *store.CouponChange, with applyExtras) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bestEffortTimeout)
	defer cancel()
	_ = a.apply(ctx, id, change, with) // the keeper sees what the gate has not heard
}

// cover brings a gate that is at a version up to the rows as they are now.
func (a *Applier) catchUp(ctx context.Context, id reward.TemplateID, version int64) error {
	for {
		changes, err := a.rows.CouponChanges(ctx, id, version, changesMax)
		if err != nil {
			return err
		}
		if changes.More {
			return a.loader.reload(ctx, id, version+1)
		}
		t := &changes.Template
		if t.Version <= version {
			return nil
		}
		result, err := a.gate.Apply(ctx, gate.ApplyParams{
			TemplateID: id, From: version, State: stateOf(t), Holdings: holdingsOf(changes.Facts),
			Done: settledTickets(t.Generation, changes.Settled),
		})
		switch {
		case errors.Is(err, gate.ErrNotLoaded):
			return nil
		case err != nil:
			return err
		case !result.Behind:
			return nil
		}
		version = result.Version // it was loaded from an older snapshot meanwhile
	}
}
