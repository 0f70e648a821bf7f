package storetest

import (
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// failDelivery lets deliveries fail without an outcome: the rows go back to READY.
func (b *bundle) failDelivery(refs ...reward.Ref) {
	b.Helper()
	n := must(b.PayoutReturn(b.ctx, store.PayoutReturnParams{
		Refs: refs, MaybeCalled: true, DeliveryFailed: true, Lease: lease, Now: at(5),
	}))(b)
	same(b, "handed over", len(refs), n)
}

// again dispatches all READY rows of promotion 1 and returns them.
func (b *bundle) again() []reward.Payout {
	b.Helper()
	list := must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
		PromotionID: 1, Limit: store.BatchMax, MaxLen: plenty, Now: at(6),
	}))(b)
	sortPayouts(list)
	return list
}

// wantDeliveries checks the failed deliveries of a target of promotion 1.
func (b *bundle) wantDeliveries(target reward.TargetID, want int32) {
	b.Helper()
	if got := b.payout(1, target).FailedDeliveries; got != want {
		b.Fatalf("target %d was handed over %d times, want %d", target, got, want)
	}
}

func exerciseDeliveries(t *testing.T, open Open) {
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
		heads := must(b.PayoutGetMany(b.ctx, []store.PayoutID{{PromotionID: 1, TargetID: 1}, {PromotionID: 1, TargetID: 2}}))(b)
		same(b, "heads", []int32{1, 0}, of(heads))
		same(b, "listed", []int32{1, 0}, of(b.all(1)))
		b.wantDeliveries(1, 1)
		b.move(1, reward.PromotionCancelled)
		b.failDelivery(ref(1, 1, 2))
		b.wantState(1, 1, reward.Unknown)
		looked := must(b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: 9, Until: at(60), Now: at(30)}))(b)
		same(b, "to look up", []int32{2}, of(looked))
	})
}

// AfterMigration checks that a payout of an older schema is complete and can
// continue. Promotion 1 is RUNNING, and its payout 7 was QUEUED before failed
// deliveries were counted. The check leaves the payout QUEUED, so that it can
// run again.
func AfterMigration(t *testing.T, s *rows.Tables) {
	t.Helper()
	b := &bundle{TB: t, Tables: s, ctx: t.Context()}
	v := b.view(1)
	same(b, "name", "old", v.Name)
	same(b, "consumers per instance", 0, v.ConsumersPerInstance)
	same(b, "weight", 1, v.Weight)
	b.lettersAfterMigration()
	p := b.payout(1, 7)
	same(b, "state", reward.Queued, p.State)
	same(b, "handovers", 0, p.FailedDeliveries)
	b.wantHistory("u", 10, store.PayoutID{PromotionID: 1, TargetID: 7})
	b.failDelivery(ref(1, 7, p.Dispatch))
	b.wantDeliveries(7, 1)
	b.books(1)
	res := b.finish(rules.Outcome{Ref: ref(1, 7, b.again()[0].Dispatch), Kind: rules.OutcomeNoAnswer, RetryAt: at(6)})
	same(b, "changed", true, res.Changed)
	list := must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
		PromotionID: 1, From: reward.Retrying, Limit: 1, MaxLen: plenty, Now: at(7),
	}))(b)
	same(b, "dispatched", 1, len(list))
	b.wantDeliveries(7, 0)
	b.saveReady(1, 8)
	b.wantDeliveries(8, 0)
	b.wantHistory("u8", 10, store.PayoutID{PromotionID: 1, TargetID: 8})
	must(b.InstanceHeartbeat(b.ctx, store.Instance{Name: "a", StartedAt: epoch}, lease))(b)
	same(b, "instances", 1, instances(b))
}

func instances(b *bundle) int {
	b.Helper()
	list := must(b.InstanceList(b.ctx))(b)
	return len(list)
}
