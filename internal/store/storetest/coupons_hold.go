package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func held(t *reward.CouponTemplate) { t.HoldFor = time.Hour }

// endHold moves the end of the hold of held coupons to a second of the past. The
// condition selects them.
func (a *arena) endHold(seconds int, where string) {
	a.Helper()
	a.must(a.raw.Exec(fmt.Sprintf(`UPDATE coupons SET held_until = %s WHERE status = 4 AND (%s)`, a.raw.Moment(at(seconds)), where)))
}

// wantStatus fails the test unless a coupon has a status and a reason.
func (b *bundle) wantStatus(id reward.CouponID, status reward.CouponStatus, reason string) {
	b.Helper()
	c := b.coupon(id)
	same(b, fmt.Sprintf("coupon %d", id), []any{status, reason}, []any{c.Status, c.CancelReason})
}

// direct settles requests of a template without tickets.
func (b *bundle) direct(id reward.TemplateID, list ...rules.CouponRequest) store.CouponSettleResult {
	b.Helper()
	return b.settle(store.CouponSettleParams{TemplateID: id, Kind: rules.SettleDirect, Path: reward.PathGate, Requests: list})
}

// rulesOfConfirm checks coupons that are held and confirmed in time.
func rulesOfConfirm(a *arena) {
	a.template(1, held, limit(2))
	before := must(a.Clock(a.ctx))(a)
	a.inOrder(1, asks(1, "a", "b")...)
	a.settle(store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleListed, Requests: asks(3, "c")})
	a.direct(1, ask("d", 4))
	after := must(a.Clock(a.ctx))(a)
	for id := reward.CouponID(1); id <= 4; id++ {
		c := a.coupon(id)
		same(a.bundle, "status", reward.CouponHeld, c.Status)
		if from := c.HeldUntil.Add(-time.Hour); from.Before(before.Add(-time.Millisecond)) || from.After(after.Add(time.Millisecond)) {
			a.Fatalf("coupon %d is held until %v, after requests from %v to %v", id, c.HeldUntil, before, after)
		}
		_, err := a.CouponUse(a.ctx, id, at(20))
		a.wantCode(err, reward.CodeCouponHeld)
	}
	same(a.bundle, "live", int64(4), a.stands(1).Live)
	same(a.bundle, "holding", store.CouponHolding{UserID: "a", Held: 1, CouponID: 1}, a.holders(1)["a"])
	due := must(a.HoldsEnded(a.ctx, 0, 10))(a)
	same(a.bundle, "templates with ended holds", 0, len(due))
	change, n, err := a.CouponEndHolds(a.ctx, 1, 10)
	a.must(err)
	same(a.bundle, "ended before the end", []int64{0, change.From}, []int64{int64(n), change.To})

	stood := a.stands(1)
	want := a.coupon(1)
	want.Status, want.HeldUntil, want.Code = reward.CouponIssued, time.Time{}, "code1"
	for _, first := range []bool{true, false} { // a repeat changes nothing
		c, confirmed, err := a.CouponConfirm(a.ctx, 1)
		a.must(err)
		same(a.bundle, "confirmed", first, confirmed)
		same(a.bundle, "told", want, c)
		same(a.bundle, "kept", want, a.coupon(1))
	}
	same(a.bundle, "template after a confirmation", stood, a.stands(1))
	must(a.CouponUse(a.ctx, 1, at(20)))(a)
	_, _, err = a.CouponConfirm(a.ctx, 1)
	a.wantCode(err, reward.CodeCouponUsed)
	a.cancelCoupon(2, 20)
	a.wantStatus(2, reward.CouponCancelled, "")
	_, _, err = a.CouponConfirm(a.ctx, 2)
	a.wantCode(err, reward.CodeCouponCancelled)
	_, _, err = a.CouponConfirm(a.ctx, 99)
	a.wantCode(err, reward.CodeCouponNotFound)
	a.couponBooks(1)

	a.changeTemplate(rules.TemplateChange{ID: 1, HoldFor: new(time.Duration)})
	a.inOrder(1, asks(5, "e")...)
	a.wantStatus(5, reward.CouponIssued, "")
	a.changeTemplate(rules.TemplateChange{ID: 1, HoldFor: new(time.Minute), ValidFor: new(time.Minute)})
	same(a.bundle, "changed", time.Minute, a.stands(1).HoldFor)
	for _, wrong := range []time.Duration{-time.Second, time.Millisecond, 2 * time.Minute, reward.TemplateHoldMax + time.Second} {
		_, err = a.TemplateChange(a.ctx, rules.TemplateChange{ID: 1, HoldFor: &wrong})
		a.wantCode(err, reward.CodeInvalid)
	}

	a.template(2, held) // a user with a held coupon has it
	a.direct(2, ask("a", 11))
	res := a.direct(2, ask("a", 12))
	same(a.bundle, "told", []string{userLimit}, told(res))
	same(a.bundle, "the held one", a.coupon(11), res.Results[0].Coupon)
}

// rulesOfEndedHolds checks coupons that are not confirmed in time.
func rulesOfEndedHolds(a *arena) {
	a.template(1, held, quantity(4), reissue)
	a.template(2, held, quantity(4))
	a.template(3)
	a.inOrder(1, asks(1, "a", "b", "c", "d")...)
	a.inOrder(2, rules.CouponRequest{UserID: "a", Ticket: 1, CouponID: 11, Code: "c11"}, rules.CouponRequest{UserID: "b", Ticket: 2, CouponID: 12, Code: "c12"})
	a.inOrder(3, rules.CouponRequest{UserID: "a", Ticket: 1, CouponID: 21, Code: "c21"})
	a.endHold(-60, "id IN (1, 11)")
	a.endHold(-120, "id = 2")

	templates := func(after reward.TemplateID, limit int) []reward.TemplateID {
		a.Helper()
		return must(a.HoldsEnded(a.ctx, after, limit))(a)
	}
	same(a.bundle, "templates", []reward.TemplateID{1, 2}, templates(0, 10))
	same(a.bundle, "one template", []reward.TemplateID{1}, templates(0, 1))
	same(a.bundle, "the next", []reward.TemplateID{2}, templates(1, 1))
	_, _, err := a.CouponConfirm(a.ctx, 1)
	a.wantCode(err, reward.CodeHoldExpired)
	_, err = a.CouponUse(a.ctx, 1, at(20))
	a.wantCode(err, reward.CodeCouponHeld)

	before := a.stands(1)
	change, n, err := a.CouponEndHolds(a.ctx, 1, 1)
	a.must(err)
	after := a.stands(1)
	same(a.bundle, "ended", 1, n)
	same(a.bundle, "live and version", []int64{before.Live - 1, before.Version + 1}, []int64{after.Live, after.Version})
	same(a.bundle, "change", store.CouponChange{
		From: before.Version, To: after.Version, Template: after, Holdings: []store.CouponHolding{{UserID: "b"}},
	}, change)
	a.wantStatus(2, reward.CouponCancelled, reward.ReasonHoldExpired) // the oldest first
	a.wantStatus(1, reward.CouponHeld, "")
	all := must(a.CouponChanges(a.ctx, 1, before.Version, plenty))(a)
	same(a.bundle, "changes", []store.SettledRequest{{UserID: "b", Ticket: 2}}, all.Settled)
	a.couponBooks(1)
	_, n, err = a.CouponEndHolds(a.ctx, 1, 10)
	a.must(err)
	same(a.bundle, "the other", 1, n)
	change, n, err = a.CouponEndHolds(a.ctx, 1, 10)
	a.must(err)
	same(a.bundle, "no more", []int64{0, change.From}, []int64{int64(n), change.To})
	same(a.bundle, "templates", []reward.TemplateID{2}, templates(0, 10))
	for _, id := range []reward.CouponID{1, 2} {
		_, _, err = a.CouponConfirm(a.ctx, id)
		a.wantCode(err, reward.CodeHoldExpired)
		_, err = a.CouponUse(a.ctx, id, at(20))
		a.wantCode(err, reward.CodeCouponCancelled)
		_, err = cancelOne(a.ctx, a.Tables, id, at(20))
		a.wantCode(err, reward.CodeCouponCancelled)
	}
	same(a.bundle, "the places are free, also for the same user", []string{"issued", "issued", soldOut}, told(a.inOrder(1, asks(5, "a", "e", "f")...)))

	counts := must(a.CouponCounts(a.ctx, 1))(a)
	same(a.bundle, "counts", store.CouponCounts{Live: 4, Cancelled: 2, Held: 4, EndedHolds: 2, Rejected: []store.RejectionCount{{Reason: soldOut, Count: 1}}}, counts)

	change, n, err = a.CouponEndHolds(a.ctx, 2, 10) // without re-issue the slot stays
	a.must(err)
	same(a.bundle, "ended of the second", 1, n)
	same(a.bundle, "holding", []store.CouponHolding{{UserID: "a", Held: 1}}, change.Holdings)
	_, err = cancelOne(a.ctx, a.Tables, 12, at(20)) // a held coupon can be cancelled
	a.must(err)
	a.wantStatus(12, reward.CouponCancelled, "")
	n = must(a.CouponExpire(a.ctx, at(1<<30), plenty))(a)
	same(a.bundle, "expired", 0, n)
	_, _, err = a.CouponEndHolds(a.ctx, 9, 10)
	a.wantCode(err, reward.CodeTemplateNotFound)
	a.couponBooks(1)
	a.couponBooks(2)
}

// rulesOfUnseenCodes checks that imported codes of coupons that were never confirmed go
// back to their template, and that nobody sees a code before.
func rulesOfUnseenCodes(a *arena) {
	a.template(1, held, quantity(3), reissue)
	a.imports(1, 10, "A", "B", "C")
	confirmed := func(id reward.CouponID) string {
		a.Helper()
		c, once, err := a.CouponConfirm(a.ctx, id)
		a.must(err)
		same(a.bundle, "confirmed", true, once)
		found := must(a.CouponsByCode(a.ctx, c.Code, 10))(a)
		same(a.bundle, "found by its code", []reward.Coupon{c}, found)
		return c.Code
	}
	left := func(most int64) {
		a.Helper()
		t := a.stands(1)
		same(a.bundle, "left", []int64{2, most}, []int64{t.CodesLeft(), t.LiveMax()})
	}
	for n := int64(1); n <= 5; n++ { // one user lets each hold end
		res := a.inOrder(1, ask("greedy", n))
		same(a.bundle, "told", []string{"issued"}, told(res))
		same(a.bundle, "the code that is told", "", res.Results[0].Coupon.Code)
		same(a.bundle, "the code that is read", "", a.coupon(reward.CouponID(n)).Code)
		a.endHold(-60, "id > 0")
		change, _, err := a.CouponEndHolds(a.ctx, 1, 10)
		a.must(err)
		same(a.bundle, "as it is read", a.stands(1), change.Template)
		same(a.bundle, "a code of a lost coupon", "", a.coupon(reward.CouponID(n)).Code)
		same(a.bundle, "left and imported", []int64{3, 3, 3}, []int64{change.Template.CodesLeft(), change.Template.CodesImported - change.Template.CodesReturned, change.Template.LiveMax()})
	}
	for holds, want := range map[int]int{5: 1, 6: 0} {
		expiredHolds := must(a.ExpiredHolds(a.ctx, 1, []string{"ann", "greedy", "\xff"}, holds))(a)
		same(a.bundle, fmt.Sprintf("who has let %d holds end", holds), want, len(expiredHolds))
		if rest := expiredHolds["greedy"]; want == 1 && (rest > time.Hour || rest < 30*time.Minute) {
			a.Errorf("they wait for %v", rest)
		}
	}
	for _, code := range []string{"A", "B", "C", "code1", "returned-1"} {
		found := must(a.CouponsByCode(a.ctx, code, 10))(a)
		same(a.bundle, "found before it is confirmed: "+code, 0, len(found))
	}
	same(a.bundle, "told", []string{"issued", "issued"}, told(a.inOrder(1, asks(6, "greedy", "ann")...)))
	a.cancelCoupon(6, 20) // a held coupon that is cancelled gives its code back, too
	left(3)
	seen := []string{confirmed(7)}
	a.cancelCoupon(7, 21) // its code was seen, and is not given again
	left(2)
	_, err := a.stage(1, 11, 0, seen[0])
	a.wantCode(err, reward.CodeConflict) // no import is open
	a.beginImport(1, 11)
	taken := must(a.stage(1, 11, 0, "D", "A"))(a)
	same(a.bundle, "a code of the template", store.TakenCode{At: 1, Template: true}, taken)
	a.staged(1, 11, 0, "D")
	must(a.CodesPublish(a.ctx, 1, 11, 1, 0))(a)
	same(a.bundle, "told", []string{"issued", "issued", "issued", soldOut}, told(a.inOrder(1, asks(8, "bob", "cid", "dee", "eve")...)))
	for _, id := range []reward.CouponID{8, 9, 10} {
		seen = append(seen, confirmed(id))
	}
	slices.Sort(seen)
	same(a.bundle, "each code once", []string{"A", "B", "C", "D"}, seen)
	a.couponBooks(1)
}

// raceOfHolds lets two sweepers, confirmations and cancels meet. Each coupon ends
// once, and the place of each that is lost is free once.
func raceOfHolds(a *arena) {
	const coupons = 300
	a.template(1, held, quantity(coupons))
	a.imports(1, 10, crowd(1, coupons)...)
	a.inOrder(1, asks(1, crowd(1, coupons)...)...)
	a.endHold(-60, "id % 2 = 0")
	version := a.stands(1).Version
	var confirmed, ended, cancelled, versions atomic.Int64
	a.must(together(8, func(w int) error {
		for n := 1; n <= coupons; n++ {
			id := reward.CouponID((n*7+w*37)%coupons + 1)
			switch w {
			case 0, 1, 2:
				change, n, err := a.CouponEndHolds(a.ctx, 1, 3)
				if err != nil {
					return err
				}
				ended.Add(int64(n))
				versions.Add(change.To - change.From)
			case 3:
				if n%4 == 0 { // every other one whose hold has ended, also after a sweeper
					change, err := cancelOne(a.ctx, a.Tables, id, at(20))
					if err == nil {
						cancelled.Add(1)
					} else if !reward.HasCode(err, reward.CodeCouponCancelled) {
						return err
					}
					versions.Add(change.To - change.From)
				}
			default:
				_, once, err := a.CouponConfirm(a.ctx, id)
				if once {
					confirmed.Add(1)
				}
				if err != nil && !reward.HasCode(err, reward.CodeHoldExpired) && !reward.HasCode(err, reward.CodeCouponCancelled) {
					return err
				}
			}
		}
		return nil
	}))
	t := a.stands(1)
	same(a.bundle, "live and lost", int64(coupons), t.Live+ended.Load()+cancelled.Load())
	same(a.bundle, "versions", t.Version-version, versions.Load())
	var reasons, open int64
	for _, c := range a.coupons(1) {
		if c.CancelReason == reward.ReasonHoldExpired {
			reasons++
			if c.ID%2 != 0 {
				a.Fatalf("coupon %d ended before its time", c.ID)
			}
		}
		if c.Status == reward.CouponHeld {
			open++
		}
	}
	same(a.bundle, "cancelled by a sweeper", ended.Load(), reasons)
	same(a.bundle, "still held", int64(0), open)
	if confirmed.Load() == 0 || ended.Load() == 0 {
		a.Fatalf("%d confirmed, %d ended", confirmed.Load(), ended.Load())
	}
	same(a.bundle, "codes that were seen or went back", int64(coupons), confirmed.Load()+t.CodesReturned)
	var late []string
	for n := range t.CodesReturned {
		late = append(late, fmt.Sprint("late", n))
	}
	a.changeTemplate(rules.TemplateChange{ID: 1, HoldFor: new(time.Duration)})
	a.inOrder(1, asks(coupons+1, late...)...)
	seen := slices.DeleteFunc(a.codesOf(1), func(code string) bool { return code == "" })
	slices.Sort(seen)
	want := crowd(1, coupons)
	slices.Sort(want)
	same(a.bundle, "each code once", want, seen)
	a.couponBooks(1)
}
