package redisgate

import (
	"context"

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
	out := gate.LoadBeginResult{Held: r.number() == 1, Run: r.text(), Gate: r.header()}
	return out, r.done(loadBegin, id)
}

// LoadHoldings implements gate.Gate.
func (g *Gate) LoadHoldings(ctx context.Context, id reward.TemplateID, token string, list []gate.Holding, settled []gate.SettledTicket) error {
	if err := gate.CheckSize("holdings", max(len(list), len(settled)), gate.LoadMax); err != nil {
		return err
	}
	args := make([]string, 3, 3+2*len(list)+2*len(settled))
	for _, h := range list {
		if h.Held > 0 {
			args = append(args, h.UserID, holdingText(h))
		}
	}
	args[0], args[1], args[2] = token, loadMarkerMillis, number(int64(len(args)-3)/2)
	for _, s := range settled {
		args = append(args, s.UserID, number(s.Ticket))
	}
	_, err := g.exec(ctx, loadHoldings, id, call{allKeys(g.prefix, id), args})
	return err
}

// LoadSwap implements gate.Gate.
func (g *Gate) LoadSwap(ctx context.Context, p gate.SwapParams) (gate.SwapResult, error) {
	id := p.TemplateID
	m, err := g.exec(ctx, loadSwap, id, call{allKeys(g.prefix, id), append([]string{
		id.String(), hintChannel(g.prefix), p.Token, p.Run, number(int64(p.Holdings)), number(p.KeepAbove), number(p.State.Generation),
	}, stateArgs(p.State)...)})
	if err != nil {
		return gate.SwapResult{}, err
	}
	r := newReply(m)
	out := gate.SwapResult{Done: r.number() == 1, Waiting: r.number()}
	return out, r.done(loadSwap, id)
}
