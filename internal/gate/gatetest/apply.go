package gatetest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

func exerciseApply(t *testing.T, b *bundle) {
	b.load(state(), gate.Holding{UserID: "old", Held: 1, CouponID: 5})
	b.admit(1, "a", "b", "c")
	s := state()
	s.Version, s.Settled, s.Live, s.IssuedTotal = 2, 2, 1, 1
	params := gate.ApplyParams{
		TemplateID: b.id, From: 1, State: s,
		Holdings: []gate.Holding{{UserID: "a", Held: 1, CouponID: 77}, {UserID: "old"}, {UserID: "never"}},
		Done:     []gate.SettledTicket{{UserID: "c", Ticket: 3}}, // ignored except in KAFKA mode
		Outcomes: []gate.Outcome{
			{UserID: "a", Ticket: 1, CouponID: 77}, {UserID: "b", Ticket: 2, Reason: reward.ReasonUserLimit},
		},
	}
	equal(t, "apply", must(b.g.Apply(b.ctx, params))(t), gate.ApplyResult{Version: 2})
	want := b.header()
	if want.Version != 2 || want.Settled != 2 || want.Live != 1 || want.IssuedTotal != 1 || want.Waiting != 1 || want.LastTicket != 3 || want.Backlog != 3 {
		t.Fatalf("header %+v", want)
	}
	for range 2 { // repeating is harmless
		equal(t, "ranks", b.ranks("a", "b", "c"), []int64{-1, -1, 0})
		equal(t, "holdings", b.holdings(), map[string]gate.Holding{"a": {UserID: "a", Held: 1, CouponID: 77}})
		equal(t, "apply again", must(b.g.Apply(b.ctx, params))(t), gate.ApplyResult{Version: 2})
		equal(t, "header", b.header(), want)
	}
	equal(t, "answers", b.answers("a", "old", "b"), []gate.Answer{
		{Verdict: gate.AtUserLimit, CouponID: 77}, {Verdict: gate.Admitted, Ticket: 4, Rank: 1}, {Verdict: gate.SoldOut},
	})

	// Settled may exceed the highest ticket of this gate.
	s.Version, s.Settled, s.Live, s.Total = 3, 10, 2, 20
	b.apply(2, s)
	b.admit(11, "z")
}

func exerciseApplyOrder(t *testing.T, b *bundle) {
	s := state()
	s.Total = 10
	b.load(s)
	b.admit(1, "a", "b", "c", "d")
	at := func(version int64) gate.State {
		s := s
		s.Version, s.Settled, s.Live = version, version-1, version-1
		return s
	}
	holding := func(user string) gate.Holding { return gate.Holding{UserID: user, Held: 1, CouponID: 1} }
	equal(t, "ahead of the gate's version", b.apply(2, at(3), holding("b")), gate.ApplyResult{Behind: true, Version: 1})
	equal(t, "nothing was done", b.ranks("a", "b"), []int64{0, 1})
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{})
	equal(t, "a repair from a later version", must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: 2, State: at(3), Repair: true}))(t),
		gate.ApplyResult{Behind: true, Version: 1})
	equal(t, "covering", b.apply(1, at(3), holding("a"), holding("b")), gate.ApplyResult{Version: 3})
	equal(t, "late", b.apply(1, at(2), gate.Holding{UserID: "a"}), gate.ApplyResult{Version: 3})
	equal(t, "the latest", b.apply(1, at(5), holding("a"), holding("b"), holding("c"), holding("d")), gate.ApplyResult{Version: 5})
	equal(t, "one within", b.apply(3, at(4), holding("c")), gate.ApplyResult{Version: 5})
	if holdings := b.holdings(); len(holdings) != 4 {
		t.Fatalf("holdings %v", holdings)
	}
	if h := b.header(); h.Version != 5 || h.Settled != 4 || h.Live != 4 || h.Waiting != 0 {
		t.Fatalf("header %+v", h)
	}
	s.Version = 3 // late, with an older total
	s.Total = 4
	b.apply(1, s)
	b.admit(5, "e")
}

func exerciseRepair(t *testing.T, b *bundle) {
	s := state()
	s.Version = 9
	b.load(s, gate.Holding{UserID: "wrong", Held: 1, CouponID: 1}, gate.Holding{UserID: "right", Held: 1, CouponID: 2})
	b.admit(1, "a", "b")
	s.Live, s.IssuedTotal, s.Settled, s.OpensAt = 1, 1, 1, time.Now().Add(time.Hour)
	repair := gate.ApplyParams{
		TemplateID: b.id, State: s, Repair: true,
		Holdings: []gate.Holding{{UserID: "wrong"}, {UserID: "right", Held: 1, CouponID: 3}},
	}
	plain := repair
	plain.Repair = false
	equal(t, "apply", must(b.g.Apply(b.ctx, plain))(t), gate.ApplyResult{Version: 9})
	if h := b.header(); h.Live != 0 || h.Waiting != 2 {
		t.Fatalf("an apply of the gate's own version had an effect: %+v", h)
	}
	for range 2 {
		equal(t, "repair", must(b.g.Apply(b.ctx, repair))(t), gate.ApplyResult{Version: 9})
		if h := b.header(); h.Live != 1 || h.IssuedTotal != 1 || h.Settled != 1 || h.Waiting != 1 || h.Version != 9 {
			t.Fatalf("header %+v", h)
		}
		equal(t, "holdings", b.holdings(), map[string]gate.Holding{"right": {UserID: "right", Held: 1, CouponID: 3}})
		equal(t, "answer", b.answers("x")[0], gate.Answer{Verdict: gate.NotOpen})
	}
	repair.State.Version, repair.State.Live = 8, 3
	equal(t, "a late repair", must(b.g.Apply(b.ctx, repair))(t), gate.ApplyResult{Version: 9})
	if h := b.header(); h.Live != 1 {
		t.Fatalf("header %+v", h)
	}
	repair.State.Version, repair.State.Live = 12, 2
	equal(t, "a repair of a later version", must(b.g.Apply(b.ctx, repair))(t), gate.ApplyResult{Version: 12})
	if h := b.header(); h.Live != 2 || h.Version != 12 {
		t.Fatalf("header %+v", h)
	}
}

func exerciseApplyKafka(t *testing.T, b *bundle) {
	s := state()
	s.Total, s.Mode = 10, reward.ModeKafka
	b.load(s)
	b.admit(1, "a", "b", "c", "d", "e")
	s.Version, s.Settled, s.Live = 2, 4, 2
	must(b.g.Apply(b.ctx, gate.ApplyParams{
		TemplateID: b.id, From: 1, State: s,
		Done: []gate.SettledTicket{{UserID: "d", Ticket: 4}, {UserID: "b", Ticket: 2}, {UserID: "e", Ticket: 1}, {UserID: "nobody", Ticket: 3}},
	}))(t)
	equal(t, "only settled users leave", b.ranks("a", "b", "c", "d", "e"), []int64{0, -1, 1, -1, 2})
	if h := b.header(); h.Waiting != 3 || h.Settled != 4 || h.LastTicket != 5 {
		t.Fatalf("header %+v", h)
	}
	var done []gate.SettledTicket
	for i := range 2500 {
		done = append(done, gate.SettledTicket{UserID: fmt.Sprint("other", i), Ticket: int64(i)})
	}
	done = append(done, gate.SettledTicket{UserID: "e", Ticket: 5}, gate.SettledTicket{UserID: "a", Ticket: 1})
	must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, State: s, Done: done, Repair: true}))(t)
	equal(t, "a repair removes settled users, too", b.ranks("a", "c", "e"), []int64{-1, 0, -1})
	b.admit(6, "d")
	s.Version, s.Settled = 3, 6
	must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: 2, State: s, Done: []gate.SettledTicket{{UserID: "d", Ticket: 4}}}))(t)
	equal(t, "a user's earlier ticket does not remove the present one", b.ranks("c", "d"), []int64{0, 1})
}

func exerciseManyHoldings(t *testing.T, b *bundle) {
	const many = 2600
	b.load(state())
	s := state()
	var holdings []gate.Holding
	want := map[string]gate.Holding{}
	for i := range many {
		f := gate.Holding{UserID: fmt.Sprint("u", i), Held: 1 + i%3, CouponID: reward.CouponID(i)}
		holdings = append(holdings, f)
		want[f.UserID] = f
	}
	s.Version = 2
	b.apply(1, s, holdings...)
	equal(t, "holdings", b.holdings(), want)
	for i := range holdings {
		if i%5 != 0 {
			holdings[i].Held = 0
			delete(want, holdings[i].UserID)
		}
	}
	s.Version = 3
	b.apply(2, s, holdings...)
	equal(t, "holdings", b.holdings(), want)
}

func exerciseBigCoupons(t *testing.T, b *bundle) {
	big := reward.CouponID(math.MaxInt64)
	b.load(state(), gate.Holding{UserID: "a", Held: 1, CouponID: big}, gate.Holding{UserID: "b", Held: 1, CouponID: 1<<53 + 1})
	s := state()
	s.Version, s.Settled = 2, 1<<53-3
	b.apply(1, s, gate.Holding{UserID: "c", Held: 1, CouponID: big - 1})
	equal(t, "answers", b.answers("a", "b", "c", "d"), []gate.Answer{
		{Verdict: gate.AtUserLimit, CouponID: big},
		{Verdict: gate.AtUserLimit, CouponID: 1<<53 + 1},
		{Verdict: gate.AtUserLimit, CouponID: big - 1},
		{Verdict: gate.Admitted, Ticket: 1<<53 - 2},
	})
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{
		"a": {UserID: "a", Held: 1, CouponID: big}, "b": {UserID: "b", Held: 1, CouponID: 1<<53 + 1}, "c": {UserID: "c", Held: 1, CouponID: big - 1},
	})
	equal(t, "read", b.read("c", 10), []int64{1<<53 - 2})
	equal(t, "claim", b.claim(1<<53-3, 10), []int64{1<<53 - 2})
	equal(t, "places", b.ranks("d"), []int64{0})
	if n := b.ack(1, 1<<53-2); n != 1 {
		t.Fatal("the ticket was not found")
	}
	s.Generation, s.Version = 1<<52, 1<<52
	b.load(s)
	equal(t, "generation", must(b.g.Admit(b.ctx, b.id, nil, true))(t).Generation, int64(1<<52))
}

func exerciseService(t *testing.T, b *bundle) {
	s := state()
	s.Total = 100
	b.load(s)
	measured := func(settled int64, service time.Duration) time.Duration {
		t.Helper()
		s.Version++
		s.Settled = settled
		must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: s.Version - 1, State: s, ServiceTime: service}))(t)
		got := b.header().ServiceTime
		equal(t, "service time of Admit", must(b.g.Admit(b.ctx, b.id, nil, true))(t).ServiceTime, got)
		equal(t, "service of Places", must(b.g.Positions(b.ctx, b.id, nil))(t).ServiceTime, got)
		return got
	}
	b.admit(1, "a", "b", "c")
	for i, step := range []struct {
		settled       int64
		service, want time.Duration
	}{
		{0, 0, 0},
		{0, 20 * time.Millisecond, 20 * time.Millisecond}, // the first
		{1, 30 * time.Millisecond, 30 * time.Millisecond}, // slower, while users wait
		{1, 10 * time.Millisecond, 10 * time.Millisecond},
		{2, 0, 10 * time.Millisecond},
		{3, 50 * time.Millisecond, 50 * time.Millisecond}, // the line is empty
		{3, 0, 50 * time.Millisecond},
		{3, 40 * time.Microsecond, 40 * time.Microsecond},
	} {
		equal(t, fmt.Sprint("service after step ", i), measured(step.settled, step.service), step.want)
	}
	s.Generation = 2
	b.load(s)
	equal(t, "service after a load", b.header().ServiceTime, 40*time.Microsecond)
}
