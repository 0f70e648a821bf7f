package payout

import (
	"math/rand/v2"
	"slices"

	"github.com/largesse/largesse/internal/models/explore"
)

const (
	// wildSteps is the length of the first part of a walk, in which a step in faultEvery
	// is a fault and a step in rareEvery a rare one, if any is possible.
	wildSteps  = 150
	faultEvery = 8
	rareEvery  = 4
	// walkMax is far more steps than a walk needs to its end.
	walkMax = 20_000
)

// rare are the steps that would end most walks before the first charge if they were as
// likely as others.
var rare = func() (set [stepCount]bool) {
	for _, st := range []step{
		leaseExpires, horizonPasses, halfHorizonPasses, settleAfterPasses, returnsOwn, waitsLong, throttles, poisons,
		operatorDeletes, strayIsLost, destroyBegins, lastConsumerDestroys,
	} {
		set[st] = true
	}
	return set
}()

// walk takes random steps: first with some of the faults, then without, until
// everything is over. It adds the kinds of steps that it took to taken.
func walk(m *model, random *rand.Rand, taken *[stepCount]bool) (steps int, breach string, trace []string) {
	s := m.First()
	for f := range s.left {
		s.left[f] = uint8(random.IntN(int(s.left[f]) + 1)) //nolint:gosec // not more than before
	}
	var path []label
	for ; steps < walkMax && breach == ""; steps++ {
		calm := steps > wildSteps
		if calm && m.End(&s) {
			return steps, "", nil
		}
		var possible []transition
		if possible, breach = m.Next(&s); breach != "" {
			break
		}
		next, ok := choose(possible, random, calm)
		if !ok {
			if m.End(&s) {
				return steps, "", nil
			}
			continue // the faults that are possible come later
		}
		taken[next.Label.step] = true
		path = append(path, next.Label)
		s = next.Next
		breach = m.Check(&s)
	}
	if breach == "" {
		breach = "there is no end in sight"
	}
	return steps, breach, m.Trace(explore.Result[state, label]{Path: path, Last: s})
}

// choose returns a random step, if any is possible. A calm one is no fault.
func choose(all []transition, random *rand.Rand, calm bool) (next transition, ok bool) {
	fault := !calm && random.IntN(faultEvery) == 0
	common := !calm && random.IntN(rareEvery) > 0
	var fitting []transition
	for _, t := range all {
		if t.Fault == fault && (!common || !rare[t.Label.step]) {
			fitting = append(fitting, t)
		}
	}
	if len(fitting) == 0 {
		fitting = slices.DeleteFunc(all, func(t transition) bool { return t.Fault })
	}
	if len(fitting) == 0 {
		return transition{}, false
	}
	return fitting[random.IntN(len(fitting))], true
}
