package payout

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// flowStore is the store of a flow. It writes and reads all times of payouts by the
// clock of the database, whatever the caller sets as Now: another instance decides by
// them when a dispatch is lost, when a stream can be destroyed, when a key may be
// forgotten, and when "not found" settles a payout. It also reports payouts that were
// charged twice. No target becomes QUEUED that needs an approval.
type flowStore struct {
	store.Store
	clock *clock
	// approvalAbove is the setting approval.above. Every save and dispatch obeys it.
	approvalAbove reward.Amount
	// chargedTwice is called for a payout that was confirmed with another
	// transaction key before. It may be nil.
	chargedTwice func(ctx context.Context, c store.SecondCharge)
}

// newFlowStore returns the store of a flow.
func newFlowStore(s store.Store, approvalAbove reward.Amount, chargedTwice func(context.Context, store.SecondCharge)) *flowStore {
	return &flowStore{Store: s, clock: &clock{read: s.Clock}, approvalAbove: approvalAbove, chargedTwice: chargedTwice}
}

// PromotionDue returns the DRAFTs whose StartsAt has passed by the time of the
// database, so that no instance with a fast clock starts one early.
func (s *flowStore) PromotionDue(ctx context.Context, _ time.Time, limit int) ([]store.PromotionView, error) {
	now, _, err := s.clock.between(ctx)
	if err != nil {
		return nil, err
	}
	return s.Store.PromotionDue(ctx, now, limit)
}

// PromotionComplete ends promotions by the time of the database, so that no instance
// with a fast clock takes the lease of an upload for expired.
func (s *flowStore) PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration, _ time.Time) (bool, error) {
	now, _, err := s.clock.between(ctx)
	if err != nil {
		return false, err
	}
	return s.Store.PromotionComplete(ctx, id, settleAfter, now)
}

// PayoutSave saves and dispatches payouts with the time of the database.
func (s *flowStore) PayoutSave(ctx context.Context, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	now, _, err := s.clock.between(ctx)
	if err != nil {
		return store.PayoutSaveResult{}, err
	}
	p.Now, p.ApprovalAbove = now, cmp.Or(p.ApprovalAbove, s.approvalAbove)
	return s.Store.PayoutSave(ctx, p)
}

// PayoutDispatch dispatches payouts with the time of the database.
func (s *flowStore) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) ([]reward.Payout, error) {
	now, _, err := s.clock.between(ctx)
	if err != nil {
		return nil, err
	}
	p.Now, p.ApprovalAbove = now, cmp.Or(p.ApprovalAbove, s.approvalAbove)
	return s.Store.PayoutDispatch(ctx, p)
}

// PayoutFinish writes outcomes with the time of the database. The time of a retry
// keeps its distance from the present.
func (s *flowStore) PayoutFinish(ctx context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error) {
	_, now, err := s.clock.between(ctx)
	if err != nil {
		return nil, err
	}
	p.Now = now
	outcomes := slices.Clone(p.Outcomes) // a failed write is repeated with the same ones
	for i, o := range outcomes {
		if !o.RetryAt.IsZero() {
			outcomes[i].RetryAt = now.Add(time.Until(o.RetryAt))
		}
	}
	p.Outcomes = outcomes
	results, err := s.Store.PayoutFinish(ctx, p)
	for i, r := range results {
		if r.Recorded != "" {
			o := p.Outcomes[i]
			s.report(ctx, store.SecondCharge{Ref: o.Ref, Recorded: r.Recorded, TransactionKey: o.TransactionKey})
		}
	}
	return results, err
}

// PayoutSettle writes results of lookups with the time of the database.
func (s *flowStore) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) ([]store.SecondCharge, error) {
	_, now, err := s.clock.between(ctx)
	if err != nil {
		return nil, err
	}
	p.Now = now
	twice, err := s.Store.PayoutSettle(ctx, p)
	for _, c := range twice {
		s.report(ctx, c)
	}
	return twice, err
}

// PayoutReturn returns payouts with the time of the database.
func (s *flowStore) PayoutReturn(ctx context.Context, p store.PayoutReturnParams) (int, error) {
	_, now, err := s.clock.between(ctx)
	if err != nil {
		return 0, err
	}
	p.Now = now
	return s.Store.PayoutReturn(ctx, p)
}

// PayoutSweep sweeps payouts with the time of the database.
func (s *flowStore) PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (int, error) {
	_, now, err := s.clock.between(ctx)
	if err != nil {
		return 0, err
	}
	p.Now = now
	return s.Store.PayoutSweep(ctx, p)
}

// PayoutCancelStep cancels payouts with the time of the database.
func (s *flowStore) PayoutCancelStep(ctx context.Context, p store.PayoutCancelStepParams) (int, error) {
	_, now, err := s.clock.between(ctx)
	if err != nil {
		return 0, err
	}
	p.Now = now
	return s.Store.PayoutCancelStep(ctx, p)
}

func (s *flowStore) report(ctx context.Context, c store.SecondCharge) {
	if s.chargedTwice != nil {
		s.chargedTwice(context.WithoutCancel(ctx), c)
	}
}

var _ store.Payouts = (*flowStore)(nil)
