// Package redisgate is the gate driver for Redis (7.0 or later) and Valkey (7.2 or
// later): for a single server, a Cluster, and servers behind Sentinels. The keys of
// a template share a hash tag, so that each call is one script on one server.
//
// The driver follows these rules:
//   - It sends a command once. If the reply is lost, it returns an error, and the
//     outcome is unknown.
//   - Every script asks the server that executes it for its run, and compares it
//     with the run that the gate was loaded into.
//   - Only load_swap.lua creates a gate; the other scripts do nothing without one.
//   - Scripts check everything before they write, and free memory before they use
//     more.
//
// The server must not evict keys (maxmemory-policy noeviction). A full server
// refuses an Admit entirely, but allows Apply and Ack, which free memory.
package redisgate

import (
	"context"
	"fmt"
	"sync"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/redis"
	"github.com/largesse/largesse/internal/reward"
)

// hintsMax limits the undelivered hints; further ones are dropped.
const hintsMax = 1024

// Config configures the connection.
type Config = redis.Config

type driver struct {
	client   *redis.Client
	prefix   string
	hints    chan gate.Hint
	listener *redis.Listener
	close    sync.Once
}

// Open connects to the server, checks the version of every node and subscribes to
// hints. ctx limits only the opening.
func Open(ctx context.Context, cfg Config) (gate.Gate, error) {
	option, err := cfg.Option()
	if err != nil {
		return nil, err
	}
	client, err := redis.Open(ctx, option)
	if err != nil {
		return nil, err
	}
	g := &driver{client: client, prefix: cfg.KeyPrefix, hints: make(chan gate.Hint, hintsMax)}
	if g.listener, err = redis.Listen(ctx, client, hintChannel(cfg.KeyPrefix), cfg.Log.For(obs.Gate), g.onMessage); err != nil {
		client.Close()
		return nil, fmt.Errorf("redisgate: %w", err)
	}
	return g, nil
}

// onMessage passes a hint on. It must not block, because it runs in the goroutine
// that reads replies.
func (g *driver) onMessage(message string) {
	h, ok := parseHint(message)
	if !ok {
		return
	}
	select {
	case g.hints <- h:
	default:
	}
}

func (g *driver) Hints() <-chan gate.Hint { return g.hints }

// noTemplate has no gate: template IDs start at 1.
const noTemplate reward.TemplateID = 0

// A Cluster responds if every node with slots does, and one of
// them accepts what the scripts do.
func (g *driver) Ping(ctx context.Context) error {
	if err := g.client.Ping(ctx); err != nil {
		return fmt.Errorf("redisgate: %w", err)
	}
	return g.Try(ctx, noTemplate)
}

// A full server fails it, as it refuses an Admit. Of the
// commands that write, it runs those that cannot create a key.
func (g *driver) Try(ctx context.Context, id reward.TemplateID) error {
	k, none := everyKey(g.prefix, id), namedKey(g.prefix, id, "none")
	err := g.client.Try(ctx, append(k, none), [][]string{
		{"XADD", none, "NOMKSTREAM", "*", "f", "v"},
		{"TIME"},
		{"INFO", "server"},
		{"HLEN", k[0]},
		{"ZCARD", k[1]},
		{"XLEN", k[2]},
		{"HLEN", k[3]},
		{"GET", k[4]},
		{"GET", k[5]},
		{"GET", k[6]},
		{"XLEN", k[7]},
		{"GET", k[8]},
		{"GET", k[12]},
		{"GET", k[13]},
		{"HMGET", none, "f"},
		{"HDEL", none, "f"},
		{"ZADD", none, "XX", "1", "m"},
		{"ZREM", none, "m"},
		{"XDEL", none, "0-1"},
		{"PEXPIRE", none, "1"},
		{"UNLINK", none},
	})
	if err != nil {
		return fmt.Errorf("redisgate: %w", err)
	}
	return nil
}

// It may be called more than once.
func (g *driver) Close() {
	g.close.Do(func() {
		g.listener.Stop()
		close(g.hints)
		g.client.Close()
	})
}
