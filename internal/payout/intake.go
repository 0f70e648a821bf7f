package payout

import (
	"cmp"
	"context"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Intake saves targets as rows, and adds entries for those that may be paid
// immediately.
type Intake struct {
	Rows     store.Payouts // sets the time of each write
	Producer *Producer
	MaxLen   int
}

// Save writes at most store.BatchMax rows of promotions of type t; see
// store.Payouts.PayoutSave. It sets MaxLen in p. It then adds an entry for
// each row that became QUEUED. After a crash between the two steps, the sweeper
// returns these rows to READY.
func (in *Intake) Save(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	p.MaxLen = in.MaxLen
	if !in.Producer.clock.acceptsAll() {
		p.MaxLen = 0 // the rows wait for a feeder whose clock the queue accepts
	}
	res, err := in.Rows.PayoutSave(ctx, p)
	if err != nil {
		return res, err
	}
	// One add per promotion, in the order of arrival.
	slices.SortStableFunc(res.Queued, func(a, b reward.Payout) int { return cmp.Compare(a.PromotionID, b.PromotionID) })
	in.Producer.Enqueue(ctx, t, res.Queued)
	return res, nil
}
