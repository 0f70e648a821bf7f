package gatetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// placesState returns the state of a gate with 10 coupons, of which 2 are live, and
// with 4 granted places, of which 1 is used.
func placesState() gate.State {
	s := state()
	s.Total, s.Live, s.Granted, s.Used, s.Grants = 10, 2, 4, 1, 3
	return s
}

// exercisePlaces checks that a gate gives tickets only for granted places.
func exercisePlaces(t *testing.T, b *bundle) {
	noPlace, soldOut := gate.Answer{Verdict: gate.NoPlace}, gate.Answer{Verdict: gate.SoldOut}
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
		b.id++
		s := placesState()
		s.Mode = mode
		b.load(s)
		equal(t, "answers", b.answers("a", "b", "a", "c", "d", "b"), []gate.Answer{
			{Verdict: gate.Admitted, Ticket: 1},
			{Verdict: gate.Admitted, Ticket: 2, Rank: 1},
			{Verdict: gate.InLine, Ticket: 1},
			{Verdict: gate.Admitted, Ticket: 3, Rank: 2},
			noPlace,
			{Verdict: gate.InLine, Ticket: 2, Rank: 1},
		})
		result := fixture.Must(b.g.Admit(b.ctx, b.id, []string{"d"}, false))(t)
		equal(t, "check", result.Answers[0], noPlace)
		equal(t, "places", []int64{result.Granted, result.Used, result.Grants, result.Waiting}, []int64{4, 1, 3, 3})
		h := b.header()
		equal(t, "header", []int64{h.Granted, h.Used, h.Grants, h.Stock(), h.PublishedStock}, []int64{4, 1, 3, 5, 5})

		// A grant has a new number.
		s.Version, s.Granted, s.Grants = 2, 9, 4
		b.apply(1, s)
		equal(t, "after a grant", b.answers("d", "e", "f", "g", "h", "i")[4:], []gate.Answer{{Verdict: gate.Admitted, Ticket: 8, Rank: 7}, soldOut})
		// Places without a new number are those of before a shrink; used always counts.
		s.Version, s.Granted, s.Used, s.Settled, s.Live, s.Total = 3, 99, 2, 1, 3, 50
		done := []gate.Request{{UserID: "a", Ticket: 1}}
		for _, repair := range []bool{false, true} {
			fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: 2, State: s, Done: done, Repair: repair}))(t)
			if h := b.header(); h.Granted != 9 || h.Used != 2 || h.Grants != 4 || h.Waiting != 7 {
				t.Fatalf("header %+v", h)
			}
		}
		equal(t, "no place is left", b.answers("i")[0], noPlace)
		s.Generation, s.Granted, s.Used, s.Grants, s.Base = 3, 20, 5, 1, 2
		b.load(s) // the rows decide
		if h := b.header(); h.Granted != 20 || h.Used != 5 || h.Grants != 1 {
			t.Fatalf("header %+v", h)
		}
	}
	b.id++
	s := placesState()
	s.Mode = reward.ModeSync
	s.Granted, s.Used = 1, 1
	b.load(s)
	result := fixture.Must(b.g.Admit(b.ctx, b.id, []string{"a"}, false))(t)
	equal(t, "SYNC needs no places", result.Answers[0], gate.Answer{Verdict: gate.Admitted})
	equal(t, "SYNC gives no tickets", b.answers("a")[0], gate.Answer{Verdict: gate.NoTickets})
	equal(t, "line", b.ranks("a"), []int64{-1})
	s.Live = s.Total
	s.Version++
	b.apply(1, s)
	equal(t, "SYNC", b.answers("a")[0], soldOut)
}

// exerciseShrink checks that a shrink takes the places that are not given, and no more.
func exerciseShrink(t *testing.T, b *bundle) {
	b.load(placesState())
	shrink := func(granted, grants int64) {
		t.Helper()
		version := b.header().Version
		equal(t, "shrink", fixture.Must(b.g.Shrink(b.ctx, b.id))(t), gate.ShrinkResult{Generation: 1, Version: version, Granted: granted, Grants: grants})
		if h := b.header(); h.Granted != granted || h.Grants != grants || h.Version != version {
			t.Fatalf("header %+v", h)
		}
	}
	b.admit(1, "a", "b")
	shrink(3, 3)
	shrink(3, 3)
	equal(t, "after a shrink", b.answers("a", "c"), []gate.Answer{{Verdict: gate.InLine, Ticket: 1}, {Verdict: gate.NoPlace}})
	s := placesState()
	s.Version = 2 // a late apply has the number of before
	b.apply(1, s)
	equal(t, "after a late apply", b.answers("c")[0], gate.Answer{Verdict: gate.NoPlace})
	s.Version, s.Grants = 3, 4 // a grant of none tells the gate its places again
	b.apply(2, s)
	b.admit(3, "c")
	// It never raises the places: after Redis lost data a line may be longer.
	s.Version, s.Granted, s.Grants = 4, 2, 5
	b.apply(3, s)
	shrink(2, 5)
}

// exercisePause checks that a pause of grants is told with each answer, changes none,
// and ends by itself or when it is asked to.
func exercisePause(t *testing.T, b *bundle) {
	b.load(placesState())
	paused := func(want bool) {
		t.Helper()
		if got := fixture.Must(b.g.Admit(b.ctx, b.id, []string{"a"}, true))(t); got.Paused != want || got.Answers[0].Ticket != 1 {
			t.Fatalf("%+v, want paused %v", got, want)
		}
	}
	paused(false)
	fixture.OK(b, b.g.PauseGrants(b.ctx, b.id, time.Hour))
	paused(true)
	s := placesState()
	s.Version, s.Granted, s.Grants = 2, 9, 4 // a grant that was on its way
	b.apply(1, s)
	paused(true)
	fixture.OK(b, b.g.PauseGrants(b.ctx, b.id, 0))
	fixture.OK(b, b.g.PauseGrants(b.ctx, b.id, 0))
	paused(false)
	fixture.OK(b, b.g.PauseGrants(b.ctx, b.id, 50*time.Millisecond))
	fixture.Until(b, "the pause ends", func() bool { return !fixture.Must(b.g.Admit(b.ctx, b.id, []string{"a"}, true))(t).Paused })
}

func exerciseRetire(t *testing.T, b *bundle) {
	s := state()
	s.Mode = reward.ModeKafka
	b.load(s, gate.Holding{UserID: "a", Held: 1, CouponID: 1})
	retire := func(idle time.Duration, want bool) {
		t.Helper()
		if got := fixture.Must(b.g.Retire(b.ctx, b.id, idle))(t); got != want {
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
	fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: 1, State: s, Done: []gate.Request{{UserID: "u", Ticket: 1}}}))(t)
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
	l := b.begin()
	fixture.OK(b, b.g.LoadHoldings(b.ctx, l.Load, []gate.Holding{{UserID: "a", Held: 1, CouponID: 1}}))
	retire(0, true)
	s.Generation = 3
	params := gate.SwapParams{Load: l.Load, State: s, Holdings: 1}
	equal(t, "swap", fixture.Must(b.g.LoadSwap(b.ctx, params))(t), gate.SwapResult{Done: true})
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
		fixture.OK(b, err)
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
	fixture.OK(b, err)
	s.Generation = 2
	b.load(s, gate.Holding{UserID: "only", Held: 1, CouponID: 1})
	page, end, _, err := b.g.Holdings(b.ctx, b.id, next)
	fixture.OK(b, err)
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
	equal(t, "holdings", fixture.Must(b.g.HoldingsOf(b.ctx, b.id, []string{"b", "nobody", "a", "b"}))(t), gate.HoldingsOfResult{
		Holdings:   []gate.Holding{{UserID: "b", Held: 2}, {UserID: "nobody"}, {UserID: "a", Held: 1, CouponID: 7}, {UserID: "b", Held: 2}},
		Generation: s.Generation, Version: s.Version, Holders: 2,
	})
	from := s.Version
	s.Version++
	b.apply(from, s, gate.Holding{UserID: "a"})
	equal(t, "of nobody", fixture.Must(b.g.HoldingsOf(b.ctx, b.id, nil))(t), gate.HoldingsOfResult{
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
		fixture.OK(b, err)
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
	fixture.OK(b, b.g.Unlock(b.ctx, b.id, first-1))
	if _, ok := lock(time.Hour); ok {
		t.Fatal("an Unlock with another token released the lock")
	}
	fixture.OK(b, b.g.Unlock(b.ctx, b.id, first))
	second, ok := lock(20 * time.Millisecond)
	if !ok || second <= first {
		t.Fatalf("token %d after %d, %v", second, first, ok)
	}
	var third int64
	fixture.Until(b, "the lease expires", func() bool { third, ok = lock(time.Hour); return ok })
	if third <= second {
		t.Fatalf("token %d after %d", third, second)
	}
	fixture.OK(b, b.g.Unlock(b.ctx, b.id, second)) // late
	if _, ok := lock(time.Hour); ok {
		t.Fatal("a late Unlock released the lock of another holder")
	}
	fixture.OK(b, b.g.Unlock(b.ctx, b.id, third))
	equal(t, "a lock creates no gate", b.header(), gate.Header{})

	// The reply of a take is lost, and the caller repeats it. A repeat may come too late
	// for a short lease.
	mine, fourth := gate.LockParams{Nonce: "mine"}, int64(0)
	for short := 20 * time.Millisecond; ; short *= 2 {
		mine.Lease = short
		fourth, _ = take(mine)
		// The lock of another template lasts longer than that first lease.
		if _, ok, err := b.g.Lock(b.ctx, b.id+1, mine); err != nil || !ok {
			t.Fatal(ok, err)
		}
		mine.Lease = time.Hour
		token, ok := take(mine)
		if ok && token == fourth {
			break
		}
		if short > time.Minute {
			t.Fatalf("the repeat got token %d, %v, not %d", token, ok, fourth)
		}
		fixture.OK(b, b.g.Unlock(b.ctx, b.id, token))
		fixture.Until(b, "the other lease expires", func() bool {
			token, ok, err := b.g.Lock(b.ctx, b.id+1, gate.LockParams{Lease: time.Hour, Nonce: "other"})
			fixture.OK(b, err)
			return ok && b.g.Unlock(b.ctx, b.id+1, token) == nil
		})
	}
	fixture.Until(b, "the first lease is over", func() bool {
		_, ok, err := b.g.Lock(b.ctx, b.id+1, gate.LockParams{Lease: time.Hour, Nonce: "other"})
		fixture.OK(b, err)
		return ok
	})
	if _, ok := lock(time.Hour); ok {
		t.Fatal("the repeat did not extend the lease")
	}
	fixture.OK(b, b.g.Unlock(b.ctx, b.id, fourth))
	fifth, ok := take(mine)
	if !ok || fifth <= fourth {
		t.Fatalf("a released lock gave token %d after %d, %v", fifth, fourth, ok)
	}
	fixture.OK(b, b.g.Unlock(b.ctx, b.id, fifth))

	// The rows know a token of a clock that was ahead.
	ahead := time.Now().Add(24 * time.Hour).UnixMicro()
	sixth, ok := take(gate.LockParams{Lease: time.Hour, Nonce: "floor", Floor: ahead})
	if !ok || sixth <= ahead {
		t.Fatalf("token %d is not above %d, %v", sixth, ahead, ok)
	}
	fixture.OK(b, b.g.Unlock(b.ctx, b.id, sixth))
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
	equal(t, "requests of the other", fixture.Must(other.g.Read(b.ctx, other.id, "c", 10))(t).Requests, []gate.Request{{UserID: "b", Ticket: 1, Generation: 3}})
	if token, ok, err := b.g.Lock(b.ctx, b.id, gate.LockParams{Lease: time.Hour, Nonce: "one"}); err != nil || !ok || token == 0 {
		t.Fatal(ok, err)
	}
	if _, ok, err := b.g.Lock(b.ctx, other.id, gate.LockParams{Lease: time.Hour, Nonce: "two"}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	fixture.OK(b, b.g.Ping(b.ctx))
}

// exerciseRemove removes a gate with users in line, while a load is in progress and the lock is
// held. Gates of other templates stay.
func exerciseRemove(t *testing.T, b *bundle) {
	other := b.id
	b.load(placesState())
	b.id++
	b.load(placesState())
	b.answers("a", "b")
	load := b.begin()
	if _, ok, err := b.g.Lock(b.ctx, b.id, gate.LockParams{Lease: time.Minute, Nonce: "n"}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	for range 2 {
		fixture.OK(b, b.g.Remove(b.ctx, b.id))
		if h := b.header(); h.Exists {
			t.Fatalf("a removed gate has the header %+v", h)
		}
		if err := b.g.LoadClose(b.ctx, load.Load); err == nil {
			t.Fatal("the load of a removed gate continues")
		}
	}
	if _, ok, err := b.g.Lock(b.ctx, b.id, gate.LockParams{Lease: time.Minute, Nonce: "m"}); err != nil || !ok {
		t.Fatal("the lock is still held", err)
	}
	if b.id = other; !b.header().Loaded {
		t.Fatal("the gate of another template is removed")
	}
}
