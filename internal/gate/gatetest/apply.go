package gatetest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func exerciseApplyKafka(t *testing.T, b *bundle) {
	s := state()
	s.Total, s.Mode = 10, reward.ModeKafka
	b.load(s)
	b.admit(1, "a", "b", "c", "d", "e")
	s.Version, s.Settled, s.Live = 2, 4, 2
	fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{
		TemplateID: b.id, From: 1, State: s,
		Done: []gate.Request{{UserID: "d", Ticket: 4}, {UserID: "b", Ticket: 2}, {UserID: "e", Ticket: 1}, {UserID: "nobody", Ticket: 3}},
	}))(t)
	equal(t, "only settled users leave", b.ranks("a", "b", "c", "d", "e"), []int64{0, -1, 1, -1, 2})
	if h := b.header(); h.Waiting != 3 || h.Settled != 4 || h.LastTicket != 5 {
		t.Fatalf("header %+v", h)
	}
	var done []gate.Request
	for i := range 2500 {
		done = append(done, gate.Request{UserID: fmt.Sprint("other", i), Ticket: int64(i)})
	}
	done = append(done, gate.Request{UserID: "e", Ticket: 5}, gate.Request{UserID: "a", Ticket: 1})
	fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, State: s, Done: done, Repair: true}))(t)
	equal(t, "a repair removes settled users, too", b.ranks("a", "c", "e"), []int64{-1, 0, -1})
	b.admit(6, "d")
	s.Version, s.Settled = 3, 6
	fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: 2, State: s, Done: []gate.Request{{UserID: "d", Ticket: 4}}}))(t)
	equal(t, "a user's earlier ticket does not remove the present one", b.ranks("c", "d"), []int64{0, 1})
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
	equal(t, "generation", fixture.Must(b.g.Admit(b.ctx, b.id, nil, true))(t).Generation, int64(1<<52))
}

func exerciseService(t *testing.T, b *bundle) {
	s := state()
	s.Total = 100
	b.load(s)
	measured := func(settled int64, service time.Duration) time.Duration {
		t.Helper()
		s.Version++
		s.Settled = settled
		fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: s.Version - 1, State: s, ServiceTime: service}))(t)
		got := b.header().ServiceTime
		equal(t, "service time of Admit", fixture.Must(b.g.Admit(b.ctx, b.id, nil, true))(t).ServiceTime, got)
		equal(t, "service of Places", fixture.Must(b.g.Positions(b.ctx, b.id, nil))(t).ServiceTime, got)
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
