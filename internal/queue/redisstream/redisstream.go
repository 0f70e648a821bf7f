// Package redisstream implements the queue on Redis (7.0 or later) or Valkey
// (7.2 or later): a single server, a Cluster or a primary that Sentinels watch.
// Each promotion has one stream and one consumer group.
//
// Its rules:
//   - A command is sent once. After a lost reply, the outcome is unknown.
//   - Every entry carries the run of the server that stored it: the server's run
//     ID and replication ID. After a restart or a failover, the server may have
//     lost the record of deliveries, so an entry of another run is no first delivery. The
//     run ID alone is not enough: a primary that becomes a replica and then the
//     primary again keeps it, but gets a new replication ID.
//   - A missing group is created from the beginning of the stream, never from its
//     end. The entries that were in the stream before are no first deliveries.
//   - Nothing trims a stream, and a stream with unfinished entries is never removed.
//   - Every script uses keys of one cluster slot.
//
// The server must not evict keys (maxmemory-policy noeviction). A server
// without free memory refuses Add, while Read, Ack and Claim continue and free
// it.
package redisstream

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/redis"
)

// Config configures the connection.
type Config = redis.Config

// Queue implements queue.Queue on Redis or Valkey.
type Queue struct {
	client   *redis.Client
	prefix   string
	log      obs.Log
	wakes    chan queue.Stream
	listener *redis.Listener
	close    sync.Once
}

var _ queue.Queue = (*Queue)(nil)

// Open connects, checks the version of every server and subscribes to wake-ups.
// ctx limits the opening only.
func Open(ctx context.Context, cfg Config) (*Queue, error) {
	option, err := cfg.Option()
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

// wakesBuffer is the number of hints that wait for a slow receiver. Queue drops
// further hints.
const wakesBuffer = 1024

// Wakes implements queue.Queue.
func (q *Queue) Wakes() <-chan queue.Stream { return q.wakes }

// wake publishes a hint that a stream has got its first work. Its failure is no
// failure of Add: pools also start when they read the rows.
func (q *Queue) wake(ctx context.Context, s queue.Stream) {
	cmd := q.client.B().Publish().Channel(wakeChannel(q.prefix)).Message(streamName(s)).Build()
	if err := q.client.Do(ctx, cmd).Error(); err != nil {
		q.log.Debug("publishing wake-up failed", "channel", wakeChannel(q.prefix), "error", err)
	}
}

// heard must not block: it runs on the goroutine that reads replies.
func (q *Queue) heard(message string) {
	s, err := queue.ParseStreamName(message)
	if err != nil {
		return
	}
	select {
	case q.wakes <- s:
	default:
	}
}

// Ping implements queue.Queue. In a Cluster, every node that owns slots must
// answer and serve, and one of them must accept what the scripts do.
func (q *Queue) Ping(ctx context.Context) error {
	if err := q.client.Ping(ctx); err != nil {
		return fmt.Errorf("redisstream: %w", err)
	}
	key, other := StreamKey(q.prefix, noStream), regroupedKey(q.prefix, noStream)
	err := q.client.Try(ctx, []string{key, other}, [][]string{
		{"TIME"},
		{"INFO", "server"},
		{"EXISTS", key},
		{"XLEN", key},
		{"XRANGE", key, "-", "+", "COUNT", "1"},
		{"XREVRANGE", key, "+", "-", "COUNT", "1"},
		{"GET", other},
		{"XDEL", key, "0-1"},
		{"XACK", key, ConsumerGroup(q.prefix, noStream), "0-1"},
		{"DEL", key, other},
	})
	if err != nil {
		return fmt.Errorf("redisstream: %w", err)
	}
	return nil
}

// Try implements queue.Queue.
func (q *Queue) Try(ctx context.Context, s queue.Stream) error {
	key, group := StreamKey(q.prefix, s), ConsumerGroup(q.prefix, s)
	none := "{" + key + "}:none" // never exists
	err := q.client.Try(ctx, []string{key, none}, [][]string{
		{"XADD", none, "NOMKSTREAM", "*", "f", "v"},
		{"XLEN", key}, // fails if it is no stream
		{"XREADGROUP", "GROUP", group, "c", "COUNT", "1", "STREAMS", none, ">"},
		{"XPENDING", none, group},
		{"XCLAIM", none, group, "c", "1", "0-1", "JUSTID"},
		{"XGROUP", "CREATE", none, group, "0"},
		{"XGROUP", "CREATECONSUMER", none, group, "c"},
		{"XINFO", "GROUPS", none},
	})
	if err != nil {
		return fmt.Errorf("redisstream: %s: %w", key, err)
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

//go:embed *.lua
var files embed.FS

// script is a Lua script. Its header lists its KEYS, its ARGV and its result. A
// script uses one stream, and keys that share its slot; it checks first and writes
// last.
type script struct {
	name, text string
	regroups   bool // its second key is regroupedKey
	lua        *rueidis.Lua
}

func load(name string, regroups bool, before ...string) script {
	var text string
	for _, file := range append(before, name) {
		body, err := files.ReadFile(file + ".lua")
		if err != nil {
			panic(err)
		}
		text += string(body)
	}
	return script{name: name, text: text, regroups: regroups, lua: rueidis.NewLuaScript(text)}
}

var (
	addEntries     = load("add_entries", false, "last_delivered", "server_run")
	readEntries    = load("read_entries", true, "server_run")
	tellRun        = load("tell_run", false, "server_run")
	claimEntries   = load("claim_entries", false)
	adoptEntries   = load("adopt_entries", false, "last_delivered")
	extendEntries  = load("extend_entries", false)
	makeGroup      = load("make_group", true)
	removeConsumer = load("remove_consumer", false)
	streamInfo     = load("stream_info", false)
	destroyStream  = load("destroy_stream", true)
)

// run runs a script on a stream, and decodes its reply.
func run[T any](ctx context.Context, q *Queue, sc script, s queue.Stream, args []string, decode func(rueidis.RedisResult) (T, error)) (T, error) {
	keys := []string{StreamKey(q.prefix, s)}
	if sc.regroups {
		keys = append(keys, regroupedKey(q.prefix, s))
	}
	out, err := decode(sc.lua.Exec(ctx, q.client, keys, args))
	if err != nil {
		err = fmt.Errorf("redisstream: %s %s: %w", sc.name, keys[0], err)
	}
	return out, err
}

// elements returns the n elements of a reply.
func elements(reply rueidis.RedisResult, n int) ([]rueidis.RedisMessage, error) {
	found, err := reply.ToArray()
	if err == nil && len(found) != n {
		err = fmt.Errorf("the reply has %d elements", len(found))
	}
	return found, err
}

// decoder decodes elements of a reply, and keeps the first error.
type decoder struct {
	err    error
	fields []string // of the latest entry
}

func (d *decoder) note(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) text(m rueidis.RedisMessage) string {
	text, err := m.ToString()
	d.note(err)
	return text
}

func (d *decoder) number(m rueidis.RedisMessage) int64 {
	n, err := m.AsInt64()
	d.note(err)
	return n
}

func (d *decoder) list(m rueidis.RedisMessage) []rueidis.RedisMessage {
	found, err := m.ToArray()
	d.note(err)
	return found
}

// reply returns a text, or "" for nil.
func (d *decoder) reply(r rueidis.RedisResult) string {
	text, err := r.ToString()
	if !rueidis.IsRedisNil(err) {
		d.note(err)
	}
	return text
}

// delivered returns the entries of XREADGROUP on one stream: {stream: entries}, or with
// RESP2 [[stream, entries]], or nil.
func (d *decoder) delivered(r rueidis.RedisResult) []rueidis.RedisMessage {
	m, err := r.ToMessage()
	switch {
	case rueidis.IsRedisNil(err):
		return nil
	case err != nil:
		d.note(err)
		return nil
	case m.IsMap():
		streams, err := m.AsMap()
		d.note(err)
		for _, entries := range streams {
			return d.list(entries)
		}
	}
	for _, stream := range d.list(m) {
		if pair := d.list(stream); len(pair) == 2 {
			return d.list(pair[1])
		}
	}
	d.note(errors.New("the reply of XREADGROUP has no entries"))
	return nil
}

// id returns an entry ID, which is zero for an empty text.
func (d *decoder) id(text string) (id entryID) {
	if text != "" {
		var err error
		id, err = parseEntryID(text)
		d.note(err)
	}
	return id
}

// entry decodes [id, [name, value, …]], and returns the server run that stored the entry.
func (d *decoder) entry(row rueidis.RedisMessage) (e queue.Entry, run string) {
	parts := d.list(row)
	if len(parts) != 2 {
		d.note(fmt.Errorf("an entry has %d elements", len(parts)))
		return e, ""
	}
	d.fields = d.fields[:0]
	for _, field := range d.list(parts[1]) {
		d.fields = append(d.fields, d.text(field))
	}
	for i := 0; i+1 < len(d.fields); i += 2 {
		if d.fields[i] == fieldRun {
			run = d.fields[i+1]
		}
	}
	return queue.DecodeFields(d.text(parts[0]), d.fields), run
}

// entries decodes entries that a consumer got, but not for the first time.
func (d *decoder) entries(rows []rueidis.RedisMessage, consumer string) []queue.Entry {
	out := make([]queue.Entry, len(rows))
	for i, row := range rows {
		out[i], _ = d.entry(row)
		out[i].Consumer = consumer
	}
	return out
}
