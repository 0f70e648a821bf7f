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
	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/gate"
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
			"read": w.read, "claim": w.claim, "ack": w.ack, "raise": w.raise, "capTotal": w.capTotal,
			"loadBegin": w.loadBegin, "loadHoldings": w.loadHoldings, "loadSwap": w.loadSwap, "": w.check,
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
	through  int64 // the highest settled ticket that a user in line had
	holdings map[string]gate.Holding
	changed  []string // users
	done     []gate.SettledTicket
}

// modelGate models a gate.
type modelGate struct {
	loaded     bool
	state      gate.State
	capTotal   int64     // of the latest CapTotal
	cappedAt   time.Time // just before that call; zero = never capped
	lastTicket int64
	line       []gate.SettledTicket
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
	token   string
	run     string
	at      rowsAt
	stored  map[string]gate.Holding
	leftOut map[gate.SettledTicket]bool
}

type walker struct {
	*rapid.T
	ctx  *testing.T
	g    gate.Gate
	lose func(t TB, id reward.TemplateID, all bool)
	id   reward.TemplateID

	rows     []rowsAt // by version
	requests []gate.Request
	settled  map[gate.Request]bool
	applies  []gate.ApplyParams

	gate     *modelGate // nil = none
	loaders  []*modelLoader
	marker   *modelLoader // its holder; nil = none
	markerAt time.Time    // when the marker was set or extended last
	stalled  bool         // the machine was so slow that the marker or a cap may have expired
}

func (w *walker) now() *rowsAt { return &w.rows[len(w.rows)-1] }

// change creates a new version of the rows.
func (w *walker) change() *rowsAt {
	last := w.now()
	next := rowsAt{state: last.state, through: last.through, holdings: maps.Clone(last.holdings)}
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
	w.settled = map[gate.Request]bool{}
}

var walkUsers = names("u", 6)

func (w *walker) admit(t *rapid.T) {
	users := rapid.SliceOfN(rapid.SampledFrom(walkUsers), 0, 4).Draw(t, "users")
	admit := rapid.Bool().Draw(t, "admit")
	result, err := w.g.Admit(w.ctx.Context(), w.id, users, admit)
	if w.gate != nil && !w.gate.cappedAt.IsZero() && time.Since(w.gate.cappedAt) > gate.CapTTL {
		w.stalled = true
	}
	if !w.served(t, "Admit", err) {
		return
	}
	want := gate.AdmitResult{
		Answers: make([]gate.Answer, len(users)), Generation: w.gate.state.Generation, Version: w.gate.state.Version, ServiceTime: w.gate.service,
	}
	for i, user := range users {
		want.Answers[i] = w.decide(user, admit)
	}
	equal(t, "result", result, want)
}

func (w *walker) decide(user string, admit bool) gate.Answer {
	g := w.gate
	rank := slices.IndexFunc(g.line, func(s gate.SettledTicket) bool { return s.UserID == user })
	total := g.state.Total
	if !g.cappedAt.IsZero() {
		total = min(total, g.capTotal)
	}
	switch waiting := int64(len(g.line)); {
	case rank >= 0:
		return gate.Answer{Verdict: gate.InLine, Ticket: g.line[rank].Ticket, Rank: int64(rank)}
	case g.holdings[user].Held >= g.state.PerUserLimit:
		return gate.Answer{Verdict: gate.AtUserLimit, CouponID: g.holdings[user].CouponID}
	case total-g.state.Live-waiting <= 0:
		return gate.Answer{Verdict: gate.SoldOut}
	case !admit:
		return gate.Answer{Verdict: gate.Admitted, Rank: waiting}
	default:
		g.lastTicket++
		w.enqueue(gate.Request{UserID: user, Ticket: g.lastTicket, Generation: g.state.Generation})
		return gate.Answer{Verdict: gate.Admitted, Ticket: g.lastTicket, Rank: waiting}
	}
}

func (w *walker) enqueue(r gate.Request) {
	w.gate.line = append(w.gate.line, gate.SettledTicket{UserID: r.UserID, Ticket: r.Ticket})
	w.gate.requests = append(w.gate.requests, modelRequest{Request: r})
	w.requests = append(w.requests, r)
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
		if r.Generation == s.Generation && !w.settled[r] && (s.Mode == reward.ModeKafka || r.Ticket == s.Settled+1) {
			open = append(open, r)
		}
	}
	if len(open) == 0 {
		return
	}
	r := rapid.SampledFrom(open).Draw(t, "request")
	w.settled[r] = true
	now := w.change()
	now.state.Settled = max(now.state.Settled, r.Ticket)
	now.through = now.state.Settled
	now.done = []gate.SettledTicket{{UserID: r.UserID, Ticket: r.Ticket}}
	now.issue(r.UserID)
	w.applies = append(w.applies, w.covering(t, now.state.Version-1))
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
	g.line = slices.DeleteFunc(g.line, func(s gate.SettledTicket) bool {
		if p.State.Mode == reward.ModeKafka {
			return slices.Contains(p.Done, s)
		}
		return s.Ticket <= p.State.Settled
	})
	generation := g.state.Generation
	g.state = p.State
	g.state.Generation = generation
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
	equal(t, "read", append([]gate.Request{}, got...), want)
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
	equal(t, "claim", append([]gate.Request{}, got...), want)
}

func (w *walker) ack(t *rapid.T) {
	if len(w.requests) == 0 || w.stalled {
		return
	}
	r := rapid.SampledFrom(w.requests).Draw(t, "request")
	acked, err := w.g.Ack(w.ctx.Context(), w.id, r.Generation, []int64{r.Ticket})
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	if w.gate != nil {
		w.gate.requests = slices.DeleteFunc(w.gate.requests, func(m modelRequest) bool {
			if m.Request == r {
				want++
			}
			return m.Request == r
		})
	}
	equal(t, "acknowledged", acked, want)
}

func (w *walker) raise(*rapid.T) { w.now().state.Generation++ }

func (w *walker) capTotal(t *rapid.T) {
	total := rapid.Int64Range(0, 6).Draw(t, "total")
	called := time.Now()
	done, err := w.g.CapTotal(w.ctx.Context(), w.id, total)
	if !w.served(t, "CapTotal", err) {
		return
	}
	fits := w.gate.state.Live+int64(len(w.gate.line)) <= total
	equal(t, "cappedAt", done, fits)
	if fits {
		w.gate.capTotal, w.gate.cappedAt = total, called
	}
}

// keepMarker records that the marker was extended, or that it may have expired.
func (w *walker) keepMarker(called time.Time) {
	if w.marker != nil && time.Since(w.markerAt) > gate.LoadMarkerTTL/2 {
		w.stalled = true
	}
	w.markerAt = called
}

func (w *walker) loadBegin(t *rapid.T) {
	l := &modelLoader{token: newToken()}
	if len(w.loaders) > 0 && rapid.Bool().Draw(t, "again") {
		l = rapid.SampledFrom(w.loaders).Draw(t, "loader")
	}
	called := time.Now()
	begun, err := w.g.LoadBegin(w.ctx.Context(), w.id, l.token)
	if err != nil {
		t.Fatal(err)
	}
	if w.marker == nil || w.marker == l {
		w.keepMarker(called)
	}
	if w.stalled {
		return
	}
	equal(t, "held", begun.Held, w.marker == nil || w.marker == l)
	w.wantHeader(t, begun.Gate)
	if !slices.Contains(w.loaders, l) {
		w.loaders = append(w.loaders, l)
	}
	if !begun.Held {
		return
	}
	// A loader takes the marker, raises the generation, and then reads the rows.
	w.now().state.Generation++
	w.marker, l.stored, l.leftOut = l, map[string]gate.Holding{}, map[gate.SettledTicket]bool{}
	l.run, l.at = begun.Run, *w.now()
	l.at.holdings = maps.Clone(l.at.holdings)
}

func (w *walker) loadHoldings(t *rapid.T) {
	if len(w.loaders) == 0 {
		return
	}
	l := rapid.SampledFrom(w.loaders).Draw(t, "loader")
	called := time.Now()
	var holdings []gate.Holding
	for _, user := range slices.Sorted(maps.Keys(l.at.holdings)) {
		holdings = append(holdings, l.at.holdings[user])
	}
	var leftOut []gate.SettledTicket
	if w.gate != nil {
		for _, s := range w.gate.line {
			if w.settled[gate.Request{UserID: s.UserID, Ticket: s.Ticket, Generation: w.gate.state.Generation}] {
				leftOut = append(leftOut, s)
			}
		}
	}
	if err := w.g.LoadHoldings(w.ctx.Context(), w.id, l.token, holdings, leftOut); err != nil {
		t.Fatal(err)
	}
	if w.marker != l {
		return
	}
	w.keepMarker(called)
	for _, f := range holdings {
		l.stored[f.UserID] = f
	}
	for _, s := range leftOut {
		l.leftOut[s] = true
	}
}

func (w *walker) loadSwap(t *rapid.T) {
	if len(w.loaders) == 0 {
		return
	}
	l := rapid.SampledFrom(w.loaders).Draw(t, "loader")
	called := time.Now()
	if w.marker == l {
		w.keepMarker(called)
	}
	result, err := w.g.LoadSwap(w.ctx.Context(), gate.SwapParams{
		TemplateID: w.id, Token: l.token, Run: l.run, State: l.at.state, Holdings: len(l.at.holdings), KeepAbove: l.at.through,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.keepMarker(called)
	if w.stalled {
		return
	}
	done := w.marker == l && len(l.stored) == len(l.at.holdings) &&
		(w.gate == nil || w.gate.state.Generation < l.at.state.Generation)
	if !done {
		equal(t, "swap", result, gate.SwapResult{})
		return
	}
	old := w.gate
	w.gate = &modelGate{loaded: true, state: l.at.state, lastTicket: l.at.state.Settled, holdings: l.stored}
	if old != nil {
		w.gate.service = old.service
		for _, s := range old.line {
			kept := s.Ticket > l.at.through
			if l.at.state.Mode == reward.ModeKafka {
				kept = !l.leftOut[s]
			}
			if kept && l.stored[s.UserID].Held < l.at.state.PerUserLimit {
				w.gate.lastTicket++
				w.enqueue(gate.Request{UserID: s.UserID, Ticket: w.gate.lastTicket, Generation: l.at.state.Generation})
			}
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
		w.gate.loaded = false
	}
}

func (w *walker) header(t TB) gate.Header {
	t.Helper()
	return must(w.g.Headers(w.ctx.Context(), []reward.TemplateID{w.id}))(t)[0]
}

func (w *walker) wantHeader(t TB, got gate.Header) {
	t.Helper()
	var want gate.Header
	if g := w.gate; g != nil {
		want = gate.Header{
			Exists: true, Loaded: g.loaded, Generation: g.state.Generation, Version: g.state.Version, Settled: g.state.Settled,
			LastTicket: g.lastTicket, Total: g.state.Total, Live: g.state.Live, IssuedTotal: g.state.IssuedTotal,
			Waiting: int64(len(g.line)), Backlog: int64(len(g.requests)), LastRequestAt: got.LastRequestAt, ServiceTime: g.service,
		}
		want.PublishedStock, want.PublishedCount, want.PublishedIssued = want.Stock(), want.Live, want.IssuedTotal
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

	all := run(1, g.lastTicket)
	unacked, err := w.g.Unacked(w.ctx.Context(), w.id, g.state.Generation, all)
	w.served(t, "Unacked", err)
	for i, ticket := range all {
		there := slices.ContainsFunc(g.requests, func(r modelRequest) bool { return r.Ticket == ticket })
		equal(t, fmt.Sprint("unacked ", ticket), unacked[i], there)
	}

	// The gate equals the rows at one version.
	rows := w.rows[g.state.Version]
	holdings := allHoldings(w.ctx.Context(), t, w.g, w.id)
	if diff := cmp.Diff(rows.holdings, holdings); diff != "" {
		t.Fatalf("holdings of version %d (-rows +gate):\n%s", g.state.Version, diff)
	}
	if s := rows.state; s.Live != g.state.Live || s.Settled != g.state.Settled || s.IssuedTotal != g.state.IssuedTotal {
		t.Fatalf("at version %d the rows have %+v, the gate %+v", g.state.Version, s, g.state)
	}
}
