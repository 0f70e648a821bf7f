package gatetest

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/anishathalye/porcupine"
	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outdated returns the previous answer to a user in line, even though others have
// left since.
type outdated struct {
	*gate.Memory
	mu       sync.Mutex // protects previous
	previous map[string]gate.Answer
}

func (o *outdated) Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (gate.AdmitResult, error) {
	result, err := o.Memory.Admit(ctx, id, users, admit)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, a := range result.Answers {
		if before, known := o.previous[users[i]]; known && a.Verdict == gate.InLine && before.Ticket == a.Ticket {
			result.Answers[i] = before
		}
		if a.Verdict == gate.InLine {
			o.previous[users[i]] = result.Answers[i]
		}
	}
	return result, err
}

// hasty returns from an apply before the apply is done.
type hasty struct {
	*gate.Memory
	mu   sync.Mutex // protects last
	last func()
}

func (h *hasty) Apply(ctx context.Context, p gate.ApplyParams) (gate.ApplyResult, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		h.last()
	}
	headers, err := h.Headers(ctx, []reward.TemplateID{p.TemplateID})
	if err != nil {
		return gate.ApplyResult{}, err
	}
	have := headers[0].Version
	if p.State.Version <= have || have < p.From {
		h.last = nil
		return gate.ApplyResult{Behind: p.State.Version > have, Version: have}, nil
	}
	h.last = func() { _, _ = h.Memory.Apply(ctx, p) }
	return gate.ApplyResult{Version: p.State.Version}, nil
}

// TestHistoriesOfAWrongGate checks that the checker finds the faults of gates that
// look right to each caller.
func TestHistoriesOfAWrongGate(t *testing.T) {
	t.Parallel()
	for name, newGate := range map[string]func(m *gate.Memory) gate.Gate{
		"Outdated": func(m *gate.Memory) gate.Gate { return &outdated{Memory: m, previous: map[string]gate.Answer{}} },
		"Hasty":    func(m *gate.Memory) gate.Gate { return &hasty{Memory: m} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for try := range 20 {
				m := gate.NewMemory()
				t.Cleanup(m.Close)
				b := &bundle{TB: t, g: newGate(m), ctx: t.Context(), id: 1}
				s := state()
				s.Total = historyTotal
				b.load(s)
				operations, err := newHistory(b.g, b.id, s).make(b.ctx, rand.Uint64())
				b.ok(err)
				if linearizable(operations) == porcupine.Illegal {
					t.Logf("found in history %d", try)
					return
				}
			}
			t.Fatal("no history shows the fault")
		})
	}
}
