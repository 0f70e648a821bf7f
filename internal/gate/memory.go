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

// errClosed is returned by the methods of a closed gate.
var errClosed = errors.New("gate: closed")

// hintsMax limits the undelivered hints; further ones are dropped.
const hintsMax = 1024

// memory is the in-process driver. It has no goroutines. Its run is the process: all
// gates end with it, so an existing gate is loaded unless a load has closed it. It
// does not store outcomes, because only the process that settles them could read them.
type memory struct {
	run   string
	hints chan Hint

	mu        sync.Mutex // protects the fields below, and sends on and the close of hints
	closed    error      // what all methods return; nil = the gate is open
	templates map[reward.TemplateID]*memoryTemplate
}

// memoryTemplate holds a template's gate, the load in progress, and the SYNC lock.
type memoryTemplate struct {
	gate   *memoryGate // nil = there is none
	marker loadMarker
	lock   memoryLock
}

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

// NewMemory returns the in-process driver, without gates.
func NewMemory() Gate {
	return &memory{run: rand.Text(), hints: make(chan Hint, hintsMax), templates: map[reward.TemplateID]*memoryTemplate{}}
}

// NewUnavailable returns a driver whose calls all fail with err, and which gives no hints.
func NewUnavailable(err error) Gate { return &memory{closed: err} }

// lock locks the mutex, unless ctx has ended or the driver is closed.
func (m *memory) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("gate: nothing was done: %w", err)
	}
	m.mu.Lock()
	if err := m.closed; err != nil {
		m.mu.Unlock()
		return err
	}
	return nil
}

// lockGate locks the mutex and returns a gate that is served. It returns
// ErrNotLoaded, with the mutex unlocked, if there is none.
func (m *memory) lockGate(ctx context.Context, id reward.TemplateID) (*memoryGate, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	if g := m.gateLocked(id); g != nil && !g.closed {
		return g, nil
	}
	m.mu.Unlock()
	return nil, ErrNotLoaded
}

// gateLocked returns the gate of a template, which may be closed, or nil.
func (m *memory) gateLocked(id reward.TemplateID) *memoryGate {
	if t := m.templates[id]; t != nil {
		return t.gate
	}
	return nil
}

// templateLocked returns a template, which it creates if it is missing.
func (m *memory) templateLocked(id reward.TemplateID) *memoryTemplate {
	t := m.templates[id]
	if t == nil {
		t = &memoryTemplate{}
		m.templates[id] = t
	}
	return t
}

func (m *memory) Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (AdmitResult, error) {
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

// decide decides about one user, and admits them if admit is true.
func (g *memoryGate) decide(user string, now time.Time, admit bool) Answer {
	if w := g.line.byUser[user]; w != nil {
		return Answer{Verdict: InLine, Ticket: w.ticket, Rank: g.line.rank(w)}
	}
	if h := g.holdings.byUser[user]; h != nil && h.Held >= g.state.PerUserLimit {
		return Answer{Verdict: AtUserLimit, CouponID: h.CouponID}
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

func (m *memory) Place(ctx context.Context, id reward.TemplateID, user string) (PlaceResult, error) {
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
		r.Generation = 0
		if e := g.requests.at(w.ticket); e != nil {
			r.Generation = e.Generation
		}
	}
	return r
}

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
		if e := g.requests.at(r.Ticket); e != nil && e.Request == r && r.Ticket > settled && g.line.byUser[r.UserID] == nil {
			g.line.insert(r.UserID, r.Ticket)
		}
	}
}

func (m *memory) Positions(ctx context.Context, id reward.TemplateID, users []string) (PositionsResult, error) {
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

func (m *memory) Line(ctx context.Context, id reward.TemplateID, after, upTo int64) (LineResult, error) {
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

func (m *memory) Headers(ctx context.Context, ids []reward.TemplateID) ([]Header, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	out := make([]Header, len(ids))
	for i, id := range ids {
		out[i] = m.gateLocked(id).header()
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

// In one process the consumer makes no difference.
func (m *memory) Read(ctx context.Context, id reward.TemplateID, _ string, count int) (Delivery, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return Delivery{}, err
	}
	defer m.mu.Unlock()
	return Delivery{Generation: g.state.Generation, Requests: g.requests.read(min(count, ReadMax))}, nil
}

func (m *memory) Claim(ctx context.Context, id reward.TemplateID, _ string, after int64, count int) (Delivery, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return Delivery{}, err
	}
	defer m.mu.Unlock()
	return Delivery{Generation: g.state.Generation, Requests: g.requests.pending(after, min(count, ReadMax))}, nil
}

func (m *memory) Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error) {
	if err := m.lock(ctx); err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	g := m.gateLocked(id)
	if g == nil || g.closed && g.state.Mode == reward.ModeKafka {
		return 0, nil
	}
	acked := g.requests.ack(generation, tickets)
	if acked > 0 && g.state.Mode == reward.ModeKafka {
		m.hintLocked(Hint{TemplateID: id, Kind: HintOutcomes})
	}
	return acked, nil
}

func (m *memory) Unacked(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) ([]bool, error) {
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
		e := g.requests.at(ticket)
		out[i] = e != nil && e.Generation == generation
	}
	return out, nil
}

func (m *memory) Apply(ctx context.Context, p ApplyParams) (ApplyResult, error) {
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

func (m *memory) Shrink(ctx context.Context, id reward.TemplateID) (ShrinkResult, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return ShrinkResult{}, err
	}
	defer m.mu.Unlock()
	s := &g.state
	s.Granted = min(s.Granted, s.Used+int64(g.line.waiting))
	return ShrinkResult{Generation: s.Generation, Version: s.Version, Granted: s.Granted, Grants: s.Grants}, nil
}

func (m *memory) PauseGrants(ctx context.Context, id reward.TemplateID, pause time.Duration) error {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	g.pausedUntil = time.Now().Add(pause)
	return nil
}

func (m *memory) Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error) {
	if err := m.lock(ctx); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	g := m.gateLocked(id)
	if g == nil {
		return true, nil
	}
	if g.line.waiting > 0 || g.requests.length > 0 || time.Since(g.lastRequest) < idle {
		return false, nil
	}
	m.templates[id].gate = nil
	return true, nil
}

func (m *memory) Remove(ctx context.Context, id reward.TemplateID) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	delete(m.templates, id)
	return nil
}

func (m *memory) Holdings(ctx context.Context, id reward.TemplateID, cursor string) ([]Holding, string, int64, error) {
	g, err := m.lockGate(ctx, id)
	if err != nil {
		return nil, "", 0, err
	}
	defer m.mu.Unlock()
	list, next, err := g.holdings.page(g.state.Generation, cursor)
	return list, next, g.state.Version, err
}

func (m *memory) HoldingsOf(ctx context.Context, id reward.TemplateID, users []string) (HoldingsOfResult, error) {
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

func (m *memory) hintLocked(h Hint) {
	select {
	case m.hints <- h:
	default:
	}
}

func (m *memory) Hints() <-chan Hint { return m.hints }

func (m *memory) Ping(ctx context.Context) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	m.mu.Unlock()
	return nil
}

func (m *memory) Try(ctx context.Context, _ reward.TemplateID) error { return m.Ping(ctx) }

// It may be called more than once.
func (m *memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed == nil {
		m.closed = errClosed
		close(m.hints)
	}
}

type memoryLock struct {
	token int64  // of the latest holder; never decreases
	nonce string // of that holder
	until time.Time
}

func (m *memory) Lock(ctx context.Context, id reward.TemplateID, p LockParams) (int64, bool, error) {
	if err := m.lock(ctx); err != nil {
		return 0, false, err
	}
	defer m.mu.Unlock()
	now, l := time.Now(), &m.templateLocked(id).lock
	switch {
	case !now.Before(l.until):
		l.token, l.nonce = max(l.token+1, p.Floor+1, now.UnixMicro()), p.Nonce
	case l.nonce != p.Nonce:
		return 0, false, nil
	}
	l.until = now.Add(p.Lease)
	return l.token, true, nil
}

func (m *memory) Unlock(ctx context.Context, id reward.TemplateID, token int64) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if t := m.templates[id]; t != nil && t.lock.token == token {
		t.lock.until = time.Time{}
	}
	return nil
}
