//go:build nightly

package payout

import (
	"flag"
	"testing"
)

// full makes TestNightlyProtocolAtLength run what needs minutes and gigabytes.
var full = flag.Bool("full", false, "run the models with tens of millions of states too")

// runsAtLength are the runs with up to 2 million states, and with -full the others.
var runsAtLength = []struct {
	full bool
	run  options
}{
	{false, small(faults{faultFlush: 1, faultRefusal: 1})},
	{false, small(faults{faultStall: 1})},
	{false, small(faults{faultCancel: 1})},
	{false, small(faults{faultOrphan: 1, faultRefusal: 1})},
	{false, small(faults{faultGroupLost: 1})},
	{false, small(faults{faultForgottenDelivery: 1})},
	{false, tiny(faults{faultLostReply: 1, faultNoResponse: 1})},
	{false, small(faults{faultServerError: 1})},
	{false, tiny(faults{faultNoResponse: 1, faultWindow: 1})},
	{false, small(faults{faultRefusal: 1, faultRetry: 1})},
	{false, tiny(faults{faultPause: 1, faultNoLookup: 1})},
	{false, pooled(tiny(faults{faultCrash: 1}))},
	{false, repeated(small(faults{}))},
	{false, small(faults{faultCrash: 2})},
	{false, small(faults{faultCrash: 1, faultRefusal: 1})},
	{false, tiny(faults{faultCrash: 1, faultFlush: 1, faultRefusal: 1})},
	{false, tiny(faults{faultCrash: 1, faultOrphan: 1, faultRefusal: 1})},
	{false, tiny(faults{faultCrash: 1, faultGroupLost: 1, faultRefusal: 1})},
	{false, tiny(faults{faultCrash: 1, faultForgottenDelivery: 1, faultRefusal: 1})},
	{false, tiny(faults{faultCrash: 1, faultLostReply: 1, faultRefusal: 1})},
	{false, drafted(tiny(faults{faultCrash: 1, faultCancel: 1}))},
	{false, inSteps(tiny(faults{faultCrash: 1, faultForgottenAck: 1}))},
	{false, direct(small(faults{faultCrash: 1}))},
	{false, archived(tiny(faults{faultCrash: 1, faultReread: 1}))},
	{false, archived(tiny(faults{faultRefusal: 1, faultRetry: 1, faultReread: 1}))},
	{false, archived(tiny(faults{faultStall: 1, faultReread: 1}))},
	{false, archived(tiny(faults{faultCancel: 1, faultReread: 1}))},

	{true, small(faults{faultCrash: 1, faultNoResponse: 1, faultRefusal: 1})},
	{true, small(faults{faultCrash: 1, faultForgottenDelivery: 1, faultRefusal: 1})},
	{true, small(faults{faultCrash: 1, faultForgottenDelivery: 1, faultCancel: 1})},
	{true, small(faults{faultCrash: 1, faultNoResponse: 1, faultWindow: 1, faultNoLookup: 1})},
	{true, small(faults{faultCrash: 1, faultServerError: 1, faultRefusal: 1})},
	{true, small(faults{faultCrash: 1, faultFlush: 1, faultRefusal: 1})},
	{true, small(faults{faultCrash: 1, faultFlush: 1, faultCancel: 1})},
	{true, small(faults{faultCrash: 1, faultStall: 1, faultFlush: 1})},
	{true, small(faults{faultCrash: 1, faultStall: 1, faultCancel: 1})},
	{true, small(faults{faultCrash: 1, faultCancel: 1, faultPause: 1})},
	{true, small(faults{faultCrash: 1, faultGroupLost: 1, faultRefusal: 1})},
	{true, small(faults{faultCrash: 1, faultLostReply: 1, faultCancel: 1})},
	{true, small(faults{faultNoResponse: 1, faultServerError: 1, faultRefusal: 1, faultRetry: 1})},
	{true, small(faults{faultNoResponse: 1, faultServerError: 1, faultCancel: 1})},
	{true, small(faults{faultOrphan: 1, faultStall: 1, faultRefusal: 1})},
	{true, small(faults{faultOrphan: 1, faultCrash: 1, faultCancel: 1})},
	{true, small(faults{faultOrphan: 2, faultCrash: 1})},
	{true, repeated(small(faults{faultCrash: 2, faultNoResponse: 1}))},
	{true, repeated(small(faults{faultCrash: 1, faultRefusal: 1}))},
	{true, twoTargets(tiny(faults{faultOrphan: 1}))},
	{true, pooled(small(faults{faultCrash: 1, faultFlush: 1}))},
	{true, inSteps(small(faults{faultCrash: 1, faultForgottenAck: 1}))},
	{true, direct(small(faults{faultCrash: 1, faultNoResponse: 1, faultRefusal: 1}))},
	{true, direct(small(faults{faultStall: 1, faultRefusal: 1}))},
	{true, direct(small(faults{faultCrash: 1, faultCancel: 1}))},
	{true, direct(small(faults{faultStall: 1, faultCancel: 1}))},
	{true, direct(small(faults{faultServerError: 1, faultRefusal: 1, faultCancel: 1}))},
}

// TestNightlyProtocolAtLength sees every state of larger runs, one after the other, and takes
// long random walks.
func TestNightlyProtocolAtLength(t *testing.T) {
	for _, r := range runsAtLength {
		if r.full && !*full {
			continue
		}
		t.Run(r.run.String(), func(t *testing.T) { run(r.run, 60_000_000).Holds(t) })
	}
	walks := 20_000
	if *full {
		walks = 500_000
	}
	t.Run("walks", func(t *testing.T) { walksHold(t, walks, 2) })
}

// TestNightlyARuleOfPoolsIsNeeded is TestEachRuleIsNeeded for the runs with pools, which
// have to see many states.
func TestNightlyARuleOfPoolsIsNeeded(t *testing.T) {
	for _, a := range ablations {
		if o := a.run.lacking(a.without); a.run.pools {
			t.Run(o.String(), func(t *testing.T) { run(o, statesMax).Breaks(t, a.breach, a.steps) })
		}
	}
}
