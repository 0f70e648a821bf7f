package coupon

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/largesse/largesse/internal/models/explore"
)

const (
	recordsMax   = 8
	kafkaRowsMax = 8
	// forgedTicket is a ticket that no gate gave.
	forgedTicket = 9
)

// record is a request that goes from the gate's outbox through Kafka to the consumers.
type record struct {
	ticket, user, generation uint8
	outbox                   bool // the gate still has it to publish
	flight                   bool // published, and not in the log yet
	log                      bool // in the log
	done                     bool // the consumers have passed it
	awaited                  bool // the load waits until they have
}

// kafkaOutcome is what a row says.
type kafkaOutcome uint8

const (
	kafkaIssued kafkaOutcome = iota
	kafkaUserLimit
	kafkaSoldOut
	kafkaLeft
)

// kafkaRow is a row of a request. Tickets are settled in any order.
type kafkaRow struct {
	user, generation, ticket uint8
	outcome                  kafkaOutcome
	version                  uint8
	direct                   bool // the request went through the rows
}

// kafkaGate is what Redis stores, except for the outbox.
type kafkaGate struct {
	exists, closed                        bool
	generation, version, live, next, used uint8
	line                                  [usersMax]request
	holdings                              [usersMax]uint8
}

// kafkaLoader is the load.
type kafkaLoader struct {
	phase           kafkaPhase
	of, version     uint8
	copied          [usersMax]request
	index, prepared uint8
	lost            bool // Redis has restarted since the load began
}

// kafkaPhase is how far the load is.
type kafkaPhase uint8

const (
	kafkaNoLoad kafkaPhase = iota
	kafkaClosed            // has closed the gate and read the end offsets
	kafkaRaised            // the consumers have passed them, and the generation is raised
	kafkaFloor             // the floor is recorded
	kafkaRead              // has a snapshot of the rows: copies, then swaps
)

// kafkaState is the whole system. The outbox has no snapshot: nobody reads it from a
// gate that is not served, and a load makes a new one from the line.
type kafkaState struct {
	gate, snapshot                            kafkaGate
	hasSnapshot                               bool
	generation, floor, version, used, settled uint8
	bypass                                    bool // path DATABASE
	closed, archived                          bool
	rows                                      [kafkaRowsMax]kafkaRow
	records                                   [recordsMax]record
	loader                                    kafkaLoader
	leaver                                    leaver
	promised                                  [usersMax]bool
	revived                                   [usersMax]bool  // in line again after Redis had lost the request
	asked, left                               [usersMax]uint8 // requests of a user, and those that they left
	gone                                      [usersMax]uint8 // coupons of a user whose rows are removed
	may                                       events
}

// rowCount returns the number of rows.
func (s *kafkaState) rowCount() (n int) {
	for n < kafkaRowsMax && s.rows[n].ticket != 0 {
		n++
	}
	return n
}

// hasRow reports whether a ticket of a generation has a row.
func (s *kafkaState) hasRow(generation, ticket uint8) bool {
	for _, r := range s.rows {
		if r.ticket == ticket && r.generation == generation {
			return true
		}
	}
	return false
}

// answeredAfter reports whether a user has a row with an outcome, of a generation after
// another.
func (s *kafkaState) answeredAfter(user, generation uint8, what kafkaOutcome) bool {
	for _, r := range s.rows {
		if r.ticket != 0 && r.user == user && r.generation > generation && r.outcome == what {
			return true
		}
	}
	return false
}

// live returns the coupons at a version, of one user or of all (0).
func (s *kafkaState) live(version, user uint8) (n uint8) {
	for _, r := range s.rows {
		if r.ticket != 0 && r.outcome == kafkaIssued && r.version <= version && (user == 0 || r.user == user) {
			n++
		}
	}
	return n
}

// insert adds a row in a version of its own.
func (s *kafkaState) insert(r kafkaRow) {
	s.version++
	r.version = s.version
	s.rows[s.rowCount()] = r
	s.settled = max(s.settled, r.ticket)
}

// waiting returns the length of the line.
func (g *kafkaGate) waiting() (n int) {
	for n < usersMax && g.line[n].ticket != 0 {
		n++
	}
	return n
}

// inLine reports whether a user waits, with a ticket or with any (0).
func (g *kafkaGate) inLine(user, ticket uint8) bool {
	for _, q := range g.line {
		if q.ticket != 0 && q.user == user && (ticket == 0 || q.ticket == ticket) {
			return true
		}
	}
	return false
}

// waitsInLine reports whether a user is in line with a request that is not settled.
func (s *kafkaState) waitsInLine(user uint8) bool {
	for _, q := range s.gate.line {
		if q.ticket != 0 && q.user == user && !s.hasRow(s.gate.generation, q.ticket) {
			return true
		}
	}
	return false
}

// publish adds a record to the outbox or to the log.
func (s *kafkaState) publish(r record) {
	for k := range s.records {
		if s.records[k].ticket == 0 {
			s.records[k] = r
			return
		}
	}
	panic("too many records: " + s.String())
}

// emptyOutbox removes the outbox.
func (s *kafkaState) emptyOutbox() {
	for k := range s.records {
		s.records[k].outbox = false
	}
}

// canonical forgets the records that no later step reads, orders the others, and counts
// versions from the oldest one that the gate or the load still shows.
func (s *kafkaState) canonical() {
	if s.may[eventRollback] == 0 {
		s.hasSnapshot, s.snapshot = false, kafkaGate{}
	}
	for k := range s.records {
		r := &s.records[k]
		lost := !r.outbox && !r.flight && !r.log
		if lost || r.done && !r.outbox && !r.flight && s.may[eventReread] == 0 {
			*r = record{}
		}
	}
	slices.SortFunc(s.records[:], func(a, b record) int {
		return cmp.Or(-cmp.Compare(a.generation, b.generation), -cmp.Compare(a.ticket, b.ticket), -cmp.Compare(a.user, b.user))
	})
	oldest := s.version
	if s.gate.exists {
		oldest = min(oldest, s.gate.version)
	}
	if s.hasSnapshot {
		oldest = min(oldest, s.snapshot.version)
	}
	if s.loader.phase == kafkaRead {
		oldest = min(oldest, s.loader.version)
	}
	lower := func(version *uint8) { *version -= min(*version, oldest) }
	lower(&s.version)
	lower(&s.gate.version)
	lower(&s.snapshot.version)
	lower(&s.loader.version)
	for k := range s.rows {
		lower(&s.rows[k].version)
	}
}

func (s *kafkaState) String() string { return explore.Show(*s) }

func (r record) String() string {
	return fmt.Sprintf("%d-%d %s", r.ticket, r.generation, letter(r.user))
}
