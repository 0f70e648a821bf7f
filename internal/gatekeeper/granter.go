package gatekeeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// grantMin and grantMax limit the places that a grant adds beyond those that users in
	// line lack; see rules.Grant. An unused place is one that nobody gets during a Redis
	// outage; each grant costs a transaction.
	grantMin, grantMax = 64, 10_000
	// grantWindow is the time whose grants decide the size of the next one.
	grantWindow = time.Second
	// grantWindowsMax limits the templates whose windows are remembered.
	grantWindowsMax = 10_000
	// grantTriesMax limits the grants for one batch of requests, or for one try of a change.
	grantTriesMax = 4
	// shrinkTriesMax and changeTriesMax limit how often places are taken back again
	// because the gate's places changed in between. While a change of the quantity tries,
	// grants pause: only one that was on its way, a load or another change overtakes it.
	shrinkTriesMax, changeTriesMax = 3, 10
	// changePause is how long grants pause for one try of a change. If the changing
	// instance crashes, users who find no place wait for so long.
	changePause = 2 * time.Second
	// pauseInterval separates the questions of an instance during a pause, and
	// pauseTriesMax limits them: about as long as changePause.
	pauseInterval = 20 * time.Millisecond
	pauseTriesMax = int(changePause / pauseInterval)
	// changeGateTimeout ends what a change of a template does at its gate before the
	// rows decide alone.
	changeGateTimeout = 2 * time.Second
)

// Granter has the rows set places aside for gates. A gate gives a ticket only for such
// a place, so nobody can take it afterwards: not through the database during a Redis
// outage, and not by a lower quantity. It is safe for concurrent use.
type Granter struct {
	parts
	applier *Applier
	// suspect is called after a call to the gate that failed for the users of an Admit.
	suspect func(id reward.TemplateID, began time.Time, err error)

	mu      sync.Mutex // protects windows
	windows map[reward.TemplateID]*grantWindows
}

// grantWindows counts the places granted in the present window and the one before.
type grantWindows struct {
	began        time.Time
	before, here int64
}

// size returns how many places to grant next: twice what this instance asked for in the
// present or the previous window, whichever is more.
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

// Admit admits users, and has places granted for those who find none free. During a
// pause of grants it asks the gate again instead.
func (g *Granter) Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (gate.AdmitResult, error) {
	result, err := g.ask(ctx, id, users, admit)
	for grants, pauses := 0, 0; err == nil && admit && grants < grantTriesMax && pauses < pauseTriesMax; {
		left := noPlace(&result)
		if len(left) == 0 {
			return result, nil
		}
		if result.Paused {
			pauses++
			if !service.Sleep(ctx, pauseInterval) {
				return result, nil
			}
		} else {
			grants++
			if err = g.grant(ctx, id, &result, len(left)); err != nil {
				break
			}
		}
		again := make([]string, len(left))
		for n, at := range left {
			again[n] = users[at]
		}
		var more gate.AdmitResult
		if more, err = g.ask(ctx, id, again, true); err != nil {
			break
		}
		more.Answers, result.Answers = result.Answers, more.Answers
		for n, at := range left {
			more.Answers[at] = result.Answers[n]
		}
		result = more
	}
	return result, err
}

func (g *Granter) ask(ctx context.Context, id reward.TemplateID, users []string, admit bool) (gate.AdmitResult, error) {
	ctx, cancel := context.WithTimeout(ctx, GateTimeout)
	defer cancel()
	began := time.Now()
	result, err := g.gate.Admit(ctx, id, users, admit)
	if err != nil && !errors.Is(err, gate.ErrNotLoaded) {
		g.suspect(id, began, err)
	}
	return result, err
}

// grant grants places to a gate for asking users, and for some who come next, in addition
// to those that users in line need, and brings the gate to the version of the rows. The
// caller then tries again. at is what the gate has said.
func (g *Granter) grant(ctx context.Context, id reward.TemplateID, at *gate.AdmitResult, asking int) error {
	missing := max(at.Waiting-(at.Granted-at.Used), 0) // after Redis lost data, or an upgrade
	return g.add(ctx, at.Version, store.TemplateGrantParams{
		ID: id, Generation: at.Generation, Grants: at.Grants, Granted: at.Granted, Lacking: missing + int64(asking), More: g.size(id),
	})
}

// Cover grants the places that users in line need and do not have.
func (g *Granter) Cover(ctx context.Context, id reward.TemplateID, h gate.Header) error {
	if !coverable(h) {
		return nil
	}
	return g.add(ctx, h.Version, store.TemplateGrantParams{
		ID: id, Generation: h.Generation, Grants: h.Grants, Granted: h.Granted, Lacking: uncovered(h),
	})
}

// uncovered returns how many users in line have no place. There are such users after
// Redis lost data, and in a line that version 1 has left behind.
func uncovered(h gate.Header) int64 { return h.Waiting - (h.Granted - h.Used) }

// coverable reports whether there are such users, and places left for some of them.
func coverable(h gate.Header) bool { return uncovered(h) > 0 && h.Total-h.Live-(h.Granted-h.Used) > 0 }

// tell tells a gate its places again, because they differ although the gate has the
// latest grant: a grant of none has a new number. It reports whether it did: not if there
// is a later grant.
func (g *Granter) tell(ctx context.Context, t *reward.CouponTemplate) (bool, error) {
	row, done, err := g.rows.TemplateGrant(ctx, store.TemplateGrantParams{ID: t.ID, Generation: t.Generation, Grants: t.Grants, Granted: -1})
	if err != nil || !done {
		return false, err
	}
	return true, g.applier.Apply(ctx, t.ID, LastChange(&row), Extras{})
}

func (g *Granter) add(ctx context.Context, version int64, p store.TemplateGrantParams) error {
	t, done, err := g.rows.TemplateGrant(ctx, p)
	switch {
	case err != nil:
		return err
	case t.Generation != p.Generation || t.Path != reward.PathGate:
		return gate.ErrNotLoaded // a load, or the database path
	case !done:
		return g.applier.CatchUp(ctx, p.ID, version)
	}
	return g.applier.Apply(ctx, p.ID, LastChange(&t), Extras{})
}

// gateShrink makes a gate give up the places that it has not given. From then on it
// gives only places that the rows grant again. version is the gate's.
func (g *Granter) gateShrink(ctx context.Context, id reward.TemplateID) (s rules.Shrunk, version int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, GateTimeout)
	defer cancel()
	r, err := g.gate.Shrink(ctx, id)
	return rules.Shrunk{Generation: r.Generation, Grants: r.Grants, Granted: r.Granted}, r.Version, err
}

// shrink makes a gate give up the places that it has not given, and takes them back in
// the rows. If the gate does not respond, or its places keep changing, they stay set
// aside. A shrink that is interrupted leaves the gate smaller than the rows; the next
// grant tells the gate its places again.
func (g *Granter) shrink(ctx context.Context, id reward.TemplateID) error {
	for range shrinkTriesMax {
		s, version, err := g.gateShrink(ctx, id)
		if err != nil {
			return Ignore(err, gate.ErrNotLoaded)
		}
		t, done, err := g.rows.TemplateShrink(ctx, id, s)
		switch {
		case err != nil:
			return err
		case done:
			return g.applier.Apply(ctx, id, LastChange(&t), Extras{})
		case t.Generation != s.Generation || t.Path != reward.PathGate:
			return nil
		}
		// Another grant or shrink has not reached the gate yet.
		if err := g.applier.CatchUp(ctx, id, version); err != nil {
			return err
		}
	}
	return errPlacesChange
}

// Change makes a change of a template that needs as many free places as possible: a
// lower quantity, or another mode. The gate gives up the places that it has not given,
// and the transaction of the change takes them back. If the gate does not respond, the
// rows decide with the places that are set aside. If the caller crashes in between, the
// gate has fewer places than the rows; the next grant tells it.
//
// No instance requests places meanwhile (see gate.PauseGrants): in a rush each try would
// be overtaken by a grant. One that was on its way may come first, but a grant names the
// number of the one before, so not two.
//
// before is the template that is changed. If places are set aside, a gate that is missing
// is loaded first: after Redis lost data, places are set aside for users that no gate
// knows. Users in line who have no places get them first. If the gate responds and that
// fails, the error is CodeUnavailable: the rows would give their places away.
func (g *Granter) Change(ctx context.Context, p rules.TemplateChange, before *reward.CouponTemplate) (reward.CouponTemplate, error) {
	// If this call fails, the pause ends by itself.
	defer func() { _ = g.pause(context.WithoutCancel(ctx), p.ID, 0) }()
	for try := 1; ; try++ {
		s, version, shrinkErr := g.shrinkForChange(ctx, before)
		if errors.Is(shrinkErr, errUncovered) {
			e := reward.NewError(reward.KindUnavailable, reward.CodeUnavailable, "users in line at template %s have no places set aside yet; repeat the change", p.ID)
			e.Err = shrinkErr
			return reward.CouponTemplate{}, e
		}
		if p.Shrunk = &s; shrinkErr != nil {
			p.Shrunk = nil
		}
		t, err := g.rows.TemplateChange(ctx, p)
		if !reward.HasCode(err, reward.CodeConflict) || shrinkErr != nil {
			return t, err
		}
		row, rowErr := g.rows.TemplateGet(ctx, p.ID)
		if rowErr != nil {
			return t, rowErr
		}
		if row.Grants == s.Grants && row.Generation == s.Generation || try == changeTriesMax {
			return t, err // the users in line need the places, or they keep changing
		}
		// Another grant or shrink has not reached the gate yet.
		if err := g.applier.CatchUp(ctx, p.ID, version); err != nil {
			return t, err
		}
	}
}

// pause keeps all instances from requesting places for a while; 0 ends that.
func (g *Granter) pause(ctx context.Context, id reward.TemplateID, pause time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, GateTimeout)
	defer cancel()
	return g.gate.PauseGrants(ctx, id, pause)
}

// shrinkForChange is gateShrink for a change of a template. It covers the line first, and
// makes grants pause.
func (g *Granter) shrinkForChange(ctx context.Context, before *reward.CouponTemplate) (s rules.Shrunk, version int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeGateTimeout)
	defer cancel()
	h, err := g.header(ctx, before.ID)
	if err != nil {
		return s, version, err
	}
	if !h.Loaded && (h.Exists || before.Promised() > 0) {
		err = g.applier.loader.Ensure(ctx, before.ID)
	}
	for try := 0; err == nil && try < grantTriesMax; try++ {
		if h, err = g.header(ctx, before.ID); err != nil {
			break
		}
		if !coverable(h) || before.Mode == reward.ModeSync {
			if err := g.pause(ctx, before.ID, changePause); err != nil {
				return s, version, err
			}
			return g.gateShrink(ctx, before.ID)
		}
		err = g.Cover(ctx, before.ID, h)
	}
	if uncovered(h) > 0 {
		return s, version, errors.Join(errUncovered, err)
	}
	return s, version, err
}

func (g *Granter) header(ctx context.Context, id reward.TemplateID) (gate.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, GateTimeout)
	defer cancel()
	return HeaderOf(ctx, g.gate, id)
}

// errUncovered means that users in line have no places, and could not get them.
var errUncovered = errors.New("users in line have no places")

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
