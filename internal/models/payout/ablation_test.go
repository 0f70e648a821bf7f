package payout

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/models/explore"
)

const (
	paidTwice     = "the provider pays one payout twice"
	failedPaid    = "FAILED although charged"
	cancelledPaid = "CANCELLED although charged"
	noWay         = "there is no way to the end"
	sweptInStream = "the sweeper takes a row whose entry is in the stream"
	countsDiffer  = "the counts differ from the rows"
	openArchived  = "an archived promotion has open payouts"
)

// ablations say what breaks without a rule, and the length of the shortest trace.
var ablations = []struct {
	without rule
	run     options
	breach  string
	steps   int
}{
	{claimedIsReturned, small(faults{faultCrash: 1, faultRefusal: 1}), failedPaid, 13},
	{refusalNeedsOneCaller, small(faults{faultCrash: 1, faultRefusal: 1}), failedPaid, 17},
	{returnFlags, small(faults{faultServerError: 1, faultCancel: 1}), cancelledPaid, 8},
	{returnFlags, small(faults{faultCrash: 1, faultRefusal: 1}), failedPaid, 17},
	{sweepFlags, small(faults{faultCrash: 1, faultFlush: 1, faultRefusal: 1}), failedPaid, 18},
	{cancelLooksUpFlagged, small(faults{faultCrash: 1, faultCancel: 1}), cancelledPaid, 12},
	{cancelLooksUpSent, small(faults{faultServerError: 1, faultCancel: 1}), cancelledPaid, 9},
	{notFoundWaits, small(faults{faultNoResponse: 1}), failedPaid, 10},
	{settleFromLeaseEnd, small(faults{faultCrash: 1, faultFlush: 1, faultCancel: 1}), cancelledPaid, 15},
	{leaseOutlastsCall, small(faults{faultCrash: 1}), failedPaid, 13},
	{addHasDeadline, small(faults{}), sweptInStream, 4},
	{sweepReadsStream, small(faults{}), sweptInStream, 4},
	{destroyWaitsHorizon, tiny(faults{}), noWay, 15},
	{finalIsCleared, tiny(faults{faultCrash: 1}), noWay, 8},
	{entryNamesRun, small(faults{faultCrash: 1, faultForgottenDelivery: 1, faultRefusal: 1}), failedPaid, 13},
	{entryNamesRun, small(faults{faultCrash: 1, faultForgottenDelivery: 1, faultCancel: 1}), cancelledPaid, 11},
	{groupMarksEntries, small(faults{faultCrash: 1, faultGroupLost: 1, faultRefusal: 1}), failedPaid, 13},
	{orphansAreAdopted, tiny(faults{faultOrphan: 1}), noWay, 6},
	{orphansAreFlagged, small(faults{faultCrash: 1, faultOrphan: 1, faultRefusal: 1}), failedPaid, 16},
	{onlyAddCreates, pooled(tiny(faults{faultCrash: 1})), noWay, 13},
	{destroyIsConfirmed, inSteps(tiny(faults{faultForgottenAck: 1})), noWay, 13},
	{countsFromFoundState, small(faults{}), countsDiffer, 10},
	{windowIsChecked, small(faults{faultNoResponse: 1, faultWindow: 1}), paidTwice, 15},
	{everyChargeIsChecked, small(faults{faultServerError: 1, faultWindow: 1}), paidTwice, 9},
	{paidIsAbsorbing, atSocket(small(faults{faultStall: 1})), failedPaid, 16},
	{archivedTakesNothing, archived(tiny(faults{faultWindow: 1, faultReread: 1})), paidTwice, 20},
	{archiveLocksCounts, archived(tiny(faults{faultRefusal: 1, faultRetry: 1})), openArchived, 24},
}

// TestEachRuleIsNeeded requires a breach when any one rule is left out: a rule that
// nothing needs, or a model that misses its breach, fails. go test -v shows the traces.
func TestEachRuleIsNeeded(t *testing.T) {
	t.Parallel()
	var needed [ruleCount]bool
	for _, a := range ablations {
		needed[a.without] = true
		o := a.run.lacking(a.without)
		if a.run.pools {
			continue // see TestNightlyARuleOfPoolsIsNeeded
		}
		t.Run(o.String(), func(t *testing.T) {
			if testing.Short() && a.breach == noWay {
				t.Skip("it has to see every state")
			}
			run(o, statesMax).Breaks(t, a.breach, a.steps)
		})
	}
	if n := slices.Index(needed[:], false); n >= 0 {
		t.Errorf("no run is without %s", ruleNames[n])
	}
}

// TestPageHasTheRules requires that docs/dev/models.md has a row for each rule, with the
// faults and the steps of one of its runs.
func TestPageHasTheRules(t *testing.T) {
	t.Parallel()
	for r, name := range ruleNames {
		var wanted []string
		found := false
		for _, a := range ablations {
			if int(a.without) == r {
				end := strings.Replace(fmt.Sprintf("| %s | %d |", a.run.faults, a.steps), "no fault", "none", 1)
				wanted = append(wanted, end)
				found = found || explore.OnPage(t, name, end)
			}
		}
		if !found {
			t.Errorf("docs/dev/models.md has no row of %s that ends with one of %q", name, wanted)
		}
	}
}

// TestAddsAreNeverRepeated requires a breach when the reply of an add is lost and the
// add is repeated: one dispatch then has two first deliveries.
func TestAddsAreNeverRepeated(t *testing.T) {
	t.Parallel()
	run(small(faults{faultCrash: 1, faultRepeatedAdd: 1, faultCancel: 1}), statesMax).Breaks(t, cancelledPaid, 11)
}

// TestStallAtTheSocket shows what no rule prevents: a process stalls between its last
// check and the first byte of a charge, sends it after all, and crashes. The settler's
// second lookup finds most of these charges, and the balance sheet the others.
func TestStallAtTheSocket(t *testing.T) {
	t.Parallel()
	run(atSocket(small(faults{faultStall: 1, faultCrash: 1})), statesMax).Breaks(t, failedPaid, 16)
}
