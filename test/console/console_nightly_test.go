//go:build nightly

package console

import "testing"

// TestNightlyConsole measures how fast pages are, and makes pictures of all in every size.
// LARGESSE_PICTURES is the folder for the pictures and for what was measured.
func TestNightlyConsole(t *testing.T) { playwright(t, "nightly", 1) }
