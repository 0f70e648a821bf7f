package payout

import (
	"math/bits"
	"unsafe"
)

// rowState is the state of a payout. The final states are the last ones.
type rowState uint8

const (
	rowMissing rowState = iota
	rowReady
	rowQueued
	rowRetrying
	rowUnknown
	rowSucceeded
	rowFailed
	rowCancelled
	rowStates
)

// final reports whether nothing but a confirmation or an operator changes the row.
func (r rowState) final() bool { return r >= rowSucceeded }

// status is the status of the promotion. The model adds one for a deleted draft.
type status uint8

const (
	promotionRunning status = iota
	promotionPaused
	promotionCancelled
	promotionCompleted
	promotionDraft
	promotionDeleted
)

// row is a payout, and what the provider knows about it.
type row struct {
	state              rowState
	dispatch, attempts uint8
	maybeCalled        bool
	// horizonOver and halfOver report whether the dispatch horizon, or half of it, has
	// passed since the latest dispatch.
	horizonOver, halfOver bool
	// windowOver reports whether the idempotency window has passed since the first
	// dispatch.
	windowOver bool
	// settleAfterOver reports whether settle-after has passed since SettleFrom.
	settleAfterOver bool
	// charges counts how often the provider has paid. remembered reports whether it
	// still knows the key.
	charges    uint8
	remembered bool
	// strayBefore and strayAfter count requests that may still arrive although their
	// caller no longer waits: sent before, or after, the row became UNKNOWN.
	strayBefore, strayAfter uint8
}

// delivered is how often an entry was delivered, as the stream's group knows it.
type delivered uint8

const (
	deliveredNever   delivered = iota
	deliveredPending           // its lease is valid
	deliveredExpired           // its lease expired: it can be claimed
	deliveredUnsure            // not delivered, but the record of deliveries was lost
	deliveredNobody            // read, and pending with no consumer
)

// entry is an entry of the stream.
type entry struct {
	row, dispatch uint8
	delivered     delivered
	// older has a bit for each row whose dispatch horizon was over when this entry was
	// added. The sweeper may take these rows while this entry is the oldest.
	older uint8
	queue uint8 // in direct mode: the instance whose queue has the entry
}

// phase is how far an instance is with its delivered entry.
type phase uint8

const (
	phaseIdle      phase = iota // no entry
	phaseDelivered              // not checked yet
	phaseChecked                // to be charged
	phaseArmed                  // past the last check, not sent yet
	phaseSent                   // waits for the response
	phaseAnswered               // has an outcome to write
	phaseWritten                // has an entry to acknowledge
)

// answer is what a call, or the lookup before it, has shown.
type answer uint8

const (
	answerPaid answer = iota
	answerRefused
	answerFailed // counted as an attempt
	answerNone   // no response, or an inconclusive one
	answerNoLookup
)

// jobKind is the work that an instance does besides its entry.
type jobKind uint8

const (
	jobNone      jobKind = iota
	jobAdd               // a dispatched row, to be added to the stream
	jobReturn            // a row that the stream refused
	jobSweep             // a row whose entry is missing
	jobSettle            // the result of a lookup
	jobDestroy           // the stream of a final promotion
	jobDestroyed         // it is destroyed, for now
	jobConfirm           // 10 s later
	jobMark              // it is destroyed permanently; the row does not say so yet
	jobArchive           // nothing of the promotion was open; see archiveLocksCounts
)

// instance is one process. It has at most one entry and one job at a time.
type instance struct {
	stalled bool // the process is stopped for a while
	stale   bool // its view of the promotion is older than a second
	view    status
	pool    bool // it has a pool; see options.pools

	phase         phase
	row, dispatch uint8
	firstDelivery bool
	lease         bool // as the consumer knows it
	sent          bool // an earlier charge of this delivery may have taken effect
	looked        bool // needs no lookup before the next charge
	answer        answer
	sentBefore    bool // the request in flight was sent before the row became UNKNOWN
	halfOver      bool // half of the dispatch horizon has passed; see options.direct

	job                 jobKind
	jobRow, jobDispatch uint8
	jobLate             bool // too late: for an add, the dispatch horizon; for a destroy, there was a dispatch
	jobFound            bool // the lookup found a charge
	jobRemoved          bool // Redis removed something since the first destroy
}

const (
	rowsMax    = 2
	entriesMax = 4
	instances  = 2
)

// state is the whole system. It has no padding and no pointers, so that states can be
// compared and hashed.
type state struct {
	status   status
	saved    uint8 // records read from the topic
	exists   bool  // the stream exists
	gone     bool  // the promotion's row says that the stream is destroyed
	archived bool  // the promotion takes nothing any more, and its rows are removed
	rows     [rowsMax]row
	length   uint8 // entries in the stream
	entries  [entriesMax]entry
	all      [instances]instance
	counts   [rowStates]uint8
	// recent reports whether Redis may still forget that it removed something: it did so
	// in its last second, as far as anybody knows.
	recent bool
	left   faults // faults that may still happen
}

// final reports whether the promotion is COMPLETED or CANCELLED.
func (s *state) final() bool { return s.status == promotionCompleted || s.status == promotionCancelled }

// undecided reports whether a row is missing, READY, QUEUED or RETRYING. The missing
// rows of an archived promotion are removed, and decided.
func (m *model) undecided(s *state) bool {
	for r := range m.rows {
		if now := s.rows[r].state; now < rowUnknown && (now != rowMissing || !s.archived) {
			return true
		}
	}
	return false
}

// open returns the number of rows that are not final, by the counts.
func (s *state) open() uint8 {
	return s.counts[rowReady] + s.counts[rowQueued] + s.counts[rowRetrying] + s.counts[rowUnknown]
}

// find returns the index of an entry, and whether it exists.
func (s *state) find(r, dispatch uint8) (uint8, bool) {
	for k := range s.length {
		if s.entries[k].row == r && s.entries[k].dispatch == dispatch {
			return k, true
		}
	}
	return 0, false
}

// remove removes an entry.
func (s *state) remove(k uint8) {
	s.removed()
	copy(s.entries[k:], s.entries[k+1:])
	s.entries[entriesMax-1] = entry{}
	s.length--
	s.entries[s.length] = entry{}
}

// removed records that Redis removed something.
func (s *state) removed() {
	s.recent = true
	for i := range s.all {
		s.all[i].jobRemoved = true
	}
}

// queuedUnder reports whether a row is QUEUED under a dispatch.
func (s *state) queuedUnder(r, dispatch uint8) bool {
	return s.rows[r].state == rowQueued && s.rows[r].dispatch == dispatch
}

// forget ends the ownership of an entry.
func (i *instance) forget() {
	*i = instance{
		stalled: i.stalled, stale: i.stale, view: i.view, pool: i.pool,
		job: i.job, jobRow: i.jobRow, jobDispatch: i.jobDispatch, jobLate: i.jobLate, jobFound: i.jobFound, jobRemoved: i.jobRemoved,
	}
}

// endJob ends the job.
func (i *instance) endJob() {
	i.job, i.jobRow, i.jobDispatch, i.jobLate, i.jobFound, i.jobRemoved = jobNone, 0, 0, false, false, false
}

// ofRow reports whether the job is about one row.
func (i *instance) ofRow() bool { return i.job != jobNone && i.job < jobDestroy }

// move moves a row to a state and updates the counts. expected is the state that the
// caller thinks the row has.
func (m *model) move(s *state, r uint8, expected, to rowState) {
	was := s.rows[r].state
	if m.without[countsFromFoundState] {
		was = expected
	}
	if was != rowMissing {
		s.counts[was]--
	}
	s.counts[to]++
	s.rows[r].state = to
}

// toUnknown moves a row to UNKNOWN. SettleFrom begins again.
func (m *model) toUnknown(s *state, r uint8, expected rowState) {
	m.move(s, r, expected, rowUnknown)
	x := &s.rows[r]
	x.maybeCalled = true
	x.settleAfterOver = false
	x.strayBefore += x.strayAfter
	x.strayAfter = 0
	for i := range s.all {
		if s.all[i].phase == phaseSent && s.all[i].row == r {
			s.all[i].sentBefore = true
		}
	}
}

// dispatch moves a row to QUEUED under the next dispatch.
func (m *model) dispatch(s *state, r uint8, expected rowState) {
	m.move(s, r, expected, rowQueued)
	x := &s.rows[r]
	x.dispatch++
	x.horizonOver, x.halfOver = false, false
	s.gone = false
	for i := range s.all {
		if s.all[i].job >= jobDestroy {
			s.all[i].jobLate = true
		}
	}
	for k := range s.entries {
		s.entries[k].older &^= 1 << r
	}
}

// returned moves a QUEUED row to READY, or out of the promotion if it is CANCELLED.
func (m *model) returned(s *state, r uint8, maybeCalled bool) {
	switch {
	case s.status != promotionCancelled:
		m.toReady(s, r, maybeCalled)
	case maybeCalled || s.rows[r].maybeCalled:
		m.toUnknown(s, r, rowQueued)
	default:
		m.move(s, r, rowQueued, rowCancelled)
	}
}

// toReady moves a QUEUED row to READY. It may do so after a cancel, by a statement that
// read the status of the promotion before: the cancel then takes the row.
func (m *model) toReady(s *state, r uint8, maybeCalled bool) {
	m.move(s, r, rowQueued, rowReady)
	s.rows[r].maybeCalled = s.rows[r].maybeCalled || maybeCalled
}

// stray leaves the request of an instance on its way without a caller.
func (s *state) stray(i uint8) {
	h := &s.all[i]
	switch {
	case h.phase != phaseSent:
	case h.sentBefore:
		s.rows[h.row].strayBefore++
	default:
		s.rows[h.row].strayAfter++
	}
}

// canonical replaces a state by one that behaves in the same way, so that fewer states
// are different: it clears what no later step reads, numbers dispatches without gaps,
// and orders the two instances. It reports whether it swapped these.
func (m *model) canonical(s *state) (swapped bool) {
	s.recent = s.recent && s.left[faultForgottenAck] > 0
	for r := range m.rows {
		s.renumber(r)
		x := &s.rows[r]
		if x.state != rowUnknown {
			x.settleAfterOver = false
			x.strayBefore += x.strayAfter
			x.strayAfter = 0
		}
		if !m.without[settleFromLeaseEnd] {
			x.strayBefore += x.strayAfter
			x.strayAfter = 0
		}
		if x.state != rowQueued {
			x.halfOver = false
			for k := range s.entries {
				s.entries[k].older &^= 1 << r
			}
		}
		if x.state.final() || x.state == rowMissing {
			x.attempts = 0
		}
		if x.state == rowSucceeded || x.state == rowMissing {
			x.maybeCalled = false
		}
	}
	for i := range s.all {
		h := &s.all[i]
		switch h.phase {
		case phaseIdle:
			h.forget()
		case phaseWritten:
			h.firstDelivery, h.lease, h.sent, h.answer = false, false, false, 0
			fallthrough
		case phaseAnswered:
			h.looked, h.halfOver = false, false
		}
		if h.phase != phaseSent {
			h.sentBefore = false
		} else if !m.without[settleFromLeaseEnd] || s.rows[h.row].state != rowUnknown {
			h.sentBefore = true
		}
		if h.job == jobNone {
			h.endJob()
		}
		h.jobRemoved = h.jobRemoved && h.job >= jobDestroyed && s.left[faultForgottenAck] > 0
	}
	a, b := &s.all[0], &s.all[1]
	if bytesOf(a) >= bytesOf(b) {
		return false
	}
	*a, *b = *b, *a
	for k := range s.length {
		if m.direct {
			s.entries[k].queue ^= 1
		}
	}
	return true
}

// bytesOf returns the memory of an instance, which gives instances an order.
func bytesOf(i *instance) string {
	return unsafe.String((*byte)(unsafe.Pointer(i)), unsafe.Sizeof(*i))
}

// renumber gives the dispatches of a row that are still named anywhere the numbers 0,
// 1, 2, … in the same order. 0 and 1 stay: nothing was dispatched, and the first one.
func (s *state) renumber(r uint8) {
	if s.rows[r].dispatch <= 1 { // no other dispatch of the row has a higher number
		return
	}
	named := [1 + entriesMax + 2*instances]*uint8{&s.rows[r].dispatch}
	n := 1
	for k := range s.length {
		if s.entries[k].row == r {
			named[n] = &s.entries[k].dispatch
			n++
		}
	}
	for i := range s.all {
		h := &s.all[i]
		if h.phase != phaseIdle && h.row == r {
			named[n] = &h.dispatch
			n++
		}
		if h.ofRow() && h.jobRow == r {
			named[n] = &h.jobDispatch
			n++
		}
	}
	used := uint32(1 | 2)
	for _, dispatch := range named[:n] {
		used |= 1 << *dispatch
	}
	for _, dispatch := range named[:n] {
		lower := used & (1<<*dispatch - 1)
		*dispatch = uint8(bits.OnesCount32(lower)) //nolint:gosec // at most 32
	}
}
