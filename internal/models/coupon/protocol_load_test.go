//go:build load

package coupon

import (
	"flag"
	"testing"
)

// full makes TestProtocolAtLength run what needs minutes and gigabytes.
var full = flag.Bool("full", false, "run the models with tens of millions of states too")

// statesAtLength is the number of states at which a run ends. So many need 8 GB.
var statesAtLength = flag.Int("states", 40_000_000, "the states at which a run ends")

// runsAtLength are the runs of the STREAM model with up to 4 million states, and with
// -full the others. Those that are open do not see every state.
var runsAtLength = []struct {
	full, open bool
	run        options
}{
	{false, false, limitTwo(small(events{eventCrash: 1, eventSteal: 2, eventLostRead: 1, eventCancel: 1, eventRequest: 2}))},
	{false, false, small(events{eventFlush: 1, eventCrash: 1, eventCancel: 1, eventRequest: 1})},
	{false, false, small(events{eventRollback: 1, eventSteal: 1})},
	{false, false, granted(2, 1, total(3, small(events{eventBypass: 1, eventCrash: 1, eventRequest: 1})))},
	{false, false, granted(1, 1, small(events{eventBypass: 1, eventRollback: 1}))},
	{false, false, anyTime(granted(1, 1, small(events{eventLower: 2, eventRaise: 1})))},
	{false, false, granted(1, 1, small(events{eventLower: 1, eventRollback: 1}))},
	{false, false, small(events{eventLeave: 2, eventRequest: 2, eventCrash: 1})},
	{false, false, small(events{eventLeave: 1, eventFlush: 1, eventRequest: 1})},
	{false, false, granted(3, 2, total(3, small(events{eventLeave: 1, eventSteal: 1, eventLostRead: 1, eventRequest: 1})))},
	{false, false, granted(3, 2, total(3, small(events{eventLeave: 1, eventReload: 1})))},
	{false, false, granted(2, 1, total(3, small(events{eventLeave: 1, eventLower: 1, eventRequest: 1})))},
	{false, false, held(small(events{eventExpire: 1, eventConfirm: 1, eventCancel: 1, eventRequest: 1}))},

	{true, false, limitTwo(small(events{eventRollback: 1, eventCancel: 1, eventRequest: 1}))},
	{true, false, fourLoads(small(events{eventLoss: 2}))},
	{true, false, limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1, eventFlush: 1, eventRequest: 1}))))},
	{true, false, fourLoads(granted(1, 1, total(3, small(events{eventBypass: 2}))))},
	{true, false, granted(2, 1, total(3, small(events{eventLower: 2, eventGrant: 3, eventCancel: 1, eventRequest: 1})))},
	{true, false, granted(2, 1, total(3, small(events{eventLower: 1, eventBypass: 1})))},
	{true, false, small(events{eventLeave: 1, eventRollback: 1, eventRequest: 1})},
	{true, false, small(events{eventLeave: 1, eventFlush: 1, eventBypass: 1, eventRequest: 1})},
	{true, false, held(small(events{eventExpire: 1, eventConfirm: 1, eventFlush: 1, eventRequest: 1}))},
	{true, false, limitTwo(granted(2, 1, total(3, small(events{eventBypass: 1, eventSteal: 1, eventRequest: 1}))))},
	{true, false, held(granted(1, 1, small(events{eventExpire: 1, eventBypass: 1, eventRequest: 1})))},
	{true, false, held(small(events{eventExpire: 1, eventRollback: 1}))},
	{true, false, granted(2, 1, total(3, small(events{eventLower: 1, eventGrant: 1, eventFlush: 1, eventSteal: 1})))},

	{true, true, limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1, eventRollback: 1}))))},
	{true, true, granted(2, 2, total(3, small(events{eventLeave: 1, eventBypass: 1, eventRequest: 1})))},
	{true, true, small(events{eventLeave: 1, eventLower: 1, eventBypass: 1})},
	{true, true, limitTwo(granted(3, 2, total(3, small(events{eventLeave: 1, eventRollback: 1, eventRequest: 1}))))},
	{true, true, small(events{eventLeave: 1, eventReload: 1, eventRollback: 1})},
	{true, true, held(small(events{eventExpire: 2, eventConfirm: 1, eventCancel: 1, eventRequest: 1}))},
	{true, true, held(granted(2, 1, total(3, small(events{eventExpire: 1, eventLeave: 1, eventLower: 1, eventBypass: 1}))))},
}

// kafkaRunsAtLength are the runs of the KAFKA model that make test leaves out.
var kafkaRunsAtLength = []options{
	requestsOnce(twoUsers(limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1, eventBrokerLoss: 1, eventReload: 1})))))),
	requestsOnce(limitTwo(small(events{eventBrokerLoss: 1, eventFlush: 1}))),
	requestsOnce(small(events{eventReload: 1, eventFlush: 1})),
	requestsOnce(granted(2, 2, total(3, small(events{eventBypass: 1, eventFlush: 1})))),
	requestsOnce(small(events{eventLeave: 1, eventFlush: 1, eventBrokerLoss: 1})),
	requestsOnce(small(events{eventFlush: 2})),
}

func anyTime(o options) options { o.grantsAnyTime = true; return o }

// TestProtocolAtLength sees every state of larger runs, one after the other.
func TestProtocolAtLength(t *testing.T) {
	for _, r := range runsAtLength {
		if r.full && !*full {
			continue
		}
		t.Run("STREAM: "+r.run.String(), func(t *testing.T) {
			if r.open {
				staysSafe(t, r.run)
				return
			}
			holds(t, r.run, stream, *statesAtLength)
		})
	}
	everyRun(t, "KAFKA", kafka, kafkaRunsAtLength, *statesAtLength)
}

// staysSafe requires that no state that a run sees breaks an invariant.
func staysSafe(t *testing.T, o options) {
	t.Helper()
	res := stream(o, *statesAtLength)
	t.Logf("%d states, %d steps, depth %d, complete %v", res.states, res.transitions, res.depth, res.complete)
	if res.breach != "" {
		t.Errorf("%s: %s%s", o, res.breach, res.trace)
	}
}
