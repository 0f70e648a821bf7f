//go:build servers && load

package coupon

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TestWaitsAreHonestInKafkaMode is TestWaitsAreHonestOnRealServers for requests
// that wait in a topic.
func TestWaitsAreHonestInKafkaMode(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Connected = func() bool { return false } }) // it publishes and reads nothing
		id := r.create(reward.CouponTemplate{TotalQuantity: 1_000_000, Mode: reward.ModeKafka})
		r.rush(i, id, "u", linePeople)
		const batch = 400 * time.Millisecond
		var rows *slowRows
		r.start(func(c *FlowConfig) {
			rows = &slowRows{Store: c.Store, took: batch}
			c.Store = rows
		})
		compared, wrong := honest(r, id, i.gate, rows, batch)
		// A stall of the machine makes single ones wrong.
		all := compared[batch] + compared[5*batch]
		if r.Logf("compared %v, wrong %d", compared, len(wrong)); compared[5*batch] < 20 || len(wrong)*5 > all {
			r.Errorf("%d of %d are wrong: %v", len(wrong), all, wrong)
		}
	})
}
