package payout

import (
	"fmt"
	"hash/maphash"
	"slices"
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

// chunk is the number of states in a part of search.states.
const chunk = 1 << 16

// search sees every state, breadth first, so that the traces it returns are among the
// shortest.
type search struct {
	m      *model
	states [][]state // in chunks, so that a large list is never copied
	parent []uint32
	label  []label
	table  []uint32 // indexes of states plus one, by hash
	seed   maphash.Seed
	// edges are the states that fault-free steps lead to, by state; from are the
	// positions in edges where each state begins.
	edges []uint32
	from  []uint64
}

// explore runs a model until it has seen every state, it finds a breach, or there are
// more than limit states.
func explore(o options, limit int) result {
	q := &search{m: newModel(o), table: make([]uint32, 1<<12), seed: maphash.MakeSeed()}
	q.add(q.m.first(), 0, label{})
	var res result
	for n := 0; n < len(q.parent); n++ {
		if n >= limit {
			res.states = len(q.parent)
			return res
		}
		q.from = append(q.from, uint64(len(q.edges)))
		now := *q.at(n)
		q.m.successors(&now)
		if res.breach = q.m.breach; res.breach != "" {
			res.states = len(q.parent)
			res.trace, res.last = q.trace(n)
			res.trace = append(res.trace, "the next step breaks it")
			return res
		}
		for k := range q.m.out {
			t := &q.m.out[k]
			res.transitions++
			id, fresh := q.add(t.next, n, t.label)
			if !t.fault {
				q.edges = append(q.edges, uint32(id)) //nolint:gosec // there are fewer states
			}
			if !fresh {
				continue
			}
			if res.breach = q.m.check(&t.next); res.breach != "" {
				res.states = len(q.parent)
				res.trace, res.last = q.trace(id)
				return res
			}
		}
	}
	res.states, res.complete = len(q.parent), true
	q.from = append(q.from, uint64(len(q.edges)))
	var first int
	if res.stuck, first = q.stuck(); res.stuck > 0 {
		res.breach = "there is no way to the end"
		res.trace, res.last = q.trace(first)
	}
	return res
}

func (q *search) at(n int) *state { return &q.states[n/chunk][n%chunk] }

// add adds a state unless it is known. It returns its index and whether it is new.
func (q *search) add(s state, parent int, by label) (int, bool) {
	if 2*len(q.parent) > len(q.table) {
		q.grow()
	}
	slot := q.slot(&s)
	if q.table[slot] != 0 {
		return int(q.table[slot] - 1), false
	}
	n := len(q.parent)
	if n%chunk == 0 {
		q.states = append(q.states, make([]state, 0, chunk))
	}
	last := len(q.states) - 1
	q.states[last] = append(q.states[last], s)
	q.parent = append(q.parent, uint32(parent)) //nolint:gosec // there are fewer states
	q.label = append(q.label, by)
	q.table[slot] = uint32(n + 1) //nolint:gosec // there are fewer states
	return n, true
}

// slot returns the place of a state in the table, or the empty place for it.
func (q *search) slot(s *state) uint64 {
	mask := uint64(len(q.table) - 1) //nolint:gosec // a length
	slot := maphash.Comparable(q.seed, *s) & mask
	for q.table[slot] != 0 && *q.at(int(q.table[slot] - 1)) != *s {
		slot = (slot + 1) & mask
	}
	return slot
}

// grow doubles the table.
func (q *search) grow() {
	q.table = make([]uint32, 4*len(q.table))
	for n := range q.parent {
		q.table[q.slot(q.at(n))] = uint32(n + 1)
	}
}

// stuck counts the states from which no fault-free steps lead to the end, and returns
// the first. Steps mostly lead to later states, so going backward is fast.
func (q *search) stuck() (count, first int) {
	good := make([]bool, len(q.parent))
	for n := range good {
		good[n] = q.m.end(q.at(n))
	}
	for changed := true; changed; {
		changed = false
		for n := len(good) - 1; n >= 0; n-- {
			if good[n] {
				continue
			}
			for _, next := range q.edges[q.from[n]:q.from[n+1]] {
				if good[next] {
					good[n], changed = true, true
					break
				}
			}
		}
	}
	for n := len(good) - 1; n >= 0; n-- {
		if !good[n] {
			count, first = count+1, n
		}
	}
	return count, first
}

// trace returns the steps to a state, one line each, and the state.
func (q *search) trace(n int) (trace []string, last string) {
	s := *q.at(n)
	var path []label
	for ; n != 0; n = int(q.parent[n]) {
		path = append(path, q.label[n])
	}
	slices.Reverse(path)
	return lines(path, s)
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
