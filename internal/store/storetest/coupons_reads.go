package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func exerciseCouponReads(t *testing.T, open Open) {
	run(t, open, "ListsPageByTicketOrByUser", func(b *bundle) {
		b.template(1, limit(5))
		b.template(2, limit(5))
		b.inOrder(1, asks(1, "a", "b", "a", "c", "a")...)
		b.settle(store.CouponSettleParams{TemplateID: 2, Requests: []rules.CouponRequest{{UserID: "a", Ticket: 1, CouponID: 100, Code: "x"}}})
		list := func(p store.CouponListParams) []reward.CouponID {
			b.Helper()
			list := must(b.CouponList(b.ctx, p))(b)
			ids := make([]reward.CouponID, len(list))
			for i, c := range list {
				ids[i] = c.ID
				same(b, "listed", b.coupon(c.ID), c)
			}
			return ids
		}
		after := func(ticket int64) store.CouponPlace { return store.CouponPlace{Ticket: ticket} }
		same(b, "by ticket", []reward.CouponID{1, 2}, list(store.CouponListParams{TemplateID: 1, Limit: 2}))
		same(b, "next", []reward.CouponID{3, 4}, list(store.CouponListParams{TemplateID: 1, After: after(2), Limit: 2}))
		same(b, "rest", []reward.CouponID{5}, list(store.CouponListParams{TemplateID: 1, After: after(4), Limit: 2}))
		same(b, "past the end", []reward.CouponID{}, list(store.CouponListParams{TemplateID: 1, After: after(5), Limit: 2}))
		same(b, "newest first", []reward.CouponID{5, 4}, list(store.CouponListParams{TemplateID: 1, Newest: true, Limit: 2}))
		same(b, "next", []reward.CouponID{3, 2}, list(store.CouponListParams{TemplateID: 1, Newest: true, After: after(4), Limit: 2}))
		same(b, "none asked for", []reward.CouponID{}, list(store.CouponListParams{TemplateID: 1}))
		same(b, "by user", []reward.CouponID{100, 5}, list(store.CouponListParams{UserID: "a", Limit: 2}))
		same(b, "next", []reward.CouponID{3, 1}, list(store.CouponListParams{UserID: "a", Before: 5, Limit: 3}))
		same(b, "nobody", []reward.CouponID{}, list(store.CouponListParams{UserID: "\xff", Limit: 3}))
		_, err := b.CouponList(b.ctx, store.CouponListParams{Limit: 1})
		b.wantCode(err, reward.CodeInvalid)

		b.cancelCoupon(3, 20)
		_, err = b.CouponUse(b.ctx, 2, at(20))
		b.must(err)
		for _, f := range []struct {
			p    store.CouponListParams
			want []reward.CouponID
		}{
			{store.CouponListParams{Status: new(reward.CouponIssued)}, []reward.CouponID{1, 4, 5}},
			{store.CouponListParams{Status: new(reward.CouponCancelled)}, []reward.CouponID{3}},
			{store.CouponListParams{Status: new(reward.CouponUsed), After: after(2)}, []reward.CouponID{}},
			{store.CouponListParams{Status: new(reward.CouponUsed), UserID: "b"}, []reward.CouponID{2}},
			{store.CouponListParams{UserID: "a", Newest: true}, []reward.CouponID{5, 3, 1}},
			{store.CouponListParams{UserID: "a", Newest: true, After: after(3)}, []reward.CouponID{1}},
			{store.CouponListParams{UserID: "a", Status: new(reward.CouponIssued)}, []reward.CouponID{1, 5}},
			{store.CouponListParams{Code: b.coupon(4).Code}, []reward.CouponID{4}},
			{store.CouponListParams{Code: b.coupon(4).Code, UserID: "a"}, []reward.CouponID{}},
			{store.CouponListParams{Code: "x"}, []reward.CouponID{}}, // of another template
		} {
			f.p.TemplateID, f.p.Limit = 1, plenty
			same(b, fmt.Sprintf("%+v", f.p), f.want, list(f.p))
		}
	})
	run(t, open, "CountsByStatus", func(b *bundle) {
		b.template(1, validFor(time.Minute), quantity(6))
		b.template(2, held)
		rejected := ask("r", 7)
		rejected.Reason = reward.ReasonError
		b.inOrder(1, append(asks(1, "a", "b", "c", "d", "e", "a"), rejected, ask("f", 8), ask("g", 9))...)
		b.inOrder(2, couponOf(2, "a", 1), couponOf(2, "b", 2), couponOf(2, "c", 3))
		for id := reward.CouponID(1); id <= 2; id++ {
			must(b.CouponUse(b.ctx, id, at(20)))(b)
		}
		b.cancelCoupon(3, 20)
		expired := must(b.CouponExpire(b.ctx, at(70), 1))(b)
		same(b, "expired", 1, expired)
		b.cancelCoupon(201, 20)
		n := must(b.CouponCounts(b.ctx, 1))(b)
		same(b, "counts", store.CouponCounts{
			Live: 5, Cancelled: 1, Used: 2, Expired: 1, CancelledBy: []store.Canceller{{Name: "ann", Count: 1}}, Rejected: []store.RejectionCount{{Reason: reward.ReasonError, Count: 1}, {Reason: soldOut, Count: 1}, {Reason: userLimit, Count: 1}},
		}, n)
		n = must(b.CouponCounts(b.ctx, 2))(b)
		same(b, "with held ones", store.CouponCounts{Live: 2, Cancelled: 1, Held: 2, CancelledBy: []store.Canceller{{Name: "ann", Count: 1}}}, n)
		must(b.CouponCancel(b.ctx, store.CouponCancelParams{TemplateID: 2, IDs: []reward.CouponID{202, 203}, By: "bob", Now: at(20)}))(b)
		n = must(b.CouponCounts(b.ctx, 2))(b)
		same(b, "by who cancelled", []store.Canceller{{Name: "bob", Count: 2}, {Name: "ann", Count: 1}}, n.CancelledBy)
		_, err := b.CouponCounts(b.ctx, 9)
		b.wantCode(err, reward.CodeTemplateNotFound)
	})
	run(t, open, "PagesHaveEachCouponOfATicket", func(b *bundle) {
		b.template(1)
		b.generation(reward.PathGate)
		list := asks(1, "a", "b")
		for i, user := range []string{"c", "d"} {
			other := ask(user, int64(i+1))
			other.Generation, other.CouponID, other.Code = 1, reward.CouponID(10+i), user
			list = append(list, other)
		}
		b.settle(store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleListed, Requests: list})
		for newest, want := range map[bool][]string{false: {"a", "c", "b", "d"}, true: {"d", "b", "c", "a"}} {
			p := store.CouponListParams{TemplateID: 1, Newest: newest, Limit: 1}
			for _, user := range want {
				page := must(b.CouponList(b.ctx, p))(b)
				same(b, "users", user, page[0].UserID)
				p.After = store.CouponPlace{Ticket: page[0].Ticket, Generation: page[0].Generation}
			}
			same(b, "past the end", 0, len(must(b.CouponList(b.ctx, p))(b)))
		}
	})
	run(t, open, "WhoStillWaits", func(b *bundle) {
		b.template(1, quantity(20), reissue, limit(3))
		b.template(2, quantity(20))
		of := func(user string, generation, ticket int64) rules.CouponRequest {
			id := 100*generation + ticket
			return rules.CouponRequest{UserID: user, Generation: generation, Ticket: ticket, CouponID: reward.CouponID(id), Code: fmt.Sprint(id)}
		}
		rejected := of("r", 2, 2)
		rejected.Reason = reward.ReasonError
		later := of("l", 3, 5)
		later.Reason = reward.ReasonError
		for range 3 {
			b.generation(reward.PathGate)
		}
		b.settle(store.CouponSettleParams{
			TemplateID: 1, Kind: rules.SettleListed, Requests: []rules.CouponRequest{of("a", 1, 1), rejected, of("c", 2, 3), of("x", 3, 4), later},
		})
		b.inOrder(2, ask("other", 1))
		_, err := cancelOne(b.ctx, b.Tables, 304, at(11)) // a cancelled coupon is an answer, too
		b.must(err)
		line := []store.LineTicket{
			{UserID: "a", Ticket: 1},
			{UserID: "a", Ticket: 2}, // settled under an earlier generation; not this one
			{UserID: "r", Ticket: 2},
			{UserID: "c", Ticket: 3},
			{UserID: "c", Ticket: 4},
			{UserID: "b", Ticket: 3}, // another user's ticket was settled
			{UserID: "x", Ticket: 9},
			{UserID: "l", Ticket: 9}, // answered under a later generation
			{UserID: "other", Ticket: 1},
			{UserID: "\xff", Ticket: 1}, // of another template; unknown
		}
		wait := must(b.CouponWaiting(b.ctx, 1, 2, line))(b)
		same(b, "in generation 2", []bool{false, true, false, false, true, true, false, false, true, true}, wait)
		wait = must(b.CouponWaiting(b.ctx, 1, 1, line))(b)
		same(b, "in generation 1", []bool{false, true, false, false, false, true, false, false, true, true}, wait)
		wait = must(b.CouponWaiting(b.ctx, 1, 3, line))(b)
		same(b, "in generation 3", []bool{false, true, false, false, true, true, true, true, true, true}, wait)
		wait = must(b.CouponWaiting(b.ctx, 1, 3, nil))(b)
		same(b, "of none", []bool{}, wait)
	})
	run(t, open, "OutcomesAndHistory", func(b *bundle) {
		b.template(1, reissue)
		b.template(2, quantity(1))
		b.inOrder(1, asks(1, "a", "b", "a")...)
		b.cancelCoupon(1, 15)
		for second, list := range map[int][]rules.CouponRequest{
			30: {{UserID: "b", Ticket: 1, CouponID: 100, Code: "x"}, {UserID: "a", Ticket: 2, CouponID: 101, Code: "y"}},
		} {
			must(b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 2, Requests: list, Now: at(second)}))(b)
		}
		cancelled := reward.IssueOutcome{TemplateID: 1, UserID: "a", Ticket: 1, Coupon: b.coupon(1), At: at(10)}
		limited := reward.IssueOutcome{TemplateID: 1, UserID: "a", Ticket: 3, Reason: userLimit, At: at(10)}
		out := reward.IssueOutcome{TemplateID: 2, UserID: "a", Ticket: 2, Reason: soldOut, At: at(30)}
		issued := reward.IssueOutcome{TemplateID: 1, UserID: "b", Ticket: 2, Coupon: b.coupon(2), At: at(10)}
		same(b, "cancelled", reward.CouponCancelled, cancelled.Coupon.Status)
		got := must(b.IssueOutcomes(b.ctx, 1, []string{"a", "b", "x", "a"}))(b)
		same(b, "outcomes", map[string]reward.IssueOutcome{"a": limited, "b": issued}, got)
		got = must(b.IssueOutcomes(b.ctx, 1, nil))(b)
		same(b, "of no user", map[string]reward.IssueOutcome{}, got)
		same(b, "issued", []bool{true, false}, []bool{issued.Issued(), limited.Issued()})
		history := must(b.IssueHistory(b.ctx, "a", 10))(b)
		same(b, "history", []reward.IssueOutcome{out, limited, cancelled}, history)
		history = must(b.IssueHistory(b.ctx, "a", 2))(b)
		same(b, "the latest", []reward.IssueOutcome{out, limited}, history)
		history = must(b.IssueHistory(b.ctx, "nobody", 2))(b)
		same(b, "nobody", 0, len(history))
		// The user gets another coupon, which is now the latest outcome.
		b.inOrder(1, ask("a", 4))
		same(b, "latest", reward.CouponID(4), b.outcome("a").Coupon.ID)
	})
	run(t, open, "ChangesAreThoseAboveAVersion", func(b *bundle) {
		b.template(1, reissue, quantity(3))
		b.template(2)
		b.inOrder(1, asks(1, "a", "b")...)                                                                                                   // 1
		b.inOrder(1, asks(3, "a", "c", "d")...)                                                                                              // 2
		b.settle(store.CouponSettleParams{TemplateID: 2, Requests: []rules.CouponRequest{{UserID: "z", Ticket: 1, CouponID: 9, Code: "9"}}}) // another template
		_, err := cancelOne(b.ctx, b.Tables, 1, at(15))                                                                                      // 3
		b.must(err)
		_, err = b.TemplateTouch(b.ctx, 1) // 4
		b.must(err)
		settled := func(user string, ticket int64) store.SettledRequest {
			return store.SettledRequest{UserID: user, Ticket: ticket}
		}
		fact := func(user string, held int, id reward.CouponID) store.CouponHolding {
			return store.CouponHolding{UserID: user, Held: held, CouponID: id}
		}
		all := store.CouponChanges{
			Holdings: []store.CouponHolding{fact("a", 0, 0), fact("b", 1, 2), fact("c", 1, 4)},
			Settled:  []store.SettledRequest{settled("a", 1), settled("b", 2), settled("a", 3), settled("c", 4), settled("d", 5)},
		}
		for _, test := range []struct {
			above int64
			limit int
			want  store.CouponChanges
		}{
			{0, 10, all},
			{0, 5, all},
			{0, 4, store.CouponChanges{More: true}},
			{0, 0, store.CouponChanges{More: true}},
			{1, 10, store.CouponChanges{
				Holdings: []store.CouponHolding{fact("a", 0, 0), fact("c", 1, 4)},
				Settled:  []store.SettledRequest{settled("a", 1), settled("a", 3), settled("c", 4), settled("d", 5)},
			}},
			{2, 10, store.CouponChanges{Holdings: []store.CouponHolding{fact("a", 0, 0)}, Settled: []store.SettledRequest{settled("a", 1)}}},
			{3, 0, store.CouponChanges{}},
			{4, 10, store.CouponChanges{}},
			{99, 10, store.CouponChanges{}},
		} {
			test.want.Template = b.stands(1)
			got := must(b.CouponChanges(b.ctx, 1, test.above, test.limit))(b)
			same(b, fmt.Sprintf("above %d, at most %d", test.above, test.limit), test.want, got)
		}
	})
	run(t, open, "ASnapshotComesInPortions", func(b *bundle) {
		const users = store.BatchMax + 500
		b.template(1, quantity(2*users))
		var names []string
		for i := range users {
			names = append(names, fmt.Sprintf("é%05d", i))
		}
		b.inOrder(1, asks(1, names[:store.BatchMax]...)...)
		b.inOrder(1, asks(store.BatchMax+1, names[store.BatchMax:]...)...)
		var order []string
		var got []store.CouponHolding
		b.must(b.CouponSnapshot(b.ctx, 1, func(t reward.CouponTemplate) error {
			same(b, "template", b.stands(1), t) // read while the snapshot is open
			order = append(order, "begin")
			return nil
		}, func(portion []store.CouponHolding) error {
			order = append(order, fmt.Sprint(len(portion)))
			got = append(got, portion...)
			return nil
		}))
		same(b, "order", []string{"begin", "1000", "500"}, order)
		same(b, "facts", sortedFacts(b.holders(1)), got)
		same(b, "everybody", users, len(got))
		full := errors.New("full")
		err := b.CouponSnapshot(b.ctx, 1, func(reward.CouponTemplate) error { return nil }, func([]store.CouponHolding) error { return full })
		if !errors.Is(err, full) {
			b.Fatalf("the error of a portion is %v", err)
		}
		err = b.CouponSnapshot(b.ctx, 1, func(reward.CouponTemplate) error { return full }, func([]store.CouponHolding) error {
			b.Errorf("a portion came after all")
			return nil
		})
		if !errors.Is(err, full) {
			b.Fatalf("the error of the beginning is %v", err)
		}
		b.couponBooks(1)
	})
}
