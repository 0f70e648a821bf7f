package payout

// entry lets an instance continue with its entry, or read one.
func (m *model) entry(s *state, i uint8) {
	h := s.all[i]
	switch h.phase {
	case phaseIdle:
		m.read(s, i)
	case phaseDelivered:
		if m.handBack(s, i) {
			m.checkRow(s, i)
		}
	case phaseChecked:
		if m.handBack(s, i) {
			m.charge(s, i)
		}
	case phaseArmed:
		t := *s
		t.all[i].phase, t.all[i].sentBefore = phaseSent, false
		m.emit(t, sends, i, h.row)
	case phaseAnswered:
		m.write(s, i)
	case phaseWritten:
		t := *s
		if k, there := s.find(h.row, h.dispatch); there {
			if s.queuedUnder(h.row, h.dispatch) {
				m.breach = "an entry is acknowledged while its row is QUEUED under its dispatch"
			}
			t.remove(k)
		}
		t.all[i].forget()
		m.emit(t, acknowledges, i, h.row)
	}
}

// read lets an instance read a new entry, or claim one.
func (m *model) read(s *state, i uint8) {
	h := s.all[i]
	if h.stale || h.view == promotionPaused || s.gone || s.status == promotionCompleted && m.without[finalIsCleared] {
		return
	}
	for k := range s.length {
		e := s.entries[k]
		if e.delivered == deliveredPending || e.delivered == deliveredNobody || m.direct && e.queue != i {
			continue
		}
		t := *s
		t.entries[k].delivered = deliveredPending
		m.noReply(t, i, e.row)
		me := &t.all[i]
		me.phase, me.row, me.dispatch, me.lease = phaseDelivered, e.row, e.dispatch, true
		me.firstDelivery = e.delivered == deliveredNever
		if e.delivered == deliveredExpired {
			m.emit(t, claims, i, e.row)
		} else {
			m.emit(t, reads, i, e.row)
		}
	}
}

// handBack lets an instance without a call in flight return its row, or release its
// entry. It reports whether the instance may also continue with the entry.
func (m *model) handBack(s *state, i uint8) bool {
	h := s.all[i]
	r := h.row
	open := s.queuedUnder(r, h.dispatch)
	t := *s
	if open {
		m.returned(&t, r, !m.without[returnFlags])
	}
	t.all[i].phase = phaseWritten
	m.emit(t, returnsOwn, i, r)
	if s.status == promotionCancelled && open {
		t := *s
		m.toReady(&t, r, !m.without[returnFlags])
		t.all[i].phase = phaseWritten
		m.emit(t, returnsLate, i, r)
	}

	if h.phase == phaseChecked {
		t := *s
		t.all[i].phase, t.all[i].answer = phaseAnswered, answerNone
		m.emit(t, waitsLong, i, r)
	}
	if h.phase == phaseDelivered && !h.firstDelivery && !m.without[claimedIsReturned] {
		m.emit(t, returnsClaimed, i, r)
		if open {
			t := *s
			m.toUnknown(&t, r, rowQueued)
			t.all[i].phase = phaseWritten
			m.emit(t, poisons, i, r)
		}
		if h.lease {
			return false
		}
	}
	if !h.lease {
		t := *s
		t.all[i].forget()
		m.emit(t, releases, i, r)
		if !m.without[leaseOutlastsCall] || h.phase != phaseChecked || h.stale || h.view != promotionRunning {
			return false
		}
	}
	return !h.stale
}

// checkRow lets an instance check the row of its entry.
func (m *model) checkRow(s *state, i uint8) {
	h := s.all[i]
	r := h.row
	t := *s
	me := &t.all[i]
	switch {
	case !s.queuedUnder(r, h.dispatch):
		me.phase = phaseWritten
		m.emit(t, checksOver, i, r)
	case h.view == promotionCancelled:
		m.cancelPending(s, i)
	case !h.firstDelivery && !m.without[claimedIsReturned]:
		// returnsClaimed, see handBack
	case h.view == promotionRunning:
		me.phase = phaseChecked
		me.looked = !s.rows[r].windowOver && m.without[everyChargeIsChecked]
		m.emit(t, checksCharge, i, r)
	}
}

// cancelPending ends the dispatch of an entry of a cancelled promotion.
func (m *model) cancelPending(s *state, i uint8) {
	h := s.all[i]
	r := h.row
	x := s.rows[r]
	t := *s
	if s.queuedUnder(r, h.dispatch) {
		if h.firstDelivery && !x.maybeCalled && (!h.sent || m.without[cancelLooksUpSent]) {
			m.move(&t, r, rowQueued, rowCancelled)
		} else {
			m.toUnknown(&t, r, rowQueued)
		}
	}
	t.all[i].phase = phaseWritten
	m.emit(t, cancelsPending, i, r)
}

// charge lets an instance look up its row, if it must, and charge it.
func (m *model) charge(s *state, i uint8) {
	h := s.all[i]
	r := h.row
	x := s.rows[r]
	t := *s
	me := &t.all[i]
	switch {
	case h.view == promotionCancelled:
		m.cancelPending(s, i)
	case m.direct && h.halfOver: // too late for a call; see handBack
	case x.windowOver && !h.looked && !m.without[windowIsChecked]:
		if x.charges > 0 {
			me.phase, me.answer = phaseAnswered, answerPaid
			m.emit(t, looksUpPaid, i, r)
		} else {
			me.looked = true
			m.emit(t, looksUpNotFound, i, r)
		}
		if s.left[faultNoLookup] > 0 {
			t := *s
			t.all[i].phase, t.all[i].answer = phaseAnswered, answerNoLookup
			m.emitFault(t, faultNoLookup, looksUpNothing, i, r)
		}
	case h.view == promotionRunning:
		if m.stallAtSocket {
			me.phase = phaseArmed
			m.emit(t, arms, i, r)
		} else {
			me.phase = phaseSent
			m.emit(t, sends, i, r)
		}
	}
}

// write lets an instance write the outcome of its entry.
func (m *model) write(s *state, i uint8) {
	h := s.all[i]
	r := h.row
	x := s.rows[r]
	written := func(t state, st step) {
		if st != writesTooLate {
			m.noReply(t, i, r) // the write is repeated
		}
		t.all[i].phase = phaseWritten
		m.emit(t, st, i, r)
	}
	retrying := func() {
		t := *s
		m.move(&t, r, rowQueued, rowRetrying)
		t.rows[r].maybeCalled = true
		if t.status == promotionCancelled { // the statement read the status before
			written(t, writesRetryingLate)
		} else {
			written(t, writesRetrying)
		}
	}
	unknown := func(st step) {
		t := *s
		m.toUnknown(&t, r, rowQueued)
		written(t, st)
	}
	live := s.status != promotionCancelled
	if (h.answer == answerNone || h.answer == answerFailed) && x.charges > 0 {
		t := *s
		t.all[i].answer = answerPaid
		m.emit(t, looksUpAfterPaid, i, r)
	}
	switch {
	case x.state == rowMissing: // removed; see archive
		written(*s, writesTooLate)
	case h.answer == answerPaid && (!m.without[paidIsAbsorbing] || s.queuedUnder(r, h.dispatch)):
		t := *s
		m.move(&t, r, rowQueued, rowSucceeded)
		written(t, writesSucceeded)
	case !s.queuedUnder(r, h.dispatch):
		written(*s, writesTooLate)
	case h.answer == answerRefused:
		if h.firstDelivery && !x.maybeCalled && !h.sent || m.without[refusalNeedsOneCaller] {
			t := *s
			m.move(&t, r, rowQueued, rowFailed)
			written(t, writesFailed)
		} else {
			unknown(writesRefusedUnknown)
		}
	case h.answer == answerFailed:
		counted := *s
		counted.rows[r].attempts++
		s = &counted
		mayRetry := s.rows[r].attempts <= m.maxRetries
		if mayRetry {
			retrying()
		}
		if !mayRetry || !live {
			unknown(writesUnknown)
		}
	default:
		retrying()
		unknown(writesUnknown)
	}
}

// call adds what the provider does with a request in flight, whether its caller is
// stalled or not.
func (m *model) call(s *state, i uint8) {
	r := s.all[i].row
	for _, got := range m.receive(s, r, true) {
		t := got.next
		me := &t.all[i]
		if got.stray {
			t.stray(i)
		}
		if got.again {
			me.phase, me.sent = phaseChecked, me.sent || got.step != throttles
			me.looked = me.looked && m.without[everyChargeIsChecked]
		} else {
			me.phase, me.answer = phaseAnswered, got.answer
		}
		m.provider(t, got, i, r)
	}
	if s.left[faultNoResponse] > 0 {
		t := *s
		t.stray(i)
		t.all[i].phase, t.all[i].answer = phaseAnswered, answerNone
		m.emitFault(t, faultNoResponse, timesOut, i, r)
	}
}

// provider adds what a provider did with a request.
func (m *model) provider(t state, got received, i, r uint8) {
	if got.needs < faultCount {
		m.emitFault(t, got.needs, got.step, i, r)
	} else {
		m.emit(t, got.step, i, r)
	}
}

// received is a way in which the provider may treat a request.
type received struct {
	next   state
	step   step
	needs  fault // faultCount for none
	answer answer
	again  bool // throttled: the consumer may charge again
	stray  bool // the request is still on its way
}

// receive returns the ways in which the provider may treat a request for a row. Only
// a request with a caller can fail: of the others only the charge matters.
func (m *model) receive(s *state, r uint8, caller bool) []received {
	x := s.rows[r]
	failing := caller && s.left[faultServerError] > 0
	if x.charges > 0 && x.remembered {
		all := []received{{next: *s, step: paysAgain, needs: faultCount}}
		if failing {
			all = append(all,
				received{next: *s, step: fails500, needs: faultServerError, answer: answerFailed},
				received{next: *s, step: fails503, needs: faultServerError, again: true},
			)
		}
		return all
	}
	paid := *s
	paid.rows[r].charges++
	paid.rows[r].remembered = true
	if paid.rows[r].charges > 1 {
		m.breach = "the provider pays one payout twice"
	}
	all := []received{{next: paid, step: pays, needs: faultCount}}
	if failing {
		all = append(all,
			received{next: paid, step: paysBut500, needs: faultServerError, answer: answerFailed},
			received{next: paid, step: paysBut503, needs: faultServerError, again: true},
			received{next: *s, step: fails500, needs: faultServerError, answer: answerFailed},
			received{next: *s, step: fails503, needs: faultServerError, again: true},
			received{next: *s, step: fails500Stray, needs: faultServerError, answer: answerFailed, stray: true},
		)
	}
	if caller {
		all = append(all, received{next: *s, step: throttles, needs: faultCount, again: true})
	}
	if caller && s.left[faultRefusal] > 0 && x.charges == 0 {
		all = append(all, received{next: *s, step: refuses, needs: faultRefusal, answer: answerRefused})
	}
	return all
}
