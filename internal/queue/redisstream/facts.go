package redisstream

import (
	"context"
	"errors"
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

// Facts is what a look at the servers tells. Judging them is the caller's.
type Facts struct {
	Nodes []NodeFacts // ordered by address
	// NoSubscribe is why wake-ups cannot be listened to; nil = they can.
	NoSubscribe error
}

// NodeFacts is what one server tells. Sizes are in bytes.
type NodeFacts struct {
	Address string
	Err     error // it did not answer; the rest is empty
	Server  string
	// TooOld is why the driver would not start on it; nil = it would.
	TooOld  error
	Cluster bool
	Replica bool
	// ClusterState is ok when every slot is served; "" where it could not be
	// read or there is no cluster. SlotsServed is out of 16384.
	ClusterState string
	SlotsServed  int
	// Policy is maxmemory-policy; "" = the server does not tell.
	Policy                string
	MemoryUsed, MemoryMax int64 // MemoryMax 0 = no limit
	// AppendOnly says that every write goes to a file; Snapshots is the setting
	// save ("" = none are made), nil where it could not be read.
	AppendOnly bool
	Snapshots  *string
	// Refusal is what the server says to a write that it should take; "" = it
	// takes writes.
	Refusal string
	// Denied lists the commands that this user may not give.
	Denied []string
	Clock  service.Clock
}

// Look connects to the servers, reads what it can, and leaves nothing behind.
// An error means that none could be reached; ctx bounds everything.
func Look(ctx context.Context, cfg Config) (Facts, error) {
	option, err := redis.Option(cfg.URL)
	if err != nil {
		return Facts{}, err
	}
	// The client itself looks at no context while it connects.
	if end, ok := ctx.Deadline(); ok {
		option.Dialer.Deadline, option.ConnWriteTimeout = end, max(time.Until(end), time.Millisecond)
		option.Sentinel.Dialer.Deadline = end
	}
	connected, err := redis.Connect(option)
	if err != nil {
		return Facts{}, err
	}
	defer connected.Close()
	nodes := connected.Nodes()
	var facts Facts
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		n := NodeFacts{Address: address}
		if n.Err = n.read(ctx, nodes[address], cfg.KeyPrefix); n.Err != nil {
			n = NodeFacts{Address: address, Err: n.Err}
		}
		facts.Nodes = append(facts.Nodes, n)
	}
	facts.NoSubscribe = trySubscribe(ctx, connected, cfg.KeyPrefix)
	return facts, nil
}

func (n *NodeFacts) read(ctx context.Context, node rueidis.Client, prefix string) error {
	info, err := node.Do(ctx, node.B().Info().Build()).ToString()
	if err != nil {
		return fmt.Errorf("INFO: %w", err)
	}
	n.readInfo(info)
	n.Clock, err = service.CompareClock(func() (time.Time, error) {
		parts, err := node.Do(ctx, node.B().Time().Build()).AsIntSlice()
		if err == nil && len(parts) != 2 {
			err = errors.New("TIME answers no time")
		}
		if err != nil {
			return time.Time{}, err
		}
		return time.Unix(parts[0], parts[1]*int64(time.Microsecond)), nil
	})
	if err != nil {
		return fmt.Errorf("TIME: %w", err)
	}
	// Managed services refuse CONFIG, and some of them CLUSTER INFO: what is not
	// known then stays empty.
	if save, err := node.Do(ctx, node.B().ConfigGet().Parameter("save").Build()).AsStrMap(); err == nil {
		if text, ok := save["save"]; ok {
			n.Snapshots = &text
		}
	}
	if n.Cluster {
		if cluster, err := node.Do(ctx, node.B().ClusterInfo().Build()).ToString(); err == nil {
			cluster = strings.TrimPrefix(cluster, "txt:") // the form of the text, which the client leaves on
			n.ClusterState = redis.InfoValue(cluster, "cluster_state")
			n.SlotsServed, _ = strconv.Atoi(redis.InfoValue(cluster, "cluster_slots_ok"))
		}
	}
	return n.tryCommands(ctx, node, prefix)
}

// readInfo reads the answer of INFO.
func (n *NodeFacts) readInfo(info string) {
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

// nobody is a stream that cannot exist: promotions count from 1.
var nobody = queue.Stream{Type: reward.Point}

// probes are the commands of the driver and of its scripts, in a form that
// changes nothing on keys that do not exist.
func probes(prefix string) [][]string {
	key, group, beside := StreamKey(prefix, nobody), ConsumerGroup(prefix, nobody), regroupedKey(prefix, nobody)
	return [][]string{
		{"XADD", key, "NOMKSTREAM", "*", "f", "v"},
		{"XREADGROUP", "GROUP", group, "c", "COUNT", "1", "STREAMS", key, ">"},
		{"XACK", key, group, "0-1"},
		{"XDEL", key, "0-1"},
		{"XLEN", key},
		{"XRANGE", key, "-", "+", "COUNT", "1"},
		{"XREVRANGE", key, "+", "-", "COUNT", "1"},
		{"XPENDING", key, group},
		{"XCLAIM", key, group, "c", "1", "0-1", "JUSTID"},
		{"XAUTOCLAIM", key, group, "c", "1", "0"},
		{"XGROUP", "CREATE", key, group, "0"},
		{"XGROUP", "CREATECONSUMER", key, group, "c"},
		{"XGROUP", "DELCONSUMER", key, group, "c"},
		{"XINFO", "GROUPS", key},
		{"XINFO", "CONSUMERS", key, group},
		{"EXISTS", key},
		{"DEL", key},
		{"GET", beside},
		{"SET", beside, "", "XX"},
		{"EVAL", "return 1", "1", key},
		{"EVALSHA", strings.Repeat("0", 40), "1", key},
		{"PUBLISH", wakeChannel(prefix), ""},
	}
}

// tryCommands finds out which commands are refused, by giving them.
func (n *NodeFacts) tryCommands(ctx context.Context, node rueidis.Client, prefix string) error {
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

// commandName is the command and, where it has one, its subcommand.
func commandName(command []string) string {
	if command[0] == "XGROUP" || command[0] == "XINFO" {
		return command[0] + " " + command[1]
	}
	return command[0]
}

// denied tells an answer of a server that does not let this user give the
// command, or that has it under another name or not at all.
func denied(answer string) bool {
	answer = strings.TrimPrefix(answer, "ERR ")
	return strings.HasPrefix(answer, "NOPERM") || strings.HasPrefix(answer, "unknown command") || strings.HasPrefix(answer, "unknown subcommand")
}

// refusesWrites tells the answers of a server that takes no writes now.
func refusesWrites(answer string) bool {
	reason, _, _ := strings.Cut(answer, " ")
	return slices.Contains([]string{"OOM", "MISCONF", "READONLY", "NOREPLICAS", "LOADING", "MASTERDOWN", "CLUSTERDOWN"}, reason)
}

// trySubscribe listens to the wake-ups for a moment.
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
