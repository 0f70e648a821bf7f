package redisstream

import (
	"context"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// client is a rueidis client that stays closed. That of a Cluster dials again
// when it is asked for something after Close, and nobody would close it then.
type client struct {
	rueidis.Client
	closed atomic.Bool
}

// Do sends one command, once.
func (c *client) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if c.closed.Load() {
		return rueidis.NewErrorResult(rueidis.ErrClosing)
	}
	return c.Client.Do(ctx, cmd)
}

// DoMulti sends commands in one round trip, each once.
func (c *client) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if !c.closed.Load() {
		return c.Client.DoMulti(ctx, cmds...)
	}
	out := make([]rueidis.RedisResult, len(cmds))
	for i := range out {
		out[i] = rueidis.NewErrorResult(rueidis.ErrClosing)
	}
	return out
}

// Nodes returns a client for each known node, by its address; none after Close.
func (c *client) Nodes() map[string]rueidis.Client {
	if c.closed.Load() {
		return nil
	}
	return c.Client.Nodes()
}

// Close ends the connections. Calls after it fail.
func (c *client) Close() {
	c.closed.Store(true)
	c.Client.Close()
}
