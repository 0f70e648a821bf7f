package coupon

import (
	"testing"

	"github.com/largesse/largesse/internal/models/code"
)

// otherCode names the code that takes the steps of the KAFKA model and of the lock, which
// differ from those of the STREAM model.
var otherCode = map[string]string{
	"is published":                 "coupon.Issuer.forward gatekeeper.IssueTopic.Publish",
	"is acknowledged: 202":         "coupon.Intake.requestTicket gate.Gate.Ack gate/redisgate/unacked.lua",
	"a consumer settles":           "coupon.IssueListener.settle rules.Due store/rows.Tables.CouponSettle",
	"a later coupon is the answer": "rules.Due store/rows.Tables.CouponSettle",
	"is of an archived template":   "coupon.refusesAll rules.CheckTemplateArchived coupon.IssueListener.settle",
	"was never given":              "rules.neverGiven coupon.IssueListener.settle",
	"the end offsets, the floor":   "gatekeeper.loadTry.passRecords gatekeeper.loadTry.run store/rows.Tables.TemplateSetFloor",
	"a load without its records":   "gatekeeper.Maintainer.reloadForgotten gatekeeper.Loader.Remake",
	"a client locks, and unlocks":  "coupon.Intake.lock gate.Gate.Lock gate/redisgate/lock.lua gate.Gate.Unlock gate/redisgate/unlock.lua",
	"a client writes, or must not": "coupon.Intake.issueLocked rules.Refuse",
}

// TestStepsNameCode requires that every function, method and script that steps and otherCode
// name exists.
func TestStepsNameCode(t *testing.T) {
	t.Parallel()
	names := code.In("../..")
	for _, s := range steps {
		for _, err := range names.Check(s.code) {
			t.Errorf("step %q: %v", s.text, err)
		}
	}
	for text, list := range otherCode {
		for _, err := range names.Check(list) {
			t.Errorf("step %q: %v", text, err)
		}
	}
}
