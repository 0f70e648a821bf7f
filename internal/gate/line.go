package gate

import (
	"slices"
	"sort"
)

// line holds the waiting users in ticket order. They leave anywhere, mostly at the
// front. A user who has left stays as a gap until the gaps are at least half of the
// list. A Fenwick tree counts the users ahead of an index.
type line struct {
	waiters []*waiter
	counts  []int32 // the tree: counts[i] covers the indexes [i−(i&−i), i); counts[0] is unused
	front   int     // all waiters before this index have left
	waiting int     // waiters without gaps
	byUser  map[string]*waiter
}

type waiter struct {
	user   string
	ticket int64
	index  int // in line.waiters
	left   bool
}

// compactGapsMin is the number of gaps below which compacting is not worth it.
const compactGapsMin = 64

func newLine() *line { return &line{counts: []int32{0}, byUser: map[string]*waiter{}} }

// push adds a user at the end. The ticket must be above all others.
func (l *line) push(user string, ticket int64) {
	w := &waiter{user: user, ticket: ticket, index: len(l.waiters)}
	l.waiters = append(l.waiters, w)
	l.byUser[user] = w
	l.waiting++
	l.counts = append(l.counts, 0)
	l.sumUp(len(l.counts) - 1)
}

// sumUp sets a node of the tree from its children and its own waiter.
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

func (l *line) rank(w *waiter) int64 { return l.before(w.index) }

// before returns the number of users before an index.
func (l *line) before(index int) int64 {
	rank := int64(0)
	for i := index; i > 0; i -= i & -i {
		rank += int64(l.counts[i])
	}
	return rank
}

func (l *line) remove(w *waiter) {
	w.left = true
	l.waiting--
	delete(l.byUser, w.user)
	for i := w.index + 1; i < len(l.counts); i += i & -i {
		l.counts[i]--
	}
	l.compact()
}

// removeUpTo removes at most limit users up to a ticket and returns how many it
// removed.
func (l *line) removeUpTo(ticket int64, limit int) int {
	before := l.waiting
	for l.waiting > 0 && before-l.waiting < limit {
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
	return before - l.waiting
}

// compact removes the gaps once they are at least half of the list.
func (l *line) compact() {
	if gaps := len(l.waiters) - l.waiting; gaps >= compactGapsMin && gaps >= l.waiting {
		l.rebuild(l.waiters[l.front:])
	}
}

// insert adds a user whose ticket may be below others. It takes as long as the line.
func (l *line) insert(user string, ticket int64) {
	w := &waiter{user: user, ticket: ticket}
	at := sort.Search(len(l.waiters), func(i int) bool { return l.waiters[i].ticket > ticket })
	l.byUser[user] = w
	l.waiting++
	l.rebuild(slices.Insert(l.waiters, at, w))
}

// rebuild makes the list of those of all who have not left.
func (l *line) rebuild(all []*waiter) {
	kept := make([]*waiter, 0, l.waiting+compactGapsMin)
	for _, w := range all {
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

// first returns the lowest ticket in line, or 0 if the line is empty.
func (l *line) first() int64 {
	for l.waiting > 0 && l.waiters[l.front].left {
		l.front++
	}
	if l.waiting == 0 {
		return 0
	}
	return l.waiters[l.front].ticket
}

// upTo returns the number of users up to a ticket.
func (l *line) upTo(ticket int64) int64 {
	return l.before(sort.Search(len(l.waiters), func(i int) bool { return l.waiters[i].ticket > ticket }))
}

// page calls visit for at most limit users from a rank on, in order.
func (l *line) page(from int64, limit int, visit func(*waiter)) {
	first := sort.Search(len(l.waiters), func(i int) bool { return l.before(i+1) > from })
	for _, w := range l.waiters[first:] {
		if limit == 0 {
			return
		}
		if !w.left {
			visit(w)
			limit--
		}
	}
}
