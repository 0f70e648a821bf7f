package coupon

import "cmp"

// issue lets an instance take the issuer's lease, read a batch, settle it and
// acknowledge it.
func (m *model) issue(s *state, i uint8) {
	h := s.all[i]
	switch h.issuer {
	case issuerNone:
		m.takeLease(s, i)
	case issuerClaim, issuerRead:
		m.readBatch(s, i)
	case issuerBatch:
		m.settle(s, i)
	default:
		m.acknowledge(s, i)
	}
}

// takeLease gives an instance the lease if it is free, or from an owner that stalls.
func (m *model) takeLease(s *state, i uint8) {
	if m.takesNothing(s) {
		return
	}
	other := 1 - i
	t := *s
	if s.all[other].owner {
		if m.calm || s.may[eventSteal] == 0 {
			return
		}
		t.may[eventSteal]--
		t.all[other].owner = false
	}
	t.all[i].issuer, t.all[i].owner = issuerClaim, true
	m.emit(s, t, takesLease, i, 0, "")
}

// readBatch lets an issuer claim everything pending, or read new entries.
func (m *model) readBatch(s *state, i uint8) {
	if s.gate.entries() == 0 || !m.serves(s) && !m.without[readNeedsGate] {
		return
	}
	if s.all[i].issuer == issuerClaim {
		m.claim(s, i)
		return
	}
	t := *s
	me := &t.all[i]
	n, pending := uint8(0), false
	for k := range t.gate.stream {
		switch e := &t.gate.stream[k]; {
		case e.ticket == 0:
		case e.pending:
			pending = true
		case n < readMax:
			e.pending = true
			me.batch[n] = item{e.ticket, e.user, e.generation}
			n++
		}
	}
	if n == 0 {
		if pending && !m.without[batchIsClaimedAgain] {
			m.claim(s, i)
		}
		return
	}
	if !m.calm && s.may[eventLostRead] > 0 {
		lost := t
		lost.all[i] = s.all[i]
		lost.may[eventLostRead]--
		m.emit(s, lost, losesReply, i, n, "")
	}
	me.issuer, me.read = issuerBatch, s.gate.generation
	m.emit(s, t, reads, i, n, "")
}

// claim lets an issuer claim everything pending.
func (m *model) claim(s *state, i uint8) {
	t := *s
	me := &t.all[i]
	me.issuer = issuerRead
	n := 0
	for _, e := range s.gate.stream {
		if e.pending && n < batchMax {
			me.batch[n] = item{e.ticket, e.user, e.generation}
			n++
		}
	}
	if n > 0 {
		me.issuer, me.read = issuerBatch, s.gate.generation
	}
	m.emit(s, t, claims, i, 0, "")
}

// refuses reports whether the transaction refuses the batch of an instance.
func (m *model) refuses(s *state, i uint8) bool {
	h := &s.all[i]
	if !h.owner || s.bypass || m.takesNothing(s) {
		return true
	}
	if !m.without[batchNamesGate] {
		return h.read != s.generation
	}
	for _, e := range h.batch {
		if e.ticket != 0 && (e.generation <= s.figures.base || e.generation > s.generation) {
			return true
		}
	}
	return false
}

// settle is the transaction of a batch: it settles the next tickets in their order.
func (m *model) settle(s *state, i uint8) {
	t := *s
	me := &t.all[i]
	me.batch = [batchMax]item{}
	if m.refuses(s, i) {
		me.issuer = issuerClaim
		if !s.all[i].owner {
			me.issuer = issuerNone
		}
		m.emit(s, t, settlesNothing, i, 0, "")
		return
	}
	breach, gap := "", false
	done := 0
	for _, e := range s.all[i].batch {
		if e.ticket == 0 {
			break
		}
		if e.ticket > t.settled+1 {
			gap = true
			break
		}
		if e.ticket == t.settled+1 {
			if t.version == s.version {
				t.nextVersion()
			}
			if b := m.settleNext(s, &t, e); b != "" {
				breach = b
			}
		} else if t.rows[e.ticket-1].user != e.user && s.waitsWith(e.user, e.ticket) {
			breach = "a waiting ticket belongs to another user's row"
		}
		me.batch[done] = e
		done++
	}
	if t.version != s.version {
		t.record()
	}
	switch again := gap && !m.without[batchIsClaimedAgain]; {
	case done > 0 && again:
		me.issuer = issuerAckClaim
	case done > 0:
		me.issuer = issuerAck
	case again:
		me.issuer = issuerClaim
	default:
		me.issuer = issuerRead
	}
	m.emit(s, t, settles, i, 0, breach)
}

// settleNext inserts the row of the next ticket. It returns what that breaks.
func (m *model) settleNext(s, t *state, e item) (breach string) {
	if t.settled == rowsMax {
		panic("too many rows: " + s.String())
	}
	r := row{user: e.user, generation: e.generation, inserted: t.version, outcome: outcomeIssued}
	ticket := &t.rows[t.settled]
	t.settled++
	u := &t.users[e.user-1]
	if m.hasLeft(s, e) {
		r.outcome = outcomeLeft
		*ticket = r
		if m.without[leftIsCountedOnce] {
			t.figures.used++
		}
		if u.promised && s.waitsWith(e.user, e.ticket) {
			return "a promised ticket is settled as LEFT"
		}
		return ""
	}
	without := "" // what the lack of a code breaks
	switch {
	case t.holding(e.user, t.version) >= m.limit:
		r.outcome = outcomeUserLimit
		breach = "202, then REJECTED: USER_LIMIT"
	case t.live >= t.figures.total:
		r.outcome = outcomeSoldOut
		breach = "202, then REJECTED: SOLD_OUT"
	default:
		t.live++
		if m.hold {
			r.outcome = outcomeHeld
		}
		without = m.giveCode(t, &r)
	}
	if !s.users[e.user-1].promised {
		breach = ""
	}
	*ticket = r
	m.useplace(t)
	u.promised = false
	return cmp.Or(without, breach)
}

// useplace counts a promised place as used.
func (m *model) useplace(s *state) {
	if s.figures.promised() > 0 || m.without[usedHasLimit] || m.without[placesAreSetAside] {
		s.figures.used++
	}
}

// hasLeft reports whether the user of an entry has left the line with it.
func (m *model) hasLeft(s *state, e item) bool {
	for _, l := range s.left {
		if l.ticket == e.ticket && l.user == e.user && (l.generation == e.generation || m.without[leftNamesEntry]) {
			return true
		}
	}
	return false
}

// waitsWith reports whether a user is promised and waits in line with a ticket.
func (s *state) waitsWith(user, ticket uint8) bool {
	k := s.gate.place(user)
	return s.users[user-1].promised && k >= 0 && s.gate.line[k].ticket == ticket
}

// acknowledge deletes the entries of a settled batch.
func (m *model) acknowledge(s *state, i uint8) {
	t := *s
	me := &t.all[i]
	me.issuer = issuerRead
	if s.all[i].issuer == issuerAckClaim {
		me.issuer = issuerClaim
	}
	var kept [streamMax]entry
	n := 0
	for _, e := range s.gate.stream {
		gone := false
		for _, b := range s.all[i].batch {
			gone = gone || b.ticket == e.ticket && (b.generation == e.generation || m.without[idsNameGeneration])
		}
		if e.ticket != 0 && !gone {
			kept[n] = e
			n++
		}
	}
	t.gate.stream = kept
	m.emit(s, t, acknowledges, i, 0, "")
}
