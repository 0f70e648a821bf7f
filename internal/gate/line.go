package gate

import "sort"

// line is the people who wait, in the order of their tickets. They leave
// anywhere, mostly in front. Whoever has left stays as a gap until gaps are
// half of all; a Fenwick tree counts those who wait in front of a place.
type line struct {
	waiters []*waiter
	counts  []int32 // the tree: counts[i] is of the places [i−(i&−i), i); counts[0] is unused
	front   int     // nobody waits before this place
	waiting int
	byUser  map[string]*waiter
}

type waiter struct {
	user   string
	ticket int64
	index  int
	left   bool
}

// compactFrom is how many gaps are not worth tidying up.
const compactGapsMin = 64

func newLine() *line { return &line{counts: []int32{0}, byUser: map[string]*waiter{}} }

// push puts a user at the end; his ticket is above all others.
func (l *line) push(user string, ticket int64) {
	w := &waiter{user: user, ticket: ticket, index: len(l.waiters)}
	l.waiters = append(l.waiters, w)
	l.byUser[user] = w
	l.waiting++
	l.counts = append(l.counts, 0)
	l.sumUp(len(l.counts) - 1)
}

// sumUp sets a node of the tree from its children and its own place.
func (l *line) sumUp(i int) {
	sum := int32(0)
	if !l.waiters[i-1].left {
		sum = 1
	}
	for child := i - 1; child > i-i&-i; child -= child & -child {
		sum += l.counts[child]
	}
	l.counts[i] = sum
}

// rank is how many wait in front of w.
func (l *line) rank(w *waiter) int64 {
	rank := int64(0)
	for i := w.index; i > 0; i -= i & -i {
		rank += int64(l.counts[i])
	}
	return rank
}

// remove lets w go.
func (l *line) remove(w *waiter) {
	w.left = true
	l.waiting--
	delete(l.byUser, w.user)
	for i := w.index + 1; i < len(l.counts); i += i & -i {
		l.counts[i]--
	}
	l.compact()
}

// removeUpTo lets everybody go whose ticket is at most that, and says how many.
func (l *line) removeUpTo(ticket int64) int {
	before := l.waiting
	for l.waiting > 0 {
		w := l.waiters[l.front]
		switch {
		case w.left:
			l.front++
		case w.ticket > ticket:
			return before - l.waiting
		default:
			l.remove(w)
		}
	}
	return before
}

// tidy drops the gaps once they are more than those who wait.
func (l *line) compact() {
	if gaps := len(l.waiters) - l.waiting; gaps < compactGapsMin || gaps < l.waiting {
		return
	}
	kept := make([]*waiter, 0, l.waiting+compactGapsMin)
	for _, w := range l.waiters[l.front:] {
		if !w.left {
			w.index = len(kept)
			kept = append(kept, w)
		}
	}
	l.waiters, l.front = kept, 0
	l.counts = make([]int32, 1, len(kept)+1+compactGapsMin)
	for i := range kept {
		l.counts = append(l.counts, 0)
		l.sumUp(i + 1)
	}
}

// above calls visit for those with a ticket above that, in order.
func (l *line) above(ticket int64, visit func(*waiter)) {
	first := sort.Search(len(l.waiters), func(i int) bool { return l.waiters[i].ticket > ticket })
	for _, w := range l.waiters[first:] {
		if !w.left {
			visit(w)
		}
	}
}
