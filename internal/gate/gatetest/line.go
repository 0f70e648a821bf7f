package gatetest

import (
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// wantLine checks a page of the line.
func (b *bundle) wantLine(after, upTo int64, want gate.LineResult) {
	b.Helper()
	equal(b, "line", fixture.Must(b.g.Line(b.ctx, b.id, after, upTo))(b), want, cmpopts.EquateEmpty())
}

// exerciseLine checks the pages of a line and its requests.
func exerciseLine(t *testing.T, b *bundle) {
	_, err := b.g.Line(b.ctx, b.id, 0, 10)
	b.wantNotLoaded("Line", err)
	s := state()
	s.Total, s.Settled = 5000, 10
	b.load(s)
	b.wantLine(-1<<53, -5, gate.LineResult{UpTo: -5, Generation: 1, Version: 1, Settled: 10, LastTicket: 10})
	b.wantLine(-1<<53, 10, gate.LineResult{UpTo: 10, Generation: 1, Version: 1, Settled: 10, LastTicket: 10})
	b.admit(11, "a", "b", "c", "d:e")
	s.Version, s.Generation = 2, 3
	b.load(s)
	b.admit(15, "f")
	s.Version = 3
	b.left(s, gate.Request{UserID: "b", Ticket: 12, Generation: 1})
	b.ack(1, 13)
	want := gate.LineResult{Generation: 3, Version: 3, Settled: 10, LastTicket: 15, UpTo: 14}
	want.InLine = []gate.Request{{UserID: "c", Ticket: 13}, {UserID: "d:e", Ticket: 14}}
	want.Requests = []gate.Request{{UserID: "b", Ticket: 12, Generation: 1}, {UserID: "d:e", Ticket: 14, Generation: 1}}
	b.wantLine(11, 14, want)
	want.UpTo, want.InLine, want.Requests = 1<<53, []gate.Request{{UserID: "f", Ticket: 15}}, []gate.Request{{UserID: "f", Ticket: 15, Generation: 3}}
	b.wantLine(14, 1<<53, want)

	// A long line takes several pages. Those who have left make them shorter in the stream.
	b.id++
	s = state()
	s.Total, s.Mode = 5000, reward.ModeStream
	b.load(s)
	const many = 10 * gate.AdmitMax
	users := names("u", many)
	for from := 0; from < many; from += gate.AdmitMax {
		b.admit(int64(from+1), users[from:from+gate.AdmitMax]...)
	}
	s.Version = 2
	b.left(s, gate.Request{UserID: "u5", Ticket: 5, Generation: 1})
	waiting, requests, pages := int64(0), int64(0), 0
	for after := int64(0); after < many; pages++ {
		page := fixture.Must(b.g.Line(b.ctx, b.id, after, many))(t)
		if page.UpTo <= after || len(page.InLine) > gate.LineMax || len(page.Requests) > gate.LineMax {
			t.Fatalf("after %d: up to %d, %d and %d", after, page.UpTo, len(page.InLine), len(page.Requests))
		}
		for _, q := range page.Requests {
			if requests++; q.Ticket != requests || q.UserID != users[requests-1] {
				t.Fatalf("request %+v, want ticket %d", q, requests)
			}
		}
		waiting, after = waiting+int64(len(page.InLine)), page.UpTo
	}
	equal(t, "in all", []int64{waiting, requests, int64(pages)}, []int64{many - 1, many, 3})
}

// exerciseBack checks that a repair puts users back in line whose requests wait.
func exerciseBack(t *testing.T, b *bundle) {
	s := state()
	s.Total = 10
	b.load(s)
	b.admit(1, "a", "b", "c", "d", "e")
	b.left(s) // none
	for version, user := range []string{"b", "c", "e"} {
		s.Version = int64(version + 2)
		b.left(s, gate.Request{UserID: user, Ticket: map[string]int64{"b": 2, "c": 3, "e": 5}[user], Generation: 1})
	}
	b.ack(1, 5)
	equal(t, "before", b.ranks("a", "b", "c", "d", "e"), []int64{0, -1, -1, 1, -1})
	back := []gate.Request{
		{UserID: "b", Ticket: 2, Generation: 2},
		{UserID: "x", Ticket: 3, Generation: 1},
		{UserID: "a", Ticket: 1, Generation: 1},
		{UserID: "c", Ticket: 3, Generation: 1},
		{UserID: "e", Ticket: 5, Generation: 1},
		{UserID: "nobody", Ticket: 9, Generation: 1},
	}
	for range 2 {
		fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: s.Version, State: s, Back: back, Repair: true}))(t)
		equal(t, "after", b.ranks("a", "b", "c", "d", "e", "x"), []int64{0, -1, 1, 2, -1, -1})
		if h := b.header(); h.Waiting != 3 || h.PublishedStock != 7 || h.LastTicket != 5 {
			t.Fatalf("header %+v", h)
		}
	}
	// A settled ticket does not come back, and neither does one by a late apply.
	late := s
	s.Version, s.Settled = s.Version+1, 2
	b.apply(s.Version-1, s)
	again := gate.ApplyParams{TemplateID: b.id, State: s, Back: []gate.Request{{UserID: "b", Ticket: 2, Generation: 1}}, Repair: true}
	fixture.Must(b.g.Apply(b.ctx, again))(t)
	again.State = late
	fixture.Must(b.g.Apply(b.ctx, again))(t)
	equal(t, "at last", b.ranks("a", "b", "c", "d"), []int64{-1, -1, 0, 1})
}
