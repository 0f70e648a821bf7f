package payout

import (
	"context"

	"github.com/largesse/largesse/internal/models/explore"
)

// run runs a model until it has seen every state, it finds a breach, or there are more
// than limit states.
func run(o options, limit int) explore.Found {
	return explore.Find[state, label](context.Background(), newModel(o), limit)
}

// Trace returns the lines of a trace, and its last state. Instances keep their letters,
// although states swap the instances.
func (m *model) Trace(found explore.Result[state, label]) (lines []string) {
	swapped := false
	for _, l := range found.Path {
		if swapped && l.instance != none {
			l.instance ^= 1
		}
		lines = append(lines, l.String())
		swapped = swapped != l.swapped
	}
	s := found.Last
	if swapped {
		s.all[0], s.all[1] = s.all[1], s.all[0]
	}
	return append(lines, explore.Show(s))
}
