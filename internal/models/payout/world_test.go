package payout

// redis adds what happens to the stream: time, and losses.
func (m *model) redis(s *state) {
	for k := range s.length {
		e := s.entries[k]
		if e.delivered == deliveredPending {
			m.leaseEnd(s, k)
			if s.left[faultForgottenDelivery] > 0 {
				t := *s
				t.entries[k].delivered = deliveredUnsure
				if m.without[entryNamesRun] {
					t.entries[k].delivered = deliveredNever
				}
				m.emitFault(t, faultForgottenDelivery, losesDelivery, none, e.row)
			}
		}
		if s.left[faultOrphan] > 0 && (e.delivered == deliveredPending || e.delivered == deliveredExpired) {
			t := *s
			t.entries[k].delivered = deliveredNobody
			m.emitFault(t, faultOrphan, losesConsumer, none, e.row)
		}
	}
	if s.left[faultGroupLost] > 0 && s.length > 0 {
		t := *s
		for k := range t.length {
			t.entries[k].delivered = deliveredUnsure
			if m.without[groupMarksEntries] {
				t.entries[k].delivered = deliveredNever
			}
		}
		m.emitFault(t, faultGroupLost, losesGroup, none, none)
	}
	if s.left[faultFlush] > 0 && s.exists {
		t := *s
		t.entries, t.length, t.exists = [entriesMax]entry{}, 0, false
		m.emitFault(t, faultFlush, losesAll, none, none)
	}
	if s.left[faultForgottenAck] > 0 && s.recent {
		m.forgetRemoval(s)
	}
}

// forgetRemoval adds the return of an entry that was acknowledged, or of a stream that
// was destroyed, in the last second of a Redis that is lost.
func (m *model) forgetRemoval(s *state) {
	if !s.exists {
		t := *s
		t.exists = true
		m.emitFault(t, faultForgottenAck, losesDestroy, none, none)
	}
	for r := range m.rows {
		x := s.rows[r]
		if _, there := s.find(r, x.dispatch); x.dispatch == 0 || there || x.state == rowQueued || s.length == entriesMax {
			continue
		}
		t := *s
		copy(t.entries[1:], s.entries[:])
		t.entries[0] = entry{row: r, dispatch: x.dispatch, delivered: deliveredUnsure}
		t.length++
		t.exists = true
		m.emitFault(t, faultForgottenAck, losesAck, none, r)
	}
}

// leaseEnd adds the end of an entry's lease. It does not end while the owner of the
// entry waits for a call, because a call is shorter, unless the owner is stalled.
func (m *model) leaseEnd(s *state, k uint8) {
	e := s.entries[k]
	t := *s
	t.entries[k].delivered = deliveredExpired
	for i := range t.all {
		h := &t.all[i]
		if h.phase == phaseIdle || h.row != e.row || h.dispatch != e.dispatch {
			continue
		}
		if h.lease && !h.stalled && (h.phase == phaseSent || h.phase == phaseArmed) {
			return
		}
		h.lease = false
	}
	m.emit(t, leaseExpires, none, e.row)
}

// strayRequests adds the arrival of requests whose callers no longer wait.
func (m *model) strayRequests(s *state, r uint8) {
	for _, before := range []bool{true, false} {
		t := *s
		x := &t.rows[r]
		switch {
		case before && x.strayBefore > 0:
			x.strayBefore--
		case !before && x.strayAfter > 0:
			x.strayAfter--
		default:
			continue
		}
		for _, got := range m.receive(&t, r, false) {
			st := strayPays
			if got.step == paysAgain {
				st = strayPaysAgain
			}
			m.emit(got.next, st, none, r)
		}
		m.emit(t, strayIsLost, none, r)
	}
}

// rowTime adds the passing of the times that steps on a row wait for.
func (m *model) rowTime(s *state, r uint8) {
	x := s.rows[r]
	if m.direct && x.state == rowQueued && !x.halfOver {
		t := *s
		t.rows[r].halfOver = true
		for i := range t.all {
			h := &t.all[i]
			if (h.phase == phaseDelivered || h.phase == phaseChecked || h.phase == phaseArmed || h.phase == phaseSent) && h.row == r && h.dispatch == x.dispatch {
				h.halfOver = true
			}
			if h.job == jobAdd && h.jobRow == r {
				h.jobLate = true
			}
		}
		m.emit(t, halfHorizonPasses, none, r)
	}
	if m.horizonMayPass(s, r) {
		t := *s
		t.rows[r].horizonOver = true
		for i := range t.all {
			if h := &t.all[i]; h.job == jobAdd && h.jobRow == r {
				h.jobLate = true
			}
		}
		m.emit(t, horizonPasses, none, r)
	}
	if x.state == rowUnknown && !x.settleAfterOver && m.settleAfterMayPass(s, r) {
		t := *s
		t.rows[r].settleAfterOver = true
		m.emit(t, settleAfterPasses, none, r)
	}
}

// horizonMayPass reports whether the dispatch horizon of a row may pass.
func (m *model) horizonMayPass(s *state, r uint8) bool {
	x := s.rows[r]
	if x.dispatch == 0 {
		return false
	}
	adding := false
	for i := range s.all {
		h := s.all[i]
		adding = adding || h.job == jobAdd && h.jobRow == r && !h.jobLate
		if m.direct && h.phase == phaseSent && !h.stalled && h.row == r && h.dispatch == x.dispatch {
			return false // the call began in the first half and is shorter than the other half
		}
	}
	if m.direct && x.state == rowQueued && !x.halfOver {
		return false
	}
	return !x.horizonOver || adding && !m.without[addHasDeadline]
}

// settleAfterMayPass reports whether settle-after may pass for an UNKNOWN row.
// Requests that were sent before SettleFrom have arrived by then.
func (m *model) settleAfterMayPass(s *state, r uint8) bool {
	x := s.rows[r]
	if x.strayBefore > 0 || x.strayAfter > 0 && !m.without[settleFromLeaseEnd] {
		return false
	}
	for i := range s.all {
		h := s.all[i]
		if h.row != r {
			continue
		}
		if h.phase == phaseSent && (h.sentBefore || !m.without[settleFromLeaseEnd]) {
			return false
		}
		mayCall := h.phase == phaseChecked || h.phase == phaseSent || h.phase == phaseArmed && !h.stalled
		if h.lease && mayCall && !m.without[settleFromLeaseEnd] {
			return false
		}
	}
	return true
}

// rowOperator adds the steps of a cancel, and the retry of a FAILED row.
func (m *model) rowOperator(s *state, r uint8) {
	x := s.rows[r]
	if s.status == promotionCancelled {
		t := *s
		switch {
		case x.state == rowReady && (!x.maybeCalled || m.without[cancelLooksUpFlagged]):
			m.move(&t, r, rowReady, rowCancelled)
			m.emit(t, cancelsReady, none, r)
		case x.state == rowReady || x.state == rowRetrying:
			m.toUnknown(&t, r, x.state)
			m.emit(t, cancelsToUnknown, none, r)
		}
	}
	refused := s.archived && !m.without[archivedTakesNothing]
	if x.state == rowFailed && s.left[faultRetry] > 0 && s.status != promotionCancelled && !refused {
		t := *s
		m.move(&t, r, rowFailed, rowReady)
		t.rows[r].attempts = 0
		t.reopen()
		m.emitFault(t, faultRetry, operatorRetries, none, r)
	}
}

// operator adds the steps of an operator.
func (m *model) operator(s *state) {
	to := func(now status) state {
		t := *s
		t.status = now
		return t
	}
	if s.left[faultCancel] > 0 && (s.status == promotionRunning || s.status == promotionPaused) {
		m.emitFault(to(promotionCancelled), faultCancel, operatorCancels, none, none)
	}
	if s.left[faultPause] > 0 && s.status == promotionRunning {
		m.emitFault(to(promotionPaused), faultPause, operatorPauses, none, none)
	}
	if s.status == promotionPaused {
		m.emit(to(promotionRunning), operatorResumes, none, none)
	}
	if s.status == promotionDraft {
		t := to(promotionRunning)
		t.gone = false
		m.emit(t, operatorStarts, none, none)
		t = to(promotionDeleted)
		t.gone = true
		t.rows, t.counts = [rowsMax]row{}, [rowStates]uint8{}
		m.emit(t, operatorDeletes, none, none)
	}
}

// housekeeping adds the end of the promotion, of its stream, and of the idempotency
// window.
func (m *model) housekeeping(s *state) {
	if s.status == promotionRunning && int(s.saved) == len(m.records) && !m.undecided(s) {
		t := *s
		t.status = promotionCompleted
		m.emit(t, completes, none, none)
	}
	if !m.destroyInSteps && s.length == 0 && m.mayDestroy(s) {
		t := *s
		t.destroyStream()
		t.gone = true
		m.emit(t, destroysAtOnce, none, none)
	}
	m.clear(s)
	if s.left[faultWindow] > 0 {
		m.window(s)
	}
}

// archive adds the archive of a promotion, the removal of its rows, and another read of
// the records. The counts stay. A row that is removed is missing; what instances and
// the provider know of it stays too.
func (m *model) archive(s *state) {
	if s.left[faultReread] > 0 && s.saved > 0 && s.gone && s.final() { // repeatedRecord has the others
		t := *s
		t.saved = 0
		m.emitFault(t, faultReread, rereads, none, none)
	}
	if m.mayArchive(s) && !m.without[archiveLocksCounts] {
		t := *s
		t.archived = true
		m.emit(t, archives, none, none)
	}
	for r := range m.rows {
		if s.archived && s.rows[r].state.final() {
			t := *s
			t.rows[r].state = rowMissing
			m.emit(t, removesRow, none, r)
		}
	}
}

// mayArchive reports whether the promotion is over and nothing of it is open.
func (m *model) mayArchive(s *state) bool {
	return m.archives && !s.archived && s.final() && s.gone && s.open() == 0
}

// window adds the end of the idempotency window. It is much longer than a call, a
// lease and settle-after. A consumer that is alive may still have its entry: it renews
// the lease while it waits to charge.
func (m *model) window(s *state) {
	t := *s
	dispatched := false
	for r := range m.rows {
		x := &t.rows[r]
		if x.strayBefore+x.strayAfter > 0 {
			return
		}
		if x.dispatch > 0 {
			dispatched = true
			x.windowOver, x.horizonOver, x.remembered = true, true, false
			x.settleAfterOver = x.settleAfterOver || x.state == rowUnknown
		}
	}
	kept := [entriesMax]bool{}
	for i := range t.all {
		h := &t.all[i]
		if h.phase == phaseSent || h.phase == phaseArmed && !h.stalled {
			return
		}
		if h.job == jobAdd && t.rows[h.jobRow].dispatch > 0 {
			h.jobLate = true
		}
		if k, there := s.find(h.row, h.dispatch); h.phase != phaseIdle && h.lease && !h.stalled && there {
			kept[k] = true
		} else {
			h.lease = false
		}
	}
	for k := range t.length {
		if t.entries[k].delivered == deliveredPending && !kept[k] {
			t.entries[k].delivered = deliveredExpired
		}
	}
	if dispatched {
		m.emitFault(t, faultWindow, windowPasses, none, none)
	}
}
