package redisgate

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// Line implements gate.Gate. Plain commands cost the server less than a script for so
// many users.
func (g *Gate) Line(ctx context.Context, id reward.TemplateID, after, upTo int64) (gate.LineResult, error) {
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
	m, err := g.exec(ctx, line, id, call{keys: keys})
	if err != nil {
		return gate.LineResult{}, err
	}
	r := newReply(m)
	out.Generation, out.Version, out.Settled, out.LastTicket = r.number(), r.number(), r.number(), r.number()
	return out, r.done(line, id)
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
