package coupon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

const (
	// requestTriesMax limits the tries of one request. A request is tried again
	// after errTemplateChanged, gate.ErrNotLoaded and errNotNow.
	requestTriesMax = 4
	// requestTimeout is how long a request may take, in addition to
	// FlowConfig.LockWait. LockWait is added in every mode, although only requests
	// in SYNC mode wait for the lock.
	requestTimeout = 5 * time.Second
)

// Intake handles coupon requests. It admits requests at the gate, issues directly
// (in SYNC mode and during a Redis outage), or enters users for a draw. It is safe
// for concurrent use.
type Intake struct {
	parts
	refusals *refusals
	notifier *Notifier
	timeout  time.Duration // of one request
	// lockWait ends the wait for the SYNC lock; lockLease is the lock's expiry.
	lockWait, lockLease time.Duration
	// slots limits the concurrent transactions of issueBatch, so that coupon requests leave
	// database connections for everything else.
	slots chan struct{}
	// suspect is called after a call to the gate that failed.
	suspect func(id reward.TemplateID, began time.Time, err error)
	left    func(id reward.TemplateID, user string) // called after each leave

	// Concurrent requests share these calls: the gate admits, or checks whether it would;
	// coupons are issued under the lock, or through the database; users enter a draw.
	admissions, checks *batcher[gateAnswer]
	locked, unlocked   *batcher[Status]
	entries            *batcher[drawEntry]
	// expiredHolds has how much longer a user waits who has let holds end; it is nil if nobody does.
	expiredHolds *batcher[time.Duration]
}

// A route is one way to handle requests. The route of a template depends on its
// draw, closing time, path and mode.
type route int

const (
	routeGate     route = iota // admits at the gate, in STREAM and KAFKA modes
	routeLock                  // issues at once under the template's lock, in SYNC mode
	routeDatabase              // issues at once with the database alone, during a Redis outage
	routeDraw                  // records the entrants of a draw before the template opens
	// routeClosed only returns coupons that were issued before: the gate of the closed
	// template is removed, or no longer maintained.
	routeClosed
)

// errTemplateChanged means that the template that the route was chosen for is not
// the latest version, or that its gate was behind: try again.
var errTemplateChanged = errors.New("the template has changed in the meantime")

// errLate ends a request that has waited for its timeout.
var errLate = errors.New("there was no answer in time")

func (i *Intake) route(t *reward.CouponTemplate) route {
	switch {
	case !t.ArchivedAt.IsZero():
		return routeClosed
	case gatekeeper.InDraw(t):
		return routeDraw
	case !t.ClosesAt.IsZero() && time.Since(t.ClosesAt) > i.templates.ClosedRetention:
		return routeClosed
	case t.Path == reward.PathDatabase:
		return routeDatabase
	case t.Mode == reward.ModeSync:
		return routeLock
	default:
		return routeGate
	}
}

// take handles one request on a route. On routeGate it ends at until, also if ctx does not. After
// gate.ErrNotLoaded, errTemplateChanged and errNotNow the caller must try again, see try.
func (i *Intake) take(ctx context.Context, until time.Time, t *reward.CouponTemplate, way route, user string) (Status, error) {
	if way == routeGate || way == routeLock {
		if code := i.refusals.known(t, user); code != "" {
			return Status{}, refuse(t, code)
		}
	}
	switch way {
	case routeGate:
		return i.requestTicket(ctx, until, t, user)
	case routeLock:
		return i.requestLocked(ctx, t, user)
	case routeDatabase:
		status, err := i.unlocked.do(ctx, t.ID, user)
		return refuseDirect(t, status, err, "Redis is unavailable, and the places that are left are set aside for its waiting line; repeat the request later")
	case routeDraw:
		return i.enterDraw(ctx, t, user)
	default:
		return i.issuedBefore(ctx, t, user)
	}
}

// Request requests a coupon. The status is StatusIssued or StatusWaiting.
//
// A user who has reached the limit per user gets CodeUserLimit. If the limit is one
// coupon and the user has it, the user gets StatusIssued with that coupon instead.
// CodeSoldOut, CodeNotOpen, CodeClosed, CodeArchived and CodeTemplateNotFound also mean that the
// request was not admitted. CodeUnavailable means that the request could not be
// decided now, or that it is unknown whether it was admitted. The user may repeat it: a user who has a ticket keeps it.
func (i *Intake) Request(ctx context.Context, cmd IssueCommand) (Status, error) {
	if err := reward.CheckNewUserID(cmd.UserID); err != nil {
		return Status{}, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "%v", err)
	}
	var status Status
	first, until := true, time.Now().Add(i.timeout)
	t, err := i.try(ctx, until, cmd.TemplateID, func(ctx context.Context, t *reward.CouponTemplate, way route) (err error) {
		if first {
			if err := i.checkExpiredHolds(ctx, t, cmd.UserID); err != nil {
				return err
			}
		}
		first = false
		status, err = i.take(ctx, until, t, way, cmd.UserID)
		return err
	})
	if err == nil {
		status.RequestID = reward.RequestID(t.ID, cmd.UserID)
		i.metrics.CouponAsked(string(status.Kind))
		i.metrics.TemplateAsked(t.ID, status.Kind == StatusIssued && !status.Duplicate, "")
		return status, nil
	}
	e, ok := errors.AsType[*reward.Error](err)
	if !ok {
		e = unavailable(err, "it is unknown whether the request was admitted; repeat it: a user who has a ticket keeps it")
	}
	i.countRefused(t, e)
	return Status{}, e
}

// countRefused counts a refused request. t is nil if its template could not be read.
func (i *Intake) countRefused(t *reward.CouponTemplate, e *reward.Error) {
	i.metrics.CouponAsked(e.Code)
	if t != nil { // unknown IDs have no timeline
		i.metrics.TemplateAsked(t.ID, false, e.Code)
	}
}

// Refused counts a request that was answered with what Check has returned.
func (i *Intake) Refused(id reward.TemplateID, refusal error) {
	if e, ok := errors.AsType[*reward.Error](refusal); ok {
		i.countRefused(i.templates.Cached(id), e)
	}
}

// Check returns the error that Request would return at the moment, if that is a refusal
// which is known without a request, and otherwise nil. It changes nothing, and does not
// count the request.
func (i *Intake) Check(ctx context.Context, cmd IssueCommand) error {
	ctx, cancel := context.WithTimeoutCause(ctx, i.timeout, errLate)
	defer cancel()
	t, err := i.templates.Get(ctx, cmd.TemplateID)
	if err != nil {
		return onlyRefusal(err)
	}
	if err := i.checkExpiredHolds(ctx, t, cmd.UserID); err != nil {
		return err
	}
	switch way := i.route(t); way {
	case routeClosed:
		_, err = i.issuedBefore(ctx, t, cmd.UserID)
	case routeGate, routeLock:
		if code := i.refusals.known(t, cmd.UserID); code != "" {
			return refuse(t, code)
		}
		var a gateAnswer
		if a, err = i.checks.do(ctx, t.ID, cmd.UserID); err == nil && a.isRefusal(t) {
			_, err = i.refused(ctx, t, cmd.UserID, a)
		}
	case routeDatabase, routeDraw: // these decide in a transaction
	}
	return onlyRefusal(err)
}

// onlyRefusal returns err if it is a refusal, and otherwise nil.
func onlyRefusal(err error) error {
	if k := reward.KindOf(err); k == reward.KindConflict || k == reward.KindNotFound {
		return err
	}
	return nil
}

// try calls do with a template and its route until it succeeds, at most requestTriesMax
// times. It returns the template as it was last, nil if it could not be read. The context of do
// ends at until, except in the first call on routeGate, where do must see to that by itself: most
// requests need no other call, and a context costs more than the rest.
func (i *Intake) try(
	ctx context.Context, until time.Time, id reward.TemplateID, do func(context.Context, *reward.CouponTemplate, route) error,
) (*reward.CouponTemplate, error) {
	var cancel context.CancelFunc
	limit := func() {
		if cancel == nil {
			ctx, cancel = context.WithDeadlineCause(ctx, until, errLate)
		}
	}
	defer func() {
		if cancel != nil {
			cancel()
		}
	}()
	t, err := i.templates.Cached(id), error(nil)
	if t == nil {
		limit()
		if t, err = i.templates.Get(ctx, id); err != nil {
			return nil, err
		}
	}
	way := i.route(t)
	if way != routeGate {
		limit()
	}
	for try := 1; ; try++ {
		err := do(ctx, t, way)
		if try == requestTriesMax || !errors.Is(err, gate.ErrNotLoaded) && !errors.Is(err, errTemplateChanged) && !errors.Is(err, gatekeeper.ErrNotNow) {
			return t, err
		}
		limit()
		if t, way, err = i.prepareRetry(ctx, id, err); err != nil {
			return nil, err
		}
	}
}

// prepareRetry reads the template again, and returns the route for it. If why is
// gate.ErrNotLoaded, it loads the gate first, unless the template is on the database path,
// or has closed and its gate is removed.
func (i *Intake) prepareRetry(ctx context.Context, id reward.TemplateID, why error) (*reward.CouponTemplate, route, error) {
	t, err := i.templates.Read(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	if errors.Is(why, gate.ErrNotLoaded) && t.Path == reward.PathGate {
		if isGone(ctx, i.gate, t) {
			return t, routeClosed, nil
		}
		if err := i.loader.Ensure(ctx, id); err != nil && !errors.Is(err, gatekeeper.ErrNotNow) {
			return nil, 0, err
		}
		if t, err = i.templates.Read(ctx, id); err != nil {
			return nil, 0, err
		}
	}
	return t, i.route(t), nil
}

// expiredHoldsTimeout limits how long a request waits for what checkExpiredHolds reads.
const expiredHoldsTimeout = 200 * time.Millisecond

// checkExpiredHolds refuses users who have let holds of a template end, for as long as a hold
// lasts. It is asked before the gate: nobody who was told "accepted" is refused. If the
// database does not answer within expiredHoldsTimeout, nobody is.
func (i *Intake) checkExpiredHolds(ctx context.Context, t *reward.CouponTemplate, user string) error {
	if t.HoldFor == 0 || i.expiredHolds == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, expiredHoldsTimeout)
	defer cancel()
	rest, err := i.expiredHolds.do(ctx, t.ID, user)
	if err != nil || rest <= 0 {
		return nil // see above
	}
	return reward.NewError(reward.KindConflict, reward.CodeHoldLapsed,
		"this user did not confirm a coupon of this template in time; others come first, ask again in %v", rest.Truncate(time.Second)+time.Second)
}

// newExpiredHolds returns how much longer users wait who have let that many holds end, or nil
// for no limit.
func newExpiredHolds(rows Store, holds int) *batcher[time.Duration] {
	if holds == 0 {
		return nil
	}
	return newBatcher(batchMax, expiredHoldsTimeout, func(ctx context.Context, id reward.TemplateID, users []string) ([]time.Duration, error) {
		expiredHolds, err := rows.ExpiredHolds(ctx, id, users, holds)
		out := make([]time.Duration, len(users))
		for n, user := range users {
			out[n] = expiredHolds[user]
		}
		return out, err
	})
}

// Status returns the status of a user's latest request at a template.
// CodeRequestUnknown means that no request is known: there was none, or Redis lost
// it while it waited. CodeArchived means that the outcomes of the template are removed.
func (i *Intake) Status(ctx context.Context, id reward.TemplateID, user string) (Status, error) {
	for try := 1; ; try++ {
		t, err := i.templates.Get(ctx, id)
		if err != nil {
			return Status{}, err
		}
		if err := checkArchived(t); err != nil {
			return Status{}, err
		}
		list, err := i.notifier.statuses(ctx, t, []string{user})
		switch {
		case list != nil && list[0].Kind != "":
			list[0].RequestID = reward.RequestID(id, user)
			return list[0], nil
		case err == nil:
			return Status{}, requestUnknown(id, user, "request a coupon to get a ticket")
		case errors.Is(err, gate.ErrNotLoaded) && try < requestTriesMax:
			err = gatekeeper.Ignore(i.loader.Ensure(ctx, id), gatekeeper.ErrNotNow)
		}
		if err != nil {
			return Status{}, unavailable(err, "the status of the request is unknown at the moment; try again")
		}
		service.Sleep(ctx, time.Millisecond)
	}
}

// wait waits until no call runs. A call may continue after the request that it was
// made for has timed out.
func (i *Intake) wait() {
	for _, open := range []*sync.WaitGroup{&i.admissions.open, &i.checks.open, &i.locked.open, &i.unlocked.open, &i.entries.open, &i.notifier.open} {
		open.Wait()
	}
	if i.expiredHolds != nil {
		i.expiredHolds.open.Wait()
	}
}

// refuse returns the error for a refusal with the given code.
func refuse(t *reward.CouponTemplate, code string) *reward.Error {
	detail, opensAt := "", time.Time{}
	switch code {
	case reward.CodeSoldOut:
		detail = "every coupon of this template is issued or promised; a cancelled coupon becomes available again"
	case reward.CodeNotOpen:
		opensAt = t.OpensAt
		detail = "this template opens at " + t.OpensAt.UTC().Format(time.RFC3339)
	case reward.CodeClosed:
		detail = "this template has closed"
		if !t.ClosesAt.IsZero() {
			detail += " at " + t.ClosesAt.UTC().Format(time.RFC3339)
		}
	case reward.CodeUserLimit:
		detail = "this user has reached the limit of coupons per user for this template"
		if !t.ReissueAfterCancel {
			detail += "; coupons that were cancelled, or not confirmed in time, count as well (reissueAfterCancel is false)"
		}
	}
	return &reward.Error{Kind: reward.KindConflict, Code: code, Detail: detail, OpensAt: opensAt}
}

// refuseDirect turns StatusRejected into an error, for a request that was decided
// at once and never had a ticket.
// Nothing is stored for such a request, so the user could not ask for its status
// later. A request that found only places promised to others gets CodeUnavailable, with
// promised as its text.
func refuseDirect(t *reward.CouponTemplate, status Status, err error, promised string) (Status, error) {
	switch {
	case err != nil:
		return Status{}, err
	case status.Kind != StatusRejected:
		return status, nil
	case status.Reason == reward.ReasonPromised:
		return Status{}, unavailable(nil, "%s", promised)
	}
	return Status{}, refuse(t, status.Reason)
}

// issuedBefore handles a request at a closed template, see routeClosed.
func (i *Intake) issuedBefore(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	if err := checkArchived(t); err != nil {
		return Status{}, err
	}
	outcomes, err := i.rows.IssueOutcomes(ctx, t.ID, []string{user})
	if err != nil {
		return Status{}, err
	}
	if o, found := outcomes[user]; found && o.Issued() {
		s := StatusOf(o)
		s.Duplicate = true
		return s, nil
	}
	return Status{}, refuse(t, reward.CodeClosed)
}
