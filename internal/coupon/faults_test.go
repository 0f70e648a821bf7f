package coupon

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TestEverythingIsForgotten: the gate loses all it has while a crowd asks, again
// and again: never more than there is, nobody twice, and all of it goes in the
// end.
func TestEverythingIsForgotten(t *testing.T) {
	t.Parallel()
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka, reward.ModeSync} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			each(t, func(r *rig) {
				r.startAll(2)
				id := r.create(reward.CouponTemplate{TotalQuantity: 200, Mode: mode})
				var wg sync.WaitGroup
				for n := range 20 {
					wg.Go(func() {
						for u := range 30 {
							r.ask(r.instances[u%2], id, fmt.Sprintf("u%d-%d", n, u))
						}
					})
				}
				for range 4 {
					time.Sleep(30 * time.Millisecond) // that is the fault's pace
					r.flush(r)
				}
				wg.Wait()
				// Who was lost asks again; 200 of 600 get one.
				r.until("all are issued", func() bool {
					for n := range 20 {
						for u := range 30 {
							if _, code := r.ask(r.instances[u%2], id, fmt.Sprintf("u%d-%d", n, u)); code == reward.CodeSoldOut && len(r.coupons(id)) == 200 {
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
			})
		})
	}
}

// TestIssuerIsLost: an issuer whose epoch was taken settles nothing more, and
// another goes on where it was.
func TestIssuerIsLost(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.startAll(3)
		id := r.create(reward.CouponTemplate{TotalQuantity: 2000})
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				for u := range 100 {
					r.ask(r.instances[u%3], id, fmt.Sprintf("u%d-%d", n, u))
				}
			})
		}
		for range 10 {
			time.Sleep(20 * time.Millisecond) // that is the fault's pace
			if _, err := r.rows.TemplateOwn(r.Context(), []reward.TemplateID{id}, "a stranger"); err != nil {
				r.Fatal(err)
			}
		}
		wg.Wait()
		r.until("all are issued", func() bool { return len(r.coupons(id)) == 2000 })
		for n, c := range r.coupons(id) {
			if c.Ticket != int64(n+1) {
				r.Fatalf("ticket %d is %d", n+1, c.Ticket)
			}
		}
		r.balanced(id)
	})
}

// TestIssuerIsTakenOver: what an instance that ends leaves behind is issued by
// another within 3 s of the lapse of its lease.
func TestIssuerIsTakenOver(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		a, b := r.start(), r.start()
		asker := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 1000})
		var owner *instance
		r.until("somebody issues it", func() bool {
			for _, i := range []*instance{a, b} {
				if _, has := i.issuers.epochs()[id]; has {
					owner = i
					return true
				}
			}
			return false
		})
		r.take(asker, id, "first")
		// It hangs: it holds its lease no more, and tells nobody.
		owner.assigning.Stop()
		owner.maintaining.Stop()
		for n := range 50 {
			r.ask(asker, id, fmt.Sprint("u", n))
		}
		began := time.Now()
		r.until("the other one goes on", func() bool { return len(r.coupons(id)) == 51 })
		if took := time.Since(began); took > 3*time.Second {
			r.Errorf("taken over after %v", took)
		}
		r.balanced(id)
	})
}

// TestAppliesAreLost: nothing that is committed reaches the gate by itself; the
// keeper makes up for all of it.
func TestAppliesAreLost(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 10, ReissueAfterCancel: true})
		r.take(i, id, "u0")
		i.gate.set(func(g *faultyGate) { g.loseApply = true })
		for n := range 9 {
			r.ask(i, id, fmt.Sprint("u", n+1))
		}
		r.until("all are issued", func() bool { return len(r.coupons(id)) == 10 })
		list := r.coupons(id)
		if _, err := i.Catalog.Cancel(r.Context(), list[3].ID); err != nil {
			r.Fatal(err)
		}
		if _, code := r.ask(i, id, "late"); code != reward.CodeSoldOut {
			r.Errorf("answered %q by a gate that knows of nothing", code)
		}
		i.gate.set(func(g *faultyGate) { g.loseApply = false })
		began := time.Now()
		r.until("the free place is known", func() bool {
			_, code := r.ask(i, id, "late")
			return code == ""
		})
		if took := time.Since(began); took > 2*time.Second {
			r.Errorf("sold out for %v although a place was free", took)
		}
		r.outcome(i, id, "late")
		r.balanced(id)
	})
}

// TestRedisIsAway: issuing goes on through rows, or waits, as the template says;
// those in line are served when it is back, before anybody new.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		// Nobody issues at first, so that people wait when Redis goes.
		asker := r.start(func(c *FlowConfig) { c.Issue = false })
		goes := r.create(reward.CouponTemplate{TotalQuantity: 100, WhenRedisAway: reward.AwayDatabase})
		waits := r.create(reward.CouponTemplate{TotalQuantity: 100, WhenRedisAway: reward.AwayWait})
		for n := range 10 {
			r.want(asker, goes, fmt.Sprint("before", n), "")
		}
		issuer := r.start(func(c *FlowConfig) { c.Concurrency = 3 })
		asker.gate.set(func(g *faultyGate) { g.away = true })
		issuer.gate.set(func(g *faultyGate) { g.away = true })
		for n := range 20 {
			if s, code := r.ask(asker, goes, fmt.Sprint("during", n)); code != "" || s.Kind != StatusIssued {
				r.Errorf("while it is away: %q %+v", code, s)
			}
		}
		if s, code := r.ask(asker, goes, "during3"); code != "" || !s.Duplicate {
			r.Errorf("a repeat while it is away: %q %+v", code, s)
		}
		if _, err := asker.Intake.Request(r.Context(), IssueCommand{TemplateID: waits, UserID: "ann"}); !reward.HasCode(err, reward.CodeUnavailable) {
			r.Errorf("WAIT: %v", err)
		}
		if s, err := asker.Intake.Status(r.Context(), goes, "during7"); err != nil || s.Kind != StatusIssued {
			r.Errorf("status while it is away: %+v, %v", s, err)
		}
		asker.gate.set(func(g *faultyGate) { g.away = false })
		issuer.gate.set(func(g *faultyGate) { g.away = false })
		r.until("those in line are served", func() bool { return len(r.coupons(goes)) >= 30 })
		r.take(asker, goes, "after")
		r.take(asker, waits, "ann")
		list := r.coupons(goes)
		if len(list) != 31 {
			r.Fatalf("%d coupons", len(list))
		}
		for n := range 10 {
			if want := fmt.Sprint("before", n); list[20+n].UserID != want {
				r.Errorf("ticket %d is of %s, want %s", list[20+n].Ticket, list[20+n].UserID, want)
			}
		}
		r.balanced(goes)
		r.balanced(waits)
	})
}
