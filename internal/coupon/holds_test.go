package coupon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// TestHolds checks in every mode that a coupon is held, that a confirmed one stays,
// and that the place of one that is not confirmed goes to the next user, once.
func TestHolds(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, exerciseHolds)
	onServers(t, func(r *rig) { exerciseHolds(r, reward.ModeStream) })
}

func exerciseHolds(r *rig, mode reward.IssueMode) {
	r.startAll(2) // both sweep
	a, b := r.instances[0], r.instances[1]
	id := r.create(reward.CouponTemplate{TotalQuantity: 2, Mode: mode, HoldFor: time.Hour, ReissueAfterCancel: true})
	kept := r.take(a, id, "ann")
	if kept.Status != reward.CouponHeld || kept.HeldUntil.Before(kept.IssuedAt) {
		r.Fatalf("%+v", kept)
	}
	if _, err := a.Catalog.Use(r.Context(), kept.ID); !reward.HasCode(err, reward.CodeCouponHeld) {
		r.Errorf("the use of a held coupon: %v", err)
	}
	for _, i := range r.instances { // a repeat is harmless
		if c, err := i.Catalog.Confirm(r.Context(), kept.ID); err != nil || c.Status != reward.CouponIssued {
			r.Fatalf("the confirmation: %+v, %v", c, err)
		}
	}
	r.holdFor(id, 2*time.Second)
	lost := r.take(b, id, "bob")
	r.holdEnds(lost)
	next := r.takeWhenFree(a, id, "cid")
	r.holdEnds(next)
	r.holdFor(id, time.Hour)
	r.takeWhenFree(b, id, "bob") // whose first one has ended
	r.want(a, id, "dan", reward.CodeSoldOut)
	if _, err := b.Catalog.Use(r.Context(), kept.ID); err != nil {
		r.Errorf("the use of a confirmed coupon: %v", err)
	}
	if _, err := b.Catalog.Confirm(r.Context(), lost.ID); !reward.HasCode(err, reward.CodeHoldExpired) {
		r.Errorf("the confirmation of a coupon that has ended: %v", err)
	}
	h, err := a.Catalog.History(r.Context(), "cid")
	if err != nil || len(h.Outcomes) != 1 || h.Outcomes[0].Coupon.CancelReason != reward.ReasonHoldExpired {
		r.Errorf("history: %+v, %v", h, err)
	}
	r.balanced(id)
}

// holdFor changes how long the next coupons are held, on every instance.
func (r *rig) holdFor(id reward.TemplateID, d time.Duration) {
	r.Helper()
	fixture.Must(r.instances[0].Catalog.Change(r.Context(), rules.TemplateChange{ID: id, HoldFor: &d}))(r)
}

// holdEnds waits until the hold of a coupon has ended.
func (r *rig) holdEnds(c reward.Coupon) {
	r.Helper()
	r.until("the hold ends", func() bool {
		got := fixture.Must(r.rows.CouponGet(r.Context(), c.ID))(r)
		if got.Status == reward.CouponCancelled && (got.CancelReason != reward.ReasonHoldExpired || got.CancelledAt.Before(c.HeldUntil)) {
			r.Fatalf("%+v was cancelled: %+v", c, got)
		}
		return got.Status == reward.CouponCancelled
	})
}

// takeWhenFree requests a coupon until a place is free.
func (r *rig) takeWhenFree(i *instance, id reward.TemplateID, user string) reward.Coupon {
	r.Helper()
	r.until("a place is free for "+user, func() bool {
		_, code := r.request(i, id, user)
		return code != reward.CodeSoldOut
	})
	return r.take(i, id, user)
}

// TestHoldsTakeNoCodes checks that somebody who lets hold after hold end takes no imported
// code from the others, and sees none.
func TestHoldsTakeNoCodes(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) { r.holdsTakeNoCodes(mode, false) })
	t.Run("Outage", func(t *testing.T) {
		t.Parallel()
		each(t, func(r *rig) { r.holdsTakeNoCodes(reward.ModeStream, true) })
	})
}

func (r *rig) holdsTakeNoCodes(mode reward.IssueMode, down bool) {
	i := r.start()
	id := r.create(reward.CouponTemplate{TotalQuantity: 3, HoldFor: 2 * time.Second, ReissueAfterCancel: true, Mode: mode})
	r.imports(i, id, "ONE", "TWO", "THREE")
	i.gate.set(func(g *faultyGate) { g.down = down })
	for range 5 {
		c := r.takes(i, id, "ann", "")
		if s, code := r.request(i, id, "ann"); code != "" || !s.Duplicate || s.Coupon.Status != reward.CouponHeld {
			r.Errorf("a repeat: %q %+v", code, s)
		}
		r.holdEnds(c)
	}
	r.holdFor(id, time.Hour)
	var codes []string
	for _, user := range []string{"bob", "cid", "ann"} {
		codes = append(codes, fixture.Must(i.Catalog.Confirm(r.Context(), r.takeWhenFree(i, id, user).ID))(r).Code)
	}
	slices.Sort(codes)
	if !slices.Equal(codes, []string{"ONE", "THREE", "TWO"}) {
		r.Errorf("codes %q", codes)
	}
	r.want(i, id, "dora", reward.CodeSoldOut)
	i.gate.set(func(g *faultyGate) { g.down = false })
	r.soon(i, id, "eve", reward.CodeSoldOut)
	r.balanced(id)
}

// TestWhoLetsHoldsEndWaits checks that others come first: in every mode, and on the path
// through the database.
func TestWhoLetsHoldsEndWaits(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]bool{"Gate": false, "Outage": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
				i := r.start(func(c *FlowConfig) { c.LapsedHolds = 2 })
				id := r.create(reward.CouponTemplate{TotalQuantity: 1, HoldFor: 2 * time.Minute, ReissueAfterCancel: true, Mode: mode})
				i.gate.set(func(g *faultyGate) { g.down = down })
				r.holdEnds(r.takeWhenFree(i, id, "ann"))
				r.holdEnds(r.takeWhenFree(i, id, "ann")) // the first is forgiven
				r.want(i, id, "ann", reward.CodeHoldLapsed)
				r.holdEnds(r.takeWhenFree(i, id, "bob")) // as long as ann had to wait
				r.takeWhenFree(i, id, "ann")
			})
		})
	}
}

// TestHoldsWithoutApplies checks that a place whose release never reaches the gate
// is found by the gatekeeper: the sweeper may crash after its commit.
func TestHoldsWithoutApplies(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		sweeps := r.start(func(c *FlowConfig) { c.Issue = false })
		issues := r.start(func(c *FlowConfig) { c.Housekeeping = false })
		sweeps.gate.set(func(g *faultyGate) { g.loseApply = true })
		const coupons = 50
		id := r.create(reward.CouponTemplate{TotalQuantity: coupons, HoldFor: 2 * time.Second, ReissueAfterCancel: true})
		for n := range coupons {
			r.take(issues, id, fmt.Sprint("u", n))
		}
		for _, c := range r.coupons(id) {
			r.holdEnds(c)
		}
		r.holdFor(id, time.Hour)
		for n := range coupons {
			c := r.takeWhenFree(issues, id, fmt.Sprint("v", n))
			fixture.Must(issues.Catalog.Confirm(r.Context(), c.ID))(r)
		}
		r.want(issues, id, "late", reward.CodeSoldOut)
		r.balanced(id)
	})
}

// TestLapsedHoldsCount checks that a hold that ended bars its user if the template does
// not issue again after a cancel, and that the refusal says so.
func TestLapsedHoldsCount(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 1, Mode: mode, HoldFor: 2 * time.Second})
		r.holdEnds(r.take(i, id, "ann"))
		r.holdFor(id, time.Hour)
		r.soon(i, id, "ann", reward.CodeUserLimit)
		_, err := i.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: "ann"})
		if err == nil || !strings.Contains(err.Error(), "reissueAfterCancel") {
			r.Errorf("the refusal does not say why: %v", err)
		}
		r.takeWhenFree(i, id, "bob")
		r.balanced(id)
	})
}

// silentHolds is a store that does not answer who has let holds end.
type silentHolds struct{ Store }

func (silentHolds) ExpiredHolds(ctx context.Context, _ reward.TemplateID, _ []string, _ int) (map[string]time.Duration, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestNobodyWaitsLongForHoldsThatEnded checks that a request is admitted although the
// database does not say whether its user has let holds end.
func TestNobodyWaitsLongForHoldsThatEnded(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.LapsedHolds, c.Store = 1, silentHolds{c.Store} })
		id := r.create(reward.CouponTemplate{TotalQuantity: 10, HoldFor: time.Minute, ReissueAfterCancel: true})
		began := time.Now()
		if status, code := r.request(i, id, "ann"); code != "" {
			r.Errorf("%+v, %s", status, code)
		}
		if waited := time.Since(began); waited > 2*expiredHoldsTimeout {
			r.Errorf("ann waited %v", waited)
		}
	})
}
