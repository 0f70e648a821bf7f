package redisgate

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

func (g *driver) Headers(ctx context.Context, ids []reward.TemplateID) ([]gate.Header, error) {
	replies, err := g.execAll(ctx, describe, ids)
	if err != nil {
		return nil, err
	}
	out := make([]gate.Header, len(ids))
	for i, r := range replies {
		out[i] = r.header()
		if err := r.done(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// header reads the result of header in head.lua.
func (r *reply) header() gate.Header {
	h := gate.Header{
		Exists: r.number() == 1, Loaded: r.number() == 1,
		Generation: r.number(), Version: r.number(), Settled: r.number(), LastTicket: r.number(), FirstTicket: r.number(),
		Total: r.number(), Live: r.number(), IssuedTotal: r.number(),
		Granted: r.number(), Used: r.number(), Grants: r.number(),
		PublishedStock: r.number(), PublishedCount: r.number(), PublishedIssued: r.number(),
		Waiting: r.number(), Backlog: r.number(),
	}
	requestedAt := r.number()
	if h.Exists {
		h.LastRequestAt = time.UnixMicro(requestedAt)
	}
	h.ServiceTime = r.micros()
	return h
}

func (g *driver) Shrink(ctx context.Context, id reward.TemplateID) (gate.ShrinkResult, error) {
	r := g.exec(ctx, shrink, id)
	return gate.ShrinkResult{Generation: r.number(), Version: r.number(), Granted: r.number(), Grants: r.number()}, r.done()
}

func (g *driver) PauseGrants(ctx context.Context, id reward.TemplateID, pause time.Duration) error {
	return g.exec(ctx, pauseGrants, id, number(pause.Microseconds())).err
}

func (g *driver) Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error) {
	r := g.exec(ctx, retire, id, number(idle.Microseconds()))
	return r.number() == 1, r.done()
}

func (g *driver) Remove(ctx context.Context, id reward.TemplateID) error {
	return g.exec(ctx, remove, id).err
}

func (g *driver) Apply(ctx context.Context, p gate.ApplyParams) (gate.ApplyResult, error) {
	args := append([]string{
		p.TemplateID.String(), hintChannel(g.prefix), number(p.From), flag(p.Repair), number(p.ServiceTime.Microseconds()),
	}, stateArgs(p.State)...)
	r := g.exec(ctx, apply, p.TemplateID, append(args, applyArgs(p)...)...)
	return gate.ApplyResult{Behind: r.number() == 1, Version: r.number()}, r.done()
}

// stateArgs returns the arguments of a state, starting with the version.
func stateArgs(s gate.State) []string {
	return []string{
		number(s.Version), number(s.Settled), number(s.Total), number(s.Live), number(s.IssuedTotal),
		number(int64(s.PerUserLimit)), timeArg(s.OpensAt), timeArg(s.ClosesAt), string(s.Mode), number(s.Base),
		number(s.Granted), number(s.Used), number(s.Grants),
	}
}

func timeArg(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return number(t.UnixMicro())
}

// applyArgs returns the arguments of changed holdings, tickets, requests and outcomes, after
// their numbers.
func applyArgs(p gate.ApplyParams) []string {
	var dropped, set, done []string
	for _, f := range p.Holdings {
		if f.Held > 0 {
			set = append(set, f.UserID, holdingText(f))
		} else {
			dropped = append(dropped, f.UserID)
		}
	}
	if p.State.Mode == reward.ModeKafka {
		for _, d := range p.Done {
			done = append(done, d.UserID, number(d.Ticket))
		}
	}
	out := make([]string, 0, 5+len(dropped)+len(set)+len(done)+3*len(p.Left)+3*len(p.Back)+4*len(p.Outcomes))
	for _, n := range []int{len(dropped), len(set) / 2, len(done) / 2, len(p.Left), len(p.Back)} {
		out = append(out, number(int64(n)))
	}
	out = append(append(append(out, dropped...), set...), done...)
	out = appendRequests(appendRequests(out, p.Left), p.Back)
	for _, o := range p.Outcomes {
		out = append(out, o.UserID, number(o.Ticket), o.CouponID.String(), o.Reason)
	}
	return out
}

// appendRequests appends user, ticket and generation of requests to arguments.
func appendRequests(args []string, requests []gate.Request) []string {
	for _, r := range requests {
		args = append(args, r.UserID, number(r.Ticket), number(r.Generation))
	}
	return args
}

// holdingsPage is the approximate size of a page of Holdings.
const holdingsPage = 1000

func (g *driver) Holdings(ctx context.Context, id reward.TemplateID, cursor string) (list []gate.Holding, next string, version int64, err error) {
	generation, position, err := gate.ParseCursor(cursor)
	if err != nil {
		return nil, "", 0, err
	}
	r := g.exec(ctx, holdings, id, number(generation), position, number(holdingsPage))
	generation, version, next = r.number(), r.number(), r.text()
	for r.more() {
		list = append(list, r.holding(r.text()))
	}
	if next == "0" {
		return list, "", version, r.done()
	}
	return list, gate.Cursor(generation, next), version, r.done()
}

func (g *driver) HoldingsOf(ctx context.Context, id reward.TemplateID, users []string) (gate.HoldingsOfResult, error) {
	if err := gate.CheckSize("users", len(users), gate.LoadMax); err != nil {
		return gate.HoldingsOfResult{}, err
	}
	r := g.exec(ctx, holdingsOf, id)
	out := gate.HoldingsOfResult{Generation: r.number(), Version: r.number(), Holders: r.number(), Holdings: make([]gate.Holding, len(users))}
	if err := r.done(); err != nil || len(users) == 0 {
		return out, err
	}
	// A plain command costs the server a third of a script for so many users.
	r.set(g.client.Do(ctx, g.client.B().Hmget().Key(admitKeys(g.prefix, id)[3]).Field(users...).Build()))
	for i, user := range users {
		out.Holdings[i] = r.holding(user)
	}
	return out, r.done()
}

// loadMarkerMillis is gate.LoadMarkerTTL for the scripts.
var loadMarkerMillis = number(gate.LoadMarkerTTL.Milliseconds())

func (g *driver) LoadBegin(ctx context.Context, id reward.TemplateID, token string) (gate.LoadBeginResult, error) {
	r := g.exec(ctx, loadBegin, id, token, loadMarkerMillis)
	return gate.LoadBeginResult{Held: r.number() == 1, Run: r.text(), Intact: r.number() == 1, Gate: r.header()}, r.done()
}

// step runs a script of a load, with args after those that all of them have.
func (g *driver) step(ctx context.Context, s *script, l gate.Load, args ...string) *reply {
	return g.exec(ctx, s, l.TemplateID, append([]string{l.Token, l.Run, loadMarkerMillis}, args...)...)
}

func (g *driver) LoadClose(ctx context.Context, l gate.Load) error {
	return g.step(ctx, loadClose, l).err
}

func (g *driver) LoadHoldings(ctx context.Context, l gate.Load, list []gate.Holding) error {
	if err := gate.CheckSize("holdings", len(list), gate.LoadMax); err != nil {
		return err
	}
	args := make([]string, 0, 2*len(list))
	for _, h := range list {
		if h.Held > 0 {
			args = append(args, h.UserID, holdingText(h))
		}
	}
	return g.step(ctx, loadHoldings, l, args...).err
}

func (g *driver) LoadTrim(ctx context.Context, l gate.Load, settled int64) (int64, error) {
	r := g.step(ctx, loadTrim, l, number(settled), number(gate.LoadMax))
	return r.number(), r.done()
}

func (g *driver) LoadLeft(ctx context.Context, l gate.Load, left []gate.Request) error {
	if err := gate.CheckSize("requests", len(left), gate.LoadMax); err != nil {
		return err
	}
	return g.step(ctx, loadLeft, l, appendRequests([]string{l.TemplateID.String()}, left)...).err
}

func (g *driver) LoadMissing(ctx context.Context, l gate.Load, after int64) (missing []gate.Request, last int64, err error) {
	r := g.step(ctx, loadMissing, l, l.TemplateID.String(), number(after), number(gate.LoadPageMax))
	last = r.number()
	return r.requests(), last, r.done()
}

func (g *driver) LoadBack(ctx context.Context, l gate.Load, back []gate.Request) error {
	if err := gate.CheckSize("requests", len(back), gate.LoadPageMax); err != nil {
		return err
	}
	return g.step(ctx, loadBack, l, appendRequests([]string{l.TemplateID.String()}, back)...).err
}

func (g *driver) LoadPage(ctx context.Context, l gate.Load, from int64) ([]gate.Request, error) {
	r := g.step(ctx, loadPage, l, l.TemplateID.String(), number(from), number(gate.LoadPageMax))
	return r.requests(), r.done()
}

func (g *driver) LoadCopy(ctx context.Context, l gate.Load, generation, first int64, users []string) error {
	if err := gate.CheckSize("users", len(users), gate.LoadPageMax); err != nil {
		return err
	}
	return g.step(ctx, loadCopy, l, append([]string{l.TemplateID.String(), number(generation), number(first)}, users...)...).err
}

// loadKinds are the kinds of load for load_swap.lua.
var loadKinds = map[gate.LoadKind]string{gate.LoadFresh: "FRESH", gate.LoadKeep: "KEEP", gate.LoadRemake: "REMAKE"}

func (g *driver) LoadSwap(ctx context.Context, p gate.SwapParams) (gate.SwapResult, error) {
	args := []string{
		p.TemplateID.String(), hintChannel(g.prefix), loadKinds[p.Kind], number(p.Old), number(int64(p.Holdings)), number(p.Copied),
		number(p.State.Generation),
	}
	r := g.step(ctx, loadSwap, p.Load, append(args, stateArgs(p.State)...)...)
	return gate.SwapResult{Done: r.number() == 1, Waiting: r.number()}, r.done()
}
