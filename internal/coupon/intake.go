package coupon

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// askTries bounds how often an asker is sent on: to a gate that had to be
	// loaded, or to the other path.
	requestTriesMax = 4
	// askMost is how long an asker waits for an answer, and for the lock of SYNC
	// beside.
	requestTimeout = 5 * time.Second
	// acceptTimeout bounds the wait for the broker in KAFKA mode.
	acceptTimeout = 3 * time.Second
)

// Issuing answers who asks for a coupon. [CouponIssueFacade.requestIssue]
type Intake struct {
	templates *TemplateCache
	loader    *Loader
	rows      store.Store
	gate      gate.Gate
	refusals  *refusals
	applier   *Applier
	notifier  *Notifier
	metrics   *obs.Metrics
	timeout   time.Duration // that an asker waits for an answer

	admissions *batcher[gateAnswer] // admission
	checks     *batcher[gateAnswer] // availability only, before the SYNC lock
	direct     *batcher[Status]     // PathDatabase
	locked     *batcher[Status]     // SYNC
	entrants   *batcher[bool]       // before a draw
}

// gateAnswer is what the gate said to one asker.
type gateAnswer struct {
	gate.Answer
	generation, version int64
	serviceTime         time.Duration
}

// errMoved says that a template is not as it was thought to be.
var errTemplateChanged = errors.New("the template has changed meanwhile")

// Request asks for a coupon. It is Issued (also when the user has had one and
// may have no more), or Waiting. CodeSoldOut, CodeNotOpen, CodeClosed,
// CodeUserLimit and CodeTemplateNotFound say that it was not accepted;
// CodeUnavailable that it is not known, and that the same user may ask again:
// whoever was accepted keeps his ticket.
func (i *Intake) Request(ctx context.Context, cmd IssueCommand) (Status, error) {
	if err := reward.CheckUserID(cmd.UserID); err != nil {
		return Status{}, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "%v", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, i.timeout, errors.New("there was no answer in time"))
	defer cancel()
	t, err := i.templates.get(ctx, cmd.TemplateID)
	for try := 0; err == nil; try++ {
		var status Status
		status, err = i.requestOnce(ctx, t, cmd.UserID)
		if err == nil {
			status.RequestID = reward.RequestID(t.ID, cmd.UserID)
			i.metrics.CouponAsked(string(status.Kind))
			return status, nil
		}
		if try+1 == requestTriesMax || !errors.Is(err, gate.ErrNotLoaded) && !errors.Is(err, errTemplateChanged) && !errors.Is(err, errNotNow) {
			break
		}
		t, err = i.prepareRetry(ctx, cmd.TemplateID, err)
	}
	e, told := errors.AsType[*reward.Error](err)
	if !told {
		e = unavailable(err, "whether there is a coupon left cannot be told at the moment; ask again")
	}
	i.metrics.CouponAsked(e.Code)
	return Status{}, e
}

// again prepares the next try: the template as it is now, and its gate.
func (i *Intake) prepareRetry(ctx context.Context, id reward.TemplateID, why error) (*reward.CouponTemplate, error) {
	if errors.Is(why, gate.ErrNotLoaded) {
		if err := i.loader.ensure(ctx, id); err != nil && !errors.Is(err, errNotNow) {
			return nil, err
		}
	}
	return i.templates.read(ctx, id)
}

func (i *Intake) requestOnce(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	if t.Draw.State == reward.DrawOpen || t.Draw.State == reward.DrawClosed {
		return i.enter(ctx, t, user)
	}
	if !t.ClosesAt.IsZero() && time.Since(t.ClosesAt) > i.templates.closedRetention {
		return i.longClosed(ctx, t, user)
	}
	if t.Path == reward.PathDatabase {
		return i.throughRows(ctx, t, user)
	}
	if t.Mode == reward.ModeSync {
		return i.underLock(ctx, t, user)
	}
	if code := i.refusals.known(t, user); code != "" {
		return Status{}, refuse(t, code)
	}
	a, err := i.admissions.do(ctx, t.ID, user)
	if err != nil {
		return Status{}, err
	}
	switch a.Verdict {
	case gate.Admitted, gate.InLine:
		if t.Mode == reward.ModeKafka {
			if err := i.accepted(ctx, t.ID, a); err != nil {
				return Status{}, err
			}
		}
		return waiting(a), nil
	default:
		return i.refused(ctx, t, user, a)
	}
}

func waiting(a gateAnswer) Status {
	return Status{
		Kind: StatusWaiting, Ticket: a.Ticket, Rank: a.Rank, Wait: time.Duration(a.Rank+1) * a.serviceTime, Duplicate: a.Verdict == gate.InLine,
	}
}

// refused is what the gate's refusal means for the asker.
func (i *Intake) refused(ctx context.Context, t *reward.CouponTemplate, user string, a gateAnswer) (Status, error) {
	switch a.Verdict {
	case gate.AtUserLimit:
		if t.PerUserLimit > 1 || a.CouponID == 0 {
			return Status{}, refuse(t, reward.CodeUserLimit)
		}
		c, err := i.rows.CouponGet(ctx, a.CouponID)
		if err != nil {
			return Status{}, err
		}
		if c.Status == reward.CouponCancelled {
			// The gate has not heard of the cancel yet.
			if err := i.applier.catchUp(ctx, t.ID, a.version); err != nil {
				return Status{}, err
			}
			return Status{}, errTemplateChanged
		}
		return Status{Kind: StatusIssued, Ticket: c.Ticket, Coupon: c, Duplicate: true}, nil
	case gate.NotOpen:
		return Status{}, refuse(t, reward.CodeNotOpen)
	case gate.Closed:
		i.refusals.note(t.ID, user, a, reward.CodeClosed)
		return Status{}, refuse(t, reward.CodeClosed)
	default:
		i.refusals.note(t.ID, user, a, reward.CodeSoldOut)
		return Status{}, refuse(t, reward.CodeSoldOut)
	}
}

// afterAll answers who asks at a template that closed so long ago that nobody
// looks after its gate.
func (i *Intake) longClosed(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	outcomes, err := i.rows.IssueOutcomes(ctx, t.ID, []string{user})
	if err != nil {
		return Status{}, err
	}
	if o, found := outcomes[user]; found && o.Issued() {
		s := statusOf(o)
		s.Duplicate = true
		return s, nil
	}
	return Status{}, refuse(t, reward.CodeClosed)
}

// refuse says why nothing is issued. [CouponSoldOutException]
func refuse(t *reward.CouponTemplate, code string) *reward.Error {
	detail, opensAt := "", time.Time{}
	switch code {
	case reward.CodeSoldOut:
		detail = "every coupon of this template is taken or promised; one that is cancelled becomes free again"
	case reward.CodeNotOpen:
		opensAt = t.OpensAt
		detail = "this template opens at " + t.OpensAt.UTC().Format(time.RFC3339)
	case reward.CodeClosed:
		detail = "this template has closed"
		if !t.ClosesAt.IsZero() {
			detail += " at " + t.ClosesAt.UTC().Format(time.RFC3339)
		}
	case reward.CodeUserLimit:
		detail = "this user has had as many coupons of this template as one may have"
	}
	return &reward.Error{Kind: reward.KindConflict, Code: code, Detail: detail, OpensAt: opensAt}
}

// accepted waits until the broker has the request: it is then gone from the
// gate's stream.
func (i *Intake) accepted(ctx context.Context, id reward.TemplateID, a gateAnswer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, acceptTimeout, errors.New("the broker has not confirmed the request in time"))
	defer cancel()
	return i.notifier.waitAcknowledged(ctx, id, a.generation, a.Ticket)
}

// enter notes who asks before a draw.
func (i *Intake) enter(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	if t.Draw.State == reward.DrawOpen {
		entered, err := i.entrants.do(ctx, t.ID, user)
		if err != nil {
			return Status{}, err
		}
		if entered {
			return Status{Kind: StatusWaiting}, nil
		}
	}
	now := time.Now()
	switch fresh, err := i.templates.read(ctx, t.ID); {
	case err != nil:
		return Status{}, err
	case fresh.Draw.State == reward.DrawDone:
		return Status{}, errTemplateChanged
	case now.Before(fresh.Draw.From):
		e := refuse(fresh, reward.CodeNotOpen)
		e.Detail += "; who takes part in its draw may ask from " + fresh.Draw.From.UTC().Format(time.RFC3339)
		return Status{}, e
	}
	return Status{}, unavailable(nil, "those who asked before the opening are being drawn; ask again in a moment")
}

// askGate is the call of asks and looks.
func (i *Intake) askGate(admit bool) func(context.Context, reward.TemplateID, []string) ([]gateAnswer, error) {
	return func(ctx context.Context, id reward.TemplateID, users []string) ([]gateAnswer, error) {
		asking, err := i.gate.Admit(ctx, id, users, admit)
		if err != nil {
			return nil, err
		}
		// The gate of an earlier generation than the rows have is nobody's any
		// more: what it promises would not be settled.
		if t, err := i.templates.get(ctx, id); err == nil && asking.Generation < t.Generation {
			return nil, gate.ErrNotLoaded
		}
		out := make([]gateAnswer, len(users))
		for n, a := range asking.Answers {
			out[n] = gateAnswer{Answer: a, generation: asking.Generation, version: asking.Version, serviceTime: asking.ServiceTime}
		}
		return out, nil
	}
}

// Status tells where the latest request of a user stands; CodeRequestUnknown
// when there is none, or Redis has lost it.
func (i *Intake) Status(ctx context.Context, id reward.TemplateID, user string) (Status, error) {
	for try := 0; ; try++ {
		t, err := i.templates.get(ctx, id)
		if err != nil {
			return Status{}, err
		}
		list, err := i.notifier.statuses(ctx, t, []string{user})
		switch {
		case list != nil && list[0].Kind != "":
			list[0].RequestID = reward.RequestID(id, user)
			return list[0], nil
		case err == nil:
			return Status{}, reward.NewError(reward.KindNotFound, reward.CodeRequestUnknown,
				"user %s has no request at template %s: it was never made, or it was lost before it was issued; ask again", reward.Quote(user), id)
		case !errors.Is(err, gate.ErrNotLoaded) || try+1 == requestTriesMax:
			return Status{}, unavailable(err, "where the request stands cannot be told at the moment; ask again")
		}
		if err := i.loader.ensure(ctx, id); err != nil && !errors.Is(err, errNotNow) {
			return Status{}, unavailable(err, "where the request stands cannot be told at the moment; ask again")
		}
		service.Sleep(ctx, time.Millisecond)
	}
}
