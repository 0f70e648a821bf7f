package gate_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/gatetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func BenchmarkMemory(b *testing.B) { gatetest.Benchmark(b, newMemory) }
