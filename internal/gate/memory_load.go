package gate

import (
	"context"
	"errors"
	"math"
	"slices"
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
	line     *line // what LoadCopy has written
	requests *backlog
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
	out := LoadBeginResult{Held: true, Run: m.run, Gate: t.gate.header(), Intact: t.gate != nil}
	now := time.Now()
	if t.marker.token != token && now.Before(t.marker.until) {
		out.Held = false
		return out, nil
	}
	t.marker = loadMarker{
		token: token, until: now.Add(LoadMarkerTTL), holdings: map[string]Holding{}, line: newLine(), requests: &backlog{},
	}
	return out, nil
}

// step locks the mutex for a step of a load, unless the load is lost.
func (m *Memory) step(ctx context.Context, l Load) (*memoryTemplate, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	t := m.templates[l.TemplateID]
	if t == nil || l.Run != m.run || !t.marker.extend(l.Token) {
		m.mu.Unlock()
		return nil, ErrLoadLost
	}
	return t, nil
}

// LoadClose implements Gate.
func (m *Memory) LoadClose(ctx context.Context, l Load) error {
	t, err := m.step(ctx, l)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	if t.gate != nil {
		t.gate.closed = true
	}
	return nil
}

// LoadHoldings implements Gate.
func (m *Memory) LoadHoldings(ctx context.Context, l Load, list []Holding) error {
	if err := CheckSize("holdings", len(list), LoadMax); err != nil {
		return err
	}
	t, err := m.step(ctx, l)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	for _, f := range list {
		if f.Held > 0 {
			t.marker.holdings[f.UserID] = f
		}
	}
	return nil
}

// LoadTrim implements Gate.
func (m *Memory) LoadTrim(ctx context.Context, l Load, settled int64) (int64, error) {
	t, err := m.step(ctx, l)
	if err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	if t.gate == nil || !t.gate.closed {
		return 0, ErrLoadLost
	}
	t.gate.line.removeUpTo(settled, LoadMax)
	return t.gate.line.upTo(settled), nil
}

// LoadLeft implements Gate.
func (m *Memory) LoadLeft(ctx context.Context, l Load, left []Request) error {
	if err := CheckSize("requests", len(left), LoadMax); err != nil {
		return err
	}
	t, err := m.step(ctx, l)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	if t.gate == nil || !t.gate.closed {
		return ErrLoadLost
	}
	t.gate.leave(left)
	return nil
}

// LoadMissing implements Gate.
func (m *Memory) LoadMissing(ctx context.Context, l Load, after int64) ([]Request, int64, error) {
	t, err := m.step(ctx, l)
	if err != nil {
		return nil, 0, err
	}
	defer m.mu.Unlock()
	if t.gate == nil || !t.gate.closed {
		return nil, 0, ErrLoadLost
	}
	page := t.gate.requests.between(after, math.MaxInt64, LoadPageMax)
	if len(page) > 0 {
		after = page[len(page)-1].Ticket
	}
	return slices.DeleteFunc(page, func(r Request) bool { return t.gate.line.byUser[r.UserID] != nil }), after, nil
}

// LoadBack implements Gate.
func (m *Memory) LoadBack(ctx context.Context, l Load, back []Request) error {
	if err := CheckSize("requests", len(back), LoadPageMax); err != nil {
		return err
	}
	t, err := m.step(ctx, l)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	if t.gate == nil || !t.gate.closed {
		return ErrLoadLost
	}
	t.gate.comeBack(back, 0)
	return nil
}

// LoadPage implements Gate.
func (m *Memory) LoadPage(ctx context.Context, l Load, from int64) ([]Request, error) {
	t, err := m.step(ctx, l)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	if t.gate == nil || !t.gate.closed {
		return nil, ErrLoadLost
	}
	var out []Request
	t.gate.line.page(from, LoadPageMax, func(w *waiter) { out = append(out, t.gate.request(w)) })
	return out, nil
}

// LoadCopy implements Gate.
func (m *Memory) LoadCopy(ctx context.Context, l Load, generation, first int64, users []string) error {
	if err := CheckSize("users", len(users), LoadPageMax); err != nil {
		return err
	}
	t, err := m.step(ctx, l)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	for i, user := range users {
		ticket := first + int64(i)
		t.marker.line.push(user, ticket)
		t.marker.requests.add(Request{UserID: user, Ticket: ticket, Generation: generation})
	}
	return nil
}

// LoadSwap implements Gate.
func (m *Memory) LoadSwap(ctx context.Context, p SwapParams) (SwapResult, error) {
	t, err := m.step(ctx, p.Load)
	if err != nil {
		return SwapResult{}, ignoreLost(err)
	}
	defer m.mu.Unlock()
	old, loaded := t.gate, t.marker
	switch {
	case len(loaded.holdings) != p.Holdings, int64(loaded.line.waiting) != p.Copied,
		old.header().Generation != p.Old, p.Old >= p.State.Generation, old != nil && !old.closed,
		p.Kind == LoadKeep && (old == nil || old.line.upTo(p.State.Settled) > 0):
		return SwapResult{}, nil
	}
	g := &memoryGate{state: p.State, lastTicket: p.State.Settled + p.Copied, lastRequest: time.Now(), holdings: newHoldings()}
	for _, f := range loaded.holdings {
		g.holdings.set(f)
	}
	if old != nil {
		g.serviceTime = old.serviceTime
	}
	if p.Kind == LoadKeep {
		g.line, g.requests, g.lastTicket = old.line, old.requests, max(old.lastTicket, p.State.Settled)
	} else {
		g.line, g.requests = loaded.line, loaded.requests
	}
	t.gate, t.marker = g, loadMarker{}
	if g.line.waiting > 0 {
		m.hintLocked(Hint{TemplateID: p.TemplateID, Kind: HintRequests})
	}
	m.hintLocked(Hint{TemplateID: p.TemplateID, Kind: HintOutcomes})
	return SwapResult{Done: true, Waiting: int64(g.line.waiting)}, nil
}

// ignoreLost returns nil for ErrLoadLost: LoadSwap reports it as not done.
func ignoreLost(err error) error {
	if errors.Is(err, ErrLoadLost) {
		return nil
	}
	return err
}
