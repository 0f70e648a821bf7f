package redisgate

import (
	"context"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// markerLasts is gate.MarkerLasts for the scripts.
var markerLasts = number(gate.MarkerLasts.Milliseconds())

// LoadBegin implements gate.Gate.
func (g *Gate) LoadBegin(ctx context.Context, id reward.TemplateID, token string) (gate.LoadBegun, error) {
	m, err := g.exec(ctx, loadBegin, id, call{allKeys(g.prefix, id), []string{token, markerLasts}})
	if err != nil {
		return gate.LoadBegun{}, err
	}
	r := newReply(m)
	out := gate.LoadBegun{Held: r.number() == 1, Run: r.text(), Gate: r.header()}
	return out, r.done(loadBegin, id)
}

// LoadFacts implements gate.Gate.
func (g *Gate) LoadFacts(ctx context.Context, id reward.TemplateID, token string, facts []gate.Fact, gone []gate.Settled) error {
	if err := gate.CheckMany("facts", max(len(facts), len(gone)), gate.LoadMax); err != nil {
		return err
	}
	args := make([]string, 3, 3+2*len(facts)+2*len(gone))
	for _, f := range facts {
		if f.Held > 0 {
			args = append(args, f.UserID, heldText(f))
		}
	}
	args[0], args[1], args[2] = token, markerLasts, number(int64(len(args)-3)/2)
	for _, s := range gone {
		args = append(args, s.UserID, number(s.Ticket))
	}
	_, err := g.exec(ctx, loadFacts, id, call{allKeys(g.prefix, id), args})
	return err
}

// LoadSwap implements gate.Gate.
func (g *Gate) LoadSwap(ctx context.Context, p gate.SwapParams) (gate.SwapResult, error) {
	id := p.TemplateID
	m, err := g.exec(ctx, loadSwap, id, call{allKeys(g.prefix, id), append([]string{
		id.String(), wakeChannel(g.prefix), p.Token, p.Run, number(int64(p.Facts)), number(p.KeepAbove), number(p.State.Generation),
	}, stateArgs(p.State)...)})
	if err != nil {
		return gate.SwapResult{}, err
	}
	r := newReply(m)
	out := gate.SwapResult{Done: r.number() == 1, Waiting: r.number()}
	return out, r.done(loadSwap, id)
}
