package redisgate

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// Each script starts with a list of its ARGV and its result. Its KEYS are listed in
// head.lua, which precedes all scripts except remove.lua and those of the lock. A script accesses
// the keys of one template, checks first and writes last.
//
//go:embed *.lua
var texts embed.FS

var (
	admit        = gateScript("admit", admitKeys)
	positions    = gateScript("positions", admitKeys)
	place        = gateScript("place", admitKeys)
	describe     = gateScript("describe", allKeys)
	read         = gateScript("read", admitKeys)
	claim        = gateScript("claim", admitKeys)
	ack          = gateScript("ack", admitKeys)
	unacked      = gateScript("unacked", admitKeys)
	apply        = gateScript("apply", allKeys)
	loadBegin    = gateScript("load_begin", allKeys)
	loadHoldings = gateScript("load_holdings", allKeys)
	loadClose    = gateScript("load_close", allKeys)
	loadTrim     = gateScript("load_trim", allKeys)
	loadLeft     = gateScript("load_left", allKeys)
	loadMissing  = gateScript("load_missing", allKeys)
	loadBack     = gateScript("load_back", allKeys)
	loadPage     = gateScript("load_page", allKeys)
	loadCopy     = gateScript("load_copy", allKeys)
	loadSwap     = gateScript("load_swap", allKeys)
	shrink       = gateScript("shrink", admitKeys)
	pauseGrants  = gateScript("pause_grants", admitKeys)
	retire       = gateScript("retire", allKeys)
	holdings     = gateScript("holdings", admitKeys)
	holdingsOf   = gateScript("holdings_of", admitKeys)
	line         = gateScript("line", admitKeys)
	remove       = newScript("remove", text("remove"), everyKey)
	lock         = newScript("lock", text("lock"), lockKeys)
	unlock       = newScript("unlock", text("unlock"), lockKeys)
)

// script is a script and the SHA-1 that the server identifies it by. keys returns its KEYS.
type script struct {
	name, text, sha string
	keys            func(prefix string, id reward.TemplateID) []string
}

func newScript(name, text string, keys func(string, reward.TemplateID) []string) *script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // the server's id of a script, no secret
	return &script{name: name, text: text, sha: hex.EncodeToString(sum[:]), keys: keys}
}

func gateScript(name string, keys func(string, reward.TemplateID) []string) *script {
	return newScript(name, text("head")+text(name), keys)
}

// text returns the text of a script.
func text(name string) string {
	t, err := texts.ReadFile(name + ".lua")
	if err != nil {
		panic(err) // the name is a constant
	}
	return string(t)
}

// exec runs a script of a template once. It sends the text if the server does not know the
// script yet: the server has done nothing then.
func (g *driver) exec(ctx context.Context, s *script, id reward.TemplateID, args ...string) *reply {
	r := &reply{script: s, id: id}
	if err := ctx.Err(); err != nil {
		r.fail(fmt.Errorf("nothing was done: %w", err))
		return r
	}
	result := g.client.Do(ctx, g.bySHA(s, id, args))
	if unknownScript(result) {
		result = g.client.Do(ctx, g.byText(s, id, args))
	}
	r.set(result)
	return r
}

// execAll runs a script without arguments once per template, in one round trip. Servers
// that do not know the script yet need a second one.
func (g *driver) execAll(ctx context.Context, s *script, ids []reward.TemplateID) ([]*reply, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redisgate: %s: nothing was done: %w", s.name, err)
	}
	cmds := make(rueidis.Commands, len(ids))
	for i, id := range ids {
		cmds[i] = g.bySHA(s, id, nil)
	}
	results := g.client.DoMulti(ctx, cmds...)
	var again rueidis.Commands
	var indexes []int
	for i, result := range results {
		if unknownScript(result) {
			indexes, again = append(indexes, i), append(again, g.byText(s, ids[i], nil))
		}
	}
	if len(again) > 0 {
		for i, result := range g.client.DoMulti(ctx, again...) {
			results[indexes[i]] = result
		}
	}
	out := make([]*reply, len(ids))
	for i, result := range results {
		out[i] = &reply{script: s, id: ids[i]}
		out[i].set(result)
	}
	return out, nil
}

func (g *driver) bySHA(s *script, id reward.TemplateID, args []string) rueidis.Completed {
	keys := s.keys(g.prefix, id)
	return g.client.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func (g *driver) byText(s *script, id reward.TemplateID, args []string) rueidis.Completed {
	keys := s.keys(g.prefix, id)
	return g.client.B().Eval().Script(s.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// unknownScript reports whether the server does not know the script.
func unknownScript(result rueidis.RedisResult) bool {
	refusal, ok := rueidis.IsRedisErr(result.Error())
	return ok && refusal.IsNoScript()
}

// reply reads the elements of a script's reply from front to back. Its first error stays,
// which is that of the call, or the first deviation from what the script promises. All
// reads after it return zero values.
type reply struct {
	script *script
	id     reward.TemplateID
	rows   []rueidis.RedisMessage
	err    error
}

// set takes the result of the script: an array, or a single element.
func (r *reply) set(result rueidis.RedisResult) {
	m, err := result.ToMessage()
	refusal, refused := rueidis.IsRedisErr(err)
	switch {
	case refused && strings.HasPrefix(refusal.Error(), "NOTLOADED"):
		r.err = gate.ErrNotLoaded
	case refused && strings.HasPrefix(refusal.Error(), "LOADLOST"):
		r.err = gate.ErrLoadLost
	case err != nil:
		r.fail(err)
	case m.IsArray():
		r.rows, err = m.ToArray()
		r.fail(err)
	default:
		r.rows = []rueidis.RedisMessage{m}
	}
}

// fail notes an error, unless it is nil or there was one before.
func (r *reply) fail(err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("redisgate: %s %s: %w", r.script.name, r.id, err)
	}
}

func (r *reply) more() bool { return r.err == nil && len(r.rows) > 0 }

func (r *reply) take() (m rueidis.RedisMessage, ok bool) {
	if !r.more() {
		r.fail(errors.New("the reply is too short"))
		return m, false
	}
	m, r.rows = r.rows[0], r.rows[1:]
	return m, true
}

// number reads a number, which may be text.
func (r *reply) number() (n int64) {
	if m, ok := r.take(); ok {
		var err error
		n, err = m.AsInt64()
		r.fail(err)
	}
	return n
}

func (r *reply) text() (s string) {
	if m, ok := r.take(); ok {
		var err error
		s, err = m.ToString()
		r.fail(err)
	}
	return s
}

// requests reads the rest: user, ticket and generation of each request.
func (r *reply) requests() []gate.Request {
	list := make([]gate.Request, 0, len(r.rows)/3)
	for r.more() {
		list = append(list, gate.Request{UserID: r.text(), Ticket: r.number(), Generation: r.number()})
	}
	return list
}

// done returns the error of the reply. Remaining elements are an error.
func (r *reply) done() error {
	if len(r.rows) > 0 {
		r.fail(fmt.Errorf("the reply has %d elements too many", len(r.rows)))
	}
	return r.err
}

// holding reads the holding of a user; nil is none.
func (r *reply) holding(user string) gate.Holding {
	h := gate.Holding{UserID: user}
	if r.more() && r.rows[0].IsNil() {
		r.rows = r.rows[1:]
		return h
	}
	stored := r.text()
	held, coupon, _ := strings.Cut(stored, ":")
	n, errHeld := strconv.Atoi(held)
	c, errCoupon := strconv.ParseInt(coupon, 10, 64)
	if errHeld != nil || errCoupon != nil {
		r.fail(fmt.Errorf("the holding of a user is %q:%q", held, coupon))
	}
	h.Held, h.CouponID = n, reward.CouponID(c)
	return h
}

// holdingText formats a holding as it is stored.
func holdingText(h gate.Holding) string { return strconv.Itoa(h.Held) + ":" + h.CouponID.String() }

func number(n int64) string { return strconv.FormatInt(n, 10) }
