package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// endpoint creates an enabled endpoint that asks for events.
func (b *bundle) endpoint(id int64, events ...string) store.WebhookEndpoint {
	b.Helper()
	e := must(b.WebhookEndpointCreate(b.ctx, store.WebhookEndpoint{
		ID: id, URL: "https://example.test/" + fmt.Sprint(id), Events: events, Enabled: true, Secret: "whsec_1", CreatedAt: epoch, CreatedBy: "kim",
	}))(b)
	return e
}

// told returns what is recorded for an endpoint: events with their subjects.
func (b *bundle) told(id int64) []string {
	b.Helper()
	list := must(b.WebhookDeliveryList(b.ctx, store.WebhookDeliveryListParams{EndpointID: id, Limit: 1000}))(b)
	slices.Reverse(list)
	texts := []string{}
	for _, d := range list {
		text := d.Event
		switch {
		case d.TargetID != nil:
			text += fmt.Sprintf(" %d:%d", d.PromotionID, *d.TargetID)
		case d.PromotionID != 0:
			text += fmt.Sprintf(" %d", d.PromotionID)
		case d.CouponID != 0:
			text += fmt.Sprintf(" %d", d.CouponID)
		case d.TemplateID != 0:
			text += fmt.Sprintf(" template %d", d.TemplateID)
		}
		if d.State == store.WebhookPending && d.Tries == 0 && (d.EndpointID != id || !b.recent(d.At) || !d.DueAt.Equal(d.At)) {
			b.Errorf("%s: %+v", text, d)
		}
		texts = append(texts, text)
	}
	return texts
}

func (b *bundle) wantTold(id int64, want ...string) {
	b.Helper()
	if want == nil {
		want = []string{}
	}
	same(b, fmt.Sprintf("events of endpoint %d", id), want, b.told(id))
}

// tests records n deliveries for endpoint 1.
func (b *bundle) tests(n int) {
	b.Helper()
	for range n {
		must(b.WebhookDeliveryTest(b.ctx, 1))(b)
	}
}

func (b *bundle) claim(id int64, limit int, lease time.Duration) []store.EndpointDelivery {
	b.Helper()
	return must(b.WebhookDeliveryClaim(b.ctx, id, limit, lease))(b)
}

func (b *bundle) endpointOf(id int64) store.WebhookEndpoint {
	b.Helper()
	return must(b.WebhookEndpointGet(b.ctx, id, 100))(b)
}

func (b *bundle) dueEndpoints() []int64 {
	b.Helper()
	due := must(b.WebhookEndpointsDue(b.ctx))(b)
	ids := []int64{}
	for _, e := range due {
		ids = append(ids, e.ID)
	}
	return ids
}

func exerciseWebhookEndpoints(t *testing.T, open Open) {
	every := store.WebhookEvents[1:]
	run(t, open, "Promotions", func(b *bundle) {
		b.endpoint(1, every...)
		b.endpoint(2, "promotion.completed", "balance.breach")
		b.draft(1)
		b.move(1, reward.Running)
		b.saveQueued(1, 1)
		b.move(1, reward.Paused)
		b.move(1, reward.Running) // a resume is no start
		b.must(b.breach(1, at(3)))
		b.move(1, reward.Running)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "tx"})
		done := b.complete(1, 20)
		same(b, "completed", true, done)
		b.complete(1, 21)
		must(b.PromotionRegister(b.ctx, []store.Registration{{ID: 2, Type: reward.Point, Started: true}}, reward.Limits{}, at(1)))(b)
		b.move(2, reward.PromotionCancelled)
		_, err := b.PromotionMove(b.ctx, store.PromotionMoveParams{ID: 1, To: reward.Paused, From: []reward.PromotionStatus{reward.Running}, Event: store.EventBreach, Now: at(30)})
		b.wantCode(err, reward.CodeIllegalState)
		got := b.told(1)
		same(b, "a breach comes with the pause", []string{"balance.breach 1", "promotion.paused 1"}, slices.Sorted(slices.Values(got[2:4])))
		same(b, "events", []string{"promotion.started 1", "promotion.paused 1"}, got[:2])
		same(b, "events", []string{"promotion.completed 1", "promotion.started 2", "promotion.cancelled 2"}, got[4:])
		b.wantTold(2, "balance.breach 1", "promotion.completed 1")
	})

	run(t, open, "People", func(b *bundle) {
		for id, kind := range map[int64]store.WebhookKind{1: store.KindSlack, 2: store.KindEmail, 3: store.KindWebhook} {
			must(b.WebhookEndpointCreate(b.ctx, store.WebhookEndpoint{ID: id, Kind: kind, Events: reward.PeopleEvents, Enabled: true, CreatedAt: epoch, CreatedBy: "kim"}))(b)
		}
		pause := func(id reward.PromotionID, by, event string) {
			b.Helper()
			must(b.PromotionMove(b.ctx, store.PromotionMoveParams{
				ID: id, To: reward.Paused, From: []reward.PromotionStatus{reward.Running}, By: by, Reason: "because", Event: event, Now: at(3),
			}))(b)
		}
		b.running(1)
		pause(1, "ann", "")
		b.wantTold(3, "promotion.paused 1")
		b.move(1, reward.Running)
		pause(1, "", "")
		b.move(1, reward.Running)
		pause(1, "", store.EventBreach)
		b.move(1, reward.Running)
		b.saveWorth(1, 1, 500)
		must(b.PromotionAwaitApproval(b.ctx, store.PromotionAwaitApprovalParams{ID: 1, ApprovalAbove: worthLimit(499), Reason: "waits", Event: store.EventApproval, Now: at(9)}))(b)
		want := []string{"promotion.paused 1", "balance.breach 1", "promotion.approval_needed 1"}
		b.wantTold(1, want...)
		b.wantTold(2, want...)
		same(b, "a system hears of each pause", 6, len(b.told(3)))
	})

	run(t, open, "Payouts", func(b *bundle) {
		b.endpoint(1, "payout.failed", "payout.unknown")
		b.endpoint(2, "payout.unknown")
		b.endpoint(3, "promotion.completed")
		b.running(1)
		b.saveQueued(1, 1, 2, 3, 4, 5, 6)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "tx"})
		b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeRefused, Code: "LIMIT"})
		b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeRefused, Code: "LIMIT"}) // late: changes nothing
		b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeNoLookup})
		b.finish(rules.Outcome{Ref: ref(1, 4, 1), Kind: rules.OutcomeFailed, RetryAt: at(30)})
		b.settleLookups(store.PayoutSettleParams{Now: at(1000), SettleAfter: settleAfter, Lookups: []rules.Lookup{{
			Ref: ref(1, 3, 1), NotFound: true, BeganAt: at(999), NextAt: at(2000),
		}}})
		b.finish(rules.Outcome{Ref: ref(1, 5, 1), Kind: rules.OutcomeNoLookup})
		must(b.PayoutResolve(b.ctx, store.PayoutResolveParams{PayoutID: store.PayoutID{PromotionID: 1, TargetID: 5}, By: "eve", Now: at(1001)}))(b)
		b.move(1, reward.PromotionCancelled)
		_, err := b.PayoutCancelStep(b.ctx, store.PayoutCancelStepParams{PromotionID: 1, Lease: lease, Now: at(1002)}) // 4: RETRYING
		b.must(err)
		_, err = b.PayoutSweep(b.ctx, store.PayoutSweepParams{PromotionID: 1, Before: at(1003), Lease: lease, Now: at(1004)}) // 6: QUEUED
		b.must(err)
		b.wantTold(1, "payout.failed 1:2", "payout.unknown 1:3", "payout.failed 1:3", "payout.unknown 1:5", "payout.failed 1:5",
			"payout.unknown 1:4", "payout.unknown 1:6")
		b.wantTold(2, "payout.unknown 1:3", "payout.unknown 1:5", "payout.unknown 1:4", "payout.unknown 1:6")
		b.wantTold(3)
	})

	run(t, open, "Coupons", func(b *bundle) {
		b.endpoint(1, "coupon.issued", "coupon.cancelled", "coupon.used")
		b.endpoint(2, "coupon.used")
		b.template(1, quantity(3))
		b.inOrder(1, asks(1, "a", "b", "c", "d")...) // d: sold out
		must(b.CouponUse(b.ctx, 1, at(20)))(b)
		_, err := b.CouponUse(b.ctx, 1, at(21))
		b.wantCode(err, reward.CodeCouponUsed)
		b.cancelCoupon(2, 22)
		b.template(2, held)
		b.settle(store.CouponSettleParams{TemplateID: 2, Kind: rules.SettleInOrder, Requests: []rules.CouponRequest{{UserID: "a", Ticket: 1, CouponID: 11, Code: "x"}}})
		b.wantTold(1, "coupon.issued 1", "coupon.issued 2", "coupon.issued 3", "coupon.used 1", "coupon.cancelled 2")
		_, _, err = b.CouponConfirm(b.ctx, 11)
		b.must(err)
		b.wantTold(1, "coupon.issued 1", "coupon.issued 2", "coupon.issued 3", "coupon.used 1", "coupon.cancelled 2", "coupon.issued 11")
		b.wantTold(2, "coupon.used 1")
	})

	run(t, open, "Templates", func(b *bundle) {
		b.endpoint(1, "coupon.sold_out", "coupon.approval_needed")
		b.endpoint(2, "coupon.used")
		waits := stock(1)
		rules.LimitQuantity(&waits, 0, 10)
		must(b.TemplateCreate(b.ctx, waits))(b)
		change := func(id reward.TemplateID, total int64) {
			b.Helper()
			must(b.TemplateChange(b.ctx, rules.TemplateChange{ID: id, TotalQuantity: &total, CodesAbove: 10, By: "kim"}))(b)
		}
		change(1, 200)
		change(1, 200)
		change(1, 10)
		b.wantTold(1, "coupon.approval_needed template 1", "coupon.approval_needed template 1")
		b.template(2, quantity(3))
		refuses := func(reason string, second int) {
			b.Helper()
			b.must(together(4, func(int) error { return b.RefusalRecord(b.ctx, 2, reason, at(second)) }))
		}
		refuses(soldOut, 2)
		want := append(b.told(1)[:2], "coupon.sold_out template 2")
		b.wantTold(1, want...)
		refuses("", 3)
		refuses(soldOut, 4) // a cancelled coupon was issued again
		b.wantTold(1, want...)
		refuses("", 5)
		change(2, 9)
		refuses(soldOut, 6)
		refuses(reward.CodeClosed, 7)
		b.wantTold(1, append(want, "coupon.sold_out template 2")...)
		b.wantTold(2)
	})

	run(t, open, "DisabledEndpointsHearNothing", func(b *bundle) {
		b.endpoint(1, every...)
		off, on := false, true
		e := must(b.WebhookEndpointChange(b.ctx, 1, store.WebhookEndpointChange{Enabled: &off}))(b)
		same(b, "disabled", []any{false, "", false}, []any{e.Enabled, e.DisabledReason, e.DisabledAt.IsZero()})
		b.running(1)
		_, err := b.WebhookDeliveryTest(b.ctx, 1)
		b.wantCode(err, reward.CodeEndpointDisabled)
		b.wantTold(1)
		e = must(b.WebhookEndpointChange(b.ctx, 1, store.WebhookEndpointChange{Enabled: &on, Events: []string{"promotion.paused"}}))(b)
		same(b, "enabled", []any{true, true, []string{"promotion.paused"}}, []any{e.Enabled, e.DisabledAt.IsZero(), e.Events})
		b.move(1, reward.Paused)
		b.wantTold(1, "promotion.paused 1")
	})

	run(t, open, "Endpoints", func(b *bundle) {
		made := b.endpoint(7, "coupon.used", "promotion.started")
		want := store.WebhookEndpoint{
			ID: 7, Kind: store.KindWebhook, URL: "https://example.test/7", Events: []string{"promotion.started", "coupon.used"}, Enabled: true, Secret: "whsec_1",
			CreatedAt: epoch, CreatedBy: "kim",
		}
		same(b, "created", want, made)
		same(b, "as read", want, b.endpointOf(7))
		_, err := b.WebhookEndpointCreate(b.ctx, made)
		b.wantCode(err, reward.CodeExists)
		text := "for " + hostile
		e := must(b.WebhookEndpointChange(b.ctx, 7, store.WebhookEndpointChange{URL: &text, Description: &text, NewSecret: "whsec_1"}))(b)
		want.URL, want.Description = text, text
		same(b, "changed", want, e)
		was := e
		for _, other := range []func(*store.WebhookEndpoint){
			func(e *store.WebhookEndpoint) { e.URL = "https://other" }, func(e *store.WebhookEndpoint) { e.Description = "" },
			func(e *store.WebhookEndpoint) { e.Events = e.Events[:1] }, func(e *store.WebhookEndpoint) { e.Enabled = false },
		} {
			seen := e
			other(&seen)
			_, err := b.WebhookEndpointChange(b.ctx, 7, store.WebhookEndpointChange{Enabled: new(false), Was: &seen})
			b.wantCode(err, reward.CodePreconditionFailed)
		}
		same(b, "unchanged", want, b.endpointOf(7))
		e = must(b.WebhookEndpointChange(b.ctx, 7, store.WebhookEndpointChange{Enabled: new(true), Was: &was}))(b)
		same(b, "as it was seen", want, e)
		people := must(b.WebhookEndpointCreate(b.ctx, store.WebhookEndpoint{
			ID: 6, Kind: store.KindEmail, To: []string{"kim@example.com", "lee@example.com"}, Language: "ko", Events: []string{"balance.breach"}, CreatedAt: epoch,
		}))(b)
		same(b, "of people", people, b.endpointOf(6))
		for _, other := range []func(*store.WebhookEndpoint){
			func(e *store.WebhookEndpoint) { e.To = e.To[:1] }, func(e *store.WebhookEndpoint) { e.Language = "en" },
		} {
			seen := people
			other(&seen)
			_, err := b.WebhookEndpointChange(b.ctx, 6, store.WebhookEndpointChange{Enabled: new(true), Was: &seen})
			b.wantCode(err, reward.CodePreconditionFailed)
		}
		was = people
		people.To, people.Language, people.URL = []string{"ann@example.com"}, "en", "https://other.test"
		same(b, "of other people", people, must(b.WebhookEndpointChange(b.ctx, 6, store.WebhookEndpointChange{
			To: people.To, Language: &people.Language, URL: &people.URL, NewSecret: "whsec_1", Was: &was,
		}))(b))
		same(b, "without a secret", "", must(b.WebhookEndpointRotate(b.ctx, 6, "whsec_2", time.Hour))(b).Secret)
		b.must(b.WebhookEndpointDelete(b.ctx, 6))
		nul := "\x00"
		_, err = b.WebhookEndpointChange(b.ctx, 7, store.WebhookEndpointChange{URL: &nul})
		b.wantCode(err, reward.CodeInvalid)
		e = must(b.WebhookEndpointRotate(b.ctx, 7, "whsec_2", time.Hour))(b)
		same(b, "secrets", []string{"whsec_2", "whsec_1"}, []string{e.Secret, e.PreviousSecret})
		if left := time.Until(e.PreviousUntil); left < 58*time.Minute || left > 62*time.Minute {
			b.Errorf("the previous secret is valid for %v", left)
		}
		e = must(b.WebhookEndpointRotate(b.ctx, 7, "whsec_3", 0))(b)
		same(b, "secrets", []any{"whsec_3", "", true}, []any{e.Secret, e.PreviousSecret, e.PreviousUntil.IsZero()})
		must(b.WebhookEndpointRotate(b.ctx, 7, "whsec_4", time.Hour))(b)
		for _, p := range []store.WebhookEndpointChange{{Description: &text, NewSecret: "whsec_5"}, {URL: &text, NewSecret: "whsec_5"}} {
			e = must(b.WebhookEndpointChange(b.ctx, 7, p))(b)
			same(b, "secrets at the same URL", []string{"whsec_4", "whsec_3"}, []string{e.Secret, e.PreviousSecret})
		}
		e = must(b.WebhookEndpointChange(b.ctx, 7, store.WebhookEndpointChange{URL: new("https://other.test"), NewSecret: "whsec_5"}))(b)
		same(b, "secrets at another URL", []any{"https://other.test", "whsec_5", "", true}, []any{e.URL, e.Secret, e.PreviousSecret, e.PreviousUntil.IsZero()})
		for id := int64(8); id < 7+store.WebhookEndpointsMax; id++ {
			b.endpoint(id)
		}
		_, err = b.WebhookEndpointCreate(b.ctx, store.WebhookEndpoint{ID: 1000, CreatedAt: epoch})
		b.wantCode(err, reward.CodeTooManyEndpoints)
		list := must(b.WebhookEndpointList(b.ctx, 10))(b)
		same(b, "list", []int64{store.WebhookEndpointsMax, 6 + store.WebhookEndpointsMax, 7},
			[]int64{int64(len(list)), list[0].ID, list[len(list)-1].ID})
		b.must(b.WebhookEndpointDelete(b.ctx, 7))
		b.wantCode(b.WebhookEndpointDelete(b.ctx, 7), reward.CodeEndpointNotFound)
		_, err = b.WebhookEndpointGet(b.ctx, 7, 1)
		b.wantCode(err, reward.CodeEndpointNotFound)
		_, err = b.WebhookEndpointChange(b.ctx, 7, store.WebhookEndpointChange{})
		b.wantCode(err, reward.CodeEndpointNotFound)
		_, err = b.WebhookEndpointRotate(b.ctx, 7, "x", 0)
		b.wantCode(err, reward.CodeEndpointNotFound)
		_, err = b.WebhookDeliveryTest(b.ctx, 7)
		b.wantCode(err, reward.CodeEndpointNotFound)
	})

	run(t, open, "Deliveries", func(b *bundle) {
		b.endpoint(1)
		b.endpoint(2)
		b.tests(3)
		same(b, "due", []int64{1}, b.dueEndpoints())
		same(b, "pending", 3, b.endpointOf(1).Pending)
		first := b.claim(1, 2, time.Hour)
		same(b, "claimed", 2, len(first))
		second := b.claim(1, 9, time.Hour)
		same(b, "the third", 1, len(second))
		same(b, "claimed again", 0, len(b.claim(1, 9, time.Hour)))
		same(b, "due", []int64{}, b.dueEndpoints())

		record := func(d store.EndpointDelivery, change func(*store.WebhookAttemptRecord)) bool {
			b.Helper()
			a := store.WebhookAttemptRecord{
				EndpointID: d.EndpointID, DeliveryID: d.ID, Status: 503, Took: 12 * time.Millisecond, Error: "the receiver is busy",
				RetryAfter: time.Hour, Body: []byte("first"), DisableAfter: time.Hour, DisableFailures: 3, DisableReason: "FAILING",
			}
			change(&a)
			return must(b.WebhookDeliveryRecord(b.ctx, a))(b)
		}
		get := func(d store.EndpointDelivery) store.EndpointDelivery {
			b.Helper()
			d = must(b.WebhookDeliveryGet(b.ctx, d.EndpointID, d.ID))(b)
			return d
		}
		success := func(a *store.WebhookAttemptRecord) {
			a.Status, a.Error, a.State, a.Body = 204, "", store.WebhookDelivered, []byte("second")
		}
		same(b, "disabled", false, record(first[0], func(*store.WebhookAttemptRecord) {}))
		d := get(first[0])
		same(b, "after a failure", []any{store.WebhookPending, 1, 1, "first", true, 1}, []any{d.State, d.Attempts, d.Tries, string(d.Body), d.DoneAt.IsZero(), len(d.Log)})
		if left := time.Until(d.DueAt); left < 58*time.Minute || left > 62*time.Minute {
			b.Errorf("it is due in %v", left)
		}
		if l := d.Log[0]; l.Number != 1 || l.Status != 503 || l.Millis != 12 || l.Error != "the receiver is busy" || !b.recent(l.At) {
			b.Errorf("the attempt is %+v", l)
		}
		e := b.endpointOf(1)
		same(b, "endpoint", []any{1, "the receiver is busy", false}, []any{e.Failures, e.LastError, e.FailingSince.IsZero()})
		record(first[0], success)
		d = get(first[0])
		same(b, "after a success", []any{store.WebhookDelivered, 2, "first", false}, []any{d.State, d.Attempts, string(d.Body), d.DoneAt.IsZero()})
		e = b.endpointOf(1)
		same(b, "endpoint", []any{0, "", true, false}, []any{e.Failures, e.LastError, e.FailingSince.IsZero(), e.DeliveredAt.IsZero()})
		record(first[0], func(*store.WebhookAttemptRecord) {}) // from one whose lease ended
		same(b, "a late failure", []any{store.WebhookDelivered, 3}, []any{get(first[0]).State, get(first[0]).Attempts})
		record(first[1], func(a *store.WebhookAttemptRecord) { a.State = store.WebhookAbandoned })
		same(b, "failures", 2, b.endpointOf(1).Failures)

		d = must(b.WebhookDeliveryResend(b.ctx, 1, first[1].ID))(b)
		same(b, "resent", []any{store.WebhookPending, 1, 0, true}, []any{d.State, d.Attempts, d.Tries, d.DoneAt.IsZero()})
		same(b, "due", []int64{1}, b.dueEndpoints())
		_, err := b.WebhookDeliveryResend(b.ctx, 2, first[1].ID)
		b.wantCode(err, reward.CodeDeliveryNotFound)
		_, err = b.WebhookDeliveryResend(b.ctx, 3, first[1].ID)
		b.wantCode(err, reward.CodeEndpointNotFound)
		_, err = b.WebhookDeliveryGet(b.ctx, 2, first[1].ID)
		b.wantCode(err, reward.CodeDeliveryNotFound)

		same(b, "three failures in a moment", false, record(first[1], func(*store.WebhookAttemptRecord) {}))
		same(b, "for long enough", true, record(first[1], func(a *store.WebhookAttemptRecord) { a.DisableAfter = 0 }))
		same(b, "disabled twice", false, record(first[1], func(a *store.WebhookAttemptRecord) { a.DisableNow = true }))
		e = b.endpointOf(1)
		same(b, "disabled", []any{false, "FAILING", false}, []any{e.Enabled, e.DisabledReason, e.DisabledAt.IsZero()})
		_, err = b.WebhookDeliveryResend(b.ctx, 1, first[1].ID)
		b.wantCode(err, reward.CodeEndpointDisabled)
		on := true
		e = must(b.WebhookEndpointChange(b.ctx, 1, store.WebhookEndpointChange{Enabled: &on}))(b)
		same(b, "enabled", []any{true, "", 0, "", true, true}, []any{e.Enabled, e.DisabledReason, e.Failures, e.LastError, e.FailingSince.IsZero(), e.DisabledAt.IsZero()})
		same(b, "a test", false, record(second[0], func(a *store.WebhookAttemptRecord) { a.Test, a.DisableNow = true, true }))
		same(b, "after a test", []any{true, 0, ""}, []any{b.endpointOf(1).Enabled, b.endpointOf(1).Failures, b.endpointOf(1).LastError})
		same(b, "gone", true, record(second[0], func(a *store.WebhookAttemptRecord) { a.DisableNow = true }))
		record(store.EndpointDelivery{ID: 1 << 40, EndpointID: 99}, success)

		pending := store.WebhookPending
		list := func(p store.WebhookDeliveryListParams) (ids []int64) {
			b.Helper()
			p.EndpointID = 1
			found := must(b.WebhookDeliveryList(b.ctx, p))(b)
			for _, d := range found {
				ids = append(ids, d.ID)
				same(b, "attempts in the list", get(d).Log, d.Log)
			}
			return ids
		}
		same(b, "all", []int64{second[0].ID, first[1].ID, first[0].ID}, list(store.WebhookDeliveryListParams{Limit: 9}))
		same(b, "a page", []int64{first[1].ID}, list(store.WebhookDeliveryListParams{Limit: 1, Before: second[0].ID}))
		same(b, "pending", []int64{second[0].ID, first[1].ID}, list(store.WebhookDeliveryListParams{Limit: 9, State: &pending}))
	})

	run(t, open, "Trim", func(b *bundle) {
		b.endpoint(1, every...)
		b.running(1) // promotion.started
		b.template(1)
		b.inOrder(1, asks(1, crowd(1, 10)...)...)
		b.tests(1)
		p := store.WebhookTrimParams{EndpointID: 1, Kept: time.Hour, PendingMax: 8, Limit: 100}
		trim := func() store.WebhookTrimResult {
			b.Helper()
			return must(b.WebhookDeliveryTrim(b.ctx, p))(b)
		}
		same(b, "four too many", store.WebhookTrimResult{Dropped: 4, Pending: 12}, trim())
		b.wantTold(1, "promotion.started 1", "coupon.issued 5", "coupon.issued 6", "coupon.issued 7", "coupon.issued 8", "coupon.issued 9",
			"coupon.issued 10", "webhook.test")
		e := b.endpointOf(1)
		same(b, "endpoint", []any{true, int64(4), false}, []any{e.Overflowing, e.Dropped, e.DroppedAt.IsZero()})
		same(b, "again", store.WebhookTrimResult{Pending: 8}, trim())
		p.PendingMax = 1
		same(b, "others stay", store.WebhookTrimResult{Dropped: 6, Pending: 8}, trim())
		b.wantTold(1, "promotion.started 1", "webhook.test")
		same(b, "overflowing", true, b.endpointOf(1).Overflowing)
		p.PendingMax = 8
		trim()
		same(b, "overflowing", false, b.endpointOf(1).Overflowing)
		p.Kept = -time.Hour
		same(b, "too old", store.WebhookTrimResult{Abandoned: 2, Pending: 2}, trim())
		same(b, "ended", store.WebhookTrimResult{Deleted: 2}, trim())
		p.Kept = time.Hour
		b.tests(2)
		b.must(b.WebhookEndpointDelete(b.ctx, 1))
		owners := must(b.WebhookDeliveryOwners(b.ctx))(b)
		same(b, "owners", []int64{1}, owners)
		same(b, "of a deleted endpoint", store.WebhookTrimResult{Deleted: 2, Pending: 2}, trim())
		owners = must(b.WebhookDeliveryOwners(b.ctx))(b)
		same(b, "owners", 0, len(owners))
	})

	run(t, open, "InstancesShare", func(b *bundle) {
		b.endpoint(1)
		b.tests(40)
		var mu sync.Mutex
		claims := map[int64]int{}
		b.must(together(4, func(int) error {
			for {
				list, err := b.WebhookDeliveryClaim(b.ctx, 1, 3, time.Hour)
				if err != nil || len(list) == 0 {
					return err
				}
				mu.Lock()
				for _, d := range list {
					claims[d.ID]++
				}
				mu.Unlock()
			}
		}))
		same(b, "claimed", 40, len(claims))
		for id, n := range claims {
			same(b, fmt.Sprintf("claims of delivery %d", id), 1, n)
		}
	})
}
