package storetest

import (
	"fmt"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// failDelivery lets deliveries fail without an outcome: the rows go back to READY.
func (b *bundle) failDelivery(refs ...reward.Ref) {
	b.Helper()
	n, err := b.PayoutReturn(b.ctx, store.PayoutReturnParams{
		Refs: refs, MaybeCalled: true, DeliveryFailed: true, Lease: lease, Now: at(5),
	})
	b.must(err)
	same(b, "handed over", len(refs), n)
}

// again dispatches all READY rows of promotion 1 and returns them.
func (b *bundle) again() []reward.Payout {
	b.Helper()
	list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
		PromotionID: 1, Limit: store.BatchMax, MaxLen: plenty, Now: at(6),
	})
	b.must(err)
	sortPayouts(list)
	return list
}

// wantHandovers checks the failed deliveries of a target of promotion 1.
func (b *bundle) wantHandovers(target reward.TargetID, want int32) {
	b.Helper()
	if got := b.payout(1, target).FailedDeliveries; got != want {
		b.Fatalf("target %d was handed over %d times, want %d", target, got, want)
	}
}

func exerciseHandovers(t *testing.T, open Open) {
	run(t, open, "AreCountedWhenAHolderLetGo", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3)
		n, err := b.PayoutReturn(b.ctx, store.PayoutReturnParams{
			Refs:           []reward.Ref{ref(1, 1, 1), ref(1, 1, 1), ref(1, 2, 7), ref(1, 9, 1)}, // twice; another dispatch number; unknown
			DeliveryFailed: true, Lease: lease, Now: at(5),
		})
		b.must(err)
		same(b, "handed over", 1, n)
		b.wantHandovers(1, 1)
		same(b, "flag", false, b.payout(1, 1).MaybeCalled)
		b.wantHandovers(2, 0)
		n, err = b.PayoutReturn(b.ctx, store.PayoutReturnParams{
			Refs: []reward.Ref{ref(1, 2, 1)}, MaybeCalled: true, Lease: lease, Now: at(5),
		})
		b.must(err)
		same(b, "given back", 1, n)
		b.wantHandovers(2, 0)
		b.again()
		b.failDelivery(ref(1, 1, 2), ref(1, 3, 1))
		b.wantHandovers(1, 2)
		b.wantHandovers(3, 1)
		b.books(1)
	})
	run(t, open, "AreInEveryReading", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2)
		b.failDelivery(ref(1, 1, 1))
		of := func(list []reward.Payout) []int32 {
			sortPayouts(list)
			var counts []int32
			for _, p := range list {
				counts = append(counts, p.FailedDeliveries)
			}
			return counts
		}
		same(b, "dispatched", []int32{1}, of(b.again()))
		heads, err := b.PayoutGetMany(b.ctx, []store.PayoutID{{PromotionID: 1, TargetID: 1}, {PromotionID: 1, TargetID: 2}})
		b.must(err)
		same(b, "heads", []int32{1, 0}, of(heads))
		same(b, "listed", []int32{1, 0}, of(b.all(1)))
		b.wantHandovers(1, 1)
		b.move(1, reward.PromotionCancelled)
		b.failDelivery(ref(1, 1, 2))
		b.wantState(1, 1, reward.Unknown)
		looked, err := b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: 9, Until: at(60), Now: at(30)})
		b.must(err)
		same(b, "to look up", []int32{2}, of(looked))
	})
	for kind, name := range map[rules.OutcomeKind]string{
		rules.OutcomePaid: "Paid", rules.OutcomeRefused: "Refused", rules.OutcomeFailed: "Failed",
		rules.OutcomeNoAnswer: "NoAnswer", rules.OutcomeNoLookup: "NoLookup", rules.OutcomeCancelled: "Cancelled",
	} {
		run(t, open, "StartAnewAfterTheOutcome"+name, func(b *bundle) {
			b.running(1)
			b.saveQueued(1, 1, 2)
			b.failDelivery(ref(1, 1, 1), ref(1, 2, 1))
			b.again()
			if kind != rules.OutcomePaid {
				late := b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: kind, RetryAt: at(20)})
				same(b, "a late one", false, late.Changed)
				b.wantHandovers(1, 1)
			}
			res := b.finish(rules.Outcome{Ref: ref(1, 1, 2), Kind: kind, RetryAt: at(20)})
			same(b, "changed", true, res.Changed)
			b.wantHandovers(1, 0)
			b.wantHandovers(2, 1)
		})
	}
	run(t, open, "OnlyAnOutcomeForgetsThem", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2)
		b.failDelivery(ref(1, 1, 1), ref(1, 2, 1))
		both := func(what string) {
			b.Helper()
			for target := reward.TargetID(1); target <= 2; target++ {
				if got := b.payout(1, target).FailedDeliveries; got != 1 {
					b.Fatalf("after %s target %d was handed over %d times, want 1", what, target, got)
				}
			}
		}
		b.again()
		both("a dispatch")
		n, err := b.PayoutSweep(b.ctx, store.PayoutSweepParams{PromotionID: 1, Before: at(20), Lease: lease, Now: at(20)})
		b.must(err)
		same(b, "swept", 2, n)
		both("a sweep")
		b.saveReady(1, 1, 2)
		both("a repeated save")
		b.move(1, reward.PromotionCancelled)
		n, err = b.PayoutCancelStep(b.ctx, store.PayoutCancelStepParams{PromotionID: 1, Lease: lease, Now: at(30)})
		b.must(err)
		same(b, "cancelled", 2, n)
		both("a cancel")
		_, err = b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: 9, Until: at(31), Now: at(30)})
		b.must(err)
		both("a lookup was taken")
		for _, l := range []rules.Lookup{
			{BeganAt: at(32), NextAt: at(33)},
			{BeganAt: at(200), NextAt: at(201), NotFound: true},
			{BeganAt: at(300), NextAt: at(301), Found: true, TransactionKey: "tx"},
		} {
			first, second := l, l
			first.Ref, second.Ref = ref(1, 1, 2), ref(1, 2, 2)
			b.settleLookups(store.PayoutSettleParams{
				Lookups: []rules.Lookup{first, second}, SettleAfter: settleAfter, Now: l.NextAt,
			})
			both("a lookup")
		}
		b.wantState(1, 1, reward.Succeeded)
		b.books(1)
	})
}

// ExerciseHandoversMax checks that failed deliveries stop at their maximum.
// exec runs a statement that every dialect understands.
func ExerciseHandoversMax(t *testing.T, s store.Store, exec func(sql string) error) {
	t.Helper()
	b := &bundle{reporter: t, Store: s, ctx: t.Context()}
	b.running(1)
	b.saveQueued(1, 1)
	b.must(exec(fmt.Sprintf("UPDATE payouts SET handovers = %d", rules.FailedDeliveriesMax-1)))
	for n := int32(1); n <= 3; n++ {
		b.failDelivery(ref(1, 1, n))
		b.wantHandovers(1, rules.FailedDeliveriesMax)
		same(b, "dispatched", rules.FailedDeliveriesMax, b.again()[0].FailedDeliveries)
	}
	b.finish(rules.Outcome{Ref: ref(1, 1, 4), Kind: rules.OutcomePaid})
	b.wantHandovers(1, 0)
}

// AfterMigration checks that a payout of an older schema is complete and can
// continue. Promotion 1 is RUNNING, and its payout 7 was QUEUED before failed
// deliveries were counted. The check leaves the payout QUEUED, so that it can
// run again.
func AfterMigration(t *testing.T, s store.Store) {
	t.Helper()
	b := &bundle{reporter: t, Store: s, ctx: t.Context()}
	v, err := b.PromotionGet(b.ctx, 1)
	b.must(err)
	same(b, "name", "old", v.Name)
	same(b, "consumers per instance", 0, v.ConsumersPerInstance)
	same(b, "weight", 1, v.Weight)
	b.lettersAfterMigration()
	p := b.payout(1, 7)
	same(b, "state", reward.Queued, p.State)
	same(b, "handovers", 0, p.FailedDeliveries)
	b.wantHistory("u", 10, store.PayoutID{PromotionID: 1, TargetID: 7})
	b.failDelivery(ref(1, 7, p.Dispatch))
	b.wantHandovers(7, 1)
	b.books(1)
	res := b.finish(rules.Outcome{Ref: ref(1, 7, b.again()[0].Dispatch), Kind: rules.OutcomeNoAnswer, RetryAt: at(6)})
	same(b, "changed", true, res.Changed)
	list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
		PromotionID: 1, From: reward.Retrying, Limit: 1, MaxLen: plenty, Now: at(7),
	})
	b.must(err)
	same(b, "dispatched", 1, len(list))
	b.wantHandovers(7, 0)
	b.saveReady(1, 8)
	b.wantHandovers(8, 0)
	b.wantHistory("u8", 10, store.PayoutID{PromotionID: 1, TargetID: 8})
	_, err = b.InstanceHeartbeat(b.ctx, store.Instance{Name: "a", StartedAt: epoch}, lease)
	b.must(err)
	same(b, "instances", 1, instances(b))
}

func instances(b *bundle) int {
	b.Helper()
	list, err := b.InstanceList(b.ctx)
	b.must(err)
	return len(list)
}
