package gate

import "fmt"

// Limits of single calls; see also AdmitMax.
const (
	// PositionsMax limits the users of Positions.
	PositionsMax = 1000
	// LoadMax limits the holdings of one LoadHoldings, and the users that one LoadTrim
	// or LoadLeft removes.
	LoadMax = 1000
	// LoadPageMax limits the users of one LoadPage, LoadMissing, LoadBack or LoadCopy. Copying a user costs
	// the server more than storing a holding.
	LoadPageMax = 250
	// LineMax limits the users, and the requests, of one Line.
	LineMax = 1000
	// ReadMax limits the requests of one Read or Claim, however large count is.
	ReadMax = 1000
)

// CheckSize is for drivers. It returns an error if a list is longer than the
// limit of a call.
func CheckSize(what string, size, limit int) error {
	if size > limit {
		return fmt.Errorf("gate: %d %s in one call, more than %d", size, what, limit)
	}
	return nil
}
