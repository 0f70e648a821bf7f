//go:build nightly

package coupon

import "testing"

// TestNightlyAMillionEntrants draws 1,000 and then 300,000 of a million entrants.
func TestNightlyAMillionEntrants(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	drawStaysFlat(t, 1_000_000, 1000)
	drawStaysFlat(t, 1_000_000, 300_000)
}

// TestNightlyModelAtLength takes 50,000 steps, and a million by make sim-long.
func TestNightlyModelAtLength(t *testing.T) { //nolint:paralleltest // runs alone, because it takes all CPUs
	exerciseModel(t, 1700)
}
