package coupon

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/models/explore"
)

const (
	noPlace        = "202 without a place"
	notInLine      = "a promised user is not in line"
	neverServed    = "a promised user is never served"
	leftInLine     = "a user who has left is in line"
	tooManyCoupons = "more coupons than requests of a user"
	belowZero      = "promised places below zero"
	setAside       = "an archived template has places set aside"
)

// ablation is a run without a rule, and what breaks: the breach, and the steps of the
// shortest trace to a state from which it follows.
type ablation struct {
	without rule
	run     options
	breach  string
	steps   int
}

var streamAblations = []ablation{
	{batchNamesGate, small(events{eventRollback: 1}), noPlace, 14},
	{gateCloses, granted(2, 1, total(3, small(events{eventBypass: 1}))), notInLine, 14},
	{gateKeepsNext, small(events{eventLeave: 1, eventRollback: 1, eventRequest: 1}), leftInLine, 13},
	{copyAsksRows, limitTwo(granted(2, 1, total(3, small(events{eventBypass: 1})))), tooManyCoupons, 7},
	{answeredAreLeftOut, limitTwo(granted(2, 1, total(3, small(events{eventBypass: 1, eventRequest: 1})))), tooManyCoupons, 3},
	{leftIsAnAnswer, small(events{eventReload: 1, eventLeave: 1, eventRollback: 1}), tooManyCoupons, 11},
	// missingComeBack would put the lost user back in this run and in the one of
	// applyNamesNumbering.
	{snapshotNamesGeneration, fourLoads(granted(1, 1, total(3, small(events{eventBypass: 2})))).lacking(missingComeBack), notInLine, 6},
	{reloadBeginsNumbering, limitTwo(small(events{eventReload: 1, eventLeave: 1, eventRollback: 1})), tooManyCoupons, 11},
	{rowsBeginNumbering, granted(2, 1, total(3, small(events{eventBypass: 1}))), notInLine, 3},
	{missingComeBack, granted(3, 1, total(3, small(events{eventRemoval: 1, eventReload: 1}))), neverServed, 3},
	{loadDropsLeft, small(events{eventLeave: 1, eventRollback: 1, eventRequest: 1}), leftInLine, 6},
	{scriptsAreShort, granted(2, 2, total(3, small(events{eventBypass: 1}))), "one script touches more than a chunk of the line", 3},
	{placesAreSetAside, small(events{eventBypass: 1, eventRequest: 1}), noPlace, 4},
	{applyNamesNumbering, granted(2, 2, total(3, small(events{eventBypass: 1}))).lacking(missingComeBack), notInLine, 4},
	{applyTakesNewGrants, granted(2, 1, total(3, small(events{eventLower: 2, eventGrant: 3}))), noPlace, 9},
	{shrinkNamesGrant, granted(2, 1, total(3, small(events{eventLower: 2, eventGrant: 3}))), noPlace, 7},
	{shrinkNamesGate, small(events{eventLower: 1, eventReload: 1}), noPlace, 9},
	{grantRepeatsShrink, granted(3, 1, total(3, small(events{eventLower: 1, eventGrant: 3}))), "a place is promised to nobody, and nobody can have it", 1},
	{usedHasLimit, fourLoads(granted(1, 1, small(events{eventFlush: 1, eventRollback: 1, eventBypass: 1}))), belowZero, 15},
	{shrinkOnlyLowers, small(events{eventLower: 1, eventLeave: 1}), "live coupons and promised places exceed the quantity", 16},
	{leftIsCountedOnce, small(events{eventLeave: 1}), belowZero, 4},
	{leaveNamesGate, small(events{eventLeave: 1, eventReload: 1}), tooManyCoupons, 7},
	{leaveNamesTicket, small(events{eventLeave: 1}), tooManyCoupons, 7},
	{leftNamesEntry, small(events{eventLeave: 1, eventRollback: 1, eventRequest: 2}), "a promised ticket is settled as LEFT", 14},
	{sweepCountsItsOwn, held(small(events{eventExpire: 1})), "more live coupons than the quantity", 8},
	{unseenCodesGoBack, twoUsers(imported(held(small(events{eventExpire: 1, eventRequest: 1})))), "a coupon has no code", 14},
	{seenCodesStay, twoUsers(imported(small(events{eventCancel: 1}))), "a code can be given twice", 6},
	{archivedTakesNothing, twoUsers(granted(1, 1, small(events{eventArchive: 1}))), setAside, 15},
	{archiveNamesVersion, granted(2, 1, total(3, twoUsers(small(events{eventArchive: 1, eventReopen: 1})))), setAside, 10},
	{batchIsClaimedAgain, small(events{eventSteal: 1}), neverServed, 6},
	{gateIsLevel, small(events{eventFlush: 1}), "the gate has an old generation at rest", 4},
	{scriptsCheckRun, small(events{eventRollback: 1}), notInLine, 8},
	{loadHasMarker, fourLoads(small(events{eventFlush: 2})), notInLine, 8},
	{swapChecksRun, small(events{eventRollback: 2}), noPlace, 24},
	{onlySwapCreates, small(events{eventFlush: 1}), notInLine, 8},
	{appliesHaveNoGaps, small(events{eventCancel: 1, eventRequest: 1}), "a holding differs from the rows at rest", 8},
}

var kafkaAblations = []ablation{
	{gateCloses, twoUsers(small(events{eventReload: 1, eventFlush: 1})), neverServed, 8},
	{ackNeedsOpenGate, twoUsers(small(events{eventReload: 1, eventFlush: 1})), neverServed, 8},
	{floorVoidsRecords, twoUsers(limitTwo(small(events{eventReload: 1}))), tooManyCoupons, 7},
	{floorIsRecordedLast, twoUsers(small(events{eventFlush: 1})), neverServed, 8},
	{copyAsksRows, twoUsers(limitTwo(small(events{eventReload: 1}))), tooManyCoupons, 3},
	{answeredAreLeftOut, twoUsers(limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1, eventRequest: 1}))))), tooManyCoupons, 3},
	{leftIsAnAnswer, twoUsers(limitTwo(small(events{eventReload: 1, eventLeave: 1, eventRollback: 1}))), tooManyCoupons, 11},
	{leaveNamesGate, twoUsers(small(events{eventLeave: 1, eventReload: 1})), tooManyCoupons, 8},
	{leaveNamesTicket, twoUsers(small(events{eventLeave: 1})), tooManyCoupons, 6},
	{strandedAreReloaded, twoUsers(small(events{eventBrokerLoss: 1})), "the line is not empty at rest", 5},
	{ticketsHaveBound, twoUsers(small(events{eventForged: 1})), "a ticket that was never given is settled", 1},
	{archivedTakesNothing, twoUsers(small(events{eventArchive: 1, eventReread: 1})), "more coupons than the limit of a user", 12},
	{boundIsQuantity, small(events{eventFlush: 1, eventRollback: 1}), "a ticket that was given is refused as never given", 12},
}

var lockAblations = []ablation{
	{lockHasFloor, lock(events{eventFlush: 1, eventClock: 1}), "a client has to wait until the clock has caught up", 3},
	{lockIsRepeatable, lock(events{eventLostReply: 1}), "a client waits until a lease expires", 2},
}

// notNeeded are rules without which no run finds a breach. They cost little. See
// TestNightlyRulesThatNothingNeeds.
var notNeeded = []struct {
	without rule
	run     options
}{
	{readNeedsGate, small(events{eventRollback: 1})},
	{idsNameGeneration, limitTwo(small(events{eventRollback: 1, eventRequest: 1}))},
	{swapNamesGate, small(events{eventReload: 1, eventFlush: 1})},
	{archiveRaisesGeneration, twoUsers(granted(1, 1, small(events{eventArchive: 1, eventSteal: 1})))},
}

func breaks(t *testing.T, name string, how func(options, int) explore.Found, all []ablation) {
	t.Helper()
	for _, a := range all {
		o := a.run.lacking(a.without)
		t.Run(name+": "+o.String(), func(t *testing.T) { how(o, statesMax).Breaks(t, a.breach, a.steps) })
	}
}

// TestEachRuleIsNeeded requires a breach when any one rule is left out, or a place in
// the list of those that nothing needs. go test -v shows the traces.
func TestEachRuleIsNeeded(t *testing.T) {
	t.Parallel()
	breaks(t, "STREAM", stream, streamAblations)
	breaks(t, "KAFKA", kafka, kafkaAblations)
	breaks(t, "SYNC", locks, lockAblations)
	var named ruleSet
	for _, a := range slices.Concat(streamAblations, kafkaAblations, lockAblations) {
		named[a.without] = true
	}
	for _, n := range notNeeded {
		named[n.without] = true
	}
	if n := slices.Index(named[:], false); n >= 0 {
		t.Errorf("no run is without %s", ruleNames[n])
	}
}

// TestPageHasTheRules requires that docs/dev/models.md has a row for each ablation, with
// its events and its steps.
func TestPageHasTheRules(t *testing.T) {
	t.Parallel()
	for mode, all := range map[string][]ablation{"STREAM": streamAblations, "KAFKA": kafkaAblations, "SYNC": lockAblations} {
		for _, a := range all {
			end := strings.Replace(fmt.Sprintf("| %s | %d |", a.run.events, a.steps), "no event", "none", 1)
			if !explore.OnPage(t, ruleNames[a.without]+` \| `+mode, end) {
				t.Errorf("docs/dev/models.md has no row of %s in %s that ends with %q", ruleNames[a.without], mode, end)
			}
		}
	}
	for _, n := range notNeeded {
		if !strings.Contains(explore.Page(t), "`"+ruleNames[n.without]+"`") {
			t.Errorf("docs/dev/models.md does not say that no run needs %s", ruleNames[n.without])
		}
	}
}
