package payout

import "github.com/largesse/largesse/internal/models/explore"

// model computes the steps that are possible in a state.
type model struct {
	options
	records []uint8 // the targets of the records, in the order of the topic
	out     []transition
	breach  string // what a step that was just computed broke; "" for nothing
}

// transition is a possible step and the state after it.
type transition = explore.Step[state, label]

func newModel(o options) *model {
	m := &model{options: o}
	for r := range o.rows {
		m.records = append(m.records, r)
	}
	if o.repeatedRecord {
		m.records = append(m.records, 0)
	}
	return m
}

// First returns the state in which a run begins.
func (m *model) First() state {
	s := state{left: m.faults}
	if m.draft {
		s.status, s.gone = promotionDraft, true
	}
	m.canonical(&s)
	return s
}

// emit adds a step that needs no fault.
func (m *model) emit(next state, st step, instance, r uint8) {
	swapped := m.canonical(&next)
	m.out = append(m.out, transition{Label: label{st, instance, r, swapped}, Next: next})
}

// emitFault adds a step that is a fault, and counts the fault.
func (m *model) emitFault(next state, f fault, st step, instance, r uint8) {
	next.left[f]--
	swapped := m.canonical(&next)
	m.out = append(m.out, transition{Label: label{st, instance, r, swapped}, Fault: true, Next: next})
}

// noReply adds that a step takes effect and the instance does not learn it.
func (m *model) noReply(next state, i, r uint8) {
	if next.left[faultLostReply] > 0 {
		m.emitFault(next, faultLostReply, losesReply, i, r)
	}
}

// Next returns all steps that are possible in a state, or the breach of a step that it
// leaves out.
func (m *model) Next(s *state) (steps []transition, breach string) {
	m.out, m.breach = m.out[:0], ""
	for i := range uint8(instances) {
		m.instance(s, i)
	}
	m.redis(s)
	for r := range m.rows {
		m.strayRequests(s, r)
		m.rowTime(s, r)
		m.rowOperator(s, r)
	}
	m.operator(s)
	m.housekeeping(s)
	m.archive(s)
	return m.out, m.breach
}

// instance adds what an instance does, and what happens to it.
func (m *model) instance(s *state, i uint8) {
	h := s.all[i]
	if h.stalled {
		m.wake(s, i)
	} else {
		m.view(s, i)
		m.save(s, i)
		m.job(s, i)
		m.entry(s, i)
	}
	if s.left[faultCrash] > 0 {
		t := *s
		t.stray(i)
		t.all[i] = instance{view: t.status}
		if t.status >= promotionCompleted {
			t.all[i].view = promotionRunning
		}
		if m.direct {
			t.dropQueue(i)
		}
		m.emitFault(t, faultCrash, crashes, i, none)
	}
	if s.left[faultStall] > 0 && !h.stalled && (h.phase != phaseIdle || h.job != jobNone) {
		t := *s
		t.all[i].stalled = true
		m.emitFault(t, faultStall, stalls, i, none)
	}
	if h.phase == phaseSent {
		m.call(s, i)
	}
	waits := (h.phase == phaseSent || h.phase == phaseArmed) && !h.stalled
	if _, there := s.find(h.row, h.dispatch); h.phase != phaseIdle && h.phase != phaseWritten && h.lease && !there && !waits {
		t := *s
		t.all[i].lease = false
		m.emit(t, leaseExpires, i, h.row)
	}
}

// wake continues a stalled instance. Its view is older than a second. A response may
// wait for it, and may be past the time limit of the call.
func (m *model) wake(s *state, i uint8) {
	t := *s
	t.all[i].stalled, t.all[i].stale = false, true
	m.emit(t, continues, i, none)
	if h := s.all[i]; h.phase == phaseAnswered && (h.answer == answerPaid || h.answer == answerRefused) {
		t.all[i].answer = answerNone
		m.emit(t, continuesTooLate, i, h.row)
	}
}

// dropQueue removes the queue of an instance, in direct mode.
func (s *state) dropQueue(i uint8) {
	var kept [entriesMax]entry
	n := uint8(0)
	for _, e := range s.entries[:s.length] {
		if e.queue != i {
			kept[n] = e
			n++
		}
	}
	s.entries, s.length = kept, n
}

// view lets an instance read the promotion again, and start and end its pool.
func (m *model) view(s *state, i uint8) {
	h := s.all[i]
	now := s.status
	if now >= promotionCompleted {
		now = promotionRunning // consumers treat both in the same way
	}
	if h.stale || h.view != now {
		t := *s
		t.all[i].view, t.all[i].stale = now, false
		m.emit(t, readsView, i, none)
	}
	over := s.final()
	switch {
	case !m.pools:
		if over && s.exists && s.length == 0 {
			t := *s
			t.destroyStream()
			m.emit(t, lastConsumerDestroys, i, none)
		}
		return
	case h.pool && over && !m.undecided(s):
		t := *s
		t.all[i].pool = false
		if s.length == 0 {
			t.destroyStream()
		}
		m.emit(t, poolEnds, i, none)
	case !h.pool && !s.gone && s.counts[rowQueued] > 0:
		t := *s
		t.all[i].pool = true
		m.emit(t, poolStarts, i, none)
	}
	if h.pool && !s.exists && m.without[onlyAddCreates] {
		t := *s
		t.exists = true
		m.emit(t, poolCreatesStream, i, none)
	}
}

// save lets an instance save the next record. A save that began before a cancel may
// end after it.
func (m *model) save(s *state, i uint8) {
	if int(s.saved) == len(m.records) {
		return
	}
	h := s.all[i]
	r := m.records[s.saved]
	saved := *s
	saved.saved++
	if s.status == promotionDeleted {
		m.emit(saved, savesNothing, i, r)
		return
	}
	if s.rows[r].state != rowMissing {
		m.emit(saved, savesKnown, i, r)
		return
	}
	if s.archived && !m.without[archivedTakesNothing] {
		m.emit(saved, savesArchived, i, r)
		return
	}
	// A row that was removed begins again, so its first dispatch is later. Its dispatches
	// begin again too; the model counts on, to show what else follows.
	saved.rows[r].windowOver = false
	late := h.view == promotionRunning && !h.stale && s.status < promotionDraft
	if s.status == promotionCancelled {
		t := saved
		m.move(&t, r, rowMissing, rowCancelled)
		m.emit(t, savesCancelled, i, r)
	}
	if s.status != promotionCancelled || late {
		t := saved
		m.move(&t, r, rowMissing, rowReady)
		t.reopen()
		m.emit(t, savesReady, i, r)
	}
	if (s.status == promotionRunning || late) && h.job == jobNone {
		t := saved
		m.dispatch(&t, r, rowMissing)
		t.reopen()
		m.noReply(t, i, r)
		t.all[i].job, t.all[i].jobRow, t.all[i].jobDispatch = jobAdd, r, t.rows[r].dispatch
		m.emit(t, savesQueued, i, r)
	}
}

// reopen makes a COMPLETED promotion RUNNING, because it has new work.
func (s *state) reopen() {
	if s.status == promotionCompleted {
		s.status, s.gone = promotionRunning, false
	}
}
