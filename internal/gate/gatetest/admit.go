package gatetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func exerciseWindow(t *testing.T, b *bundle) {
	hour := time.Hour
	for i, tc := range []struct {
		opens, closes time.Duration // from now; 0 = none
		want          gate.Verdict
	}{
		{0, 0, gate.Admitted},
		{-hour, 0, gate.Admitted},
		{-hour, hour, gate.Admitted},
		{0, hour, gate.Admitted},
		{hour, 0, gate.NotOpen},
		{hour, 2 * hour, gate.NotOpen},
		{-2 * hour, -hour, gate.Closed},
		{0, -hour, gate.Closed},
	} {
		each := *b
		each.id += reward.TemplateID(i)
		s := state()
		if tc.opens != 0 {
			s.OpensAt = time.Now().Add(tc.opens)
		}
		if tc.closes != 0 {
			s.ClosesAt = time.Now().Add(tc.closes)
		}
		each.load(s, gate.Holding{UserID: "has", Held: 1, CouponID: 9})
		if got := each.answers("a")[0]; got.Verdict != tc.want {
			t.Errorf("opens in %v, closes in %v: %+v", tc.opens, tc.closes, got)
		}
		equal(t, "a user at the limit gets the same answer at any time", each.answers("has")[0], gate.Answer{Verdict: gate.AtUserLimit, CouponID: 9})
		if tc.want == gate.Admitted {
			s.ClosesAt, s.Version = time.Now().Add(-time.Second), 2
			each.apply(1, s)
			equal(t, "a user in line at close", each.answers("a", "late"), []gate.Answer{{Verdict: gate.InLine, Ticket: 1}, {Verdict: gate.Closed}})
		}
	}
	s := state()
	b.id += 100
	s.OpensAt = time.Now().Add(50 * time.Millisecond)
	b.load(s)
	fixture.Until(b, "it opens", func() bool { return b.answers("a")[0].Verdict == gate.Admitted })
}

func exerciseUserLimit(t *testing.T, b *bundle) {
	s := state()
	s.PerUserLimit, s.Total, s.Live = 2, 10, 5
	b.load(s, gate.Holding{UserID: "one", Held: 1, CouponID: 11}, gate.Holding{UserID: "two", Held: 2, CouponID: 12},
		gate.Holding{UserID: "cancelled", Held: 2, CouponID: 0}, gate.Holding{UserID: "three", Held: 3, CouponID: 13})
	equal(t, "answers", b.answers("one", "two", "cancelled", "three", "one"), []gate.Answer{
		{Verdict: gate.Admitted, Ticket: 1},
		{Verdict: gate.AtUserLimit, CouponID: 12},
		{Verdict: gate.AtUserLimit},
		{Verdict: gate.AtUserLimit, CouponID: 13},
		{Verdict: gate.InLine, Ticket: 1},
	})
}

func exerciseNames(t *testing.T, b *bundle) {
	users := []string{
		"0", "-1", "1e3", "a b", "a:b", ":", "42:a", "{7}", "nil", "héé", "日本", "\n\r", "'\"\\", "%d%s", strings.Repeat("x", reward.UserIDMax),
	}
	s := state()
	s.Total = int64(len(users))
	b.load(s)
	b.admit(1, users...)
	for i, r := range fixture.Must(b.g.Read(b.ctx, b.id, "c", 100))(t).Requests {
		equal(t, "request", r, gate.Request{UserID: users[i], Ticket: int64(i + 1), Generation: 1})
	}
	s.Generation = 2
	if taken := b.load(s); taken.Waiting != int64(len(users)) {
		t.Fatalf("%d requests were kept", taken.Waiting)
	}
	holdings := map[string]gate.Holding{}
	var list []gate.Holding
	for i, u := range users {
		holdings[u] = gate.Holding{UserID: u, Held: 1, CouponID: reward.CouponID(i + 1)}
		list = append(list, holdings[u])
	}
	s.Version, s.Settled, s.Live = 2, s.Total, s.Total
	b.apply(1, s, list...)
	equal(t, "holdings", b.holdings(), holdings)
	for i, a := range b.answers(users...) {
		equal(t, users[i], a, gate.Answer{Verdict: gate.AtUserLimit, CouponID: reward.CouponID(i + 1)})
	}
}

func exercisePositions(t *testing.T, b *bundle) {
	s := state()
	s.Total = 500
	b.load(s)
	users := names("u", 300)
	for from := 0; from < len(users); from += 50 {
		b.admit(int64(from+1), users[from:from+50]...)
	}
	positions := fixture.Must(b.g.Positions(b.ctx, b.id, append([]string{"nobody"}, users...)))(t)
	if positions.Generation != 1 || positions.Version != 1 || positions.Positions[0] != (gate.Position{}) {
		t.Fatalf("positions %+v", positions)
	}
	for i, p := range positions.Positions[1:] {
		equal(t, "position", p, gate.Position{InLine: true, Ticket: int64(i + 1), Rank: int64(i)})
	}
	s.Version, s.Settled = 2, 120
	b.apply(1, s)
	equal(t, "ranks", b.ranks("u1", "u120", "u121", "u300"), []int64{-1, -1, 0, 179})
	if none := fixture.Must(b.g.Positions(b.ctx, b.id, nil))(t); len(none.Positions) != 0 || none.Version != 2 {
		t.Fatalf("without users: %+v", none)
	}
}

func exerciseHeaders(t *testing.T, b *bundle) {
	began := time.Now()
	s := gate.State{
		Generation: 7, Version: 8, Settled: 5, Total: 100, Live: 4, IssuedTotal: 6, PerUserLimit: 3, Mode: reward.ModeKafka,
		Granted: 30, Used: 20, Grants: 10,
	}
	b.load(s)
	b.admit(6, "a", "b")
	got := fixture.Must(b.g.Headers(b.ctx, []reward.TemplateID{1, b.id, 2, b.id}))(t)
	want := gate.Header{
		Exists: true, Loaded: true, Generation: 7, Version: 8, Settled: 5, LastTicket: 7, FirstTicket: 6, Total: 100, Live: 4, IssuedTotal: 6,
		Granted: 30, Used: 20, Grants: 10, PublishedStock: 94, PublishedCount: 4, PublishedIssued: 6, Waiting: 2, Backlog: 2,
	}
	for _, i := range []int{1, 3} {
		if got[i].LastRequestAt.Sub(began).Abs() > time.Hour { // the clocks of two machines differ
			t.Fatalf("LastRequestAt is %v", got[i].LastRequestAt)
		}
		got[i].LastRequestAt = time.Time{}
	}
	equal(t, "headers", got, []gate.Header{{}, want, {}, want})
	if want.Stock() != 94 || (gate.Header{Total: 1, Live: 2}).Stock() != 0 {
		t.Fatal("Stock")
	}
	if none := fixture.Must(b.g.Headers(b.ctx, nil))(t); len(none) != 0 {
		t.Fatalf("without ids: %+v", none)
	}
}

// exerciseNotLoaded checks that calls without a gate return ErrNotLoaded and create
// nothing.
func exerciseNotLoaded(t *testing.T, b *bundle) {
	b.callAll(func(what string, err error) { b.wantNotLoaded(what, err) })
	if n := fixture.Must(b.g.Ack(b.ctx, b.id, 1, []int64{1}))(t); n != 0 {
		t.Fatalf("%d acknowledged of none", n)
	}
	if !fixture.Must(b.g.Retire(b.ctx, b.id, 0))(t) {
		t.Fatal("Retire reports a gate that does not exist")
	}
	b.stepsLost("without a load", gate.Load{TemplateID: b.id, Token: "nobody", Run: "none"})
	equal(t, "header", b.header(), gate.Header{})
}

// Calls returns every call that requires a loaded gate.
func Calls(ctx context.Context, g gate.Gate, id reward.TemplateID) map[string]func() error {
	later := state()
	later.Version, later.Settled = 100, 1
	return map[string]func() error{
		"Admit":       func() error { _, err := g.Admit(ctx, id, []string{"a", "new"}, true); return err },
		"AdmitNobody": func() error { _, err := g.Admit(ctx, id, nil, false); return err },
		"Positions":   func() error { _, err := g.Positions(ctx, id, []string{"a"}); return err },
		"Place":       func() error { _, err := g.Place(ctx, id, "a"); return err },
		"Read":        func() error { _, err := g.Read(ctx, id, "c", 10); return err },
		"Claim":       func() error { _, err := g.Claim(ctx, id, "c", 0, 10); return err },
		"Unacked":     func() error { _, err := g.Unacked(ctx, id, 1, []int64{1}); return err },
		"Shrink":      func() error { _, err := g.Shrink(ctx, id); return err },
		"PauseGrants": func() error { return g.PauseGrants(ctx, id, time.Second) },
		"Holdings":    func() error { _, _, _, err := g.Holdings(ctx, id, ""); return err },
		"Apply": func() error {
			_, err := g.Apply(ctx, gate.ApplyParams{
				TemplateID: id, State: later,
				Holdings: []gate.Holding{{UserID: "a", Held: 1, CouponID: 1}},
				Outcomes: []gate.Outcome{{UserID: "a", Ticket: 1, CouponID: 1}},
			})
			return err
		},
	}
}

// callAll makes every call that requires a loaded gate.
func (b *bundle) callAll(check func(what string, err error)) {
	b.Helper()
	for what, call := range Calls(b.ctx, b.g, b.id) {
		check(what, call())
	}
}

func exerciseBounds(t *testing.T, b *bundle) {
	b.load(state())
	_, err := b.g.Admit(b.ctx, b.id, names("u", gate.AdmitMax+1), true)
	refused(t, "Admit", err)
	_, err = b.g.Positions(b.ctx, b.id, names("u", gate.PositionsMax+1))
	refused(t, "Positions", err)
	l := gate.Load{TemplateID: b.id, Token: "t"}
	refused(t, "LoadHoldings", b.g.LoadHoldings(b.ctx, l, make([]gate.Holding, gate.LoadMax+1)))
	refused(t, "LoadCopy", b.g.LoadCopy(b.ctx, l, 1, 1, make([]string, gate.LoadPageMax+1)))
	refused(t, "LoadBack", b.g.LoadBack(b.ctx, l, make([]gate.Request, gate.LoadPageMax+1)))
	refused(t, "LoadLeft", b.g.LoadLeft(b.ctx, l, make([]gate.Request, gate.LoadMax+1)))
	if h := b.header(); h.Waiting != 0 {
		t.Fatalf("header %+v", h)
	}
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || errors.Is(err, gate.ErrNotLoaded) || errors.Is(err, gate.ErrLoadLost) {
		t.Fatalf("%s: the error is %v", what, err)
	}
}

func exerciseCancelled(t *testing.T, b *bundle) {
	b.load(state())
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	before := b.header()
	each := *b
	each.ctx = ctx
	each.callAll(func(what string, err error) {
		t.Helper()
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: the error is %v", what, err)
		}
	})
	for what, err := range map[string]error{
		"Ping":         b.g.Ping(ctx),
		"LoadHoldings": b.g.LoadHoldings(ctx, gate.Load{TemplateID: b.id, Token: "t"}, nil),
		"Unlock":       b.g.Unlock(ctx, b.id, 1),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: the error is %v", what, err)
		}
	}
	equal(t, "header", b.header(), before)
}

func exerciseClose(t *testing.T, b *bundle) {
	b.load(state())
	b.g.Close()
	b.g.Close()
	b.callAll(func(what string, err error) { t.Helper(); refused(t, what, err) })
	refused(t, "Ping", b.g.Ping(b.ctx))
	timeout := time.NewTimer(fixture.Patience)
	defer timeout.Stop()
	for {
		select {
		case _, open := <-b.g.Hints():
			if !open {
				return
			}
		case <-timeout.C:
			t.Fatal("Close has not closed the channel of hints")
		}
	}
}
