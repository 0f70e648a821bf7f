//go:build nightly

package coupon

import (
	"fmt"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
)

// rolledBack restarts from an older snapshot.
func rolledBack(t *testing.T) lossy {
	t.Helper()
	server := fixture.Own(t, fleet.NewRedis)
	return lossy{
		servers: openServersAt(t, server.Address()),
		keep:    func() { command(t, server.Address(), "SAVE") },
		lose: func() {
			if err := server.Kill(); err != nil {
				t.Error(err)
			}
			if err := server.Start(t.Context()); err != nil {
				t.Error(err)
			}
		},
	}
}

// TestNightlyLosses is TestPromisesThroughLosses and TestLeavesThroughLosses on real
// servers, with 3,000 users in line.
func TestNightlyLosses(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) lossy{"Rollback": rolledBack, "Failover": failedOver} {
		for _, l := range []loss{{mode: reward.ModeStream}, {mode: reward.ModeKafka}, {mode: reward.ModeKafka, serving: true}} {
			for what, test := range map[string]func(*rig, loss){"Promises": exerciseLoss, "Leaves": exerciseLeavesAndLoss} {
				t.Run(fmt.Sprint(name, what, l.mode, l.serving), func(t *testing.T) {
					t.Parallel()
					redis := open(t)
					l := l
					l.part, l.keep, l.lose = 1000, redis.keep, redis.lose
					test(newRig(t, redis.servers), l)
				})
			}
		}
	}
}
