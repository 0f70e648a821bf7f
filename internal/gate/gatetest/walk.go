package gatetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// walk makes random calls: admits, issues (also through the database), cancels, reads,
// acknowledgements, applies that are late, repeated, reordered or lost, and loads that
// are overtaken or start over. After every step, everything that a gate shows must
// equal the model, and its state and holdings must equal the rows at its version.
func walk(t *testing.T, g gate.Gate, lose func(t TB, id reward.TemplateID, all bool)) {
	var templates atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		w := &walker{T: rt, ctx: t, g: g, lose: lose, id: reward.TemplateID(1000 + templates.Add(1))}
		w.begin()
		actions := map[string]func(*rapid.T){
			"admit": w.admit, "settle": w.settle, "pass": w.pass, "cancel": w.cancel, "deliver": w.deliver, "cover": w.cover,
			"read": w.read, "claim": w.claim, "ack": w.ack, "leave": w.leave, "raise": w.raise, "grant": w.grant, "shrink": w.shrink,
			"loadBegin": w.loadBegin, "loadClose": w.loadClose, "loadHoldings": w.loadHoldings, "loadTrim": w.loadTrim, "loadLeft": w.loadLeft, "loadCopy": w.loadCopy,
			"loadSwap": w.loadSwap, "": w.check,
		}
		if lose != nil {
			actions["lose"] = w.loseGate
		}
		rt.Repeat(actions)
	})
}

// rowsAt holds the state of the rows at a version.
type rowsAt struct {
	state    gate.State
	holdings map[string]gate.Holding
	changed  []string // users
	done     []gate.Request
	left     []gate.Request
}

// modelGate models a gate.
type modelGate struct {
	loaded     bool
	closed     bool
	trimmed    bool // by a load, which does not change the published stock
	state      gate.State
	lastTicket int64
	line       []gate.Request
	requests   []modelRequest
	holdings   map[string]gate.Holding
	service    time.Duration
}

type modelRequest struct {
	gate.Request
	read bool
}

// modelLoader models a loader.
type modelLoader struct {
	gate.Load
	kind   gate.LoadKind
	old    int64 // generation of the gate
	at     rowsAt
	stored map[string]gate.Holding
	read   int // users of the old line
	copied []gate.Request
}

// hand is a request with the generation of a gate that may have delivered it.
type hand struct {
	gate.Request
	of int64
}

type walker struct {
	*rapid.T
	ctx  *testing.T
	g    gate.Gate
	lose func(t TB, id reward.TemplateID, all bool)
	id   reward.TemplateID

	rows     []rowsAt // by version
	requests []hand
	settled  map[gate.Request]bool
	left     map[gate.Request]bool
	applies  []gate.ApplyParams

	gate     *modelGate // nil = none
	loaders  []*modelLoader
	marker   *modelLoader // its holder; nil = none
	markerAt time.Time    // when the marker was set or extended last
	stalled  bool         // the machine was so slow that the marker may have expired
}

func (w *walker) now() *rowsAt { return &w.rows[len(w.rows)-1] }

// change creates a new version of the rows.
func (w *walker) change() *rowsAt {
	last := w.now()
	next := rowsAt{state: last.state, holdings: maps.Clone(last.holdings)}
	next.state.Version++
	w.rows = append(w.rows, next)
	return w.now()
}

func (w *walker) begin() {
	s := gate.State{
		Generation: 1, PerUserLimit: rapid.IntRange(1, 2).Draw(w.T, "limit"), Total: rapid.Int64Range(1, 6).Draw(w.T, "total"),
		Mode: rapid.SampledFrom([]reward.IssueMode{reward.ModeStream, reward.ModeKafka}).Draw(w.T, "mode"),
	}
	w.rows = []rowsAt{{state: s, holdings: map[string]gate.Holding{}}}
	w.settled, w.left = map[gate.Request]bool{}, map[gate.Request]bool{}
}

var walkUsers = names("u", 6)

func (w *walker) admit(t *rapid.T) {
	users := rapid.SliceOfN(rapid.SampledFrom(walkUsers), 0, 4).Draw(t, "users")
	admit := rapid.Bool().Draw(t, "admit")
	result, err := w.g.Admit(w.ctx.Context(), w.id, users, admit)
	if !w.served(t, "Admit", err) {
		return
	}
	want := gate.AdmitResult{
		Answers: make([]gate.Answer, len(users)), Generation: w.gate.state.Generation, Version: w.gate.state.Version, ServiceTime: w.gate.service,
		Granted: w.gate.state.Granted, Used: w.gate.state.Used, Grants: w.gate.state.Grants, Waiting: int64(len(w.gate.line)),
	}
	for i, user := range users {
		want.Answers[i] = w.decide(user, admit)
	}
	equal(t, "result", result, want)
}

func (w *walker) decide(user string, admit bool) gate.Answer {
	g := w.gate
	rank := slices.IndexFunc(g.line, func(s gate.Request) bool { return s.UserID == user })
	switch waiting := int64(len(g.line)); {
	case rank >= 0:
		return gate.Answer{Verdict: gate.InLine, Ticket: g.line[rank].Ticket, Rank: int64(rank)}
	case g.holdings[user].Held >= g.state.PerUserLimit:
		return gate.Answer{Verdict: gate.AtUserLimit, CouponID: g.holdings[user].CouponID}
	case g.state.Total-g.state.Live-waiting <= 0:
		return gate.Answer{Verdict: gate.SoldOut}
	case g.state.Granted-g.state.Used-waiting <= 0:
		return gate.Answer{Verdict: gate.NoPlace}
	case !admit:
		return gate.Answer{Verdict: gate.Admitted, Rank: waiting}
	default:
		g.lastTicket++
		w.enqueue(gate.Request{UserID: user, Ticket: g.lastTicket, Generation: g.state.Generation})
		return gate.Answer{Verdict: gate.Admitted, Ticket: g.lastTicket, Rank: waiting}
	}
}

func (w *walker) enqueue(r gate.Request) {
	w.gate.line = append(w.gate.line, r)
	w.gate.requests = append(w.gate.requests, modelRequest{Request: r})
	w.requests = append(w.requests, hand{r, w.gate.state.Generation})
}

// served reports whether the gate served a call, and fails the test if that is wrong.
// A stalled walk reports false, because the model may no longer be right.
func (w *walker) served(t TB, what string, err error) bool {
	t.Helper()
	if w.stalled {
		return false
	}
	if w.gate != nil && w.gate.loaded {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return true
	}
	if !errors.Is(err, gate.ErrNotLoaded) {
		t.Fatalf("%s without a gate: %v", what, err)
	}
	return false
}

// settle settles a request in the rows. Its apply may come at any time, or never.
func (w *walker) settle(t *rapid.T) {
	s := w.now().state
	var open []gate.Request
	for _, r := range w.requests {
		if r.of == s.Generation && !w.settled[r.Request] && (s.Mode == reward.ModeKafka || r.Ticket == s.Settled+1) {
			open = append(open, r.Request)
		}
	}
	if len(open) == 0 {
		return
	}
	r := rapid.SampledFrom(open).Draw(t, "request")
	w.settled[r] = true
	now := w.change()
	now.state.Settled = max(now.state.Settled, r.Ticket)
	if !w.left[r] {
		now.state.Used = min(now.state.Used+1, now.state.Granted)
		now.done = []gate.Request{{UserID: r.UserID, Ticket: r.Ticket}}
		now.issue(r.UserID)
	}
	w.applies = append(w.applies, w.covering(t, now.state.Version-1))
}

// leave lets a user leave the line in the rows. Its apply may come at any time, or never.
func (w *walker) leave(t *rapid.T) {
	s := w.now().state
	user := rapid.SampledFrom(walkUsers).Draw(t, "user")
	place, err := w.g.Place(w.ctx.Context(), w.id, user)
	if !w.served(t, "Place", err) {
		return
	}
	r := place.Request
	if !place.InLine || r.Generation == 0 || place.GateGeneration != s.Generation || w.left[r] || w.settled[r] ||
		s.Mode != reward.ModeKafka && r.Ticket <= s.Settled {
		return
	}
	now := w.change()
	now.state.Used = min(now.state.Used+1, now.state.Granted)
	if w.left[r] = true; s.Mode == reward.ModeKafka {
		w.settled[r] = true
		now.state.Settled = max(now.state.Settled, r.Ticket)
	}
	now.left = []gate.Request{r}
	w.applies = append(w.applies, w.covering(t, now.state.Version-1))
}

// request returns the request of a user in line as the gate knows it.
func (g *modelGate) request(r gate.Request) gate.Request {
	if g.state.Mode != reward.ModeKafka && !slices.ContainsFunc(g.requests, func(m modelRequest) bool { return m.Request == r }) {
		r.Generation = 0
	}
	return r
}

// remove removes requests that left from the line.
func (g *modelGate) remove(left []gate.Request) {
	g.line = slices.DeleteFunc(g.line, func(r gate.Request) bool { return slices.Contains(left, g.request(r)) })
}

// issue issues a coupon to a user, if the limits allow it.
func (at *rowsAt) issue(user string) {
	holding := at.holdings[user]
	if at.state.Live < at.state.Total && holding.Held < at.state.PerUserLimit {
		at.state.Live++
		at.state.IssuedTotal++
		at.holdings[user] = gate.Holding{UserID: user, Held: holding.Held + 1, CouponID: reward.CouponID(1<<60 + at.state.Version)}
		at.changed = []string{user}
	}
}

// pass issues a coupon through the database, under another generation: no user in line
// has its ticket. Its apply may come late, or never.
func (w *walker) pass(t *rapid.T) {
	now := w.change()
	now.state.Generation++
	now.state.Base = now.state.Generation
	now.state.Settled++
	now.issue(rapid.SampledFrom(walkUsers).Draw(t, "user"))
	w.applies = append(w.applies, w.covering(t, now.state.Version-1))
}

func (w *walker) cancel(t *rapid.T) {
	holders := slices.Sorted(maps.Keys(w.now().holdings))
	if len(holders) == 0 {
		return
	}
	user := rapid.SampledFrom(holders).Draw(t, "holder")
	now := w.change()
	holding := now.holdings[user]
	if holding.Held--; holding.Held == 0 {
		delete(now.holdings, user)
	} else {
		now.holdings[user] = holding
	}
	now.state.Live--
	now.changed = []string{user}
	w.applies = append(w.applies, w.covering(t, now.state.Version-1))
}

// covering returns the apply from a version to the present one.
func (w *walker) covering(t *rapid.T, from int64) gate.ApplyParams {
	p := gate.ApplyParams{
		TemplateID: w.id, From: from, State: w.now().state,
		ServiceTime: time.Duration(rapid.IntRange(0, 3).Draw(t, "service")) * time.Millisecond,
	}
	users := map[string]bool{}
	for _, at := range w.rows[from+1:] {
		p.Done = append(p.Done, at.done...)
		p.Left = append(p.Left, at.left...)
		for _, user := range at.changed {
			users[user] = true
		}
	}
	for _, user := range slices.Sorted(maps.Keys(users)) {
		holding := w.now().holdings[user]
		holding.UserID = user
		p.Holdings = append(p.Holdings, holding)
	}
	return p
}

// deliver makes any of the applies so far, possibly again.
func (w *walker) deliver(t *rapid.T) {
	if len(w.applies) > 0 {
		w.apply(t, rapid.SampledFrom(w.applies).Draw(t, "apply"))
	}
}

// cover applies all missing changes, or repairs the gate.
func (w *walker) cover(t *rapid.T) {
	header := w.header(t)
	if !header.Exists || header.Version > w.now().state.Version {
		return
	}
	p := w.covering(t, header.Version)
	if p.Repair = rapid.Bool().Draw(t, "repair"); p.Repair {
		p.From, p.Holdings = 0, nil
		for _, user := range walkUsers {
			holding := w.now().holdings[user]
			holding.UserID = user
			p.Holdings = append(p.Holdings, holding)
		}
	}
	w.apply(t, p)
}

func (w *walker) apply(t *rapid.T, p gate.ApplyParams) {
	result, err := w.g.Apply(w.ctx.Context(), p)
	if g := w.gate; g != nil && g.loaded && g.state.Generation <= p.State.Base && !w.stalled {
		if !errors.Is(err, gate.ErrNotLoaded) {
			t.Fatalf("Apply of another numbering: %v", err)
		}
		return
	}
	if !w.served(t, "Apply", err) {
		return
	}
	g := w.gate
	switch have := g.state.Version; {
	case p.State.Version < have, p.State.Version == have && !p.Repair:
		equal(t, "apply", result, gate.ApplyResult{Version: have})
		return
	case have < p.From:
		equal(t, "apply", result, gate.ApplyResult{Behind: true, Version: have})
		return
	}
	equal(t, "apply", result, gate.ApplyResult{Version: p.State.Version})
	g.line = slices.DeleteFunc(g.line, func(s gate.Request) bool {
		if p.State.Mode == reward.ModeKafka {
			return slices.Contains(p.Done, gate.Request{UserID: s.UserID, Ticket: s.Ticket})
		}
		return s.Ticket <= p.State.Settled
	})
	g.remove(p.Left)
	before := g.state
	g.state = p.State
	g.state.Generation = before.Generation
	if p.State.Grants <= before.Grants {
		g.state.Granted, g.state.Grants = before.Granted, before.Grants
	}
	g.lastTicket = max(g.lastTicket, p.State.Settled)
	for _, f := range p.Holdings {
		if g.holdings[f.UserID] = f; f.Held == 0 {
			delete(g.holdings, f.UserID)
		}
	}
	if p.ServiceTime > 0 {
		g.service = p.ServiceTime
	}
}

func (w *walker) read(t *rapid.T) {
	count := rapid.IntRange(1, 4).Draw(t, "count")
	got, err := w.g.Read(w.ctx.Context(), w.id, "reader", count)
	if !w.served(t, "Read", err) {
		return
	}
	want := []gate.Request{}
	for i := range w.gate.requests {
		if r := &w.gate.requests[i]; !r.read && len(want) < count {
			r.read = true
			want = append(want, r.Request)
		}
	}
	equal(t, "read", got, gate.Delivery{Generation: w.gate.state.Generation, Requests: want}, cmpopts.EquateEmpty())
}

func (w *walker) claim(t *rapid.T) {
	after, count := rapid.Int64Range(0, 8).Draw(t, "after"), rapid.IntRange(1, 4).Draw(t, "count")
	got, err := w.g.Claim(w.ctx.Context(), w.id, "claimer", after, count)
	if !w.served(t, "Claim", err) {
		return
	}
	want := []gate.Request{}
	for _, r := range w.gate.requests {
		if r.read && r.Ticket > after && len(want) < count {
			want = append(want, r.Request)
		}
	}
	equal(t, "claim", got, gate.Delivery{Generation: w.gate.state.Generation, Requests: want}, cmpopts.EquateEmpty())
}

func (w *walker) ack(t *rapid.T) {
	if len(w.requests) == 0 || w.stalled {
		return
	}
	r := rapid.SampledFrom(w.requests).Draw(t, "request")
	acked := fixture.Must(w.g.Ack(w.ctx.Context(), w.id, r.Generation, []int64{r.Ticket}))(t)
	want := 0
	if w.gate != nil && (!w.gate.closed || w.gate.state.Mode != reward.ModeKafka) {
		w.gate.requests = slices.DeleteFunc(w.gate.requests, func(m modelRequest) bool {
			if m.Request == r.Request {
				want++
			}
			return m.Request == r.Request
		})
	}
	equal(t, "acknowledged", acked, want)
}

func (w *walker) raise(*rapid.T) { w.now().state.Generation++ }

// grant changes the places in the rows. Its apply may come late, or never.
func (w *walker) grant(t *rapid.T) {
	now := w.change()
	now.state.Granted = max(now.state.Used, now.state.Granted+int64(rapid.IntRange(-2, 3).Draw(t, "places")))
	now.state.Grants++
	w.applies = append(w.applies, w.covering(t, now.state.Version-1))
}

func (w *walker) shrink(t *rapid.T) {
	got, err := w.g.Shrink(w.ctx.Context(), w.id)
	if !w.served(t, "Shrink", err) {
		return
	}
	s := &w.gate.state
	s.Granted = min(s.Granted, s.Used+int64(len(w.gate.line)))
	equal(t, "shrink", got, gate.ShrinkResult{Generation: s.Generation, Version: s.Version, Granted: s.Granted, Grants: s.Grants})
}

// keepMarker records that a call of a loader set or extended the marker, or that the
// marker may have expired before the call. A call that does nothing extends no marker.
func (w *walker) keepMarker(called time.Time, extended bool) {
	if w.marker != nil && time.Now().After(w.markerAt.Add(gate.LoadMarkerTTL/2)) {
		w.stalled = true
	}
	if extended {
		w.markerAt = called
	}
}

func (w *walker) loadBegin(t *rapid.T) {
	l := &modelLoader{Load: gate.Load{TemplateID: w.id, Token: newToken()}}
	if len(w.loaders) > 0 && rapid.Bool().Draw(t, "again") {
		l = rapid.SampledFrom(w.loaders).Draw(t, "loader")
	}
	called := time.Now()
	begun := fixture.Must(w.g.LoadBegin(w.ctx.Context(), w.id, l.Token))(t)
	if w.keepMarker(called, begun.Held); w.stalled {
		return
	}
	equal(t, "held", begun.Held, w.marker == nil || w.marker == l)
	equal(t, "intact", begun.Intact, w.gate != nil)
	w.wantHeader(t, begun.Gate)
	if !slices.Contains(w.loaders, l) {
		w.loaders = append(w.loaders, l)
	}
	l.Run = begun.Run
	if !begun.Held {
		return
	}
	// A loader takes the marker, raises the generation, and then reads the rows.
	s := &w.now().state
	s.Generation = max(s.Generation, begun.Gate.Generation) + 1
	l.old, l.kind = begun.Gate.Generation, gate.LoadRemake
	switch {
	case !begun.Gate.Exists:
		l.kind = gate.LoadFresh
	case s.Mode == reward.ModeStream && begun.Gate.Generation > s.Base:
		l.kind = gate.LoadKeep
	}
	w.marker, l.stored, l.at = l, map[string]gate.Holding{}, *w.now()
	l.read, l.copied = 0, nil
	l.at.holdings = maps.Clone(l.at.holdings)
}

// step makes one call of a random loader. It reports whether the loader can continue,
// and fails the test if the call says otherwise.
func (w *walker) step(t *rapid.T, needsClosed bool, call func(*modelLoader) error) (*modelLoader, bool) {
	if len(w.loaders) == 0 {
		return nil, false
	}
	l := rapid.SampledFrom(w.loaders).Draw(t, "loader")
	called := time.Now()
	err := call(l)
	if w.keepMarker(called, err == nil); w.stalled {
		return l, false
	}
	holds := w.marker == l && (!needsClosed || w.gate != nil && w.gate.closed)
	if lost := errors.Is(err, gate.ErrLoadLost); lost == holds || err != nil && !lost {
		t.Fatalf("a step of a load that is held %v: %v", holds, err)
	}
	return l, holds
}

func (w *walker) loadClose(t *rapid.T) {
	_, held := w.step(t, false, func(l *modelLoader) error { return w.g.LoadClose(w.ctx.Context(), l.Load) })
	if held && w.gate != nil {
		w.gate.loaded, w.gate.closed = false, true
	}
}

func (w *walker) loadHoldings(t *rapid.T) {
	var holdings []gate.Holding
	l, held := w.step(t, false, func(l *modelLoader) error {
		for _, user := range slices.Sorted(maps.Keys(l.at.holdings)) {
			holdings = append(holdings, l.at.holdings[user])
		}
		return w.g.LoadHoldings(w.ctx.Context(), l.Load, holdings)
	})
	if !held {
		return
	}
	for _, f := range holdings {
		l.stored[f.UserID] = f
	}
}

func (w *walker) loadTrim(t *rapid.T) {
	var left int64
	l, held := w.step(t, true, func(l *modelLoader) (err error) {
		left, err = w.g.LoadTrim(w.ctx.Context(), l.Load, l.at.state.Settled)
		return err
	})
	if held {
		equal(t, "left", left, int64(0))
		w.gate.trimmed = true
		w.gate.line = slices.DeleteFunc(w.gate.line, func(r gate.Request) bool { return r.Ticket <= l.at.state.Settled })
	}
}

func (w *walker) loadLeft(t *rapid.T) {
	var left []gate.Request
	_, held := w.step(t, true, func(l *modelLoader) error {
		for _, at := range w.rows[:l.at.state.Version+1] {
			left = append(left, at.left...)
		}
		return w.g.LoadLeft(w.ctx.Context(), l.Load, left)
	})
	if held {
		w.gate.trimmed = true
		w.gate.remove(left)
	}
}

// loadCopy copies a part of the old line.
func (w *walker) loadCopy(t *rapid.T) {
	var page []gate.Request
	l, held := w.step(t, true, func(l *modelLoader) (err error) {
		page, err = w.g.LoadPage(w.ctx.Context(), l.Load, int64(l.read))
		return err
	})
	if !held {
		return
	}
	var want []gate.Request
	for _, r := range w.gate.line[min(l.read, len(w.gate.line)):] {
		want = append(want, w.gate.request(r))
	}
	equal(t, "page", page, want, cmpopts.EquateEmpty())
	page = page[:rapid.IntRange(0, len(page)).Draw(t, "part")]
	first := l.at.state.Settled + int64(len(l.copied)) + 1
	var users []string
	for i := range page {
		r := w.gate.line[l.read+i]
		if w.settled[r] || w.left[r] {
			continue
		}
		l.copied = append(l.copied, gate.Request{UserID: r.UserID, Ticket: first + int64(len(users)), Generation: l.at.state.Generation})
		users = append(users, r.UserID)
	}
	l.read += len(page)
	fixture.OK(t, w.g.LoadCopy(w.ctx.Context(), l.Load, l.at.state.Generation, first, users))
}

func (w *walker) loadSwap(t *rapid.T) {
	if len(w.loaders) == 0 {
		return
	}
	l := rapid.SampledFrom(w.loaders).Draw(t, "loader")
	copied := int64(len(l.copied))
	result := fixture.Must(w.g.LoadSwap(w.ctx.Context(), gate.SwapParams{
		Load: l.Load, Kind: l.kind, Old: l.old, State: l.at.state, Holdings: len(l.at.holdings), Copied: copied,
	}))(t)
	if w.keepMarker(time.Now(), false); w.stalled {
		return
	}
	generation := int64(0)
	if w.gate != nil {
		generation = w.gate.state.Generation
	}
	done := w.marker == l && len(l.stored) == len(l.at.holdings) && generation == l.old && l.old < l.at.state.Generation &&
		(w.gate == nil || w.gate.closed)
	if done && l.kind == gate.LoadKeep {
		done = w.gate != nil && !slices.ContainsFunc(w.gate.line, func(r gate.Request) bool { return r.Ticket <= l.at.state.Settled })
	}
	if !done {
		equal(t, "swap", result, gate.SwapResult{})
		return
	}
	old := w.gate
	w.gate = &modelGate{loaded: true, state: l.at.state, lastTicket: l.at.state.Settled, holdings: l.stored}
	if old != nil {
		w.gate.service = old.service
	}
	if l.kind == gate.LoadKeep {
		w.gate.line, w.gate.requests, w.gate.lastTicket = old.line, old.requests, max(old.lastTicket, l.at.state.Settled)
		for _, r := range old.requests {
			w.requests = append(w.requests, hand{r.Request, l.at.state.Generation})
		}
	} else {
		for _, r := range l.copied {
			w.gate.lastTicket++
			w.enqueue(r)
		}
	}
	w.marker = nil
	equal(t, "swap", result, gate.SwapResult{Done: true, Waiting: int64(len(w.gate.line))})
}

// loseGate loses the gate: a restart with the old data, or without any.
func (w *walker) loseGate(t *rapid.T) {
	all := rapid.Bool().Draw(t, "all")
	w.lose(t, w.id, all)
	switch {
	case all:
		w.gate, w.marker = nil, nil
	case w.gate != nil:
		w.gate.loaded, w.gate.closed = false, false
	}
}

func (w *walker) header(t TB) gate.Header {
	t.Helper()
	return fixture.Must(w.g.Headers(w.ctx.Context(), []reward.TemplateID{w.id}))(t)[0]
}

func (w *walker) wantHeader(t TB, got gate.Header) {
	t.Helper()
	var want gate.Header
	if g := w.gate; g != nil {
		want = gate.Header{
			Exists: true, Loaded: g.loaded, Generation: g.state.Generation, Version: g.state.Version, Settled: g.state.Settled,
			LastTicket: g.lastTicket, Total: g.state.Total, Live: g.state.Live, IssuedTotal: g.state.IssuedTotal,
			Granted: g.state.Granted, Used: g.state.Used, Grants: g.state.Grants,
			Waiting: int64(len(g.line)), Backlog: int64(len(g.requests)), LastRequestAt: got.LastRequestAt, ServiceTime: g.service,
		}
		want.PublishedCount, want.PublishedIssued = want.Live, want.IssuedTotal
		if want.PublishedStock = want.Stock(); g.trimmed {
			want.PublishedStock = got.PublishedStock
		}
		if len(g.line) > 0 {
			want.FirstTicket = g.line[0].Ticket
		}
	}
	equal(t, "header", got, want)
}

// check compares everything that a gate shows with the model.
func (w *walker) check(t *rapid.T) {
	if w.stalled {
		return
	}
	w.wantHeader(t, w.header(t))
	positions, err := w.g.Positions(w.ctx.Context(), w.id, walkUsers)
	if !w.served(t, "Positions", err) {
		return
	}
	g := w.gate
	want := gate.PositionsResult{Positions: make([]gate.Position, len(walkUsers)), Generation: g.state.Generation, Version: g.state.Version, ServiceTime: g.service}
	for rank, s := range g.line {
		want.Positions[slices.Index(walkUsers, s.UserID)] = gate.Position{InLine: true, Ticket: s.Ticket, Rank: int64(rank)}
	}
	equal(t, "positions", positions, want)

	for _, user := range walkUsers {
		place, err := w.g.Place(w.ctx.Context(), w.id, user)
		w.served(t, "Place", err)
		want := gate.PlaceResult{GateGeneration: g.state.Generation, Version: g.state.Version}
		if i := slices.IndexFunc(g.line, func(r gate.Request) bool { return r.UserID == user }); i >= 0 {
			want.InLine, want.Request = true, g.request(g.line[i])
		}
		equal(t, "place of "+user, place, want)
	}

	all := run(1, g.lastTicket)
	unacked, err := w.g.Unacked(w.ctx.Context(), w.id, g.state.Generation, all)
	w.served(t, "Unacked", err)
	for i, ticket := range all {
		there := slices.ContainsFunc(g.requests, func(r modelRequest) bool { return r.Ticket == ticket && r.Generation == g.state.Generation })
		equal(t, fmt.Sprint("unacked ", ticket), unacked[i], there)
	}

	// The gate equals the rows at one version.
	rows := w.rows[g.state.Version]
	holdings := allHoldings(w.ctx.Context(), t, w.g, w.id)
	if diff := cmp.Diff(rows.holdings, holdings); diff != "" {
		t.Fatalf("holdings of version %d (-rows +gate):\n%s", g.state.Version, diff)
	}
	if s := rows.state; s.Live != g.state.Live || s.Settled != g.state.Settled || s.Used != g.state.Used || s.IssuedTotal != g.state.IssuedTotal {
		t.Fatalf("at version %d the rows have %+v, the gate %+v", g.state.Version, s, g.state)
	}
}
