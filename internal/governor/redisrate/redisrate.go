// Package redisrate implements the governor's rates on Redis (7.0 or later) or
// Valkey (7.2 or later), a single server or a Cluster. Each rate is one key,
// which one script writes by the server's clock. The key expires a second after
// its last send time. Losing it loses only the schedule of the next 100 ms.
//
// What instances know of the provider is another key, which the same script writes.
// Losing it loses a Retry-After; an instance whose breaker is open tells the others
// again.
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

// Config configures the connection.
type Config = redis.Config

// Rates implements governor.Rates. It is safe for concurrent use.
type Rates struct {
	client *redis.Client
	prefix string
	script *rueidis.Lua
}

var _ governor.Rates = (*Rates)(nil)

// Open connects. ctx limits the opening only.
func Open(ctx context.Context, cfg Config) (*Rates, error) {
	option, err := cfg.Option()
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
	return &Rates{client: client, prefix: cfg.KeyPrefix, script: leaseRun}, nil
}

// Close closes the connections. Later leases fail. It may be called twice.
func (r *Rates) Close() { r.client.Close() }

// Lease implements governor.Rates.
func (r *Rates) Lease(ctx context.Context, p governor.LeaseParams) (governor.Run, error) {
	if err := p.Validate(); err != nil {
		return governor.Run{}, err
	}
	keys := []string{rateKey(r.prefix, p.Name)}
	args := []string{
		strconv.FormatFloat(float64(p.Every())/float64(time.Microsecond), 'f', 3, 64), strconv.Itoa(p.Count), micros(governor.Ahead),
	}
	numbers := 2
	if n := p.News; n != nil {
		keys = append(keys, providerKey(r.prefix, p.Name))
		args = append(args, newsArgs(n)...)
		numbers = 9
	}
	reply, err := r.script.Exec(ctx, r.client, keys, args).AsIntSlice()
	if err != nil {
		return governor.Run{}, fmt.Errorf("redisrate: rate %s: %w", p.Name, err)
	}
	if len(reply) != numbers {
		return governor.Run{}, fmt.Errorf("redisrate: rate %s: the script returned %d numbers, not %d", p.Name, len(reply), numbers)
	}
	after := func(i int) time.Duration { return time.Duration(reply[i]) * time.Microsecond }
	run := governor.Run{In: after(0), Every: p.Every(), Count: int(reply[1])}
	if p.News != nil {
		run.Shared = governor.Shared{
			Blocked: after(2), Outage: reply[3], Up: reply[4] == 1,
			Turn: reply[5] == 1, ProbeIn: after(6), Tries: int(reply[7]), Lifted: reply[8],
		}
	}
	return run, nil
}

// newsArgs returns the script's arguments for news.
func newsArgs(n *governor.News) []string {
	flag := func(b bool) string {
		if b {
			return "1"
		}
		return "0"
	}
	ended := "-1"
	if n.Probe.Ended {
		ended = strconv.Itoa(n.Probe.Tries)
	}
	return []string{
		micros(governor.TurnLength), micros(governor.RetryAfterMax), micros(governor.ProbeInMax),
		strconv.FormatInt(governor.KeptFor.Milliseconds(), 10),
		n.Instance, micros(n.Block), strconv.FormatInt(n.Answered, 10), flag(n.Down), flag(n.Want), ended, micros(n.ProbeIn), flag(n.Lift),
	}
}

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

func rateKey(prefix, name string) string { return prefix + "money-rate:" + name }

// providerKey returns the key of what instances know of the provider. It is in the
// same slot of a Cluster as the rate of all calls, which one script reads and writes
// with it.
func providerKey(prefix, name string) string {
	return prefix + "money-provider:{" + rateKey(prefix, name) + "}"
}
