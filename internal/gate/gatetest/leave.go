package gatetest

import (
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// left returns an apply of users who leave, with these requests.
func (b *bundle) left(s gate.State, requests ...gate.Request) {
	b.Helper()
	result := fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: s.Version - 1, State: s, Left: requests}))(b)
	equal(b, "apply", result, gate.ApplyResult{Version: s.Version})
}

func (b *bundle) wantPlace(user string, want gate.PlaceResult) {
	b.Helper()
	equal(b, "place of "+user, fixture.Must(b.g.Place(b.ctx, b.id, user))(b), want)
}

// exerciseLeave checks that users leave the line in any mode, and that their places
// are free at once.
func exerciseLeave(t *testing.T, b *bundle) {
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
		b.id++
		s := state()
		s.Mode = mode
		b.load(s)
		b.admit(1, "a", "b", "c")
		b.read("c", 10)
		if mode == reward.ModeKafka {
			b.ack(1, 1, 2, 3) // the broker has them
		}
		b.wantPlace("b", gate.PlaceResult{InLine: true, Request: gate.Request{UserID: "b", Ticket: 2, Generation: 1}, GateGeneration: 1, Version: 1})
		b.wantPlace("x", gate.PlaceResult{GateGeneration: 1, Version: 1})
		equal(t, "before", b.answers("d")[0].Verdict, gate.SoldOut)
		s.Version, s.Used = 2, 1
		b.left(s, gate.Request{UserID: "b", Ticket: 2, Generation: 1}, gate.Request{UserID: "nobody", Ticket: 9, Generation: 1})
		equal(t, "ranks", b.ranks("a", "b", "c"), []int64{0, -1, 1})
		b.wantPlace("b", gate.PlaceResult{GateGeneration: 1, Version: 2})
		equal(t, "after", b.answers("d", "b"), []gate.Answer{{Verdict: gate.Admitted, Ticket: 4, Rank: 2}, {Verdict: gate.SoldOut}})
		if h := b.header(); h.Used != 1 || h.Waiting != 3 || h.PublishedStock != 0 {
			t.Fatalf("header %+v", h)
		}
		// A repair, and an apply that covers the leave again, change nothing.
		fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{
			TemplateID: b.id, State: s, Left: []gate.Request{{UserID: "b", Ticket: 2, Generation: 1}}, Repair: true,
		}))(t)
		equal(t, "ranks", b.ranks("a", "b", "c", "d"), []int64{0, -1, 1, 2})
		if mode == reward.ModeStream {
			equal(t, "the request is settled in its turn", b.claim(1, 1), []int64{2})
		}
	}
}

// exerciseLeaveGeneration checks that a user stays whose ticket is that of a request
// that left, but of another gate or another user.
func exerciseLeaveGeneration(t *testing.T, b *bundle) {
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
		b.id++
		s := state()
		s.Mode, s.Generation = mode, 4
		b.load(s)
		b.admit(1, "a", "b")
		s.Version = 2
		b.left(s, gate.Request{UserID: "b", Ticket: 2, Generation: 3}, gate.Request{UserID: "b", Ticket: 1, Generation: 4},
			gate.Request{UserID: "c", Ticket: 2, Generation: 4}, gate.Request{UserID: "b", Ticket: 2}, gate.Request{UserID: "b", Ticket: 2, Generation: 5})
		equal(t, "ranks", b.ranks("a", "b"), []int64{0, 1})
	}
	// A request that a load has kept has the generation of the gate that admitted it.
	b.id++
	s := state()
	b.load(s)
	b.admit(1, "a", "b")
	s.Generation = 2
	b.load(s)
	b.wantPlace("b", gate.PlaceResult{InLine: true, Request: gate.Request{UserID: "b", Ticket: 2, Generation: 1}, GateGeneration: 2, Version: 1})
	s.Version = 2
	b.left(s, gate.Request{UserID: "a", Ticket: 1, Generation: 2}, gate.Request{UserID: "b", Ticket: 2, Generation: 1})
	equal(t, "ranks", b.ranks("a", "b"), []int64{0, -1})
	// A request that the stream has lost has no generation.
	b.ack(1, 1)
	b.wantPlace("a", gate.PlaceResult{InLine: true, Request: gate.Request{UserID: "a", Ticket: 1}, GateGeneration: 2, Version: 2})
	s.Version = 3
	b.left(s, gate.Request{UserID: "a", Ticket: 1, Generation: 1})
	equal(t, "ranks", b.ranks("a"), []int64{0})
}

// exerciseLoadLeft checks that a load that keeps the line removes those who left, and
// that a page of a line has the generations of the requests.
func exerciseLoadLeft(t *testing.T, b *bundle) {
	s := state()
	s.Total = 10
	b.load(s)
	b.admit(1, "a", "b", "c", "d")
	s.Generation = 2
	b.load(s)
	b.admit(5, "e")
	b.ack(1, 1)
	l := b.begin()
	equal(t, "page", fixture.Must(b.g.LoadPage(b.ctx, l.Load, 0))(t), []gate.Request{
		{UserID: "a", Ticket: 1},
		{UserID: "b", Ticket: 2, Generation: 1},
		{UserID: "c", Ticket: 3, Generation: 1},
		{UserID: "d", Ticket: 4, Generation: 1},
		{UserID: "e", Ticket: 5, Generation: 2},
	})
	fixture.OK(b, b.g.LoadLeft(b.ctx, l.Load, []gate.Request{
		{UserID: "b", Ticket: 2, Generation: 1}, {UserID: "c", Ticket: 3, Generation: 2}, {UserID: "d", Ticket: 5, Generation: 1}, {UserID: "e", Ticket: 5, Generation: 2},
	}))
	s.Generation, s.Version = 3, 2
	equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, l.prepare(s, nil)))(t), gate.SwapResult{Done: true, Waiting: 3})
	equal(t, "ranks", b.ranks("a", "b", "c", "d", "e"), []int64{0, -1, 1, 2, -1})
	equal(t, "the requests stay", fixture.Must(b.g.Read(b.ctx, b.id, "c", 10))(t).Requests, []gate.Request{
		{UserID: "b", Ticket: 2, Generation: 1}, {UserID: "c", Ticket: 3, Generation: 1}, {UserID: "d", Ticket: 4, Generation: 1}, {UserID: "e", Ticket: 5, Generation: 2},
	})
	b.admit(6, "b")
}
