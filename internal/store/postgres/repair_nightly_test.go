//go:build nightly

package postgres

import "testing"

// TestRepairOfAMillion repairs a promotion with many rows while others record
// outcomes.
func TestRepairOfAMillion(t *testing.T) { repairWhileRecording(t, 1_000_000, true) }
