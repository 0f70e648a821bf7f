package gate_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/gatetest"
	"github.com/largesse/largesse/internal/reward"
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

// TestLowerLasts checks that a cap counts for exactly CapTTL.
func TestLowerLasts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, id := newMemory(t), reward.TemplateID(42)
		begun, err := g.LoadBegin(t.Context(), id, "loader")
		if err != nil {
			t.Fatal(err)
		}
		s := gate.State{Generation: 1, Version: 1, Total: 3, PerUserLimit: 1, Mode: reward.ModeStream}
		swapped, err := g.LoadSwap(t.Context(), gate.SwapParams{Load: gate.Load{TemplateID: id, Token: "loader", Run: begun.Run}, State: s})
		if err != nil || !swapped.Done {
			t.Fatal(swapped, err)
		}
		for range 2 { // the second cap counts for as long, from its call
			if fits, err := g.CapTotal(t.Context(), id, 0); err != nil || !fits {
				t.Fatal(fits, err)
			}
			time.Sleep(gate.CapTTL - time.Nanosecond)
			wantVerdict(t, g, id, gate.SoldOut)
		}
		time.Sleep(time.Nanosecond)
		wantVerdict(t, g, id, gate.Admitted)
	})
}

func wantVerdict(t *testing.T, g gate.Gate, id reward.TemplateID, want gate.Verdict) {
	t.Helper()
	result, err := g.Admit(t.Context(), id, []string{"u"}, false)
	if err != nil || result.Answers[0].Verdict != want {
		t.Fatalf("%+v, %v, want verdict %d", result, err, want)
	}
}

func BenchmarkMemory(b *testing.B) { gatetest.Benchmark(b, newMemory) }
