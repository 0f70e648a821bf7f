package payout

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// flowStore is the store of a flow. It writes and reads all times of payouts by the
// clock of the database, whatever the caller sets as Now: another instance decides by
// them when a dispatch is lost, when a stream can be destroyed, when a key may be
// forgotten, and when "not found" settles a payout. It also reports payouts that were
// charged twice, or with the transaction key of another one. No target becomes QUEUED
// that needs an approval.
type flowStore struct {
	store.Store
	clock *clock
	// approvalAbove is the setting approval.above. Every start by a record, save and
	// dispatch obeys it.
	approvalAbove reward.Limits
	breaches      Breaches
	latest        confirmations
}

// Breaches handle confirmations of the provider that contradict an earlier one. Each may
// be nil.
type Breaches struct {
	// ChargedTwice is called for a payout that was confirmed with another transaction
	// key before.
	ChargedTwice func(ctx context.Context, c store.SecondCharge)
	// KeyShared is called for a payout that was confirmed with the transaction key of
	// another one, the first.
	KeyShared func(ctx context.Context, key string, first, second store.PayoutID)
}

// newFlowStore returns the store of a flow.
func newFlowStore(s store.Store, approvalAbove reward.Limits, breaches Breaches) *flowStore {
	return &flowStore{Store: s, clock: &clock{read: s.Clock}, approvalAbove: approvalAbove, breaches: breaches}
}

// confirmationsMax limits the confirmations that each half of confirmations has.
const confirmationsMax = 20_000

// confirmations has the payouts of the latest confirmations by transaction key. It is
// safe for concurrent use.
type confirmations struct {
	mu          sync.Mutex // protects what follows
	now, before map[string]store.PayoutID
}

// add adds a confirmation. If another payout has the key, it returns that one.
func (c *confirmations) add(key string, id store.PayoutID) (other store.PayoutID, shared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, half := range []map[string]store.PayoutID{c.now, c.before} {
		if known, ok := half[key]; ok {
			return known, known != id
		}
	}
	if c.now == nil || len(c.now) == confirmationsMax {
		c.now, c.before = make(map[string]store.PayoutID), c.now
	}
	c.now[key] = id
	return id, false
}

// PromotionRegister registers promotions with the time of the database, so that no
// record starts one early.
func (s *flowStore) PromotionRegister(ctx context.Context, rs []store.Registration, _ reward.Limits, _ time.Time) ([]reward.Promotion, error) {
	now, _, err := s.clock.between(ctx)
	if err != nil {
		return nil, err
	}
	return s.Store.PromotionRegister(ctx, rs, s.approvalAbove, now)
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
	if p.Now = now; p.ApprovalAbove.Default == 0 {
		p.ApprovalAbove = s.approvalAbove
	}
	return s.Store.PayoutSave(ctx, p)
}

// PayoutDispatch dispatches payouts with the time of the database.
func (s *flowStore) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) ([]reward.Payout, error) {
	now, _, err := s.clock.between(ctx)
	if err != nil {
		return nil, err
	}
	if p.Now = now; p.ApprovalAbove.Default == 0 {
		p.ApprovalAbove = s.approvalAbove
	}
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
	var paid []confirmation
	for i, r := range results {
		o := &p.Outcomes[i]
		if r.Recorded != "" {
			s.chargedTwice(ctx, store.SecondCharge{Ref: o.Ref, Recorded: r.Recorded, TransactionKey: o.TransactionKey})
		}
		if o.Kind == rules.OutcomePaid {
			paid = append(paid, confirmation{o.Ref, o.TransactionKey})
		}
	}
	s.confirmed(ctx, paid)
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
		s.chargedTwice(ctx, c)
	}
	var paid []confirmation
	for _, l := range p.Lookups {
		if l.Found && err == nil {
			paid = append(paid, confirmation{l.Ref, l.TransactionKey})
		}
	}
	s.confirmed(ctx, paid)
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

func (s *flowStore) chargedTwice(ctx context.Context, c store.SecondCharge) {
	if s.breaches.ChargedTwice != nil {
		s.breaches.ChargedTwice(context.WithoutCancel(ctx), c)
	}
}

// confirmation is the transaction key with which the provider confirmed a payout.
type confirmation struct {
	reward.Ref
	key string
}

// confirmed notes the confirmations of a batch, and reports those with the key of another
// payout: one per promotion, so that a provider whose keys are all the same holds up the
// outcomes of no other promotion.
func (s *flowStore) confirmed(ctx context.Context, paid []confirmation) {
	if s.breaches.KeyShared == nil {
		return
	}
	reported := make(map[reward.PromotionID]bool)
	for _, c := range paid {
		if c.key == "" {
			continue
		}
		id := store.PayoutID{PromotionID: c.PromotionID, TargetID: c.TargetID}
		if other, shared := s.latest.add(c.key, id); shared && !reported[c.PromotionID] {
			reported[c.PromotionID] = true
			s.breaches.KeyShared(context.WithoutCancel(ctx), c.key, other, id)
		}
	}
}

var _ store.Payouts = (*flowStore)(nil)
