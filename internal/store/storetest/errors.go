package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func exercisePayoutErrors(t *testing.T, open Open) {
	unknown := func(b *bundle, promotion reward.PromotionID, target reward.TargetID, second int) {
		b.Helper()
		must(b.PayoutFinish(b.ctx, store.PayoutFinishParams{Lease: lease, Now: at(second), Outcomes: []rules.Outcome{{
			Ref: ref(promotion, target, 1), Kind: rules.OutcomeNoAnswer, GiveUp: true, Code: "TIMEOUT", Message: fmt.Sprintf("no response for %d", target),
		}}}))(b)
		b.wantState(promotion, target, reward.Unknown)
	}
	run(t, open, "UnknownOfAllPromotions", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveQueued(1, 0, 1, 2)
		b.saveQueued(2, 0, 7)
		unknown(b, 2, 7, 30)
		unknown(b, 1, 2, 40)
		unknown(b, 1, 0, 40)
		unknown(b, 2, 0, 20)
		pages := func(p store.PayoutUnknownParams) (all []store.PayoutID) {
			b.Helper()
			for {
				page := must(b.PayoutUnknown(b.ctx, p))(b)
				for _, got := range page {
					same(b, "row", b.payout(got.PromotionID, got.TargetID), got)
					all = append(all, store.PayoutID{PromotionID: got.PromotionID, TargetID: got.TargetID})
				}
				if len(page) < p.Limit {
					return all
				}
				p.After = store.PlaceOfUnknown(page[len(page)-1])
			}
		}
		id := func(promotion reward.PromotionID, target reward.TargetID) store.PayoutID {
			return store.PayoutID{PromotionID: promotion, TargetID: target}
		}
		for _, limit := range []int{1, 2, 3, 9} {
			same(b, fmt.Sprintf("in pages of %d", limit), []store.PayoutID{id(2, 0), id(2, 7), id(1, 0), id(1, 2)}, pages(store.PayoutUnknownParams{Limit: limit}))
		}
		// The database's clock decides. It is far ahead of these times, or far behind.
		now := must(b.Clock(b.ctx))(b)
		same(b, "older", []store.PayoutID{id(2, 0), id(2, 7)}, pages(store.PayoutUnknownParams{Limit: 9, OlderThan: now.Sub(at(35))}))
		same(b, "none so old", 0, len(pages(store.PayoutUnknownParams{Limit: 9, OlderThan: now.Sub(at(-3600))})))
		same(b, "of a user", []store.PayoutID{id(2, 7)}, pages(store.PayoutUnknownParams{Limit: 1, UserID: b.payout(2, 7).UserID}))
		same(b, "of a user and older", 0, len(pages(store.PayoutUnknownParams{Limit: 9, UserID: b.payout(1, 2).UserID, OlderThan: now.Sub(at(35))})))
		same(b, "of nobody", 0, len(pages(store.PayoutUnknownParams{Limit: 9, UserID: "nobody"})))
		same(b, "of no user", 0, len(pages(store.PayoutUnknownParams{Limit: 9, UserID: "a\x00b"})))
		must(b.PayoutResolve(b.ctx, store.PayoutResolveParams{PayoutID: id(2, 0), Note: "n", By: "b", Now: at(50)}))(b)
		same(b, "after one is resolved", []store.PayoutID{id(2, 7), id(1, 0), id(1, 2)}, pages(store.PayoutUnknownParams{Limit: 9}))
	})
	run(t, open, "OldestPayouts", func(b *bundle) {
		oldest := func(what string, want store.OldestPayouts) {
			b.Helper()
			got := must(b.PayoutOldest(b.ctx))(b)
			same(b, what, want, got)
		}
		oldest("without payouts", store.OldestPayouts{})
		b.draft(1)
		b.running(2)
		b.draft(3)
		for id, second := range map[reward.PromotionID]int{1: 10, 2: 30, 3: 20} {
			must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(id, 5)}, Now: at(second)}))(b)
		}
		oldest("of RUNNING promotions", store.OldestPayouts{ReadySince: at(30), StalledSince: at(30)})
		b.move(3, reward.Running)
		oldest("of two", store.OldestPayouts{ReadySince: at(20), StalledSince: at(20)})
		same(b, "dispatched", []reward.TargetID{5}, b.dispatch(3, reward.Ready, 9))
		oldest("after a dispatch", store.OldestPayouts{ReadySince: at(30), StalledSince: at(30)})
		unknown(b, 3, 5, 60)
		oldest("with an UNKNOWN one", store.OldestPayouts{ReadySince: at(30), UnknownSince: at(60), StalledSince: at(30)})
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(3, 6), row(3, 7)}, Now: at(2)}))(b)
		oldest("with two older ones", store.OldestPayouts{ReadySince: at(2), UnknownSince: at(60), StalledSince: at(20)})
		same(b, "dispatched", []reward.TargetID{6}, b.dispatch(3, reward.Ready, 1))
		oldest("while a promotion dispatches", store.OldestPayouts{ReadySince: at(2), UnknownSince: at(60), StalledSince: at(20)})
		b.bounded(4, 0, reward.Canary{Targets: 1, MaxFailureRate: 0.5})
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(4, 1), row(4, 2)}, Now: at(4)}))(b)
		oldest("before a canary", store.OldestPayouts{ReadySince: at(2), UnknownSince: at(60), StalledSince: at(4)})
		same(b, "dispatched", []reward.TargetID{1}, b.dispatch(4, reward.Ready, 9))
		oldest("while a canary waits", store.OldestPayouts{ReadySince: at(2), UnknownSince: at(60), StalledSince: at(20)})
		b.move(4, reward.Paused)
		b.move(3, reward.Paused)
		stalls := func(what string, second int) {
			b.Helper()
			got := must(b.PayoutOldest(b.ctx))(b)
			same(b, what, at(second), got.StalledSince)
		}
		b.bounded(5, row(5, 1).Amount, reward.Canary{})
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(5, 1), row(5, 2)}, Now: at(5)}))(b)
		stalls("before a budget is used", 5)
		same(b, "dispatched", []reward.TargetID{1}, b.dispatch(5, reward.Ready, 9))
		stalls("while a payout has the budget", 30)
		b.move(5, reward.Paused)
		b.running(6)
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(6, 1)}, Now: at(6)}))(b)
		v := b.view(6)
		must(b.PromotionApprove(b.ctx, store.PromotionApproveParams{ID: 6, By: "lee", Revision: v.Revision}))(b)
		stalls("before what is approved is dispatched", 6)
		same(b, "dispatched", []reward.TargetID{1}, b.dispatch(6, reward.Ready, 9))
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(6, 2)}, Now: at(7)}))(b)
		stalls("while what is approved has no outcome", 30)
		b.move(6, reward.Paused)
		b.move(2, reward.Paused)
		oldest("when nothing runs", store.OldestPayouts{UnknownSince: at(60)})
	})
	run(t, open, "ErrorsByCode", func(b *bundle) {
		b.running(1)
		b.running(2)
		targets := []reward.TargetID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
		b.saveQueued(1, targets...)
		b.saveQueued(2, 1)
		refuse := func(promotion reward.PromotionID, target reward.TargetID, code string) {
			o := rules.Outcome{Ref: ref(promotion, target, 1), Kind: rules.OutcomeRefused, Code: code, Message: "said " + code}
			o.Attempts = []reward.Attempt{
				{Dispatch: 1, At: at(1), Class: reward.AnswerFailed, Code: code}, {Dispatch: 1, At: at(2), Class: reward.AnswerRefused, Code: code},
			}
			b.finish(o)
		}
		for _, target := range targets[4:7] {
			refuse(1, target, "LIMIT")
		}
		refuse(1, 9, "ä code")
		refuse(1, 8, "")
		refuse(2, 1, "OTHER")
		unknown(b, 1, 3, 30)
		b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, Code: "TIMEOUT", Message: "slow", RetryAt: at(99)})
		b.wantState(1, 2, reward.Retrying)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		list := must(b.PayoutErrors(b.ctx, 1))(b)
		same(b, "errors", []store.PayoutError{
			{Code: "LIMIT", Failed: 3, TargetID: 4, Message: "said LIMIT", Class: "REFUSED"},
			{Code: "TIMEOUT", Retrying: 1, Unknown: 1, TargetID: 3, Message: "no response for 3"},
			{Code: "ä code", Failed: 1, TargetID: 9, Message: "said ä code", Class: "REFUSED"},
		}, list)
		amounts := must(b.PayoutErrorAmounts(b.ctx, 1, list))(b)
		of := func(targets ...reward.TargetID) (sum reward.Amount) {
			for _, target := range targets {
				sum += b.payout(1, target).Amount
			}
			return sum
		}
		same(b, "amounts", map[string]reward.Amount{"LIMIT": of(4, 5, 6), "TIMEOUT": of(2, 3), "ä code": of(9)}, amounts)
		many := []store.PayoutError{{Code: "LIMIT", Failed: store.PayoutErrorSumMax + 1}, {Code: "TIMEOUT", Unknown: 2}}
		amounts = must(b.PayoutErrorAmounts(b.ctx, 1, many))(b)
		same(b, "amounts of few", map[string]reward.Amount{"TIMEOUT": of(2, 3)}, amounts)
		// What a person retries has no error any more.
		for _, target := range []reward.TargetID{4, 5} {
			must(b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: 1, Targets: []reward.TargetID{target}, Now: at(60)}))(b)
		}
		list = must(b.PayoutErrors(b.ctx, 1))(b)
		slices.SortFunc(list, func(a, c store.PayoutError) int { return int(c.Unknown - a.Unknown) })
		same(b, "first", "TIMEOUT", list[0].Code)
		for _, e := range list[1:] {
			same(b, "failed with "+e.Code, 1, e.Failed)
		}
		list = must(b.PayoutErrors(b.ctx, 9))(b)
		same(b, "of no promotion", 0, len(list))
	})
}
