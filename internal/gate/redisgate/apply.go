package redisgate

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// Apply implements gate.Gate.
func (g *Gate) Apply(ctx context.Context, p gate.ApplyParams) (gate.ApplyResult, error) {
	repair := "0"
	if p.Repair {
		repair = "1"
	}
	args := append([]string{
		p.TemplateID.String(), hintChannel(g.prefix), number(p.From), repair, number(p.ServiceTime.Microseconds()),
	}, stateArgs(p.State)...)
	args = append(args, applyArgs(p)...)
	m, err := g.exec(ctx, apply, p.TemplateID, call{allKeys(g.prefix, p.TemplateID), args})
	if err != nil {
		return gate.ApplyResult{}, err
	}
	r := newReply(m)
	out := gate.ApplyResult{Behind: r.number() == 1, Version: r.number()}
	return out, r.done(apply, p.TemplateID)
}

// stateArgs returns the arguments of a state, starting with the version.
func stateArgs(s gate.State) []string {
	return []string{
		number(s.Version), number(s.Settled), number(s.Total), number(s.Live), number(s.IssuedTotal),
		number(int64(s.PerUserLimit)), timeArg(s.OpensAt), timeArg(s.ClosesAt), string(s.Mode), number(s.Base),
		number(s.Granted), number(s.Used), number(s.Grants),
	}
}

// timeArg returns a time in microseconds, or "" for none.
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

// Holdings implements gate.Gate.
func (g *Gate) Holdings(ctx context.Context, id reward.TemplateID, cursor string) ([]gate.Holding, string, int64, error) {
	generation, position, err := gate.ParseCursor(cursor)
	if err != nil {
		return nil, "", 0, err
	}
	m, err := g.exec(ctx, holdings, id, call{
		admitKeys(g.prefix, id),
		[]string{number(generation), position, number(holdingsPage)},
	})
	if err != nil {
		return nil, "", 0, err
	}
	r := newReply(m)
	generation, version, next := r.number(), r.number(), r.text()
	list := make([]gate.Holding, 0, len(r.rows)/2)
	for r.more() {
		list = append(list, r.holding())
	}
	if next == "0" {
		return list, "", version, r.done(holdings, id)
	}
	return list, gate.Cursor(generation, next), version, r.done(holdings, id)
}

// holdingsPage is the approximate size of a page of Holdings.
const holdingsPage = 1000

// HoldingsOf implements gate.Gate.
func (g *Gate) HoldingsOf(ctx context.Context, id reward.TemplateID, users []string) (gate.HoldingsOfResult, error) {
	if err := gate.CheckSize("users", len(users), gate.LoadMax); err != nil {
		return gate.HoldingsOfResult{}, err
	}
	keys := admitKeys(g.prefix, id)
	m, err := g.exec(ctx, holdingsOf, id, call{keys: keys})
	if err != nil {
		return gate.HoldingsOfResult{}, err
	}
	r := newReply(m)
	out := gate.HoldingsOfResult{Generation: r.number(), Version: r.number(), Holders: r.number(), Holdings: make([]gate.Holding, len(users))}
	if err := r.done(holdingsOf, id); err != nil || len(users) == 0 {
		return out, err
	}
	// A plain command costs the server a third of a script for so many users.
	if m, err = g.client.Do(ctx, g.client.B().Hmget().Key(keys[3]).Field(users...).Build()).ToMessage(); err != nil {
		return gate.HoldingsOfResult{}, fmt.Errorf("redisgate: read the holdings of %s: %w", id, err)
	}
	r = newReply(m)
	for i, user := range users {
		out.Holdings[i] = r.holdingOf(user)
	}
	return out, r.done(holdingsOf, id)
}
