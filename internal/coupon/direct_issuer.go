package coupon

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// The pauses between tries to take the lock.
const (
	lockRetryInterval    = 2 * time.Millisecond
	lockRetryIntervalMax = 20 * time.Millisecond
)

const (
	lockFailuresMax = 3   // failed calls to take the lock once
	directBatchMax  = 100 // requests of one transaction of issueBatch
)

// issueBatch issues to users through the database. errTemplateChanged means
// that the template's path is no longer PathDatabase.
func (i *Intake) issueBatch(ctx context.Context, id reward.TemplateID, users []string) ([]Status, error) {
	select {
	case i.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, unavailable(context.Cause(ctx), "Redis is unavailable and the database is at its limit of concurrent transactions; repeat the request")
	}
	defer func() { <-i.slots }()
	t, err := i.templates.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return i.issue(ctx, t, users, reward.PathDatabase, 0)
}

// issueLocked issues to users under the template's lock. If the gate would admit
// none of them once the lock is taken, all statuses have the empty kind.
//
// The lock is held for one transaction. It can expire without its holder's
// knowledge, so the transaction does nothing if a transaction with a higher fencing
// token has written before.
func (i *Intake) issueLocked(ctx context.Context, id reward.TemplateID, users []string) ([]Status, error) {
	t, err := i.templates.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	out, err := i.issueUnderLock(ctx, t, users)
	if errors.Is(err, errTokenLow) {
		// The row had a higher token than the template in memory: lock above it.
		if t, err = i.templates.Read(ctx, id); err != nil {
			return nil, err
		}
		out, err = i.issueUnderLock(ctx, t, users)
	}
	if errors.Is(err, errTokenLow) {
		return nil, unavailable(nil, "the lock of template %s expired before the transaction ended; repeat the request", id)
	}
	return out, err
}

// errTokenLow means that a transaction with the same fencing token or a higher one has
// written before.
var errTokenLow = errors.New("a higher fencing token has written before")

func (i *Intake) issueUnderLock(ctx context.Context, t *reward.CouponTemplate, users []string) ([]Status, error) {
	id := t.ID
	token, err := i.lock(ctx, t)
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = i.gate.Unlock(ctx, id, token) // the lock expires anyway
	}()
	// Check the gate: the last coupons may have gone during the wait for the lock.
	check, cancel := context.WithTimeout(ctx, gatekeeper.GateTimeout)
	result, err := i.gate.Admit(check, id, users, false)
	cancel()
	if err != nil {
		return nil, err
	}
	inStock := false
	for _, a := range result.Answers {
		inStock = inStock || a.Verdict == gate.Admitted
	}
	if !inStock {
		return make([]Status, len(users)), nil
	}
	return i.issue(ctx, t, users, reward.PathGate, token)
}

// lock takes the lock within lockWait and returns its fencing token. After a failed
// call the lock may be taken, so it calls again with the same nonce.
func (i *Intake) lock(ctx context.Context, t *reward.CouponTemplate) (int64, error) {
	deadline := time.Now().Add(i.lockWait)
	p := gate.LockParams{Lease: i.lockLease, Nonce: rand.Text(), Floor: t.Fence}
	failed := 0
	for try := 0; ; try++ {
		began := time.Now()
		call, cancel := context.WithTimeout(ctx, gatekeeper.GateTimeout)
		token, ok, err := i.gate.Lock(call, t.ID, p)
		cancel()
		switch {
		case err != nil:
			i.suspect(t.ID, began, err)
			if failed++; failed == lockFailuresMax || ctx.Err() != nil {
				return 0, err
			}
		case ok:
			return token, nil
		}
		if time.Now().After(deadline) || !service.Sleep(ctx, service.Backoff(try, lockRetryInterval, lockRetryIntervalMax)) {
			return 0, unavailable(context.Cause(ctx), "the lock of template %s could not be taken within %v; repeat the request", t.ID, i.lockWait)
		}
	}
}

func (i *Intake) issue(ctx context.Context, t *reward.CouponTemplate, users []string, path reward.IssuePath, fence int64) ([]Status, error) {
	p := store.CouponSettleParams{
		TemplateID: t.ID, Known: t, Kind: rules.SettleDirect, Generation: t.Generation, Path: path, Fence: fence, Now: time.Now(),
		Requests: make([]rules.CouponRequest, len(users)),
	}
	for n, user := range users {
		p.Requests[n] = newAsk(i.ids, t, user, 0, 0)
	}
	result, err := i.rows.CouponSettle(ctx, p)
	if reward.HasCode(err, reward.CodeConflict) { // a new code is in use
		return nil, errTemplateChanged
	}
	switch {
	case err != nil:
		return nil, err
	case result.Refused == rules.RefusedFence:
		return nil, errTokenLow
	case result.Refused != rules.NotRefused:
		if _, err := i.templates.Read(ctx, t.ID); err != nil {
			return nil, err
		}
		i.templates.Hint()
		return nil, errTemplateChanged
	}
	if path == reward.PathGate {
		i.applier.ApplyBestEffort(ctx, t.ID, &result.CouponChange, gatekeeper.Extras{})
	}
	i.settled(t.ID)
	out := make([]Status, len(users))
	for n, r := range result.Results {
		out[n] = directStatus(&result.Template, r)
	}
	return out, nil
}

// directStatus converts the result of a request without a ticket. The Reason of
// a rejection is an error code.
func directStatus(t *reward.CouponTemplate, r store.RequestResult) Status {
	switch {
	case r.Outcome == rules.RequestIssued:
		return Status{Kind: StatusIssued, Ticket: r.Coupon.Ticket, Coupon: r.Coupon}
	case r.Outcome == rules.RequestNotOpen:
		return Status{Kind: StatusRejected, Reason: reward.CodeNotOpen}
	case r.Outcome == rules.RequestClosed:
		return Status{Kind: StatusRejected, Reason: reward.CodeClosed}
	case r.Reason == reward.ReasonUserLimit && t.PerUserLimit == 1 && r.Coupon.ID != 0:
		return Status{Kind: StatusIssued, Ticket: r.Coupon.Ticket, Coupon: r.Coupon, Duplicate: true}
	}
	return Status{Kind: StatusRejected, Reason: r.Reason}
}
