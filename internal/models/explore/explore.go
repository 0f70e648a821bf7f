// Package explore sees every state of a model, breadth first, so that the traces it
// finds are among the shortest.
//
// It stores a fingerprint of 128 bits for each state, and the states themselves only
// until their steps are computed. A trace is found by taking its steps again.
package explore

import (
	"context"
	"hash/maphash"
	"slices"
)

// Model is a system that takes steps. S is its state; L is the label of a step.
type Model[S comparable, L any] interface {
	// First returns the state in which a run begins.
	First() S
	// Next returns all steps that are possible in a state. The explorer has read them
	// when it calls the model again. A breach says that a step which the model does not
	// return breaks an invariant; "" means none.
	Next(s *S) (steps []Step[S, L], breach string)
	// Check returns the invariant that a state breaks, or "".
	Check(s *S) string
}

// Step is a possible step and the state after it.
type Step[S comparable, L any] struct {
	Label L
	// Fault reports whether the step is a fault. Faults lead to no end; see [Ending].
	Fault bool
	// Breach is the invariant that the step breaks, or "".
	Breach string
	Next   S
}

// Ending is a model with an end. From every state, steps without faults must lead to
// a state in which End returns true.
type Ending[S comparable] interface {
	End(s *S) bool
}

// Settling is a model that comes to rest when nothing fails any more.
type Settling[S comparable, L any] interface {
	// Calm returns the step that the system takes next if nothing fails, or false at
	// rest.
	Calm(s *S) (Step[S, L], bool)
	// Rest returns what is wrong with a state at rest, or "".
	Rest(s *S) string
}

// restSteps is more than the steps that any model needs to come to rest.
const restSteps = 400

// Result is what a run found.
type Result[S comparable, L any] struct {
	States, Transitions int
	// Depth is the number of steps to the last states that the run has seen.
	Depth int
	// Breach is the first invariant that a state or a step breaks, or "".
	Breach string
	// Stuck is the number of states without a way to the end; see [Ending].
	Stuck int
	// Path is the shortest list of steps to the breach.
	Path []L
	// Calm are the steps that follow Path until the breach, without faults; see
	// [Settling].
	Calm []L
	// Beyond reports whether the breach is in a step after Path that the model did
	// not return.
	Beyond bool
	// Last is the state after Path and Calm.
	Last S
	// Complete reports whether the run has seen every state.
	Complete bool
}

// Run runs a model until it has seen every state, it finds a breach, there are more than
// limit states, or ctx ends.
func Run[S comparable, L any](ctx context.Context, m Model[S, L], limit int) Result[S, L] {
	q := &search[S, L]{m: m, table: make([]uint32, 1<<12), seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	q.ending, _ = m.(Ending[S])
	q.settling, _ = m.(Settling[S, L])
	q.run(ctx, limit)
	return q.res
}

// fingerprint is the hash of a state. With a billion states, the probability that two
// have the same one is below 10⁻²⁰.
type fingerprint [2]uint64

// chunk is the number of states in a part of search.waiting.
const chunk = 1 << 12

type search[S comparable, L any] struct {
	m        Model[S, L]
	ending   Ending[S]
	settling Settling[S, L]
	res      Result[S, L]
	seeds    [2]maphash.Seed

	prints []fingerprint
	parent []uint32
	table  []uint32 // indexes of states plus one, by fingerprint
	// waiting are the states whose steps are not computed yet, in chunks.
	waiting [][]S
	// calm are the fingerprints of states that come to rest; chain are those of one way
	// there.
	calm  set
	chain []uint64

	// The following is only for models with an end. good are the states from which
	// there is a way to it; edges are the states that steps without faults lead to, by
	// state; from are the positions in edges where each state begins.
	good  []bool
	edges []uint32
	from  []uint64
}

func (q *search[S, L]) run(ctx context.Context, limit int) {
	first := q.m.First()
	q.add(&first, 0)
	layer := 1 // the first state of the next depth
	for n := 0; n < len(q.prints); n++ {
		if n == layer {
			q.res.Depth++
			layer = len(q.prints)
		}
		now := q.take(n)
		if len(q.prints) > limit || ctx.Err() != nil || !q.visit(n, &now) {
			q.res.States = len(q.prints)
			return
		}
	}
	q.res.States, q.res.Complete = len(q.prints), true
	if q.ending == nil {
		return
	}
	q.from = append(q.from, uint64(len(q.edges)))
	var stuck int
	if q.res.Stuck, stuck = q.stuck(); q.res.Stuck > 0 {
		q.res.Breach = "there is no way to the end"
		q.trace(stuck)
	}
}

// visit adds the states after a state. It returns false at a breach.
func (q *search[S, L]) visit(n int, now *S) bool {
	if q.settling != nil && !q.comesToRest(n, now) {
		return false
	}
	if q.ending != nil {
		q.from = append(q.from, uint64(len(q.edges)))
	}
	steps, breach := q.m.Next(now)
	if breach != "" {
		q.res.Breach, q.res.Beyond = breach, true
		q.trace(n)
		return false
	}
	for k := range steps {
		t := &steps[k]
		q.res.Transitions++
		if t.Breach == "" {
			id, fresh := q.add(&t.Next, n)
			if q.ending != nil && !t.Fault {
				q.edges = append(q.edges, uint32(id)) //nolint:gosec // there are fewer states
			}
			if !fresh {
				continue
			}
			if t.Breach = q.m.Check(&t.Next); t.Breach == "" {
				continue
			}
		}
		label, last := t.Label, t.Next
		q.res.Breach = t.Breach
		q.trace(n)
		q.res.Path, q.res.Last = append(q.res.Path, label), last
		return false
	}
	return true
}

// comesToRest lets the system take its steps without faults until it rests.
func (q *search[S, L]) comesToRest(n int, now *S) bool {
	s := *now
	var labels []L
	breach := ""
	q.chain = q.chain[:0]
	for breach == "" {
		p := q.print(&s)[0]
		if q.calm.has(p) {
			break
		}
		q.chain = append(q.chain, p)
		t, ok := q.settling.Calm(&s)
		if !ok {
			breach = q.settling.Rest(&s)
			break
		}
		s = t.Next
		labels = append(labels, t.Label)
		if breach = t.Breach; breach == "" {
			breach = q.m.Check(&s)
		}
		if breach == "" && len(labels) == restSteps {
			breach = "it never comes to rest"
		}
	}
	if breach == "" {
		for _, p := range q.chain {
			q.calm.add(p)
		}
		return true
	}
	q.res.Breach = breach
	q.trace(n)
	q.res.Calm, q.res.Last = labels, s
	return false
}

// take returns a state whose steps are to be computed, and forgets those before it.
func (q *search[S, L]) take(n int) S {
	if n%chunk == 0 && n > 0 {
		q.waiting[n/chunk-1] = nil
	}
	return q.waiting[n/chunk][n%chunk]
}

func (q *search[S, L]) print(s *S) fingerprint {
	return fingerprint{maphash.Comparable(q.seeds[0], *s), maphash.Comparable(q.seeds[1], *s)}
}

// add adds a state unless it is known. It returns its index and whether it is new.
func (q *search[S, L]) add(s *S, parent int) (int, bool) {
	if 3*len(q.prints) > 2*len(q.table) {
		q.grow()
	}
	p := q.print(s)
	slot := q.slot(p)
	if q.table[slot] != 0 {
		return int(q.table[slot] - 1), false
	}
	n := len(q.prints)
	if n%chunk == 0 {
		q.waiting = append(q.waiting, make([]S, 0, chunk))
	}
	last := len(q.waiting) - 1
	q.waiting[last] = append(q.waiting[last], *s)
	q.prints = append(q.prints, p)
	q.parent = append(q.parent, uint32(parent)) //nolint:gosec // there are fewer states
	q.table[slot] = uint32(n + 1)               //nolint:gosec // there are fewer states
	if q.ending != nil {
		q.good = append(q.good, q.ending.End(s))
	}
	return n, true
}

// slot returns the place of a fingerprint in the table, or the empty place for it.
func (q *search[S, L]) slot(p fingerprint) uint64 {
	mask := uint64(len(q.table) - 1) //nolint:gosec // a length
	slot := p[0] & mask
	for q.table[slot] != 0 && q.prints[q.table[slot]-1] != p {
		slot = (slot + 1) & mask
	}
	return slot
}

// grow doubles the table.
func (q *search[S, L]) grow() {
	q.table = make([]uint32, 2*len(q.table))
	for n, p := range q.prints {
		q.table[q.slot(p)] = uint32(n + 1)
	}
}

// stuck counts the states from which no steps without faults lead to the end, and
// returns the first. Steps mostly lead to later states, so going backward is fast.
func (q *search[S, L]) stuck() (count, first int) {
	for changed := true; changed; {
		changed = false
		for n := len(q.good) - 1; n >= 0; n-- {
			if q.good[n] {
				continue
			}
			for _, next := range q.edges[q.from[n]:q.from[n+1]] {
				if q.good[next] {
					q.good[n], changed = true, true
					break
				}
			}
		}
	}
	for n := len(q.good) - 1; n >= 0; n-- {
		if !q.good[n] {
			count, first = count+1, n
		}
	}
	return count, first
}

// trace sets Path and Last to the steps to a state, and that state. It takes the steps
// again, because only fingerprints are stored.
func (q *search[S, L]) trace(n int) {
	var path []int
	for ; n != 0; n = int(q.parent[n]) {
		path = append(path, n)
	}
	slices.Reverse(path)
	q.res.Path, q.res.Last = nil, q.m.First()
	for _, id := range path {
		s := q.res.Last
		steps, _ := q.m.Next(&s)
		for k := range steps {
			if q.print(&steps[k].Next) == q.prints[id] {
				q.res.Path, q.res.Last = append(q.res.Path, steps[k].Label), steps[k].Next
				break
			}
		}
	}
}

// set is a set of numbers that are not 0.
type set struct {
	table []uint64
	size  int
}

// has reports whether a number is in the set.
func (t *set) has(number uint64) bool {
	return len(t.table) > 0 && t.table[t.slot(number)] != 0
}

// add adds a number.
func (t *set) add(number uint64) {
	if 3*t.size >= 2*len(t.table) {
		old := t.table
		t.table, t.size = make([]uint64, max(1<<12, 2*len(old))), 0
		for _, number := range old {
			if number != 0 {
				t.add(number)
			}
		}
	}
	if slot := t.slot(number); t.table[slot] == 0 {
		t.table[slot] = number
		t.size++
	}
}

// slot returns the place of a number in the table, or the empty place for it.
func (t *set) slot(number uint64) uint64 {
	mask := uint64(len(t.table) - 1) //nolint:gosec // a length
	slot := number & mask
	for t.table[slot] != 0 && t.table[slot] != number {
		slot = (slot + 1) & mask
	}
	return slot
}
