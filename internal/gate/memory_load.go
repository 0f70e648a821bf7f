package gate

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// MarkerLasts is how long a loader's marker stands without a sign of life.
const MarkerLasts = 3 * time.Second

// memoryLoading is the marker of a loader, and what he has laid beside.
type memoryLoading struct {
	token string // "" = nobody ever loaded
	until time.Time
	facts map[string]Fact
	gone  map[string]int64 // the old ticket of users that are not taken over
}

// keep says whether the marker is the token's, and if so holds it anew.
func (l *memoryLoading) keep(token string) bool {
	now := time.Now()
	if l.token != token || !now.Before(l.until) {
		return false
	}
	l.until = now.Add(MarkerLasts)
	return true
}

// LoadBegin implements Gate.
func (m *Memory) LoadBegin(ctx context.Context, id reward.TemplateID, token string) (LoadBegun, error) {
	if err := m.lock(ctx); err != nil {
		return LoadBegun{}, err
	}
	defer m.mu.Unlock()
	t := m.templateLocked(id)
	out := LoadBegun{Held: true, Run: m.run, Gate: t.gate.header()}
	now := time.Now()
	if t.loading.token != token && now.Before(t.loading.until) {
		out.Held = false
		return out, nil
	}
	t.loading = memoryLoading{
		token: token, until: now.Add(MarkerLasts), facts: map[string]Fact{}, gone: map[string]int64{},
	}
	return out, nil
}

// LoadFacts implements Gate.
func (m *Memory) LoadFacts(ctx context.Context, id reward.TemplateID, token string, facts []Fact, gone []Settled) error {
	if err := CheckMany("facts", max(len(facts), len(gone)), LoadMax); err != nil {
		return err
	}
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	t := m.all[id]
	if t == nil || !t.loading.keep(token) {
		return nil
	}
	for _, f := range facts {
		if f.Held > 0 {
			t.loading.facts[f.UserID] = f
		}
	}
	for _, g := range gone {
		t.loading.gone[g.UserID] = g.Ticket
	}
	return nil
}

// LoadSwap implements Gate.
func (m *Memory) LoadSwap(ctx context.Context, p SwapParams) (SwapResult, error) {
	if err := m.lock(ctx); err != nil {
		return SwapResult{}, err
	}
	defer m.mu.Unlock()
	t := m.all[p.TemplateID]
	if t == nil || p.Run != m.run || !t.loading.keep(p.Token) || len(t.loading.facts) != p.Facts ||
		t.gate != nil && t.gate.state.Generation >= p.State.Generation {
		return SwapResult{}, nil
	}
	g := &memoryGate{
		state: p.State, next: p.State.Settled, lastAsk: time.Now(),
		line: newLine(), requests: &backlog{}, holders: newHolders(),
	}
	for _, f := range t.loading.facts {
		g.holders.set(f)
	}
	if old := t.gate; old != nil {
		g.service = old.service
		kafka, from := p.State.Mode == reward.ModeKafka, p.KeepAbove
		if kafka {
			from = 0
		}
		old.line.above(from, func(w *waiter) {
			if g.full(w.user) || kafka && t.loading.gone[w.user] == w.ticket {
				return
			}
			g.next++
			g.line.push(w.user, g.next)
			g.requests.add(w.user, g.next)
		})
	}
	t.gate, t.loading = g, memoryLoading{}
	if g.line.waiting > 0 {
		m.wakeLocked(Wake{TemplateID: p.TemplateID, Kind: Asked})
	}
	m.wakeLocked(Wake{TemplateID: p.TemplateID, Kind: Applied})
	return SwapResult{Done: true, Waiting: int64(g.line.waiting)}, nil
}
