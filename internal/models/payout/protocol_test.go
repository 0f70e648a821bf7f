package payout

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// tiny is smaller than small: a stream with one place, no retry.
func tiny(f faults) options { return options{rows: 1, maxLen: 1, faults: f} }

func repeated(o options) options   { o.repeatedRecord = true; return o }
func direct(o options) options     { o.direct = true; return o }
func drafted(o options) options    { o.draft = true; return o }
func pooled(o options) options     { o.pools = true; return o }
func inSteps(o options) options    { o.destroyInSteps = true; return o }
func atSocket(o options) options   { o.stallAtSocket = true; return o }
func archived(o options) options   { o.archives = true; return o }
func twoTargets(o options) options { o.rows = 2; return o }

// statesMax is more than the states of any run in make test.
const statesMax = 1_500_000

// TestProtocolHolds sees every state of the smallest runs with each fault, and of each kind
// of promotion.
func TestProtocolHolds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("5 s of CPU")
	}
	runs := []options{
		small(faults{}),
		pooled(tiny(faults{})),
		inSteps(tiny(faults{faultForgottenAck: 1})), // only steps have this fault
		direct(tiny(faults{faultRefusal: 1, faultCancel: 1})),
		drafted(tiny(faults{})),
		repeated(tiny(faults{})),
		archived(tiny(faults{faultWindow: 1, faultReread: 1})),
	}
	for f := range faultCount {
		if f != faultForgottenAck && f != faultRepeatedAdd { // see TestAddsAreNeverRepeated
			one := faults{}
			one[f] = 1
			runs = append(runs, tiny(one))
		}
	}
	for _, o := range runs {
		t.Run(o.String(), func(t *testing.T) { run(o, statesMax).Holds(t) })
	}
}

// everything is every fault at once.
func everything() faults {
	all := faults{
		faultCrash: 3, faultStall: 2, faultFlush: 2, faultNoResponse: 2, faultServerError: 2, faultOrphan: 2,
	}
	for f := range all {
		if all[f] == 0 && fault(f) != faultRepeatedAdd {
			all[f] = 1
		}
	}
	return all
}

// walked are the runs that random walks go through: two targets, every fault.
func walked() []options {
	all := options{rows: 2, maxLen: 3, maxRetries: 1, repeatedRecord: true, destroyInSteps: true, faults: everything()}
	withPools := pooled(all)
	withPools.draft = true
	alone := direct(all)
	alone.destroyInSteps = false
	for _, f := range []fault{faultFlush, faultForgottenDelivery, faultGroupLost, faultOrphan, faultForgottenAck} {
		alone.faults[f] = 0 // these need Redis
	}
	armed := atSocket(all)
	armed.faults[faultStall] = 0
	return []options{archived(all), withPools, alone, armed}
}

// TestWalks goes through large runs at random: with every fault first, then to the
// end. Together the walks take every step that the code or its surroundings can take.
func TestWalks(t *testing.T) {
	t.Parallel()
	walks := 1000
	if testing.Short() {
		walks = 100
	}
	walksHold(t, walks, 1)
}

func walksHold(t *testing.T, walks int, seed uint64) {
	t.Helper()
	var taken [stepCount]bool
	for k, o := range walked() {
		m, total, longest := newModel(o), 0, 0
		random := rand.New(rand.NewPCG(seed, uint64(k)))
		for n := range walks {
			steps, breach, trace := walk(m, random, &taken)
			total, longest = total+steps, max(longest, steps)
			if breach != "" {
				t.Fatalf("%s: walk %d: %s\n     %s", o, n, breach, strings.Join(trace, "\n     "))
			}
		}
		t.Logf("%s: %d walks, %d steps, the longest has %d", o, walks, total, longest)
	}
	for st := range poolCreatesStream {
		if !taken[st] && st != destroysAtOnce && walks >= 1000 {
			t.Errorf("no walk took the step %q", steps[st].text)
		}
	}
}
