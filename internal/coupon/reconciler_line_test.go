package coupon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// finds compares a template, and returns what differs: what, user and ticket by the rows
// and by the gate.
func (r *rig) finds(i *instance, id reward.TemplateID, repair bool) []string {
	r.Helper()
	report, err := i.Reconciler.Run(r.Context(), gatekeeper.ReconcileCommand{TemplateID: &id, Repair: repair})
	if err != nil || len(report.Skipped) > 0 {
		r.Fatalf("%+v, %v", report, err)
	}
	number := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	found := make(map[string]bool)
	for _, d := range report.Drifts {
		if d.Repaired != repair {
			r.Errorf("%+v", d)
		}
		if d.What == "line" {
			found[fmt.Sprintf("line %s %s/%s", d.UserID, number(d.Store), number(d.Redis))] = true
		} else {
			found[d.What] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// wantRepair wants that a comparison finds the differences, that a second one repairs
// them, and that a third one finds none.
func (r *rig) wantRepair(i *instance, id reward.TemplateID, what string, want ...string) {
	r.Helper()
	slices.Sort(want)
	for _, repair := range []bool{false, true} {
		if found := r.finds(i, id, repair); !slices.Equal(found, want) {
			r.Errorf("%s: found %q, want %q", what, found, want)
		}
	}
	if found := r.finds(i, id, false); len(found) > 0 {
		r.Errorf("%s: found %q after the repair", what, found)
	}
}

// stateAt returns the state of the rows for the gate.
func (r *rig) stateAt(id reward.TemplateID) gate.State {
	r.Helper()
	t := fixture.Must(r.rows.TemplateGet(r.Context(), id))(r)
	return gatekeeper.StateOf(&t)
}

// overwrite changes a gate behind the back of the rows.
func (r *rig) overwrite(i *instance, id reward.TemplateID, change func(*gate.ApplyParams)) {
	r.Helper()
	p := gate.ApplyParams{TemplateID: id, State: r.stateAt(id), Repair: true}
	change(&p)
	fixture.Must(i.gate.Apply(r.Context(), p))(r)
}

// inLine returns the users in line with their tickets.
func (r *rig) inLine(i *instance, id reward.TemplateID) map[string]int64 {
	r.Helper()
	out := make(map[string]int64)
	const maxTicket = 1 << 53
	for after := int64(-maxTicket); after < maxTicket; {
		page := fixture.Must(i.gate.Line(r.Context(), id, after, maxTicket))(r)
		for _, u := range page.InLine {
			out[u.UserID] = u.Ticket
		}
		after = page.UpTo
	}
	return out
}

// TestReconcileRepairsTheLine checks that a reconciliation finds and repairs a line that
// differs from its requests and from the rows, and that everyone who waits is served.
func TestReconcileRepairsTheLine(t *testing.T) {
	t.Parallel()
	eachServer(t, func(r *rig) {
		// Nobody issues, and nobody else repairs.
		i := r.start(func(c *FlowConfig) { c.Issue, c.Housekeeping = false, false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 20})
		for n := range 10 {
			r.want(i, id, fmt.Sprint("u", n+1), "")
		}
		r.leaves(i, id, "u2", "")
		if found := r.finds(i, id, true); len(found) > 0 {
			r.Fatalf("without a cause: %q", found)
		}
		generation := r.stateAt(id).Generation
		r.overwrite(i, id, func(p *gate.ApplyParams) {
			p.Left = []gate.Request{{UserID: "u4", Ticket: 4, Generation: generation}, {UserID: "u10", Ticket: 10, Generation: generation}}
		})
		r.wantRepair(i, id, "two users are missing", "line u4 4/-", "line u10 10/-")

		// The rows know that u6 has left.
		i.gate.set(func(g *faultyGate) { g.loseApply = true })
		r.leaves(i, id, "u6", "")
		i.gate.set(func(g *faultyGate) { g.loseApply = false })
		r.overwrite(i, id, func(*gate.ApplyParams) {})
		r.wantRepair(i, id, "a user who left", "line u6 -/6")

		fixture.Must(i.gate.Ack(r.Context(), id, generation, []int64{7}))(r)
		r.overwrite(i, id, func(p *gate.ApplyParams) { p.Left = []gate.Request{{UserID: "u3", Ticket: 3, Generation: generation}} })
		r.wantRepair(i, id, "a lost request", "line u3 3/-", "line u7 7/-")
		if r.stateAt(id).Generation == generation {
			r.Error("the gate was not loaded again")
		}
		want := map[string]int64{"u1": 1, "u3": 2, "u4": 3, "u5": 4, "u7": 5, "u8": 6, "u9": 7, "u10": 8}
		if line := r.inLine(i, id); !maps.Equal(line, want) {
			r.Errorf("in line: %v, want %v", line, want)
		}

		if r.do != nil { // real keys
			r.breakKeys(i, id)
			if line := r.inLine(i, id); !maps.Equal(line, want) {
				r.Errorf("in line: %v, want %v", line, want)
			}
		}
		r.start()
		r.issued(id, len(want))
		for _, c := range r.coupons(id) {
			if c.Ticket != want[c.UserID] {
				r.Errorf("ticket %d of %s", c.Ticket, c.UserID)
			}
		}
		r.balanced(id)
	})
}

// breakKeys changes the keys of a gate with eight users in line, u5 with ticket 4.
func (r *rig) breakKeys(i *instance, id reward.TemplateID) {
	r.Helper()
	line, member := "coupon:queue-position:{"+id.String()+"}", id.String()+":"
	template := "coupon:template:{" + id.String() + "}"
	state := r.stateAt(id)
	r.do(r, "ZADD", line, "5", member+"nobody", "999", member+"stranger", "0", member+"zero", "-3", member+"minus")
	r.wantRepair(i, id, "strangers", "line nobody -/5", "line stranger -/999", "line zero -/0", "line minus -/-3", "stock")
	r.do(r, "ZREM", line, member+"u5")
	r.wantRepair(i, id, "a missing user", "line u5 4/-", "stock")
	r.do(r, "ZADD", line, "77", member+"u5")
	r.wantRepair(i, id, "another ticket", "line u5 -/77", "line u5 4/-")
	r.do(r, "HSET", template, "granted", "1000")
	r.wantRepair(i, id, "places too many", "granted")
	r.do(r, "HSET", template, "granted", "3")
	r.wantRepair(i, id, "places too few", "granted")
	r.do(r, "HSET", template, "used", "5")
	r.wantRepair(i, id, "used places", "used")
	r.do(r, "HSET", template, "grants", "0")
	r.wantRepair(i, id, "an earlier grant", "grants")
	r.do(r, "HSET", template, "grants", "5000", "granted", "12345")
	r.wantRepair(i, id, "a later grant", "granted", "grants")
	h, err := i.gate.Headers(r.Context(), []reward.TemplateID{id})
	if now := r.stateAt(id); err != nil || h[0].Granted != state.Granted || h[0].Grants != now.Grants || h[0].Used != state.Used {
		r.Errorf("%+v, %v, want the places of %+v", h, err, now)
	}
}

// TestReconcileRepairsTheLineOfKafka checks that a reconciliation removes users whose
// requests are settled or have left, in KAFKA mode.
func TestReconcileRepairsTheLineOfKafka(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Housekeeping = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 20, Mode: reward.ModeKafka})
		r.take(i, id, "first")
		j := r.start(func(c *FlowConfig) { c.Issue, c.Housekeeping = false, false })
		i.gate.set(func(g *faultyGate) { g.loseApply = true })
		for n := range 5 {
			r.want(j, id, fmt.Sprint("u", n), "")
		}
		r.issued(id, 6)
		i.stop()
		line := r.inLine(j, id)
		if len(line) != 5 {
			r.Fatalf("in line: %v", line)
		}
		for _, user := range []string{"left", "waits"} { // nobody publishes their requests
			ctx, cancel := context.WithCancel(r.Context())
			var asking sync.WaitGroup
			asking.Go(func() { _, _ = j.Intake.Request(ctx, IssueCommand{TemplateID: id, UserID: user}) })
			r.until(user+" is in line", func() bool { return r.inLine(j, id)[user] > 0 })
			cancel()
			asking.Wait()
		}
		j.gate.set(func(g *faultyGate) { g.loseApply = true })
		r.leaves(j, id, "left", "")
		j.gate.set(func(g *faultyGate) { g.loseApply = false })
		r.overwrite(j, id, func(*gate.ApplyParams) {})
		line = r.inLine(j, id)
		want := []string{"user"} // the lost applies had the coupons, too
		for user, ticket := range line {
			if user != "waits" {
				want = append(want, fmt.Sprintf("line %s -/%d", user, ticket))
			}
		}
		if len(want) != 7 {
			r.Fatalf("in line: %v", line)
		}
		r.wantRepair(j, id, "settled users", want...)
		if line := r.inLine(j, id); len(line) != 1 || line["waits"] == 0 {
			r.Errorf("in line: %v", line)
		}
	})
}

// TestALoadPutsUsersBackInLine checks that a user who is missing in the line, and whose
// request is still in the stream, gets a coupon in their turn although the gate is loaded
// again because the stream has lost another request, or its group.
func TestALoadPutsUsersBackInLine(t *testing.T) {
	t.Parallel()
	eachServer(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Issue, c.Housekeeping = false, false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 20})
		for n := range 6 {
			r.want(i, id, fmt.Sprint("u", n+1), "")
		}
		r.leaves(i, id, "u5", "")
		generation := r.stateAt(id).Generation
		r.overwrite(i, id, func(p *gate.ApplyParams) {
			p.Left = []gate.Request{{UserID: "u4", Ticket: 4, Generation: generation}, {UserID: "u6", Ticket: 6, Generation: generation}}
		})
		want := []string{"u1", "u2", "u3", "u4", "u6"}
		if r.do != nil { // real keys
			r.do(r, "XGROUP DESTROY", "coupon:request-stream:{"+id.String()+"}", "coupon-issue-group")
			fixture.OK(r, i.loader.Ensure(r.Context(), id))
			line := map[string]int64{"u1": 1, "u2": 2, "u3": 3, "u4": 4, "u6": 5}
			if got := r.inLine(i, id); !maps.Equal(got, line) {
				r.Errorf("in line: %v, want %v", got, line)
			}
			generation = r.stateAt(id).Generation
			r.overwrite(i, id, func(p *gate.ApplyParams) { p.Left = []gate.Request{{UserID: "u4", Ticket: 4, Generation: generation}} })
		}
		fixture.Must(i.gate.Ack(r.Context(), id, generation, []int64{2}))(r)
		r.start(func(c *FlowConfig) { c.Housekeeping = false })
		for _, user := range want {
			if s := r.outcome(i, id, user); s.Kind != StatusIssued {
				r.Errorf("%s: %+v", user, s)
			}
		}
		var served []string
		for _, c := range r.coupons(id) {
			served = append(served, c.UserID)
		}
		if !slices.Equal(served, want) {
			r.Errorf("served %v, want %v", served, want)
		}
		r.balanced(id)
	})
}

// TestReconcileInARush checks that a reconciliation finds nothing while users request
// and leave, and instances issue.
func TestReconcileInARush(t *testing.T) {
	t.Parallel()
	eachMode(t, lineModes, func(r *rig, mode reward.IssueMode) {
		const users, comparisons = 10, 20
		r.start(func(c *FlowConfig) { c.ReconcileEvery = 0 })
		i := r.start(func(c *FlowConfig) { c.ReconcileEvery = 0 })
		id := r.create(reward.CouponTemplate{TotalQuantity: 100_000, Mode: mode})
		ctx, stop := context.WithCancel(r.Context())
		var rush sync.WaitGroup
		for n := range users {
			rush.Go(func() {
				for k := 0; ctx.Err() == nil; k++ {
					user := fmt.Sprintf("u%d-%d", n, k)
					if _, err := i.Intake.Request(ctx, IssueCommand{TemplateID: id, UserID: user}); err == nil && k%3 == 0 {
						_ = i.Intake.Leave(ctx, id, user)
					}
					service.Sleep(ctx, time.Millisecond)
				}
			})
		}
		defer rush.Wait()
		defer stop()
		for range comparisons {
			r.sleep(3 * time.Millisecond)
			report, err := i.Reconciler.Run(r.Context(), gatekeeper.ReconcileCommand{TemplateID: &id})
			if err != nil || len(report.Drifts) > 0 {
				r.Fatalf("%+v, %v", report, err)
			}
		}
	})
}
