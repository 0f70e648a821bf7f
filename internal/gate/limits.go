package gate

import "fmt"

// The bounds of single calls, beside AskersMax.
const (
	// PlacesMax bounds the users of Places.
	PositionsMax = 1000
	// LoadMax bounds the facts, and those gone, of one LoadFacts.
	LoadMax = 1000
	// ReadMax bounds what one Read or Claim gives, however large count is.
	ReadMax = 10_000
)

// CheckMany is for drivers: it refuses a list that is longer than a call takes.
func CheckSize(what string, have, most int) error {
	if have > most {
		return fmt.Errorf("gate: %d %s in one call, more than %d", have, what, most)
	}
	return nil
}
