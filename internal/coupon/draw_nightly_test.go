//go:build nightly

package coupon

import "testing"

// TestAMillionEntrants draws 1,000 and then 300,000 of a million entrants.
func TestAMillionEntrants(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	drawStaysFlat(t, 1_000_000, 1000)
	drawStaysFlat(t, 1_000_000, 300_000)
}
