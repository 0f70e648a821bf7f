package payout

import (
	"context"

	"github.com/largesse/largesse/internal/store"
)

// saver is the way into the database for targets, from wherever they come.
type saver interface {
	// Save writes at most store.BatchMax rows and enqueues those that became
	// QUEUED; see store.Payouts.PayoutSave. [saveResult, enqueueToStream]
	Save(ctx context.Context, p store.PayoutSaveParams) (store.PayoutSaveResult, error)
}
