// Package redis is how the drivers on Redis or Valkey reach their servers: what
// redis.url means, which versions will do, a client that sends everything once
// and stays closed, whether the servers can be reached, and a subscription that
// comes back. What is kept there, and how, is each driver's own.
package redis

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// Client is a rueidis client that stays closed. That of a Cluster dials again
// when it is asked for something after Close, and nobody would close it then.
type Client struct {
	rueidis.Client
	closed atomic.Bool
}

// CheckPrefix refuses a redis.key-prefix that would decide where keys are.
func CheckPrefix(prefix string) error {
	if strings.ContainsAny(prefix, "{}") {
		return fmt.Errorf("redis.key-prefix %q must not contain braces: they decide the cluster slot", prefix)
	}
	return nil
}

// Open connects and checks the version of every server. ctx bounds the check.
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

// Nodes returns a client for each known node, by its address; none after Close.
func (c *Client) Nodes() map[string]rueidis.Client {
	if c.closed.Load() {
		return nil
	}
	return c.Client.Nodes()
}

// Close ends the connections. Calls after it fail. It may be called twice.
func (c *Client) Close() {
	if !c.closed.Swap(true) {
		c.Client.Close()
	}
}
