package coupon

import (
	"fmt"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
)

// TestReconcileRepairsWhatOthersSee checks that a reconciliation finds and repairs every
// counter for other systems and every holding that somebody changed manually.
func TestReconcileRepairsWhatOthersSee(t *testing.T) {
	t.Parallel()
	onServers(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 100, WhenRedisAway: reward.FallbackWait}) // not to the database, however busy the machine is
		for n := range 7 {
			r.take(i, id, fmt.Sprint("u", n))
		}
		r.balanced(id)
		i.stop() // its maintainer would repair first
		j := r.start(func(c *FlowConfig) { c.Issue, c.Housekeeping = false, false })
		reconcile := func(repair bool) map[string]bool {
			r.Helper()
			report, err := j.Reconciler.Run(r.Context(), gatekeeper.ReconcileCommand{TemplateID: &id, Repair: repair})
			if err != nil || len(report.Skipped) > 0 {
				r.Fatalf("%+v, %v", report, err)
			}
			found := make(map[string]bool)
			for _, d := range report.Drifts {
				found[d.What+d.UserID] = true
				if d.Repaired != repair {
					r.Errorf("%+v", d)
				}
			}
			return found
		}
		key := "coupon:{" + id.String() + "}:"
		for what, damage := range map[string]func(){
			"stock":        func() { r.do(r, "SET", key+"stock", "3") },
			"count":        func() { r.do(r, "SET", key+"count", "778") },
			"issued_total": func() { r.do(r, "DEL", key+"issued_total") },
			"useru3":       func() { r.do(r, "HDEL", key+"holders", "u3") },
			"usernobody":   func() { r.do(r, "HSET", key+"holders", "nobody", "1:99") },
			"useru4":       func() { r.do(r, "HSET", key+"holders", "u4", "2:5") },
		} {
			damage()
			for _, repair := range []bool{false, true} {
				if found := reconcile(repair); !found[what] || len(found) != 1 {
					r.Errorf("%s: found %v", what, found)
				}
			}
			if found := reconcile(false); len(found) != 0 {
				r.Errorf("%s is not repaired: %v", what, found)
			}
		}
		h, err := j.gate.Headers(r.Context(), []reward.TemplateID{id})
		if err != nil || h[0].PublishedCount != 7 || h[0].PublishedIssued != 7 || h[0].PublishedStock != 93 {
			r.Errorf("%+v, %v", h, err)
		}
		if p, err := j.gate.HoldingsOf(r.Context(), id, []string{"u3", "nobody", "u4"}); err != nil || p.Holdings[0].Held != 1 ||
			p.Holdings[1] != (gate.Holding{UserID: "nobody"}) || p.Holdings[2].Held != 1 || p.Holders != 7 {
			r.Errorf("%+v, %v", p, err)
		}
	})
}
