package coupon

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

func withoutIssuer(c *FlowConfig) { c.Issue = false }

// onPath waits until a template is on a path.
func (r *rig) onPath(id reward.TemplateID, path reward.IssuePath) {
	r.Helper()
	r.until("the path "+string(path), func() bool {
		row, err := r.rows.TemplateGet(r.Context(), id)
		return err == nil && row.Path == path
	})
}

// TestAnInstanceCutOffFromTheGateMovesNothing checks that an instance without the role
// issuer that alone has lost the gate's server leaves the templates to the issuer.
func TestAnInstanceCutOffFromTheGateMovesNothing(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		issuer, cut := r.start(), r.start(withoutIssuer)
		id := r.create(reward.CouponTemplate{TotalQuantity: 10})
		r.take(issuer, id, "ann")
		before := fixture.Must(r.rows.TemplateGet(r.Context(), id))(r)
		cut.gate.set(func(g *faultyGate) { g.down = true })
		for n := range 2 { // the second one after the first one has had its effect
			r.until("it asks who issues", func() bool {
				lease := fixture.Must(r.rows.LeaseTake(r.Context(), store.LeaseTakeParams{Name: "test", Owner: "test", TTL: time.Second, Among: standInLease}))(r)
				return slices.Contains(lease.Holders, cut.name)
			})
			r.take(issuer, id, fmt.Sprint("u", n))
			fixture.OK(r, r.rows.LeaseRelease(r.Context(), standInLease, cut.name))
		}
		if row, err := r.rows.TemplateGet(r.Context(), id); err != nil || row.Path != reward.PathGate || row.Generation != before.Generation {
			r.Errorf("it was moved: %+v, %v", row, err)
		}
	})
}

// issuerRows are rows of a template, with the leases of a number of issuers.
type issuerRows struct {
	leasedRows
	issuers atomic.Int64
}

func (r *issuerRows) LeaseTake(context.Context, store.LeaseTakeParams) (store.Lease, error) {
	r.takes.Add(1)
	return store.Lease{OK: true, Holders: make([]string, r.issuers.Load())}, nil
}

// answeringGate is a gate whose server responds.
type answeringGate struct{ gate.Gate }

func (answeringGate) Ping(context.Context) error { return nil }

// TestMissingIssuersAreReported checks that an instance without the role issuer reports
// when no other instance has it and there are templates, and when that ends.
func TestMissingIssuersAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const checkInterval = 5 * time.Second
		rows := &issuerRows{}
		templates := gatekeeper.NewTemplateCache(rows, time.Hour, obs.Log{})
		troubles := obs.NewTroubles(nil, obs.Log{})
		issuers := &IssuerManager{parts: parts{instance: "this", rows: rows}}
		m := gatekeeper.New(gatekeeper.Config{
			Store: rows, Gate: answeringGate{}, Templates: templates, Issuers: issuers, FallbackAfter: time.Second, Troubles: troubles, NoGate: true,
		}).Maintainer
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { templates.Run(ctx) })
		running.Go(func() { m.Watch(ctx) })
		for _, c := range []struct {
			templates, issuers int64
			missing            bool
		}{{0, 0, false}, {1, 0, true}, {1, 1, false}, {1, 0, true}, {0, 0, false}, {1, 2, false}} {
			rows.templates.Store(c.templates)
			rows.issuers.Store(c.issuers)
			time.Sleep(3 * checkInterval)
			if got := len(troubles.List()) > 0; got != c.missing {
				t.Errorf("%d templates, %d issuers: reported %v", c.templates, c.issuers, got)
			}
			before := rows.takes.Load()
			time.Sleep(time.Minute)
			if most := int64(time.Minute/checkInterval) + 1; rows.takes.Load()-before > most {
				t.Errorf("%d checks a minute, at most %d are wanted", rows.takes.Load()-before, most)
			}
		}
		stop()
		running.Wait()
	})
}
