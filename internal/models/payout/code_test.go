package payout

import (
	"testing"

	"github.com/largesse/largesse/internal/models/code"
)

// TestStepsNameCode requires that every function, method, type and script that steps
// names exists, and that every step of the code names some.
func TestStepsNameCode(t *testing.T) {
	t.Parallel()
	names := code.In("../..")
	for st, about := range steps {
		if about.text == "" {
			t.Errorf("step %d has no text", st)
		}
		if inCode := step(st) < firstOutside; inCode != (about.code != "") {
			t.Errorf("step %q names code %q", about.text, about.code)
		}
		for _, err := range names.Check(about.code) {
			t.Errorf("step %q: %v", about.text, err)
		}
	}
}
