package redisgate

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// Admit implements gate.Gate.
func (g *Gate) Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (gate.AdmitResult, error) {
	if err := gate.CheckSize("users", len(users), gate.AdmitMax); err != nil {
		return gate.AdmitResult{}, err
	}
	args := make([]string, 3, 3+len(users))
	args[0], args[1], args[2] = id.String(), "0", hintChannel(g.prefix)
	if admit {
		args[1] = "1"
	}
	m, err := g.exec(ctx, admitUsers, id, call{admitKeys(g.prefix, id), append(args, users...)})
	if err != nil {
		return gate.AdmitResult{}, err
	}
	r := newReply(m)
	out := gate.AdmitResult{
		Generation: r.number(), Version: r.number(), ServiceTime: micros(r.number()),
		Granted: r.number(), Used: r.number(), Grants: r.number(), Answers: make([]gate.Answer, len(users)),
	}
	ticket, rank := r.number(), r.number()
	out.Waiting, out.Paused = rank, r.number() == 1
	for i := range out.Answers {
		a := gate.Answer{Verdict: gate.Verdict(r.number())} //nolint:gosec // checked below
		switch a.Verdict {
		case gate.InLine:
			a.Ticket, a.Rank = r.number(), r.number()
		case gate.AtUserLimit:
			a.CouponID = reward.CouponID(r.number())
		case gate.Admitted:
			a.Rank = rank
			if admit {
				ticket++
				rank++
				a.Ticket = ticket
			}
		case gate.NotOpen, gate.Closed, gate.SoldOut, gate.NoPlace, gate.NoTickets:
		default:
			r.err = fmt.Errorf("verdict %d", a.Verdict)
		}
		out.Answers[i] = a
	}
	return out, r.done(admitUsers, id)
}

// Place implements gate.Gate.
func (g *Gate) Place(ctx context.Context, id reward.TemplateID, user string) (gate.PlaceResult, error) {
	m, err := g.exec(ctx, place, id, call{admitKeys(g.prefix, id), []string{id.String(), user}})
	if err != nil {
		return gate.PlaceResult{}, err
	}
	r := newReply(m)
	out := gate.PlaceResult{GateGeneration: r.number(), Version: r.number()}
	if r.more() {
		out.InLine, out.Request = true, gate.Request{UserID: user, Ticket: r.number(), Generation: r.number()}
	}
	return out, r.done(place, id)
}

// Positions implements gate.Gate.
func (g *Gate) Positions(ctx context.Context, id reward.TemplateID, users []string) (gate.PositionsResult, error) {
	if err := gate.CheckSize("users", len(users), gate.PositionsMax); err != nil {
		return gate.PositionsResult{}, err
	}
	m, err := g.exec(ctx, positions, id, call{admitKeys(g.prefix, id), append([]string{id.String()}, users...)})
	if err != nil {
		return gate.PositionsResult{}, err
	}
	r := newReply(m)
	out := gate.PositionsResult{
		Generation: r.number(), Version: r.number(), ServiceTime: micros(r.number()),
		Positions: make([]gate.Position, len(users)),
	}
	for i := range out.Positions {
		if ticket := r.number(); ticket > 0 {
			out.Positions[i] = gate.Position{InLine: true, Ticket: ticket, Rank: r.number()}
		}
	}
	return out, r.done(positions, id)
}

// Headers implements gate.Gate.
func (g *Gate) Headers(ctx context.Context, ids []reward.TemplateID) ([]gate.Header, error) {
	calls := make([]call, len(ids))
	for i, id := range ids {
		calls[i].keys = allKeys(g.prefix, id)
	}
	replies, err := g.execAll(ctx, describe, ids, calls)
	if err != nil {
		return nil, err
	}
	out := make([]gate.Header, len(ids))
	for i, m := range replies {
		r := newReply(m)
		out[i] = r.header()
		if err := r.done(describe, ids[i]); err != nil {
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
	requestedAt, serviceTime := r.number(), r.number()
	if h.Exists {
		h.LastRequestAt = time.UnixMicro(requestedAt)
	}
	h.ServiceTime = micros(serviceTime)
	return h
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Shrink implements gate.Gate.
func (g *Gate) Shrink(ctx context.Context, id reward.TemplateID) (gate.ShrinkResult, error) {
	m, err := g.exec(ctx, shrink, id, call{keys: admitKeys(g.prefix, id)})
	if err != nil {
		return gate.ShrinkResult{}, err
	}
	r := newReply(m)
	out := gate.ShrinkResult{Generation: r.number(), Version: r.number(), Granted: r.number(), Grants: r.number()}
	return out, r.done(shrink, id)
}

// PauseGrants implements gate.Gate.
func (g *Gate) PauseGrants(ctx context.Context, id reward.TemplateID, pause time.Duration) error {
	_, err := g.exec(ctx, pauseGrants, id, call{admitKeys(g.prefix, id), []string{number(pause.Microseconds())}})
	return err
}

// Retire implements gate.Gate.
func (g *Gate) Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error) {
	return g.execBool(ctx, retire, id, call{allKeys(g.prefix, id), []string{number(idle.Microseconds())}})
}

// Remove implements gate.Gate.
func (g *Gate) Remove(ctx context.Context, id reward.TemplateID) error {
	_, err := g.exec(ctx, remove, id, call{append(allKeys(g.prefix, id), lockKeys(g.prefix, id)...), nil})
	return err
}

// execBool runs a script that returns 1 or 0.
func (g *Gate) execBool(ctx context.Context, s *script, id reward.TemplateID, c call) (bool, error) {
	m, err := g.exec(ctx, s, id, c)
	if err != nil {
		return false, err
	}
	yes, err := m.AsBool()
	if err != nil {
		return false, fmt.Errorf("redisgate: %s %s: %w", s.name, id, err)
	}
	return yes, nil
}
