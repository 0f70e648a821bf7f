package store

import (
	"fmt"

	"github.com/largesse/largesse/internal/reward"
)

// Comparison is what SummaryCompare found before it repaired anything.
type Comparison struct {
	Kept reward.Counts // the stored counts
	Rows reward.Counts // those that the rows add up to
	// Ended reports whether the promotion is COMPLETED, or CANCELLED and finished.
	// No payout may then be READY, QUEUED or RETRYING.
	Ended    bool
	Currency string // of the promotion; empty: points
}

// repairsMax limits how often CompareCounts corrects counts before it fails.
const repairsMax = 4

// CompareCounts compares the counts of a promotion as both drivers of a store do.
// If repair is true, it corrects them until a read finds nothing wrong. It returns
// what the first read found. read also reports whether a stored count is wrong;
// correct adds the differences of the latest read.
func CompareCounts(id reward.PromotionID, repair bool, read func() (c Comparison, differs bool, err error), correct func() error) (Comparison, error) {
	first, differs, err := read()
	if err != nil {
		return Comparison{}, err
	}
	c := first
	for n := 0; repair && (differs || c.Ended && c.Rows.Undecided() > 0); n++ {
		if n == repairsMax {
			return Comparison{}, fmt.Errorf("the counts of promotion %d changed during each of %d repairs; "+
				"end the programs that change the tables of the database, then repair again", id, repairsMax)
		}
		if err := correct(); err != nil {
			return Comparison{}, err
		}
		if c, differs, err = read(); err != nil {
			return Comparison{}, err
		}
	}
	return first, nil
}
