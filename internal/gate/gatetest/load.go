package gatetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// exerciseLoadKeep checks a load in ModeStream: tickets and requests stay as they are,
// delivered or not, and only the settled users leave the line.
func exerciseLoadKeep(t *testing.T, b *bundle) {
	s := state()
	s.Total = 10
	b.load(s, gate.Holding{UserID: "gone", Held: 1, CouponID: 1})
	b.admit(1, "z", "y", "x", "w", "v")
	b.read("old", 3)
	b.ack(1, 1)

	token := newToken()
	begun := fixture.Must(b.g.LoadBegin(b.ctx, b.id, token))(t)
	if !begun.Held || begun.Run == "" || begun.Gate.Generation != 1 || begun.Gate.Waiting != 5 || !begun.Gate.Loaded || !begun.Intact {
		t.Fatalf("begun %+v", begun)
	}
	b.admit(6, "late") // until it is closed, the existing gate continues
	l := &loading{Load: gate.Load{TemplateID: b.id, Token: token, Run: begun.Run}, bundle: b, begun: begun}
	fixture.OK(b, b.g.LoadClose(b.ctx, l.Load))
	s.Generation, s.Version, s.Settled, s.Live, s.IssuedTotal = 2, 4, 2, 2, 2
	params := l.prepare(s, nil, gate.Holding{UserID: "z", Held: 1, CouponID: 8}, gate.Holding{UserID: "y", Held: 1, CouponID: 9})
	equal(t, "kind", params.Kind, gate.LoadKeep)
	equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true, Waiting: 4})
	equal(t, "a repeat", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})

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
		Exists: true, Loaded: true, Generation: 2, Version: 4, Settled: 2, LastTicket: 7, FirstTicket: 3, Total: 10, Live: 2, IssuedTotal: 2,
		Granted: places, Grants: 1, PublishedStock: 3, PublishedCount: 2, PublishedIssued: 2,
		Waiting: 5, Backlog: 6, LastRequestAt: begun.Gate.LastRequestAt,
	})
	// Ticket 2 is settled and not acknowledged: it is claimed again, as before the load.
	equal(t, "delivered before", fixture.Must(b.g.Claim(b.ctx, b.id, "new", 0, 10))(t), gate.Delivery{Generation: 2, Requests: []gate.Request{
		{UserID: "y", Ticket: 2, Generation: 1}, {UserID: "x", Ticket: 3, Generation: 1},
	}})
	equal(t, "not delivered before", fixture.Must(b.g.Read(b.ctx, b.id, "new", 10))(t), gate.Delivery{Generation: 2, Requests: []gate.Request{
		{UserID: "w", Ticket: 4, Generation: 1},
		{UserID: "v", Ticket: 5, Generation: 1},
		{UserID: "late", Ticket: 6, Generation: 1},
		{UserID: "new", Ticket: 7, Generation: 2},
	}})
	if n := b.ack(2, 3, 4, 7); n != 1 {
		t.Fatalf("%d acknowledged of the new generation", n)
	}
	if n := b.ack(1, 2, 3, 4, 7); n != 3 {
		t.Fatalf("%d acknowledged of the old generation", n)
	}

	// If Settled is far ahead, no user stays in line.
	s.Generation, s.Version, s.Settled = 3, 9, 100
	equal(t, "swap", b.load(s), gate.SwapResult{Done: true})
	if h := b.header(); h.LastTicket != 100 || h.Waiting != 0 || h.FirstTicket != 0 || h.Backlog != 2 {
		t.Fatalf("header %+v", h)
	}
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{})
	b.admit(101, "x")
}

// exerciseLoadRemake checks a load whose line has an invalid numbering, and any load
// except in ModeStream: those who still wait get new tickets in the same order.
func exerciseLoadRemake(t *testing.T, b *bundle) {
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeSync, reward.ModeKafka} {
		b.id++
		s := state()
		s.Total, s.Mode = 20, mode
		if mode == reward.ModeSync {
			s.Mode = reward.ModeStream // a gate gives no tickets in ModeSync
		}
		b.load(s)
		b.admit(1, "a", "b", "c", "d", "e")
		b.read("old", 2)
		l := b.begin()
		s.Mode = mode
		s.Generation, s.Version, s.Settled, s.Live, s.IssuedTotal = 3, 5, 4, 4, 4
		if mode == reward.ModeStream {
			s.Base = 2
		}
		params := l.prepare(s, []gate.Request{{UserID: "d", Ticket: 4}, {UserID: "c", Ticket: 9}}, gate.Holding{UserID: "d", Held: 1, CouponID: 7})
		equal(t, "kind", params.Kind, gate.LoadRemake)
		equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true, Waiting: 4})
		equal(t, "no request is pending", b.claim(0, 10), []int64{})
		equal(t, "requests", fixture.Must(b.g.Read(b.ctx, b.id, "c", 100))(t).Requests, []gate.Request{
			{UserID: "a", Ticket: 5, Generation: 3},
			{UserID: "b", Ticket: 6, Generation: 3},
			{UserID: "c", Ticket: 7, Generation: 3},
			{UserID: "e", Ticket: 8, Generation: 3},
		})
		equal(t, "ranks", b.ranks("a", "b", "c", "d", "e"), []int64{0, 1, 2, -1, 3})
		if h := b.header(); h.Settled != 4 || h.LastTicket != 8 || h.FirstTicket != 5 || h.Stock() != 12 || h.PublishedStock != 12 || h.Backlog != 4 {
			t.Fatalf("header %+v", h)
		}
		if n := b.ack(1, 5, 6); n != 0 {
			t.Fatalf("%d acknowledged of the old generation", n)
		}
		if mode != reward.ModeSync {
			b.admit(9, "f")
		}

		// Nobody waits any more.
		l = b.begin()
		s.Generation, s.Settled, s.Base = 5, 50, 4
		params = l.prepare(s, []gate.Request{
			{UserID: "a", Ticket: 5}, {UserID: "b", Ticket: 6}, {UserID: "c", Ticket: 7}, {UserID: "e", Ticket: 8}, {UserID: "f", Ticket: 9},
		})
		equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true})
		equal(t, "requests", b.read("c", 10), []int64{})
		if mode != reward.ModeSync {
			b.admit(51, "g")
			equal(t, "requests", b.read("c", 10), []int64{51})
		}
	}
}

// exerciseLoadBack checks that a load finds the requests in the stream whose users are
// missing in the line, page by page, and puts them back in their places.
func exerciseLoadBack(t *testing.T, b *bundle) {
	const users = gate.LoadPageMax + 100
	s := state()
	s.Total, s.Granted = users, users
	b.load(s)
	all := names("u", users)
	for chunk := range slices.Chunk(all, gate.AdmitMax) {
		b.answers(chunk...)
	}
	request := func(i int) gate.Request { return gate.Request{UserID: all[i-1], Ticket: int64(i), Generation: 1} }
	var gone []gate.Request
	for i := 2; i <= users; i += 3 {
		gone = append(gone, request(i))
	}
	fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: 1, State: s, Left: gone, Repair: true}))(t)
	b.ack(1, gone[1].Ticket)
	l := b.begin()
	var found []gate.Request
	for after, ended := int64(0), false; !ended; {
		missing, last, err := b.g.LoadMissing(b.ctx, l.Load, after)
		fixture.OK(b, err)
		if last-after > gate.LoadPageMax+1 {
			t.Fatalf("a page has the tickets above %d up to %d", after, last)
		}
		found = append(found, missing...)
		ended, after = last == after, last
	}
	equal(t, "missing", found, slices.Concat(gone[:1], gone[2:]))
	another := request(3)
	another.UserID = "another"
	fixture.OK(b, b.g.LoadBack(b.ctx, l.Load, []gate.Request{request(1), gone[0], gone[0], gone[1], another, {UserID: all[4], Ticket: 8, Generation: 1}, {UserID: all[7], Ticket: 8, Generation: 2}}))
	page := fixture.Must(b.g.LoadPage(b.ctx, l.Load, 0))(t)
	equal(t, "line", page[:6], []gate.Request{request(1), request(2), request(3), request(4), request(6), request(7)})
	equal(t, "next", page[6], request(9))
}

// exerciseLoadNext checks that a gate that keeps its line never gives a number twice,
// although the highest one has left the line and is above Settled of the rows.
func exerciseLoadNext(t *testing.T, b *bundle) {
	s := state()
	s.Total = 10
	b.load(s)
	b.admit(1, "a", "b", "c")
	after := s
	after.Version, after.Settled = 2, 3
	b.apply(1, after)
	s.Generation, s.Version, s.Settled = 2, 3, 1 // the database was restored
	b.load(s)
	b.admit(4, "d")
	equal(t, "read", b.read("c", 10), run(1, 4))
}

// exerciseLoadCloses checks that a gate is not served between LoadClose and LoadSwap.
func exerciseLoadCloses(t *testing.T, b *bundle) {
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
		b.id++
		s := state()
		s.Total, s.Mode = 10, mode
		b.load(s)
		b.admit(1, "a", "b", "c")
		l := b.begin()
		b.callAll(func(what string, err error) { b.wantNotLoaded(what, err) })
		h := b.header()
		if !h.Exists || h.Loaded || h.Generation != 1 || h.Waiting != 3 || h.Backlog != 3 {
			t.Fatalf("header %+v", h)
		}
		// In ModeKafka the load gives the requests new tickets, so that an
		// acknowledgement would promise what may be void.
		want := 1
		if mode == reward.ModeKafka {
			want = 0
		}
		equal(t, "acknowledged", b.ack(1, 2), want)
		equal(t, "closed twice", b.g.LoadClose(b.ctx, l.Load), nil)
		// The next loader finds the gate closed, with its line.
		next := *l
		fixture.Until(b, "the marker expires", func() bool {
			next.Token = "next"
			next.begun = fixture.Must(b.g.LoadBegin(b.ctx, b.id, next.Token))(t)
			return next.begun.Held
		})
		if next.begun.Gate.Loaded || next.begun.Gate.Waiting != 3 || !next.begun.Intact {
			t.Fatalf("begun %+v", next.begun)
		}
		b.stepsLost("of the loader before", l.Load)
		s.Generation = 2
		equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, next.prepare(s, nil)))(t), gate.SwapResult{Done: true, Waiting: 3})
		b.admit(4, "d")
	}
}

// Steps returns the steps of a load between its begin and its swap.
func Steps(ctx context.Context, g gate.Gate, l gate.Load) map[string]func() error {
	a := []gate.Request{{UserID: "a", Ticket: 1, Generation: 1}}
	return map[string]func() error{
		"LoadClose":    func() error { return g.LoadClose(ctx, l) },
		"LoadHoldings": func() error { return g.LoadHoldings(ctx, l, []gate.Holding{{UserID: "a", Held: 1, CouponID: 1}}) },
		"LoadTrim":     func() error { _, err := g.LoadTrim(ctx, l, 1); return err },
		"LoadLeft":     func() error { return g.LoadLeft(ctx, l, a) },
		"LoadMissing":  func() error { _, _, err := g.LoadMissing(ctx, l, 0); return err },
		"LoadBack":     func() error { return g.LoadBack(ctx, l, a) },
		"LoadPage":     func() error { _, err := g.LoadPage(ctx, l, 0); return err },
		"LoadCopy":     func() error { return g.LoadCopy(ctx, l, 2, 1, []string{"a"}) },
	}
}

// stepsLost checks that the steps of a load return ErrLoadLost.
func (b *bundle) stepsLost(what string, l gate.Load) {
	b.Helper()
	for step, call := range Steps(b.ctx, b.g, l) {
		if err := call(); !errors.Is(err, gate.ErrLoadLost) {
			b.Fatalf("%s %s: the error is %v, want ErrLoadLost", step, what, err)
		}
	}
}

func exerciseLoadLost(t *testing.T, b *bundle) {
	s := state()
	b.load(s)
	b.admit(1, "a", "b")
	token := newToken()
	begun := fixture.Must(b.g.LoadBegin(b.ctx, b.id, token))(t)
	good := gate.Load{TemplateID: b.id, Token: token, Run: begun.Run}
	for what, spoil := range map[string]func(*gate.Load){
		"with another token":    func(l *gate.Load) { l.Token = "another" },
		"with another run":      func(l *gate.Load) { l.Run += "0" },
		"without a run":         func(l *gate.Load) { l.Run = "" },
		"with another template": func(l *gate.Load) { l.TemplateID++ },
	} {
		l := good
		spoil(&l)
		b.stepsLost(what, l)
	}
	for _, step := range []string{"LoadTrim", "LoadLeft", "LoadPage"} {
		if err := Steps(b.ctx, b.g, good)[step](); !errors.Is(err, gate.ErrLoadLost) {
			t.Fatalf("%s of an open line: %v", step, err)
		}
	}
	equal(t, "ranks", b.ranks("a", "b"), []int64{0, 1})
}

// exerciseApplyBase checks that an apply of a later numbering does nothing: its Settled
// is not about the users in line.
func exerciseApplyBase(t *testing.T, b *bundle) {
	s := state()
	s.Generation = 5
	b.load(s)
	b.admit(1, "a", "b")
	s.Version, s.Settled = 2, 2
	for _, repair := range []bool{false, true} {
		for _, base := range []int64{5, 6} {
			s.Base = base
			_, err := b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: 1, State: s, Repair: repair})
			b.wantNotLoaded("Apply", err)
			equal(t, "ranks", b.ranks("a", "b"), []int64{0, 1})
			equal(t, "version", b.header().Version, int64(1))
		}
	}
	s.Base = 4
	equal(t, "apply", b.apply(1, s), gate.ApplyResult{Version: 2})
	equal(t, "ranks", b.ranks("a", "b"), []int64{-1, -1})
}

// exerciseLoadAgain checks a loader that starts over under its token, with newer rows.
func exerciseLoadAgain(t *testing.T, b *bundle) {
	s := state()
	s.Total, s.Mode = 10, reward.ModeKafka
	b.load(s)
	b.admit(1, "a", "b", "c")
	l := b.begin()
	s.Generation, s.Version = 2, 5
	first := l.prepare(s, []gate.Request{{UserID: "a", Ticket: 1}}, gate.Holding{UserID: "x", Held: 1, CouponID: 1}, gate.Holding{UserID: "y", Held: 1, CouponID: 2})
	again := fixture.Must(b.g.LoadBegin(b.ctx, b.id, l.Token))(t)
	again.Gate.LastRequestAt, again.Gate.Loaded = l.begun.Gate.LastRequestAt, true
	equal(t, "begun again", again, l.begun)
	equal(t, "swap with what the first try stored", fixture.Must(b.g.LoadSwap(b.ctx, first))(t), gate.SwapResult{})
	params := l.prepare(s, []gate.Request{{UserID: "b", Ticket: 2}}, gate.Holding{UserID: "z", Held: 1, CouponID: 3})
	equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true, Waiting: 2})
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
		// A load trims or copies in portions.
		s.Generation, s.Settled, s.Total = 2, 1700, many+10
		want, first := many, int64(1701)
		if mode == reward.ModeStream {
			users, want = users[1700:], many-1700
			l := b.begin()
			left := fixture.Must(b.g.LoadTrim(b.ctx, l.Load, s.Settled))(t)
			equal(t, "left to trim", left, int64(1700-gate.LoadMax))
			p := l.prepare(s, nil)
			equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, p))(t), gate.SwapResult{Done: true, Waiting: int64(want)})
		} else {
			l := b.begin()
			page := fixture.Must(b.g.LoadPage(b.ctx, l.Load, 1000))(t)
			equal(t, "page", len(page), gate.LoadPageMax)
			equal(t, "the first of a page", page[0], gate.Request{UserID: users[1000], Ticket: 1001, Generation: 1})
			equal(t, "behind the end", len(fixture.Must(b.g.LoadPage(b.ctx, l.Load, many))(t)), 0)
			p := l.prepare(s, nil)
			equal(t, "copied", p.Copied, int64(many))
			equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, p))(t), gate.SwapResult{Done: true, Waiting: many})
		}
		for from := 0; from < want; from += 1000 {
			page := users[from:min(from+1000, want)]
			for i, rank := range b.ranks(page...) {
				equal(t, page[i], rank, int64(from+i))
			}
			if mode == reward.ModeKafka {
				for i, r := range fixture.Must(b.g.Read(b.ctx, b.id, "c", 1000))(t).Requests {
					equal(t, "request", r, gate.Request{UserID: page[i], Ticket: first + int64(from+i), Generation: 2})
				}
			}
		}
		b.admit(first+int64(want), "next")
	}
}

func exerciseSwapRefused(t *testing.T, b *bundle) {
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
		b.id++
		s := state()
		s.Generation, s.Mode, s.Total = 5, mode, 10
		b.load(s, gate.Holding{UserID: "a", Held: 1, CouponID: 1})
		b.admit(1, "b", "c")
		l := b.begin()
		fixture.OK(b, b.g.LoadHoldings(b.ctx, l.Load, []gate.Holding{{UserID: "d", Held: 1, CouponID: 4}, {UserID: "nothing"}})) // repeated below
		s.Generation = 6
		good := l.prepare(s, nil, gate.Holding{UserID: "c", Held: 1, CouponID: 3}, gate.Holding{UserID: "d", Held: 1, CouponID: 4})
		before := b.header()
		for what, spoil := range map[string]func(*gate.SwapParams){
			"another token":             func(p *gate.SwapParams) { p.Token = "another" },
			"another run":               func(p *gate.SwapParams) { p.Run += "0" },
			"no run":                    func(p *gate.SwapParams) { p.Run = "" },
			"holdings are missing":      func(p *gate.SwapParams) { p.Holdings = 3 },
			"too many holdings":         func(p *gate.SwapParams) { p.Holdings = 1 },
			"users are missing":         func(p *gate.SwapParams) { p.Copied++ },
			"the existing generation":   func(p *gate.SwapParams) { p.State.Generation = 5 },
			"an older generation":       func(p *gate.SwapParams) { p.State.Generation = 4 },
			"a gate that has gone":      func(p *gate.SwapParams) { p.Old = 4 },
			"no gate before":            func(p *gate.SwapParams) { p.Old = 0 },
			"another template":          func(p *gate.SwapParams) { p.TemplateID++ },
			"settled users are in line": func(p *gate.SwapParams) { p.Kind, p.State.Settled, p.Copied = gate.LoadKeep, 1, good.Copied },
		} {
			if what == "settled users are in line" && mode != reward.ModeStream {
				continue
			}
			p := good
			spoil(&p)
			equal(t, "swap: "+what, fixture.Must(b.g.LoadSwap(b.ctx, p))(t), gate.SwapResult{})
			equal(t, "header after "+what, b.header(), before)
		}
		equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, good))(t), gate.SwapResult{Done: true, Waiting: 2})
		if holdings := b.holdings(); len(holdings) != 2 {
			t.Fatalf("holdings %v", holdings)
		}
		// An open gate is not replaced.
		token := newToken()
		begun := fixture.Must(b.g.LoadBegin(b.ctx, b.id, token))(t)
		s.Generation = 7
		open := gate.SwapParams{Load: gate.Load{TemplateID: b.id, Token: token, Run: begun.Run}, Kind: gate.LoadKeep, Old: 6, State: s}
		equal(t, "swap of an open gate", fixture.Must(b.g.LoadSwap(b.ctx, open))(t), gate.SwapResult{})
		equal(t, "ranks", b.ranks("b", "c"), []int64{0, 1})
	}
}

func exerciseMarker(t *testing.T, b *bundle) {
	first, second := newToken(), newToken()
	begun := fixture.Must(b.g.LoadBegin(b.ctx, b.id, first))(t)
	equal(t, "begun", begun, gate.LoadBeginResult{Held: true, Run: begun.Run})
	other := fixture.Must(b.g.LoadBegin(b.ctx, b.id, second))(t)
	equal(t, "begun by another", other, gate.LoadBeginResult{Run: begun.Run})
	b.stepsLost("without the marker", gate.Load{TemplateID: b.id, Token: second, Run: begun.Run})
	equal(t, "a repeat", fixture.Must(b.g.LoadBegin(b.ctx, b.id, first))(t), begun)
	l := gate.Load{TemplateID: b.id, Token: first, Run: begun.Run}
	fixture.OK(b, b.g.LoadHoldings(b.ctx, l, []gate.Holding{{UserID: "a", Held: 1, CouponID: 2}}))
	equal(t, "begun by another once more", fixture.Must(b.g.LoadBegin(b.ctx, b.id, second))(t), other) // and deletes nothing
	params := gate.SwapParams{Load: l, State: state(), Holdings: 1}
	params.Token = second
	equal(t, "swap by another", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})
	b.callAll(func(what string, err error) { b.wantNotLoaded(what, err) })
	params.Token = first
	equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true})
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{"a": {UserID: "a", Held: 1, CouponID: 2}})

	// The swap removes the marker: the next loader may begin, and sees the gate.
	next := fixture.Must(b.g.LoadBegin(b.ctx, b.id, second))(t)
	if !next.Held || next.Gate.Generation != 1 || !next.Gate.Loaded {
		t.Fatalf("begun %+v", next)
	}
}

func exerciseMarkerExpires(t *testing.T, b *bundle) {
	first, second := newToken(), newToken()
	begun := fixture.Must(b.g.LoadBegin(b.ctx, b.id, first))(t)
	l := gate.Load{TemplateID: b.id, Token: first, Run: begun.Run}
	fixture.OK(b, b.g.LoadHoldings(b.ctx, l, []gate.Holding{{UserID: "a", Held: 1, CouponID: 2}}))
	fixture.OK(b, b.g.LoadCopy(b.ctx, l, 1, 1, []string{"x"}))
	fixture.Until(b, "the marker expires", func() bool { return fixture.Must(b.g.LoadBegin(b.ctx, b.id, second))(t).Held })
	b.stepsLost("after the marker has expired", l)
	params := gate.SwapParams{Load: l, State: state(), Holdings: 1, Copied: 1}
	equal(t, "swap by the late loader", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})
	params.Token = second
	equal(t, "what the late loader stored is deleted", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{})
	params.Holdings, params.Copied = 0, 0
	equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true})
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{})
	equal(t, "ranks", b.ranks("x"), []int64{-1})
}
