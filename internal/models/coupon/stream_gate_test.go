package coupon

// serves reports whether scripts answer at the gate.
func (m *model) serves(s *state) bool {
	return s.gate.exists && !s.gate.closed && (s.gate.thisRun || m.without[scriptsCheckRun])
}

// free returns the places that the gate may give: what the quantity leaves, derived from
// live coupons and the line, and of these what the row has set aside.
func (m *model) free(g *gate) int {
	n := int(g.total) - int(g.live) - g.waiting()
	if !m.without[placesAreSetAside] {
		n = min(n, int(g.granted)-int(g.used)-g.waiting())
	}
	return n
}

// mayAsk reports whether a user may request, and takes the request off the events.
// Users make their first requests in their order, because they differ in nothing else.
func mayAsk(s *state, t *state, user uint8) bool {
	if user > 1 && !s.users[user-2].asked {
		return false
	}
	if !s.users[user-1].asked {
		t.users[user-1].asked = true
		return true
	}
	if s.may[eventRequest] == 0 {
		return false
	}
	t.may[eventRequest]--
	return true
}

// requests lets each user request at the gate.
func (m *model) requests(s *state) {
	if s.closed || !m.serves(s) || m.free(&s.gate) <= 0 {
		return
	}
	for user := uint8(1); user <= m.users; user++ {
		t := *s
		if s.gate.place(user) >= 0 || s.gate.holdings[user-1] >= m.limit || !mayAsk(s, &t, user) {
			continue
		}
		// A user who was answered past this gate repeats the same request.
		repeated := s.answeredAfter(user, s.gate.generation)
		breach := ""
		if !repeated {
			breach = m.promiseBreach(s, user)
			t.users[user-1].promised = true
			t.users[user-1].accepted++
		}
		g := &t.gate
		g.next++
		g.add(g.next, user, g.generation)
		g.line[g.waiting()] = request{g.next, user}
		m.emit(s, t, asks, user, g.next, breach)
	}
}

// promiseBreach returns what a new ticket for a user breaks.
func (m *model) promiseBreach(s *state, user uint8) string {
	waiting := uint8(0)
	for _, u := range s.users {
		if u.promised {
			waiting++
		}
	}
	switch {
	case s.live+waiting >= s.figures.total:
		return "202 without a place"
	case s.users[user-1].promised:
		return "a second ticket for a user who waits"
	case s.holding(user, s.version) >= m.limit && !s.lost:
		return "a ticket for a user who has the limit, without a loss"
	}
	return ""
}

// redis lets Redis lose its data, and write a snapshot.
func (m *model) redis(s *state) {
	loses := func(e event, t state, st step) {
		if t.may[e] == 0 {
			e = eventLoss
		}
		if t.may[e] == 0 {
			return
		}
		t.may[e]--
		t.lost = true
		t.forgetPromises(&s.gate)
		m.emit(s, t, st, none, 0, "")
	}
	if s.gate != (gate{}) {
		t := *s
		t.gate = gate{}
		loses(eventFlush, t, flushes)
	}
	if s.may[eventRemoval] > 0 && m.serves(s) {
		for _, q := range s.gate.line[:s.gate.waiting()] {
			t := *s
			t.may[eventRemoval]--
			t.gate.drop(func(other request) bool { return other == q })
			t.removed |= 1 << (q.user - 1)
			m.emit(s, t, removes, q.user, 0, "")
		}
	}
	if s.may[eventRollback]+s.may[eventLoss] == 0 {
		return
	}
	if !s.hasSnapshot && s.gate.exists && s.gate.entries() > 0 {
		t := *s
		t.hasSnapshot, t.snapshot = true, s.gate
		m.emit(s, t, writesSnapshot, none, 0, "")
	}
	now := s.gate
	now.thisRun = false
	if s.hasSnapshot && now != s.snapshot {
		t := *s
		t.gate, t.snapshot, t.hasSnapshot = s.snapshot, gate{}, false
		for i := range t.all {
			t.all[i].loader.thisRun = false
		}
		loses(eventRollback, t, restarts)
	}
}

// forgetPromises ends the promises that Redis has lost: a promise survives if its very
// entry does.
func (s *state) forgetPromises(was *gate) {
	for user := uint8(1); user <= usersMax; user++ {
		before, after := was.place(user), s.gate.place(user)
		if before >= 0 && after >= 0 {
			ticket := s.gate.line[after].ticket
			if was.line[before].ticket == ticket && was.entryOf(ticket) == s.gate.entryOf(ticket) {
				continue
			}
		}
		s.users[user-1].promised = false
	}
}

// apply brings the gate to a version of the rows. Applies come late, repeated, in any
// order or never. An apply of one version tells what changed in it; a covering one
// everything up to it.
func (m *model) apply(s *state, version uint8, covering bool) {
	g := &s.gate
	if !g.exists {
		if !m.without[onlySwapCreates] {
			return
		}
		*g = gate{exists: true, thisRun: true, marker: g.marker}
	}
	if g.closed || !g.thisRun && !m.without[scriptsCheckRun] {
		return
	}
	f := s.history[version]
	if f.base != 0 && g.generation <= f.base && !m.without[applyNamesNumbering] {
		return
	}
	behind := !covering && version != g.version+1
	known := version < g.version || version == g.version && !covering
	if (behind || known) && !m.without[appliesHaveNoGaps] {
		return
	}
	was := g.version
	if version > g.version {
		g.version = version
		g.live = s.liveAt(version)
		g.total, g.used = f.total, f.used
	}
	if f.grant > g.grant || m.without[applyTakesNewGrants] {
		g.granted, g.grant = f.granted, f.grant
	}
	settled := s.settledAt(version)
	g.drop(func(q request) bool {
		for _, l := range s.left {
			if l.ticket == q.ticket && l.user == q.user && l.version > was && l.version <= version &&
				(l.generation == g.entryOf(q.ticket) || m.without[leftNamesEntry]) {
				return true
			}
		}
		return q.ticket <= settled
	})
	g.next = max(g.next, settled)
	for user := uint8(1); user <= usersMax; user++ {
		if covering || s.changedIn(user, version) {
			g.holdings[user-1] = s.holding(user, version)
		}
	}
}

// changedIn reports whether a version changed a row of a user.
func (s *state) changedIn(user, version uint8) bool {
	for _, r := range s.rows[:s.settled] {
		if r.user == user && (r.inserted == version || r.ended == version) {
			return true
		}
	}
	return false
}

// cover sends a covering apply in two steps when the gate is behind the rows.
func (m *model) cover(s *state) {
	if s.archived { // its gate answers nobody
		return
	}
	if s.covering > 0 {
		t := *s
		t.covering = 0
		m.apply(&t, s.covering-1, true)
		m.emit(s, t, covers, none, 0, "")
		return
	}
	if s.gate.exists && s.gate.version < s.version && (m.calm || m.serves(s)) {
		t := *s
		t.covering = s.version + 1
		m.emit(s, t, coverReads, none, 0, "")
	}
}
