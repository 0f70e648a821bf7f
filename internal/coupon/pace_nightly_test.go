//go:build nightly

package coupon

import (
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// TestWaitsAreHonestOnRealServers is TestWaitsAreHonest on the servers of each world.
func TestWaitsAreHonestOnRealServers(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 1_000_000})
		r.request(r.instances[0], id, "first") // loads the gate
		g := r.instances[0].gate
		h, err := g.Headers(r.Context(), []reward.TemplateID{id})
		if err != nil {
			r.Fatal(err)
		}
		at := grantOf{generation: h[0].Generation, version: h[0].Version, granted: h[0].Granted, grants: h[0].Grants}
		if err := r.instances[0].Catalog.granter.add(r.Context(), id, at, linePeople); err != nil {
			r.Fatal(err)
		}
		var users []string
		for n := range linePeople {
			if users = append(users, fmt.Sprint("u", n)); len(users) == gate.AdmitMax {
				admit(r, g, id, users...)
				users = nil
			}
		}
		const batch = 400 * time.Millisecond
		var rows *slowRows
		r.start(func(c *FlowConfig) {
			rows = &slowRows{Store: c.Store, took: batch}
			c.Store = rows
		})
		compared, wrong := honest(r, id, g, rows, batch)
		// A stall of the machine makes single ones wrong.
		all := compared[batch] + compared[5*batch]
		if r.Logf("compared %v, wrong %d", compared, len(wrong)); compared[5*batch] < 20 || len(wrong)*5 > all {
			r.Errorf("%d of %d are wrong: %v", len(wrong), all, wrong)
		}
	})
}

// TestWaitsAreHonestInKafkaMode is TestWaitsAreHonestOnRealServers for requests
// that wait in a topic.
func TestWaitsAreHonestInKafkaMode(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Connected = func() bool { return false } }) // it publishes and reads nothing
		id := r.create(reward.CouponTemplate{TotalQuantity: 1_000_000, Mode: reward.ModeKafka})
		r.rush(i, id, "u", linePeople)
		const batch = 400 * time.Millisecond
		var rows *slowRows
		r.start(func(c *FlowConfig) {
			rows = &slowRows{Store: c.Store, took: batch}
			c.Store = rows
		})
		compared, wrong := honest(r, id, i.gate, rows, batch)
		// A stall of the machine makes single ones wrong.
		all := compared[batch] + compared[5*batch]
		if r.Logf("compared %v, wrong %d", compared, len(wrong)); compared[5*batch] < 20 || len(wrong)*5 > all {
			r.Errorf("%d of %d are wrong: %v", len(wrong), all, wrong)
		}
	})
}
