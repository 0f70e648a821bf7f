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

// ErrClosed is returned by the methods of a closed Memory.
var ErrClosed = errors.New("gate: closed")

// hintsMax limits the undelivered hints; further ones are dropped.
const hintsMax = 1024

// Memory is the in-process driver. It has no goroutines. Its run is the process: all
// gates end with it, so an existing gate is loaded unless a load has closed it. It
// does not store outcomes, because only the process that settles them could read them.
type Memory struct {
	run   string
	hints chan Hint

	mu        sync.Mutex // protects the fields below, and sends on and the close of hints
	closed    bool
	templates map[reward.TemplateID]*memoryTemplate
}

var _ Gate = (*Memory)(nil)

// memoryTemplate holds a template's gate, the load in progress, and the SYNC lock.
type memoryTemplate struct {
	gate   *memoryGate // nil = there is none
	marker loadMarker
	lock   memoryLock
}

// memoryGate is an existing gate.
type memoryGate struct {
	state       State
	closed      bool // by a load
	lastTicket  int64
	serviceTime time.Duration
	lastRequest time.Time
	pausedUntil time.Time // no grants; zero = there is no pause
	line        *line
	requests    *backlog
	holdings    *holdings
}

// NewMemory returns an empty gate.
func NewMemory() *Memory {
	return &Memory{run: rand.Text(), hints: make(chan Hint, hintsMax), templates: map[reward.TemplateID]*memoryTemplate{}}
}

// lock locks the mutex, unless ctx has ended or the Memory is closed.
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

// lockGate locks the mutex and returns a gate that is served. It returns
// ErrNotLoaded, with the mutex unlocked, if there is none.
func (m *Memory) lockGate(ctx context.Context, id reward.TemplateID) (*memoryGate, error) {
	g, err := m.lockExisting(ctx, id)
	if err == nil && g.closed {
		m.mu.Unlock()
		return nil, ErrNotLoaded
	}
	return g, err
}

// lockExisting is lockGate for a gate that may be closed.
func (m *Memory) lockExisting(ctx context.Context, id reward.TemplateID) (*memoryGate, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	if t := m.templates[id]; t != nil && t.gate != nil {
		return t.gate, nil
	}
	m.mu.Unlock()
	return nil, ErrNotLoaded
}

// templateLocked returns a template, which it creates if it is missing.
func (m *Memory) templateLocked(id reward.TemplateID) *memoryTemplate {
	t := m.templates[id]
	if t == nil {
		t = &memoryTemplate{}
		m.templates[id] = t
	}
	return t
}

// Admit implements Gate.
func (m *Memory) Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (AdmitResult, error) {
	if err := CheckSize("users", len(users), AdmitMax); err != nil {
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
		Granted: g.state.Granted, Used: g.state.Used, Grants: g.state.Grants, Waiting: int64(g.line.waiting),
		Paused: now.Before(g.pausedUntil),
	}
	for i, user := range users {
		out.Answers[i] = g.decide(user, now, admit)
	}
	if wasEmpty && g.requests.length > 0 {
		m.hintLocked(Hint{TemplateID: id, Kind: HintRequests})
	}
	return out, nil
}

// atUserLimit reports whether a user has PerUserLimit coupons.
func (g *memoryGate) atUserLimit(user string) bool {
	h := g.holdings.byUser[user]
	return h != nil && h.Held >= g.state.PerUserLimit
}

// decide decides about one user, and admits them if admit is true.
func (g *memoryGate) decide(user string, now time.Time, admit bool) Answer {
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
	case s.Total-s.Live-rank <= 0:
		return Answer{Verdict: SoldOut}
	case s.Mode != reward.ModeSync && s.Granted-s.Used-rank <= 0:
		return Answer{Verdict: NoPlace}
	case !admit:
		return Answer{Verdict: Admitted, Rank: rank}
	case s.Mode == reward.ModeSync:
		return Answer{Verdict: NoTickets}
	}
	g.lastTicket++
	g.line.push(user, g.lastTicket)
	g.requests.add(Request{UserID: user, Ticket: g.lastTicket, Generation: g.state.Generation})
	return Answer{Verdict: Admitted, Ticket: g.lastTicket, Rank: rank}
}

// Place implements Gate.
func (m *Memory) Place(ctx context.Context, id reward.TemplateID, user string) (PlaceResult, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return PlaceResult{}, err
	}
	defer m.mu.Unlock()
	out := PlaceResult{GateGeneration: g.state.Generation, Version: g.state.Version}
	if w := g.line.byUser[user]; w != nil {
		out.InLine, out.Request = true, g.request(w)
	}
	return out, nil
}

// request returns the request of a user in line. In ModeKafka all are of the gate's
// generation, and those that the broker has are acknowledged.
func (g *memoryGate) request(w *waiter) Request {
	r := Request{UserID: w.user, Ticket: w.ticket, Generation: g.state.Generation}
	if g.state.Mode != reward.ModeKafka {
		r.Generation = g.requests.generation(w.ticket)
	}
	return r
}

// leave removes requests from the line.
func (g *memoryGate) leave(left []Request) {
	for _, r := range left {
		if w := g.line.byUser[r.UserID]; w != nil && g.request(w) == r {
			g.line.remove(w)
		}
	}
}

// comeBack puts users back in line whose requests are in the stream.
func (g *memoryGate) comeBack(back []Request, settled int64) {
	for _, r := range back {
		if e := g.requests.find(r.Ticket, r.Generation); e != nil && e.UserID == r.UserID && r.Ticket > settled && g.line.byUser[r.UserID] == nil {
			g.line.insert(r.UserID, r.Ticket)
		}
	}
}

// Positions implements Gate.
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

// Line implements Gate.
func (m *Memory) Line(ctx context.Context, id reward.TemplateID, after, upTo int64) (LineResult, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return LineResult{}, err
	}
	defer m.mu.Unlock()
	out := LineResult{Generation: g.state.Generation, Version: g.state.Version, Settled: g.state.Settled, LastTicket: g.lastTicket}
	g.line.page(g.line.upTo(after), LineMax, func(w *waiter) {
		if w.ticket <= upTo {
			out.InLine = append(out.InLine, Request{UserID: w.user, Ticket: w.ticket})
		}
	})
	out.Requests = g.requests.between(after, upTo, LineMax)
	out.Cut(upTo)
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

// header describes a gate. g may be nil.
func (g *memoryGate) header() Header {
	if g == nil {
		return Header{}
	}
	return Header{
		Exists: true, Loaded: !g.closed,
		Generation: g.state.Generation, Version: g.state.Version, Settled: g.state.Settled,
		LastTicket: g.lastTicket, FirstTicket: g.line.first(),
		Total: g.state.Total, Live: g.state.Live, IssuedTotal: g.state.IssuedTotal,
		Granted: g.state.Granted, Used: g.state.Used, Grants: g.state.Grants,
		Waiting: int64(g.line.waiting), Backlog: int64(g.requests.length),
		PublishedStock: max(g.state.Total-g.state.Live-int64(g.line.waiting), 0), // there are no separate counters
		PublishedCount: g.state.Live, PublishedIssued: g.state.IssuedTotal,
		LastRequestAt: g.lastRequest, ServiceTime: g.serviceTime,
	}
}

// Read implements Gate. In one process the consumer makes no difference.
func (m *Memory) Read(ctx context.Context, id reward.TemplateID, _ string, count int) (Delivery, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return Delivery{}, err
	}
	defer m.mu.Unlock()
	return Delivery{Generation: g.state.Generation, Requests: g.requests.read(min(count, ReadMax))}, nil
}

// Claim implements Gate.
func (m *Memory) Claim(ctx context.Context, id reward.TemplateID, _ string, after int64, count int) (Delivery, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return Delivery{}, err
	}
	defer m.mu.Unlock()
	return Delivery{Generation: g.state.Generation, Requests: g.requests.pending(after, min(count, ReadMax))}, nil
}

// Ack implements Gate.
func (m *Memory) Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error) {
	g, err := m.lockExisting(ctx, id)
	if err != nil {
		if errors.Is(err, ErrNotLoaded) {
			return 0, nil
		}
		return 0, err
	}
	defer m.mu.Unlock()
	if g.closed && g.state.Mode == reward.ModeKafka {
		return 0, nil
	}
	acked := g.requests.ack(generation, tickets)
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
		out[i] = g.requests.find(ticket, generation) != nil
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
	case g.state.Generation <= p.State.Base:
		return ApplyResult{}, ErrNotLoaded
	case p.State.Version < have, p.State.Version == have && !p.Repair:
		return ApplyResult{Version: have}, nil
	case have < p.From:
		return ApplyResult{Behind: true, Version: have}, nil
	}
	if p.State.Mode != reward.ModeKafka {
		g.line.removeUpTo(p.State.Settled, g.line.waiting)
	} else {
		for _, d := range p.Done {
			if w := g.line.byUser[d.UserID]; w != nil && w.ticket == d.Ticket {
				g.line.remove(w)
			}
		}
	}
	g.leave(p.Left)
	if p.State.Mode != reward.ModeKafka {
		g.comeBack(p.Back, p.State.Settled)
	}
	before := g.state
	g.state = p.State
	g.state.Generation = before.Generation // the gate's promises belong to its own generation
	if before.Grants >= p.State.Grants {
		g.state.Granted, g.state.Grants = before.Granted, before.Grants
	}
	g.lastTicket = max(g.lastTicket, p.State.Settled)
	for _, f := range p.Holdings {
		g.holdings.set(f)
	}
	if p.ServiceTime > 0 {
		g.serviceTime = p.ServiceTime
	}
	m.hintLocked(Hint{TemplateID: p.TemplateID, Kind: HintOutcomes})
	return ApplyResult{Version: p.State.Version}, nil
}

// Shrink implements Gate.
func (m *Memory) Shrink(ctx context.Context, id reward.TemplateID) (ShrinkResult, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return ShrinkResult{}, err
	}
	defer m.mu.Unlock()
	s := &g.state
	s.Granted = min(s.Granted, s.Used+int64(g.line.waiting))
	return ShrinkResult{Generation: s.Generation, Version: s.Version, Granted: s.Granted, Grants: s.Grants}, nil
}

// PauseGrants implements Gate.
func (m *Memory) PauseGrants(ctx context.Context, id reward.TemplateID, pause time.Duration) error {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	g.pausedUntil = time.Now().Add(pause)
	return nil
}

// Retire implements Gate.
func (m *Memory) Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error) {
	g, err := m.lockExisting(ctx, id)
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

// Remove implements Gate.
func (m *Memory) Remove(ctx context.Context, id reward.TemplateID) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	delete(m.templates, id)
	return nil
}

// Holdings implements Gate.
func (m *Memory) Holdings(ctx context.Context, id reward.TemplateID, cursor string) ([]Holding, string, int64, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return nil, "", 0, err
	}
	defer m.mu.Unlock()
	list, next, err := g.holdings.page(g.state.Generation, cursor)
	return list, next, g.state.Version, err
}

// HoldingsOf implements Gate.
func (m *Memory) HoldingsOf(ctx context.Context, id reward.TemplateID, users []string) (HoldingsOfResult, error) {
	if err := CheckSize("users", len(users), LoadMax); err != nil {
		return HoldingsOfResult{}, err
	}
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return HoldingsOfResult{}, err
	}
	defer m.mu.Unlock()
	out := HoldingsOfResult{
		Holdings: make([]Holding, len(users)), Generation: g.state.Generation, Version: g.state.Version, Holders: int64(len(g.holdings.byUser)),
	}
	for i, user := range users {
		out.Holdings[i].UserID = user
		if known := g.holdings.byUser[user]; known != nil {
			out.Holdings[i] = known.Holding
		}
	}
	return out, nil
}

// hintLocked gives a hint, and drops it if the buffer is full.
func (m *Memory) hintLocked(h Hint) {
	select {
	case m.hints <- h:
	default:
	}
}

// Hints implements Gate.
func (m *Memory) Hints() <-chan Hint { return m.hints }

// Ping implements Gate.
func (m *Memory) Ping(ctx context.Context) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	m.mu.Unlock()
	return nil
}

// Try implements Gate.
func (m *Memory) Try(ctx context.Context, _ reward.TemplateID) error { return m.Ping(ctx) }

// Close implements Gate. It may be called more than once.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		close(m.hints)
	}
}
