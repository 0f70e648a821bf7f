package coupon

// takesNothing reports whether a transaction is refused because the template is archived.
func (m *model) takesNothing(s *state) bool { return s.archived && !m.without[archivedTakesNothing] }

// archive lets the template close, open again, be archived in two steps, and lose its
// rows.
func (m *model) archive(s *state) {
	if s.may[eventReopen] > 0 && s.closed && !m.takesNothing(s) {
		t := *s
		t.may[eventReopen]--
		t.nextVersion()
		t.closed = false
		t.record()
		m.emit(s, t, reopens, none, 0, "")
	}
	if s.closed && !s.archived && !s.gate.exists && s.figures.promised() > 0 {
		t := *s
		t.nextVersion()
		t.figures.granted = s.figures.used
		t.figures.grant++
		t.record()
		m.emit(s, t, releases, none, 0, "")
	}
	switch {
	case s.archived:
		m.removeRow(s)
	case s.over > 0:
		m.archiveSeen(s)
	case s.closed:
		if m.isOver(s) {
			t := *s
			t.over = s.version + 1
			m.emit(s, t, seesOver, none, 0, "")
		}
	case s.may[eventArchive] > 0:
		t := *s
		t.may[eventArchive]--
		t.closed = true
		m.emit(s, t, closesTemplate, none, 0, "")
	}
}

// isOver reports whether a closed template may be archived: it has set no place aside
// and has no hold. Nobody waits any more: the product archives days after the close.
func (m *model) isOver(s *state) bool {
	if s.figures.promised() > 0 {
		return false
	}
	for _, r := range s.rows {
		if r.outcome == outcomeHeld || r.outcome == outcomeExpired {
			return false
		}
	}
	for _, u := range s.users {
		if u.promised {
			return false
		}
	}
	return true
}

// archiveSeen is the transaction that archives a template that was seen to be over.
func (m *model) archiveSeen(s *state) {
	t := *s
	t.over = 0
	if s.over != s.version+1 && !m.without[archiveNamesVersion] {
		m.emit(s, t, archivesNothing, none, 0, "")
		return
	}
	t.archived = true
	if !m.without[archiveRaisesGeneration] {
		t.generation++
		for i := range t.all {
			t.all[i].owner = false
		}
	}
	m.emit(s, t, archives, none, 0, "")
}

// removeRow removes the first row of an archived template. The counts stay.
func (m *model) removeRow(s *state) {
	for k, r := range s.rows {
		if r == (row{}) {
			continue
		}
		t := *s
		t.rows[k] = row{}
		if r.outcome < outcomeUserLimit {
			t.users[r.user-1].gone++
		}
		m.emit(s, t, removesRow, none, uint8(k+1), "")
		return
	}
	if s.left != ([leftMax]left{}) {
		t := *s
		t.left = [leftMax]left{}
		m.emit(s, t, removesRow, none, t.left[0].ticket, "")
	}
}
