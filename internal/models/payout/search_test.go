package payout

import (
	"context"
	"fmt"

	"github.com/largesse/largesse/internal/models/explore"
)

// result is what a run found.
type result struct {
	states, transitions int
	breach              string   // the first invariant that a state or a step breaks; "" for none
	stuck               int      // states without a way to the end
	trace               []string // the shortest list of steps that leads there
	last                string   // the state after them
	complete            bool     // the run saw every state
}

func (r result) String() string {
	return fmt.Sprintf("%d states, %d transitions, %d stuck, breach %q", r.states, r.transitions, r.stuck, r.breach)
}

// run runs a model until it has seen every state, it finds a breach, or there are more
// than limit states.
func run(o options, limit int) result {
	found := explore.Run[state, label](context.Background(), newModel(o), limit)
	res := result{
		states: found.States, transitions: found.Transitions, breach: found.Breach, stuck: found.Stuck, complete: found.Complete,
	}
	if res.breach != "" {
		res.trace, res.last = lines(found.Path, found.Last)
	}
	if found.Beyond {
		res.trace = append(res.trace, "the next step breaks it")
	}
	return res
}

// lines returns the lines of a trace, and its last state. Instances keep their letters,
// although states swap the instances.
func lines(path []label, s state) (trace []string, last string) {
	swapped := false
	for _, l := range path {
		if swapped && l.instance != none {
			l.instance ^= 1
		}
		trace = append(trace, l.String())
		swapped = swapped != l.swapped
	}
	if swapped {
		s.all[0], s.all[1] = s.all[1], s.all[0]
	}
	return trace, s.String()
}
