package house

import (
	"fmt"
	"os"
	"testing"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// The tests read the repository by paths from its root.
func TestMain(m *testing.M) {
	root, err := fleet.ModuleRoot()
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}
