package redisgate

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// loadMarkerMillis is gate.LoadMarkerTTL for the scripts.
var loadMarkerMillis = number(gate.LoadMarkerTTL.Milliseconds())

// LoadBegin implements gate.Gate.
func (g *Gate) LoadBegin(ctx context.Context, id reward.TemplateID, token string) (gate.LoadBeginResult, error) {
	m, err := g.exec(ctx, loadBegin, id, call{allKeys(g.prefix, id), []string{token, loadMarkerMillis}})
	if err != nil {
		return gate.LoadBeginResult{}, err
	}
	r := newReply(m)
	out := gate.LoadBeginResult{Held: r.number() == 1, Run: r.text(), Intact: r.number() == 1, Gate: r.header()}
	return out, r.done(loadBegin, id)
}

// step runs a script of a load, with args after those that all of them have.
func (g *Gate) step(ctx context.Context, s *script, l gate.Load, args ...string) (rueidis.RedisMessage, error) {
	return g.exec(ctx, s, l.TemplateID, call{
		allKeys(g.prefix, l.TemplateID), append([]string{l.Token, l.Run, loadMarkerMillis}, args...),
	})
}

// LoadClose implements gate.Gate.
func (g *Gate) LoadClose(ctx context.Context, l gate.Load) error {
	_, err := g.step(ctx, loadClose, l)
	return err
}

// LoadHoldings implements gate.Gate.
func (g *Gate) LoadHoldings(ctx context.Context, l gate.Load, list []gate.Holding) error {
	if err := gate.CheckSize("holdings", len(list), gate.LoadMax); err != nil {
		return err
	}
	args := make([]string, 0, 2*len(list))
	for _, h := range list {
		if h.Held > 0 {
			args = append(args, h.UserID, holdingText(h))
		}
	}
	_, err := g.step(ctx, loadHoldings, l, args...)
	return err
}

// LoadTrim implements gate.Gate.
func (g *Gate) LoadTrim(ctx context.Context, l gate.Load, settled int64) (int64, error) {
	m, err := g.step(ctx, loadTrim, l, number(settled), number(gate.LoadMax))
	if err != nil {
		return 0, err
	}
	left, err := m.AsInt64()
	if err != nil {
		return 0, fmt.Errorf("redisgate: load_trim %s: %w", l.TemplateID, err)
	}
	return left, nil
}

// LoadLeft implements gate.Gate.
func (g *Gate) LoadLeft(ctx context.Context, l gate.Load, left []gate.Request) error {
	if err := gate.CheckSize("requests", len(left), gate.LoadMax); err != nil {
		return err
	}
	_, err := g.step(ctx, loadLeft, l, appendRequests([]string{l.TemplateID.String()}, left)...)
	return err
}

// LoadMissing implements gate.Gate.
func (g *Gate) LoadMissing(ctx context.Context, l gate.Load, after int64) (missing []gate.Request, last int64, err error) {
	m, err := g.step(ctx, loadMissing, l, l.TemplateID.String(), number(after), number(gate.LoadPageMax))
	if err != nil {
		return nil, 0, err
	}
	r := newReply(m)
	last = r.number()
	for r.more() {
		missing = append(missing, gate.Request{UserID: r.text(), Ticket: r.number(), Generation: r.number()})
	}
	return missing, last, r.done(loadMissing, l.TemplateID)
}

// LoadBack implements gate.Gate.
func (g *Gate) LoadBack(ctx context.Context, l gate.Load, back []gate.Request) error {
	if err := gate.CheckSize("requests", len(back), gate.LoadPageMax); err != nil {
		return err
	}
	_, err := g.step(ctx, loadBack, l, appendRequests([]string{l.TemplateID.String()}, back)...)
	return err
}

// LoadPage implements gate.Gate.
func (g *Gate) LoadPage(ctx context.Context, l gate.Load, from int64) ([]gate.Request, error) {
	m, err := g.step(ctx, loadPage, l, l.TemplateID.String(), number(from), number(gate.LoadPageMax))
	if err != nil {
		return nil, err
	}
	r := newReply(m)
	out := make([]gate.Request, 0, len(r.rows)/3)
	for r.more() {
		out = append(out, gate.Request{UserID: r.text(), Ticket: r.number(), Generation: r.number()})
	}
	return out, r.done(loadPage, l.TemplateID)
}

// LoadCopy implements gate.Gate.
func (g *Gate) LoadCopy(ctx context.Context, l gate.Load, generation, first int64, users []string) error {
	if err := gate.CheckSize("users", len(users), gate.LoadPageMax); err != nil {
		return err
	}
	_, err := g.step(ctx, loadCopy, l, append([]string{l.TemplateID.String(), number(generation), number(first)}, users...)...)
	return err
}

// loadKinds are the kinds of load for load_swap.lua.
var loadKinds = map[gate.LoadKind]string{gate.LoadFresh: "FRESH", gate.LoadKeep: "KEEP", gate.LoadRemake: "REMAKE"}

// LoadSwap implements gate.Gate.
func (g *Gate) LoadSwap(ctx context.Context, p gate.SwapParams) (gate.SwapResult, error) {
	args := []string{
		p.TemplateID.String(), hintChannel(g.prefix), loadKinds[p.Kind], number(p.Old), number(int64(p.Holdings)), number(p.Copied),
		number(p.State.Generation),
	}
	m, err := g.step(ctx, loadSwap, p.Load, append(args, stateArgs(p.State)...)...)
	if err != nil {
		return gate.SwapResult{}, err
	}
	r := newReply(m)
	out := gate.SwapResult{Done: r.number() == 1, Waiting: r.number()}
	return out, r.done(loadSwap, p.TemplateID)
}
