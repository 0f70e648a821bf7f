package storetest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// approve approves a promotion as it is.
func (b *bundle) approve(id reward.PromotionID, by string) store.PromotionView {
	b.Helper()
	v := must(b.PromotionApprove(b.ctx, store.PromotionApproveParams{ID: id, By: by, Revision: b.asRead(id).Revision}))(b)
	same(b, "as it is read", b.view(id), v)
	return v
}

// worthLimit returns limits of n in KRW and in points, and of 1 in other currencies.
func worthLimit(n reward.Amount) reward.Limits {
	return reward.Limits{Default: 1, Own: map[string]reward.Amount{"KRW": n, reward.NoCurrency: n}}
}

// saveWorth saves one READY target of an amount.
func (b *bundle) saveWorth(id reward.PromotionID, target reward.TargetID, amount reward.Amount) {
	b.Helper()
	must(b.PayoutSave(b.ctx, store.PayoutSaveParams{
		Rows: []store.NewPayout{{PromotionID: id, TargetID: target, Amount: amount}}, Now: at(int(target)),
	}))(b)
}

// dispatchTargets dispatches up to limit READY targets of promotion 1 under
// approval.above, and returns them by ID.
func (b *bundle) dispatchTargets(above reward.Amount, limit int) []reward.TargetID {
	b.Helper()
	list := must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
		PromotionID: 1, From: reward.Ready, Limit: limit, MaxLen: plenty, ApprovalAbove: worthLimit(above), Now: at(100),
	}))(b)
	sortPayouts(list)
	targets := []reward.TargetID{}
	for _, p := range list {
		targets = append(targets, p.TargetID)
	}
	return targets
}

func exerciseApprovals(t *testing.T, open Open) {
	run(t, open, "AnApprovalCoversWhatExists", func(b *bundle) {
		b.draft(1)
		b.saveWorth(1, 5, 60)
		b.saveWorth(1, 6, 50)
		before := b.asRead(1)
		v := b.approve(1, hostile)
		before.ApprovedBy, before.Revision = hostile, before.Revision+1
		before.Approval = reward.Approval{Round: 1, Rounds: 1, Amount: 110, Count: 2}
		same(b, "approved", before, v)
		b.saveWorth(1, 1, 40) // has a smaller ID, and is due before
		b.move(1, reward.Running)
		same(b, "approved ones go", []reward.TargetID{5}, b.dispatchTargets(100, 1))
		same(b, "approved ones go", []reward.TargetID{6}, b.dispatchTargets(100, 9))
		same(b, "later ones wait", []reward.TargetID{}, b.dispatchTargets(100, 9))
		again := b.approve(1, "lee")
		same(b, "approved again", reward.Approval{Round: 2, Rounds: 2, Amount: 150, Count: 3, Granted: new(reward.Amount(math.MaxInt64))}, again.Approval)
		same(b, "all go", []reward.TargetID{1}, b.dispatchTargets(100, 9))
		b.books(1)
	})
	run(t, open, "RetriesNeedTheApprovalToo", func(b *bundle) {
		b.running(1)
		b.saveWorth(1, 1, 60)
		b.saveWorth(1, 2, 30)
		same(b, "dispatched", []reward.TargetID{1, 2}, b.dispatchTargets(100, 9))
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeRefused})
		b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(11)})
		b.saveWorth(1, 3, 20)
		moved := must(b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: 1, Now: at(20)}))(b)
		same(b, "retried", 1, moved)
		retries := func() int {
			b.Helper()
			list := must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
				PromotionID: 1, From: reward.Retrying, Limit: 9, MaxLen: plenty, ApprovalAbove: worthLimit(100), Now: at(1000),
			}))(b)
			return len(list)
		}
		same(b, "READY", []reward.TargetID{}, b.dispatchTargets(100, 9))
		same(b, "RETRYING", 0, retries())
		b.approve(1, "lee")
		b.saveWorth(1, 4, 1)
		named := must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
			PromotionID: 1, Refs: []reward.Ref{ref(1, 4, 0)}, Limit: 9, MaxLen: plenty, ApprovalAbove: worthLimit(100), Now: at(100),
		}))(b)
		same(b, "named, and saved since", []reward.TargetID{}, targetsOf(named))
		same(b, "READY", []reward.TargetID{1, 3}, b.dispatchTargets(100, 9))
		same(b, "RETRYING", 1, retries())
	})
	run(t, open, "AnApprovalIsOfWhatTheApproverHasSeen", func(b *bundle) {
		b.draft(1)
		b.saveWorth(1, 1, 60)
		p := store.PromotionApproveParams{ID: 1, By: "lee", Revision: b.asRead(1).Revision, Seen: &store.PromotionWorth{Count: 1, Amount: 60}}
		b.saveWorth(1, 2, 40)
		_, err := b.PromotionApprove(b.ctx, p)
		b.wantCode(err, reward.CodePreconditionFailed)
		p.Seen = &store.PromotionWorth{Count: 2, Amount: 100}
		b.must(b.PromotionAuthorAdd(b.ctx, 1, "kim"))
		_, err = b.PromotionApprove(b.ctx, p)
		b.wantCode(err, reward.CodePreconditionFailed)
		same(b, "approved by", "", b.asRead(1).ApprovedBy)
		p.Revision++
		must(b.PromotionApprove(b.ctx, p))(b)
		_, err = b.PromotionApprove(b.ctx, p)
		b.wantCode(err, reward.CodePreconditionFailed)
		for _, by := range []string{"nul\x00", "\xff"} {
			_, err := b.PromotionApprove(b.ctx, store.PromotionApproveParams{ID: 1, By: by, Revision: 2})
			b.wantCode(err, reward.CodeInvalid)
		}
		_, err = b.PromotionApprove(b.ctx, store.PromotionApproveParams{ID: 2, By: "lee"})
		b.wantCode(err, reward.CodeNotFound)
		for _, to := range []reward.PromotionStatus{reward.Running, reward.Paused} {
			b.move(1, to)
			same(b, "approved again", "kim", b.approve(1, "kim").ApprovedBy)
		}
		for _, to := range []reward.PromotionStatus{reward.Completed, reward.PromotionCancelled} {
			same(b, "approval after a move", "kim", b.move(1, to).ApprovedBy)
			_, err := b.PromotionApprove(b.ctx, store.PromotionApproveParams{ID: 1, By: "lee", Revision: b.asRead(1).Revision})
			b.wantCode(err, reward.CodeIllegalState)
		}
	})
	run(t, open, "AnApprovalDoesNotOutliveWhatItWasOf", func(b *bundle) {
		must(b.PromotionRegister(b.ctx, []store.Registration{{ID: 1, Type: reward.Point}}, reward.Limits{}, epoch))(b)
		b.saveWorth(1, 1, 500)
		b.approve(1, "kim")
		p := must(b.PromotionCreate(b.ctx, reward.Promotion{
			ID: 1, Type: reward.Point, Amount: 1_000_000, CreatedBy: "lee", ApprovedBy: "lee", CreatedAt: at(1),
		}))(b)
		same(b, "approval", reward.Approval{Round: 1}, p.Approval)
		same(b, "approved by", "", p.ApprovedBy)
		same(b, "created by", "lee", p.CreatedBy)
		same(b, "as it is read", b.asRead(1).Promotion, p)
		b.move(1, reward.Running)
		same(b, "dispatched", []reward.TargetID{}, b.dispatchTargets(100, 9))
	})
	run(t, open, "AChangeOfWhatTargetsGetVoidsTheApproval", func(b *bundle) {
		must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, CreatedAt: epoch}))(b)
		b.saveWorth(1, 1, 500)
		change := func(c rules.PromotionChange) store.PromotionView {
			b.Helper()
			c.ID, c.By = 1, "mia"
			return must(b.PromotionChange(b.ctx, c))(b)
		}
		for _, c := range []rules.PromotionChange{{Amount: new(reward.Amount(7))}, {VoucherCode: new("V")}, {Currency: new("EUR")}} {
			was := b.approve(1, "lee")
			v := change(c)
			same(b, "approval", reward.Approval{Round: was.Approval.Round}, v.Approval)
			same(b, "by", "", v.ApprovedBy)
			_, err := b.PromotionApprove(b.ctx, store.PromotionApproveParams{ID: 1, By: "lee", Revision: was.Revision})
			b.wantCode(err, reward.CodePreconditionFailed)
		}
		was := b.approve(1, "lee")
		v := change(rules.PromotionChange{Name: new("x"), RatePerSecond: new(5), MaxAmount: new(reward.Amount(900)), Currency: new("EUR")})
		same(b, "still approved", was.Approval, v.Approval)
		same(b, "revision", was.Revision+1, v.Revision)
		authors := must(b.PromotionAuthors(b.ctx, 1))(b)
		same(b, "authors", []string{"mia"}, authors)
		b.move(1, reward.Running)
		same(b, "dispatched", []reward.TargetID{1}, b.dispatchTargets(100, 9))
	})
	run(t, open, "ARejectionWithdrawsAnApproval", func(b *bundle) {
		b.draft(1)
		b.saveWorth(1, 1, 500)
		b.approve(1, "lee")
		reject := func(by string) reward.Promotion {
			b.Helper()
			p := must(b.PromotionReject(b.ctx, store.PromotionRejectParams{ID: 1, By: by, Reason: "wrong " + hostile, PauseReason: "rejected", Now: at(5)}))(b)
			same(b, "as it is read", b.asRead(1).Promotion, p)
			return p
		}
		p := reject("mia")
		same(b, "a DRAFT stays one", reward.Draft, p.Status)
		same(b, "no approval", reward.Approval{Round: 1}, p.Approval)
		same(b, "by", []string{"", "mia", "wrong " + hostile}, []string{p.ApprovedBy, p.RejectedBy, p.RejectReason})
		b.move(1, reward.Running)
		same(b, "dispatched", []reward.TargetID{}, b.dispatchTargets(100, 9))
		b.approve(1, "lee")
		same(b, "a rejection ends", "", b.asRead(1).RejectedBy)
		p = reject("mia")
		same(b, "a RUNNING one pauses", []string{"PAUSED", "mia", "rejected"}, []string{string(p.Status), p.PausedBy, p.PauseReason})
		b.must(b.PromotionAuthorAdd(b.ctx, 1, "kim"))
		same(b, "a change ends it", "", b.asRead(1).RejectedBy)
		b.move(1, reward.Completed)
		_, err := b.PromotionReject(b.ctx, store.PromotionRejectParams{ID: 1, By: "mia", Reason: "late", Now: at(5)})
		b.wantCode(err, reward.CodeIllegalState)
		_, err = b.PromotionReject(b.ctx, store.PromotionRejectParams{ID: 2, By: "mia", Reason: "none", Now: at(5)})
		b.wantCode(err, reward.CodeNotFound)
		_, err = b.PromotionReject(b.ctx, store.PromotionRejectParams{ID: 1, By: "\xff", Reason: "none", Now: at(5)})
		b.wantCode(err, reward.CodeInvalid)
	})
	run(t, open, "ItPausesWhenOnlyTheUnapprovedAreLeft", func(b *bundle) {
		b.running(1)
		await := func(above reward.Amount) bool {
			b.Helper()
			return must(b.PromotionAwaitApproval(b.ctx, store.PromotionAwaitApprovalParams{ID: 1, ApprovalAbove: worthLimit(above), Reason: "waits", Now: at(9)}))(b)
		}
		same(b, "nothing waits", false, await(100))
		b.saveWorth(1, 1, 500)
		same(b, "worth enough", false, await(500))
		same(b, "no limit", false, await(0))
		same(b, "worth too much", true, await(499))
		same(b, "reason", "waits", b.asRead(1).PauseReason)
		same(b, "PAUSED already", false, await(499))
		b.approve(1, "lee")
		b.move(1, reward.Running)
		b.saveWorth(1, 2, 1)
		same(b, "an approved one is left", false, await(499))
		same(b, "dispatched", []reward.TargetID{1}, b.dispatchTargets(499, 9))
		same(b, "an approved one is QUEUED", false, await(499))
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeFailed, RetryAt: at(11)})
		same(b, "an approved one is RETRYING", false, await(499))
		must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, From: reward.Retrying, Limit: 1, MaxLen: 9, ApprovalAbove: worthLimit(499), Now: at(1000)}))(b)
		must(b.PayoutReturn(b.ctx, store.PayoutReturnParams{Refs: []reward.Ref{ref(1, 1, 2)}, Now: at(1000)}))(b)
		same(b, "an approved one was returned", false, await(499))
		same(b, "dispatched again", []reward.TargetID{1}, b.dispatchTargets(499, 9))
		b.finish(rules.Outcome{Ref: ref(1, 1, 3), Kind: rules.OutcomeRefused})
		same(b, "none is left", true, await(499))
		paused := must(b.PromotionAwaitApproval(b.ctx, store.PromotionAwaitApprovalParams{ID: 9, ApprovalAbove: worthLimit(1), Now: at(9)}))(b)
		same(b, "a missing one", false, paused)
	})
	run(t, open, "AnAuthorHasAnAmountPerDay", func(b *bundle) {
		authors := map[reward.PromotionID][]string{1: {"ann"}, 2: {"Ann"}, 3: {"bob"}, 4: {"ann", "bob"}, 5: {"ann"}, 6: nil, 7: {"ann"}, 8: {"ann"}, 9: {"ann"}}
		for id := reward.PromotionID(1); id <= 9; id++ {
			code := []string{1: "EUR", "EUR", "EUR", "EUR", "KRW", "EUR", "EUR", "", reward.NoCurrency}[id]
			must(b.PromotionCreate(b.ctx, reward.Promotion{ID: id, Type: reward.Point, Currency: code, CreatedAt: epoch}))(b)
			for _, author := range authors[id] {
				b.must(b.PromotionAuthorAdd(b.ctx, id, author))
			}
			b.saveWorth(id, 1, 60)
		}
		const day = int(rules.GrantsDay / time.Second)
		grant := func(id reward.PromotionID, perDay reward.Amount, second int) bool {
			b.Helper()
			return must(b.PromotionGrant(b.ctx, store.PromotionGrantParams{ID: id, PerDay: reward.Limits{Default: perDay, Own: map[string]reward.Amount{"KRW": 2 * perDay, reward.NoCurrency: 3 * perDay}}, Now: at(second)}))(b)
		}
		granted := func(id reward.PromotionID) reward.Amount {
			return *cmp.Or(b.asRead(id).Approval.Granted, new(reward.Amount(-1)))
		}
		same(b, "not asked", reward.Amount(-1), granted(1))
		same(b, "more than the limit", false, grant(1, 59, 0))
		same(b, "granted", reward.Amount(0), granted(1))
		same(b, "the limit", true, grant(1, 60, 0))
		same(b, "again", true, grant(1, 60, 1))
		same(b, "granted", reward.Amount(60), granted(1))
		same(b, "of the same author", false, grant(2, 119, 1))
		same(b, "of another author", true, grant(3, 119, 1))
		same(b, "of both authors", false, grant(4, 179, 1))
		same(b, "of both authors", true, grant(4, 180, 1))
		same(b, "in another currency, with its own limit", true, grant(5, 30, 1))
		same(b, "in points, with their own limit", true, grant(8, 20, 1))
		same(b, "in points by their code", false, grant(9, 39, 1))
		same(b, "of nobody", true, grant(6, 1, 1))
		same(b, "granted to nobody", reward.Amount(-1), granted(6))
		b.saveWorth(1, 2, 1)
		same(b, "grows above the limit", false, grant(1, 120, 2))
		same(b, "granted", reward.Amount(60), granted(1))
		same(b, "grows", true, grant(1, 121, 2))
		same(b, "granted", reward.Amount(61), granted(1))
		same(b, "within the day", false, grant(2, 120, day+1))
		same(b, "after a day", true, grant(2, 121, day+1)) // that of 4 is older
		same(b, "no limit", true, grant(7, 0, day+1))
		same(b, "granted", reward.Amount(math.MaxInt64), granted(7))
		b.saveWorth(1, 3, 1)
		same(b, "no limit counts for nothing", true, grant(1, 122, day+1))
		same(b, "a missing one", false, grant(99, 1000, 1))
	})
	run(t, open, "AGrantLimitsWhatIsDispatched", func(b *bundle) {
		b.draft(1)
		b.must(b.PromotionAuthorAdd(b.ctx, 1, "ann"))
		same(b, "moved", reward.Amount(0), *must(b.PromotionMove(b.ctx, store.PromotionMoveParams{
			ID: 1, From: []reward.PromotionStatus{reward.Draft}, To: reward.Running, ApprovalAbove: worthLimit(100), ApprovalPerDay: worthLimit(90), Now: at(1),
		}))(b).Approval.Granted)
		b.saveWorth(1, 1, 60)
		same(b, "nothing is granted", []reward.TargetID{}, b.dispatchTargets(100, 9))
		same(b, "granted", true, must(b.PromotionGrant(b.ctx, store.PromotionGrantParams{ID: 1, PerDay: worthLimit(90), Now: at(1)}))(b))
		same(b, "granted", []reward.TargetID{1}, b.dispatchTargets(100, 9))
		b.saveWorth(1, 2, 31)
		same(b, "more is not", []reward.TargetID{}, b.dispatchTargets(100, 9))
		same(b, "not granted", false, must(b.PromotionGrant(b.ctx, store.PromotionGrantParams{ID: 1, PerDay: worthLimit(90), Now: at(1)}))(b))
		b.approve(1, "lee")
		same(b, "approved", []reward.TargetID{2}, b.dispatchTargets(100, 9))
	})
	run(t, open, "WhoFillsAPromotionOfKafkaNeedsAGrant", func(b *bundle) {
		started := []store.Registration{{ID: 1, Type: reward.Point, Started: true}}
		must(b.PromotionRegister(b.ctx, started, reward.Limits{}, at(1)))(b)
		b.saveWorth(1, 1, 60)
		same(b, "of records", []reward.TargetID{1}, b.dispatchTargets(100, 9))
		b.must(b.PromotionAuthorAdd(b.ctx, 1, "ann"))
		b.saveWorth(1, 2, 1)
		same(b, "of a person", []reward.TargetID{}, b.dispatchTargets(100, 9))
		b.draft(2)
		b.must(b.PromotionAuthorAdd(b.ctx, 2, "ann"))
		started[0].ID = 2
		same(b, "started by a record", reward.Amount(0), *must(b.PromotionRegister(b.ctx, started, reward.Limits{}, at(1)))(b)[0].Approval.Granted)
	})
	run(t, open, "EndpointsHearOfANeededApproval", func(b *bundle) {
		b.endpoint(1, "promotion.approval_needed", "promotion.paused")
		b.endpoint(2, "promotion.completed")
		must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, WebhookURL: "https://hook", CreatedAt: epoch}))(b)
		b.saveWorth(1, 1, 500)
		b.move(1, reward.Running)
		for range 2 {
			_, err := b.PromotionAwaitApproval(b.ctx, store.PromotionAwaitApprovalParams{ID: 1, ApprovalAbove: worthLimit(1), Reason: "waits", Event: store.EventApproval, Now: at(9)})
			b.must(err)
		}
		told := b.told(1)
		slices.Sort(told)
		same(b, "told", []string{"promotion.approval_needed 1", "promotion.paused 1"}, told)
		b.wantTold(2)
		same(b, "for its webhook", []store.WebhookDelivery{}, b.deliveries(at(99), at(199)))
	})
	run(t, open, "AuthorsOutliveTheirPromotion", func(b *bundle) {
		create := func(by string) {
			b.Helper()
			must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, CreatedBy: by, CreatedAt: epoch}))(b)
		}
		wantAuthors := func(want ...string) {
			b.Helper()
			got := must(b.PromotionAuthors(b.ctx, 1))(b)
			same(b, "authors", fmt.Sprint(want), fmt.Sprint(got))
		}
		wantAuthors()
		b.must(b.PromotionAuthorAdd(b.ctx, 1, "ann")) // before it exists
		create("kim")
		before := b.asRead(1).Revision
		b.must(b.UploadOpen(b.ctx, store.Upload{ID: 7, PromotionID: 1, LeasedUntil: at(60), CreatedAt: epoch, CreatedBy: "bob"}))
		if b.asRead(1).Revision <= before {
			b.Fatalf("the upload is no change")
		}
		wantAuthors("ann", "bob", "kim")
		b.must(b.PromotionDelete(b.ctx, 1))
		create("lee")
		wantAuthors("ann", "bob", "kim", "lee")
		b.wantCode(b.PromotionAuthorAdd(b.ctx, 1, "\xff"), reward.CodeInvalid)
	})
	run(t, open, "WhoIsRefusedIsNoAuthor", func(b *bundle) {
		create := func(id reward.PromotionID, kind reward.PromotionType, by string) error {
			_, err := b.PromotionCreate(b.ctx, reward.Promotion{ID: id, Type: kind, MaxAmount: 100, CreatedBy: by, CreatedAt: epoch})
			return err
		}
		wantAuthors := func(id reward.PromotionID, want ...string) {
			b.Helper()
			got := must(b.PromotionAuthors(b.ctx, id))(b)
			same(b, "authors", fmt.Sprint(want), fmt.Sprint(got))
		}
		b.must(create(1, reward.Point, "kim"))
		b.wantCode(create(1, reward.Point, "ann"), reward.CodeExists)
		b.wantCode(create(1, reward.Voucher, "bob"), reward.CodeTypeMismatch)
		wantAuthors(1, "kim")
		must(b.PromotionRegister(b.ctx, []store.Registration{{ID: 2, Type: reward.Point}}, reward.Limits{}, epoch))(b)
		b.wantCode(create(2, reward.Voucher, "bob"), reward.CodeTypeMismatch)
		wantAuthors(2)
		b.must(create(2, reward.Point, "kim"))
		b.wantCode(create(2, reward.Point, "ann"), reward.CodeExists)
		wantAuthors(2, "kim")

		b.saveWorth(1, 1, 60)
		b.move(1, reward.Running)
		same(b, "dispatched", []reward.TargetID{1}, b.dispatchTargets(math.MaxInt64, 9))
		for by, c := range map[string]rules.PromotionChange{
			"ann": {MaxAmount: new(reward.Amount(59))}, "bob": {Amount: new(reward.Amount(1))}, "mia": {Tags: []string{}, Name: new("x")},
		} {
			c.ID, c.By = 1, by
			if _, err := b.PromotionChange(b.ctx, c); err == nil {
				b.Errorf("the change by %s is not refused", by)
			}
		}
		wantAuthors(1, "kim")
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, By: "lee", Name: new("x")}))(b)
		wantAuthors(1, "kim", "lee")
	})
	run(t, open, "APromotionMadeAgainIsAnotherOne", func(b *bundle) {
		for _, again := range []func(){
			func() {
				must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, CreatedBy: "kim", CreatedAt: at(1)}))(b)
			},
			func() {
				must(b.PromotionRegister(b.ctx, []store.Registration{{ID: 1, Type: reward.Point}}, reward.Limits{}, at(2)))(b)
			},
		} {
			b.draft(1)
			b.saveWorth(1, 1, 500)
			seen := b.asRead(1)
			b.must(b.PromotionDelete(b.ctx, 1))
			again()
			b.saveWorth(1, 2, 500) // as many, worth as much
			_, err := b.PromotionApprove(b.ctx, store.PromotionApproveParams{
				ID: 1, By: "lee", Revision: seen.Revision, Seen: &store.PromotionWorth{Count: 1, Amount: 500},
			})
			b.wantCode(err, reward.CodePreconditionFailed)
			b.must(b.PromotionDelete(b.ctx, 1))
		}
	})
	run(t, open, "ARecordStartsNoRejectedDraft", func(b *bundle) {
		b.draft(1)
		reject := store.PromotionRejectParams{ID: 1, By: "mia", Reason: "no", Now: at(5)}
		must(b.PromotionReject(b.ctx, reject))(b)
		started := []store.Registration{{ID: 1, Type: reward.Point, Started: true, ExpectedCount: new(int64(3))}}
		for range 2 {
			must(b.PromotionRegister(b.ctx, started, reward.Limits{}, at(6)))(b)
			same(b, "status", reward.Draft, b.asRead(1).Status)
			same(b, "expected", 3, *b.asRead(1).ExpectedCount)
		}
		b.must(b.PromotionAuthorAdd(b.ctx, 1, "kim")) // a change ends the rejection
		must(b.PromotionRegister(b.ctx, started, reward.Limits{}, at(7)))(b)
		same(b, "status", reward.Running, b.asRead(1).Status)
	})
	run(t, open, "ARecordStartsNoDraftBeforeItsApprovedStart", func(b *bundle) {
		must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, StartsAt: at(50), CreatedAt: epoch}))(b)
		b.saveWorth(1, 1, 500)
		register := func(second int) reward.PromotionStatus {
			b.Helper()
			p := must(b.PromotionRegister(b.ctx, []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, worthLimit(499), at(second)))(b)[0]
			same(b, "as it is read", b.asRead(1).Promotion, p)
			return p.Status
		}
		same(b, "early", reward.Draft, register(49))
		same(b, "at its start", reward.Running, register(50))
	})
	run(t, open, "ThoseThatAwaitAnApprovalAreListed", func(b *bundle) {
		for id := reward.PromotionID(1); id <= 9; id++ {
			b.draft(id)
			b.saveWorth(id, 1, 40+10*reward.Amount(id)) // 50 to 130
		}
		b.saveWorth(1, 2, 0)      // unknown worth
		b.approve(7, "lee")       // approved
		b.move(8, reward.Paused)  // waits
		b.move(9, reward.Running) // does not wait
		b.approve(3, "lee")       // approved for 70
		b.saveWorth(3, 2, 40)     // 110 now
		must(b.PromotionReject(b.ctx, store.PromotionRejectParams{ID: 6, By: "mia", Reason: "no", Now: at(5)}))(b)
		ids := func(p store.PromotionListParams) []reward.PromotionID {
			b.Helper()
			p.AwaitingApproval = true
			list := must(b.PromotionList(b.ctx, p))(b)
			got := []reward.PromotionID{}
			for _, v := range list {
				got = append(got, v.ID)
			}
			return got
		}
		same(b, "all", []reward.PromotionID{8, 3, 1}, ids(store.PromotionListParams{Limit: 9, ApprovalAbove: worthLimit(90)}))
		same(b, "a page", []reward.PromotionID{8, 3}, ids(store.PromotionListParams{Limit: 2, ApprovalAbove: worthLimit(90)}))
		same(b, "the next page", []reward.PromotionID{1}, ids(store.PromotionListParams{Limit: 2, Last: store.PromotionPosition{ID: 3}, ApprovalAbove: worthLimit(90)}))
		same(b, "PAUSED ones", []reward.PromotionID{8}, ids(store.PromotionListParams{Limit: 9, Status: reward.Paused, ApprovalAbove: worthLimit(90)}))
		same(b, "more", []reward.PromotionID{8, 5, 4, 3, 2, 1}, ids(store.PromotionListParams{Limit: 9, ApprovalAbove: worthLimit(50)}))
		same(b, "no limit", []reward.PromotionID{}, ids(store.PromotionListParams{Limit: 9}))
		b.must(b.PromotionAuthorAdd(b.ctx, 2, "ann"))
		must(b.PromotionGrant(b.ctx, store.PromotionGrantParams{ID: 2, PerDay: worthLimit(59), Now: at(1)}))(b)
		same(b, "refused a grant", []reward.PromotionID{8, 3, 2, 1}, ids(store.PromotionListParams{Limit: 9, ApprovalAbove: worthLimit(90)}))
	})
	run(t, open, "AnApprovalIsAskedForOncePerRevision", func(b *bundle) {
		b.endpoint(1, "promotion.approval_needed")
		must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, StartsAt: at(50), CreatedAt: epoch}))(b)
		must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 2, Type: reward.Point, CreatedAt: epoch}))(b)
		b.saveWorth(1, 1, 500)
		unasked := func(second, limit int) []reward.PromotionID {
			b.Helper()
			ids := []reward.PromotionID{}
			for _, v := range must(b.PromotionUnasked(b.ctx, at(second), limit))(b) {
				ids = append(ids, v.ID)
			}
			return ids
		}
		asks := func(above reward.Amount) (n int) {
			b.Helper()
			var mu sync.Mutex
			b.must(together(4, func(int) error {
				asked, err := b.PromotionAskApproval(b.ctx, 1, worthLimit(above))
				mu.Lock()
				defer mu.Unlock()
				if asked {
					n++
				}
				return err
			}))
			return n
		}
		same(b, "scheduled", []reward.PromotionID{1}, unasked(49, 9))
		same(b, "at most", []reward.PromotionID{}, unasked(49, 0))
		same(b, "due", []reward.PromotionID{}, unasked(50, 9))
		b.must(b.UploadOpen(b.ctx, store.Upload{ID: 3, PromotionID: 1, LeasedUntil: at(20), CreatedAt: epoch, CreatedBy: "ann"}))
		same(b, "during an upload", []reward.PromotionID{}, unasked(19, 9))
		same(b, "after it", []reward.PromotionID{1}, unasked(20, 9))
		same(b, "worth enough", 0, asks(500))
		same(b, "asked", 1, asks(499))
		same(b, "again", 0, asks(499))
		same(b, "asked for", []reward.PromotionID{}, unasked(49, 9))
		b.must(b.PromotionAuthorAdd(b.ctx, 1, "ann"))
		same(b, "after a change", []reward.PromotionID{1}, unasked(49, 9))
		same(b, "asked", 1, asks(499))
		must(b.PromotionReject(b.ctx, store.PromotionRejectParams{ID: 1, By: "mia", Reason: "no", Now: at(5)}))(b)
		same(b, "rejected", []any{[]reward.PromotionID{}, 0}, []any{unasked(49, 9), asks(499)})
		b.approve(1, "lee")
		same(b, "approved", 0, asks(499))
		b.move(1, reward.Running)
		b.saveWorth(1, 2, 1)
		must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, From: reward.Ready, Limit: 9, MaxLen: 9, ApprovalAbove: worthLimit(499), Now: at(60)}))(b)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "tx"})
		same(b, "paused", true, must(b.PromotionAwaitApproval(b.ctx, store.PromotionAwaitApprovalParams{
			ID: 1, ApprovalAbove: worthLimit(499), Reason: "waits", Event: store.EventApproval, Now: at(61),
		}))(b))
		same(b, "the pause asked", 0, asks(499))
		b.wantTold(1, "promotion.approval_needed 1", "promotion.approval_needed 1", "promotion.approval_needed 1")
		_, err := b.PromotionAskApproval(b.ctx, 9, worthLimit(1))
		b.wantCode(err, reward.CodeNotFound)
	})
	run(t, open, "UploadsAreListed", func(b *bundle) {
		b.draft(1)
		b.draft(2)
		clock := must(b.Clock(b.ctx))(b)
		uploads := make(map[int64]store.Upload)
		for id, until := range map[int64]int{3: 3600, 5: -1, 8: 3600, 9: 3600} {
			u := store.Upload{ID: id, PromotionID: 1, LeasedUntil: clock.Add(time.Duration(until) * time.Second).UTC().Truncate(time.Microsecond), CreatedAt: epoch, CreatedBy: hostile, FileName: hostile}
			b.must(b.UploadOpen(b.ctx, u))
			uploads[id] = u
		}
		b.must(b.UploadOpen(b.ctx, store.Upload{ID: 6, PromotionID: 2, LeasedUntil: clock, CreatedAt: epoch}))
		u := uploads[9]
		u.Accepted, u.Bytes, u.Interrupted = 7, 1<<40, true
		b.must(b.UploadClose(b.ctx, u, at(50)))
		u.FinishedAt = at(50)
		uploads[9] = u
		for _, id := range []int64{3, 8} {
			u := uploads[id]
			u.Running = true
			uploads[id] = u
		}
		page := func(before int64, limit int) []store.Upload {
			b.Helper()
			return must(b.UploadList(b.ctx, 1, before, limit))(b)
		}
		same(b, "first page", []store.Upload{uploads[9], uploads[8]}, page(0, 2))
		same(b, "second page", []store.Upload{uploads[5], uploads[3]}, page(8, 9))
	})
}
