//go:build ci

package console

import (
	"path/filepath"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// TestBuild checks the types of the console against the API, and that the committed
// build is what its sources give.
func TestBuild(t *testing.T) {
	t.Parallel()
	root := fixture.Must(fleet.ModuleRoot())(t)
	if text, err := fleet.Output(t.Context(), root, nil, filepath.Join("scripts", "console"), "--check"); err != nil {
		t.Errorf("%v\n%s", err, fleet.Tail(text, 40))
	}
}
