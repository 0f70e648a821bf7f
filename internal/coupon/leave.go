package coupon

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// leaveLine takes the request of a user out of the line of a template, in three steps: it
// reads the request at the gate, stores it as left in the rows, and applies that to the
// gate. If it succeeds, the gate no longer has the user in line, or is not served before a
// load has removed them.
//
// The rows come first. A crash after them leaves a user in line who gets no coupon: a
// repeat, the gatekeeper or the next load removes them. In the other order, a crash
// would leave a user out of line with a coupon to come.
func (i *Intake) leaveLine(ctx context.Context, t *reward.CouponTemplate, user string) error {
	call, cancel := context.WithTimeout(ctx, gatekeeper.GateTimeout)
	place, err := i.gate.Place(call, t.ID, user)
	cancel()
	switch {
	case err != nil:
		return err
	case !place.InLine:
		return i.ended(ctx, t, user)
	}
	result, err := i.rows.CouponLeave(ctx, store.CouponLeaveParams{TemplateID: t.ID, Now: time.Now(), Leave: rules.Leave{
		UserID: user, Ticket: place.Ticket, Generation: place.Generation, GateGeneration: place.GateGeneration,
	}})
	if err != nil {
		return err
	}
	switch result.Outcome {
	case rules.LeaveDone:
		i.metrics.CouponLeft()
		err := i.applier.Apply(ctx, t.ID, &result.CouponChange, gatekeeper.Extras{
			Left:     []gate.Request{place.Request},
			Outcomes: []gate.Outcome{{UserID: user, Ticket: place.Ticket, Reason: reward.ReasonLeft}},
		})
		i.left(t.ID, user)
		return err
	case rules.LeaveRepeated: // the earlier apply is missing
		return i.applier.CatchUp(ctx, t.ID, place.Version)
	case rules.LeaveServed: // the apply of its settlement is missing
		if err := i.applier.CatchUp(ctx, t.ID, place.Version); err != nil {
			return err
		}
		return i.ended(ctx, t, user)
	default:
		if result.Template.Generation > place.GateGeneration && result.Template.Path == reward.PathGate {
			return gate.ErrNotLoaded
		}
		return errTemplateChanged
	}
}

// ended returns nil if the latest request of a user, who is not in line, left the line.
// Otherwise it returns why there is nothing to leave.
func (i *Intake) ended(ctx context.Context, t *reward.CouponTemplate, user string) error {
	id := t.ID
	outcomes, err := i.rows.IssueOutcomes(ctx, id, []string{user})
	if err != nil {
		return err
	}
	if err := addNotDrawn(ctx, i.rows, t, []string{user}, outcomes); err != nil {
		return err
	}
	o, found := outcomes[user]
	switch {
	case !found:
		return requestUnknown(id, user, nothingToLeave)
	case o.Left():
		return nil
	case o.Issued():
		return reward.NewError(reward.KindConflict, reward.CodeRequestEnded,
			"user %s has coupon %d of template %s and does not wait in line; cancel the coupon instead", reward.Quote(user), o.Coupon.ID, id)
	default:
		return reward.NewError(reward.KindConflict, reward.CodeRequestEnded,
			"the request of user %s for template %s was rejected (%s) and does not wait in line", reward.Quote(user), id, o.Reason)
	}
}

// requestUnknown returns the error for a user without a request. todo says what the
// caller can do.
func requestUnknown(id reward.TemplateID, user, todo string) *reward.Error {
	return reward.NewError(reward.KindNotFound, reward.CodeRequestUnknown,
		"no request of user %s for template %s is known: there was none, or Redis lost it before a coupon was issued; %s", reward.Quote(user), id, todo)
}

// nothingToLeave is what requestUnknown says to a user who wants to leave the line.
const nothingToLeave = "the user is not in line, so nothing is left to do"

// Leave takes the request of a user out of the waiting line. Its place is free at once.
// A repeat does nothing.
//
// CodeRequestEnded means that the request was settled before, CodeRequestUnknown that
// none is known. CodeUnavailable means that it is unknown whether the user has left; the
// caller may repeat it. So does a template that issues through the database: only Redis
// knows who is in line.
func (i *Intake) Leave(ctx context.Context, id reward.TemplateID, user string) error {
	if err := reward.CheckUserID(user); err != nil {
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "%v", err)
	}
	until := time.Now().Add(i.timeout)
	_, err := i.try(ctx, until, id, func(ctx context.Context, t *reward.CouponTemplate, way route) error {
		ctx, cancel := context.WithDeadlineCause(ctx, until, errLate)
		defer cancel()
		return i.leave(ctx, t, way, user)
	})
	if e, ok := errors.AsType[*reward.Error](err); ok {
		return e
	} else if err == nil {
		return nil
	}
	return unavailable(err, "it is unknown whether the user has left the line; repeat it")
}

func (i *Intake) leave(ctx context.Context, t *reward.CouponTemplate, way route, user string) error {
	if err := checkArchived(t); err != nil {
		return err
	}
	switch way {
	case routeDraw:
		if entered, err := i.rows.EntrantHas(ctx, t.ID, []string{user}); err != nil || !entered[user] {
			return cmp.Or(err, error(requestUnknown(t.ID, user, nothingToLeave)))
		}
		if err := i.ended(ctx, t, user); !reward.HasCode(err, reward.CodeRequestUnknown) {
			return err // entrants are served one after the other
		}
		return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"template %s draws among its entrants, who have no line to leave; leave the line after the draw", t.ID)
	case routeDatabase:
		if fresh, err := i.templates.Read(ctx, t.ID); err != nil {
			return err
		} else if fresh.Path != reward.PathDatabase {
			return errTemplateChanged
		}
		return unavailable(nil, "Redis is unavailable, and only Redis knows who is in line; repeat it later")
	case routeClosed:
		return i.ended(ctx, t, user)
	default:
		return i.leaveLine(ctx, t, user)
	}
}
