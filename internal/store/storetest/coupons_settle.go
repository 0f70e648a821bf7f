package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	soldOut   = reward.ReasonSoldOut
	userLimit = reward.ReasonUserLimit
)

func exerciseSettleInOrder(t *testing.T, open Open) {
	run(t, open, "IssuesFromTheFrontAndStopsAtAGap", func(b *bundle) {
		b.template(1, validFor(time.Hour))
		res := b.inOrder(1, ask("c", 3), ask("a", 1), ask("e", 5), ask("b", 2))
		same(b, "told", []string{"issued", "issued", "gap", "issued"}, told(res))
		same(b, "settled", int64(3), res.Template.Settled)
		same(b, "live", int64(3), res.Template.Live)
		same(b, "coupon", reward.Coupon{
			ID: 3, Code: "code3", TemplateID: 1, UserID: "c", Ticket: 3, IssuedAt: at(10), ExpiresAt: at(10).Add(time.Hour),
		}, res.Results[0].Coupon)
		same(b, "facts", []store.CouponHolding{{UserID: "a", Held: 1, CouponID: 1}, {UserID: "b", Held: 1, CouponID: 2}, {UserID: "c", Held: 1, CouponID: 3}}, res.Holdings)
		res = b.inOrder(1, ask("e", 5), ask("d", 4), ask("a", 1), ask("g", 7))
		same(b, "told", []string{"issued", "issued", "before", "gap"}, told(res))
		same(b, "settled", int64(5), res.Template.Settled)
		same(b, "all gap", []string{"gap", "gap"}, told(b.inOrder(1, ask("g", 7), ask("h", 8))))
		same(b, "all before", []string{"before", "before"}, told(b.inOrder(1, ask("a", 1), ask("x", 5))))
		same(b, "nothing", []string{}, told(b.inOrder(1)))
	})
	// Package rules tests what refuses a batch. coupons_meanwhile.go changes each column
	// that it looks at.
	run(t, open, "ARefusedBatchStoresNothing", func(b *bundle) {
		b.template(1)
		b.own(1)
		b.generation(reward.PathGate)
		p := store.CouponSettleParams{
			TemplateID: 1, Kind: rules.SettleInOrder, Generation: 1, Requests: []rules.CouponRequest{ask("a", 1), ask("b", 2)},
			Offsets: []store.Offset{{Topic: "t", Next: 5}},
		}
		p.Requests[1].Generation = 1 // the first one is an entry that a load has kept
		before := b.stands(1)
		same(b, "refused", rules.RefusedEpoch, b.settle(p).Refused)
		same(b, "nothing happened", before, b.stands(1))
		same(b, "no offsets", map[int32]int64{}, b.offsets())
		p.Epoch = 1
		same(b, "accepted", []string{"issued", "issued"}, told(b.settle(p)))
		same(b, "generation of a kept request", int64(0), b.coupon(1).Generation)
		same(b, "generation of a coupon", int64(1), b.coupon(2).Generation)
		same(b, "offsets", map[int32]int64{0: 5}, b.offsets())
	})
	run(t, open, "HostileTextIsStoredOrRefused", func(b *bundle) {
		b.template(1)
		hostile := "'; DROP TABLE coupons; --\U0001F4A9\u2028%_\\"
		res := b.inOrder(1, rules.CouponRequest{UserID: hostile, Ticket: 1, CouponID: 1, Code: hostile})
		same(b, "user", hostile, res.Results[0].Coupon.UserID)
		got := must(b.IssueOutcomes(b.ctx, 1, []string{hostile, "\xff", "a\x00"}))(b)
		same(b, "outcomes", 1, len(got))
		for _, bad := range []rules.CouponRequest{
			{UserID: "\xff", Ticket: 2, CouponID: 2, Code: "2"},
			{UserID: "a\x00", Ticket: 2, CouponID: 2, Code: "2"},
			{UserID: "a", Ticket: 2, CouponID: 2, Code: "\x00"},
			{UserID: "a", Ticket: 2, Code: "2"},
			{UserID: "a", Ticket: 2, CouponID: 2},
		} {
			_, err := b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 1, Requests: []rules.CouponRequest{bad}, Now: epoch})
			b.wantCode(err, reward.CodeInvalid)
		}
		// A request with a reason cannot block the waiting line.
		res = b.inOrder(1, rules.CouponRequest{UserID: "a\x00\xff", Ticket: 2, Code: "\xff", Reason: reward.ReasonError},
			rules.CouponRequest{UserID: "b", Ticket: 3, Reason: "\x00"})
		same(b, "told", []string{reward.ReasonError, reward.ReasonError}, []string{res.Results[0].Reason, b.outcome("b").Reason})
		same(b, "settled", int64(3), res.Template.Settled)
		_, err := b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleListed, Requests: []rules.CouponRequest{ask("z", 0)}, Now: epoch})
		b.wantCode(err, reward.CodeInvalid)
		_, err = b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 1, Requests: make([]rules.CouponRequest, store.BatchMax+1), Now: epoch})
		b.wantCode(err, reward.CodeInvalid)
	})
	run(t, open, "AnIdOrACodeInUseFailsTheWhole", func(b *bundle) {
		b.template(1)
		b.template(2)
		b.inOrder(1, ask("a", 1))
		b.inOrder(2, rules.CouponRequest{UserID: "a", Ticket: 1, CouponID: 5, Code: "used"})
		before := b.stands(2)
		for _, bad := range []rules.CouponRequest{
			{UserID: "c", Ticket: 3, CouponID: 1, Code: "new"},
			{UserID: "c", Ticket: 3, CouponID: 9, Code: "used"},
			{UserID: "c", Ticket: 3, CouponID: 8, Code: "new"},
			{UserID: "c", Ticket: 3, CouponID: 9, Code: "first"},
		} {
			_, err := b.CouponSettle(b.ctx, store.CouponSettleParams{
				TemplateID: 2, Now: epoch, Offsets: []store.Offset{{Topic: "t", Next: 1}},
				Requests: []rules.CouponRequest{{UserID: "b", Ticket: 2, CouponID: 8, Code: "first"}, bad},
			})
			b.wantCode(err, reward.CodeConflict)
		}
		same(b, "nothing happened", before, b.stands(2))
		same(b, "no offsets", map[int32]int64{}, b.offsets())
		refused := ask("a", 2)
		refused.CouponID, refused.Code = 1, "code1"
		same(b, "of no coupon it does not matter", []string{userLimit}, told(b.inOrder(1, refused)))
	})
	run(t, open, "AFullBatchOfManyUsers", func(b *bundle) {
		b.template(1, quantity(store.BatchMax-1))
		users := make([]string, store.BatchMax)
		for i := range users {
			users[i] = fmt.Sprintf("user-%04d", i)
		}
		res := b.inOrder(1, asks(1, users...)...)
		same(b, "live", int64(store.BatchMax-1), res.Template.Live)
		same(b, "the last one", soldOut, res.Results[store.BatchMax-1].Reason)
	})
}

// own assigns a template to an issuer.
func (b *bundle) own(id reward.TemplateID) {
	b.Helper()
	must(b.TemplateAssign(b.ctx, []reward.TemplateID{id}, "somebody"))(b)
}

// generation raises the generation of template 1.
func (b *bundle) generation(path reward.IssuePath) {
	b.Helper()
	_, raised, err := b.TemplateNewGeneration(b.ctx, store.TemplateNewGenerationParams{ID: 1, From: -1, Path: path})
	b.must(err)
	same(b, "raised", true, raised)
}

// offsets are those of topic t.
func (b *bundle) offsets() map[int32]int64 {
	b.Helper()
	return must(b.OffsetsGet(b.ctx, "t"))(b)
}

// outcome returns the latest outcome of a user at template 1.
func (b *bundle) outcome(user string) reward.IssueOutcome {
	b.Helper()
	got := must(b.IssueOutcomes(b.ctx, 1, []string{user}))(b)
	return got[user]
}

func exerciseSettleListed(t *testing.T, open Open) {
	listed := func(b *bundle, list ...rules.CouponRequest) store.CouponSettleResult {
		b.Helper()
		return b.settle(store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleListed, Requests: list})
	}
	run(t, open, "ATicketThatNoGateGaveIsNotSettled", func(b *bundle) {
		b.template(1, quantity(4))
		settle := func(next int64, list ...rules.CouponRequest) store.CouponSettleResult {
			b.Helper()
			return b.settle(store.CouponSettleParams{
				TemplateID: 1, Kind: rules.SettleListed, Requests: list, Offsets: []store.Offset{{Topic: "t", Partition: 1, Next: next}},
			})
		}
		forged := ask("x", 5)
		forged.Ticket = 1<<63 - 1
		res := settle(5, ask("c", 3), forged, ask("a", 1), ask("e", 5))
		same(b, "told", []string{"issued", "never given", "issued", "never given"}, told(res))
		same(b, "settled", int64(3), res.Template.Settled)
		same(b, "no offsets", map[int32]int64{}, b.offsets())
		res = settle(6, ask("c", 3), ask("e", 5), ask("g", 7))
		same(b, "told", []string{"before", "issued", "issued"}, told(res))
		same(b, "settled", int64(7), res.Template.Settled)
		same(b, "offsets", map[int32]int64{1: 6}, b.offsets())
	})
	run(t, open, "ACouponOfALaterGenerationIsTheAnswer", func(b *bundle) {
		b.template(1, limit(2))
		b.generation(reward.PathDatabase)
		through := ask("a", 1)
		through.CouponID, through.Code = 50, "50"
		b.settle(store.CouponSettleParams{
			TemplateID: 1, Kind: rules.SettleDirect, Generation: 1, Path: reward.PathDatabase, Requests: []rules.CouponRequest{through},
		})
		res := listed(b, ask("a", 1), ask("b", 2))
		same(b, "told", []string{"before", "issued"}, told(res))
		same(b, "live", int64(2), res.Template.Live)
		b.cancelCoupon(50, 1)
		same(b, "although it was cancelled", []string{"before"}, told(listed(b, ask("a", 1))))
		same(b, "of the same generation", []string{"issued"}, told(listed(b, ask("b", 3))))
	})
	run(t, open, "OffsetsAreKeptWhateverBecomesOfTheAsks", func(b *bundle) {
		b.template(1)
		settle := func(list []rules.CouponRequest, next ...int64) {
			b.Helper()
			p := store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleListed, Requests: list}
			for _, n := range next {
				p.Offsets = append(p.Offsets, store.Offset{Topic: "t", Partition: 1, Next: n})
			}
			b.settle(p)
		}
		settle([]rules.CouponRequest{ask("a", 1)}, 5)
		settle([]rules.CouponRequest{ask("a", 1)}, 6, 9, 7)
		same(b, "the highest", map[int32]int64{1: 9}, b.offsets())
		settle(nil, 12)
		same(b, "without requests", map[int32]int64{1: 12}, b.offsets())
		settle([]rules.CouponRequest{ask("b", 2)}, 3)
		same(b, "never back", map[int32]int64{1: 12}, b.offsets())
	})
}

func exerciseSettleDirect(t *testing.T, open Open) {
	// direct settles requests without tickets. Coupon IDs begin at first.
	direct := func(b *bundle, first int64, users ...string) store.CouponSettleResult {
		b.Helper()
		list := asks(first, users...)
		for i := range list {
			list[i].Ticket = 0
		}
		t := b.stands(1)
		return b.settle(store.CouponSettleParams{
			TemplateID: 1, Kind: rules.SettleDirect, Path: t.Path, Generation: t.Generation, Requests: list,
		})
	}
	run(t, open, "GivesTicketsToThoseWhoGetOne", func(b *bundle) {
		b.template(1, quantity(3))
		b.generation(reward.PathDatabase)
		res := direct(b, 1, "b", "b", "a")
		same(b, "told", []string{"issued", userLimit, "issued"}, told(res))
		same(b, "what they have", res.Results[0].Coupon, res.Results[1].Coupon)
		same(b, "tickets", []int64{1, 2}, []int64{res.Results[0].Coupon.Ticket, res.Results[2].Coupon.Ticket})
		same(b, "generation", int64(1), res.Results[2].Coupon.Generation)
		same(b, "settled", int64(2), res.Template.Settled)
		res = direct(b, 10, "a", "c", "d")
		same(b, "told", []string{userLimit, "issued", soldOut}, told(res))
		same(b, "what they have", b.coupon(3), res.Results[0].Coupon)
		same(b, "nothing else", reward.Coupon{}, res.Results[2].Coupon)
		res = direct(b, 20, "d", "a")
		same(b, "nothing is settled", []string{soldOut, userLimit}, told(res))
		same(b, "settled", int64(3), res.Template.Settled)
		got := must(b.IssueOutcomes(b.ctx, 1, []string{"d"}))(b)
		same(b, "a refusal is no row", 0, len(got))
	})
	run(t, open, "AUsedOneIsWhatHeHas", func(b *bundle) {
		b.template(1)
		direct(b, 1, "a")
		must(b.CouponUse(b.ctx, 1, at(11)))(b)
		same(b, "coupon", b.coupon(1), direct(b, 2, "a").Results[0].Coupon)
	})
	run(t, open, "AFenceIsKeptWhateverIsIssued", func(b *bundle) {
		b.template(1)
		b.generation(reward.PathDatabase)
		settle := func(fence int64, user string) store.CouponSettleResult {
			b.Helper()
			id := b.stands(1).IssuedTotal + 1
			return b.settle(store.CouponSettleParams{
				TemplateID: 1, Kind: rules.SettleDirect, Path: reward.PathDatabase, Generation: 1, Fence: fence,
				Requests: []rules.CouponRequest{{UserID: user, CouponID: reward.CouponID(id), Code: fmt.Sprint(id)}},
				Offsets:  []store.Offset{{Topic: "t", Next: fence + 1}},
			})
		}
		same(b, "first", []string{"issued"}, told(settle(7, "b")))
		same(b, "the same fence", rules.RefusedFence, settle(7, "c").Refused)
		res := settle(8, "b")
		same(b, "nothing issued", []string{userLimit}, told(res))
		same(b, "kept all the same", int64(8), res.Template.Fence)
		same(b, "without a fence", []string{"issued"}, told(settle(0, "d")))
		same(b, "not lowered", int64(8), b.stands(1).Fence)
		same(b, "offsets", map[int32]int64{0: 9}, b.offsets())
	})
}

func exercisePromises(t *testing.T, open Open) {
	grant := func(b *bundle, p store.TemplateGrantParams, done bool) reward.CouponTemplate {
		b.Helper()
		p.ID = 1
		got, changed, err := b.TemplateGrant(b.ctx, p)
		b.must(err)
		same(b, "granted", done, changed)
		return got
	}
	places := func(t reward.CouponTemplate) []int64 { return []int64{t.Granted, t.Used, t.Grants, t.Version} }
	run(t, open, "AGrantSetsPlacesAside", func(b *bundle) {
		b.template(1, quantity(5), reissue)
		same(b, "granted", []int64{3, 0, 1, 1}, places(grant(b, store.TemplateGrantParams{Lacking: 3}, true)))
		same(b, "an older grant", []int64{3, 0, 1, 1}, places(grant(b, store.TemplateGrantParams{Granted: 3, Lacking: 1}, false)))
		same(b, "nothing, told again", []int64{3, 0, 2, 2}, places(grant(b, store.TemplateGrantParams{Grants: 1, Granted: 2}, true)))
		same(b, "the rest", []int64{5, 0, 3, 3}, places(grant(b, store.TemplateGrantParams{Grants: 2, Granted: 3, Lacking: 9}, true)))
		b.inOrder(1, asks(1, "a", "a", "b")...) // a rejected ticket uses its place, too
		same(b, "used", []int64{5, 3, 3, 4}, places(b.stands(1)))
		b.changeTemplate(rules.TemplateChange{ID: 1, TotalQuantity: new(int64(4))})
	})
	run(t, open, "NobodyElseGetsPromisedPlaces", func(b *bundle) {
		b.template(1, quantity(3))
		grant(b, store.TemplateGrantParams{Lacking: 2}, true)
		_, _, err := b.TemplateNewGeneration(b.ctx, store.TemplateNewGenerationParams{ID: 1, From: -1, Path: reward.PathDatabase})
		b.must(err)
		direct := store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleDirect, Generation: 1, Path: reward.PathDatabase}
		direct.Requests = []rules.CouponRequest{ask("a", 1), ask("a", 2), ask("b", 3)}
		res := b.settle(direct)
		same(b, "told", []string{"issued", userLimit, reward.ReasonPromised}, told(res))
		same(b, "places", []int64{2, 0, 1, 2}, places(res.Template))
		same(b, "base", int64(1), res.Template.Base)
		_, _, err = b.TemplateNewGeneration(b.ctx, raise(1, -1, 0))
		b.must(err)
		b.own(1)
		kept := ask("w", 2)
		kept.Generation = 2
		res = b.settle(store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleInOrder, Epoch: 1, Generation: 2, Requests: []rules.CouponRequest{kept}})
		same(b, "told", []string{"issued"}, told(res))
		same(b, "places", []int64{2, 1, 1, 3}, places(res.Template))
	})
	run(t, open, "PlacesAreReleasedWithoutAGate", func(b *bundle) {
		b.template(1, quantity(5))
		grant(b, store.TemplateGrantParams{Lacking: 4}, true)
		b.inOrder(1, asks(1, "a")...)
		_, _, err := b.TemplateNewGeneration(b.ctx, store.TemplateNewGenerationParams{ID: 1, From: -1, Path: reward.PathDatabase})
		b.must(err)
		got, released, err := b.TemplateReleasePlaces(b.ctx, 1)
		b.must(err)
		same(b, "released", true, released)
		same(b, "stored", got, b.stands(1))
		same(b, "places", []int64{1, 1, 2, 3}, places(got))
		direct := store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleDirect, Generation: 1, Path: reward.PathDatabase}
		direct.Requests = []rules.CouponRequest{ask("b", 2), ask("c", 3), ask("d", 4), ask("e", 5)}
		same(b, "all are issued", []string{"issued", "issued", "issued", "issued"}, told(b.settle(direct)))
	})
	run(t, open, "AShrinkTakesBackWhatWasNotGiven", func(b *bundle) {
		b.template(1, quantity(9))
		grant(b, store.TemplateGrantParams{Lacking: 6}, true)
		b.inOrder(1, asks(1, "a", "b")...)
		got, done, err := b.TemplateShrink(b.ctx, 1, rules.Shrunk{Grants: 1, Granted: 4})
		b.must(err)
		same(b, "done", true, done)
		same(b, "places", []int64{4, 2, 2, 3}, places(got))
	})
	run(t, open, "AChangeTakesBackWhatTheGateGaveUp", func(b *bundle) {
		b.template(1, quantity(9))
		grant(b, store.TemplateGrantParams{Lacking: 6}, true)
		lower := rules.TemplateChange{ID: 1, TotalQuantity: new(int64(2))}
		_, err := b.TemplateChange(b.ctx, lower)
		b.wantCode(err, reward.CodeConflict)
		same(b, "nothing happened", []int64{6, 0, 1, 1}, places(b.stands(1)))
		lower.Shrunk = &rules.Shrunk{Grants: 1, Granted: 2}
		b.changeTemplate(lower)
		same(b, "taken back", []int64{2, 0, 2, 2}, places(b.stands(1)))
	})
}

// exerciseLeave checks how a request leaves the line, and what that changes.
func exerciseLeave(t *testing.T, open Open) {
	leave := func(b *bundle, user string, ticket, generation int64) store.CouponLeaveResult {
		b.Helper()
		before := b.stands(1)
		res := must(b.CouponLeave(b.ctx, store.CouponLeaveParams{TemplateID: 1, Now: at(20), Leave: rules.Leave{
			UserID: user, Ticket: ticket, Generation: generation, GateGeneration: before.Generation,
		}}))(b)
		same(b, "template", b.stands(1), res.Template)
		same(b, "versions", []int64{before.Version, res.Template.Version}, []int64{res.From, res.To})
		return res
	}
	line := func(b *bundle, mode reward.IssueMode) {
		b.Helper()
		b.template(1, quantity(4), func(t *reward.CouponTemplate) { t.Mode = mode })
		b.generation(reward.PathGate)
		_, granted, err := b.TemplateGrant(b.ctx, store.TemplateGrantParams{ID: 1, Generation: 1, Lacking: 3})
		b.must(err)
		same(b, "granted", true, granted)
	}
	of := func(user string, ticket int64) rules.CouponRequest {
		r := ask(user, ticket)
		r.Generation = 1
		return r
	}
	inOrder := func(b *bundle, list ...rules.CouponRequest) store.CouponSettleResult {
		b.Helper()
		return b.settle(store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleInOrder, Generation: 1, Requests: list})
	}
	run(t, open, "ThePlaceIsFreeOnceAndTheTicketIsSettledInItsTurn", func(b *bundle) {
		line(b, reward.ModeStream)
		res := leave(b, "b", 2, 1)
		same(b, "left", []any{rules.LeaveDone, int64(1), int64(0)}, []any{res.Outcome, res.Template.Used, res.Template.Settled})
		same(b, "again", rules.LeaveRepeated, leave(b, "b", 2, 1).Outcome)
		// One place of three is not promised any more.
		_, granted, err := b.TemplateGrant(b.ctx, store.TemplateGrantParams{ID: 1, Generation: 1, Grants: 1, Lacking: 9})
		b.must(err)
		same(b, "granted", []any{true, int64(5)}, []any{granted, b.stands(1).Granted})
		settled := inOrder(b, of("a", 1), of("b", 2), of("c", 3))
		same(b, "told", []string{"issued", "before", "issued"}, told(settled))
		same(b, "used and settled", []int64{3, 3}, []int64{settled.Template.Used, settled.Template.Settled})
		same(b, "again, settled", rules.LeaveRepeated, leave(b, "b", 2, 1).Outcome)
		same(b, "served", rules.LeaveServed, leave(b, "c", 3, 1).Outcome)
		same(b, "his outcome", reward.IssueOutcome{
			TemplateID: 1, UserID: "b", Ticket: 2, Generation: 1, Reason: reward.ReasonLeft, At: at(20),
		}, b.outcome("b"))
	})
	run(t, open, "SettlingMakesNoLeave", func(b *bundle) {
		line(b, reward.ModeStream)
		_, err := b.CouponSettle(b.ctx, store.CouponSettleParams{
			TemplateID: 1, Kind: rules.SettleListed, Now: epoch, Requests: []rules.CouponRequest{{UserID: "a", Ticket: 7, Reason: reward.ReasonLeft}},
		})
		b.wantCode(err, reward.CodeInvalid)
	})
	run(t, open, "ALineIsComparedByTheGenerationOfTheRequest", func(b *bundle) {
		line(b, reward.ModeStream)
		leave(b, "b", 2, 1)
		b.generation(reward.PathGate)
		leave(b, "c", 3, 1)
		leave(b, "d", 4, 2)
		wait, err := b.CouponWaiting(b.ctx, 1, 2, []store.LineTicket{
			{UserID: "b", Ticket: 2, Generation: 1},
			{UserID: "b", Ticket: 2, Generation: 2}, // the number was given again
			{UserID: "x", Ticket: 2, Generation: 1},
			{UserID: "c", Ticket: 3, Generation: 1},
			{UserID: "d", Ticket: 4, Generation: 1},
		})
		b.must(err)
		same(b, "wait", []bool{false, true, true, false, true}, wait)
		wait = must(b.CouponWaiting(b.ctx, 1, 1, []store.LineTicket{{UserID: "d", Ticket: 9, Generation: 1}}))(b)
		same(b, "left a later gate", []bool{false}, wait)
		page := func(ticket, generation int64, limit int) []store.LineTicket {
			return must(b.CouponLeft(b.ctx, 1, ticket, generation, limit))(b)
		}
		all := []store.LineTicket{{UserID: "b", Ticket: 2, Generation: 1}, {UserID: "c", Ticket: 3, Generation: 1}, {UserID: "d", Ticket: 4, Generation: 2}}
		same(b, "left", all, page(0, 0, 9))
		same(b, "first page", all[:2], page(1, 1<<62, 2))
		same(b, "second page", all[2:], page(3, 1, 2))
		same(b, "none", 0, len(page(4, 2, 2)))
	})
}
