package coupon

import "fmt"

// observe records what users have learned in a step, and returns the invariant that the
// step breaks, or "".
func (m *model) observe(was, s *state) (breach string) {
	if !was.bypass {
		breach = servedInOrder(was, s)
	}
	s.orderPromises()
	for w, u := range s.users {
		if !u.promised || s.gate.place(uint8(w+1)) >= 0 {
			s.removed &^= 1 << w
		}
	}
	if !m.serves(s) || s.removed != 0 { // who is behind them moves up until they come back
		return breach
	}
	for k, q := range s.gate.line[:s.gate.waiting()] {
		u := &s.users[q.user-1]
		rank, generation := uint8(k), s.gate.entryOf(q.ticket)
		// After a leave and a loss, a later ticket may have the same number.
		same := u.seenTicket == q.ticket && (u.seenGeneration == generation || s.left[0].ticket == 0)
		if same && rank > u.seenRank && breach == "" {
			breach = "the rank of a waiting user rises"
		}
		u.seenTicket, u.seenRank, u.seenGeneration = q.ticket, rank, generation
	}
	return breach
}

// servedInOrder returns "" unless a batch settled a promise before an earlier one.
func servedInOrder(was, s *state) string {
	for k := was.settled; k < s.settled; k++ {
		u := was.users[s.rows[k].user-1]
		if !u.promised || s.rows[k].outcome == outcomeLeft {
			continue
		}
		for w := range s.users {
			if s.users[w].promised && was.users[w].order < u.order {
				return "a user is served before an earlier one"
			}
		}
	}
	return ""
}

// orderPromises numbers the promises by their order, without gaps.
func (s *state) orderPromises() {
	var ordered [usersMax]uint8
	for w := range s.users {
		u := &s.users[w]
		if !u.promised {
			continue
		}
		ordered[w] = 1
		for v := range s.users {
			o := &s.users[v]
			if v != w && o.promised && o.order != 0 && (u.order == 0 || o.order < u.order) {
				ordered[w]++
			}
		}
	}
	for w := range s.users {
		s.users[w].order = ordered[w]
	}
}

// Check returns the invariant that a state breaks, or "".
func (m *model) Check(s *state) string {
	f := s.figures
	switch {
	case s.live > f.total:
		return "more live coupons than the quantity"
	case !s.archived && s.live != s.liveAt(s.version):
		return "the live coupons differ from the rows"
	case s.archived && f.promised() > 0:
		return "an archived template has places set aside"
	case m.without[placesAreSetAside]:
	case f.promised() < 0:
		return "promised places below zero"
	case int(s.live)+f.promised() > int(f.total):
		return "live coupons and promised places exceed the quantity"
	}
	var got [usersMax]uint8
	codes := s.pool
	for k, r := range s.rows[:s.settled] {
		if r.code != 0 {
			if codes&(1<<(r.code-1)) != 0 {
				return "a code can be given twice"
			}
			codes |= 1 << (r.code - 1)
		}
		switch r.outcome {
		case outcomeNone:
			if s.archived {
				continue // removed
			}
			return fmt.Sprintf("ticket %d has no row", k+1)
		case outcomeIssued, outcomeHeld, outcomeExpired, outcomeCancelled, outcomeSwept:
			got[r.user-1]++
		}
	}
	for user := uint8(1); user <= usersMax; user++ {
		if s.holding(user, s.version) > m.limit {
			return "more live coupons than the limit of a user"
		}
		if got[user-1]+s.users[user-1].gone > s.users[user-1].accepted {
			return "more coupons than requests of a user"
		}
	}
	if !m.serves(s) {
		return ""
	}
	return s.checkLine()
}

// checkLine returns what is wrong with the line of a gate that is served, or "".
func (s *state) checkLine() string {
	g := &s.gate
	for _, l := range s.left {
		if l.ticket == 0 || l.version > g.version {
			continue
		}
		if k := g.place(l.user); k >= 0 && g.line[k].ticket == l.ticket && g.entryOf(l.ticket) == l.generation {
			return "a user who has left is in line"
		}
	}
	if g.generation == s.generation && !s.bypass {
		for w, u := range s.users {
			if u.promised && g.place(uint8(w+1)) < 0 && s.removed&(1<<w) == 0 {
				return "a promised user is not in line"
			}
		}
	}
	return ""
}

// Rest returns what is wrong with a state in which nothing happens any more, or "".
func (m *model) Rest(s *state) string {
	for _, u := range s.users {
		if u.promised {
			return "a promised user is never served"
		}
	}
	for _, r := range s.rows {
		if s.archived && r != (row{}) {
			return "a row of an archived template stays"
		}
		if r.outcome == outcomeExpired {
			return "an expired hold stays"
		}
	}
	g := &s.gate
	switch {
	case s.archived:
		return ""
	case !g.exists || !g.thisRun || g.closed:
		return "there is no gate at rest"
	case g.generation != s.generation || s.bypass:
		return "the gate has an old generation at rest"
	case g.waiting() > 0:
		return "the line is not empty at rest"
	case g.entries() > 0:
		return "the stream is not empty at rest"
	case g.version != s.version || g.live != s.live || g.total != s.figures.total:
		return "the gate differs from the rows at rest"
	case g.next != s.settled:
		return "the last ticket is not settled at rest"
	}
	for user := uint8(1); user <= usersMax; user++ {
		if g.holdings[user-1] != s.holding(user, s.version) {
			return "a holding differs from the rows at rest"
		}
	}
	unpromised := int(s.figures.total) - int(s.live) - s.figures.promised()
	repairs := s.figures.granted > g.granted && !m.without[grantRepeatsShrink]
	if !m.without[placesAreSetAside] && s.live < s.figures.total && m.free(g) <= 0 && unpromised <= 0 && !repairs {
		return "a place is promised to nobody, and nobody can have it"
	}
	return ""
}
