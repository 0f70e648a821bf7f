package coupon

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	directBatchMax       = 100 // askers per transaction
	lockRetryInterval    = 2 * time.Millisecond
	lockRetryIntervalMax = 20 * time.Millisecond
)

// Service issues through rows, at once: under a lock (SYNC), and while Redis is
// away (PathDatabase). Both keep to a bulkhead, so that a crowd does not take
// every connection to the database. [CouponService]
type DirectIssuer struct {
	templates *TemplateCache
	rows      store.Store
	gate      gate.Gate
	applier   *Applier
	ids       *service.IDs
	// slots is the bulkhead: transactions that may be open at once.
	slots               chan struct{}
	lockWait, lockLease time.Duration
	settled             func(id reward.TemplateID)
}

// IssueBatch issues to askers through rows, while the template's path is the
// database. [issueCouponWithoutLock]
func (s *DirectIssuer) IssueBatch(ctx context.Context, id reward.TemplateID, users []string) ([]Status, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, unavailable(context.Cause(ctx), "Redis is away, and the database has as much to do as it may have; ask again")
	}
	defer func() { <-s.slots }()
	t, err := s.templates.get(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.issue(ctx, t, users, reward.PathDatabase, 0)
}

// IssueLocked issues to askers under the template's lock. It holds the lock for
// one transaction, which refuses a token that is not above the latest one that
// has written: a lock can expire while its holder thinks that he has it.
// [issueCoupon under @DistributedLock]
func (s *DirectIssuer) IssueLocked(ctx context.Context, id reward.TemplateID, users []string) ([]Status, error) {
	t, err := s.templates.get(ctx, id)
	if err != nil {
		return nil, err
	}
	token, err := s.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.gate.Unlock(ctx, id, token) // it lapses by itself
	}()
	// What was sold while this one waited need not trouble the database.
	asking, err := s.gate.Admit(ctx, id, users, false)
	if err != nil {
		return nil, err
	}
	room := false
	for _, a := range asking.Answers {
		room = room || a.Verdict == gate.Admitted
	}
	if !room {
		return make([]Status, len(users)), nil // the caller looks again
	}
	return s.issue(ctx, t, users, reward.PathGate, token)
}

// lock waits for the lock, lockWait at most.
func (s *DirectIssuer) lock(ctx context.Context, id reward.TemplateID) (int64, error) {
	deadline := time.Now().Add(s.lockWait)
	for try := 0; ; try++ {
		token, ok, err := s.gate.Lock(ctx, id, s.lockLease)
		switch {
		case err != nil:
			return 0, err
		case ok:
			return token, nil
		case time.Now().After(deadline), !service.Sleep(ctx, service.Backoff(try, lockRetryInterval, lockRetryIntervalMax)):
			return 0, unavailable(context.Cause(ctx), "the lock of template %s was not to be had within %v; ask again", id, s.lockWait)
		}
	}
}

// issue issues in one transaction and tells the gate.
func (s *DirectIssuer) issue(ctx context.Context, t *reward.CouponTemplate, users []string, path reward.IssuePath, fence int64) ([]Status, error) {
	p := store.CouponSettleParams{
		TemplateID: t.ID, Kind: store.SettleDirect, Generation: t.Generation, Path: path, Fence: fence, Now: time.Now(),
		Asks: make([]store.CouponAsk, len(users)),
	}
	for i, user := range users {
		p.Asks[i] = store.CouponAsk{UserID: user, CouponID: reward.CouponID(s.ids.Next()), Code: reward.NewCouponCode()}
	}
	result, err := s.rows.CouponSettle(ctx, p)
	switch {
	case err != nil:
		return nil, err
	case result.Refused == store.RefusedFence:
		return nil, unavailable(nil, "the lock of template %s expired before its holder was done; ask again", t.ID)
	case result.Refused != store.NotRefused:
		if _, err := s.templates.read(ctx, t.ID); err != nil {
			return nil, err
		}
		s.templates.hint()
		return nil, errTemplateChanged
	}
	if path == reward.PathGate {
		s.applier.applyBestEffort(ctx, t.ID, &result.CouponChange, applyExtras{})
	}
	s.settled(t.ID)
	out := make([]Status, len(users))
	for i, r := range result.Results {
		out[i] = directStatus(&result.Template, r)
	}
	return out, nil
}

// statusOfAsk is what an ask that has no ticket gets to hear; Reason is a code
// that it was refused with.
func directStatus(t *reward.CouponTemplate, r store.AskResult) Status {
	switch {
	case r.Outcome == store.OutcomeIssued:
		return Status{Kind: StatusIssued, Ticket: r.Coupon.Ticket, Coupon: r.Coupon}
	case r.Outcome == store.OutcomeNotOpen:
		return Status{Kind: StatusRejected, Reason: reward.CodeNotOpen}
	case r.Outcome == store.OutcomeClosed:
		return Status{Kind: StatusRejected, Reason: reward.CodeClosed}
	case r.Reason == reward.ReasonUserLimit && t.PerUserLimit == 1 && r.Coupon.ID != 0:
		return Status{Kind: StatusIssued, Ticket: r.Coupon.Ticket, Coupon: r.Coupon, Duplicate: true}
	}
	return Status{Kind: StatusRejected, Reason: r.Reason}
}

// underLock is SYNC: sold-out is looked at before and after the wait.
func (i *Intake) underLock(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	a, err := i.checks.do(ctx, t.ID, user)
	if err != nil {
		return Status{}, err
	}
	if a.Verdict != gate.Admitted {
		if a.Verdict == gate.InLine { // from before the mode was changed
			return waiting(a), nil
		}
		return i.refused(ctx, t, user, a)
	}
	status, err := i.locked.do(ctx, t.ID, user)
	if err != nil {
		return Status{}, err
	}
	if status.Kind == "" {
		if a, err = i.checks.do(ctx, t.ID, user); err != nil {
			return Status{}, err
		}
		if a.Verdict == gate.Admitted {
			return Status{}, unavailable(nil, "a place has become free this moment; ask again")
		}
		return i.refused(ctx, t, user, a)
	}
	return i.told(t, status)
}

// throughRows is PathDatabase.
func (i *Intake) throughRows(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	status, err := i.direct.do(ctx, t.ID, user)
	if err != nil {
		return Status{}, err
	}
	return i.told(t, status)
}

// told turns a refusal into an error.
func (i *Intake) told(t *reward.CouponTemplate, status Status) (Status, error) {
	if status.Kind == StatusRejected {
		return Status{}, refuse(t, status.Reason)
	}
	return status, nil
}
