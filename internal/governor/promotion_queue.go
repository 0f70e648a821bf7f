package governor

import (
	"container/heap"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// promotionQueue is the queue of a promotion whose calls wait or have waited lately.
// Start-time fair queueing decides which queue gets the next permit. The start tag of a
// call is the finish tag of the promotion's previous call, or the virtual time if that is
// later; its finish tag is 1/weight after that. The call with the lowest start tag goes
// first, and its tag becomes the virtual time.
//
// A promotion has a second queue for payouts that hang, so that they delay no other
// payout of it. Both have the same lane.
type promotionQueue struct {
	id          reward.PromotionID
	hangs       bool    // the queue of payouts that hang
	start       float64 // start tag of the first waiter
	finish      float64 // finish tag of the latest call
	first, last *waiter
	waiting     int
	fresh       int    // waiters whose own payout does not hang
	probed      uint64 // number of the latest probe from this queue; 0: none

	lane   *lane         // send times of the promotion's own rate; nil: no such rate
	wakeAt time.Duration // while parked: time of the next check
	in     queueState
	at     int // index in its heap
}

// queueState is the heap that a queue is in.
type queueState int

const (
	inNone queueState = iota // without waiters
	inReady
	inParked
)

// queueKey identifies a queue.
type queueKey struct {
	id    reward.PromotionID
	hangs bool
}

// waiter is an Acquire that waits. The governor's mutex protects permit and err
// until ready has delivered its value.
type waiter struct {
	flow       *promotionQueue
	prev, next *waiter
	job        Job
	ready      chan struct{} // gets one value when permit or err is set
	permit     *Permit
	err        error
}

// enqueue adds a waiter to the end of its promotion's queue.
func (g *Governor) enqueue(w *waiter, now time.Duration) {
	key := queueKey{w.job.PromotionID, w.job.Hangs || g.hangs(w.job.PromotionID)}
	f := g.flows[key]
	if f == nil {
		g.forget(now)
		f = &promotionQueue{id: key.id, hangs: key.hangs}
		g.flows[key] = f
	}
	w.flow, w.prev, w.next = f, f.last, nil
	if f.last == nil {
		f.first = w
		f.start = max(f.finish, g.virtual)
	} else {
		f.last.next = w
	}
	f.last = w
	g.setRate(f, w.job.RatePerSecond)
	g.count(f, 1)
	if !w.job.Hangs {
		f.fresh++
		g.fresh++
	}
	g.place(f, now)
}

// setRate gives a promotion's queue the rate of its latest call.
func (g *Governor) setRate(f *promotionQueue, perSecond int) {
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
		if other := g.flows[queueKey{f.id, !f.hangs}]; other != nil && other.lane != nil {
			f.lane = other.lane
			f.lane.pace = paceOf(perSecond)
		} else {
			f.lane = newLane(f.id.String(), perSecond)
		}
		f.lane.flows[indexOf(f.hangs)] = f
	}
	g.count(f, waited)
}

// indexOf returns the index of a kind of queue: 1 for payouts that hang, else 0.
func indexOf(hangs bool) int {
	if hangs {
		return 1
	}
	return 0
}

func (g *Governor) count(f *promotionQueue, n int) {
	k := &g.kinds[indexOf(f.hangs)]
	f.waiting += n
	k.waiting += n
	if f.lane == nil {
		k.plain += n
	}
}

// remove removes a waiter, and moves its queue to the heap that it belongs to then.
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
	if !w.job.Hangs {
		f.fresh--
		g.fresh--
	}
	g.place(f, now)
}

// cancelWaiting removes all waiters of a queue, and makes them fail with because.
func (g *Governor) cancelWaiting(f *promotionQueue, because error) {
	for w := f.first; w != nil; w = f.first {
		f.first = w.next
		w.err = because
		w.ready <- struct{}{}
	}
	f.last = nil
	g.count(f, -f.waiting)
	g.fresh -= f.fresh
	f.fresh = 0
	g.move(f, inNone)
}

// place puts a queue into the heap that it belongs to. A queue with a rate of its
// own is ready if a send time of that rate is due, and parked otherwise. place also
// requests more of these send times.
func (g *Governor) place(f *promotionQueue, now time.Duration) {
	if f.waiting == 0 {
		g.move(f, inNone)
		return
	}
	if f.lane == nil {
		g.makeReady(f)
		return
	}
	kind := indexOf(f.hangs)
	soon := g.soon(now)[kind]
	g.ask(f.lane, min(f.waiting, soon), false, now)
	switch {
	case f.lane.due(now):
		g.makeReady(f)
		return
	case soon == 0 && g.places(now)[1-kind] > 0:
		f.wakeAt = now + kindInterval // the other kind's places are no use
	case soon == 0:
		f.wakeAt = now // as soon as there is a place
	default:
		f.wakeAt = max(g.lookAgain(f.lane, now), now+timerMin)
	}
	g.move(f, inParked)
}

// lookAgain returns when to check a parked queue with the rate l again: when its next
// send time is due, or early enough before that to lease one of all calls, too.
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
	return now + recheckInterval
}

// makeReady puts a queue into the ready heap. A queue that was not ready for a while
// starts at the virtual time, so that it is not preferred.
func (g *Governor) makeReady(f *promotionQueue) {
	start := max(f.finish, f.start)
	if f.in != inReady {
		start = max(start, g.virtual)
	} else if start == f.start {
		return
	}
	f.start = start
	g.move(f, inReady)
}

// move moves a queue to a heap, or restores its position if it is in that heap
// already.
func (g *Governor) move(f *promotionQueue, to queueState) {
	switch was := g.heapOf(f); {
	case f.in == to && was != nil:
		heap.Fix(was, f.at)
		return
	case was != nil:
		heap.Remove(was, f.at)
	}
	f.in = to
	if now := g.heapOf(f); now != nil {
		heap.Push(now, f)
	}
}

func (g *Governor) heapOf(f *promotionQueue) *queueHeap {
	switch f.in {
	case inParked:
		return &g.parked
	case inReady:
		return &g.kinds[indexOf(f.hangs)].ready
	}
	return nil
}

// forget drops queues without waiters once there are many. The next call of such a
// promotion may start earlier than is fair, by at most one call.
func (g *Governor) forget(now time.Duration) {
	if len(g.flows) < idleQueuesMax+2*(g.kinds[0].ready.Len()+g.kinds[1].ready.Len()+g.parked.Len()) {
		return
	}
	for key, f := range g.flows {
		if f.waiting == 0 && (f.lane == nil || !f.lane.asking && f.lane.schedule.next <= now) {
			delete(g.flows, key)
		}
	}
}

const (
	// hangingPart is the part of the limit that calls of payouts that hang may use:
	// one hangingPart-th, and at least one call.
	hangingPart = 10
	// silentToHang is the number of a promotion's calls in a row without an answer
	// after which all of its calls count as calls of payouts that hang, until one
	// is answered.
	silentToHang = 20
	// silentMax limits the promotions whose calls without an answer are counted.
	silentMax = 4096
)

// kind holds the calls of one kind. Those of payouts that hang got no answer several times,
// or no call of their promotion gets one. Such a call takes a place for as long as it may
// take, so they use a bounded part of the limit.
type kind struct {
	ready   queueHeap // queues whose first waiter may get the next permit
	waiting int       // waiters
	plain   int       // waiters of queues without a rate of their own
	open    int       // permits
}

// hangs reports whether all calls of a promotion count as calls of payouts that hang.
func (g *Governor) hangs(id reward.PromotionID) bool { return g.silent[id] >= silentToHang }

// unanswered reports whether a call that was sent got no answer.
func (o Outcome) unanswered() bool { return o.Class == reward.AnswerUnknown && o.Status == 0 }

// noteSilence takes a call that has ended into account. counts is the result of the breaker.
func (g *Governor) noteSilence(p *Permit, o Outcome, counts bool, now time.Duration) {
	id := p.payee.promotion
	switch {
	case o.unanswered() && counts && !p.own:
		if g.silent == nil || len(g.silent) >= silentMax {
			g.silent = make(map[reward.PromotionID]int)
		}
		if g.silent[id]++; g.silent[id] == silentToHang {
			g.moveQueue(id, true, now)
		}
	case o.sign() == signAlive && g.silent[id] > 0:
		hung := g.hangs(id)
		delete(g.silent, id)
		if hung {
			g.moveQueue(id, false, now)
		}
	}
}

// moveQueue moves the waiters whose own payout does not hang to the other queue.
func (g *Governor) moveQueue(id reward.PromotionID, hangs bool, now time.Duration) {
	f := g.flows[queueKey{id, !hangs}]
	if f == nil {
		return
	}
	for w := f.first; w != nil; {
		next := w.next
		if !w.job.Hangs {
			g.remove(w, now)
			g.enqueue(w, now)
		}
		w = next
	}
}

// byStart orders queues that are ready: the lowest start tag first; of equal ones, the
// promotion with the lower ID.
func byStart(a, b *promotionQueue) bool {
	if a.start != b.start {
		return a.start < b.start
	}
	return a.id < b.id
}

// byWakeAt orders queues that are parked: the earliest check first.
func byWakeAt(a, b *promotionQueue) bool { return a.wakeAt < b.wakeAt }

// queueHeap is a heap of queues, which know their index in it.
type queueHeap struct {
	queues []*promotionQueue
	before func(a, b *promotionQueue) bool
}

func (h *queueHeap) Len() int           { return len(h.queues) }
func (h *queueHeap) Less(i, j int) bool { return h.before(h.queues[i], h.queues[j]) }
func (h *queueHeap) Swap(i, j int) {
	h.queues[i], h.queues[j] = h.queues[j], h.queues[i]
	h.queues[i].at, h.queues[j].at = i, j
}

// Push implements heap.Interface.
func (h *queueHeap) Push(x any) {
	f := x.(*promotionQueue)
	f.at = len(h.queues)
	h.queues = append(h.queues, f)
}

// Pop implements heap.Interface.
func (h *queueHeap) Pop() any {
	last := len(h.queues) - 1
	f := h.queues[last]
	h.queues[last] = nil
	h.queues = h.queues[:last]
	return f
}
