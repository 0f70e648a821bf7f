package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// leaseCallTimeout limits one call that takes, renews or releases a lease.
const leaseCallTimeout = 2 * time.Second

// Leases is what takes leases: the store.
type Leases interface {
	LeaseTake(ctx context.Context, p LeaseTakeParams) (Lease, error)
	LeaseRelease(ctx context.Context, name, owner string) error
}

// LeadParams configures Lead.
type LeadParams struct {
	Rows Leases
	// Lease is the lease to hold. Its owner must be unique to this caller. Lead
	// tries to take it, and renews it, three times per TTL.
	Lease LeaseTakeParams
	// Lead does the work of the leader until its context ends. If it returns
	// earlier, it is called again after about a third of the TTL.
	Lead func(ctx context.Context)
	// Follow, if not nil, is called after each attempt that did not get the
	// lease. It never runs at the same time as Lead.
	Follow func()
	Log    obs.Log
}

// Lead calls p.Lead while it holds a lease, so that one of many instances leads.
// It returns when ctx ends, after p.Lead has returned and the lease is released.
//
// The lease is lost when another owner has it, or when its TTL has passed since
// the last successful renewal began. Before that, a failed renewal is harmless:
// no other owner can take the lease either. The context of p.Lead ends when the
// lease is lost. Lead then tries to take the lease again.
func Lead(ctx context.Context, p LeadParams) {
	report := p.Log.Streak("lease unavailable", "lease available again")
	for ctx.Err() == nil {
		takenAt := time.Now()
		held, err := takeLease(ctx, p)
		if ctx.Err() == nil {
			report(err, "lease", p.Lease.Name)
		}
		switch {
		case held:
			leadOnce(ctx, p, takenAt, report)
		case p.Follow != nil:
			p.Follow()
		}
		service.Sleep(ctx, service.Jitter(p.Lease.TTL/3, 0.2))
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseCallTimeout)
	defer cancel()
	if err := p.Rows.LeaseRelease(release, p.Lease.Name, p.Lease.Owner); err != nil {
		p.Log.Warn("releasing lease failed", err, "lease", p.Lease.Name)
	}
}

// errLeaseLost is the cause of a context that ends because the lease is lost.
var errLeaseLost = errors.New("another owner has the lease, or it expired")

// leadOnce calls p.Lead and renews the lease meanwhile. It returns after p.Lead
// has returned. heldFrom is the time just before the lease was taken.
func leadOnce(ctx context.Context, p LeadParams, heldFrom time.Time, report func(error, ...any)) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	expiry := time.AfterFunc(time.Until(heldFrom.Add(p.Lease.TTL)), func() { cancel(errLeaseLost) })
	defer expiry.Stop()
	renewing := make(chan struct{})
	go func() {
		defer close(renewing)
		for service.Sleep(ctx, p.Lease.TTL/3) {
			renewedAt := time.Now()
			held, err := takeLease(ctx, p)
			if ctx.Err() != nil {
				return // the lease may have been lost during the renewal
			}
			report(err, "lease", p.Lease.Name)
			switch {
			case held:
				expiry.Reset(time.Until(renewedAt.Add(p.Lease.TTL)))
			case err == nil: // another owner has it
				cancel(errLeaseLost)
				return
			}
		}
	}()
	p.Lead(ctx)
	cancel(nil)
	<-renewing
}

// takeLease takes or renews the lease, and reports whether this caller has it.
func takeLease(ctx context.Context, p LeadParams) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, min(leaseCallTimeout, p.Lease.TTL/3))
	defer cancel()
	l, err := p.Rows.LeaseTake(ctx, p.Lease)
	if err != nil {
		return false, fmt.Errorf("take the lease %q: %w", p.Lease.Name, err)
	}
	return l.OK, nil
}
