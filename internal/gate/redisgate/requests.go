package redisgate

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

func (g *driver) Admit(ctx context.Context, id reward.TemplateID, users []string, admits bool) (gate.AdmitResult, error) {
	if err := gate.CheckSize("users", len(users), gate.AdmitMax); err != nil {
		return gate.AdmitResult{}, err
	}
	args := make([]string, 3, 3+len(users))
	args[0], args[1], args[2] = id.String(), flag(admits), hintChannel(g.prefix)
	r := g.exec(ctx, admit, id, append(args, users...)...)
	out := gate.AdmitResult{
		Generation: r.number(), Version: r.number(), ServiceTime: r.micros(),
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
			if admits {
				ticket++
				rank++
				a.Ticket = ticket
			}
		case gate.NotOpen, gate.Closed, gate.SoldOut, gate.NoPlace, gate.NoTickets:
		default:
			r.fail(fmt.Errorf("verdict %d", a.Verdict))
		}
		out.Answers[i] = a
	}
	return out, r.done()
}

func (g *driver) Place(ctx context.Context, id reward.TemplateID, user string) (gate.PlaceResult, error) {
	r := g.exec(ctx, place, id, id.String(), user)
	out := gate.PlaceResult{GateGeneration: r.number(), Version: r.number()}
	if r.more() {
		out.InLine, out.Request = true, gate.Request{UserID: user, Ticket: r.number(), Generation: r.number()}
	}
	return out, r.done()
}

func (g *driver) Positions(ctx context.Context, id reward.TemplateID, users []string) (gate.PositionsResult, error) {
	if err := gate.CheckSize("users", len(users), gate.PositionsMax); err != nil {
		return gate.PositionsResult{}, err
	}
	r := g.exec(ctx, positions, id, append([]string{id.String()}, users...)...)
	out := gate.PositionsResult{
		Generation: r.number(), Version: r.number(), ServiceTime: r.micros(), Positions: make([]gate.Position, len(users)),
	}
	for i := range out.Positions {
		if ticket := r.number(); ticket > 0 {
			out.Positions[i] = gate.Position{InLine: true, Ticket: ticket, Rank: r.number()}
		}
	}
	return out, r.done()
}

// Plain commands cost the server less than a script for so
// many users.
func (g *driver) Line(ctx context.Context, id reward.TemplateID, after, upTo int64) (gate.LineResult, error) {
	keys := admitKeys(g.prefix, id)
	replies := g.client.DoMulti(
		ctx,
		g.client.B().Zrange().Key(keys[1]).Min("("+number(after)).Max(number(upTo)).Byscore().Limit(0, gate.LineMax).Withscores().Build(),
		g.client.B().Xrange().Key(keys[2]).Start(number(max(after+1, 0))).End(number(max(upTo, 0))).Count(gate.LineMax).Build(),
	)
	var out gate.LineResult
	users, err := replies[0].AsZScores()
	if err == nil {
		for _, u := range users {
			out.InLine = append(out.InLine, gate.Request{UserID: strings.TrimPrefix(u.Member, id.String()+":"), Ticket: int64(math.Ceil(u.Score))})
		}
		out.Requests, err = lineRequests(replies[1])
	}
	if err != nil {
		return gate.LineResult{}, fmt.Errorf("redisgate: read the line of %s: %w", id, err)
	}
	out.Cut(upTo)
	r := g.exec(ctx, line, id)
	out.Generation, out.Version, out.Settled, out.LastTicket = r.number(), r.number(), r.number(), r.number()
	return out, r.done()
}

// lineRequests reads entries of a request stream.
func lineRequests(reply rueidis.RedisResult) ([]gate.Request, error) {
	entries, err := reply.AsXRange()
	if err != nil {
		return nil, err
	}
	out := make([]gate.Request, len(entries))
	for i, e := range entries {
		ticket, generation, _ := strings.Cut(e.ID, "-")
		out[i].UserID = e.FieldValues["userId"]
		if out[i].Ticket, err = strconv.ParseInt(ticket, 10, 64); err != nil {
			return nil, err
		}
		if out[i].Generation, err = strconv.ParseInt(generation, 10, 64); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (g *driver) Read(ctx context.Context, id reward.TemplateID, consumer string, count int) (gate.Delivery, error) {
	return g.requests(ctx, read, id, count, consumer)
}

func (g *driver) Claim(ctx context.Context, id reward.TemplateID, consumer string, after int64, count int) (gate.Delivery, error) {
	return g.requests(ctx, claim, id, count, consumer, number(after))
}

// requests runs a script that returns requests. count is its last argument.
func (g *driver) requests(ctx context.Context, s *script, id reward.TemplateID, count int, args ...string) (gate.Delivery, error) {
	if count <= 0 {
		return gate.Delivery{}, nil
	}
	r := g.exec(ctx, s, id, append(args, number(int64(min(count, gate.ReadMax))))...)
	return gate.Delivery{Generation: r.number(), Requests: r.requests()}, r.done()
}

func (g *driver) Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error) {
	if len(tickets) == 0 {
		return 0, nil
	}
	r := g.exec(ctx, ack, id, ticketArgs(tickets, id.String(), hintChannel(g.prefix), number(generation))...)
	return int(r.number()), r.done()
}

func (g *driver) Unacked(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) ([]bool, error) {
	r := g.exec(ctx, unacked, id, ticketArgs(tickets, number(generation))...)
	out := make([]bool, len(tickets))
	for i := range out {
		out[i] = r.number() == 1
	}
	return out, r.done()
}

func ticketArgs(tickets []int64, args ...string) []string {
	for _, t := range tickets {
		args = append(args, number(t))
	}
	return args
}

func (g *driver) Lock(ctx context.Context, id reward.TemplateID, p gate.LockParams) (token int64, ok bool, err error) {
	r := g.exec(ctx, lock, id, number(max(p.Lease.Milliseconds(), 1)), p.Nonce, number(p.Floor))
	if ok = r.number() == 1; ok {
		token = r.number()
	} else {
		r.text()
	}
	return token, ok, r.done()
}

func (g *driver) Unlock(ctx context.Context, id reward.TemplateID, token int64) error {
	return g.exec(ctx, unlock, id, number(token)).err
}

func flag(yes bool) string {
	if yes {
		return "1"
	}
	return "0"
}

func (r *reply) micros() time.Duration { return time.Duration(r.number()) * time.Microsecond }
