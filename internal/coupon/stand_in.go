package coupon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// seeIssuersInterval separates the checks whether an instance that issues coupons is alive.
const seeIssuersInterval = 5 * time.Second

// standInLease is taken only to learn who holds the leases of issuing instances, so its
// name does not begin with leasePrefix.
const standInLease = "coupon stand-in"

// watch is the loop of an instance that issues no coupons. During an outage of the gate's
// server it moves templates to the database path, but only if no instance that issues
// coupons is alive to do it: users would get 503 until one is. The next such instance
// moves them back. It also reports when nobody issues coupons.
func (m *GateMaintainer) watch(ctx context.Context) {
	report := m.log.Streak("watching the gate's server failed", "")
	defer m.troubles.Clear(obs.PartIssuer)
	for ctx.Err() == nil {
		if err := errors.Join(m.watchRound(ctx), m.seeIssuers(ctx)); ctx.Err() == nil {
			report(err)
		}
		service.Sleep(ctx, m.interval())
	}
}

// watchRound asks whether the gate's server responds: once per contactInterval, after a
// failed call, and always during an outage.
func (m *GateMaintainer) watchRound(ctx context.Context) error {
	began := time.Now()
	suspected := m.suspectedAt.Swap(0)
	switch {
	case !m.downSince.IsZero():
		// The latest call failed. If it is time to move, do not wait for another one.
		err := m.standIn(ctx)
		if down := m.ping(ctx); down != nil {
			m.stillDown(down)
			return err
		}
		m.responds()
		return err
	case suspected != 0:
		began = time.UnixMicro(suspected)
	case len(m.templates.active()) == 0 || began.Sub(m.contactAt) < contactInterval:
		return m.tryRefused(ctx)
	}
	if !m.contact(ctx, began) {
		return m.standIn(ctx)
	}
	return m.tryRefused(ctx)
}

// standIn moves templates to the database path, if the gate's server has been down for
// fallbackAfter and no issuing instance is alive.
func (m *GateMaintainer) standIn(ctx context.Context) error {
	if m.untilFallback() > 0 {
		return nil
	}
	all := slices.DeleteFunc(slices.Clone(m.templates.active()), func(t *reward.CouponTemplate) bool {
		return inDraw(t) || t.Path == reward.PathDatabase || t.WhenRedisAway != reward.FallbackDatabase
	})
	if len(all) == 0 {
		return nil
	}
	alive, err := m.issuers.anyAlive(ctx)
	if err != nil || alive {
		return err
	}
	return m.fallBack(ctx, all)
}

// seeIssuers reports when no instance that issues coupons is alive. One that has just seen
// its first template takes its lease a moment later, so two checks in a row must agree.
func (m *GateMaintainer) seeIssuers(ctx context.Context) error {
	if len(m.templates.active()) == 0 {
		m.unissued = 0
		m.troubles.Clear(obs.PartIssuer)
		return nil
	}
	if time.Since(m.seenIssuersAt) < seeIssuersInterval {
		return nil
	}
	m.seenIssuersAt = time.Now()
	alive, err := m.issuers.anyAlive(ctx)
	switch {
	case err != nil:
		return err
	case alive:
		m.unissued = 0
		m.troubles.Clear(obs.PartIssuer)
	default:
		if m.unissued++; m.unissued > 1 {
			m.troubles.Set(obs.PartIssuer, "no instance with the role issuer is alive: users in waiting lines wait, and no draw is held; start an instance with this role")
		}
	}
	return nil
}

// anyAlive reports whether any instance that issues coupons is alive.
func (m *IssuerManager) anyAlive(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	lease, err := m.rows.LeaseTake(ctx, store.LeaseTakeParams{Name: standInLease, Owner: m.instance, TTL: leaseTTL, Among: leasePrefix})
	return len(lease.Holders) > 0, err
}
