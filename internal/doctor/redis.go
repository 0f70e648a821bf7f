package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/queue/redisstream"
)

const memoryFull = 0.8

const slots = 16_384

func lookAtRedis(ctx context.Context, cfg config.Config) []Check {
	if cfg.Redis.URL == "" {
		return []Check{passed("redis", "not needed: the work queue is in the process of the instance")}
	}
	facts, err := redisstream.Inspect(ctx, parts.RedisConfig(cfg, obs.Log{}))
	if err != nil {
		return []Check{passed("redis", "%s", reason(ctx, err)).
			but(CheckFail, "%s", redisAdvice(err))}
	}
	return judgeRedis(facts, cfg)
}

func redisAdvice(err error) string {
	if _, distrust := errors.AsType[*tls.CertificateVerificationError](err); distrust {
		return "name the CA of the servers' certificates in redis.ca-file, and check that redis.url has the host names of the certificates"
	}
	return "check that Redis runs and that redis.url has the right host, port, user and password"
}

func judgeRedis(f redisstream.Inspection, cfg config.Config) []Check {
	if len(f.Nodes) == 0 {
		return []Check{passed("redis", "no server of the Cluster has a slot").but(CheckFail, "assign the slots to servers: redis-cli --cluster create …, or --cluster fix")}
	}
	var checks []Check
	for _, n := range f.Nodes {
		for _, c := range judgeNode(n, cfg) {
			c.Found = n.Address + " " + c.Found
			checks = append(checks, c)
		}
	}
	wakes := passed("redis.wakes", "wake-ups can be received")
	if f.NoSubscribe != nil {
		wakes = wakes.saying("wake-ups cannot be received: %s", OneLine(f.NoSubscribe)).
			but(CheckFail, "let this user SUBSCRIBE to the channels with redis.key-prefix: %s", aclAdvice(cfg))
	}
	return append(checks, wakes)
}

// judgeNode checks one server. The caller puts its address before each result.
func judgeNode(n redisstream.NodeInspection, cfg config.Config) []Check {
	if n.Err != nil {
		return []Check{passed("redis", "does not respond: %s", OneLine(n.Err)).but(CheckFail, "check that it runs, or remove it from redis.url or from the Cluster")}
	}
	if n.Server == "" { // INFO is refused
		return []Check{judgeRole(n), judgeCommands(n, cfg)}
	}
	server := passed("redis", "runs %s and responds within %s", n.Server, rounded(n.Clock.RoundTrip))
	if n.TooOld != nil {
		server = server.saying("%s", OneLine(n.TooOld)).but(CheckFail, "upgrade it")
	}
	checks := []Check{server, judgeEviction(n), judgeMemory(n), judgePersistence(n), judgeRole(n), judgeCommands(n, cfg)}
	if n.Cluster {
		checks = append(checks, judgeCluster(n))
	}
	if slices.Contains(n.Denied, "TIME") {
		return checks
	}
	return append(checks, judgeClock("redis.clock", "has a clock that is", n.Clock, cfg))
}

func judgeEviction(n redisstream.NodeInspection) Check {
	c := passed("redis.eviction", "has maxmemory-policy %s", n.Policy)
	const advice = "set maxmemory-policy noeviction: a full server must refuse new entries, which then wait in the database, and must not delete dispatched ones"
	switch n.Policy {
	case "noeviction":
	case "":
		return c.saying("does not report its maxmemory-policy").but(CheckWarn, "check it where the service is managed, and %s", advice)
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
		return c.but(CheckWarn, "raise maxmemory or lower redis.stream.max-len: a full server accepts no new entries, which then wait in the database")
	}
	return c
}

// judgePersistence never fails, because Largesse recovers from the loss of all data in Redis.
func judgePersistence(n redisstream.NodeInspection) Check {
	const heals = "lost entries are dispatched again from the database under the same idempotency keys"
	switch {
	case n.AppendOnly:
		return passed("redis.persistence", "writes an append-only file")
	case n.Snapshots == nil:
		return passed("redis.persistence", "has no append-only file and refuses CONFIG GET, so its snapshots could not be checked").
			but(CheckWarn, "do nothing: if it loses its data, %s", heals)
	case strings.TrimSpace(*n.Snapshots) == "":
		return passed("redis.persistence", "stores nothing across a restart; %s", heals)
	}
	return passed("redis.persistence", "writes snapshots (save %s), so a crash loses later entries; %s", *n.Snapshots, heals)
}

func judgeRole(n redisstream.NodeInspection) Check {
	switch {
	case n.Replica && n.Cluster:
		return passed("redis.role", "is a replica of the cluster")
	case n.Replica:
		return passed("redis.role", "is a replica and accepts no writes").but(CheckFail, "set redis.url to the master")
	case n.Refusal != "":
		return passed("redis.role", "is a master that refuses writes: %s", n.Refusal).but(CheckFail, "fix the cause that it reports; until then, work waits in the database")
	}
	return passed("redis.role", "is a master and accepts writes")
}

// aclAdvice returns the command that lets a user run all that Largesse runs.
func aclAdvice(cfg config.Config) string {
	return "ACL SETUSER … " + redisstream.ACL(cfg.Redis.KeyPrefix)
}

func judgeCommands(n redisstream.NodeInspection, cfg config.Config) Check {
	if len(n.Denied) > 0 {
		return passed("redis.commands", "does not allow this user to run %s", strings.Join(n.Denied, ", ")).
			but(CheckFail, "allow these commands on the keys with redis.key-prefix: %s", aclAdvice(cfg))
	}
	return passed("redis.commands", "allows this user to run all required commands")
}

func judgeCluster(n redisstream.NodeInspection) Check {
	c := passed("redis.cluster", "reports the state %s of its Cluster, with %d of %d slots served", n.ClusterState, n.SlotsServed, slots)
	switch {
	case n.ClusterState == "":
		return c.saying("does not report the state of its Cluster (CLUSTER INFO is refused)").but(CheckWarn, "check it where the service is managed")
	case n.ClusterState != "ok" || n.SlotsServed < slots:
		return c.but(CheckFail, "run redis-cli --cluster check: promotions whose slot has no server wait in the database")
	}
	return c
}
