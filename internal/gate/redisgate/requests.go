package redisgate

import (
	"context"
	"fmt"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// Read implements gate.Gate.
func (g *Gate) Read(ctx context.Context, id reward.TemplateID, consumer string, count int) (gate.Delivery, error) {
	return g.requests(ctx, read, id, count, consumer)
}

// Claim implements gate.Gate.
func (g *Gate) Claim(ctx context.Context, id reward.TemplateID, consumer string, after int64, count int) (gate.Delivery, error) {
	return g.requests(ctx, claim, id, count, consumer, number(after))
}

// requests runs a script that returns requests. count is its last argument.
func (g *Gate) requests(ctx context.Context, s *script, id reward.TemplateID, count int, args ...string) (gate.Delivery, error) {
	if count <= 0 {
		return gate.Delivery{}, nil
	}
	args = append(args, number(int64(min(count, gate.ReadMax))))
	m, err := g.exec(ctx, s, id, call{admitKeys(g.prefix, id), args})
	if err != nil {
		return gate.Delivery{}, err
	}
	r := newReply(m)
	out := gate.Delivery{Generation: r.number(), Requests: make([]gate.Request, 0, len(r.rows)/3)}
	for r.more() {
		ticket, generation, user := r.number(), r.number(), r.text()
		out.Requests = append(out.Requests, gate.Request{UserID: user, Ticket: ticket, Generation: generation})
	}
	return out, r.done(s, id)
}

// Ack implements gate.Gate.
func (g *Gate) Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error) {
	if len(tickets) == 0 {
		return 0, nil
	}
	args := ticketArgs(tickets, id.String(), hintChannel(g.prefix), number(generation))
	m, err := g.exec(ctx, ack, id, call{admitKeys(g.prefix, id), args})
	if err != nil {
		return 0, err
	}
	acked, err := m.AsInt64()
	if err != nil {
		return 0, fmt.Errorf("redisgate: ack %s: %w", id, err)
	}
	return int(acked), nil
}

// Unacked implements gate.Gate.
func (g *Gate) Unacked(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) ([]bool, error) {
	m, err := g.exec(ctx, unacked, id, call{admitKeys(g.prefix, id), ticketArgs(tickets, number(generation))})
	if err != nil {
		return nil, err
	}
	r := newReply(m)
	out := make([]bool, len(tickets))
	for i := range out {
		out[i] = r.number() == 1
	}
	return out, r.done(unacked, id)
}

// ticketArgs appends tickets to other arguments.
func ticketArgs(tickets []int64, args ...string) []string {
	for _, t := range tickets {
		args = append(args, number(t))
	}
	return args
}
