package payout

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Intake saves targets and enqueues those that may be paid at once.
type Intake struct {
	Rows     store.Payouts
	Producer *Producer
	MaxLen   int
}

// Save writes at most store.BatchMax rows of promotions of type t (see
// store.Payouts.PayoutSave) and enqueues those that became QUEUED. Dying between the two leaves QUEUED rows
// for the sweeper. Now and MaxLen are filled in. [saveResult, enqueueToStream]
func (in *Intake) Save(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	p.Now, p.MaxLen = time.Now(), in.MaxLen
	res, err := in.Rows.PayoutSave(ctx, p)
	if err != nil {
		return res, err
	}
	// One add per promotion, in the order in which they came.
	slices.SortStableFunc(res.Queued, func(a, b reward.Payout) int { return cmp.Compare(a.PromotionID, b.PromotionID) })
	// Whoever has asked for the save may go; the rows are QUEUED all the same.
	in.Producer.Enqueue(context.WithoutCancel(ctx), t, res.Queued, p.Now)
	return res, nil
}
