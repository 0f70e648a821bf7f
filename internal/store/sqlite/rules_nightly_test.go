//go:build nightly

package sqlite

import "testing"

// TestNightlyRules tries every case of TestRules.
func TestNightlyRules(t *testing.T) { followsTheRules(t, 1) }
