package payout

// job lets an instance continue its job, or begin one.
func (m *model) job(s *state, i uint8) {
	h := s.all[i]
	t := *s
	me := &t.all[i]
	r := h.jobRow
	x := &t.rows[r]
	switch h.job {
	case jobNone:
		m.beginJob(s, i)
	case jobAdd:
		m.add(s, i)
	case jobReturn:
		m.returnJob(s, i, false, returnsRefused)
	case jobSweep:
		m.returnJob(s, i, !m.without[sweepFlags], sweepWrites)
	case jobSettle:
		if h.jobFound && x.state != rowMissing {
			m.move(&t, r, rowUnknown, rowSucceeded)
		} else if x.state == rowUnknown && x.dispatch == h.jobDispatch {
			if s.status == promotionCancelled {
				m.move(&t, r, rowUnknown, rowCancelled)
			} else {
				m.move(&t, r, rowUnknown, rowFailed)
			}
		}
		me.endJob()
		m.emit(t, settles, i, r)
	case jobArchive:
		t.archived = s.final() && s.gone
		me.endJob()
		m.emit(t, archivesLate, i, none)
	default:
		m.destroy(s, i)
	}
}

// returnJob lets an instance write the return that is its job.
func (m *model) returnJob(s *state, i uint8, maybeCalled bool, st step) {
	r := s.all[i].jobRow
	open := s.queuedUnder(r, s.all[i].jobDispatch)
	t := *s
	if open {
		m.returned(&t, r, maybeCalled)
	}
	t.all[i].endJob()
	m.emit(t, st, i, r)
	if s.status == promotionCancelled && open {
		t := *s
		m.toReady(&t, r, maybeCalled)
		t.all[i].endJob()
		m.emit(t, returnsLate, i, r)
	}
}

// beginJob lets an instance without a job begin one.
func (m *model) beginJob(s *state, i uint8) {
	if m.destroyInSteps && m.mayDestroy(s) {
		t := *s
		t.all[i].job = jobDestroy
		m.emit(t, destroyBegins, i, none)
	}
	if m.without[archiveLocksCounts] && m.mayArchive(s) {
		t := *s
		t.all[i].job = jobArchive
		m.emit(t, archiveReads, i, none)
	}
	m.orphans(s, i)
	for r := range m.rows {
		x := s.rows[r]
		begin := func(t state, job jobKind, st step) {
			t.all[i].job, t.all[i].jobRow, t.all[i].jobDispatch = job, r, t.rows[r].dispatch
			m.emit(t, st, i, r)
		}
		switch x.state {
		case rowReady, rowRetrying:
			if s.status == promotionRunning {
				t := *s
				m.dispatch(&t, r, x.state)
				m.noReply(t, i, r)
				begin(t, jobAdd, dispatches)
			}
		case rowQueued:
			if m.mayBeMissing(s, r) {
				begin(*s, jobSweep, sweepReads)
			}
		case rowUnknown:
			t := *s
			switch {
			case x.charges > 0:
				t.all[i].jobFound = true
				begin(t, jobSettle, lookupConfirmed)
			case x.settleAfterOver || m.without[notFoundWaits]:
				begin(t, jobSettle, lookupNotFound)
			}
		}
	}
}

// mayBeMissing reports whether the sweeper takes the entry of a QUEUED row for
// missing. In direct mode it cannot read the queues.
func (m *model) mayBeMissing(s *state, r uint8) bool {
	x := s.rows[r]
	if !x.horizonOver {
		return false
	}
	if s.length > 0 && s.entries[0].older>>r&1 == 0 && !m.direct && !m.without[sweepReadsStream] {
		return false
	}
	if _, there := s.find(r, x.dispatch); there && !m.direct {
		m.breach = "the sweeper takes a row whose entry is in the stream"
	}
	return true
}

// orphans lets a pool adopt the entries that are pending with no consumer.
func (m *model) orphans(s *state, i uint8) {
	for k := range s.length {
		e := s.entries[k]
		if e.delivered != deliveredNobody {
			continue
		}
		t := *s
		switch {
		case m.without[orphansAreAdopted]:
		case m.without[orphansAreFlagged]:
			if s.queuedUnder(e.row, e.dispatch) {
				m.returned(&t, e.row, false)
			}
			t.remove(k)
			m.emit(t, returnsOrphan, i, e.row)
		default:
			t.entries[k].delivered = deliveredPending
			m.emit(t, adopts, i, e.row)
		}
	}
}

// add lets an instance add the entry of a dispatched row to the stream.
func (m *model) add(s *state, i uint8) {
	h := s.all[i]
	t := *s
	me := &t.all[i]
	switch {
	case h.jobLate && (!m.without[addHasDeadline] || m.direct):
		me.job, me.jobLate = jobReturn, false
		m.emit(t, addRefusedLate, i, h.jobRow)
		return
	case s.length >= m.maxLen:
		me.job, me.jobLate = jobReturn, false
		m.emit(t, addRefusedFull, i, h.jobRow)
		return
	}
	e := entry{row: h.jobRow, dispatch: h.jobDispatch}
	if m.direct {
		e.queue = i
	}
	for r := range m.rows {
		if t.rows[r].state == rowQueued && t.rows[r].horizonOver {
			e.older |= 1 << r
		}
	}
	if s.left[faultLostReply] > 0 {
		t := *s
		t.all[i].endJob()
		m.emitFault(t, faultLostReply, losesCommand, i, h.jobRow)
	}
	t.entries[t.length] = e
	t.length++
	t.exists = !m.direct
	repeated := t
	me.endJob()
	m.emit(t, adds, i, h.jobRow)
	if s.left[faultRepeatedAdd] > 0 {
		m.emitFault(repeated, faultRepeatedAdd, addRepeated, i, h.jobRow)
	}
}

// mayDestroy reports whether the sweeper destroys the stream: its promotion is final,
// and no add can come any more.
func (m *model) mayDestroy(s *state) bool {
	if s.gone || !s.final() || m.undecided(s) {
		return false
	}
	for r := range m.rows {
		if s.rows[r].dispatch > 0 && !s.rows[r].horizonOver && !m.without[destroyWaitsHorizon] {
			return false
		}
	}
	return true
}

// destroy lets an instance continue the destruction of the stream.
func (m *model) destroy(s *state, i uint8) {
	h := s.all[i]
	t := *s
	me := &t.all[i]
	switch {
	case h.job == jobMark:
		if !h.jobLate && s.final() && !m.undecided(s) {
			t.gone = true
		}
		me.endJob()
		m.emit(t, marksGone, i, none)
	case h.job == jobDestroyed:
		me.job = jobConfirm
		t.recent = h.jobRemoved
		m.emit(t, destroyWaits, i, none)
	case s.length > 0:
		me.endJob()
		m.emit(t, destroyRefused, i, none)
	case !s.exists && (h.job == jobConfirm || m.without[destroyIsConfirmed]):
		me.job = jobMark
		m.emit(t, destroyFindsNone, i, none)
	case m.without[destroyIsConfirmed]:
		t.destroyStream()
		me.job = jobMark
		m.emit(t, destroys, i, none)
	case !s.exists:
		me.job, me.jobRemoved = jobDestroyed, false
		m.emit(t, destroyFindsNone, i, none)
	default:
		t.destroyStream()
		me.job, me.jobRemoved = jobDestroyed, false
		m.emit(t, destroys, i, none)
	}
}

// destroyStream removes an empty stream.
func (s *state) destroyStream() {
	if s.exists {
		s.exists = false
		s.removed()
	}
}

// clear lets the sweeper acknowledge the entries of a final promotion that need no
// outcome.
func (m *model) clear(s *state) {
	if m.without[finalIsCleared] || !m.mayDestroy(s) {
		return
	}
	for k := range s.length {
		e := s.entries[k]
		if !s.queuedUnder(e.row, e.dispatch) {
			t := *s
			t.remove(k)
			m.emit(t, clears, none, e.row)
		}
	}
}
