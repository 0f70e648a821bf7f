package coupon

// mustLoad reports whether the gate has to be loaded.
func (m *model) mustLoad(s *state) bool {
	g := &s.gate
	return !g.exists || !g.thisRun || g.closed || s.bypass || g.generation < s.generation && !m.without[gateIsLevel]
}

// load lets an instance begin or continue a load.
func (m *model) load(s *state, i uint8) {
	t := *s
	me := &t.all[i].loader
	switch me.phase {
	case loaderNone:
		m.mark(s, i)
	case loaderMarked:
		if m.mayLoad(s) {
			m.raise(s, i)
		}
	case loaderRaised:
		if !m.without[gateCloses] {
			if !m.mayContinue(s, i) {
				m.endLoad(s, i)
				return
			}
			t.gate.closed = t.gate.exists
		}
		me.phase = loaderClosed
		m.emit(s, t, closes, i, 0, "")
	case loaderClosed:
		if s.generation != me.generation && !m.without[snapshotNamesGeneration] {
			m.endLoad(s, i)
			return
		}
		me.phase, me.version = loaderRead, s.version
		m.emit(s, t, readsRows, i, 0, "")
	case loaderRead:
		m.prepare(s, i)
	}
}

// mayLoad reports whether the run still allows a load.
func (m *model) mayLoad(s *state) bool { return m.calm || s.loads < m.loads }

// mark sets the marker. An earlier marker may have expired at any time.
func (m *model) mark(s *state, i uint8) {
	needed := m.mustLoad(s)
	if !m.mayLoad(s) || !needed && (m.calm || s.may[eventReload] == 0) {
		return
	}
	t := *s
	me := &t.all[i].loader
	if !needed {
		t.may[eventReload]--
		me.forced = true
	}
	if !m.without[loadHasMarker] {
		t.gate.marker = i + 1
		t.gate.copied = [usersMax]request{}
	}
	me.phase, me.thisRun = loaderMarked, true
	if s.gate.exists {
		me.of = s.gate.generation
	}
	m.emit(s, t, marks, i, 0, "")
}

// raise raises the generation, and decides what to do with the line.
func (m *model) raise(s *state, i uint8) {
	if m.takesNothing(s) {
		m.endLoad(s, i)
		return
	}
	t := *s
	me := &t.all[i].loader
	t.generation++
	t.loads++
	t.bypass = false
	me.phase, me.generation = loaderRaised, t.generation
	switch {
	case me.of == 0:
		me.mode = loadFresh
	case me.of > s.figures.base && !me.forced:
		me.mode = loadKeep
	default:
		me.mode = loadCopy
		if me.forced && !m.without[reloadBeginsNumbering] {
			t.figures.base = t.generation - 1
		}
	}
	m.emit(s, t, raises, i, t.generation, "")
}

// mayContinue reports whether the marker is the load's own, and the server run that of
// the marker.
func (m *model) mayContinue(s *state, i uint8) bool {
	l := &s.all[i].loader
	return (s.gate.marker == i+1 || m.without[loadHasMarker]) && (l.thisRun || m.without[swapChecksRun])
}

// endLoad lets an instance give up its load.
func (m *model) endLoad(s *state, i uint8) {
	t := *s
	t.all[i].loader = loader{}
	m.emit(s, t, loadEnds, i, 0, "")
}

// prepare trims or copies a chunk of the line, or swaps when nothing is left to do.
func (m *model) prepare(s *state, i uint8) {
	l := s.all[i].loader
	g := &s.gate
	another := l.of != 0 && (!g.exists || g.generation != l.of) && !m.without[swapNamesGate]
	if !m.mayContinue(s, i) || g.exists && g.generation >= l.generation || another {
		m.endLoad(s, i)
		return
	}
	if m.without[scriptsAreShort] {
		m.swapAtOnce(s, i)
		return
	}
	switch {
	case l.mode == loadKeep && m.trim(s, i):
	case l.mode == loadCopy && l.copied == 0 && m.putBack(s, i):
	case l.mode == loadCopy && int(l.copied) < g.waiting():
		t := *s
		t.all[i].loader.copied++
		if q := g.line[l.copied]; !m.leftOut(s, &l, q) {
			k := 0
			for t.gate.copied[k].ticket != 0 {
				k++
			}
			t.gate.copied[k] = request{s.settledAt(l.version) + uint8(k) + 1, q.user}
		}
		m.emit(s, t, copies, i, 0, "")
	default:
		m.swap(s, i)
	}
}

// putBack puts a user back in line whose request waits in the stream. It returns false if
// there is none.
func (m *model) putBack(s *state, i uint8) bool {
	if m.without[missingComeBack] {
		return false
	}
	l := &s.all[i].loader
	for _, e := range s.gate.stream[:s.gate.entries()] {
		q := request{e.ticket, e.user}
		if s.gate.place(e.user) >= 0 || m.leftOut(s, l, q) {
			continue
		}
		t := *s
		line := &t.gate.line
		k := t.gate.waiting()
		for ; k > 0 && line[k-1].ticket > e.ticket; k-- {
			line[k] = line[k-1]
		}
		line[k] = q
		m.emit(s, t, putsBack, i, 0, "")
		return true
	}
	return false
}

// trim takes a request out of the line that is settled or left. It returns false if
// there is none.
func (m *model) trim(s *state, i uint8) bool {
	l := &s.all[i].loader
	settled := s.settledAt(l.version)
	for _, q := range s.gate.line[:s.gate.waiting()] {
		if q.ticket <= settled || m.leftBefore(s, l, q) {
			t := *s
			if n := t.gate.drop(func(other request) bool { return other == q }); n > chunk {
				panic("a long script")
			}
			m.emit(s, t, trims, i, 0, "")
			return true
		}
	}
	return false
}

// leftBefore reports whether a request was left, as the load's snapshot shows it.
func (m *model) leftBefore(s *state, l *loader, q request) bool {
	if m.without[loadDropsLeft] {
		return false
	}
	for _, row := range s.left {
		if row.ticket == q.ticket && row.user == q.user && row.version <= l.version &&
			(row.generation == s.gate.entryOf(q.ticket) || m.without[leftNamesEntry]) {
			return true
		}
	}
	return false
}

// leftOut reports whether a load that copies the line leaves a request out. It asks the
// rows as they are now.
func (m *model) leftOut(s *state, l *loader, q request) bool {
	if q.ticket <= s.settled && !m.without[copyAsksRows] {
		if r := s.rows[q.ticket-1]; r.user == q.user && r.generation <= l.of {
			return true
		}
	}
	return m.leftBefore(s, l, q) ||
		s.answeredAfter(q.user, l.of) && !m.without[answeredAreLeftOut] ||
		s.leftAfter(q.user, l.of) && !m.without[leftIsAnAnswer]
}

// loaded returns a gate that shows the rows as the load has read them, without a line.
func (s *state) loaded(l *loader) gate {
	f := s.history[l.version]
	g := gate{
		exists: true, thisRun: true, generation: l.generation, version: l.version, next: s.settledAt(l.version),
		live: s.liveAt(l.version), total: f.total, granted: f.granted, used: f.used, grant: f.grant,
	}
	for user := uint8(1); user <= usersMax; user++ {
		g.holdings[user-1] = s.holding(user, l.version)
	}
	return g
}

// swap makes the loaded gate the one that is served.
func (m *model) swap(s *state, i uint8) {
	t := *s
	l := s.all[i].loader
	g := s.loaded(&l)
	switch l.mode {
	case loadKeep:
		g.line, g.stream = s.gate.line, s.gate.stream
		last := s.gate.next
		if m.without[gateKeepsNext] {
			last = 0
			for _, q := range g.line {
				last = max(last, q.ticket)
			}
		}
		g.next = max(g.next, last)
	case loadCopy:
		g.line = s.gate.copied
		for _, q := range g.line[:g.waiting()] {
			g.add(q.ticket, q.user, l.generation)
			g.next = q.ticket
		}
	}
	t.gate = g
	t.all[i].loader = loader{}
	m.emit(s, t, swaps, i, 0, "")
}

// swapAtOnce is a swap that does everything in one script.
func (m *model) swapAtOnce(s *state, i uint8) {
	t := *s
	l := s.all[i].loader
	g := s.loaded(&l)
	touched := 0
	for _, q := range s.gate.line[:s.gate.waiting()] {
		if l.mode != loadFresh && !m.leftOut(s, &l, q) {
			g.next++
			g.line[touched] = request{g.next, q.user}
			g.add(g.next, q.user, l.generation)
			touched++
		}
	}
	breach := ""
	if touched > chunk {
		breach = "one script touches more than a chunk of the line"
	}
	t.gate = g
	t.all[i].loader = loader{}
	m.emit(s, t, swaps, i, 0, breach)
}
