package coupon

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TestEverythingIsForgotten checks that a gate that loses all data repeatedly during a
// rush never issues too many coupons or two to a user, and issues all in the end.
func TestEverythingIsForgotten(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, exerciseForgotten)
	onServers(t, func(r *rig) { exerciseForgotten(r, reward.ModeStream) })
}

func exerciseForgotten(r *rig, mode reward.IssueMode) {
	r.startAll(2)
	id := r.create(reward.CouponTemplate{TotalQuantity: 200, Mode: mode})
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			for u := range 30 {
				r.request(r.instances[u%2], id, fmt.Sprintf("u%d-%d", n, u))
				r.sleep(5 * time.Millisecond)
			}
		})
	}
	for range 4 {
		r.sleep(30 * time.Millisecond) // the interval between faults
		r.flush(r)
	}
	wg.Wait()
	// Users whose request was lost request again; 200 of 600 get a coupon.
	r.until("all are issued", func() bool {
		for n := range 20 {
			for u := range 30 {
				if _, code := r.request(r.instances[u%2], id, fmt.Sprintf("u%d-%d", n, u)); code == reward.CodeSoldOut && len(r.coupons(id)) == 200 {
					return true
				}
			}
		}
		return false
	})
	list := r.coupons(id)
	users := make(map[string]bool)
	for n, c := range list {
		users[c.UserID] = true
		if mode == reward.ModeStream && c.Ticket != int64(n+1) {
			r.Errorf("ticket %d is %d", n+1, c.Ticket)
		}
	}
	if len(list) != 200 || len(users) != 200 {
		r.Errorf("%d coupons of %d users", len(list), len(users))
	}
	r.balanced(id)
}

// TestIssuerIsTakenOver checks that another instance issues the templates of one that
// stopped, within 3 s.
func TestIssuerIsTakenOver(t *testing.T) {
	t.Parallel()
	eachServer(t, func(r *rig) {
		a, b := r.start(), r.start()
		requester := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 1000})
		var owner *instance
		r.until("an instance issues it", func() bool {
			for _, i := range []*instance{a, b} {
				if _, has := i.issuers.Epochs()[id]; has {
					owner = i
					return true
				}
			}
			return false
		})
		r.take(requester, id, "first")
		// The owner hangs: it no longer renews its lease.
		owner.assigning.Stop()
		owner.maintaining.Stop()
		for n := range 50 {
			r.request(requester, id, fmt.Sprint("u", n))
		}
		began := time.Now()
		r.issued(id, 51)
		if took := r.since(began); took > 3*time.Second {
			r.Errorf("taken over after %v", took)
		}
		r.balanced(id)
	})
}

// TestRedisIsAway checks that during an outage coupons are issued through the database,
// or not at all, as the template demands, and that users in line are served first
// afterwards.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		// No instance issues at first, so that users are in line when the outage starts.
		requester := r.start(func(c *FlowConfig) { c.Issue = false })
		goes := r.create(reward.CouponTemplate{TotalQuantity: 100, WhenRedisAway: reward.FallbackDatabase})
		waits := r.create(reward.CouponTemplate{TotalQuantity: 100, WhenRedisAway: reward.FallbackWait})
		for n := range 10 {
			r.want(requester, goes, fmt.Sprint("before", n), "")
		}
		down := func(g *faultyGate) { g.down = true }
		requester.gate.set(down)
		issuer := r.start(func(c *FlowConfig) {
			c.Concurrency = 3
			c.Gate.(*faultyGate).set(down)
		})
		for n := range 20 {
			if s, code := r.request(requester, goes, fmt.Sprint("during", n)); code != "" || s.Kind != StatusIssued {
				r.Errorf("during the outage: %q %+v", code, s)
			}
		}
		if s, code := r.request(requester, goes, "during3"); code != "" || !s.Duplicate {
			r.Errorf("a repeat during the outage: %q %+v", code, s)
		}
		if _, err := requester.Intake.Request(r.Context(), IssueCommand{TemplateID: waits, UserID: "ann"}); !reward.HasCode(err, reward.CodeUnavailable) {
			r.Errorf("WAIT: %v", err)
		}
		if s, err := requester.Intake.Status(r.Context(), goes, "during7"); err != nil || s.Kind != StatusIssued {
			r.Errorf("status during the outage: %+v, %v", s, err)
		}
		requester.gate.set(func(g *faultyGate) { g.down = false })
		issuer.gate.set(func(g *faultyGate) { g.down = false })
		r.until("the users in line are served", func() bool { return len(r.coupons(goes)) >= 30 })
		r.take(requester, goes, "after")
		r.take(requester, waits, "ann")
		list := r.coupons(goes)
		if len(list) != 31 {
			r.Fatalf("%d coupons", len(list))
		}
		for n := range 10 {
			if want := fmt.Sprint("before", n); list[20+n].UserID != want {
				r.Errorf("ticket %d belongs to %s, want %s", list[20+n].Ticket, list[20+n].UserID, want)
			}
		}
		r.balanced(goes)
		r.balanced(waits)
	})
}
