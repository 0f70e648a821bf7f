package coupon

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// leaves takes a user out of the line, until the answer is not CodeUnavailable, and
// wants a code; "" = the user has left.
func (r *rig) leaves(i *instance, id reward.TemplateID, user, want string) {
	r.Helper()
	r.until("an answer to "+user, func() bool {
		err := i.Intake.Leave(r.Context(), id, user)
		switch {
		case reward.HasCode(err, reward.CodeUnavailable):
			return false
		case want == "" && err != nil, want != "" && !reward.HasCode(err, want):
			r.Fatalf("%s leaves: %v, want %q", user, err, want)
		}
		return true
	})
}

// TestLeavingTheLine checks that a user leaves the line, that others get the place at
// once, and that the tickets behind are issued in order.
func TestLeavingTheLine(t *testing.T) {
	t.Parallel()
	eachMode(t, lineModes, (*rig).leaveLine)
}

func (r *rig) leaveLine(mode reward.IssueMode) {
	var settle atomic.Bool
	// Nobody issues in STREAM mode; in KAFKA mode the records are published and not read.
	i := r.start(func(c *FlowConfig) {
		c.Issue, c.Connected = mode == reward.ModeKafka, settle.Load
	})
	id := r.create(reward.CouponTemplate{TotalQuantity: 3, Mode: mode})
	for _, user := range []string{"ann", "bob", "cid"} {
		if s, code := r.request(i, id, user); code != "" || s.Kind != StatusWaiting {
			r.Fatalf("%s: %+v %q", user, s, code)
		}
	}
	if _, code := r.request(i, id, "dan"); code != reward.CodeSoldOut {
		r.Fatal(code)
	}
	w, stop := i.Notifier.Watch(id, "bob", Status{Ticket: 1})
	defer stop()
	r.leaves(i, id, "bob", "")
	r.until("the watcher hears of it", func() bool {
		select {
		case s := <-w.Updates():
			return s.Kind == StatusLeft && s.Ticket == 2
		default:
			return false
		}
	})
	r.leaves(i, id, "bob", "")
	if s, err := i.Intake.Status(r.Context(), id, "bob"); err != nil || s.Kind != StatusLeft || s.Ticket != 2 {
		r.Fatalf("%+v, %v", s, err)
	}
	r.leaves(i, id, "nobody", reward.CodeRequestUnknown)
	if err := i.Intake.Leave(r.Context(), id, "nobody"); err == nil || strings.Contains(err.Error(), "request again") || strings.Contains(err.Error(), "request a coupon") {
		r.Errorf("the answer to somebody who wants to leave: %v", err)
	}
	if s, code := r.request(i, id, "dan"); code != "" || s.Ticket != 4 || s.Rank != 2 {
		r.Fatalf("dan: %+v %q", s, code)
	}
	r.leaves(i, id, "dan", "")
	if s, code := r.request(i, id, "bob"); code != "" || s.Ticket != 5 || s.Duplicate {
		r.Fatalf("bob again: %+v %q", s, code)
	}
	settle.Store(true)
	if mode == reward.ModeStream {
		i = r.start()
	}
	var users []string
	r.issued(id, 3)
	for _, c := range r.coupons(id) {
		users = append(users, c.UserID)
	}
	if want := []string{"ann", "cid", "bob"}; !slices.Equal(users, want) {
		r.Errorf("issued to %v, want %v", users, want)
	}
	r.leaves(i, id, "ann", reward.CodeRequestEnded)
	r.leaves(i, id, "bob", reward.CodeRequestEnded)
	r.leaves(i, id, "dan", "")
	h, err := i.Catalog.History(r.Context(), "bob")
	if err != nil || len(h.Outcomes) != 2 || !h.Outcomes[1].Left() || !h.Outcomes[0].Issued() {
		r.Errorf("%+v, %v", h, err)
	}
	r.balanced(id)
}

// TestLeavingWithoutALine checks the answers of templates that have no line.
func TestLeavingWithoutALine(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 3, Mode: reward.ModeSync}, nil)
	if s := h.request("ann"); s.Kind != StatusIssued {
		t.Fatalf("%+v", s)
	}
	h.leaveFails("ann", reward.CodeRequestEnded)
	h.leaveFails("bob", reward.CodeRequestUnknown)
	h.leaveFails("", reward.CodeInvalid)
	h.move(reward.PathDatabase)
	h.leaveFails("ann", reward.CodeUnavailable)
	if err := h.Intake.Leave(t.Context(), h.id+1, "ann"); !reward.HasCode(err, reward.CodeTemplateNotFound) {
		t.Fatal(err)
	}
	h = newHand(t, reward.CouponTemplate{TotalQuantity: 3}, nil)
	h.waits("ann", 1)
	h.gate.set(func(g *faultyGate) { g.down = true })
	h.leaveFails("ann", reward.CodeUnavailable)
}

// TestLeavingADraw checks that entrants of a draw cannot leave it, also once it has given
// them their outcome, and that those who request after it can leave the line.
func TestLeavingADraw(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 1, OpensAt: time.Now().Add(4 * time.Second), Draw: reward.Draw{From: time.Now().Add(-time.Second)}})
		entrants := []string{"ann", "bob"}
		for _, user := range entrants {
			r.want(i, id, user, "")
			r.leaves(i, id, user, reward.CodeIllegalState)
		}
		r.leaves(i, id, "cid", reward.CodeRequestUnknown)
		issues := r.start()
		for _, user := range entrants {
			s := r.outcome(i, id, user)
			if s.Kind == StatusIssued {
				r.leaves(i, id, user, reward.CodeRequestEnded)
			} else if s.Reason != reward.ReasonNotDrawn {
				r.Fatalf("%+v", s)
			}
		}
		r.until("the draw is done", func() bool {
			v, err := i.Catalog.Get(r.Context(), id)
			return err == nil && v.Draw.State == reward.DrawDone
		})
		for _, user := range entrants {
			r.leaves(issues, id, user, reward.CodeRequestEnded)
		}
		issues.stop()
		more := int64(2)
		fixture.Must(i.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: &more}))(r)
		r.want(i, id, "cid", "")
		r.leaves(i, id, "cid", "")
		if s, err := i.Intake.Status(r.Context(), id, "cid"); err != nil || s.Kind != StatusLeft {
			r.Errorf("%+v, %v", s, err)
		}
	})
}

func (h *hand) leaveFails(user, code string) {
	h.Helper()
	if err := h.Intake.Leave(h.Context(), h.id, user); !reward.HasCode(err, code) {
		h.Fatalf("%s leaves: %v, want %s", user, err, code)
	}
}

func (h *hand) leave(user string) {
	h.Helper()
	h.must(h.Intake.Leave(h.Context(), h.id, user))
}

// leaveRows stores that a user leaves, and crashes before the gate knows it.
func (h *hand) leaveRows(place gate.PlaceResult) rules.LeaveOutcome {
	h.Helper()
	result, err := h.rows.CouponLeave(h.Context(), store.CouponLeaveParams{TemplateID: h.id, Leave: rules.Leave{
		UserID: place.UserID, Ticket: place.Ticket, Generation: place.Generation, GateGeneration: place.GateGeneration,
	}})
	h.must(err)
	return result.Outcome
}

func (h *hand) place(user string) gate.PlaceResult {
	h.Helper()
	place, err := h.gate.Place(h.Context(), h.id, user)
	h.must(err)
	return place
}

func (h *hand) header() gate.Header {
	h.Helper()
	headers, err := h.gate.Headers(h.Context(), []reward.TemplateID{h.id})
	h.must(err)
	return headers[0]
}

// TestALeaveThatCrashes checks that a user whose leave crashed between the rows and the
// gate gets no coupon, and is taken out of the line: by a repeat, by the next apply, and
// by a load that keeps the line or makes it again.
func TestALeaveThatCrashes(t *testing.T) {
	t.Parallel()
	for name, resolve := range map[string]func(h *hand){
		"Repeat":    func(h *hand) { h.leave("bob") },
		"NextLeave": func(h *hand) { h.leave("cid") },
		"CatchUp":   func(h *hand) { h.must(h.applier.CatchUp(h.Context(), h.id, h.header().Version)) },
		"Keep": func(h *hand) {
			h.move(reward.PathGate)
			h.must(h.loader.Ensure(h.Context(), h.id))
		},
		"Remake": func(h *hand) { h.must(h.loader.Remake(h.Context(), h.id, h.header().Generation)) },
		"Outage": func(h *hand) {
			h.move(reward.PathDatabase)
			h.request("eve")
			h.must(h.loader.LeaveDatabase(h.Context(), h.id))
		},
		"Issue": func(h *hand) { h.issued() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHand(t, reward.CouponTemplate{TotalQuantity: 100}, nil)
			h.waits("ann", 1)
			h.waits("bob", 2)
			h.waits("cid", 3)
			if got := h.leaveRows(h.place("bob")); got != rules.LeaveDone {
				t.Fatal(got)
			}
			h.waits("bob", 2) // the gate does not know it yet
			resolve(h)
			if h.place("bob").InLine {
				t.Fatal("bob is still in line")
			}
			h.leave("bob")
			for _, user := range h.issued() {
				if user == "bob" {
					t.Fatal("bob left and has a coupon")
				}
			}
			if g := h.header(); g.Waiting != 0 || g.Backlog != 0 {
				t.Fatalf("%+v", g)
			}
			if row := h.row(); row.Promised() < 0 || row.Granted-row.Used != row.Promised() || row.Live+row.Promised() > row.TotalQuantity {
				t.Fatalf("%+v", row)
			}
		})
	}
}

// TestALeaveIsAboutOneRequest checks that a leave that comes late does not take a user
// out of the line of a later gate, where the user may have the same ticket.
func TestALeaveIsAboutOneRequest(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 3}, nil)
	h.waits("ann", 1)
	h.waits("bob", 2)
	late := h.place("bob")
	h.memory.lose()
	h.waits("ann", 1)
	h.waits("bob", 2)
	if got := h.leaveRows(late); got != rules.LeaveRefused {
		t.Fatalf("a leave of the lost gate: %d", got)
	}
	h.wantIssued("ann", "bob")
}

// TestATicketThatLeftIsGivenAgain checks that a user whose ticket is that of a request
// that left before Redis lost its data gets a coupon, and may leave again.
func TestATicketThatLeftIsGivenAgain(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 3}, nil)
	h.waits("ann", 1)
	h.waits("bob", 2)
	h.waits("cid", 3)
	h.leave("bob")
	h.leave("cid")
	h.memory.lose()
	h.waits("ann", 1)
	h.waits("bob", 2)
	h.must(h.loader.Remake(t.Context(), h.id, h.header().Generation)) // which asks the rows for ticket 2 of bob
	h.waits("bob", 2)
	h.waits("cid", 3)
	if s, err := h.Intake.Status(t.Context(), h.id, "bob"); err != nil || s.Kind != StatusWaiting {
		t.Fatalf("%+v, %v", s, err)
	}
	h.leave("cid")
	h.wantIssued("ann", "bob")
	for user, want := range map[string]StatusKind{"bob": StatusIssued, "cid": StatusLeft} {
		if s, err := h.Intake.Status(t.Context(), h.id, user); err != nil || s.Kind != want {
			t.Errorf("%s: %+v, %v", user, s, err)
		}
	}
	// The ticket of the coupon is lower than that of the request that left.
	h = newHand(t, reward.CouponTemplate{TotalQuantity: 3}, nil)
	h.waits("ann", 1)
	h.waits("bob", 2)
	h.leave("bob")
	h.memory.lose()
	h.waits("bob", 1)
	h.wantIssued("bob")
	if s, err := h.Intake.Status(t.Context(), h.id, "bob"); err != nil || s.Kind != StatusIssued {
		t.Errorf("%+v, %v", s, err)
	}
	h.leaveFails("bob", reward.CodeRequestEnded)
}

// TestLeavesFreePlacesOnce checks that leaving and requesting again and again neither
// loses a place nor makes one.
func TestLeavesFreePlacesOnce(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 2}, nil)
	h.waits("ann", 1)
	for n := range int64(200) {
		h.waits("bob", 2+n)
		if _, err := h.Intake.Request(t.Context(), IssueCommand{TemplateID: h.id, UserID: "cid"}); !reward.HasCode(err, reward.CodeSoldOut) {
			t.Fatal(err)
		}
		h.leave("bob")
	}
	h.waits("cid", 202)
	h.wantIssued("ann", "cid")
	if row := h.row(); row.Promised() != 0 || row.Settled != 202 || row.Live != 2 {
		t.Fatalf("%+v", row)
	}
}
