package governor

import (
	"container/heap"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// flow is a promotion that waits or has lately. Who is next is decided by
// start-time fair queueing: a call gets a start tag, the later of its
// predecessor's finish tag and the virtual time, and a finish tag 1/weight
// behind it; the lowest start tag goes first, and is the virtual time then.
type flow struct {
	id            reward.PromotionID
	start, finish float64 // tags: of the first who waits, of the latest call
	first, last   *waiter
	waiting       int

	lane   *lane         // its own rate, nil: none
	wakeAt time.Duration // while parked: when to look again
	in     flowPlace
	at     int // index in the heap it is in
}

// flowPlace is which heap a flow is in.
type flowPlace int

const (
	inNone flowPlace = iota // nobody waits
	inReady
	inParked
)

// waiter is an Acquire in line. permit and err are protected by the governor's
// mutex until ready has been received from.
type waiter struct {
	flow       *flow
	prev, next *waiter
	weight     int
	ready      chan struct{} // receives once, when either of these is set
	permit     *Permit
	err        error
}

// enqueue puts a new waiter at the end of its promotion's line.
func (g *Governor) enqueue(job Job, now time.Duration) *waiter {
	f := g.flows[job.PromotionID]
	if f == nil {
		g.forget(now)
		f = &flow{id: job.PromotionID}
		g.flows[job.PromotionID] = f
	}
	w := &waiter{flow: f, weight: max(job.Weight, 1), ready: make(chan struct{}, 1), prev: f.last}
	if f.last == nil {
		f.first = w
		f.start = max(f.finish, g.virtual)
	} else {
		f.last.next = w
	}
	f.last = w
	g.setRate(f, job.RatePerSecond)
	g.count(f, 1)
	g.place(f, now)
	return w
}

// setRate takes over a rate of the promotion's own that is new.
func (g *Governor) setRate(f *flow, perSecond int) {
	if (f.lane != nil) == (perSecond > 0) {
		if f.lane != nil {
			f.lane.pace = paceOf(perSecond)
		}
		return
	}
	waited := f.waiting
	g.count(f, -waited)
	f.lane = nil
	if perSecond > 0 {
		f.lane = newLane(f.id.String(), perSecond)
		f.lane.flow = f
	}
	g.count(f, waited)
}

func (g *Governor) count(f *flow, n int) {
	f.waiting += n
	g.waiting += n
	if f.lane == nil {
		g.plain += n
	}
}

// remove takes a waiter out of its line; who is next there follows its
// predecessor's finish tag.
func (g *Governor) remove(w *waiter, now time.Duration) {
	f := w.flow
	if w.prev == nil {
		f.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		f.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	g.count(f, -1)
	g.place(f, now)
}

// sendAway ends the wait of a whole line.
func (g *Governor) sendAway(f *flow, because error) {
	for w := f.first; w != nil; w = f.first {
		f.first = w.next
		w.err = because
		w.ready <- struct{}{}
	}
	f.last = nil
	g.count(f, -f.waiting)
	g.move(f, inNone)
}

// place puts a flow where it belongs now. One with a rate of its own is ready
// when one of its send times is there; asking for more is done on the way.
func (g *Governor) place(f *flow, now time.Duration) {
	if f.waiting == 0 {
		g.move(f, inNone)
		return
	}
	if f.lane == nil {
		g.makeReady(f)
		return
	}
	soon := g.soon(now)
	g.ask(f.lane, min(f.waiting, soon), false, now)
	switch {
	case f.lane.due(now):
		g.makeReady(f)
		return
	case soon == 0:
		f.wakeAt = now // as soon as there is one
	default:
		f.wakeAt = max(g.lookAgain(f.lane, now), now+shortestNap)
	}
	g.move(f, inParked)
}

// lookAgain is when a parked lane should be looked at: when a send time is
// there, or early enough to ask for a shared one beside it.
func (g *Governor) lookAgain(l *lane, now time.Duration) time.Duration {
	if t, ok := l.first(); ok {
		if g.all != nil && t-g.all.lead > now {
			return t - g.all.lead
		}
		return t
	}
	if !l.asking && l.askAt > now {
		return l.askAt
	}
	return now + lookAgainAfter
}

// makeReady lets a flow take part. It has saved nothing up while it did not.
func (g *Governor) makeReady(f *flow) {
	start := max(f.finish, f.start)
	if f.in != inReady {
		start = max(start, g.virtual)
	}
	if f.in == inReady && start == f.start {
		return
	}
	f.start = start
	if f.in == inReady {
		heap.Fix(&g.ready, f.at)
		return
	}
	g.move(f, inReady)
}

// move puts a flow into another heap, or anew into the same.
func (g *Governor) move(f *flow, to flowPlace) {
	switch {
	case f.in == inReady && to != inReady:
		heap.Remove(&g.ready, f.at)
	case f.in == inParked && to != inParked:
		heap.Remove(&g.parked, f.at)
	case f.in == inParked:
		heap.Fix(&g.parked, f.at)
		return
	}
	was := f.in
	f.in = to
	switch {
	case to == inReady && was != inReady:
		heap.Push(&g.ready, f)
	case to == inParked:
		heap.Push(&g.parked, f)
	}
}

// forget drops promotions that do not wait, now and then. What is lost with
// one is a finish tag, worth one call at most.
func (g *Governor) forget(now time.Duration) {
	if len(g.flows) < oldFlowsMost+2*(len(g.ready)+len(g.parked)) {
		return
	}
	for id, f := range g.flows {
		if f.waiting == 0 && (f.lane == nil || !f.lane.asking && f.lane.keeper.next <= now) {
			delete(g.flows, id)
		}
	}
}

// readyHeap has the lowest start tag first, the older promotion among equals.
type readyHeap []*flow

func (h readyHeap) Len() int { return len(h) }
func (h readyHeap) Less(i, j int) bool {
	if h[i].start != h[j].start {
		return h[i].start < h[j].start
	}
	return h[i].id < h[j].id
}
func (h readyHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }

// Push implements heap.Interface.
func (h *readyHeap) Push(x any) { push((*[]*flow)(h), x) }

// Pop implements heap.Interface.
func (h *readyHeap) Pop() any { return pop((*[]*flow)(h)) }

// parkedHeap has the one to be looked at next first.
type parkedHeap []*flow

func (h parkedHeap) Len() int           { return len(h) }
func (h parkedHeap) Less(i, j int) bool { return h[i].wakeAt < h[j].wakeAt }
func (h parkedHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }

// Push implements heap.Interface.
func (h *parkedHeap) Push(x any) { push((*[]*flow)(h), x) }

// Pop implements heap.Interface.
func (h *parkedHeap) Pop() any { return pop((*[]*flow)(h)) }

func push(h *[]*flow, x any) {
	f := x.(*flow)
	f.at = len(*h)
	*h = append(*h, f)
}

func pop(h *[]*flow) *flow {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return f
}
