package gate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// ErrClosed is what a closed Memory answers.
var ErrClosed = errors.New("gate: closed")

// wakesBuffer is how many hints wait for a slow listener; more are dropped.
const hintsMax = 1024

// Memory is the in-process driver. It has no goroutines. All of it is gone with
// the process, which is its run, so a gate that stands is loaded. Outcomes are
// not kept: the process that settled them is the one that would read them.
type Memory struct {
	run   string
	hints chan Hint

	mu        sync.Mutex // protects what follows, and sending on and closing wakes
	closed    bool
	templates map[reward.TemplateID]*memoryTemplate
}

var _ Gate = (*Memory)(nil)

// memoryTemplate is what there is of a template: its gate, and beside it what a
// loader has laid down, and the lock.
type memoryTemplate struct {
	gate   *memoryGate // nil = none
	marker loadMarker
	lock   memoryLock
}

// memoryGate is a gate that stands.
type memoryGate struct {
	state       State
	capTotal    int64 // of the latest Lower
	capUntil    time.Time
	lastTicket  int64
	serviceTime time.Duration
	lastRequest time.Time
	line        *line
	requests    *backlog
	holdings    *holdings
}

// NewMemory returns an empty gate.
func NewMemory() *Memory {
	return &Memory{run: rand.Text(), hints: make(chan Hint, hintsMax), templates: map[reward.TemplateID]*memoryTemplate{}}
}

// lock takes the mutex, or says why nothing can be done.
func (m *Memory) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("gate: nothing was done: %w", err)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// lockGate takes the mutex if there is a gate.
func (m *Memory) lockGate(ctx context.Context, id reward.TemplateID) (*memoryGate, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	if t := m.templates[id]; t != nil && t.gate != nil {
		return t.gate, nil
	}
	m.mu.Unlock()
	return nil, ErrNotLoaded
}

// templateLocked returns what there is of a template, made if it is missing.
func (m *Memory) templateLocked(id reward.TemplateID) *memoryTemplate {
	t := m.templates[id]
	if t == nil {
		t = &memoryTemplate{}
		m.templates[id] = t
	}
	return t
}

// Ask implements Gate.
func (m *Memory) Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (AdmitResult, error) {
	if err := CheckSize("askers", len(users), AdmitMax); err != nil {
		return AdmitResult{}, err
	}
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return AdmitResult{}, err
	}
	defer m.mu.Unlock()
	now := time.Now()
	g.lastRequest = now
	wasEmpty := g.requests.length == 0
	out := AdmitResult{
		Answers: make([]Answer, len(users)), Generation: g.state.Generation, Version: g.state.Version, ServiceTime: g.serviceTime,
	}
	for i, user := range users {
		out.Answers[i] = g.judge(user, now, admit)
	}
	if wasEmpty && g.requests.length > 0 {
		m.hintLocked(Hint{TemplateID: id, Kind: HintRequests})
	}
	return out, nil
}

// full says whether a user holds as many slots as he may.
func (g *memoryGate) atUserLimit(user string) bool {
	h := g.holdings.byUser[user]
	return h != nil && h.Held >= g.state.PerUserLimit
}

// room is how many more may be let in.
func (g *memoryGate) freeStock(now time.Time) int64 {
	total := g.state.Total
	if now.Before(g.capUntil) {
		total = min(total, g.capTotal)
	}
	return total - g.state.Live - int64(g.line.waiting)
}

// judge is the verdict on one asker.
func (g *memoryGate) judge(user string, now time.Time, admit bool) Answer {
	if w := g.line.byUser[user]; w != nil {
		return Answer{Verdict: InLine, Ticket: w.ticket, Rank: g.line.rank(w)}
	}
	if g.atUserLimit(user) {
		return Answer{Verdict: AtUserLimit, CouponID: g.holdings.byUser[user].CouponID}
	}
	rank := int64(g.line.waiting)
	switch s := &g.state; {
	case !s.OpensAt.IsZero() && now.Before(s.OpensAt):
		return Answer{Verdict: NotOpen}
	case !s.ClosesAt.IsZero() && !now.Before(s.ClosesAt):
		return Answer{Verdict: Closed}
	case g.freeStock(now) <= 0:
		return Answer{Verdict: SoldOut}
	case !admit:
		return Answer{Verdict: Admitted, Rank: rank}
	}
	g.lastTicket++
	g.line.push(user, g.lastTicket)
	g.requests.add(user, g.lastTicket)
	return Answer{Verdict: Admitted, Ticket: g.lastTicket, Rank: rank}
}

// Places implements Gate.
func (m *Memory) Positions(ctx context.Context, id reward.TemplateID, users []string) (PositionsResult, error) {
	if err := CheckSize("users", len(users), PositionsMax); err != nil {
		return PositionsResult{}, err
	}
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return PositionsResult{}, err
	}
	defer m.mu.Unlock()
	out := PositionsResult{
		Positions: make([]Position, len(users)), Generation: g.state.Generation, Version: g.state.Version, ServiceTime: g.serviceTime,
	}
	for i, user := range users {
		if w := g.line.byUser[user]; w != nil {
			out.Positions[i] = Position{InLine: true, Ticket: w.ticket, Rank: g.line.rank(w)}
		}
	}
	return out, nil
}

// Headers implements Gate.
func (m *Memory) Headers(ctx context.Context, ids []reward.TemplateID) ([]Header, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	out := make([]Header, len(ids))
	for i, id := range ids {
		if t := m.templates[id]; t != nil {
			out[i] = t.gate.header()
		}
	}
	return out, nil
}

// header describes a gate; g may be nil.
func (g *memoryGate) header() Header {
	if g == nil {
		return Header{}
	}
	return Header{
		Exists: true, Loaded: true,
		Generation: g.state.Generation, Version: g.state.Version, Settled: g.state.Settled, LastTicket: g.lastTicket,
		Total: g.state.Total, Live: g.state.Live, IssuedTotal: g.state.IssuedTotal,
		Waiting: int64(g.line.waiting), Backlog: int64(g.requests.length),
		PublishedStock: max(g.state.Total-g.state.Live-int64(g.line.waiting), 0), // nothing is kept beside
		LastRequestAt:  g.lastRequest, ServiceTime: g.serviceTime,
	}
}

// Read implements Gate. Who reads makes no difference in one process.
func (m *Memory) Read(ctx context.Context, id reward.TemplateID, _ string, count int) ([]Request, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	return g.requests.read(g.state.Generation, min(count, ReadMax)), nil
}

// Claim implements Gate.
func (m *Memory) Claim(ctx context.Context, id reward.TemplateID, _ string, after int64, count int) ([]Request, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	return g.requests.pending(g.state.Generation, after, min(count, ReadMax)), nil
}

// Ack implements Gate.
func (m *Memory) Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		if errors.Is(err, ErrNotLoaded) {
			return 0, nil
		}
		return 0, err
	}
	defer m.mu.Unlock()
	if g.state.Generation != generation {
		return 0, nil
	}
	acked := g.requests.ack(tickets)
	if acked > 0 && g.state.Mode == reward.ModeKafka {
		m.hintLocked(Hint{TemplateID: id, Kind: HintOutcomes})
	}
	return acked, nil
}

// Unacked implements Gate.
func (m *Memory) Unacked(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) ([]bool, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	if g.state.Generation != generation {
		return nil, ErrNotLoaded
	}
	out := make([]bool, len(tickets))
	for i, ticket := range tickets {
		out[i] = g.requests.find(ticket) != nil
	}
	return out, nil
}

// Apply implements Gate.
func (m *Memory) Apply(ctx context.Context, p ApplyParams) (ApplyResult, error) {
	g, err := m.lockGate(ctx, p.TemplateID)
	if err != nil {
		return ApplyResult{}, err
	}
	defer m.mu.Unlock()
	switch have := g.state.Version; {
	case p.State.Version < have, p.State.Version == have && !p.Repair:
		return ApplyResult{Version: have}, nil
	case have < p.From:
		return ApplyResult{Behind: true, Version: have}, nil
	}
	if p.State.Mode != reward.ModeKafka {
		g.line.removeUpTo(p.State.Settled)
	} else {
		for _, d := range p.Done {
			if w := g.line.byUser[d.UserID]; w != nil && w.ticket == d.Ticket {
				g.line.remove(w)
			}
		}
	}
	generation := g.state.Generation
	g.state = p.State
	g.state.Generation = generation // what a gate promised was under its own
	g.lastTicket = max(g.lastTicket, p.State.Settled)
	for _, f := range p.Holdings {
		g.holdings.set(f)
	}
	if p.ServiceTime > 0 && (g.line.waiting == 0 || g.serviceTime == 0 || p.ServiceTime < g.serviceTime) {
		g.serviceTime = p.ServiceTime
	}
	m.hintLocked(Hint{TemplateID: p.TemplateID, Kind: HintOutcomes})
	return ApplyResult{Version: p.State.Version}, nil
}

// Lower implements Gate.
func (m *Memory) CapTotal(ctx context.Context, id reward.TemplateID, total int64) (bool, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	if g.state.Live+int64(g.line.waiting) > total {
		return false, nil
	}
	g.capTotal, g.capUntil = total, time.Now().Add(CapTTL)
	return true, nil
}

// Retire implements Gate.
func (m *Memory) Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		if errors.Is(err, ErrNotLoaded) {
			return true, nil
		}
		return false, err
	}
	defer m.mu.Unlock()
	if g.line.waiting > 0 || g.requests.length > 0 || time.Since(g.lastRequest) < idle {
		return false, nil
	}
	m.templates[id].gate = nil
	return true, nil
}

// Holders implements Gate.
func (m *Memory) Holdings(ctx context.Context, id reward.TemplateID, cursor string) ([]Holding, string, int64, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return nil, "", 0, err
	}
	defer m.mu.Unlock()
	facts, next, err := g.holdings.page(g.state.Generation, cursor)
	return facts, next, g.state.Version, err
}

// wakeLocked gives a hint; one that nobody has room for is dropped.
func (m *Memory) hintLocked(w Hint) {
	select {
	case m.hints <- w:
	default:
	}
}

// Wakes implements Gate.
func (m *Memory) Hints() <-chan Hint { return m.hints }

// Ping implements Gate.
func (m *Memory) Ping(ctx context.Context) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	m.mu.Unlock()
	return nil
}

// Close implements Gate. It may be called twice.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		close(m.hints)
	}
}
