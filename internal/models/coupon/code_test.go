package coupon

import (
	"testing"

	"github.com/largesse/largesse/internal/models/code"
)

// stepCode names the code that takes a step of the STREAM model.
var stepCode = map[step]string{
	settles:        "coupon.Issuer.settle store.Coupons.CouponSettle rules.Refuse rules.Issue",
	settlesNothing: "coupon.Issuer.settle store.Coupons.CouponSettle rules.Refuse",
	acknowledges:   "coupon.Issuer.acknowledge gate.Gate.Ack gate/redisgate/ack.lua",
	raises:         "coupon.loadTry.run coupon.loadKind store.Coupons.TemplateNewGeneration",
	closes:         "gate.Gate.LoadClose gate/redisgate/load_close.lua",
	readsRows:      "coupon.loadTry.readRows store.Coupons.CouponSnapshot",
	trims: "coupon.loadTry.prepareLine gate.Gate.LoadTrim gate/redisgate/load_trim.lua " +
		"coupon.loadTry.removeLeft gate.Gate.LoadLeft gate/redisgate/load_left.lua",
	putsBack: "coupon.loadTry.putBack coupon.loadTry.waiting gate.Gate.LoadMissing gate/redisgate/load_missing.lua " +
		"gate.Gate.LoadBack gate/redisgate/load_back.lua",
	copies:         "coupon.loadTry.prepareLine coupon.loadTry.waiting gate.Gate.LoadCopy gate/redisgate/load_copy.lua",
	swaps:          "gate.Gate.LoadSwap gate/redisgate/load_swap.lua",
	covers:         "coupon.Applier.catchUp gate.Gate.Apply gate/redisgate/apply.lua",
	sweeps:         "coupon.holdSweeper.sweep store.Coupons.CouponEndHolds",
	sweepReads:     "coupon.holdSweeper.sweep store.Coupons.HoldsEnded",
	coverReads:     "coupon.GateMaintainer.catchUp coupon.Applier.catchUp",
	marks:          "gate.Gate.LoadBegin gate/redisgate/load_begin.lua",
	takesLease:     "coupon.IssuerManager.round store.Coupons.TemplateAssign",
	claims:         "gate.Gate.Claim gate/redisgate/claim.lua",
	reads:          "gate.Gate.Read gate/redisgate/read.lua",
	asks:           "gate.Gate.Admit gate/redisgate/admit.lua",
	asksRows:       "coupon.DirectIssuer.IssueBatch",
	applies:        "coupon.Applier.apply gate.Gate.Apply gate/redisgate/apply.lua",
	cancels:        "coupon.Catalog.Cancel store.Coupons.CouponCancel",
	bypasses:       "coupon.GateMaintainer.fallBack coupon.GateMaintainer.standIn coupon.loadTry.leaveGate",
	grants:         "coupon.Granter.grant store.Coupons.TemplateGrant rules.Grant",
	shrinks:        "coupon.Granter.gateShrink gate.Gate.Shrink gate/redisgate/shrink.lua",
	takesBack:      "coupon.Granter.shrink store.Coupons.TemplateShrink rules.Shrink",
	lowers:         "coupon.Granter.change store.Coupons.TemplateChange rules.Shrunk.takeBack",
	lowersNothing:  "coupon.Granter.change rules.CheckChange",
	raisesQuantity: "coupon.Catalog.Change",
	leaves:         "coupon.leaver.leave gate.Gate.Place gate/redisgate/place.lua",
	leavesRow:      "coupon.leaver.leave store.Coupons.CouponLeave rules.Leave.Apply",
	leavesTooLate:  "coupon.leaver.leave coupon.leaver.ended",
	confirms:       "coupon.Catalog.Confirm store.Coupons.CouponConfirm",

	closesTemplate:  "coupon.Catalog.Close",
	reopens:         "coupon.Catalog.Change store.Coupons.TemplateChange",
	seesOver:        "engine.retention.coupons store.Retention.TemplateArchive",
	archives:        "engine.retention.coupons store.Retention.TemplateArchive",
	archivesNothing: "store.Retention.TemplateArchive",
	releases:        "coupon.GateMaintainer.maintain store.Coupons.TemplateShrink rules.Shrink",
	removesRow:      "engine.retention.couponsOf store.Retention.TemplateForget",
}

// otherCode names the code that takes the steps of the KAFKA model and of the lock, which
// differ from those above.
var otherCode = map[string]string{
	"is published":                 "coupon.Issuer.forward coupon.IssueTopic.publish",
	"is acknowledged: 202":         "coupon.gateRoute.waitForwarded gate.Gate.Ack gate/redisgate/unacked.lua",
	"a consumer settles":           "coupon.IssueListener.settle rules.Due store.Coupons.CouponSettle",
	"a later coupon is the answer": "rules.Due store.Coupons.CouponSettle",
	"is of an archived template":   "coupon.refusesAll rules.CheckTemplateArchived coupon.IssueListener.settle",
	"was never given":              "rules.neverGiven coupon.IssueListener.settle",
	"the end offsets, the floor":   "coupon.loadTry.passRecords coupon.loadTry.run store.Coupons.TemplateSetFloor",
	"a load without its records":   "coupon.GateMaintainer.reloadForgotten coupon.Loader.remake",
	"a client locks, and unlocks":  "coupon.DirectIssuer.lock gate.Gate.Lock gate/redisgate/lock.lua gate.Gate.Unlock gate/redisgate/unlock.lua",
	"a client writes, or must not": "coupon.DirectIssuer.IssueLocked rules.Refuse",
}

// TestStepsNameCode requires that every function, method and script that stepCode and otherCode
// name exists, and that every step has a text.
func TestStepsNameCode(t *testing.T) {
	t.Parallel()
	names := code.In("../..")
	for st := range stepCount {
		if stepTexts[st] == "" {
			t.Errorf("step %d has no text", st)
		}
		for _, err := range names.Check(stepCode[st]) {
			t.Errorf("step %q: %v", stepTexts[st], err)
		}
	}
	for text, list := range otherCode {
		for _, err := range names.Check(list) {
			t.Errorf("step %q: %v", text, err)
		}
	}
}
