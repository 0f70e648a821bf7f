package largesse_test

import (
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// No test leaves a goroutine behind.
func TestMain(m *testing.M) { fixture.Main(m) }
