//go:build nightly

package coupon

import (
	"testing"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// TestNightlyABrokerLosesALongLine checks that 3,000 users who were told that they wait get their
// coupons although a broker that was killed comes back without their records, or their
// topic is recreated. A thousand records were settled before.
func TestNightlyABrokerLosesALongLine(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*rig, *fleet.Server){
		"Log": func(r *rig, broker *fleet.Server) {
			fixture.OK(r, broker.Kill())
			fixture.OK(r, fleet.LoseTopic(broker, r.prefix+bus.TopicCouponIssue))
			fixture.OK(r, broker.Start(r.Context()))
		},
		"Topic": func(r *rig, _ *fleet.Server) { r.recreateTopic() },
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // each has a broker and takes a CPU
			broker := fixture.Own(t, fleet.NewKafka)
			s := openServers(t)
			s.brokers = []string{broker.Address()}
			r := newRig(t, s)
			exerciseTopicLoss(r, topicLoss{early: 1000, line: 3000, spare: 500, rush: name == "Topic", lose: func() { lose(r, broker) }})
		})
	}
}
