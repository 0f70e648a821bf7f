package coupon

import (
	"context"
	"testing"

	"github.com/largesse/largesse/internal/models/explore"
)

func stream(o options, limit int) explore.Found {
	return explore.Find[state, label](context.Background(), &model{options: o}, limit)
}

func kafka(o options, limit int) explore.Found {
	return explore.Find[kafkaState, kafkaLabel](context.Background(), &kafkaModel{options: o}, limit)
}

func locks(o options, limit int) explore.Found {
	return explore.Find[lockState, lockLabel](context.Background(), &lockModel{options: o}, limit)
}

// statesMax is more than the states of any run in make test.
const statesMax = 2_000_000

// lock is a run of the lock of SYNC mode.
func lock(e events) options {
	return options{total: 1, limit: 1, granted: 1, loads: 3, users: 3, events: e}
}

// requestsOnce allows a repeated request, and in KAFKA mode a load that starts over.
func requestsOnce(o options) options {
	o.events[eventRequest], o.events[eventRestart] = 1, 1
	return o
}

// streamRuns are the runs of make test: together they have every event.
var streamRuns = []options{
	twoUsers(small(events{eventCrash: 1, eventSteal: 1, eventLostRead: 1, eventRequest: 1})),
	twoUsers(small(events{eventRollback: 1, eventRequest: 1})),
	twoUsers(limitTwo(small(events{eventFlush: 1, eventSteal: 1, eventRequest: 1}))),
	{limit: 2, total: 2, granted: 2, block: 2, loads: 2, users: 3, empty: true, events: events{eventLoss: 1, eventRequest: 1}},
	twoUsers(granted(2, 1, total(3, small(events{eventBypass: 1})))),
	granted(1, 1, small(events{eventLower: 1, eventRaise: 1})),
	twoUsers(small(events{eventLeave: 2, eventRequest: 2})),
	twoUsers(small(events{eventLeave: 1, eventReload: 1})),
	twoUsers(imported(held(small(events{eventExpire: 1, eventConfirm: 1, eventCancel: 1, eventRequest: 1})))),
	twoUsers(granted(3, 1, total(3, small(events{eventRemoval: 1, eventReload: 1})))),
	small(events{eventArchive: 1, eventSteal: 1}),
	granted(2, 1, total(3, twoUsers(small(events{eventArchive: 1, eventReopen: 1})))),
	twoUsers(granted(2, 1, small(events{eventArchive: 1, eventLower: 1}))),
	twoUsers(granted(1, 1, small(events{eventArchive: 1, eventReload: 1}))),
}

// kafkaRuns are the runs of make test.
var kafkaRuns = []options{
	requestsOnce(limitTwo(small(events{eventFlush: 1}))),
	requestsOnce(twoUsers(small(events{eventFlush: 2}))),
	requestsOnce(twoUsers(limitTwo(small(events{eventFlush: 2})))),
	requestsOnce(twoUsers(limitTwo(small(events{eventBrokerLoss: 1, eventFlush: 1})))),
	requestsOnce(twoUsers(limitTwo(small(events{eventBrokerLoss: 2})))),
	requestsOnce(twoUsers(small(events{eventLeave: 1, eventFlush: 1}))),
	requestsOnce(twoUsers(limitTwo(small(events{eventLeave: 1, eventBrokerLoss: 1})))),
	requestsOnce(small(events{eventForged: 1})),
	requestsOnce(twoUsers(limitTwo(granted(2, 2, total(3, small(events{eventBypass: 1})))))),
	requestsOnce(twoUsers(granted(2, 2, total(3, small(events{eventBypass: 1, eventBrokerLoss: 1}))))),
	requestsOnce(small(events{eventBrokerLoss: 1, eventFlush: 1})),
	requestsOnce(limitTwo(small(events{eventRollback: 1, eventLeave: 1}))),
	requestsOnce(small(events{eventRollback: 1, eventBrokerLoss: 1})),
	requestsOnce(twoUsers(small(events{eventRollback: 1, eventFlush: 1}))),
	twoUsers(small(events{eventArchive: 1, eventReload: 1, eventReread: 1})),
}

var lockRuns = []options{
	lock(events{eventFlush: 1, eventClock: 2, eventLostReply: 2, eventLeaseExpiry: 2}),
}

// TestProtocolHolds sees every state of small runs with one to three events.
func TestProtocolHolds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("5 s of CPU")
	}
	everyRun(t, "STREAM", stream, streamRuns, statesMax)
	everyRun(t, "KAFKA", kafka, kafkaRuns, statesMax)
	everyRun(t, "SYNC", locks, lockRuns, statesMax)
}

func everyRun(t *testing.T, name string, how func(options, int) explore.Found, all []options, limit int) {
	t.Helper()
	for _, o := range all {
		t.Run(name+": "+o.String(), func(t *testing.T) { how(o, limit).Holds(t) })
	}
}
