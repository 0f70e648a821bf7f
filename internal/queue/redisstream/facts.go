package redisstream

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/redis"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// Inspection is what Inspect found out about the servers.
type Inspection struct {
	Nodes []NodeInspection // ordered by address
	// NoSubscribe is the reason why wake-ups cannot be received; nil if they
	// can.
	NoSubscribe error
}

// NodeInspection is what one server reports. Sizes are in bytes.
type NodeInspection struct {
	Address string
	Err     error // set if it did not answer; the rest is then empty
	Server  string
	// TooOld is the reason why Open would refuse this version; nil if it would
	// not.
	TooOld  error
	Cluster bool
	Replica bool
	// ClusterState is ok if every slot is served; "" if it is unreadable or
	// there is no cluster. SlotsServed is out of 16384.
	ClusterState string
	SlotsServed  int
	// Policy is maxmemory-policy; "" if the server does not report it.
	Policy                string
	MemoryUsed, MemoryMax int64 // MemoryMax zero: no limit
	// AppendOnly reports whether every write goes to a file. Snapshots is the
	// server's setting save ("" for no snapshots); nil if it is unreadable.
	AppendOnly bool
	Snapshots  *string
	// Refusal is the server's answer to a write that it should accept; "" if it
	// accepts writes.
	Refusal string
	// Denied lists the commands that this user may not send.
	Denied []string
	Clock  service.Clock
}

// ACL returns the rules of a user who may run what Largesse runs, on its keys and
// channels only. Of the dangerous commands, Largesse runs only INFO, and with Sentinels
// ROLE. Some keys begin with the brace that decides their slot.
func ACL(prefix string) string {
	return fmt.Sprintf("resetkeys ~%[1]s* ~{%[1]s* resetchannels &%[1]s* +@all -@dangerous +info +role", prefix)
}

// Inspect connects to the servers and reads what it can. It changes nothing. It
// returns an error if no server is reachable. ctx limits everything.
func Inspect(ctx context.Context, cfg Config) (Inspection, error) {
	option, err := cfg.Option()
	if err != nil {
		return Inspection{}, err
	}
	// The client ignores the context while it connects.
	if end, ok := ctx.Deadline(); ok {
		option.Dialer.Deadline, option.ConnWriteTimeout = end, max(time.Until(end), time.Millisecond)
		option.Sentinel.Dialer.Deadline = end
	}
	connected, err := redis.Connect(option)
	if err != nil {
		return Inspection{}, err
	}
	defer connected.Close()
	nodes := connected.Nodes()
	var facts Inspection
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		n := NodeInspection{Address: address}
		if n.Err = n.read(ctx, nodes[address], cfg.KeyPrefix); n.Err != nil {
			n = NodeInspection{Address: address, Err: n.Err}
		}
		facts.Nodes = append(facts.Nodes, n)
	}
	facts.NoSubscribe = trySubscribe(ctx, connected, cfg.KeyPrefix)
	return facts, nil
}

func (n *NodeInspection) read(ctx context.Context, node rueidis.Client, prefix string) error {
	info, err := node.Do(ctx, node.B().Info().Build()).ToString()
	switch {
	case err == nil:
		n.readInfo(info)
	case !denied(service.Words(err)):
		return fmt.Errorf("INFO: %w", err)
	}
	n.Clock, err = redis.CompareClock(ctx, node)
	if err != nil && !denied(service.Words(err)) {
		return fmt.Errorf("TIME: %w", err)
	}
	// Managed services refuse CONFIG, and some refuse CLUSTER INFO: the fields
	// then stay empty.
	if save, err := node.Do(ctx, node.B().ConfigGet().Parameter("save").Build()).AsStrMap(); err == nil {
		if text, ok := save["save"]; ok {
			n.Snapshots = &text
		}
	}
	if n.Cluster {
		if cluster, err := node.Do(ctx, node.B().ClusterInfo().Build()).ToString(); err == nil {
			n.ClusterState = redis.InfoValue(cluster, "cluster_state")
			n.SlotsServed, _ = strconv.Atoi(redis.InfoValue(cluster, "cluster_slots_ok"))
		}
	}
	return n.tryCommands(ctx, node, prefix)
}

func (n *NodeInspection) readInfo(info string) {
	n.Server = "Redis " + redis.InfoValue(info, "redis_version")
	if v := redis.InfoValue(info, "valkey_version"); v != "" {
		n.Server = "Valkey " + v
	}
	n.TooOld = redis.CheckVersion(info)
	n.Cluster = redis.InfoValue(info, "cluster_enabled") == "1"
	n.Replica = redis.InfoValue(info, "role") == "slave"
	n.Policy = redis.InfoValue(info, "maxmemory_policy")
	n.MemoryUsed, _ = strconv.ParseInt(redis.InfoValue(info, "used_memory"), 10, 64)
	n.MemoryMax, _ = strconv.ParseInt(redis.InfoValue(info, "maxmemory"), 10, 64)
	n.AppendOnly = redis.InfoValue(info, "aof_enabled") == "1"
}

// noStream is a stream that cannot exist: promotion IDs start at 1.
var noStream = queue.Stream{Type: reward.Point}

// probes returns the commands of this package and its scripts, in a form that
// changes nothing because the keys do not exist.
func probes(prefix string) [][]string {
	key, group, regrouped := StreamKey(prefix, noStream), ConsumerGroup(prefix, noStream), regroupedKey(prefix, noStream)
	return [][]string{
		{"XADD", key, "NOMKSTREAM", "*", "f", "v"},
		{"XREADGROUP", "GROUP", group, "c", "COUNT", "1", "STREAMS", key, ">"},
		{"XACK", key, group, "0-1"},
		{"XDEL", key, "0-1"},
		{"XLEN", key},
		{"XRANGE", key, "-", "+", "COUNT", "1"},
		{"XREVRANGE", key, "+", "-", "COUNT", "1"},
		{"XPENDING", key, group},
		{"TIME"},
		{"XCLAIM", key, group, "c", "1", "0-1", "JUSTID"},
		{"XAUTOCLAIM", key, group, "c", "1", "0"}, // used by the gates of the coupons
		{"XGROUP", "CREATE", key, group, "0"},
		{"XGROUP", "CREATECONSUMER", key, group, "c"},
		{"XGROUP", "DELCONSUMER", key, group, "c"},
		{"XINFO", "GROUPS", key},
		{"XINFO", "CONSUMERS", key, group},
		{"EXISTS", key},
		{"DEL", key},
		{"GET", regrouped},
		{"SET", regrouped, "", "XX"},
		{"EVAL", "return 1", "1", key},
		{"EVALSHA", strings.Repeat("0", 40), "1", key},
		{"PUBLISH", wakeChannel(prefix), ""},
	}
}

// permissions returns the commands of the scripts of the gates and rates, whose
// permissions are only asked for: some of them would create a key.
func permissions(prefix string) [][]string {
	key := StreamKey(prefix, noStream)
	return [][]string{
		{"INFO", "server"},
		{"HDEL", key, "f"},
		{"HEXISTS", key, "f"},
		{"HGET", key, "f"},
		{"HLEN", key},
		{"HMGET", key, "f"},
		{"HSCAN", key, "0"},
		{"HSET", key, "f", "v"},
		{"MSET", key, "v"},
		{"PEXPIRE", key, "1"},
		{"RENAME", key, key},
		{"UNLINK", key},
		{"XTRIM", key, "MINID", "0-1"},
		{"ZADD", key, "1", "m"},
		{"ZCARD", key},
		{"ZCOUNT", key, "0", "1"},
		{"ZMSCORE", key, "m"},
		{"ZRANGE", key, "0", "1"},
		{"ZRANK", key, "m"},
		{"ZREM", key, "m"},
		{"ZREMRANGEBYRANK", key, "0", "1"},
		{"ZREMRANGEBYSCORE", key, "0", "1"},
		{"ZSCORE", key, "m"},
	}
}

// tryCommands sends the probes to find out which commands the server denies.
func (n *NodeInspection) tryCommands(ctx context.Context, node rueidis.Client, prefix string) error {
	more, err := redis.Denied(ctx, node, permissions(prefix))
	if err != nil && service.Words(err) == "" { // without words, it does not answer
		return fmt.Errorf("EVAL: %w", err)
	}
	n.Denied = more
	for _, command := range probes(prefix) {
		err := node.Do(ctx, node.B().Arbitrary(command...).Build()).Error()
		answer, ok := rueidis.IsRedisErr(err)
		switch {
		case err == nil:
		case !ok && rueidis.IsRedisNil(err):
		case !ok:
			return fmt.Errorf("%s: %w", command[0], err)
		case denied(answer.Error()):
			n.Denied = append(n.Denied, commandName(command))
		case command[0] == "XADD" && refusesWrites(answer.Error()):
			n.Refusal = answer.Error()
		}
	}
	return nil
}

func commandName(command []string) string {
	if command[0] == "XGROUP" || command[0] == "XINFO" {
		return command[0] + " " + command[1]
	}
	return command[0]
}

// denied reports whether a server's answer means that this user may not send
// the command, or that the server has renamed or removed it.
func denied(answer string) bool {
	answer = strings.TrimPrefix(answer, "ERR ")
	return strings.HasPrefix(answer, "NOPERM") || strings.HasPrefix(answer, "unknown command") || strings.HasPrefix(answer, "unknown subcommand")
}

// refusesWrites reports whether a server's answer means that it accepts no
// writes now.
func refusesWrites(answer string) bool {
	reason, _, _ := strings.Cut(answer, " ")
	return slices.Contains([]string{"OOM", "MISCONF", "READONLY", "NOREPLICAS", "LOADING", "MASTERDOWN", "CLUSTERDOWN"}, reason)
}

func trySubscribe(ctx context.Context, client rueidis.Client, prefix string) error {
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	subscribed := false
	hooked := rueidis.WithOnSubscriptionHook(stop, func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			subscribed = true
			cancel()
		}
	})
	err := client.Receive(hooked, client.B().Subscribe().Channel(wakeChannel(prefix)).Build(), func(rueidis.PubSubMessage) {})
	if subscribed {
		return nil
	}
	return fmt.Errorf("SUBSCRIBE %s: %w", wakeChannel(prefix), err)
}
