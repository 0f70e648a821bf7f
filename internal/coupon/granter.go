package coupon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// grantMin and grantMax limit the places of one grant. An unused place is one that
	// nobody gets during a Redis outage; each grant costs a transaction.
	grantMin, grantMax = 64, 10_000
	// grantWindow is the time whose grants decide the size of the next one.
	grantWindow = time.Second
	// grantWindowsMax limits the templates whose windows are remembered.
	grantWindowsMax = 10_000
	// grantTriesMax limits the grants of one call.
	grantTriesMax = 4
)

// Granter has the rows set places aside for gates. A gate gives a ticket only for such
// a place, so nobody can take it afterwards: not through the database during a Redis
// outage, and not by a lower quantity. It is safe for concurrent use.
type Granter struct {
	rows    store.Store
	gate    gate.Gate
	applier *Applier

	mu      sync.Mutex // protects windows
	windows map[reward.TemplateID]*grantWindows
}

// grantWindows counts the places granted in the present window and the one before.
type grantWindows struct {
	began        time.Time
	before, here int64
}

// size returns how many places to grant next: twice what the last second needed.
func (g *Granter) size(id reward.TemplateID) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, now := g.windows[id], time.Now()
	if w == nil {
		if len(g.windows) >= grantWindowsMax {
			clear(g.windows)
		}
		w = &grantWindows{began: now}
		g.windows[id] = w
	}
	switch since := now.Sub(w.began); {
	case since > 2*grantWindow:
		*w = grantWindows{began: now}
	case since > grantWindow:
		*w = grantWindows{began: now, before: w.here}
	}
	n := min(max(2*max(w.before, w.here), grantMin), grantMax)
	w.here += n
	return n
}

// grantOf is what a gate knows of its places.
type grantOf struct{ generation, version, granted, used, grants, waiting int64 }

// grant grants places to a gate, in addition to those that users in line need, and
// brings the gate to the version of the rows. The caller then tries again.
func (g *Granter) grant(ctx context.Context, id reward.TemplateID, at grantOf) error {
	missing := max(at.waiting-(at.granted-at.used), 0) // after Redis lost data, or an upgrade
	return g.add(ctx, id, at, missing+g.size(id))
}

// cover grants the places that users in line need and do not have.
func (g *Granter) cover(ctx context.Context, id reward.TemplateID, h gate.Header) error {
	missing := h.Waiting - (h.Granted - h.Used)
	if missing <= 0 || h.Stock() == 0 {
		return nil
	}
	return g.add(ctx, id, grantOf{generation: h.Generation, version: h.Version, granted: h.Granted, grants: h.Grants}, missing)
}

func (g *Granter) add(ctx context.Context, id reward.TemplateID, at grantOf, places int64) error {
	t, done, err := g.rows.TemplateGrant(ctx, store.TemplateGrantParams{
		ID: id, Generation: at.generation, Grants: at.grants, Granted: at.granted, Places: places,
	})
	switch {
	case err != nil:
		return err
	case t.Generation != at.generation || t.Path != reward.PathGate:
		return gate.ErrNotLoaded // a load, or the database path
	case !done:
		return g.applier.catchUp(ctx, id, at.version)
	}
	return g.applier.apply(ctx, id, &store.CouponChange{From: t.Version - 1, To: t.Version, Template: t}, applyExtras{})
}

// shrinkTriesMax limits how often a shrink is tried again because the gate's places
// changed in between.
const shrinkTriesMax = 3

// shrink makes a gate give up the places that it has not given, and takes them back in
// the rows. If the gate does not respond, or its places keep changing, they stay set
// aside. A shrink that is interrupted leaves the gate smaller than the rows; the next
// grant tells the gate its places again.
func (g *Granter) shrink(ctx context.Context, id reward.TemplateID) error {
	for range shrinkTriesMax {
		call, cancel := context.WithTimeout(ctx, gateTimeout)
		s, err := g.gate.Shrink(call, id)
		cancel()
		if err != nil {
			return ignore(err, gate.ErrNotLoaded)
		}
		t, done, err := g.rows.TemplateShrink(ctx, store.TemplateShrinkParams{
			ID: id, Generation: s.Generation, Grants: s.Grants, Granted: s.Granted,
		})
		switch {
		case err != nil:
			return err
		case done:
			return g.applier.apply(ctx, id, &store.CouponChange{From: t.Version - 1, To: t.Version, Template: t}, applyExtras{})
		case t.Generation != s.Generation || t.Path != reward.PathGate:
			return nil
		}
		// Another grant or shrink has not reached the gate yet.
		if err := g.applier.catchUp(ctx, id, s.Version); err != nil {
			return err
		}
	}
	return errPlacesChange
}

var errPlacesChange = errors.New("the places of the gate keep changing")

// noPlace returns the positions of users who got no ticket only because no granted
// place was free.
func noPlace(r *gate.AdmitResult) (indexes []int) {
	for i := range r.Answers {
		if r.Answers[i].Verdict == gate.NoPlace {
			indexes = append(indexes, i)
		}
	}
	return indexes
}
