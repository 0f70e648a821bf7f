package coupon

import (
	"context"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// lockRoute issues at once under the template's lock (SYNC mode). The gate is checked
// before and after the wait for the lock. So requests for a template that is sold out
// need no lock, or at least no transaction.
type lockRoute struct {
	admitter *admitter
	checks   *batcher[gateAnswer]
	issues   *batcher[Status]
}

func newLockRoute(admitter *admitter, issuer *DirectIssuer) *lockRoute {
	return &lockRoute{
		admitter: admitter,
		checks:   newBatcher(gate.AdmitMax, callTimeout, admitter.batch(false)),
		issues:   newBatcher(gate.AdmitMax, issuer.lockWait+callTimeout, issuer.IssueLocked),
	}
}

func (r *lockRoute) request(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	a, err := r.checks.do(ctx, t.ID, user)
	if err != nil {
		return Status{}, err
	}
	if a.Verdict == gate.InLine { // since before the mode was changed to SYNC
		return a.waiting(), nil
	}
	if a.Verdict != gate.Admitted {
		return r.admitter.refused(ctx, t, user, a)
	}
	status, err := r.issues.do(ctx, t.ID, user)
	if err != nil {
		return Status{}, err
	}
	if status.Kind != "" {
		return refuseDirect(t, status, "the coupons that are left are promised to users in line; repeat the request later")
	}
	// The stock was gone once the lock was taken.
	if a, err = r.checks.do(ctx, t.ID, user); err != nil {
		return Status{}, err
	}
	if a.Verdict == gate.Admitted {
		return Status{}, unavailable(nil, "a coupon has become available at this moment; repeat the request")
	}
	return r.admitter.refused(ctx, t, user, a)
}

func (r *lockRoute) wait() {
	r.checks.open.Wait()
	r.issues.open.Wait()
}
