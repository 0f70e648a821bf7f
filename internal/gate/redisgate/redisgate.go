// Package redisgate is the gate driver on Redis (7.0 or later) or Valkey (7.2
// or later), a single server, a Cluster or what Sentinels watch. A template's
// keys share a hash tag, so that each call is one script at one server.
//
// What it holds to:
//   - A command is sent once. A lost reply is an error and its outcome unknown.
//   - Every script asks the very server that executes it for its run, and
//     compares that with the run the gate was loaded into.
//   - Only load_swap.lua makes a gate; the others do nothing without one.
//   - Scripts look at everything before they write, and free before they add.
//
// The server must not evict (maxmemory-policy noeviction). A full server
// refuses Ask, whole, while Apply and Ack go on and make room.
package redisgate

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/redis"
)

// wakesBuffer is how many hints wait for a slow listener; more are dropped.
const hintsMax = 1024

// Config says where the server is.
type Config struct {
	URL string // redis.url; see redis.Option
	// KeyPrefix stands in front of every key and channel; it must not contain
	// braces. Default: none.
	KeyPrefix string
	Log       obs.Log
}

// Gate is the driver.
type Gate struct {
	client   *redis.Client
	prefix   string
	hints    chan gate.Hint
	listener *redis.Listener
	close    sync.Once
}

var _ gate.Gate = (*Gate)(nil)

// Open connects, checks the version of every server and begins to listen for
// hints. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Gate, error) {
	option, err := redis.Option(cfg.URL)
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg, option)
}

func open(ctx context.Context, cfg Config, option rueidis.ClientOption) (*Gate, error) {
	if err := redis.CheckPrefix(cfg.KeyPrefix); err != nil {
		return nil, err
	}
	client, err := redis.Open(ctx, option)
	if err != nil {
		return nil, err
	}
	g := &Gate{client: client, prefix: cfg.KeyPrefix, hints: make(chan gate.Hint, hintsMax)}
	if g.listener, err = redis.Listen(ctx, client, hintChannel(cfg.KeyPrefix), cfg.Log.For(obs.Gate), g.onMessage); err != nil {
		client.Close()
		return nil, fmt.Errorf("redisgate: %w", err)
	}
	return g, nil
}

// heard must not wait: it runs where replies are read.
func (g *Gate) onMessage(message string) {
	w, ok := parseHint(message)
	if !ok {
		return
	}
	select {
	case g.hints <- w:
	default:
	}
}

// Wakes implements gate.Gate.
func (g *Gate) Hints() <-chan gate.Hint { return g.hints }

// Ping implements gate.Gate. A Cluster can be reached when every node that has
// slots can.
func (g *Gate) Ping(ctx context.Context) error {
	if err := g.client.Ping(ctx); err != nil {
		return fmt.Errorf("redisgate: %w", err)
	}
	return nil
}

// Close implements gate.Gate. It may be called twice.
func (g *Gate) Close() {
	g.close.Do(func() {
		g.listener.Stop()
		close(g.hints)
		g.client.Close()
	})
}
