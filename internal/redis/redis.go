// Package redis connects the other packages to Redis or Valkey servers: it
// parses redis.url, checks server versions, and provides a client that sends
// each command once, a health check and a subscription that survives outages.
// Each importing package defines its own keys and scripts.
package redis

import (
	"context"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// Client is a rueidis client that stays closed. A rueidis Cluster client would
// connect again after Close, and leak that connection. It is safe for
// concurrent use.
type Client struct {
	rueidis.Client
	closed atomic.Bool
}

// Open connects and checks the version of every server. ctx limits the check.
func Open(ctx context.Context, option rueidis.ClientOption) (*Client, error) {
	connected, err := Connect(option)
	if err != nil {
		return nil, err
	}
	if err := checkVersions(ctx, connected); err != nil {
		connected.Close()
		return nil, err
	}
	return connected, nil
}

// Connect connects to servers of any version.
func Connect(option rueidis.ClientOption) (*Client, error) {
	connected, err := rueidis.NewClient(option)
	if err != nil {
		return nil, connectError(option, err)
	}
	return &Client{Client: connected}, nil
}

// Do sends one command, once.
func (c *Client) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if c.closed.Load() {
		return rueidis.NewErrorResult(rueidis.ErrClosing)
	}
	return c.Client.Do(ctx, cmd)
}

// DoMulti sends commands in one round trip, each once.
func (c *Client) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if !c.closed.Load() {
		return c.Client.DoMulti(ctx, cmds...)
	}
	out := make([]rueidis.RedisResult, len(cmds))
	for i := range out {
		out[i] = rueidis.NewErrorResult(rueidis.ErrClosing)
	}
	return out
}

// Nodes returns a client for each known node, by its address, or none after
// Close.
func (c *Client) Nodes() map[string]rueidis.Client {
	if c.closed.Load() {
		return nil
	}
	return c.Client.Nodes()
}

// Close closes the connections. Later calls fail. It may be called twice.
func (c *Client) Close() {
	if !c.closed.Swap(true) {
		c.Client.Close()
	}
}
