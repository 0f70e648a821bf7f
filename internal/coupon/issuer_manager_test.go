package coupon

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// leasedRows is a store with templates, all of which another instance issues.
type leasedRows struct {
	Store
	templates atomic.Int64 // how many are active
	takes     atomic.Int64 // how often the lease was taken or renewed
}

func (r *leasedRows) TemplateActive(context.Context, time.Time) ([]reward.CouponTemplate, error) {
	all := make([]reward.CouponTemplate, r.templates.Load())
	for i := range all {
		all[i].ID = reward.TemplateID(i + 1)
	}
	return all, nil
}

func (r *leasedRows) LeaseTake(context.Context, store.LeaseTakeParams) (store.Lease, error) {
	r.takes.Add(1)
	return store.Lease{OK: true, Holders: []string{"another"}}, nil
}

func (*leasedRows) LeaseRelease(context.Context, string, string) error { return nil }

// TestWithoutTemplatesNoLeaseIsTaken: an instance takes the lease of issuers only while
// there are templates.
func TestWithoutTemplatesNoLeaseIsTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := &leasedRows{}
		templates := gatekeeper.NewTemplateCache(rows, time.Hour, obs.Log{})
		m := &IssuerManager{parts: parts{instance: "this", rows: rows, templates: templates}, issuers: make(map[reward.TemplateID]*runningIssuer)}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { templates.Run(ctx) })
		running.Go(func() { m.run(ctx) })
		for _, n := range []int64{0, 1, 0} {
			rows.templates.Store(n)
			time.Sleep(2 * time.Second)
			before := rows.takes.Load()
			time.Sleep(leaseTTL)
			if takes := rows.takes.Load() - before; (takes > 0) != (n > 0) {
				t.Errorf("%d templates: the lease was taken %d times in %v", n, takes, leaseTTL)
			}
		}
		stop()
		running.Wait()
	})
}
