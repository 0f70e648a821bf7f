package engine

import (
	"context"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue/redisstream"
)

// memoryFull is the part of maxmemory from which on it is worth a word.
const memoryFull = 0.8

// slots is how many slots a Redis Cluster has.
const slots = 16_384

func lookAtRedis(ctx context.Context, cfg config.Config) []Check {
	if cfg.Redis.URL == "" {
		return []Check{passed("redis", "the work queue lives in the instance's process; there is nothing to look at")}
	}
	facts, err := redisstream.Inspect(ctx, redisConfig(cfg, obs.Log{}))
	if err != nil {
		return []Check{passed("redis", "%s", reason(ctx, err)).
			but(CheckFail, "see that it runs and that redis.url names its host, port, user and password")}
	}
	return judgeRedis(facts, cfg)
}

func judgeRedis(f redisstream.Inspection, cfg config.Config) []Check {
	if len(f.Nodes) == 0 {
		return []Check{passed("redis", "a cluster in which no server has a slot").but(CheckFail, "give its slots to servers: redis-cli --cluster create …, or --cluster fix")}
	}
	var checks []Check
	for _, n := range f.Nodes {
		for _, c := range judgeNode(n, cfg) {
			c.Found = n.Address + " " + c.Found
			checks = append(checks, c)
		}
	}
	wakes := passed("redis.wakes", "wake-ups can be heard")
	if f.NoSubscribe != nil {
		wakes.Found = "wake-ups cannot be heard: " + oneLine(f.NoSubscribe)
		wakes = wakes.but(CheckFail, "let this user SUBSCRIBE to the channels with redis.key-prefix, e.g. ACL SETUSER … +@pubsub &*")
	}
	return append(checks, wakes)
}

// judgeNode judges one server; its address is put before what was found.
func judgeNode(n redisstream.NodeInspection, cfg config.Config) []Check {
	if n.Err != nil {
		return []Check{passed("redis", "does not answer: %s", oneLine(n.Err)).but(CheckFail, "see that it runs, or take it out of redis.url or the cluster")}
	}
	server := passed("redis", "is %s and answers within %s", n.Server, rounded(n.Clock.RoundTrip))
	if n.TooOld != nil {
		server.Found = oneLine(n.TooOld)
		server = server.but(CheckFail, "upgrade it")
	}
	checks := []Check{server, judgeEviction(n), judgeMemory(n), judgePersistence(n), judgeRole(n), judgeCommands(n)}
	if n.Cluster {
		checks = append(checks, judgeCluster(n))
	}
	return append(checks, judgeClock("redis.clock", "has a clock that is", n.Clock, cfg))
}

func judgeEviction(n redisstream.NodeInspection) Check {
	c := passed("redis.eviction", "has maxmemory-policy %s", n.Policy)
	const advice = "set maxmemory-policy noeviction: a full server must refuse new work, which then waits in the database, rather than drop work that is dispatched"
	switch n.Policy {
	case "noeviction":
	case "":
		c.Found = "does not tell its maxmemory-policy"
		return c.but(CheckWarn, "look it up where the service is managed, and %s", advice)
	default:
		return c.but(CheckFail, "%s", advice)
	}
	return c
}

func judgeMemory(n redisstream.NodeInspection) Check {
	used := humanize.IBytes(uint64(max(n.MemoryUsed, 0)))
	if n.MemoryMax <= 0 {
		return passed("redis.memory", "uses %s and has no maxmemory", used)
	}
	c := passed("redis.memory", "uses %s of %s", used, humanize.IBytes(uint64(n.MemoryMax)))
	if float64(n.MemoryUsed) > memoryFull*float64(n.MemoryMax) {
		return c.but(CheckWarn, "raise maxmemory or lower redis.stream.max-len: a full server takes no new work, which then waits in the database")
	}
	return c
}

// judgePersistence only informs: everything in Redis can be rebuilt.
func judgePersistence(n redisstream.NodeInspection) Check {
	const heals = "work that was dispatched is then found missing and dispatched again from the database, with the same keys"
	switch {
	case n.AppendOnly:
		return passed("redis.persistence", "writes an append-only file")
	case n.Snapshots == nil:
		return passed("redis.persistence", "has no append-only file, and whether it makes snapshots could not be read (CONFIG GET is refused)").
			but(CheckWarn, "nothing has to be done: should it lose its data, %s", heals)
	case strings.TrimSpace(*n.Snapshots) == "":
		return passed("redis.persistence", "keeps nothing over a restart; %s", heals)
	}
	return passed("redis.persistence", "makes snapshots (save %s) and loses at a crash what came later; %s", *n.Snapshots, heals)
}

func judgeRole(n redisstream.NodeInspection) Check {
	switch {
	case n.Replica && n.Cluster:
		return passed("redis.role", "is a replica of the cluster")
	case n.Replica:
		return passed("redis.role", "is a replica and takes no writes").but(CheckFail, "name the master in redis.url")
	case n.Refusal != "":
		return passed("redis.role", "is a master that refuses writes: %s", n.Refusal).but(CheckFail, "see what its answer says; until then work waits in the database")
	}
	return passed("redis.role", "is a master and takes writes")
}

func judgeCommands(n redisstream.NodeInspection) Check {
	if len(n.Denied) > 0 {
		return passed("redis.commands", "does not let this user give %s", strings.Join(n.Denied, ", ")).
			but(CheckFail, "allow them on the keys with redis.key-prefix: ACL SETUSER … +@stream +@scripting +@pubsub +@string +@keyspace")
	}
	return passed("redis.commands", "lets this user give every command that is needed")
}

func judgeCluster(n redisstream.NodeInspection) Check {
	c := passed("redis.cluster", "sees the cluster %s, %d of %d slots served", n.ClusterState, n.SlotsServed, slots)
	switch {
	case n.ClusterState == "":
		c.Found = "does not tell the state of its cluster (CLUSTER INFO is refused)"
		return c.but(CheckWarn, "look it up where the service is managed")
	case n.ClusterState != "ok" || n.SlotsServed < slots:
		return c.but(CheckFail, "see redis-cli --cluster check: promotions whose slot nobody serves wait in the database")
	}
	return c
}
