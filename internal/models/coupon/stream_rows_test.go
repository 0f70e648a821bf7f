package coupon

import "math/bits"

// coupons lets coupons be cancelled and confirmed, and holds expire.
func (m *model) coupons(s *state) {
	if m.takesNothing(s) {
		return
	}
	for k, r := range s.rows[:s.settled] {
		ticket := uint8(k + 1)
		if s.may[eventCancel] > 0 && (r.outcome == outcomeIssued || r.outcome == outcomeHeld) {
			t := *s
			t.may[eventCancel]--
			m.end(&t, ticket, outcomeCancelled)
			m.emit(s, t, cancels, none, ticket, "")
		}
		if s.may[eventConfirm] > 0 && r.outcome == outcomeHeld {
			t := *s
			t.may[eventConfirm]--
			t.rows[k].outcome = outcomeIssued
			m.emit(s, t, confirms, none, ticket, "")
		}
		if s.may[eventExpire] > 0 && r.outcome == outcomeHeld {
			t := *s
			t.may[eventExpire]--
			t.rows[k].outcome = outcomeExpired
			m.emit(s, t, expires, none, ticket, "")
		}
	}
}

// end ends the coupon of a ticket, in a version of its own. A code that nobody has seen
// goes back.
func (m *model) end(s *state, ticket uint8, how outcome) {
	s.nextVersion()
	s.live--
	r := &s.rows[ticket-1]
	switch unseen := r.outcome != outcomeIssued; {
	case r.code == 0 || unseen && m.without[unseenCodesGoBack] || !unseen && !m.without[seenCodesStay]:
	default:
		s.pool |= 1 << (r.code - 1)
		if unseen {
			r.code = 0
		}
	}
	r.outcome, r.ended = how, s.version
	s.record()
}

// giveCode gives an imported code to the coupon of a row. It returns what that breaks.
func (m *model) giveCode(s *state, r *row) (breach string) {
	if !m.codes {
		return ""
	}
	if s.pool == 0 {
		return "a coupon has no code"
	}
	r.code = uint8(bits.TrailingZeros8(s.pool)) + 1 //nolint:gosec // at most 8
	s.pool &^= 1 << (r.code - 1)
	return ""
}

// sweepHolds lets an instance cancel an expired hold, in two steps.
func (m *model) sweepHolds(s *state, i uint8) {
	t := *s
	ticket := s.all[i].sweep
	if ticket == 0 {
		for k, r := range s.rows[:s.settled] {
			if r.outcome == outcomeExpired {
				t.all[i].sweep = uint8(k + 1)
				m.emit(s, t, sweepReads, i, t.all[i].sweep, "")
				return
			}
		}
		return
	}
	t.all[i].sweep = 0
	switch {
	case s.rows[ticket-1].outcome == outcomeExpired:
		m.end(&t, ticket, outcomeSwept)
	case m.without[sweepCountsItsOwn]:
		t.nextVersion()
		t.live--
		t.record()
	}
	m.emit(s, t, sweeps, i, ticket, "")
}

// pastTheGate lets requests go through the rows, although the gate may still answer
// some users.
func (m *model) pastTheGate(s *state) {
	if !s.bypass {
		if s.may[eventBypass] > 0 && !m.takesNothing(s) {
			t := *s
			t.may[eventBypass]--
			t.bypass = true
			t.generation++
			m.emit(s, t, bypasses, none, 0, "")
		}
		return
	}
	free := int(s.figures.total) - int(s.live)
	if !m.without[placesAreSetAside] {
		free -= s.figures.promised()
	}
	if s.closed || free <= 0 || s.settled == rowsMax {
		return
	}
	for user := uint8(1); user <= m.users; user++ {
		t := *s
		if s.holding(user, s.version) >= m.limit || !mayAsk(s, &t, user) {
			continue
		}
		u := &t.users[user-1]
		if !u.promised {
			u.accepted++ // otherwise it is the request that waits
		}
		u.promised = false
		if !m.without[rowsBeginNumbering] {
			t.figures.base = t.generation
		}
		t.nextVersion()
		t.live++
		r := row{user: user, generation: t.generation, inserted: t.version, outcome: outcomeIssued}
		if m.hold {
			r.outcome = outcomeHeld
		}
		breach := m.giveCode(&t, &r)
		t.rows[t.settled] = r
		t.settled++
		t.record()
		m.emit(s, t, asksRows, user, 0, breach)
	}
}

// quantity lets the row set places aside, and operators change the quantity.
func (m *model) quantity(s *state) {
	if !m.without[placesAreSetAside] {
		m.grant(s)
	}
	if s.may[eventRaise] > 0 && !m.takesNothing(s) {
		t := *s
		t.may[eventRaise]--
		t.nextVersion()
		t.figures.total++
		t.record()
		m.emit(s, t, raisesQuantity, none, t.figures.total, "")
	}
	for a := range s.admins {
		m.lower(s, a)
	}
}

// grant sets more places aside. The gate asks for it when it has given all it may.
func (m *model) grant(s *state) {
	g := &s.gate
	if s.may[eventGrant] == 0 || s.bypass || m.takesNothing(s) {
		return
	}
	asked := m.serves(s) && g.generation == s.generation && g.grant == s.figures.grant &&
		int(g.granted)-int(g.used) <= g.waiting() && int(g.total)-int(g.live) > g.waiting()
	if !asked && !m.grantsAnyTime {
		return
	}
	// One user asks; the other places are for users who come next.
	left := max(int(s.figures.total)-int(s.live)-s.figures.promised(), 0)
	places := min(left, 1)
	places += min(int(m.block)-1, (left-places)/2)
	if places <= 0 && (s.figures.granted <= g.granted || m.without[grantRepeatsShrink]) {
		return
	}
	t := *s
	t.may[eventGrant]--
	t.nextVersion()
	t.figures.granted += uint8(max(places, 0)) //nolint:gosec // at most block
	t.figures.grant++
	t.record()
	m.emit(s, t, grants, none, uint8(max(places, 0)), "") //nolint:gosec // at most block
}

// lower lets an operator lower the quantity by one, in two steps: the gate gives up the
// places that it has not given, and the row takes them back with the new quantity. The
// operator's process may end in between. Without a gate the row alone decides. A gate
// that nobody needs gives places back in the same way, and the quantity stays.
func (m *model) lower(s *state, a int) {
	t := *s
	now := s.admins[a]
	if !now.waits {
		if s.may[eventLower] == 0 || a > 0 && !s.admins[a-1].waits {
			return
		}
		t.may[eventLower]--
		to := s.figures.total - 1
		if !m.serves(s) || s.bypass {
			m.changeTotal(s, &t, to)
			return
		}
		g := &t.gate
		if left := g.used + uint8(g.waiting()); !m.without[placesAreSetAside] && //nolint:gosec // at most usersMax
			(left < g.granted || m.without[shrinkOnlyLowers]) {
			g.granted = left
		}
		t.admins[a] = admin{waits: true, granted: g.granted, grant: g.grant, of: g.generation, total: to}
		m.emit(s, t, shrinks, none, 0, "")
		return
	}
	t.admins[a] = admin{}
	if !m.takesNothing(s) && m.takeBack(s, &t, now) {
		back := t
		back.nextVersion()
		back.record()
		m.emit(s, back, takesBack, none, 0, "")
	}
	m.changeTotal(s, &t, now.total)
}

// takeBack lets the row take back the places that a gate has given up, if it is still
// that gate, with the same grants. It reports whether it is.
func (m *model) takeBack(s, t *state, now admin) bool {
	another := s.generation != now.of || s.bypass
	if another && !m.without[shrinkNamesGate] || s.figures.grant != now.grant && !m.without[shrinkNamesGrant] {
		return false
	}
	f := &t.figures
	f.granted = max(now.granted, f.used)
	if !m.without[shrinkOnlyLowers] {
		f.granted = min(f.granted, s.figures.granted)
	}
	f.grant++
	return true
}

// changeTotal changes the quantity if the live coupons and the promised places fit.
// Otherwise nothing changes.
func (m *model) changeTotal(s, t *state, to uint8) {
	if int(t.live)+t.figures.promised() > int(to) || m.takesNothing(s) {
		t.figures = s.figures
		m.emit(s, *t, lowersNothing, none, 0, "")
		return
	}
	t.nextVersion()
	t.figures.total = to
	t.record()
	m.emit(s, *t, lowers, none, to, "")
}

// leave lets a user leave the line: the gate tells the ticket, then the row decides.
// The user's request may end in between.
func (m *model) leave(s *state) {
	if s.leaver.user == 0 {
		if s.may[eventLeave] == 0 || !m.serves(s) {
			return
		}
		for _, q := range s.gate.line[:s.gate.waiting()] {
			if s.users[q.user-1].promised {
				t := *s
				t.may[eventLeave]--
				t.leaver = leaver{q.user, q.ticket, s.gate.entryOf(q.ticket), s.gate.generation}
				m.emit(s, t, leaves, q.user, q.ticket, "")
			}
		}
		return
	}
	l := s.leaver
	t := *s
	t.leaver = leaver{}
	of := item{l.ticket, l.user, l.entry}
	if m.takesNothing(s) || (s.generation != l.of || s.bypass) && !m.without[leaveNamesGate] || l.ticket <= s.settled && !m.without[leaveNamesTicket] || m.hasLeft(s, of) {
		m.emit(s, t, leavesTooLate, l.user, 0, "")
		return
	}
	t.nextVersion()
	for k := range t.left {
		if t.left[k].ticket == 0 {
			t.left[k] = left{l.ticket, l.user, l.entry, t.version}
			break
		}
	}
	m.useplace(&t)
	u := &t.users[l.user-1]
	if (s.waitsWith(l.user, l.ticket) || s.removed&(1<<(l.user-1)) != 0) && s.gate.entryOf(l.ticket) == l.entry {
		u.promised = false // otherwise the promise is lost, or of a later request
	}
	u.accepted -= min(u.accepted, 1) // LEFT is the answer
	t.record()
	m.emit(s, t, leavesRow, l.user, 0, "")
}
