package gatetest

import (
	"fmt"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

func exerciseLoad(t *testing.T, b *bundle) {
	s := state()
	s.Total = 10
	b.load(s, gate.Holding{UserID: "gone", Held: 1, CouponID: 1})
	b.admit(1, "z", "y", "x", "w", "v")
	b.read("old", 3)
	b.ack(1, 1)

	token := newToken()
	begun := must(b.g.LoadBegin(b.ctx, b.id, token))(t)
	if !begun.Held || begun.Run == "" || begun.Gate.Generation != 1 || begun.Gate.Waiting != 5 || !begun.Gate.Loaded {
		t.Fatalf("begun %+v", begun)
	}
	b.admit(6, "late") // the existing gate continues
	s.Generation, s.Version, s.Settled, s.Live, s.IssuedTotal = 2, 4, 2, 2, 2
	b.ok(b.g.LoadHoldings(b.ctx, b.id, token, []gate.Holding{{UserID: "z", Held: 1, CouponID: 8}, {UserID: "y", Held: 1, CouponID: 9}}, nil))
	equal(t, "before the swap", b.answers("y")[0], gate.Answer{Verdict: gate.InLine, Ticket: 2, Rank: 1})
	params := gate.SwapParams{TemplateID: b.id, Token: token, Run: begun.Run, State: s, Holdings: 2, KeepAbove: 2}
	equal(t, "swap", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true, Waiting: 4})
	equal(t, "a repeat", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})

	equal(t, "answers", b.answers("x", "w", "v", "late", "z", "new"), []gate.Answer{
		{Verdict: gate.InLine, Ticket: 3},
		{Verdict: gate.InLine, Ticket: 4, Rank: 1},
		{Verdict: gate.InLine, Ticket: 5, Rank: 2},
		{Verdict: gate.InLine, Ticket: 6, Rank: 3},
		{Verdict: gate.AtUserLimit, CouponID: 8},
		{Verdict: gate.Admitted, Ticket: 7, Rank: 4},
	})
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{
		"z": {UserID: "z", Held: 1, CouponID: 8}, "y": {UserID: "y", Held: 1, CouponID: 9},
	})
	h := b.header()
	h.LastRequestAt = begun.Gate.LastRequestAt
	equal(t, "header", h, gate.Header{
		Exists: true, Loaded: true, Generation: 2, Version: 4, Settled: 2, LastTicket: 7, Total: 10, Live: 2, IssuedTotal: 2, PublishedStock: 3, PublishedCount: 2, PublishedIssued: 2,
		Waiting: 5, Backlog: 5, LastRequestAt: begun.Gate.LastRequestAt,
	})
	equal(t, "no request is pending", b.claim(0, 10), []int64{})
	got := must(b.g.Read(b.ctx, b.id, "new", 10))(t)
	equal(t, "requests", got, []gate.Request{
		{UserID: "x", Ticket: 3, Generation: 2},
		{UserID: "w", Ticket: 4, Generation: 2},
		{UserID: "v", Ticket: 5, Generation: 2},
		{UserID: "late", Ticket: 6, Generation: 2},
		{UserID: "new", Ticket: 7, Generation: 2},
	})
	if n := b.ack(1, 3, 4); n != 0 {
		t.Fatalf("%d acknowledged of the old generation", n)
	}

	// If Settled is far ahead, no user of the old line is kept.
	s.Generation, s.Version, s.Settled = 3, 9, 100
	equal(t, "swap", b.load(s), gate.SwapResult{Done: true})
	if h := b.header(); h.LastTicket != 100 || h.Waiting != 0 || h.Backlog != 0 {
		t.Fatalf("header %+v", h)
	}
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{})
	b.admit(101, "x")
}

func exerciseLoadKafka(t *testing.T, b *bundle) {
	s := state()
	s.Total, s.Mode = 10, reward.ModeKafka
	b.load(s)
	b.admit(1, "a", "b", "c", "d", "e")
	token := newToken()
	begun := must(b.g.LoadBegin(b.ctx, b.id, token))(t)
	equal(t, "requests in line", begun.Gate.Waiting, 5)
	// d's present ticket is settled; another ticket of c is, so c still waits.
	b.ok(b.g.LoadHoldings(b.ctx, b.id, token, nil, []gate.SettledTicket{{UserID: "d", Ticket: 4}, {UserID: "c", Ticket: 9}, {UserID: "nobody", Ticket: 1}}))
	s.Generation, s.Version, s.Settled = 2, 5, 4
	params := gate.SwapParams{TemplateID: b.id, Token: token, Run: begun.Run, State: s, KeepAbove: 4} // ignored in KAFKA mode
	equal(t, "swap", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true, Waiting: 4})
	equal(t, "requests", must(b.g.Read(b.ctx, b.id, "c", 100))(t), []gate.Request{
		{UserID: "a", Ticket: 5, Generation: 2},
		{UserID: "b", Ticket: 6, Generation: 2},
		{UserID: "c", Ticket: 7, Generation: 2},
		{UserID: "e", Ticket: 8, Generation: 2},
	})
	equal(t, "ranks", b.ranks("a", "b", "c", "d", "e"), []int64{0, 1, 2, -1, 3})
	b.admit(9, "d")
}

// exerciseLoadAfterDatabase checks a load after coupons were issued through the
// database: their tickets are not those of users in line.
func exerciseLoadAfterDatabase(t *testing.T, b *bundle) {
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeSync} {
		b.id++
		s := state()
		s.Total, s.Mode = 20, mode
		b.load(s)
		b.admit(1, "a", "b", "c", "d", "e")
		token := newToken()
		begun := must(b.g.LoadBegin(b.ctx, b.id, token))(t)
		s.Generation, s.Version, s.Settled, s.Live, s.IssuedTotal = 2, 5, 4, 4, 4 // of a, b and two users who were not in line
		params := gate.SwapParams{TemplateID: b.id, Token: token, Run: begun.Run, State: s, KeepAbove: 2}
		equal(t, "swap", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true, Waiting: 3})
		equal(t, "requests", must(b.g.Read(b.ctx, b.id, "c", 100))(t), []gate.Request{
			{UserID: "c", Ticket: 5, Generation: 2}, {UserID: "d", Ticket: 6, Generation: 2}, {UserID: "e", Ticket: 7, Generation: 2},
		})
		equal(t, "ranks", b.ranks("a", "b", "c", "d", "e"), []int64{-1, -1, 0, 1, 2})
		if h := b.header(); h.Settled != 4 || h.LastTicket != 7 || h.Stock() != 13 || h.PublishedStock != 13 {
			t.Fatalf("header %+v", h)
		}
		b.admit(8, "a")
	}
}

// exerciseLoadUserLimit checks a load after users in line got a coupon another way.
func exerciseLoadUserLimit(t *testing.T, b *bundle) {
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeSync, reward.ModeKafka} {
		b.id++
		s := state()
		s.Total, s.PerUserLimit, s.Mode = 20, 2, mode
		b.load(s)
		b.admit(1, "two", "none", "three", "one", "cancelled", "last")
		s.Generation, s.Version, s.Live, s.IssuedTotal = 2, 5, 7, 8
		swapped := b.load(s, gate.Holding{UserID: "one", Held: 1, CouponID: 11}, gate.Holding{UserID: "two", Held: 2, CouponID: 12},
			gate.Holding{UserID: "three", Held: 3, CouponID: 13}, gate.Holding{UserID: "cancelled", Held: 2})
		equal(t, "swap", swapped, gate.SwapResult{Done: true, Waiting: 3})
		equal(t, "requests", must(b.g.Read(b.ctx, b.id, "c", 100))(t), []gate.Request{
			{UserID: "none", Ticket: 1, Generation: 2}, {UserID: "one", Ticket: 2, Generation: 2}, {UserID: "last", Ticket: 3, Generation: 2},
		})
		equal(t, "ranks", b.ranks("two", "none", "three", "one", "cancelled", "last"), []int64{-1, 0, -1, 1, -1, 2})
		if h := b.header(); h.LastTicket != 3 || h.Waiting != 3 || h.Backlog != 3 || h.PublishedStock != 10 {
			t.Fatalf("header %+v", h)
		}
		equal(t, "answers", b.answers("two", "three", "cancelled", "new"), []gate.Answer{
			{Verdict: gate.AtUserLimit, CouponID: 12}, {Verdict: gate.AtUserLimit, CouponID: 13}, {Verdict: gate.AtUserLimit}, {Verdict: gate.Admitted, Ticket: 4, Rank: 3},
		})
	}
}

// exerciseLoadAgain checks a loader that starts over under its token, with newer rows.
func exerciseLoadAgain(t *testing.T, b *bundle) {
	s := state()
	s.Total, s.Mode = 10, reward.ModeKafka
	b.load(s)
	b.admit(1, "a", "b", "c")
	token := newToken()
	begun := must(b.g.LoadBegin(b.ctx, b.id, token))(t)
	b.ok(b.g.LoadHoldings(b.ctx, b.id, token, []gate.Holding{{UserID: "x", Held: 1, CouponID: 1}, {UserID: "y", Held: 1, CouponID: 2}},
		[]gate.SettledTicket{{UserID: "a", Ticket: 1}}))
	again := must(b.g.LoadBegin(b.ctx, b.id, token))(t)
	again.Gate.LastRequestAt = begun.Gate.LastRequestAt
	equal(t, "begun again", again, begun)
	s.Generation, s.Version = 2, 5
	params := gate.SwapParams{TemplateID: b.id, Token: token, Run: begun.Run, State: s, Holdings: 2}
	equal(t, "swap with the holdings of the first try", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})
	b.ok(b.g.LoadHoldings(b.ctx, b.id, token, []gate.Holding{{UserID: "z", Held: 1, CouponID: 3}}, []gate.SettledTicket{{UserID: "b", Ticket: 2}}))
	params.Holdings = 1
	equal(t, "swap", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true, Waiting: 2})
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{"z": {UserID: "z", Held: 1, CouponID: 3}})
	equal(t, "ranks", b.ranks("a", "b", "c"), []int64{0, -1, 1})
}

func exerciseLongLine(t *testing.T, b *bundle) {
	const many = 2300
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
		b.id++
		s := state()
		s.Total, s.Mode = many, mode
		b.load(s)
		var users []string
		for first := 0; first < many; first += 50 {
			page := names(fmt.Sprint(first, "-"), 50)
			b.admit(int64(first+1), page...)
			users = append(users, page...)
		}
		s.Generation, s.Settled, s.Total = 2, 7, many+10
		want := many
		if mode == reward.ModeStream {
			users, want = users[7:], many-7
		}
		equal(t, "swap", b.load(s), gate.SwapResult{Done: true, Waiting: int64(want)})
		for i, r := range must(b.g.Read(b.ctx, b.id, "c", 10_000))(t) {
			equal(t, "request", r, gate.Request{UserID: users[i], Ticket: int64(i) + 8, Generation: 2})
		}
		for from := 0; from < want; from += 1000 {
			page := users[from:min(from+1000, want)]
			for i, rank := range b.ranks(page...) {
				equal(t, page[i], rank, int64(from+i))
			}
		}
		b.admit(int64(want)+8, "next")

		// So many are settled that no user from the front of the long line is kept.
		last := int64(want) + 8
		s.Generation, s.Settled = 3, last-500
		if want++; mode == reward.ModeStream {
			want = 500
		}
		equal(t, "swap that keeps the end", b.load(s), gate.SwapResult{Done: true, Waiting: int64(want)})
		equal(t, "ranks at the end", b.ranks("next"), []int64{int64(want) - 1})
		equal(t, "tickets", b.read("c", 10_000), run(last-499, last-500+int64(want)))
	}
}

func exerciseSwapRefused(t *testing.T, b *bundle) {
	s := state()
	s.Generation = 5
	b.load(s, gate.Holding{UserID: "a", Held: 1, CouponID: 1})
	b.admit(1, "b")
	token := newToken()
	begun := must(b.g.LoadBegin(b.ctx, b.id, token))(t)
	b.ok(b.g.LoadHoldings(b.ctx, b.id, token, []gate.Holding{{UserID: "c", Held: 1, CouponID: 3}, {UserID: "d", Held: 1, CouponID: 4}}, nil))
	b.ok(b.g.LoadHoldings(b.ctx, b.id, token, []gate.Holding{{UserID: "d", Held: 1, CouponID: 4}, {UserID: "nothing"}}, nil)) // a repeat
	good := gate.SwapParams{TemplateID: b.id, Token: token, Run: begun.Run, State: s, Holdings: 2}
	good.State.Generation = 6
	before, holdings := b.header(), b.holdings()
	for what, spoil := range map[string]func(*gate.SwapParams){
		"another token":           func(p *gate.SwapParams) { p.Token = "another" },
		"another run":             func(p *gate.SwapParams) { p.Run += "0" },
		"no run":                  func(p *gate.SwapParams) { p.Run = "" },
		"holdings are missing":    func(p *gate.SwapParams) { p.Holdings = 3 },
		"too many holdings":       func(p *gate.SwapParams) { p.Holdings = 1 },
		"the existing generation": func(p *gate.SwapParams) { p.State.Generation = 5 },
		"an older generation":     func(p *gate.SwapParams) { p.State.Generation = 4 },
		"another template":        func(p *gate.SwapParams) { p.TemplateID++ },
	} {
		p := good
		spoil(&p)
		equal(t, "swap: "+what, must(b.g.LoadSwap(b.ctx, p))(t), gate.SwapResult{})
		equal(t, "header after "+what, b.header(), before)
		equal(t, "holdings after "+what, b.holdings(), holdings)
	}
	equal(t, "swap", must(b.g.LoadSwap(b.ctx, good))(t), gate.SwapResult{Done: true, Waiting: 1})
	if holdings := b.holdings(); len(holdings) != 2 {
		t.Fatalf("holdings %v", holdings)
	}
}

func exerciseMarker(t *testing.T, b *bundle) {
	first, second := newToken(), newToken()
	begun := must(b.g.LoadBegin(b.ctx, b.id, first))(t)
	equal(t, "begun", begun, gate.LoadBeginResult{Held: true, Run: begun.Run})
	other := must(b.g.LoadBegin(b.ctx, b.id, second))(t)
	equal(t, "begun by another", other, gate.LoadBeginResult{Run: begun.Run})
	// Without the marker, LoadHoldings stores nothing.
	b.ok(b.g.LoadHoldings(b.ctx, b.id, second, []gate.Holding{{UserID: "intruder", Held: 1, CouponID: 1}}, nil))
	equal(t, "a repeat", must(b.g.LoadBegin(b.ctx, b.id, first))(t), begun)
	b.ok(b.g.LoadHoldings(b.ctx, b.id, first, []gate.Holding{{UserID: "a", Held: 1, CouponID: 2}}, nil))
	equal(t, "begun by another once more", must(b.g.LoadBegin(b.ctx, b.id, second))(t), other) // and deletes nothing
	params := gate.SwapParams{TemplateID: b.id, Token: second, Run: begun.Run, State: state(), Holdings: 1}
	equal(t, "swap by another", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})
	b.callAll(func(what string, err error) { b.wantNotLoaded(what, err) })
	params.Token = first
	equal(t, "swap", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true})
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{"a": {UserID: "a", Held: 1, CouponID: 2}})

	// The swap removes the marker: the next loader may begin, and sees the gate.
	next := must(b.g.LoadBegin(b.ctx, b.id, second))(t)
	if !next.Held || next.Gate.Generation != 1 || !next.Gate.Loaded {
		t.Fatalf("begun %+v", next)
	}
}

func exerciseMarkerExpires(t *testing.T, b *bundle) {
	first, second := newToken(), newToken()
	begun := must(b.g.LoadBegin(b.ctx, b.id, first))(t)
	b.ok(b.g.LoadHoldings(b.ctx, b.id, first, []gate.Holding{{UserID: "a", Held: 1, CouponID: 2}}, []gate.SettledTicket{{UserID: "x", Ticket: 1}}))
	b.until("the marker expires", func() bool { return must(b.g.LoadBegin(b.ctx, b.id, second))(t).Held })
	b.ok(b.g.LoadHoldings(b.ctx, b.id, first, []gate.Holding{{UserID: "late", Held: 1, CouponID: 3}}, nil))
	params := gate.SwapParams{TemplateID: b.id, Token: first, Run: begun.Run, State: state(), Holdings: 1}
	equal(t, "swap by the late loader", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})
	params.Token = second
	equal(t, "the holdings of the late loader are deleted", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})
	params.Holdings = 0
	equal(t, "swap", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true})
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{})
}
