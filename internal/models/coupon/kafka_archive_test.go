package coupon

// takesNothing reports whether a transaction is refused because the template is archived.
func (m *kafkaModel) takesNothing(s *kafkaState) bool {
	return s.archived && !m.without[archivedTakesNothing]
}

// archive lets the template close, be archived once no place is set aside and nobody with
// a 202 waits, and lose its rows. The counts stay.
func (m *kafkaModel) archive(s *kafkaState) {
	t := *s
	switch {
	case s.archived:
		if s.rowCount() == 0 {
			return
		}
		for _, r := range s.rows[:s.rowCount()] {
			if r.outcome == kafkaIssued {
				t.gone[r.user-1]++
			}
		}
		t.rows = [kafkaRowsMax]kafkaRow{}
		m.step(t, "the rows are removed")
	case s.closed:
		if s.used != m.granted || s.promised != [usersMax]bool{} {
			return
		}
		t.archived = true
		t.generation++
		m.step(t, "the template is archived")
	case s.may[eventArchive] > 0:
		t.closed = true
		m.happens(t, eventArchive, "the template closes", record{})
	}
}
