package coupon

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// forwardTimeout ends the wait for the broker's confirmation in KAFKA mode.
const forwardTimeout = 3 * time.Second

// gateAnswer is the gate's answer to one user, with the state of the gate that
// gave it.
type gateAnswer struct {
	gate.Answer
	generation, version int64
	serviceTime         time.Duration
}

func (a gateAnswer) waiting() Status {
	return Status{
		Kind: StatusWaiting, Ticket: a.Ticket, Rank: a.Rank, Wait: waitOf(a.Rank, a.serviceTime),
		Generation: a.generation, Duplicate: a.Verdict == gate.InLine,
	}
}

// isRefusal reports whether refused returns a refusal for the answer, and not a coupon or a
// failure.
func (a gateAnswer) isRefusal(t *reward.CouponTemplate) bool {
	switch a.Verdict {
	case gate.NotOpen, gate.Closed, gate.SoldOut:
		return true
	case gate.AtUserLimit:
		return t.PerUserLimit > 1 || a.CouponID == 0
	default:
		return false
	}
}

// requestTicket handles a request on routeGate, until a time at most. An admitted request
// waits in line until it is settled.
func (i *Intake) requestTicket(ctx context.Context, until time.Time, t *reward.CouponTemplate, user string) (Status, error) {
	a, err := i.admissions.doUntil(ctx, until, t.ID, user)
	switch {
	case err != nil:
		return Status{}, err
	case a.Verdict == gate.AtUserLimit || a.Verdict == gate.NoTickets: // these may need the database
		ctx, cancel := context.WithDeadlineCause(ctx, until, errLate)
		defer cancel()
		return i.refused(ctx, t, user, a)
	case a.Verdict != gate.Admitted && a.Verdict != gate.InLine:
		return i.refused(ctx, t, user, a)
	case t.Mode == reward.ModeKafka:
		// Wait until the broker has the request: the issuer then removes the request from the
		// gate's stream.
		limit := time.Now().Add(forwardTimeout)
		if until.Before(limit) {
			limit = until
		}
		ctx, cancel := context.WithDeadlineCause(ctx, limit, errors.New("the broker has not confirmed the request in time"))
		defer cancel()
		if err := i.notifier.waitAcknowledged(ctx, t.ID, a.generation, a.Ticket); err != nil {
			return Status{}, err
		}
	}
	return a.waiting(), nil
}

// admitBatch returns a call for a batcher that admits the requests of users at a gate. If
// admit is false, the gate only checks whether it would admit them.
func (i *Intake) admitBatch(admit bool) func(context.Context, reward.TemplateID, []string) ([]gateAnswer, error) {
	return func(ctx context.Context, id reward.TemplateID, users []string) ([]gateAnswer, error) {
		result, err := i.granter.Admit(ctx, id, users, admit)
		if err != nil {
			return nil, err
		}
		// If the gate's generation is older than that of the rows, its requests are
		// never settled: the gate must be loaded.
		if t, err := i.templates.Get(ctx, id); err == nil && result.Generation < t.Generation {
			return nil, gate.ErrNotLoaded
		}
		out := make([]gateAnswer, len(users))
		for n, a := range result.Answers {
			out[n] = gateAnswer{Answer: a, generation: result.Generation, version: result.Version, serviceTime: result.ServiceTime}
		}
		return out, nil
	}
}

// refused returns the error for a verdict that is a refusal. A user who has the only
// coupon that they may have gets its status instead.
func (i *Intake) refused(ctx context.Context, t *reward.CouponTemplate, user string, a gateAnswer) (Status, error) {
	switch a.Verdict {
	case gate.AtUserLimit:
		if a.isRefusal(t) {
			return Status{}, refuse(t, reward.CodeUserLimit)
		}
		c, err := i.rows.CouponGet(ctx, a.CouponID)
		if err != nil {
			return Status{}, err
		}
		if c.Status == reward.CouponCancelled {
			// The cancel has not been applied to the gate yet.
			return Status{}, cmp.Or(i.applier.CatchUp(ctx, t.ID, a.version), errTemplateChanged)
		}
		return Status{Kind: StatusIssued, Ticket: c.Ticket, Coupon: c, Duplicate: true}, nil
	case gate.NoPlace:
		return Status{}, unavailable(nil, "coupons are left, but no place was set aside for this request in time; repeat it")
	case gate.NoTickets:
		// This instance has not seen that the mode is SYNC, or the gate has not seen that it
		// no longer is.
		return Status{}, cmp.Or(i.applier.CatchUp(ctx, t.ID, a.version), errTemplateChanged)
	case gate.NotOpen:
		return Status{}, refuse(t, reward.CodeNotOpen)
	case gate.Closed:
		i.refusals.remember(t.ID, user, a, reward.CodeClosed)
		return Status{}, refuse(t, reward.CodeClosed)
	default:
		i.refusals.remember(t.ID, user, a, reward.CodeSoldOut)
		return Status{}, refuse(t, reward.CodeSoldOut)
	}
}

// requestLocked handles a request on routeLock. The gate is checked before and after the
// wait for the lock. So requests for a template that is sold out need no lock, or at least
// no transaction.
func (i *Intake) requestLocked(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	a, err := i.checks.do(ctx, t.ID, user)
	switch {
	case err != nil:
		return Status{}, err
	case a.Verdict == gate.InLine: // since before the mode was changed to SYNC
		return a.waiting(), nil
	case a.Verdict != gate.Admitted:
		return i.refused(ctx, t, user, a)
	}
	status, err := i.locked.do(ctx, t.ID, user)
	if err != nil || status.Kind != "" {
		return refuseDirect(t, status, err, "the coupons that are left are promised to users in line; repeat the request later")
	}
	// The stock was gone once the lock was taken.
	if a, err = i.checks.do(ctx, t.ID, user); err != nil {
		return Status{}, err
	}
	if a.Verdict == gate.Admitted {
		return Status{}, unavailable(nil, "a coupon has become available at this moment; repeat the request")
	}
	return i.refused(ctx, t, user, a)
}

// drawEntry tells whether a user takes part in a draw, and did so before.
type drawEntry struct{ entered, repeated bool }

// saveEntrants records users as entrants of a draw.
func (i *Intake) saveEntrants(ctx context.Context, id reward.TemplateID, users []string) ([]drawEntry, error) {
	added, takes, err := i.rows.EntrantSave(ctx, id, users)
	out := make([]drawEntry, len(users))
	for n, user := range users {
		out[n] = drawEntry{entered: takes, repeated: !added[user]}
		delete(added, user) // a second request in the same batch is a repeat
	}
	return out, err
}

// enterDraw handles a request on routeDraw.
func (i *Intake) enterDraw(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	if t.Draw.State == reward.DrawOpen {
		entry, err := i.entries.do(ctx, t.ID, user)
		if err != nil {
			return Status{}, err
		}
		if entry.entered {
			return Status{Kind: StatusWaiting, Wait: drawWait(t), Duplicate: entry.repeated}, nil
		}
	}
	now := time.Now()
	switch fresh, err := i.templates.Read(ctx, t.ID); {
	case err != nil:
		return Status{}, err
	case fresh.Draw.State == reward.DrawDone:
		return Status{}, errTemplateChanged
	case now.Before(fresh.Draw.From):
		e := refuse(fresh, reward.CodeNotOpen)
		e.Detail += "; users may enter its draw from " + fresh.Draw.From.UTC().Format(time.RFC3339)
		return Status{}, e
	}
	return Status{}, unavailable(nil, "the draw among the users who entered before the opening is running; repeat the request in a moment")
}

// refusalsMax limits the remembered users of all templates; at the limit all of
// them are forgotten.
const refusalsMax = 100_000

// refusals remembers the users that a gate has just refused, so that their repeated
// requests do not reach the gate. It knows only users that the gate has refused: any
// other user may have a ticket or a coupon. A refusal is forgotten after ttl, when the
// template gets a new version or generation, and on a hint about new outcomes. It is
// safe for concurrent use.
type refusals struct {
	ttl time.Duration

	mu sync.Mutex // protects byTemplate and count
	// byTemplate holds, per template, the users refused at one version of its
	// gate.
	byTemplate map[reward.TemplateID]*refused
	count      int // users in byTemplate
}

type refused struct {
	generation, version int64
	until               time.Time
	codes               map[string]string // by user
}

func newRefusals(ttl time.Duration) *refusals {
	return &refusals{ttl: ttl, byTemplate: make(map[reward.TemplateID]*refused)}
}

// known returns the code that the user was refused with, or "" for none.
func (r *refusals) known(t *reward.CouponTemplate, user string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.byTemplate[t.ID]
	if one == nil || t.Version > one.version || t.Generation > one.generation || time.Now().After(one.until) {
		return ""
	}
	return one.codes[user]
}

// remember stores the code that the gate's answer a refused the user with.
func (r *refusals) remember(id reward.TemplateID, user string, a gateAnswer, code string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.byTemplate[id]
	now := time.Now()
	if r.count >= refusalsMax {
		clear(r.byTemplate)
		r.count, one = 0, nil
	}
	if one == nil || one.version != a.version || one.generation != a.generation || now.After(one.until) {
		r.forgetLocked(id)
		one = &refused{generation: a.generation, version: a.version, until: now.Add(r.ttl), codes: make(map[string]string)}
		r.byTemplate[id] = one
	}
	if _, known := one.codes[user]; !known {
		r.count++
	}
	one.codes[user] = code
}

// forget removes the refusals of a template.
func (r *refusals) forget(id reward.TemplateID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(id)
}

func (r *refusals) forgetLocked(id reward.TemplateID) {
	if one := r.byTemplate[id]; one != nil {
		r.count -= len(one.codes)
		delete(r.byTemplate, id)
	}
}
