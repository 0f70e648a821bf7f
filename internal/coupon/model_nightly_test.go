//go:build nightly

package coupon

import "testing"

// TestNightlyModelAtLength takes 50,000 steps, and a million by make sim-long.
func TestNightlyModelAtLength(t *testing.T) { //nolint:paralleltest // runs alone, because it takes all CPUs
	exerciseModel(t, 1700)
}
