// Package redisstream is the queue driver on Redis (7.0 or later) or Valkey
// (7.2 or later), a single server, a Cluster or what Sentinels watch: one stream
// and one consumer group per promotion.
//
// What it holds to:
//   - A command is sent once. A lost reply is an error and its outcome unknown.
//   - Every entry is stamped with the run of the server that took it: its run id
//     and its replication id. After a restart or a failover the server may have
//     forgotten who was reading what, so such an entry is given out as not Mine.
//     The run id alone would not tell when a master became a replica and then
//     the master again; each time it does, it gets a new replication id.
//   - A missing group is made again from the beginning, never from the end, and
//     what was in the stream before is given out as not Mine.
//   - Nothing is trimmed, and nothing is removed while it holds unfinished work.
//   - Every script keeps to one cluster slot.
//
// The server must not evict (maxmemory-policy noeviction). A full server
// refuses Add, while Read, Ack and Claim go on and empty it.
package redisstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

// replyTimeout bounds the wait for a reply that does not come (a hung server,
// a dead network); the caller's context may be shorter.
const replyTimeout = 5 * time.Second

// masterRefresh is how often Sentinels are asked who the master is, should what
// they tell of a failover be missed: a master that was made a replica keeps its
// connections, and would refuse our writes for ever.
const masterRefresh = 2 * time.Second

// Config says where the server is.
type Config struct {
	// URL is redis://user:password@host:port/db, or rediss:// for TLS. Several,
	// separated by commas, are nodes of one Cluster, or with ?master_set=NAME
	// behind the first the Sentinels that know the master of that name.
	URL string
	// KeyPrefix stands in front of every key, group and channel; it must not
	// contain braces. Default: none.
	KeyPrefix string
	Log       obs.Log
}

// Queue is the driver. [RedisStreamOperationExtensions]
type Queue struct {
	client   *client
	prefix   string
	log      obs.Log
	wakes    chan queue.Stream
	listener service.Base
	close    sync.Once
}

var _ queue.Queue = (*Queue)(nil)

// Open connects, checks the version of every server and begins to listen for
// wake-ups. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Queue, error) {
	if strings.ContainsAny(cfg.KeyPrefix, "{}") {
		return nil, fmt.Errorf("redis.key-prefix %q must not contain braces: they decide the cluster slot", cfg.KeyPrefix)
	}
	option, err := clientOption(cfg.URL)
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg, option)
}

func open(ctx context.Context, cfg Config, option rueidis.ClientOption) (*Queue, error) {
	connected, err := rueidis.NewClient(option)
	if err != nil {
		return nil, connectError(option, err)
	}
	if err := checkVersions(ctx, connected); err != nil {
		connected.Close()
		return nil, err
	}
	q := &Queue{
		client: &client{Client: connected}, prefix: cfg.KeyPrefix, log: cfg.Log.For(obs.Poller),
		wakes: make(chan queue.Stream, wakesBuffer),
	}
	if err := q.listen(ctx); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// clientOption reads the URL. Its errors never show the URL, which may hold a
// password.
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
		if node.Sentinel.MasterSet != "" && node.Sentinel.MasterSet != option.Sentinel.MasterSet {
			return option, errors.New("redis.url: master_set belongs behind the first address")
		}
		option.InitAddress = append(option.InitAddress, node.InitAddress...)
	}
	if option.TLSConfig != nil && (len(option.InitAddress) > 1 || option.Sentinel.MasterSet != "") {
		option.TLSConfig.ServerName = "" // each server is checked by its own name
	}
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = rueidis.DefaultDialTimeout
	}
	option.Sentinel.Dialer, option.Sentinel.TLSConfig = option.Dialer, option.TLSConfig
	option.Sentinel.TopologyRefreshInterval = masterRefresh
	option.DisableRetry = true // a write whose reply was lost must not be sent again
	option.DisableCache = true
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = replyTimeout
	}
	if option.ClientName == "" {
		option.ClientName = "largesse"
	}
	option.Sentinel.ClientName = option.ClientName
	return option, nil
}

// connectError says where nobody could be connected to. Something that takes
// the connection and is no Redis either answers what no Redis would, or hangs
// up on what it does not understand.
func connectError(option rueidis.ClientOption, err error) error {
	hint := ""
	switch {
	case strings.Contains(err.Error(), "unknown message type"): // the client has no name for it
		hint = "what listens there does not speak Redis's protocol: "
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		hint = "what listens there hangs up: it does not speak Redis's protocol, or wants TLS (rediss://): "
	}
	return fmt.Errorf("redis.url: cannot connect to %s: %s%w", strings.Join(option.InitAddress, ", "), hint, err)
}

// checkVersions refuses servers that lack what the driver builds on, e.g.
// XAUTOCLAIM that drops deleted entries.
func checkVersions(ctx context.Context, all rueidis.Client) error {
	for address, node := range all.Nodes() {
		info, err := node.Do(ctx, node.B().Info().Section("server").Build()).ToString()
		if err != nil {
			return fmt.Errorf("redis.url: INFO server at %s: %w", address, err)
		}
		if err := checkVersion(info); err != nil {
			return fmt.Errorf("redis.url: %s %w", address, err)
		}
	}
	return nil
}

func checkVersion(info string) error {
	if v := infoValue(info, "valkey_version"); v != "" {
		if !atLeast(v, 7, 2) {
			return fmt.Errorf("runs Valkey %s; 7.2 or later is needed", v)
		}
		return nil
	}
	if v := infoValue(info, "redis_version"); !atLeast(v, 7, 0) {
		return fmt.Errorf("runs Redis %q; 7.0 or later is needed", v)
	}
	return nil
}

func infoValue(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func atLeast(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	haveMajor, errMajor := strconv.Atoi(first)
	haveMinor, errMinor := strconv.Atoi(second)
	if errMajor != nil || errMinor != nil {
		return false
	}
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}

// Close implements queue.Queue. It may be called twice.
func (q *Queue) Close() {
	q.close.Do(func() {
		q.listener.Stop()
		close(q.wakes)
		q.client.Close()
	})
}
