package coupon

import (
	"testing"

	"github.com/largesse/largesse/internal/models/code"
)

// stepCode names the code that takes a step of the STREAM model.
var stepCode = map[step]string{
	settles:        "coupon.Issuer.settle store.Coupons.CouponSettle",
	settlesNothing: "coupon.Issuer.settle store.Coupons.CouponSettle",
	acknowledges:   "coupon.Issuer.acknowledge gate.Gate.Ack gate/redisgate/ack.lua",
	raises:         "coupon.Loader.load store.Coupons.TemplateNewGeneration",
	readsRows:      "coupon.Loader.load store.Coupons.TemplateGet",
	swaps:          "gate.Gate.LoadSwap gate/redisgate/load_swap.lua",
	covers:         "coupon.Applier.catchUp gate.Gate.Apply gate/redisgate/apply.lua",
	coverReads:     "coupon.GateMaintainer.catchUp coupon.Applier.catchUp",
	marks:          "gate.Gate.LoadBegin gate/redisgate/load_begin.lua",
	takesLease:     "coupon.IssuerManager.round store.Coupons.TemplateAssign",
	claims:         "gate.Gate.Claim gate/redisgate/claim.lua",
	reads:          "gate.Gate.Read gate/redisgate/read.lua",
	asks:           "gate.Gate.Admit gate/redisgate/admit.lua",
	asksRows:       "coupon.DirectIssuer.IssueBatch",
	applies:        "coupon.Applier.apply gate.Gate.Apply gate/redisgate/apply.lua",
	cancels:        "coupon.Catalog.Cancel store.Coupons.CouponCancel",
	bypasses:       "coupon.GateMaintainer.fallBack",
	lowers:         "coupon.Catalog.Change",
	lowersNothing:  "coupon.Catalog.Change",
	raisesQuantity: "coupon.Catalog.Change",
}

// TestStepsNameCode requires that every function, method and script that stepCode names
// exists, and that every step has a text.
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
}
