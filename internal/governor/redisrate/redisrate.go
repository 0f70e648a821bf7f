// Package redisrate keeps the rates of the governor on Redis (7.0 or later) or
// Valkey (7.2 or later), a single server or a Cluster: one key per rate, by the
// server's clock, written by one script. The key goes away by itself a second
// after its last send time, and losing it loses nothing but the line of the
// latest 100 ms.
package redisrate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/governor"
)

// replyTimeout bounds the wait for a reply that does not come; the governor's
// own is much shorter.
const replyTimeout = 5 * time.Second

//go:embed lease_run.lua
var leaseRunText string

var leaseRun = rueidis.NewLuaScript(leaseRunText)

// Config says where the server is.
type Config struct {
	// URL is redis://user:password@host:port/db, or rediss:// for TLS. Several,
	// separated by commas, are nodes of one Cluster.
	URL string
	// KeyPrefix stands in front of every key; it must not contain braces.
	// Default: none.
	KeyPrefix string
}

// Rates is the driver.
type Rates struct {
	client rueidis.Client
	prefix string
	closed atomic.Bool // the client of a Cluster would dial again after Close
}

var _ governor.Rates = (*Rates)(nil)

// Open connects. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Rates, error) {
	if strings.ContainsAny(cfg.KeyPrefix, "{}") {
		return nil, fmt.Errorf("redis.key-prefix %q must not contain braces: they decide the cluster slot", cfg.KeyPrefix)
	}
	option, err := clientOption(cfg.URL)
	if err != nil {
		return nil, err
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, fmt.Errorf("redis.url: cannot connect to %s: %w", strings.Join(option.InitAddress, ", "), err)
	}
	if err := client.Do(ctx, client.B().Ping().Build()).Error(); err != nil {
		client.Close()
		return nil, fmt.Errorf("redis.url: PING: %w", err)
	}
	return &Rates{client: client, prefix: cfg.KeyPrefix}, nil
}

// Close ends the connections; leases after it fail. It may be called twice.
func (r *Rates) Close() {
	if !r.closed.Swap(true) {
		r.client.Close()
	}
}

// Lease implements governor.Rates.
func (r *Rates) Lease(ctx context.Context, p governor.LeaseParams) (governor.Run, error) {
	if err := p.Validate(); err != nil {
		return governor.Run{}, err
	}
	if r.closed.Load() {
		return governor.Run{}, fmt.Errorf("redisrate: rate %s: %w", p.Name, rueidis.ErrClosing)
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

// clientOption reads the URL by the rules of redis.url. Its errors never show
// the URL, which may hold a password.
func clientOption(urls string) (rueidis.ClientOption, error) {
	var option rueidis.ClientOption
	for i, text := range strings.Split(urls, ",") {
		node, err := rueidis.ParseURL(strings.TrimSpace(text))
		if err != nil {
			return option, fmt.Errorf("redis.url: part %d is no redis://user:password@host:port/db (or rediss://)", i+1)
		}
		if i == 0 {
			option = node
			continue
		}
		if (node.TLSConfig == nil) != (option.TLSConfig == nil) {
			return option, errors.New("redis.url: redis:// and rediss:// are mixed")
		}
		option.InitAddress = append(option.InitAddress, node.InitAddress...)
		if option.TLSConfig != nil {
			option.TLSConfig.ServerName = "" // each node is checked by its own name
		}
	}
	option.DisableRetry = true // a lease whose reply was lost must not be taken twice
	option.DisableCache = true
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = replyTimeout
	}
	if option.ClientName == "" {
		option.ClientName = "largesse"
	}
	return option, nil
}
