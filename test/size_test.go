//go:build ci

package test

import (
	"os"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestSizeOfTheProgram keeps a dependency from making the program much larger unnoticed.
func TestSizeOfTheProgram(t *testing.T) {
	t.Parallel()
	const most = 59_000_000
	info := fixture.Must(os.Stat(fixture.Must(program())(t)))(t)
	if info.Size() > most {
		t.Errorf("the program has %d bytes, at most %d", info.Size(), most)
	}
}
