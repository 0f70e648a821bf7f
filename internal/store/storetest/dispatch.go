package storetest

import (
	"cmp"
	"slices"
	"testing"
	"time"

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
		list, err := b.PayoutDispatch(b.ctx, p)
		b.must(err)
		return list
	}
	run(t, open, "QueuesTheOldestWithinTheRoom", func(b *bundle) {
		b.running(1)
		for i, target := range []reward.TargetID{9, 3, 7, 1, 5} {
			_, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(1, target)}, Now: at(i)})
			b.must(err)
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
		v, err := b.PromotionGet(b.ctx, 1)
		b.must(err)
		same(b, "last dispatch", at(11), v.LastDispatchedAt)
		same(b, "stream destroyed", false, v.StreamDestroyed)
		b.books(1)
		// A clock that is behind does not move LastDispatchedAt back.
		same(b, "rest", 2, len(dispatch(b, store.PayoutDispatchParams{Limit: 9, MaxLen: plenty, Now: at(-5)})))
		v, err = b.PromotionGet(b.ctx, 1)
		b.must(err)
		same(b, "last dispatch", at(11), v.LastDispatchedAt)
	})
	run(t, open, "OnlyOfARunningOne", func(b *bundle) {
		b.draft(1)
		b.saveReady(1, 1, 2)
		p := store.PayoutDispatchParams{Limit: 9, MaxLen: plenty, Now: at(1)}
		same(b, "draft", 0, len(dispatch(b, p)))
		b.move(1, reward.Running)
		b.move(1, reward.Paused)
		same(b, "paused", 0, len(dispatch(b, p)))
		b.move(1, reward.PromotionCancelled)
		same(b, "cancelled", 0, len(dispatch(b, p)))
		list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 2, Limit: 9, MaxLen: plenty, Now: at(1)})
		b.must(err)
		same(b, "unknown", 0, len(list))
		b.books(1)
		_, err = b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, From: reward.Unknown, Limit: 1, MaxLen: 1})
		b.wantCode(err, reward.CodeInvalid)
	})
	run(t, open, "RetriesOnlyWhatIsDue", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3)
		for i := range reward.TargetID(3) {
			b.finish(rules.Outcome{Ref: ref(1, i+1, 1), Kind: rules.OutcomeFailed, RetryAt: at(20 + 10*int(i))})
		}
		p := store.PayoutDispatchParams{From: reward.Retrying, Limit: 9, MaxLen: plenty, Now: at(19)}
		same(b, "too early", 0, len(dispatch(b, p)))
		p.Now = at(30)
		list := dispatch(b, p)
		same(b, "due", []reward.TargetID{1, 2}, targetsOf(list))
		same(b, "dispatch", 2, list[0].Dispatch)
		same(b, "first dispatch", epoch, list[0].FirstDispatchedAt)
		same(b, "flag", true, list[0].MaybeCalled)
		b.books(1)
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
	})
}

func exerciseWithdraw(t *testing.T, open Open) {
	giveBack := func(b *bundle, maybeCalled bool, refs ...reward.Ref) int {
		b.Helper()
		n, err := b.PayoutReturn(b.ctx, store.PayoutReturnParams{Refs: refs, MaybeCalled: maybeCalled, Lease: lease, Now: at(10)})
		b.must(err)
		return n
	}
	run(t, open, "GiveBackNamesTheDispatch", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveQueued(1, 1, 2)
		b.saveQueued(2, 1)
		b.saveReady(1, 3)
		same(b, "late, or not queued", 0, giveBack(b, true, ref(1, 1, 0), ref(1, 1, 2), ref(1, 3, 0), ref(1, 9, 1)))
		same(b, "given back", 2, giveBack(b, false, ref(2, 1, 1), ref(1, 1, 1), ref(1, 1, 1)))
		p := b.payout(1, 1)
		same(b, "state", reward.Ready, p.State)
		same(b, "flag", false, p.MaybeCalled)
		same(b, "due", at(10), p.DueAt)
		same(b, "dispatch", 1, p.Dispatch)
		same(b, "again", 0, giveBack(b, false, ref(1, 1, 1)))
		same(b, "claimed", 1, giveBack(b, true, ref(1, 2, 1)))
		same(b, "flag", true, b.payout(1, 2).MaybeCalled)
		same(b, "nothing", 0, giveBack(b, true))
		b.books(1)
		b.books(2)
	})
	run(t, open, "GiveBackKeepsTheFlag", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1)
		giveBack(b, true, ref(1, 1, 1))
		_, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 1, MaxLen: 1, Now: at(11)})
		b.must(err)
		same(b, "refused by the queue", 1, giveBack(b, false, ref(1, 1, 2)))
		same(b, "flag", true, b.payout(1, 1).MaybeCalled)
		same(b, "first dispatch", epoch, b.payout(1, 1).FirstDispatchedAt)
	})
	run(t, open, "GiveBackOfACancelledOne", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3)
		giveBack(b, true, ref(1, 1, 1))
		_, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 1, MaxLen: plenty, Now: at(10)})
		b.must(err)
		b.move(1, reward.PromotionCancelled)
		same(b, "refused by the queue", 2, giveBack(b, false, ref(1, 1, 2), ref(1, 2, 1)))
		same(b, "claimed", 1, giveBack(b, true, ref(1, 3, 1)))
		b.wantState(1, 2, reward.Cancelled)
		for _, target := range []reward.TargetID{1, 3} {
			p := b.payout(1, target)
			same(b, "state", reward.Unknown, p.State)
			same(b, "flag", true, p.MaybeCalled)
			same(b, "settles from", at(25), p.SettleFrom)
			same(b, "lookup due", at(10), p.DueAt)
		}
		b.books(1)
	})
	run(t, open, "SweepTakesOldOnesOnly", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveReady(1, 1, 2, 3)
		b.saveQueued(2, 1)
		for i := range 3 {
			_, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 1, MaxLen: plenty, Now: at(10 * i)})
			b.must(err)
		}
		sweep := func(before time.Time) int {
			b.Helper()
			n, err := b.PayoutSweep(b.ctx, store.PayoutSweepParams{PromotionID: 1, Before: before, Lease: lease, Now: at(40)})
			b.must(err)
			return n
		}
		same(b, "none before the first", 0, sweep(at(0)))
		same(b, "two before the third", 2, sweep(at(20)))
		p := b.payout(1, 1)
		same(b, "state", reward.Ready, p.State)
		same(b, "flag", true, p.MaybeCalled)
		same(b, "due", at(40), p.DueAt)
		b.wantState(1, 3, reward.Queued)
		b.move(1, reward.PromotionCancelled)
		same(b, "of a cancelled one", 1, sweep(at(30)))
		p = b.payout(1, 3)
		same(b, "state", reward.Unknown, p.State)
		same(b, "settles from", at(55), p.SettleFrom)
		b.wantState(2, 1, reward.Queued)
		b.books(1)
	})
	run(t, open, "SweepAndCancelAreBounded", func(b *bundle) {
		b.running(1)
		var targets []reward.TargetID
		for i := range reward.TargetID(store.BatchMax) {
			targets = append(targets, i)
		}
		b.saveQueued(1, targets...)
		b.saveQueued(1, 5000, 5001)
		p := store.PayoutSweepParams{PromotionID: 1, Before: at(1), Lease: lease, Now: at(2)}
		for _, want := range []int{store.BatchMax, 2, 0} {
			n, err := b.PayoutSweep(b.ctx, p)
			b.must(err)
			same(b, "swept", want, n)
		}
		b.move(1, reward.PromotionCancelled)
		for _, want := range []int{store.BatchMax, 2, 0} {
			n, err := b.PayoutCancelStep(b.ctx, store.PayoutCancelStepParams{PromotionID: 1, Lease: lease, Now: at(3)})
			b.must(err)
			same(b, "cancelled", want, n)
		}
		b.books(1)
	})
	run(t, open, "CancelStepTellsCalledFromUncalled", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3, 4, 5)
		b.saveReady(1, 6)
		giveBack(b, true, ref(1, 1, 1))
		giveBack(b, false, ref(1, 2, 1))
		b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeFailed, RetryAt: at(20)})
		b.finish(rules.Outcome{Ref: ref(1, 4, 1), Kind: rules.OutcomePaid})
		step := func() int {
			b.Helper()
			n, err := b.PayoutCancelStep(b.ctx, store.PayoutCancelStepParams{PromotionID: 1, Lease: lease, Now: at(30)})
			b.must(err)
			return n
		}
		same(b, "of a running one", 0, step())
		b.move(1, reward.PromotionCancelled)
		same(b, "moved", 4, step())
		same(b, "again", 0, step())
		for target, want := range map[reward.TargetID]reward.State{
			1: reward.Unknown, 2: reward.Cancelled, 3: reward.Unknown, 4: reward.Succeeded, 5: reward.Queued, 6: reward.Cancelled,
		} {
			b.wantState(1, target, want)
		}
		same(b, "settles from", at(45), b.payout(1, 1).SettleFrom)
		same(b, "attempts", 1, b.payout(1, 3).Attempts)
		b.books(1)
	})
}
