package storetest

import (
	"cmp"
	"slices"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func sortPayouts(list []reward.Payout) {
	slices.SortFunc(list, func(a, b reward.Payout) int {
		return cmp.Or(cmp.Compare(a.PromotionID, b.PromotionID), cmp.Compare(a.TargetID, b.TargetID))
	})
}

func targetsOf(list []reward.Payout) []reward.TargetID {
	targets := make([]reward.TargetID, len(list))
	for i, p := range list {
		targets[i] = p.TargetID
	}
	slices.Sort(targets)
	return targets
}

func exerciseDispatch(t *testing.T, open Open) {
	dispatch := func(b *bundle, p store.PayoutDispatchParams) []reward.Payout {
		b.Helper()
		p.PromotionID = 1
		return must(b.PayoutDispatch(b.ctx, p))(b)
	}
	run(t, open, "QueuesTheOldestWithinTheRoom", func(b *bundle) {
		b.running(1)
		for i, target := range []reward.TargetID{9, 3, 7, 1, 5} {
			must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(1, target)}, Now: at(i)}))(b)
		}
		list := dispatch(b, store.PayoutDispatchParams{Limit: 2, MaxLen: plenty, Now: at(10)})
		same(b, "oldest", []reward.TargetID{3, 9}, targetsOf(list))
		for _, got := range list {
			r := row(1, got.TargetID)
			want := reward.Payout{
				PromotionID: 1, TargetID: got.TargetID, SummaryID: r.SummaryID, UserID: r.UserID, Amount: r.Amount,
				State: reward.Queued, Dispatch: 1, DueAt: at(10), FirstDispatchedAt: at(10), UpdatedAt: at(10),
			}
			same(b, "returned", want, got)
			same(b, "stored", want, b.payout(1, got.TargetID))
		}
		same(b, "room for one", []reward.TargetID{7}, targetsOf(dispatch(b, store.PayoutDispatchParams{Limit: 9, MaxLen: 3, Now: at(11)})))
		same(b, "no room", 0, len(dispatch(b, store.PayoutDispatchParams{Limit: 9, MaxLen: 3, Now: at(12)})))
		same(b, "less than no room", 0, len(dispatch(b, store.PayoutDispatchParams{Limit: 9, MaxLen: 1, Now: at(12)})))
		same(b, "no limit left", 0, len(dispatch(b, store.PayoutDispatchParams{Limit: 0, MaxLen: plenty, Now: at(12)})))
		v := b.view(1)
		same(b, "last dispatch", at(11), v.LastDispatchedAt)
		same(b, "stream destroyed", false, v.StreamDestroyed)
		b.books(1)
		// A clock that is behind does not move LastDispatchedAt back.
		same(b, "rest", 2, len(dispatch(b, store.PayoutDispatchParams{Limit: 9, MaxLen: plenty, Now: at(-5)})))
		v = b.view(1)
		same(b, "last dispatch", at(11), v.LastDispatchedAt)
	})
	run(t, open, "RefsNameTheirDispatch", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveQueued(1, 1, 2, 3, 4)
		for target := reward.TargetID(1); target <= 3; target++ {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeNoAnswer, RetryAt: at(20)})
		}
		p := store.PayoutDispatchParams{
			From: reward.Retrying, Limit: 9, MaxLen: plenty, Now: at(20),
			Refs: []reward.Ref{ref(1, 2, 1), ref(1, 1, 2), ref(1, 2, 1), ref(1, 4, 1), ref(1, 9, 1), ref(2, 3, 1)},
		}
		early := p
		early.Now = at(19)
		same(b, "too early", 0, len(dispatch(b, early)))
		same(b, "named", []reward.TargetID{2}, targetsOf(dispatch(b, p)))
		same(b, "a stale record", 0, len(dispatch(b, p)))
		p.Refs = []reward.Ref{}
		same(b, "no refs", 0, len(dispatch(b, p)))
		b.books(1)
		list := must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 9, Limit: 9, MaxLen: plenty, Now: at(1)}))(b)
		same(b, "of no promotion", 0, len(list))
		_, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, From: reward.Unknown, Limit: 1, MaxLen: 1})
		b.wantCode(err, reward.CodeInvalid)
	})
}

func exerciseWithdraw(t *testing.T, open Open) {
	run(t, open, "SweepAndCancelAreBounded", func(b *bundle) {
		b.running(1)
		targets := firstTargets(store.BatchMax)
		b.saveQueued(1, targets...)
		b.saveQueued(1, 5000, 5001)
		p := store.PayoutSweepParams{PromotionID: 1, Before: at(1), Lease: lease, Now: at(2)}
		for _, want := range []int{store.BatchMax, 2, 0} {
			n := must(b.PayoutSweep(b.ctx, p))(b)
			same(b, "swept", want, n)
		}
		b.move(1, reward.PromotionCancelled)
		for _, want := range []int{store.BatchMax, 2, 0} {
			n := must(b.PayoutCancelStep(b.ctx, store.PayoutCancelStepParams{PromotionID: 1, Lease: lease, Now: at(3)}))(b)
			same(b, "cancelled", want, n)
		}
		b.books(1)
	})
}
