package coupon

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// forwardTimeout ends the wait for the broker's confirmation in KAFKA mode.
const forwardTimeout = 3 * time.Second

// gateRoute admits requests at the gate (STREAM and KAFKA modes). An admitted request
// waits in line until it is settled.
type gateRoute struct {
	admitter   *admitter
	notifier   *Notifier
	admissions *batcher[gateAnswer]
}

func newGateRoute(admitter *admitter, notifier *Notifier) *gateRoute {
	return &gateRoute{admitter: admitter, notifier: notifier, admissions: newBatcher(gate.AdmitMax, callTimeout, admitter.batch(true))}
}

func (r *gateRoute) request(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	if code := r.admitter.refusals.known(t, user); code != "" {
		return Status{}, refuse(t, code)
	}
	a, err := r.admissions.do(ctx, t.ID, user)
	if err != nil {
		return Status{}, err
	}
	switch a.Verdict {
	case gate.Admitted, gate.InLine:
		if t.Mode == reward.ModeKafka {
			if err := r.waitForwarded(ctx, t.ID, a); err != nil {
				return Status{}, err
			}
		}
		return a.waiting(), nil
	default:
		return r.admitter.refused(ctx, t, user, a)
	}
}

func (r *gateRoute) wait() { r.admissions.open.Wait() }

// waitForwarded waits until the broker has the request: the issuer then removes the
// request from the gate's stream.
func (r *gateRoute) waitForwarded(ctx context.Context, id reward.TemplateID, a gateAnswer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, forwardTimeout, errors.New("the broker has not confirmed the request in time"))
	defer cancel()
	return r.notifier.waitAcknowledged(ctx, id, a.generation, a.Ticket)
}

// gateAnswer is the gate's answer to one user, with the state of the gate that
// gave it.
type gateAnswer struct {
	gate.Answer
	generation, version int64
	serviceTime         time.Duration
}

// waiting returns the status of a user in line.
func (a gateAnswer) waiting() Status {
	return Status{
		Kind: StatusWaiting, Ticket: a.Ticket, Rank: a.Rank, Wait: waitOf(a.Rank, a.serviceTime),
		Generation: a.generation, Duplicate: a.Verdict == gate.InLine,
	}
}

// admitter calls gates to admit requests, and turns their refusals into errors or
// statuses.
type admitter struct {
	rows      Store
	gate      gate.Gate
	templates *TemplateCache
	applier   *Applier
	granter   *Granter
	refusals  *refusals
	// suspect is called after a call that failed.
	suspect func(id reward.TemplateID, began time.Time, err error)
}

// batch returns a call for a batcher that admits the requests of users at a gate. If
// admit is false, the gate only checks whether it would admit them.
func (g *admitter) batch(admit bool) func(context.Context, reward.TemplateID, []string) ([]gateAnswer, error) {
	return func(ctx context.Context, id reward.TemplateID, users []string) ([]gateAnswer, error) {
		result, err := g.admit(ctx, id, users, admit)
		if err != nil {
			return nil, err
		}
		// If the gate's generation is older than that of the rows, its requests are
		// never settled: the gate must be loaded.
		if t, err := g.templates.get(ctx, id); err == nil && result.Generation < t.Generation {
			return nil, gate.ErrNotLoaded
		}
		out := make([]gateAnswer, len(users))
		for n, a := range result.Answers {
			out[n] = gateAnswer{Answer: a, generation: result.Generation, version: result.Version, serviceTime: result.ServiceTime}
		}
		return out, nil
	}
}

// admit admits users, and has places granted for those who find none free. During a
// pause of grants it asks the gate again instead.
func (g *admitter) admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (gate.AdmitResult, error) {
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
			if err = g.granter.grant(ctx, id, grantOf{
				generation: result.Generation, version: result.Version, granted: result.Granted, used: result.Used, grants: result.Grants,
				waiting: result.Waiting,
			}, len(left)); err != nil {
				break
			}
		}
		again := make([]string, len(left))
		for n, i := range left {
			again[n] = users[i]
		}
		var more gate.AdmitResult
		if more, err = g.ask(ctx, id, again, true); err != nil {
			break
		}
		more.Answers, result.Answers = result.Answers, more.Answers
		for n, i := range left {
			more.Answers[i] = result.Answers[n]
		}
		result = more
	}
	return result, err
}

// ask makes one call to the gate.
func (g *admitter) ask(ctx context.Context, id reward.TemplateID, users []string, admit bool) (gate.AdmitResult, error) {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	began := time.Now()
	result, err := g.gate.Admit(ctx, id, users, admit)
	if err != nil && !errors.Is(err, gate.ErrNotLoaded) {
		g.suspect(id, began, err)
	}
	return result, err
}

// refused returns the error for a verdict that is a refusal. A user who has the only
// coupon that they may have gets its status instead.
func (g *admitter) refused(ctx context.Context, t *reward.CouponTemplate, user string, a gateAnswer) (Status, error) {
	switch a.Verdict {
	case gate.AtUserLimit:
		if t.PerUserLimit > 1 || a.CouponID == 0 {
			return Status{}, refuse(t, reward.CodeUserLimit)
		}
		c, err := g.rows.CouponGet(ctx, a.CouponID)
		if err != nil {
			return Status{}, err
		}
		if c.Status == reward.CouponCancelled {
			// The cancel has not been applied to the gate yet.
			if err := g.applier.catchUp(ctx, t.ID, a.version); err != nil {
				return Status{}, err
			}
			return Status{}, errTemplateChanged
		}
		return Status{Kind: StatusIssued, Ticket: c.Ticket, Coupon: c, Duplicate: true}, nil
	case gate.NoPlace:
		return Status{}, unavailable(nil, "coupons are left, but no place was set aside for this request in time; repeat it")
	case gate.NoTickets:
		// This instance has not seen that the mode is SYNC, or the gate has not seen that it
		// no longer is.
		if err := g.applier.catchUp(ctx, t.ID, a.version); err != nil {
			return Status{}, err
		}
		return Status{}, errTemplateChanged
	case gate.NotOpen:
		return Status{}, refuse(t, reward.CodeNotOpen)
	case gate.Closed:
		g.refusals.remember(t.ID, user, a, reward.CodeClosed)
		return Status{}, refuse(t, reward.CodeClosed)
	default:
		g.refusals.remember(t.ID, user, a, reward.CodeSoldOut)
		return Status{}, refuse(t, reward.CodeSoldOut)
	}
}
