package payout

// Check returns the invariant that a state breaks, or "".
func (m *model) Check(s *state) string {
	var counted [rowStates]uint8
	for r := range m.rows {
		x := &s.rows[r]
		if x.state != rowMissing {
			counted[x.state]++
		}
		switch {
		case x.charges > 1:
			return "the provider pays one payout twice"
		case x.state == rowSucceeded && x.charges == 0:
			return "SUCCEEDED and never charged"
		case x.state == rowFailed && x.charges > 0 && !m.corrects(s, r):
			return failedPaid
		case x.state == rowCancelled && x.charges > 0 && !m.corrects(s, r):
			return cancelledPaid
		case s.status == promotionDeleted && x.state != rowMissing:
			return "a row of a deleted promotion"
		}
	}
	switch {
	case !s.archived && counted != s.counts || s.archived && !within(counted, s.counts):
		return "the counts differ from the rows"
	case s.status == promotionCompleted && m.undecided(s):
		return "COMPLETED while work remains"
	case s.archived && s.open() > 0 && !m.without[archivedTakesNothing]: // what follows is worse
		return "an archived promotion has open payouts"
	}
	return ""
}

// within reports whether no count is higher than another. The counts of an archived
// promotion keep the rows that are removed.
func within(counted, counts [rowStates]uint8) bool {
	for now, n := range counted {
		if n > counts[now] {
			return false
		}
	}
	return true
}

// corrects reports whether an instance will write that a row was charged.
func (m *model) corrects(s *state, r uint8) bool {
	for i := range s.all {
		h := s.all[i]
		called := h.phase == phaseSent || h.phase == phaseAnswered && h.answer == answerPaid
		if called && h.row == r || h.job == jobSettle && h.jobRow == r && h.jobFound {
			return true
		}
	}
	return false
}

// End reports whether everything is over: the rows are final and true, the promotion
// is final, its stream is gone, and nothing is under way.
func (m *model) End(s *state) bool {
	if int(s.saved) < len(m.records) || s.length > 0 || s.exists {
		return false
	}
	if s.status == promotionDeleted {
		for r := range m.rows {
			if s.rows[r].state != rowMissing || s.rows[r].charges > 0 {
				return false
			}
		}
		return true
	}
	if !s.gone || !s.final() {
		return false
	}
	if m.archives {
		return m.forgotten(s)
	}
	for r := range m.rows {
		x := &s.rows[r]
		if !x.state.final() || x.strayBefore+x.strayAfter > 0 || x.charges > 0 && x.state != rowSucceeded {
			return false
		}
	}
	return s.idle()
}

// idle reports whether no instance has anything under way.
func (s *state) idle() bool {
	for i := range s.all {
		if h := &s.all[i]; h.phase != phaseIdle || h.job != jobNone || h.stalled {
			return false
		}
	}
	return true
}

// forgotten reports whether everything is over and every row is removed. The counts
// still say who was paid.
func (m *model) forgotten(s *state) bool {
	paid := uint8(0)
	for r := range m.rows {
		x := &s.rows[r]
		if x.state != rowMissing || x.strayBefore+x.strayAfter > 0 {
			return false
		}
		paid += x.charges
	}
	return s.archived && s.counts[rowSucceeded] == paid && s.idle()
}
