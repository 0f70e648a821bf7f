package redisgate

import (
	"context"
	"slices"
	"testing"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/gatetest"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
)

// rig holds a driver with its own keys, and a plain client, which in a Cluster sends a
// command to the node of its key.
type rig struct {
	testing.TB
	g      gate.Gate
	raw    rueidis.Client
	prefix string
	id     reward.TemplateID
}

func newRig(t testing.TB, url string) *rig {
	t.Helper()
	r := &rig{TB: t, raw: fixture.RedisClient(t, url), prefix: fixture.Keys(t, url), id: 42}
	t.Cleanup(r.raw.Close)
	r.g = fixture.Must(Open(t.Context(), Config{URL: url, KeyPrefix: r.prefix}))(t)
	t.Cleanup(r.g.Close)
	return r
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

// onRedis returns a rig of the Redis that tests share.
func onRedis(t testing.TB) *rig {
	t.Helper()
	return newRig(t, fixture.Address(t, fleet.VariableRedis))
}

func newRedisGate(t testing.TB) gate.Gate { return onRedis(t).g }

func TestGate(t *testing.T) {
	t.Parallel()
	gatetest.Exercise(t, newRedisGate)
}

// TestGateOnOtherServers checks what depends on the server: groups, messages, and keys in
// several slots. TestScriptsAreForgotten calls every script there.
func TestGateOnOtherServers(t *testing.T) {
	t.Parallel()
	for _, server := range []fleet.Variable{fleet.VariableValkey, fleet.VariableRedisCluster} {
		t.Run(string(server), func(t *testing.T) {
			t.Parallel()
			url := fixture.Address(t, server)
			gatetest.Exercise(t, func(t testing.TB) gate.Gate { return newRig(t, url).g },
				"HeadersDescribeEveryGate", "ReadDeliversARequestOnce", "ClaimReturnsPendingRequests", "LoadKeepsLineAndRequests",
				"LoadMakesLineAndRequestsAgain", "RemoveLeavesNothing", "TemplatesAreSeparate", "HintsAreGiven")
		})
	}
}

// TestTheGateIsLost runs the walk with a server that restarts with its data, or without.
func TestTheGateIsLost(t *testing.T) {
	t.Parallel()
	r := onRedis(t)
	gatetest.Walk(t, r.g, func(_ gatetest.TB, id reward.TemplateID, all bool) {
		if all {
			r.do(append([]string{"DEL"}, allKeys(r.prefix, id)...)...)
			return
		}
		r.do("EVAL", "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'run', 'another') end",
			"1", TemplateKey(r.prefix, id))
	})
}
