package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	leaseTTL           = 15 * time.Second
	leaseRenewInterval = leaseTTL / 3
)

// lease is the exclusive ownership of a name in the database. It expires if it is not
// renewed.
type lease struct {
	service.Base
	rows  store.Leases
	name  string
	owner string
	lost  func(error)
	log   obs.Log
}

// takeLease takes the lease of a name, or returns parts.ErrInUse with the name of its
// holder. It renews the lease in the background, and calls lost if another
// instance took it.
func takeLease(ctx context.Context, rows store.Leases, name, instance string, lost func(error), log obs.Log) (*lease, error) {
	l := &lease{rows: rows, name: name, owner: instance + "/" + rand.Text()[:8], lost: lost, log: log.For(obs.Engine)}
	got, err := rows.LeaseTake(ctx, store.LeaseTakeParams{Name: name, Owner: l.owner, TTL: leaseTTL})
	if err != nil {
		return nil, fmt.Errorf("taking the lease %q failed: %w", name, err)
	}
	if !got.OK {
		holder, _, _ := strings.Cut(got.Owner, "/")
		return nil, fmt.Errorf("the lease %q is %w: %s holds it until %s", name, parts.ErrInUse, holder, got.Until.UTC().Format(time.RFC3339))
	}
	l.Start(context.WithoutCancel(ctx), l.renew)
	return l, nil
}

// takeAbandonedLease is like takeLease, for a lease that a killed process may have
// left behind. It waits until the lease of a dead holder would have expired, and
// returns parts.ErrInUse if the holder has renewed it.
func takeAbandonedLease(ctx context.Context, rows store.Leases, name, instance string, lost func(error), log obs.Log) (*lease, error) {
	deadline := time.Now().Add(leaseTTL + time.Second)
	for {
		l, err := takeLease(ctx, rows, name, instance, lost, log)
		if err == nil || !errors.Is(err, parts.ErrInUse) || time.Now().After(deadline) {
			return l, err
		}
		log.For(obs.Engine).Warn("taking lease failed", err, "lease", name)
		if !service.Sleep(ctx, time.Second) {
			return nil, err
		}
	}
}

func (l *lease) renew(ctx context.Context) {
	for service.Sleep(ctx, leaseRenewInterval) {
		got, err := l.rows.LeaseTake(ctx, store.LeaseTakeParams{Name: l.name, Owner: l.owner, TTL: leaseTTL})
		switch {
		case err == nil && got.OK:
		case err == nil:
			l.lost(fmt.Errorf("the lease %q is %w: %s took it", l.name, parts.ErrInUse, got.Owner))
			return
		case ctx.Err() != nil:
			return
		default:
			// During an outage of the database, no other instance can take it
			// either. The first attempt after that decides.
			l.log.Warn("renewing lease failed", err, "lease", l.name)
		}
	}
}

func (l *lease) release() {
	l.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := l.rows.LeaseRelease(ctx, l.name, l.owner); err != nil {
		l.log.Warn("releasing lease failed", err, "lease", l.name)
	}
}
