package coupon

import (
	"fmt"

	"github.com/largesse/largesse/internal/models/explore"
)

// kafkaLabel says which step was taken.
type kafkaLabel struct {
	text   string
	record record
}

func (l kafkaLabel) String() string {
	if l.record.ticket == 0 {
		return l.text
	}
	return fmt.Sprintf(l.text, l.record)
}

// kafkaTransition is a possible step and the state after it.
type kafkaTransition = explore.Step[kafkaState, kafkaLabel]

// kafkaModel computes the steps that are possible in a state of the KAFKA model: the
// gate's outbox, a forwarder or two, the log, consumers that read in any order, and
// loads. Anybody forwards at any time, so the forwarder's lease is not modeled.
type kafkaModel struct {
	options
	out []kafkaTransition
}

// First returns the state in which a run begins.
func (m *kafkaModel) First() kafkaState {
	return kafkaState{gate: kafkaGate{exists: true, generation: 1}, generation: 1, may: m.events}
}

func (m *kafkaModel) emit(next kafkaState, fault bool, text string, r record, breach string) {
	next.canonical()
	m.out = append(m.out, kafkaTransition{
		Label: kafkaLabel{text, record{ticket: r.ticket, user: r.user, generation: r.generation}}, Fault: fault, Breach: breach, Next: next,
	})
}

// step adds a step of the system.
func (m *kafkaModel) step(next kafkaState, text string) { m.emit(next, false, text, record{}, "") }

// of adds a step of the system that is about a record.
func (m *kafkaModel) of(next kafkaState, text string, r record) { m.emit(next, false, text, r, "") }

// happens adds an event, and counts it.
func (m *kafkaModel) happens(next kafkaState, e event, text string, r record) {
	next.may[e]--
	m.emit(next, true, text, r, "")
}

// Next returns all steps that are possible in a state.
func (m *kafkaModel) Next(s *kafkaState) (steps []kafkaTransition, breach string) {
	m.out = m.out[:0]
	m.requests(s)
	for k := range s.records {
		if s.records[k].ticket != 0 {
			m.forward(s, k)
			m.consume(s, k)
		}
	}
	m.faults(s)
	m.pastTheGate(s)
	m.leave(s)
	m.archive(s)
	m.apply(s)
	m.load(s)
	return m.out, ""
}

// Calm returns the step that comes next when nothing fails and nobody requests anything.
func (m *kafkaModel) Calm(s *kafkaState) (kafkaTransition, bool) {
	steps, _ := m.Next(s)
	for _, t := range steps {
		if !t.Fault && t.Next != *s {
			return t, true
		}
	}
	return kafkaTransition{}, false
}

// mayAsk reports whether a user may request, and takes the request off the events.
func (s *kafkaState) mayAsk(t *kafkaState, user uint8) bool {
	switch {
	case user > 1 && s.asked[user-2] == 0:
		return false
	case s.asked[user-1] == 0:
		return true
	case s.may[eventRequest] == 0:
		return false
	}
	t.may[eventRequest]--
	return true
}

// requests lets each user request at the gate. They hear 202 when Kafka has the record.
func (m *kafkaModel) requests(s *kafkaState) {
	g := &s.gate
	free := min(int(m.total)-int(g.live), int(m.granted)-int(g.used)) - g.waiting()
	if s.closed || !g.exists || g.closed || free <= 0 {
		return
	}
	for user := uint8(1); user <= m.users; user++ {
		t := *s
		if s.bypass && s.answeredAfter(user, g.generation, kafkaIssued) || g.inLine(user, 0) || g.holdings[user-1] >= m.limit || !s.mayAsk(&t, user) {
			continue
		}
		breach := ""
		if s.promised[user-1] {
			breach = "a second ticket for a user who waits"
		}
		t.asked[user-1]++
		t.revived[user-1] = false
		t.gate.next++
		t.gate.line[g.waiting()] = request{t.gate.next, user}
		r := record{ticket: t.gate.next, user: user, generation: g.generation, outbox: true}
		t.publish(r)
		m.emit(t, true, "%s is admitted", r, breach)
	}
}

// forward publishes a record of the outbox. Its acknowledgement deletes it there, and
// that makes it 202.
func (m *kafkaModel) forward(s *kafkaState, k int) {
	r := s.records[k]
	if r.outbox && !r.log && !r.flight && !s.gate.closed {
		t := *s
		t.records[k].flight = true
		m.of(t, "%s is published", r)
	}
	if r.outbox && r.log && (!s.gate.closed || m.without[ackNeedsOpenGate]) {
		t := *s
		t.records[k].outbox = false
		answered := false
		for _, row := range s.rows {
			answered = answered || row.ticket != 0 && row.user == r.user && row.generation > r.generation
		}
		// Nobody waits for an answer until the template is archived.
		if !r.done && !s.archived && !s.hasRow(r.generation, r.ticket) && !answered && !s.revived[r.user-1] {
			t.promised[r.user-1] = true
		}
		m.of(t, "%s is acknowledged: 202", r)
	}
	if r.flight {
		t := *s
		t.records[k].flight, t.records[k].log = false, true
		m.of(t, "%s reaches the log", r)
	}
}

// consume lets a consumer settle a record of the log.
func (m *kafkaModel) consume(s *kafkaState, k int) {
	r := s.records[k]
	if !r.log || r.done {
		return
	}
	t := *s
	t.records[k].done = true
	switch {
	case m.takesNothing(s):
		m.of(t, "a consumer writes a dead letter: %s is of an archived template", r)
		return
	case s.hasRow(r.generation, r.ticket):
		m.of(t, "a consumer meets %s, settled already", r)
		return
	case r.generation < s.floor && !m.without[floorVoidsRecords]:
		m.of(t, "a consumer drops %s, below the floor", r)
		return
	case s.answeredAfter(r.user, r.generation, kafkaIssued) && !m.without[answeredAreLeftOut]:
		m.of(t, "a consumer drops %s: a coupon of a later generation is the answer", r)
		return
	case m.neverGiven(s, r.ticket):
		breach := ""
		if r.ticket != forgedTicket {
			breach = "a ticket that was given is refused as never given"
		}
		m.emit(t, false, "a consumer writes a dead letter: %s was never given", r, breach)
		return
	}
	row := kafkaRow{user: r.user, generation: r.generation, ticket: r.ticket}
	text, breach := "a consumer settles %s", ""
	switch {
	case s.live(s.version, r.user) >= m.limit:
		row.outcome = kafkaUserLimit
		text += ": USER_LIMIT"
		breach = "202, then REJECTED: USER_LIMIT"
	case s.live(s.version, 0) >= m.total:
		row.outcome = kafkaSoldOut
		text += ": SOLD_OUT"
		breach = "202, then REJECTED: SOLD_OUT"
	}
	if !s.promised[r.user-1] || s.gate.exists && !s.gate.inLine(r.user, r.ticket) {
		breach = ""
	}
	t.used = min(s.used+1, m.granted)
	t.insert(row)
	if r.ticket != forgedTicket {
		t.promised[r.user-1], t.revived[r.user-1] = false, false
	}
	m.emit(t, false, text, r, breach)
}

// neverGiven reports whether no gate can have given a ticket.
func (m *kafkaModel) neverGiven(s *kafkaState, ticket uint8) bool {
	most := m.total
	if m.without[boundIsQuantity] {
		most = m.granted - s.used
	}
	return ticket > s.settled+most && !m.without[ticketsHaveBound]
}

// faults lets Redis and Kafka lose data, and somebody publish a record.
func (m *kafkaModel) faults(s *kafkaState) {
	m.redis(s)
	for k, r := range s.records {
		if s.may[eventReread] > 0 && r.log && r.done {
			t := *s
			t.records[k].done = false
			m.happens(t, eventReread, "%s is read again", r)
		}
		if s.may[eventBrokerLoss] > 0 && r.log && !r.done {
			t := *s
			t.records[k].log, t.records[k].awaited = false, false
			if !s.waitsInLine(r.user) {
				t.promised[r.user-1] = false // Redis has lost the request too
			}
			m.happens(t, eventBrokerLoss, "KAFKA LOSES %s", r)
		}
	}
	if s.may[eventForged] > 0 && s.gate.exists && !s.gate.closed {
		t := *s
		r := record{ticket: forgedTicket, user: 1, generation: s.generation, log: true}
		t.publish(r)
		m.happens(t, eventForged, "SOMEBODY PUBLISHES %s", r)
	}
}

// redis lets Redis lose its data, and write a snapshot.
func (m *kafkaModel) redis(s *kafkaState) {
	if s.may[eventFlush] > 0 && s.gate.exists {
		t := *s
		t.gate = kafkaGate{}
		m.forgetPromises(s, &t)
		m.happens(t, eventFlush, "REDIS LOSES ALL", record{})
	}
	if s.may[eventRollback] == 0 {
		return
	}
	if !s.hasSnapshot && s.gate.exists && s.gate.waiting() > 0 {
		t := *s
		t.hasSnapshot, t.snapshot = true, s.gate
		t.snapshot.closed = true // it is of an earlier run
		m.emit(t, true, "Redis writes a snapshot", record{}, "")
	}
	now := s.gate
	now.closed = true
	if s.hasSnapshot && now != s.snapshot {
		t := *s
		t.gate, t.snapshot, t.hasSnapshot = s.snapshot, kafkaGate{}, false
		t.loader.lost = t.loader.phase != kafkaNoLoad
		m.forgetPromises(s, &t)
		m.happens(t, eventRollback, "REDIS RESTARTS FROM THE SNAPSHOT", record{})
	}
}

// forgetPromises ends the promises that Redis has lost. A promise survives in a record
// that waits in the log, and if the very request is still in line.
func (m *kafkaModel) forgetPromises(was, s *kafkaState) {
	s.emptyOutbox()
	for user := range s.promised {
		safe := false
		for _, r := range was.records {
			waits := r.log && !r.done && !was.hasRow(r.generation, r.ticket) && (r.generation >= was.floor || m.without[floorVoidsRecords])
			safe = safe || waits && int(r.user) == user+1
		}
		for _, q := range was.gate.line[:was.gate.waiting()] {
			safe = safe || int(q.user) == user+1 && s.gate.generation == was.gate.generation && s.gate.inLine(q.user, q.ticket)
		}
		s.promised[user] = was.promised[user] && safe
		s.revived[user] = !safe && s.gate.inLine(uint8(user+1), 0)
	}
}

// pastTheGate lets requests go through the rows.
func (m *kafkaModel) pastTheGate(s *kafkaState) {
	if !s.bypass {
		if s.may[eventBypass] > 0 && !m.takesNothing(s) {
			t := *s
			t.generation++
			t.bypass = true
			t.endLoad()
			m.happens(t, eventBypass, "PATH DATABASE", record{})
		}
		return
	}
	if s.closed || int(m.total)-int(s.live(s.version, 0))-(int(m.granted)-int(s.used)) <= 0 {
		return
	}
	for user := uint8(1); user <= m.users; user++ {
		t := *s
		if s.live(s.version, user) >= m.limit || !s.mayAsk(&t, user) {
			continue
		}
		if !s.promised[user-1] && !s.waitsInLine(user) { // otherwise it is the request that waits
			t.asked[user-1]++
		}
		t.promised[user-1] = false
		t.insert(kafkaRow{user: user, generation: s.generation, ticket: s.settled + 1, direct: true})
		m.emit(t, true, letter(user)+" requests through the rows: coupon", record{}, "")
	}
}

// leave lets a user leave the line: the gate tells the ticket, then the row decides. The
// user's request may end in between.
func (m *kafkaModel) leave(s *kafkaState) {
	g := &s.gate
	if s.leaver.user == 0 {
		if s.may[eventLeave] == 0 || !g.exists || g.closed {
			return
		}
		for _, q := range g.line[:g.waiting()] {
			t := *s
			t.leaver = leaver{user: q.user, ticket: q.ticket, entry: g.generation, of: g.generation}
			m.happens(t, eventLeave, letter(q.user)+" reads their ticket to leave the line", record{})
		}
		return
	}
	l := s.leaver
	t := *s
	t.leaver = leaver{}
	if m.takesNothing(s) || (s.generation != l.of || s.bypass) && !m.without[leaveNamesGate] || s.hasRow(l.entry, l.ticket) && !m.without[leaveNamesTicket] {
		m.emit(t, true, letter(l.user)+" is too late to leave, or refused", record{}, "")
		return
	}
	t.used = min(s.used+1, m.granted)
	t.insert(kafkaRow{user: l.user, generation: l.entry, ticket: l.ticket, outcome: kafkaLeft})
	t.promised[l.user-1], t.revived[l.user-1] = false, false
	t.left[l.user-1]++
	m.emit(t, true, letter(l.user)+" leaves the line: row LEFT", record{}, "")
}

// apply brings the gate to the next version.
func (m *kafkaModel) apply(s *kafkaState) {
	if g := s.gate; s.archived || !g.exists || g.closed || g.version >= s.version || s.bypass || g.generation != s.generation {
		return
	}
	t := *s
	g := &t.gate
	g.version++
	g.live, g.used = s.live(g.version, 0), m.usedAt(s, g.version)
	var kept [usersMax]request
	n := 0
	for _, q := range s.gate.line[:s.gate.waiting()] {
		gone := false
		for _, r := range s.rows {
			gone = gone || r.ticket == q.ticket && r.user == q.user && r.version == g.version && r.generation == g.generation
		}
		if !gone {
			kept[n] = q
			n++
		}
	}
	g.line = kept
	for user := range g.holdings {
		g.holdings[user] = s.live(g.version, uint8(user+1))
	}
	m.step(t, "an apply arrives")
}

// usedAt returns the used places at a version.
func (m *kafkaModel) usedAt(s *kafkaState, version uint8) (n uint8) {
	for _, r := range s.rows {
		if r.ticket != 0 && r.version <= version && !r.direct {
			n++
		}
	}
	return min(n, m.granted)
}

// endLoad forgets the load.
func (s *kafkaState) endLoad() {
	s.loader = kafkaLoader{}
	for k := range s.records {
		s.records[k].awaited = false
	}
}

// load lets a load begin, start over, or continue.
func (m *kafkaModel) load(s *kafkaState) {
	if !s.archived { // no instance maintains its gate
		m.beginLoad(s)
	}
	t := *s
	me := &t.loader
	if me.phase != kafkaNoLoad && m.takesNothing(s) {
		t.endLoad()
		m.step(t, "the template is archived, the load ends")
		return
	}
	switch me.phase {
	case kafkaClosed:
		for _, r := range s.records {
			if r.awaited && !r.done && !m.without[floorIsRecordedLast] {
				return
			}
		}
		t.generation++
		t.bypass = false
		me.phase = kafkaRaised
		m.step(t, fmt.Sprintf("the consumers have passed them: the load raises the generation to %d", t.generation))
	case kafkaRaised:
		t.floor = s.generation
		me.phase = kafkaFloor
		m.step(t, fmt.Sprintf("the load records the floor %d", t.floor))
	case kafkaFloor:
		me.phase, me.version = kafkaRead, s.version
		m.step(t, "the load reads the rows")
	case kafkaRead:
		m.copyLine(s)
	}
}

// beginLoad closes the gate and reads the end offsets. The rows, and with them the path,
// stay as they are until the consumers have passed these.
func (m *kafkaModel) beginLoad(s *kafkaState) {
	g := &s.gate
	stranded := g.exists && !s.bypass && !g.closed && g.waiting() > 0 && g.version == s.version && !m.without[strandedAreReloaded]
	for _, r := range s.records {
		if r.outbox || r.log && !r.done {
			stranded = false
		}
	}
	needed := !g.exists || g.closed || g.generation < s.generation || s.bypass
	underWay := s.loader.phase != kafkaNoLoad
	t := *s
	t.endLoad()
	t.loader.phase = kafkaClosed
	if g.exists {
		t.loader.of = g.generation
	}
	t.gate.closed = g.exists && !m.without[gateCloses]
	for k := range t.records {
		t.records[k].awaited = s.records[k].log && !s.records[k].done
	}
	const text = "a load closes the gate and reads the end offsets"
	switch {
	case underWay && needed && s.may[eventRestart] > 0:
		m.happens(t, eventRestart, text, record{})
	case underWay:
	case needed || stranded:
		m.step(t, text)
	case s.may[eventReload] > 0:
		m.happens(t, eventReload, text, record{})
	}
}

// copyLine lets a load copy a request, or swap when all are copied.
func (m *kafkaModel) copyLine(s *kafkaState) {
	t := *s
	me := &t.loader
	g := &s.gate
	switch {
	case me.lost || me.of != 0 && (!g.exists || g.generation != me.of):
		t.endLoad()
		m.step(t, "the gate is another, the load ends")
	case me.of != 0 && int(me.index) < g.waiting():
		q := g.line[me.index]
		me.index++
		gone := s.hasRow(me.of, q.ticket) && !m.without[copyAsksRows] ||
			s.answeredAfter(q.user, me.of, kafkaIssued) && !m.without[answeredAreLeftOut] ||
			s.answeredAfter(q.user, me.of, kafkaLeft) && !m.without[leftIsAnAnswer]
		if !gone {
			me.copied[me.prepared] = request{s.settled + me.prepared + 1, q.user}
			me.prepared++
		}
		m.step(t, "the load copies "+letter(q.user))
	default:
		loaded := kafkaGate{
			exists: true, generation: s.generation, version: me.version, live: s.live(me.version, 0), used: m.usedAt(s, me.version), line: me.copied,
		}
		for user := range loaded.holdings {
			loaded.holdings[user] = s.live(me.version, uint8(user+1))
		}
		for _, r := range s.rows {
			if r.version <= me.version {
				loaded.next = max(loaded.next, r.ticket)
			}
		}
		t.emptyOutbox()
		t.canonical() // makes places for the new records
		for _, q := range me.copied[:me.prepared] {
			loaded.next = max(loaded.next, q.ticket)
			t.publish(record{ticket: q.ticket, user: q.user, generation: s.generation, outbox: true})
		}
		t.gate = loaded
		t.endLoad()
		m.step(t, "the load swaps: the gate is loaded")
	}
}

// Check returns the invariant that a state breaks, or "".
func (m *kafkaModel) Check(s *kafkaState) string {
	live := s.live(s.version, 0)
	switch {
	case live > m.total:
		return "more coupons than the quantity"
	case live+m.granted-s.used > m.total:
		return "live coupons and promised places exceed the quantity"
	case s.settled >= forgedTicket:
		return "a ticket that was never given is settled"
	}
	for user := uint8(1); user <= m.users; user++ {
		n := s.live(s.version, user)
		switch {
		case n+s.gone[user-1] > m.limit:
			return "more coupons than the limit of a user"
		case n+s.gone[user-1] > s.asked[user-1]-s.left[user-1]:
			return "more coupons than requests of a user"
		}
	}
	return ""
}

// Rest returns what is wrong with a state in which nothing happens any more, or "".
func (m *kafkaModel) Rest(s *kafkaState) string {
	g := &s.gate
	outbox := false
	for _, r := range s.records {
		outbox = outbox || r.outbox
	}
	switch {
	case s.archived && s.promised != [usersMax]bool{}:
		return "a promised user is never served"
	case s.archived && s.rowCount() > 0:
		return "a row of an archived template stays"
	case s.archived:
		return ""
	case !g.exists:
		return "there is no gate at rest"
	case g.waiting() > 0:
		return "the line is not empty at rest"
	case outbox:
		return "the outbox is not empty at rest"
	case g.version != s.version || g.live != s.live(s.version, 0):
		return "the gate differs from the rows at rest"
	case s.promised != [usersMax]bool{}:
		return "a promised user is never served"
	}
	return ""
}
