package redisgate

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// Each script starts with a list of its ARGV and its result. Its KEYS are listed in
// head.lua, which precedes all scripts except remove.lua and those of the lock. A script accesses
// the keys of one template, checks first and writes last.
var (
	//go:embed head.lua
	headText string
	//go:embed admit.lua
	admitText string
	//go:embed positions.lua
	positionsText string
	//go:embed place.lua
	placeText string
	//go:embed describe.lua
	describeText string
	//go:embed read.lua
	readText string
	//go:embed claim.lua
	claimText string
	//go:embed ack.lua
	ackText string
	//go:embed unacked.lua
	unackedText string
	//go:embed apply.lua
	applyText string
	//go:embed load_begin.lua
	loadBeginText string
	//go:embed load_holdings.lua
	loadHoldingsText string
	//go:embed load_close.lua
	loadCloseText string
	//go:embed load_trim.lua
	loadTrimText string
	//go:embed load_left.lua
	loadLeftText string
	//go:embed load_missing.lua
	loadMissingText string
	//go:embed load_back.lua
	loadBackText string
	//go:embed load_page.lua
	loadPageText string
	//go:embed load_copy.lua
	loadCopyText string
	//go:embed load_swap.lua
	loadSwapText string
	//go:embed shrink.lua
	shrinkText string
	//go:embed pause_grants.lua
	pauseGrantsText string
	//go:embed retire.lua
	retireText string
	//go:embed remove.lua
	removeText string
	//go:embed holdings.lua
	holdingsText string
	//go:embed holdings_of.lua
	holdingsOfText string
	//go:embed line.lua
	lineText string
	//go:embed lock.lua
	lockText string
	//go:embed unlock.lua
	unlockText string

	admitUsers   = newScript("admit", headText+admitText)
	positions    = newScript("positions", headText+positionsText)
	place        = newScript("place", headText+placeText)
	describe     = newScript("describe", headText+describeText)
	read         = newScript("read", headText+readText)
	claim        = newScript("claim", headText+claimText)
	ack          = newScript("ack", headText+ackText)
	unacked      = newScript("unacked", headText+unackedText)
	apply        = newScript("apply", headText+applyText)
	loadBegin    = newScript("load_begin", headText+loadBeginText)
	loadHoldings = newScript("load_holdings", headText+loadHoldingsText)
	loadClose    = newScript("load_close", headText+loadCloseText)
	loadTrim     = newScript("load_trim", headText+loadTrimText)
	loadLeft     = newScript("load_left", headText+loadLeftText)
	loadMissing  = newScript("load_missing", headText+loadMissingText)
	loadBack     = newScript("load_back", headText+loadBackText)
	loadPage     = newScript("load_page", headText+loadPageText)
	loadCopy     = newScript("load_copy", headText+loadCopyText)
	loadSwap     = newScript("load_swap", headText+loadSwapText)
	shrink       = newScript("shrink", headText+shrinkText)
	pauseGrants  = newScript("pause_grants", headText+pauseGrantsText)
	retire       = newScript("retire", headText+retireText)
	remove       = newScript("remove", removeText)
	holdings     = newScript("holdings", headText+holdingsText)
	holdingsOf   = newScript("holdings_of", headText+holdingsOfText)
	line         = newScript("line", headText+lineText)
	lock         = newScript("lock", lockText)
	unlock       = newScript("unlock", unlockText)
)

// script is a script and the SHA-1 that the server identifies it by.
type script struct{ name, text, sha string }

func newScript(name, text string) *script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // the server's id of a script, no secret
	return &script{name: name, text: text, sha: hex.EncodeToString(sum[:])}
}

// call is one run of a script.
type call struct{ keys, args []string }

// exec runs a script once. It sends the text if the server does not know the script
// yet: the server has done nothing then.
func (g *Gate) exec(ctx context.Context, s *script, id reward.TemplateID, c call) (rueidis.RedisMessage, error) {
	if err := ctx.Err(); err != nil {
		return rueidis.RedisMessage{}, fmt.Errorf("redisgate: %s %s: nothing was done: %w", s.name, id, err)
	}
	reply := g.client.Do(ctx, g.bySHA(s, c))
	if unknownScript(reply) {
		reply = g.client.Do(ctx, g.byText(s, c))
	}
	return s.result(reply, id)
}

// execAll runs a script once per template, in one round trip. Servers that do not
// know the script yet need a second one.
func (g *Gate) execAll(ctx context.Context, s *script, ids []reward.TemplateID, calls []call) ([]rueidis.RedisMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redisgate: %s: nothing was done: %w", s.name, err)
	}
	cmds := make(rueidis.Commands, len(calls))
	for i, c := range calls {
		cmds[i] = g.bySHA(s, c)
	}
	replies := g.client.DoMulti(ctx, cmds...)
	var again rueidis.Commands
	var indexes []int
	for i, reply := range replies {
		if unknownScript(reply) {
			indexes, again = append(indexes, i), append(again, g.byText(s, calls[i]))
		}
	}
	if len(again) > 0 {
		for i, reply := range g.client.DoMulti(ctx, again...) {
			replies[indexes[i]] = reply
		}
	}
	out := make([]rueidis.RedisMessage, len(replies))
	for i, reply := range replies {
		var err error
		if out[i], err = s.result(reply, ids[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (g *Gate) bySHA(s *script, c call) rueidis.Completed {
	return g.client.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build()
}

func (g *Gate) byText(s *script, c call) rueidis.Completed {
	return g.client.B().Eval().Script(s.text).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build()
}

// unknownScript reports whether the server does not know the script.
func unknownScript(reply rueidis.RedisResult) bool {
	refusal, ok := rueidis.IsRedisErr(reply.Error())
	return ok && refusal.IsNoScript()
}

// result returns the reply of the script, or its error.
func (s *script) result(reply rueidis.RedisResult, id reward.TemplateID) (rueidis.RedisMessage, error) {
	m, err := reply.ToMessage()
	if err == nil {
		return m, nil
	}
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		switch {
		case strings.HasPrefix(refusal.Error(), "NOTLOADED"):
			return m, gate.ErrNotLoaded
		case strings.HasPrefix(refusal.Error(), "LOADLOST"):
			return m, gate.ErrLoadLost
		}
	}
	return m, fmt.Errorf("redisgate: %s %s: %w", s.name, id, err)
}
