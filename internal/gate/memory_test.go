package gate_test

import (
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/gatetest"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }

func newMemory(t testing.TB) gate.Gate {
	t.Helper()
	m := gate.NewMemory()
	t.Cleanup(m.Close)
	return m
}

func TestMemory(t *testing.T) {
	t.Parallel()
	gatetest.Exercise(t, newMemory)
}
