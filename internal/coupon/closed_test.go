package coupon

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// TestAClosedTemplateLeavesNoKeys checks that the gate of a closed template is removed
// although people still ask, and that no later request loads it again.
func TestAClosedTemplateLeavesNoKeys(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		i := r.start(func(c *FlowConfig) { c.QueueTTL = time.Second })
		id := r.create(reward.CouponTemplate{TotalQuantity: 5, Mode: mode})
		c := r.take(i, id, "ann")
		fixture.Must(i.Catalog.Close(r.Context(), id))(r)
		exists := func() bool {
			h, err := i.gate.Headers(r.Context(), []reward.TemplateID{id})
			return err != nil || h[0].Exists
		}
		r.until("the gate is removed although people ask", func() bool {
			r.want(i, id, "bob", reward.CodeClosed)
			return !exists()
		})
		r.want(i, id, "bob", reward.CodeClosed)
		r.until("the row takes back the places of the gate", func() bool {
			row, err := r.rows.TemplateGet(r.Context(), id)
			return err == nil && row.Promised() == 0
		})
		if s, code := r.request(i, id, "ann"); code != "" || s.Kind != StatusIssued || s.Coupon.ID != c.ID || !s.Duplicate {
			r.Errorf("%q %+v", code, s)
		}
		if s, err := i.Intake.Status(r.Context(), id, "ann"); err != nil || s.Kind != StatusIssued {
			r.Errorf("%+v, %v", s, err)
		}
		if s, err := i.Intake.Status(r.Context(), id, "bob"); !reward.HasCode(err, reward.CodeRequestUnknown) {
			r.Errorf("%+v, %v", s, err)
		}
		if s := r.outcome(i, id, "ann"); s.Kind != StatusIssued {
			r.Errorf("%+v", s)
		}
		if exists() {
			r.Errorf("a request has loaded the gate again")
		}
	})
}
