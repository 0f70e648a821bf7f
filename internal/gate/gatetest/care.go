package gatetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// capState returns the state of a gate whose total can be capped at 5 once three users
// wait.
func capState() gate.State {
	s := state()
	s.Total, s.Live = 10, 2
	return s
}

// capped loads a gate with capState in which a, b and c wait, caps it, and returns the
// answers of then. If that took so long that the cap may have expired, it starts over
// with another template.
func (b *bundle) capped(then func() []gate.Answer, totals ...int64) []gate.Answer {
	b.Helper()
	var answers []gate.Answer
	b.until("all calls are made while the cap counts", func() bool {
		b.id++
		b.load(capState())
		b.admit(1, "a", "b", "c")
		called := time.Now()
		for _, total := range totals {
			b.capTotal(total, true)
		}
		answers = then()
		return time.Since(called) < gate.CapTTL
	})
	return answers
}

func (b *bundle) capTotal(total int64, fits bool) {
	b.Helper()
	if got := must(b.g.CapTotal(b.ctx, b.id, total))(b); got != fits {
		b.Fatalf("CapTotal(%d) returned %v", total, got)
	}
}

// checkNew checks whether a new user would be admitted.
func (b *bundle) checkNew() []gate.Answer {
	b.Helper()
	return must(b.g.Admit(b.ctx, b.id, []string{"new"}, false))(b).Answers
}

func exerciseCap(t *testing.T, b *bundle) {
	admitted, soldOut := gate.Answer{Verdict: gate.Admitted, Rank: 3}, gate.Answer{Verdict: gate.SoldOut}
	for what, c := range map[string]struct {
		totals []int64
		want   gate.Answer
	}{
		"to what is promised":      {[]int64{5}, soldOut},
		"twice":                    {[]int64{5, 5}, soldOut},
		"to more than is promised": {[]int64{6}, admitted},
		"lower and lower":          {[]int64{6, 5}, soldOut},
		"and higher again":         {[]int64{5, 6}, admitted},
		"and above Total":          {[]int64{5, 11}, admitted},
	} {
		equal(t, "capped "+what, b.capped(b.checkNew, c.totals...), []gate.Answer{c.want})
		if h := b.header(); h.Total != 10 || h.Stock() != 5 || h.PublishedStock != 5 {
			t.Fatalf("capped %s: %+v", what, h)
		}
	}
	refused := func() []gate.Answer { b.capTotal(4, false); return b.checkNew() }
	equal(t, "capped below what is promised", b.capped(refused), []gate.Answer{admitted})
	equal(t, "capped below what is promised, after another cap", b.capped(refused, 5), []gate.Answer{soldOut})

	equal(t, "answers", b.capped(func() []gate.Answer { return b.answers("a", "d", "e") }, 6), []gate.Answer{
		{Verdict: gate.InLine, Ticket: 1}, {Verdict: gate.Admitted, Ticket: 4, Rank: 3}, soldOut,
	})
	if h := b.header(); h.Total != 10 || h.Waiting != 4 || h.PublishedStock != 4 {
		t.Fatalf("header %+v", h)
	}
	many := b.capped(func() []gate.Answer { return b.answers("d", "e", "f", "g", "h", "i") }, 1000)
	equal(t, "the last but one", many[4], gate.Answer{Verdict: gate.Admitted, Ticket: 8, Rank: 7})
	equal(t, "the last", many[5], soldOut)
}

// exerciseCapApply checks that an apply does not end a cap.
func exerciseCapApply(t *testing.T, b *bundle) {
	soldOut := []gate.Answer{{Verdict: gate.SoldOut}}
	applied := func(version, total int64, repair bool) func() []gate.Answer {
		return func() []gate.Answer {
			s := capState()
			s.Version, s.Total = version, total
			p := gate.ApplyParams{TemplateID: b.id, From: 1, State: s, Repair: repair}
			equal(t, "apply", must(b.g.Apply(b.ctx, p))(t), gate.ApplyResult{Version: version})
			return b.checkNew()
		}
	}
	equal(t, "an apply of something else", b.capped(applied(2, 10, false), 5), soldOut)
	if h := b.header(); h.Version != 2 || h.Total != 10 || h.PublishedStock != 5 {
		t.Fatalf("header %+v", h)
	}
	equal(t, "a repair", b.capped(applied(1, 10, true), 5), soldOut)
	equal(t, "the rows have more", b.capped(applied(2, 20, false), 5), soldOut)
	equal(t, "the rows have less than the cap", b.capped(applied(2, 5, false), 6), soldOut)
}

// exerciseCapExpires checks that a cap ends after CapTTL.
func exerciseCapExpires(t *testing.T, b *bundle) {
	b.load(capState())
	called := time.Now()
	b.capTotal(2, true)
	b.until("the cap expires", func() bool { return b.checkNew()[0].Verdict == gate.Admitted })
	if lasted := time.Since(called); lasted < gate.CapTTL/2 {
		t.Fatalf("the cap counted for %v", lasted)
	}
	b.admit(1, names("u", 8)...)
	if h := b.header(); h.Total != 10 || h.PublishedStock != 0 {
		t.Fatalf("header %+v", h)
	}
}

func exerciseCapSwap(t *testing.T, b *bundle) {
	swapped := b.capped(func() []gate.Answer {
		s := capState()
		s.Generation = 2
		b.load(s)
		return b.checkNew()
	}, 5)
	equal(t, "after a swap", swapped, []gate.Answer{{Verdict: gate.Admitted, Rank: 3}})
}

func exerciseRetire(t *testing.T, b *bundle) {
	s := state()
	s.Mode = reward.ModeKafka
	b.load(s, gate.Holding{UserID: "a", Held: 1, CouponID: 1})
	retire := func(idle time.Duration, want bool) {
		t.Helper()
		if got := must(b.g.Retire(b.ctx, b.id, idle))(t); got != want {
			t.Fatalf("Retire returned %v", got)
		}
		if h := b.header(); h.Exists == want {
			t.Fatalf("header %+v", h)
		}
	}
	retire(time.Hour, false)
	b.admit(1, "u")
	retire(0, false) // u waits
	s.Version, s.Settled = 2, 1
	must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: 1, State: s, Done: []gate.SettledTicket{{UserID: "u", Ticket: 1}}}))(t)
	retire(0, false) // the request is not acknowledged
	b.ack(1, 1)
	retire(time.Hour, false)
	retire(0, true)
	retire(0, true)
	b.callAll(func(what string, err error) { b.wantNotLoaded(what, err) })
	s.Generation = 2
	b.load(s)
	equal(t, "holdings", b.holdings(), map[string]gate.Holding{})
	// Retire does not delete the data of a load in progress.
	token := newToken()
	begun := must(b.g.LoadBegin(b.ctx, b.id, token))(t)
	b.ok(b.g.LoadHoldings(b.ctx, b.id, token, []gate.Holding{{UserID: "a", Held: 1, CouponID: 1}}, nil))
	retire(0, true)
	s.Generation = 3
	params := gate.SwapParams{TemplateID: b.id, Token: token, Run: begun.Run, State: s, Holdings: 1}
	equal(t, "swap", must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true})
}

// exerciseHoldingsPages reads pages while holdings are added and removed.
func exerciseHoldingsPages(t *testing.T, b *bundle) {
	const stand, change = 3500, 1200
	var holdings []gate.Holding
	for i := range stand + change {
		holdings = append(holdings, gate.Holding{UserID: fmt.Sprint("u", i), Held: 1, CouponID: reward.CouponID(i + 1)})
	}
	b.load(state())
	s := state()
	s.Version = 2
	b.apply(1, s, holdings...)
	seen, pages := map[string]gate.Holding{}, 0
	for cursor := ""; ; pages++ {
		page, next, version, err := b.g.Holdings(b.ctx, b.id, cursor)
		b.ok(err)
		if version != s.Version {
			t.Fatalf("version %d, want %d", version, s.Version)
		}
		for _, f := range page {
			seen[f.UserID] = f
		}
		if next == "" {
			break
		}
		cursor = next
		s.Version++
		leave := slices.Clone(holdings[min(stand+pages*200, stand+change):min(stand+pages*200+200, stand+change)])
		for i := range leave {
			leave[i].Held = 0
		}
		b.apply(s.Version-1, s, append(leave, gate.Holding{UserID: fmt.Sprint("new", pages), Held: 1})...)
	}
	if pages < 2 || pages > 10 {
		t.Fatalf("%d pages", pages)
	}
	for _, f := range holdings[:stand] {
		equal(t, "a holding that exists throughout", seen[f.UserID], f)
	}
	// A cursor of an older generation starts over.
	_, next, _, err := b.g.Holdings(b.ctx, b.id, "")
	b.ok(err)
	s.Generation = 2
	b.load(s, gate.Holding{UserID: "only", Held: 1, CouponID: 1})
	page, end, _, err := b.g.Holdings(b.ctx, b.id, next)
	b.ok(err)
	equal(t, "page", page, []gate.Holding{{UserID: "only", Held: 1, CouponID: 1}})
	equal(t, "end", end, "")
	for _, cursor := range []string{"x", "1", "1-x", "x-1", "-"} {
		if _, _, _, err := b.g.Holdings(b.ctx, b.id, cursor); err == nil {
			t.Errorf("cursor %q was accepted", cursor)
		}
	}
}

func exerciseHoldingsOf(t *testing.T, b *bundle) {
	if _, err := b.g.HoldingsOf(b.ctx, b.id, []string{"a"}); !errors.Is(err, gate.ErrNotLoaded) {
		t.Fatalf("without a gate: %v", err)
	}
	s := state()
	b.load(s, gate.Holding{UserID: "a", Held: 1, CouponID: 7}, gate.Holding{UserID: "b", Held: 2})
	equal(t, "holdings", must(b.g.HoldingsOf(b.ctx, b.id, []string{"b", "nobody", "a", "b"}))(t), gate.HoldingsOfResult{
		Holdings:   []gate.Holding{{UserID: "b", Held: 2}, {UserID: "nobody"}, {UserID: "a", Held: 1, CouponID: 7}, {UserID: "b", Held: 2}},
		Generation: s.Generation, Version: s.Version, Holders: 2,
	})
	from := s.Version
	s.Version++
	b.apply(from, s, gate.Holding{UserID: "a"})
	equal(t, "of nobody", must(b.g.HoldingsOf(b.ctx, b.id, nil))(t), gate.HoldingsOfResult{
		Holdings: []gate.Holding{}, Generation: s.Generation, Version: s.Version, Holders: 1,
	})
	if _, err := b.g.HoldingsOf(b.ctx, b.id, make([]string, gate.LoadMax+1)); err == nil {
		t.Fatal("too many users were accepted")
	}
}

func exerciseLock(t *testing.T, b *bundle) {
	take := func(p gate.LockParams) (int64, bool) {
		t.Helper()
		token, ok, err := b.g.Lock(b.ctx, b.id, p)
		b.ok(err)
		return token, ok
	}
	takes := 0
	lock := func(lease time.Duration) (int64, bool) {
		t.Helper()
		takes++
		return take(gate.LockParams{Lease: lease, Nonce: fmt.Sprint("n", takes)})
	}
	first, ok := lock(time.Hour)
	if !ok || first < time.Now().Add(-time.Minute).UnixMicro() {
		t.Fatalf("token %d, %v", first, ok)
	}
	if token, ok := lock(time.Hour); ok || token != 0 {
		t.Fatalf("locked twice: token %d, %v", token, ok)
	}
	b.ok(b.g.Unlock(b.ctx, b.id, first-1))
	if _, ok := lock(time.Hour); ok {
		t.Fatal("an Unlock with another token released the lock")
	}
	b.ok(b.g.Unlock(b.ctx, b.id, first))
	second, ok := lock(20 * time.Millisecond)
	if !ok || second <= first {
		t.Fatalf("token %d after %d, %v", second, first, ok)
	}
	var third int64
	b.until("the lease expires", func() bool { third, ok = lock(time.Hour); return ok })
	if third <= second {
		t.Fatalf("token %d after %d", third, second)
	}
	b.ok(b.g.Unlock(b.ctx, b.id, second)) // late
	if _, ok := lock(time.Hour); ok {
		t.Fatal("a late Unlock released the lock of another holder")
	}
	b.ok(b.g.Unlock(b.ctx, b.id, third))
	equal(t, "a lock creates no gate", b.header(), gate.Header{})

	// The reply of a take is lost, and the caller repeats it.
	mine := gate.LockParams{Lease: 20 * time.Millisecond, Nonce: "mine"}
	fourth, _ := take(mine)
	mine.Lease = time.Hour
	if token, ok := take(mine); !ok || token != fourth {
		t.Fatalf("the repeat got token %d, %v, not %d", token, ok, fourth)
	}
	time.Sleep(40 * time.Millisecond) // the first lease is over, the second is not
	if _, ok := lock(time.Hour); ok {
		t.Fatal("the repeat did not extend the lease")
	}
	b.ok(b.g.Unlock(b.ctx, b.id, fourth))
	fifth, ok := take(mine)
	if !ok || fifth <= fourth {
		t.Fatalf("a released lock gave token %d after %d, %v", fifth, fourth, ok)
	}
	b.ok(b.g.Unlock(b.ctx, b.id, fifth))

	// The rows know a token of a clock that was ahead.
	ahead := time.Now().Add(24 * time.Hour).UnixMicro()
	sixth, ok := take(gate.LockParams{Lease: time.Hour, Nonce: "floor", Floor: ahead})
	if !ok || sixth <= ahead {
		t.Fatalf("token %d is not above %d, %v", sixth, ahead, ok)
	}
	b.ok(b.g.Unlock(b.ctx, b.id, sixth))

	var mu sync.Mutex // protects holders
	holders := map[int64]bool{}
	var wg sync.WaitGroup
	for holder := range 8 {
		wg.Go(func() {
			for n := range 20 {
				token, ok, err := b.g.Lock(b.ctx, b.id, gate.LockParams{Lease: time.Hour, Nonce: fmt.Sprint(holder, "/", n)})
				if err != nil {
					t.Error(err)
					return
				}
				if !ok {
					continue
				}
				mu.Lock()
				known := holders[token]
				holders[token] = true
				mu.Unlock()
				if known {
					t.Errorf("token %d was given twice", token)
				}
				if err := b.g.Unlock(b.ctx, b.id, token); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func exerciseSeparateTemplates(t *testing.T, b *bundle) {
	other := *b
	other.id = 420
	b.load(state())
	s := state()
	s.Generation, s.Total = 3, 1
	other.load(s, gate.Holding{UserID: "a", Held: 1, CouponID: 6})
	b.admit(1, "a", "b", "c")
	equal(t, "answers of the other", other.answers("a", "b", "c"), []gate.Answer{{Verdict: gate.AtUserLimit, CouponID: 6}, {Verdict: gate.Admitted, Ticket: 1}, {Verdict: gate.SoldOut}})
	equal(t, "requests of the other", must(other.g.Read(b.ctx, other.id, "c", 10))(t), []gate.Request{{UserID: "b", Ticket: 1, Generation: 3}})
	if token, ok, err := b.g.Lock(b.ctx, b.id, gate.LockParams{Lease: time.Hour, Nonce: "one"}); err != nil || !ok || token == 0 {
		t.Fatal(ok, err)
	}
	if _, ok, err := b.g.Lock(b.ctx, other.id, gate.LockParams{Lease: time.Hour, Nonce: "two"}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	b.ok(b.g.Ping(b.ctx))
}
