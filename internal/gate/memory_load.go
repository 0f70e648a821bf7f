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

func (m *memory) LoadBegin(ctx context.Context, id reward.TemplateID, token string) (LoadBeginResult, error) {
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
func (m *memory) step(ctx context.Context, l Load) (*memoryTemplate, error) {
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

// stepClosed is step for a step that needs a closed gate, which it returns.
func (m *memory) stepClosed(ctx context.Context, l Load) (*memoryGate, error) {
	t, err := m.step(ctx, l)
	if err != nil {
		return nil, err
	}
	if t.gate == nil || !t.gate.closed {
		m.mu.Unlock()
		return nil, ErrLoadLost
	}
	return t.gate, nil
}

func (m *memory) LoadClose(ctx context.Context, l Load) error {
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

func (m *memory) LoadHoldings(ctx context.Context, l Load, list []Holding) error {
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

func (m *memory) LoadTrim(ctx context.Context, l Load, settled int64) (int64, error) {
	g, err := m.stepClosed(ctx, l)
	if err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	g.line.removeUpTo(settled, LoadMax)
	return g.line.upTo(settled), nil
}

func (m *memory) LoadLeft(ctx context.Context, l Load, left []Request) error {
	if err := CheckSize("requests", len(left), LoadMax); err != nil {
		return err
	}
	g, err := m.stepClosed(ctx, l)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	g.leave(left)
	return nil
}

func (m *memory) LoadMissing(ctx context.Context, l Load, after int64) ([]Request, int64, error) {
	g, err := m.stepClosed(ctx, l)
	if err != nil {
		return nil, 0, err
	}
	defer m.mu.Unlock()
	page := g.requests.between(after, math.MaxInt64, LoadPageMax)
	if len(page) > 0 {
		after = page[len(page)-1].Ticket
	}
	return slices.DeleteFunc(page, func(r Request) bool { return g.line.byUser[r.UserID] != nil }), after, nil
}

func (m *memory) LoadBack(ctx context.Context, l Load, back []Request) error {
	if err := CheckSize("requests", len(back), LoadPageMax); err != nil {
		return err
	}
	g, err := m.stepClosed(ctx, l)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	g.comeBack(back, 0)
	return nil
}

func (m *memory) LoadPage(ctx context.Context, l Load, from int64) ([]Request, error) {
	g, err := m.stepClosed(ctx, l)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var out []Request
	g.line.page(from, LoadPageMax, func(w *waiter) { out = append(out, g.request(w)) })
	return out, nil
}

func (m *memory) LoadCopy(ctx context.Context, l Load, generation, first int64, users []string) error {
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

func (m *memory) LoadSwap(ctx context.Context, p SwapParams) (SwapResult, error) {
	t, err := m.step(ctx, p.Load)
	if err != nil {
		if errors.Is(err, ErrLoadLost) {
			err = nil // it is reported as not done
		}
		return SwapResult{}, err
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
