//go:build nightly

package coupon

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/models/explore"
)

// full makes TestNightlyProtocolAtLength run what needs minutes and gigabytes.
var full = flag.Bool("full", false, "run the models with tens of millions of states too")

// statesAtLength is the number of states at which a run ends. So many need 16 GB.
var statesAtLength = flag.Int("states", 60_000_000, "the states at which a run ends")

// each is the time after which a run of TestNightlyOpenRuns ends.
var each = flag.Duration("each", 10*time.Second, "the time after which a run of TestNightlyOpenRuns ends")

// runsAtLength are the runs of the STREAM model with up to 4 million states, and with
// -full the others.
var runsAtLength = []struct {
	full bool
	run  options
}{
	{false, small(events{eventCrash: 1, eventSteal: 2, eventLostRead: 1, eventCancel: 1, eventRequest: 2})},
	{false, limitTwo(small(events{eventFlush: 1, eventSteal: 1, eventRequest: 1}))},
	{false, small(events{eventRollback: 1, eventCrash: 1, eventRequest: 1})},
	{false, small(events{eventLeave: 1, eventReload: 1})},
	{false, granted(3, 1, total(3, small(events{eventRemoval: 1, eventReload: 1})))},
	{false, granted(3, 1, total(3, small(events{eventRemoval: 1, eventBypass: 1})))},
	{false, granted(3, 1, total(3, twoUsers(small(events{eventRemoval: 1, eventReload: 1, eventLeave: 1}))))},
	{false, twoUsers(granted(1, 1, small(events{eventArchive: 1, eventFlush: 1})))},
	{false, limitTwo(small(events{eventCrash: 1, eventSteal: 2, eventLostRead: 1, eventCancel: 1, eventRequest: 2}))},
	{false, small(events{eventFlush: 1, eventCrash: 1, eventCancel: 1, eventRequest: 1})},
	{false, small(events{eventRollback: 1, eventSteal: 1})},
	{false, granted(2, 1, total(3, small(events{eventBypass: 1, eventCrash: 1, eventRequest: 1})))},
	{false, granted(1, 1, small(events{eventBypass: 1, eventRollback: 1}))},
	{false, anyTime(granted(1, 1, small(events{eventLower: 2, eventRaise: 1})))},
	{false, granted(1, 1, small(events{eventLower: 1, eventRollback: 1}))},
	{false, small(events{eventLeave: 2, eventRequest: 2, eventCrash: 1})},
	{false, small(events{eventLeave: 1, eventFlush: 1, eventRequest: 1})},
	{false, granted(3, 2, total(3, small(events{eventLeave: 1, eventSteal: 1, eventLostRead: 1, eventRequest: 1})))},
	{false, granted(3, 2, total(3, small(events{eventLeave: 1, eventReload: 1})))},
	{false, granted(2, 1, total(3, small(events{eventLeave: 1, eventLower: 1, eventRequest: 1})))},
	{false, held(small(events{eventExpire: 1, eventConfirm: 1, eventCancel: 1, eventRequest: 1}))},

	{true, limitTwo(small(events{eventRollback: 1, eventCancel: 1, eventRequest: 1}))},
	{true, fourLoads(small(events{eventLoss: 2}))},
	{true, limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1, eventFlush: 1, eventRequest: 1}))))},
	{true, fourLoads(granted(1, 1, total(3, small(events{eventBypass: 2}))))},
	{true, granted(2, 1, total(3, small(events{eventLower: 2, eventGrant: 3, eventCancel: 1, eventRequest: 1})))},
	{true, granted(2, 1, total(3, small(events{eventLower: 1, eventBypass: 1})))},
	{true, small(events{eventLeave: 1, eventRollback: 1, eventRequest: 1})},
	{true, small(events{eventLeave: 1, eventFlush: 1, eventBypass: 1, eventRequest: 1})},
	{true, held(small(events{eventExpire: 1, eventConfirm: 1, eventFlush: 1, eventRequest: 1}))},
	{true, limitTwo(granted(2, 1, total(3, small(events{eventBypass: 1, eventSteal: 1, eventRequest: 1}))))},
	{true, held(granted(1, 1, small(events{eventExpire: 1, eventBypass: 1, eventRequest: 1})))},
	{true, held(small(events{eventExpire: 1, eventRollback: 1}))},
	{true, granted(2, 1, total(3, small(events{eventLower: 1, eventGrant: 1, eventFlush: 1, eventSteal: 1})))},
	{true, small(events{eventLeave: 1, eventLower: 1, eventBypass: 1})},
	{true, held(small(events{eventExpire: 2, eventConfirm: 1, eventCancel: 1, eventRequest: 1}))},
	{true, small(events{eventLeave: 1, eventReload: 1, eventRollback: 1})},
	{true, granted(2, 2, total(3, small(events{eventLeave: 1, eventBypass: 1, eventRequest: 1})))},
	{true, limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1, eventRollback: 1}))))},
}

// openRuns are runs of the STREAM model of which nobody has seen every state.
var openRuns = []options{
	limitTwo(granted(3, 2, total(3, small(events{eventLeave: 1, eventRollback: 1, eventRequest: 1})))),
	held(granted(2, 1, total(3, small(events{eventExpire: 1, eventLeave: 1, eventLower: 1, eventBypass: 1})))),
}

// kafkaRunsAtLength are the runs of the KAFKA model that make test leaves out.
var kafkaRunsAtLength = []options{
	requestsOnce(twoUsers(limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1, eventFlush: 1})))))),
	requestsOnce(twoUsers(limitTwo(small(events{eventReload: 1, eventFlush: 1})))),
	requestsOnce(twoUsers(limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1, eventBrokerLoss: 1, eventReload: 1})))))),
	requestsOnce(limitTwo(small(events{eventBrokerLoss: 1, eventFlush: 1}))),
	requestsOnce(small(events{eventReload: 1, eventFlush: 1})),
	requestsOnce(granted(2, 2, total(3, small(events{eventBypass: 1, eventFlush: 1})))),
	requestsOnce(small(events{eventLeave: 1, eventFlush: 1, eventBrokerLoss: 1})),
	requestsOnce(small(events{eventFlush: 2})),
	requestsOnce(small(events{eventRollback: 2})),
	requestsOnce(small(events{eventRollback: 1, eventFlush: 1})),
	requestsOnce(twoUsers(limitTwo(small(events{eventRollback: 1, eventLeave: 1, eventReload: 1})))),
	requestsOnce(twoUsers(limitTwo(granted(2, 2, total(3, small(events{eventRollback: 1, eventBypass: 1})))))),
}

func anyTime(o options) options { o.grantsAnyTime = true; return o }

// TestNightlyProtocolAtLength sees every state of larger runs, one after the other.
func TestNightlyProtocolAtLength(t *testing.T) {
	for _, r := range runsAtLength {
		if r.full && !*full {
			continue
		}
		t.Run("STREAM: "+r.run.String(), func(t *testing.T) { stream(r.run, *statesAtLength).Holds(t) })
	}
	everyRun(t, "KAFKA", kafka, kafkaRunsAtLength, *statesAtLength)
}

// TestNightlyRulesThatNothingNeeds sees every state without each rule that no run needs.
func TestNightlyRulesThatNothingNeeds(t *testing.T) {
	for _, n := range notNeeded {
		o := n.run.lacking(n.without)
		t.Run("STREAM: "+o.String(), func(t *testing.T) { stream(o, statesMax).Holds(t) })
	}
}

// TestNightlyOpenRuns requires that no state that these runs see breaks an invariant. Each ends
// when it has seen all, -states of them, or after the time -each.
func TestNightlyOpenRuns(t *testing.T) {
	for _, o := range openRuns {
		t.Run("STREAM: "+o.String(), func(t *testing.T) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), *each)
			defer cancel()
			found := explore.Find[state, label](ctx, &model{options: o}, *statesAtLength)
			t.Logf("%s, %.0f s", found.Text, time.Since(began).Seconds())
			if found.Breach != "" {
				t.Error(found.Breach)
			}
		})
	}
}
