package redisgate

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/gatetest"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/redis"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// patience limits every wait for an expected event.
const patience = 20 * time.Second

var prefixes = service.NewIDs()

// servers maps each real server to the environment variable with its address.
var servers = map[string]string{
	"Redis": "LARGESSE_TEST_REDIS", "Valkey": "LARGESSE_TEST_VALKEY", "Cluster": "LARGESSE_TEST_REDIS_CLUSTER",
}

// overServers runs a test over each real server.
func overServers(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for name, variable := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, serverURL(t, variable))
		})
	}
}

func serverURL(t testing.TB, variable string) string {
	t.Helper()
	url := os.Getenv(variable)
	if url == "" {
		t.Fatalf("%s names no server: run it by make test", variable)
	}
	return url
}

// rig holds a driver with its own keys, and a plain client, which in a Cluster sends a
// command to the node of its key.
type rig struct {
	testing.TB
	g      *Gate
	raw    *redis.Client
	prefix string
	id     reward.TemplateID
}

func newRig(t testing.TB, url string) *rig {
	t.Helper()
	r := &rig{TB: t, prefix: fmt.Sprintf("test-%d:", prefixes.Next()), id: 42}
	option, err := redis.Option(url, "", "", obs.Log{})
	if err != nil {
		t.Fatal(err)
	}
	if r.raw, err = redis.Connect(option); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.raw.Close)
	t.Cleanup(r.deleteKeys)
	if r.g, err = Open(t.Context(), Config{URL: url, KeyPrefix: r.prefix}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.g.Close)
	return r
}

func (r *rig) deleteKeys() {
	ctx := context.Background() // the test's context has ended
	for _, key := range r.keys(ctx) {
		if err := r.raw.Do(ctx, r.raw.B().Unlink().Key(key).Build()).Error(); err != nil {
			r.Error(err)
		}
	}
}

// keys lists the rig's keys.
func (r *rig) keys(ctx context.Context) []string {
	var keys []string
	for _, node := range r.raw.Nodes() {
		for cursor := uint64(0); ; {
			page, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(r.prefix+"*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				r.Error(err)
				return nil
			}
			keys = append(keys, page.Elements...)
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// do runs a command as any other client would.
func (r *rig) do(command ...string) any {
	r.Helper()
	reply, err := r.raw.Do(r.Context(), r.raw.B().Arbitrary(command...).Build()).ToAny()
	if err != nil && !rueidis.IsRedisNil(err) {
		r.Fatalf("%v: %v", command, err)
	}
	return reply
}

func TestGate(t *testing.T) {
	t.Parallel()
	overServers(t, func(t *testing.T, url string) {
		gatetest.Exercise(t, func(t testing.TB) gate.Gate { return newRig(t, url).g })
	})
}

// TestTheGateIsLost runs the walk with a server that restarts with its data, or without.
func TestTheGateIsLost(t *testing.T) {
	t.Parallel()
	overServers(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		gatetest.Walk(t, r.g, func(_ gatetest.TB, id reward.TemplateID, all bool) {
			if all {
				r.do(append([]string{"DEL"}, allKeys(r.prefix, id)...)...)
				return
			}
			r.do("EVAL", "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'run', 'another') end",
				"1", TemplateKey(r.prefix, id))
		})
	})
}

func BenchmarkGate(b *testing.B) {
	for _, name := range []string{"Redis", "Valkey"} {
		b.Run(name, func(b *testing.B) {
			gatetest.Benchmark(b, func(b testing.TB) gate.Gate { return newRig(b, serverURL(b, servers[name])).g })
		})
	}
}
