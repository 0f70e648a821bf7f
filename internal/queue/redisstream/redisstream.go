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
	"fmt"
	"sync"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/redis"
)

// Config says where the server is.
type Config struct {
	URL string // redis.url; see redis.Option
	// KeyPrefix stands in front of every key, group and channel; it must not
	// contain braces. Default: none.
	KeyPrefix string
	Log       obs.Log
}

// Queue is the driver. [RedisStreamOperationExtensions]
type Queue struct {
	client   *redis.Client
	prefix   string
	log      obs.Log
	wakes    chan queue.Stream
	listener *redis.Listener
	close    sync.Once
}

var _ queue.Queue = (*Queue)(nil)

// Open connects, checks the version of every server and begins to listen for
// wake-ups. ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Queue, error) {
	if err := redis.CheckPrefix(cfg.KeyPrefix); err != nil {
		return nil, err
	}
	option, err := redis.Option(cfg.URL)
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg, option)
}

func open(ctx context.Context, cfg Config, option rueidis.ClientOption) (*Queue, error) {
	client, err := redis.Open(ctx, option)
	if err != nil {
		return nil, err
	}
	q := &Queue{
		client: client, prefix: cfg.KeyPrefix, log: cfg.Log.For(obs.Poller), wakes: make(chan queue.Stream, wakesBuffer),
	}
	if q.listener, err = redis.Listen(ctx, client, wakeChannel(q.prefix), q.log, q.heard); err != nil {
		client.Close()
		return nil, fmt.Errorf("redisstream: %w", err)
	}
	return q, nil
}

// Ping implements queue.Queue. A Cluster can be reached when every node that
// has slots can, and none of them refuses its work.
func (q *Queue) Ping(ctx context.Context) error {
	if err := q.client.Ping(ctx); err != nil {
		return fmt.Errorf("redisstream: %w", err)
	}
	return nil
}

// Close implements queue.Queue. It may be called twice.
func (q *Queue) Close() {
	q.close.Do(func() {
		q.listener.Stop()
		close(q.wakes)
		q.client.Close()
	})
}
