package store

import "github.com/largesse/largesse/internal/reward"

// Comparison is what SummaryCompare found before it repaired anything.
type Comparison struct {
	Kept reward.Counts // the stored counts
	Rows reward.Counts // those that the rows add up to
	// Ended reports whether the promotion is COMPLETED, or CANCELLED and finished.
	// No payout may then be READY, QUEUED or RETRYING.
	Ended    bool
	Currency string // of the promotion; empty: points
}
