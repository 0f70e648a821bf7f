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

// TestAnOutageWithoutAnIssuer checks that instances without the role issuer move templates
// to the database path when no other instance is there to do it, that the users in line
// keep their places, and that the next issuer serves them.
func TestAnOutageWithoutAnIssuer(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		const quantity, line = 100, 10
		r.start(withoutIssuer)
		r.start(withoutIssuer)
		id := r.create(reward.CouponTemplate{TotalQuantity: quantity})
		waits := r.create(reward.CouponTemplate{TotalQuantity: quantity, WhenRedisAway: reward.FallbackWait})
		told := r.rush(r.instances[0], id, "line", line)
		row, err := r.rows.TemplateGet(r.Context(), id)
		if err != nil || row.Promised() < line {
			r.Fatalf("%+v, %v", row, err)
		}
		for _, i := range r.instances {
			i.gate.set(func(g *faultyGate) { g.down = true })
		}
		others := int(quantity - row.Promised())
		for n := range others {
			if s, code := r.request(r.instances[n%2], id, fmt.Sprint("other", n)); code != "" || s.Kind != StatusIssued {
				r.Fatalf("during the outage: %q %+v", code, s)
			}
		}
		if _, err := r.instances[0].Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: "late"}); !reward.HasCode(err, reward.CodeUnavailable) {
			r.Errorf("a place of the line was given away: %v", err)
		}
		if row, err := r.rows.TemplateGet(r.Context(), waits); err != nil || row.Path != reward.PathGate {
			r.Errorf("a template that waits moved: %+v, %v", row, err)
		}
		for _, i := range r.instances {
			i.gate.set(func(g *faultyGate) { g.down = false })
		}
		r.start()
		for _, user := range told {
			if s := r.outcome(r.instances[0], id, user); s.Kind != StatusIssued {
				r.Errorf("%s was told to wait, and then %+v", user, s)
			}
		}
		r.onPath(id, reward.PathGate)
		if got := r.rush(r.instances[1], id, "new", quantity); len(got) != quantity-others-line {
			r.Errorf("%d newcomers were admitted, want %d", len(got), quantity-others-line)
		}
		r.issued(id, quantity)
		r.balanced(id)
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
		before, err := r.rows.TemplateGet(r.Context(), id)
		if err != nil {
			r.Fatal(err)
		}
		cut.gate.set(func(g *faultyGate) { g.down = true })
		for n := range 2 { // the second one after the first one has had its effect
			r.until("it asks who issues", func() bool {
				lease, err := r.rows.LeaseTake(r.Context(), store.LeaseTakeParams{Name: "test", Owner: "test", TTL: time.Second, Among: standInLease})
				if err != nil {
					r.Fatal(err)
				}
				return slices.Contains(lease.Holders, cut.name)
			})
			r.take(issuer, id, fmt.Sprint("u", n))
			if err := r.rows.LeaseRelease(r.Context(), standInLease, cut.name); err != nil {
				r.Fatal(err)
			}
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
		rows := &issuerRows{}
		templates := newTemplateCache(rows, time.Hour, obs.Log{})
		troubles := obs.NewTroubles(nil, obs.Log{})
		m := &GateMaintainer{
			rows: rows, gate: answeringGate{}, templates: templates, fallbackAfter: time.Second, troubles: troubles,
			issuers: &IssuerManager{instance: "this", rows: rows, templates: templates},
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { templates.run(ctx) })
		running.Go(func() { m.watch(ctx) })
		for _, c := range []struct {
			templates, issuers int64
			missing            bool
		}{{0, 0, false}, {1, 0, true}, {1, 1, false}, {1, 0, true}, {0, 0, false}, {1, 2, false}} {
			rows.templates.Store(c.templates)
			rows.issuers.Store(c.issuers)
			time.Sleep(3 * seeIssuersInterval)
			if got := len(troubles.List()) > 0; got != c.missing {
				t.Errorf("%d templates, %d issuers: reported %v", c.templates, c.issuers, got)
			}
			before := rows.takes.Load()
			time.Sleep(time.Minute)
			if most := int64(time.Minute/seeIssuersInterval) + 1; rows.takes.Load()-before > most {
				t.Errorf("%d checks a minute, at most %d are wanted", rows.takes.Load()-before, most)
			}
		}
		stop()
		running.Wait()
	})
}
