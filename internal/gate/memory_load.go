package gate

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// LoadMarkerTTL is the expiry of a loader's marker, from its latest call.
const LoadMarkerTTL = 3 * time.Second

// loadMarker is the marker of a loader, and the data of the load in progress.
type loadMarker struct {
	token    string // "" = there is no load
	until    time.Time
	holdings map[string]Holding
	settled  map[string]int64 // users of the old line who are not kept: their old tickets
}

// extend extends the marker and reports true, if it has this token and has not
// expired.
func (l *loadMarker) extend(token string) bool {
	now := time.Now()
	if l.token != token || !now.Before(l.until) {
		return false
	}
	l.until = now.Add(LoadMarkerTTL)
	return true
}

// LoadBegin implements Gate.
func (m *Memory) LoadBegin(ctx context.Context, id reward.TemplateID, token string) (LoadBeginResult, error) {
	if err := m.lock(ctx); err != nil {
		return LoadBeginResult{}, err
	}
	defer m.mu.Unlock()
	t := m.templateLocked(id)
	out := LoadBeginResult{Held: true, Run: m.run, Gate: t.gate.header()}
	now := time.Now()
	if t.marker.token != token && now.Before(t.marker.until) {
		out.Held = false
		return out, nil
	}
	t.marker = loadMarker{
		token: token, until: now.Add(LoadMarkerTTL), holdings: map[string]Holding{}, settled: map[string]int64{},
	}
	return out, nil
}

// LoadHoldings implements Gate.
func (m *Memory) LoadHoldings(ctx context.Context, id reward.TemplateID, token string, list []Holding, settled []SettledTicket) error {
	if err := CheckSize("holdings", max(len(list), len(settled)), LoadMax); err != nil {
		return err
	}
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	t := m.templates[id]
	if t == nil || !t.marker.extend(token) {
		return nil
	}
	for _, f := range list {
		if f.Held > 0 {
			t.marker.holdings[f.UserID] = f
		}
	}
	for _, s := range settled {
		t.marker.settled[s.UserID] = s.Ticket
	}
	return nil
}

// LoadSwap implements Gate.
func (m *Memory) LoadSwap(ctx context.Context, p SwapParams) (SwapResult, error) {
	if err := m.lock(ctx); err != nil {
		return SwapResult{}, err
	}
	defer m.mu.Unlock()
	t := m.templates[p.TemplateID]
	if t == nil || p.Run != m.run || !t.marker.extend(p.Token) || len(t.marker.holdings) != p.Holdings ||
		t.gate != nil && t.gate.state.Generation >= p.State.Generation {
		return SwapResult{}, nil
	}
	g := &memoryGate{
		state: p.State, lastTicket: p.State.Settled, lastRequest: time.Now(),
		line: newLine(), requests: &backlog{}, holdings: newHoldings(),
	}
	for _, f := range t.marker.holdings {
		g.holdings.set(f)
	}
	if old := t.gate; old != nil {
		g.serviceTime = old.serviceTime
		kafka, from := p.State.Mode == reward.ModeKafka, p.KeepAbove
		if kafka {
			from = 0
		}
		old.line.above(from, func(w *waiter) {
			if g.atUserLimit(w.user) || kafka && t.marker.settled[w.user] == w.ticket {
				return
			}
			g.lastTicket++
			g.line.push(w.user, g.lastTicket)
			g.requests.add(w.user, g.lastTicket)
		})
	}
	t.gate, t.marker = g, loadMarker{}
	if g.line.waiting > 0 {
		m.hintLocked(Hint{TemplateID: p.TemplateID, Kind: HintRequests})
	}
	m.hintLocked(Hint{TemplateID: p.TemplateID, Kind: HintOutcomes})
	return SwapResult{Done: true, Waiting: int64(g.line.waiting)}, nil
}
