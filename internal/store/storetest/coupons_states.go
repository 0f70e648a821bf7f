package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// exerciseCouponStates checks how coupons change after their issue.
func exerciseCouponStates(t *testing.T, open Open) {
	run(t, open, "CancelFreesThePlaceAndKeepsTheSlot", func(b *bundle) {
		b.template(1, quantity(2))
		b.inOrder(1, asks(1, "a", "b", "c")...)
		want := b.coupon(1)
		want.Status, want.CancelledAt, want.CancelledBy = reward.CouponCancelled, at(20), "ann"
		r := must(cancelOne(b.ctx, b.Tables, 1, at(20).Add(1)))(b)
		same(b, "cancelled", []reward.Coupon{want}, r.Cancelled)
		same(b, "kept", want, b.coupon(1))
		t := b.stands(1)
		same(b, "change", store.CouponChange{
			From: 1, To: 2, Template: t, Holdings: []store.CouponHolding{{UserID: "a", Held: 1}},
		}, r.CouponChange)
		same(b, "live and ever issued", []int64{1, 2}, []int64{t.Live, t.IssuedTotal})
		same(b, "not to the same user again", []string{userLimit, "issued", soldOut}, told(b.inOrder(1, asks(4, "a", "d", "e")...)))
		b.couponBooks(1)
	})
	run(t, open, "CancelGivesTheSlotBackWhereTheTemplateReissues", func(b *bundle) {
		b.template(1, reissue)
		for n := int64(1); n <= 3; n++ {
			same(b, "told", []string{"issued", userLimit}, told(b.inOrder(1, asks(2*n-1, "a", "a")...)))
			change := must(cancelOne(b.ctx, b.Tables, reward.CouponID(2*n-1), at(20)))(b)
			same(b, "facts", []store.CouponHolding{{UserID: "a"}}, change.Holdings)
			b.couponBooks(1)
		}
		same(b, "slots", 0, len(b.holders(1)))
	})
	run(t, open, "ManyAreCancelledAtOnce", func(b *bundle) {
		b.template(1, reissue, validFor(time.Minute)) // valid until second 70
		b.template(2)
		b.inOrder(1, asks(1, "a", "b", "c", "d")...)
		b.settle(store.CouponSettleParams{TemplateID: 2, Requests: []rules.CouponRequest{{UserID: "a", Ticket: 1, CouponID: 100, Code: "x"}}})
		_, err := b.CouponUse(b.ctx, 2, at(20))
		b.must(err)
		b.cancelCoupon(3, 20)
		before := b.stands(1)
		cancel := func(now time.Time, ids ...reward.CouponID) store.CouponCancelResult {
			b.Helper()
			return must(b.CouponCancel(b.ctx, store.CouponCancelParams{TemplateID: 1, IDs: ids, By: "bob\x00", Now: now}))(b)
		}
		codes := func(r store.CouponCancelResult) map[reward.CouponID]string {
			all := make(map[reward.CouponID]string)
			for id, err := range r.Refused {
				refused, _ := errors.AsType[*reward.Error](err)
				all[id] = refused.Code
			}
			for _, c := range r.Cancelled {
				same(b, "as it is kept", b.coupon(c.ID), c)
				all[c.ID] = "by " + c.CancelledBy
			}
			return all
		}
		r := cancel(at(30), 4, 3, 2, 1, 4, 9, 100)
		same(b, "one change", []int64{before.Version, before.Version + 1, before.Live - 2}, []int64{r.From, r.To, b.stands(1).Live})
		same(b, "holdings", []store.CouponHolding{{UserID: "a"}, {UserID: "d"}}, r.Holdings)
		want := map[reward.CouponID]string{
			1: "by bob", 4: "by bob", 2: reward.CodeCouponUsed, 3: reward.CodeCouponCancelled, 9: reward.CodeCouponNotFound, 100: reward.CodeCouponNotFound,
		}
		same(b, "outcomes", want, codes(r))
		same(b, "of another template", reward.CouponIssued, b.coupon(100).Status)
		stands := b.stands(1)
		want[1], want[4] = reward.CodeCouponCancelled, reward.CodeCouponCancelled
		same(b, "again", want, codes(cancel(at(40), 1, 2, 3, 4, 9, 100)))
		same(b, "of none", 0, len(codes(cancel(at(40)))))
		b.inOrder(1, ask("e", 5))
		same(b, "over", map[reward.CouponID]string{5: reward.CodeCouponExpired}, codes(cancel(at(70), 5)))
		same(b, "nothing more", stands.Version+1, b.stands(1).Version)
		_, err = b.CouponCancel(b.ctx, store.CouponCancelParams{TemplateID: 9, IDs: []reward.CouponID{1}})
		b.wantCode(err, reward.CodeTemplateNotFound)
		b.couponBooks(1)
	})
	run(t, open, "WhatCountsIsTheTemplateAtTheCancel", func(b *bundle) {
		b.template(1)
		b.inOrder(1, asks(1, "a", "b")...)
		cancel := func(id reward.CouponID) {
			b.Helper()
			b.cancelCoupon(id, 20)
		}
		cancel(1)
		b.changeTemplate(rules.TemplateChange{ID: 1, ReissueAfterCancel: new(true)})
		cancel(2)
		b.changeTemplate(rules.TemplateChange{ID: 1, ReissueAfterCancel: new(false)})
		same(b, "told", []string{userLimit, "issued"}, told(b.inOrder(1, asks(3, "a", "b")...)))
	})
	run(t, open, "OnlyAnIssuedOneIsUsedOrCancelled", func(b *bundle) {
		b.template(1, validFor(time.Minute)) // valid until second 70
		b.inOrder(1, asks(1, "a", "b", "c", "d")...)
		used := must(b.CouponUse(b.ctx, 1, at(20).Add(1)))(b)
		want := b.coupon(1)
		same(b, "used", want, used)
		same(b, "status and time", []any{reward.CouponUsed, at(20)}, []any{used.Status, used.UsedAt})
		b.cancelCoupon(2, 69)
		n := must(b.CouponExpire(b.ctx, at(69), 10))(b)
		same(b, "none is over", 0, n)
		before := b.stands(1)
		for name, test := range map[string]struct {
			id   reward.CouponID
			now  time.Time
			code string
		}{
			"used":                {1, at(20), reward.CodeCouponUsed},
			"used, late":          {1, at(200), reward.CodeCouponUsed},
			"cancelled":           {2, at(20), reward.CodeCouponCancelled},
			"over, to the moment": {3, at(70), reward.CodeCouponExpired},
			"over":                {4, at(71), reward.CodeCouponExpired},
			"none":                {9, at(20), reward.CodeCouponNotFound},
		} {
			if _, err := cancelOne(b.ctx, b.Tables, test.id, test.now); !reward.HasCode(err, test.code) {
				b.Errorf("cancel %s: %v", name, err)
			}
			if _, err := b.CouponUse(b.ctx, test.id, test.now); !reward.HasCode(err, test.code) {
				b.Errorf("use %s: %v", name, err)
			}
		}
		n = must(b.CouponExpire(b.ctx, at(70), 1))(b)
		same(b, "one at a time", 1, n)
		n = must(b.CouponExpire(b.ctx, at(70), 10))(b)
		same(b, "the other", 1, n)
		n = must(b.CouponExpire(b.ctx, at(70), 10))(b)
		same(b, "no more", 0, n)
		for id := reward.CouponID(3); id <= 4; id++ {
			same(b, "status", reward.CouponExpired, b.coupon(id).Status)
			_, err := b.CouponUse(b.ctx, id, at(20))
			b.wantCode(err, reward.CodeCouponExpired)
		}
		same(b, "the template", before, b.stands(1))
		same(b, "place and slot", store.CouponHolding{UserID: "c", Held: 1, CouponID: 3}, b.holders(1)["c"])
		_, err := b.CouponGet(b.ctx, 9)
		b.wantCode(err, reward.CodeCouponNotFound)
		b.couponBooks(1)
	})
	run(t, open, "AValidityIsThatOfTheIssue", func(b *bundle) {
		b.template(1)
		b.inOrder(1, asks(1, "a")...)
		b.changeTemplate(rules.TemplateChange{ID: 1, ValidFor: new(reward.TemplateValidMax)})
		b.inOrder(1, asks(2, "b")...)
		same(b, "for ever", time.Time{}, b.coupon(1).ExpiresAt)
		same(b, "the longest", at(10).Add(reward.TemplateValidMax), b.coupon(2).ExpiresAt)
	})
	run(t, open, "ACodeIsUniqueAtItsTemplate", func(b *bundle) {
		style := reward.CodeStyle{Prefix: "A-", Length: 12, Alphabet: "0123456789"}
		b.template(1, func(t *reward.CouponTemplate) { t.Codes = style })
		b.template(2)
		same(b, "style", style, b.stands(1).Codes)
		b.changeTemplate(rules.TemplateChange{ID: 1, TotalQuantity: new(int64(1_000_000))})
		_, err := b.TemplateChange(b.ctx, rules.TemplateChange{ID: 1, TotalQuantity: new(int64(1_000_001))})
		b.wantCode(err, reward.CodeInvalid) // too few codes
		same(b, "style after a change", style, b.stands(1).Codes)
		first, second := ask("a", 1), ask("a", 1)
		first.Code, second.Code, second.CouponID = "7", "7", 2
		b.inOrder(1, first)
		b.inOrder(2, second)
		again := ask("b", 2)
		again.CouponID, again.Code = 3, "7"
		_, err = b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 1, Requests: []rules.CouponRequest{again}, Now: at(10)})
		b.wantCode(err, reward.CodeConflict)
		find := func(code string, limit int) []reward.Coupon {
			b.Helper()
			list := must(b.CouponsByCode(b.ctx, code, limit))(b)
			return append([]reward.Coupon{}, list...)
		}
		same(b, "found", []reward.Coupon{b.coupon(1), b.coupon(2)}, find("7", 10))
		same(b, "the first", []reward.Coupon{b.coupon(1)}, find("7", 1))
		for _, other := range []string{"", "8", "7 ", "\x00"} {
			same(b, "none", []reward.Coupon{}, find(other, 10))
		}
		b.couponBooks(1)
		b.couponBooks(2)
	})
	run(t, open, "ExpiryTakesTheOldestFirst", func(b *bundle) {
		b.template(1, validFor(time.Hour))
		b.inOrder(1, asks(1, "a")...)
		b.changeTemplate(rules.TemplateChange{ID: 1, ValidFor: new(time.Minute)})
		b.inOrder(1, asks(2, "b")...)
		n := must(b.CouponExpire(b.ctx, at(9000), 1))(b)
		same(b, "expired", 1, n)
		same(b, "which", []reward.CouponStatus{reward.CouponIssued, reward.CouponExpired}, []reward.CouponStatus{b.coupon(1).Status, b.coupon(2).Status})
	})
}
