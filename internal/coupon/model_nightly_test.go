//go:build nightly

package coupon

import "testing"

// TestModelAtLength takes 50,000 steps, and a million by make sim-long.
//
//nolint:paralleltest // runs alone, because it takes all CPUs
func TestModelAtLength(t *testing.T) { exerciseModel(t, 500) }
