package gatetest

import (
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func (b *bundle) read(consumer string, count int) []int64 {
	b.Helper()
	return tickets(fixture.Must(b.g.Read(b.ctx, b.id, consumer, count))(b).Requests)
}

func (b *bundle) claim(after int64, count int) []int64 {
	b.Helper()
	return tickets(fixture.Must(b.g.Claim(b.ctx, b.id, "claimer", after, count))(b).Requests)
}

func (b *bundle) ack(generation int64, tickets ...int64) int {
	b.Helper()
	return fixture.Must(b.g.Ack(b.ctx, b.id, generation, tickets))(b)
}

// run returns the numbers from first to last.
func run(first, last int64) []int64 {
	out := []int64{}
	for n := first; n <= last; n++ {
		out = append(out, n)
	}
	return out
}

func exerciseRead(t *testing.T, b *bundle) {
	s := state()
	s.Total = 100
	b.load(s)
	equal(t, "read of nothing", b.read("a", 10), []int64{})
	b.admit(1, names("u", 10)...)
	equal(t, "read of none", b.read("a", 0), []int64{})
	equal(t, "read", b.read("a", 4), run(1, 4))
	equal(t, "read by another", b.read("b", 100), run(5, 10))
	equal(t, "read again", b.read("a", 100), []int64{})
	b.admit(11, "x")
	equal(t, "requests", fixture.Must(b.g.Read(b.ctx, b.id, "a", 1))(t), gate.Delivery{Generation: 1, Requests: []gate.Request{{UserID: "x", Ticket: 11, Generation: 1}}})
	if h := b.header(); h.Backlog != 11 {
		t.Fatalf("Read must not acknowledge: %+v", h)
	}
}

func exerciseClaim(t *testing.T, b *bundle) {
	s := state()
	s.Total = 1000
	b.load(s)
	equal(t, "claim of nothing", b.claim(0, 10), []int64{})
	for first := int64(1); first <= 300; first += 50 {
		b.admit(first, names(string(rune('a'+first/50))+"-", 50)...)
	}
	b.read("one", 100)
	b.read("two", 150)
	equal(t, "claim", b.claim(0, 60), run(1, 60))
	equal(t, "claim the rest", b.claim(60, 1000), run(61, 250))
	equal(t, "claim at the end", b.claim(250, 10), []int64{})
	equal(t, "claim of none", b.claim(0, 0), []int64{})
	equal(t, "claim what was claimed", b.claim(0, 1000), run(1, 250))
	b.ack(1, append(run(3, 200), 260)...)
	equal(t, "claim what is left", b.claim(0, 1000), append(run(1, 2), run(201, 250)...))
	equal(t, "claim above", b.claim(1, 3), []int64{2, 201, 202})
	equal(t, "requests not delivered before are read", b.read("one", 1000), append(run(251, 259), run(261, 300)...))
	equal(t, "requests", fixture.Must(b.g.Claim(b.ctx, b.id, "one", 299, 9))(t).Requests, []gate.Request{{UserID: "f-50", Ticket: 300, Generation: 1}})
}

func exerciseAck(t *testing.T, b *bundle) {
	s := state()
	s.Total, s.Generation = 100, 5
	b.load(s)
	b.admit(1, names("u", 6)...)
	b.read("a", 2)
	// One is delivered, one is not, one is unknown, and one occurs twice.
	if n := b.ack(5, 1, 4, 99, 4); n != 2 {
		t.Fatalf("%d acknowledged, want 2", n)
	}
	if n := b.ack(5, 1, 4); n != 0 {
		t.Fatalf("%d acknowledged once more", n)
	}
	for _, generation := range []int64{4, 6} {
		if n := b.ack(generation, 2); n != 0 {
			t.Fatalf("%d acknowledged of generation %d", n, generation)
		}
		_, err := b.g.Unacked(b.ctx, b.id, generation, []int64{2})
		b.wantNotLoaded("Unacked of another generation", err)
	}
	if n := b.ack(5); n != 0 {
		t.Fatalf("%d acknowledged of none", n)
	}
	equal(t, "unacked", fixture.Must(b.g.Unacked(b.ctx, b.id, 5, []int64{1, 2, 3, 4, 5, 99}))(t), []bool{false, true, true, false, true, false})
	equal(t, "unacked of none", fixture.Must(b.g.Unacked(b.ctx, b.id, 5, nil))(t), []bool{})
	equal(t, "read", b.read("a", 10), []int64{3, 5, 6})
	if h := b.header(); h.Backlog != 4 || h.Waiting != 6 {
		t.Fatalf("Ack must not change the line: %+v", h)
	}
	b.ack(5, run(1, 6)...)
	equal(t, "claim of a drained stream", b.claim(0, 10), []int64{})
	b.admit(7, "x")
	equal(t, "a drained stream continues", b.read("a", 10), []int64{7})
}

func exerciseManyTickets(t *testing.T, b *bundle) {
	const many = 2500
	s := state()
	s.Total = many
	b.load(s)
	for first := 0; first < many; first += 50 {
		b.admit(int64(first+1), names(string(rune('A'+first/50))+"-", 50)...)
	}
	all := run(1, many)
	var read []int64
	for len(read) < many {
		page := b.read("a", many)
		if len(page) == 0 || len(page) > gate.ReadMax {
			t.Fatalf("read %d at once", len(page))
		}
		read = append(read, page...)
	}
	equal(t, "read", read, all)
	equal(t, "unacked", slices.Contains(fixture.Must(b.g.Unacked(b.ctx, b.id, 1, all))(t), false), false)
	if n := b.ack(1, append(all, all...)...); n != many {
		t.Fatalf("%d acknowledged", n)
	}
	equal(t, "unacked", slices.Contains(fixture.Must(b.g.Unacked(b.ctx, b.id, 1, all))(t), true), false)
}

func exerciseHints(t *testing.T, b *bundle) {
	s := state()
	s.Total, s.Mode = 100, reward.ModeKafka
	b.load(s)
	b.wantHint(gate.Hint{TemplateID: b.id, Kind: gate.HintOutcomes})
	b.admit(1, "a", "b")
	b.wantHint(gate.Hint{TemplateID: b.id, Kind: gate.HintRequests})
	s.Version = 2
	b.apply(1, s)
	b.wantHint(gate.Hint{TemplateID: b.id, Kind: gate.HintOutcomes})
	b.ack(1, 1, 2)
	b.wantHint(gate.Hint{TemplateID: b.id, Kind: gate.HintOutcomes})
	b.admit(3, "c")
	b.wantHint(gate.Hint{TemplateID: b.id, Kind: gate.HintRequests})
	s.Generation = 2
	b.load(s)
	b.wantHint(gate.Hint{TemplateID: b.id, Kind: gate.HintRequests})
}

// wantHint waits for a hint.
func (b *bundle) wantHint(want gate.Hint) {
	b.Helper()
	timeout := time.NewTimer(fixture.Patience)
	defer timeout.Stop()
	for {
		select {
		case got := <-b.g.Hints():
			if got == want {
				return
			}
		case <-timeout.C:
			b.Fatalf("no hint %+v", want)
		}
	}
}
