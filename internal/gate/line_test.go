package gate

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestLine compares a line that is long enough to be compacted with a plain list.
func TestLine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, ticket := newLine(), int64(0)
		var want []Request
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				ticket += rapid.Int64Range(0, 3).Draw(t, "gap")
				for range rapid.IntRange(1, 100).Draw(t, "many") {
					ticket++
					s := Request{UserID: fmt.Sprint("u", ticket), Ticket: ticket}
					l.push(s.UserID, s.Ticket)
					want = append(want, s)
				}
			},
			"insert": func(t *rapid.T) {
				at := rapid.IntRange(0, len(want)).Draw(t, "at")
				if before := append([]Request{{}}, want...)[at].Ticket; at == len(want) || want[at].Ticket > before+1 {
					ticket = max(ticket, before+1)
					s := Request{UserID: fmt.Sprint("u", before+1), Ticket: before + 1}
					l.insert(s.UserID, s.Ticket)
					want = slices.Insert(want, at, s)
				}
			},
			"remove": func(t *rapid.T) {
				every := rapid.IntRange(1, 4).Draw(t, "every")
				kept := want[:0]
				for i, s := range want {
					if i%every == 0 {
						l.remove(l.byUser[s.UserID])
					} else {
						kept = append(kept, s)
					}
				}
				want = kept
			},
			"removeUpTo": func(t *rapid.T) {
				upTo := rapid.Int64Range(0, ticket+1).Draw(t, "upTo")
				before, limit := len(want), rapid.IntRange(0, 150).Draw(t, "limit")
				many := int(l.upTo(upTo))
				if settled := slices.IndexFunc(append(slices.Clone(want), Request{Ticket: upTo + 1}), func(s Request) bool { return s.Ticket > upTo }); many != settled {
					t.Fatalf("%d up to %d, want %d", many, upTo, settled)
				}
				want = want[min(many, limit):]
				if n := l.removeUpTo(upTo, limit); n != before-len(want) {
					t.Fatalf("%d left, want %d", n, before-len(want))
				}
			},
			"": func(t *rapid.T) {
				if l.waiting != len(want) || len(l.byUser) != len(want) {
					t.Fatalf("%d wait, %d users are known, want %d", l.waiting, len(l.byUser), len(want))
				}
				if gaps := len(l.waiters) - len(want); gaps > max(len(want), compactGapsMin) {
					t.Fatalf("%d gaps for %d who wait", gaps, len(want))
				}
				var got []Request
				from, limit := rapid.IntRange(0, len(want)+1).Draw(t, "from"), rapid.IntRange(1, 150).Draw(t, "limit")
				l.page(int64(from), limit, func(w *waiter) { got = append(got, Request{UserID: w.user, Ticket: w.ticket}) })
				page := want[min(from, len(want)):min(from+limit, len(want))]
				if !slices.Equal(got, page) {
					t.Fatalf("%d from %d are %v, want %v", limit, from, got, page)
				}
				first := int64(0)
				if len(want) > 0 {
					first = want[0].Ticket
				}
				if got := l.first(); got != first {
					t.Fatalf("the first ticket is %d, want %d", got, first)
				}
				for i, s := range want {
					if rank := l.rank(l.byUser[s.UserID]); rank != int64(i) {
						t.Fatalf("%s has rank %d, want %d", s.UserID, rank, i)
					}
				}
			},
		})
	})
}

// TestBacklog compares a backlog with a plain list.
func TestBacklog(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, ticket := &backlog{}, int64(0)
		var want []int64
		read := int64(0) // the highest ticket read
		numbers := func(requests []Request) []int64 {
			var out []int64
			for _, r := range requests {
				if r.UserID != fmt.Sprint("u", r.Ticket) || r.Generation != 3 {
					t.Fatalf("request %+v", r)
				}
				out = append(out, r.Ticket)
			}
			return out
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				ticket += rapid.Int64Range(0, 3).Draw(t, "gap")
				for range rapid.IntRange(1, 100).Draw(t, "many") {
					ticket++
					b.add(Request{UserID: fmt.Sprint("u", ticket), Ticket: ticket, Generation: 3})
					want = append(want, ticket)
				}
			},
			"read": func(t *rapid.T) {
				count := rapid.IntRange(1, 100).Draw(t, "count")
				unread := slices.DeleteFunc(slices.Clone(want), func(n int64) bool { return n <= read })
				unread = unread[:min(count, len(unread))]
				if got := numbers(b.read(count)); !slices.Equal(got, unread) {
					t.Fatalf("read %v, want %v", got, unread)
				}
				if len(unread) > 0 {
					read = unread[len(unread)-1]
				}
			},
			"ack": func(t *rapid.T) {
				tickets := rapid.SliceOfN(rapid.Int64Range(0, ticket+1), 0, 300).Draw(t, "tickets")
				before := len(want)
				want = slices.DeleteFunc(want, func(n int64) bool { return slices.Contains(tickets, n) })
				if n := b.ack(3, tickets); n != before-len(want) {
					t.Fatalf("%d acknowledged, want %d", n, before-len(want))
				}
			},
			"": func(t *rapid.T) {
				if b.length != len(want) || len(b.entries)-b.length > max(b.length, compactGapsMin) {
					t.Fatalf("length %d in %d entries, want %d", b.length, len(b.entries), len(want))
				}
				after, count := rapid.Int64Range(0, ticket+1).Draw(t, "after"), rapid.IntRange(1, 100).Draw(t, "count")
				pending := slices.DeleteFunc(slices.Clone(want), func(n int64) bool { return n > read || n <= after })
				pending = pending[:min(count, len(pending))]
				if got := numbers(b.pending(after, count)); !slices.Equal(got, pending) {
					t.Fatalf("pending above %d are %v, want %v", after, got, pending)
				}
			},
		})
	})
}
