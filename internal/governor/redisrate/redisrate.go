// Package redisrate keeps the rates of the governor on Redis (7.0 or later) or
// Valkey (7.2 or later), a single server or a Cluster: one key per rate, by the
// server's clock, written by one script. The key goes away by itself a second
// after its last send time, and losing it loses nothing but the line of the
// latest 100 ms.
package redisrate

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/redis"
)

//go:embed lease_run.lua
var leaseRunText string

var leaseRun = rueidis.NewLuaScript(leaseRunText)

// Config says where the server is.
type Config struct {
	URL string // redis.url; see redis.Option
	// KeyPrefix stands in front of every key; it must not contain braces.
	// Default: none.
	KeyPrefix string
}

// Rates is the driver.
type Rates struct {
	client *redis.Client
	prefix string
}

var _ governor.Rates = (*Rates)(nil)

// Open connects. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Rates, error) {
	if err := redis.CheckPrefix(cfg.KeyPrefix); err != nil {
		return nil, err
	}
	option, err := redis.Option(cfg.URL)
	if err != nil {
		return nil, err
	}
	client, err := redis.Connect(option)
	if err != nil {
		return nil, err
	}
	if err := client.Do(ctx, client.B().Ping().Build()).Error(); err != nil {
		client.Close()
		return nil, fmt.Errorf("redis.url: PING: %w", err)
	}
	return &Rates{client: client, prefix: cfg.KeyPrefix}, nil
}

// Close ends the connections; leases after it fail. It may be called twice.
func (r *Rates) Close() { r.client.Close() }

// Lease implements governor.Rates.
func (r *Rates) Lease(ctx context.Context, p governor.LeaseParams) (governor.Run, error) {
	if err := p.Validate(); err != nil {
		return governor.Run{}, err
	}
	reply, err := leaseRun.Exec(ctx, r.client, []string{rateKey(r.prefix, p.Name)}, []string{
		strconv.FormatFloat(float64(p.Every())/float64(time.Microsecond), 'f', 3, 64),
		strconv.Itoa(p.Count),
		strconv.FormatInt(governor.Ahead.Microseconds(), 10),
	}).AsIntSlice()
	if err != nil {
		return governor.Run{}, fmt.Errorf("redisrate: rate %s: %w", p.Name, err)
	}
	if len(reply) != 2 {
		return governor.Run{}, fmt.Errorf("redisrate: rate %s: the script returned %d numbers, not 2", p.Name, len(reply))
	}
	return governor.Run{In: time.Duration(reply[0]) * time.Microsecond, Every: p.Every(), Count: int(reply[1])}, nil
}
