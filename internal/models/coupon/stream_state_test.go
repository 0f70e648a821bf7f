package coupon

import (
	"bytes"
	"unsafe"

	"github.com/largesse/largesse/internal/models/explore"
)

const (
	usersMax    = 3
	instances   = 2
	streamMax   = 7
	rowsMax     = 8
	leftMax     = 2
	batchMax    = 4
	readMax     = 2 // entries of one read
	versionsMax = 16
	admins      = 2
	chunk       = 1 // places of the line that one script of a load may touch
)

// request is one user in the waiting line. Users are numbered from 1.
type request struct{ ticket, user uint8 }

// entry is an entry of the stream. Its ID is {ticket}-{generation}.
type entry struct {
	ticket, user, generation uint8
	pending                  bool // delivered to an issuer, not acknowledged
}

// item is an entry in an issuer's batch.
type item struct{ ticket, user, generation uint8 }

// outcome is what a row says about a ticket.
type outcome uint8

const (
	outcomeNone outcome = iota
	outcomeIssued
	outcomeHeld
	outcomeExpired // HELD, and the hold has expired
	outcomeCancelled
	outcomeSwept // cancelled by the sweep of expired holds
	outcomeUserLimit
	outcomeSoldOut
	outcomeLeft
)

// row is the row of a settled ticket; its index is the ticket minus 1.
type row struct {
	user, generation uint8
	outcome          outcome
	// inserted and ended are the versions that inserted the row and ended its coupon.
	inserted, ended uint8
	code            uint8 // number of its imported code, from 1; 0 = none
}

// left is the row of a user who left the line. It settles no ticket.
type left struct{ ticket, user, generation, version uint8 }

// figures are what the template's row says at a version. live and settled follow from
// the rows.
type figures struct{ total, granted, used, grant, base uint8 }

// gate is what Redis stores.
type gate struct {
	exists  bool
	closed  bool
	thisRun bool // the server run that it names is the current one
	// generation of the load, version of the rows that the gate shows, and the last
	// ticket that it gave.
	generation, version, next         uint8
	live, total, granted, used, grant uint8
	marker                            uint8 // instance plus 1 that loads
	line                              [usersMax]request
	stream                            [streamMax]entry
	holdings                          [usersMax]uint8 // coupons by user
	copied                            [usersMax]request
}

// issuerPhase is how far an issuer is.
type issuerPhase uint8

const (
	issuerNone  issuerPhase = iota // the instance issues nothing
	issuerClaim                    // has to claim everything pending
	issuerRead                     // may read new entries
	issuerBatch                    // has a batch to write
	issuerAck                      // has a batch to acknowledge
	issuerAckClaim
)

// loaderPhase is how far a loader is.
type loaderPhase uint8

const (
	loaderNone loaderPhase = iota
	loaderMarked
	loaderRaised
	loaderClosed
	loaderRead // has a snapshot of the rows: trims or copies, then swaps
)

// loaderMode is what a load does with the line.
type loaderMode uint8

const (
	loadFresh loaderMode = iota // there is no gate
	loadKeep
	loadCopy
)

// loader is the load of an instance.
type loader struct {
	phase   loaderPhase
	mode    loaderMode
	thisRun bool // the server run is that of the marker
	forced  bool // the load has no cause
	// of is the generation of the gate that it found, 0 for none.
	of, generation, version, copied uint8
}

// instance is one process.
type instance struct {
	issuer issuerPhase
	owner  bool  // has the lease
	read   uint8 // generation of the gate that the batch was read from
	batch  [batchMax]item
	loader loader
	sweep  uint8 // ticket of the expired hold that its sweeper has read
}

// admin is an operator who lowers the quantity.
type admin struct {
	waits                     bool // between the gate and the row
	granted, grant, of, total uint8
}

// leaver is a user between the two steps of a leave.
type leaver struct{ user, ticket, entry, of uint8 }

// person is what the model knows about a user. It is no part of the system.
type person struct {
	asked    bool
	accepted uint8 // requests that were answered 202 or with a coupon
	gone     uint8 // coupons whose rows are removed
	// promised reports whether the user has a 202 that Redis has not lost, that is not
	// settled and that they have not left. order is the order of the promises.
	promised bool
	order    uint8
	// seen is the last place in line that the user could read.
	seenTicket, seenRank, seenGeneration uint8
}

// state is the whole system. It has no padding and no pointers, so that states can be
// compared and hashed.
type state struct {
	gate, snapshot gate
	hasSnapshot    bool

	generation, settled, version, live uint8
	figures                            figures
	pool                               uint8 // imported codes that no coupon has, a bit each
	bypass                             bool  // path DATABASE
	closed, archived                   bool
	over                               uint8 // version plus 1 at which the template was seen to be over; 0 = it was not
	rows                               [rowsMax]row
	left                               [leftMax]left
	history                            [versionsMax]figures // by version
	covering                           uint8                // version plus 1 of a covering apply on its way

	all    [instances]instance
	admins [admins]admin
	leaver leaver

	users [usersMax]person
	loads uint8
	lost  bool // Redis has lost something
	// removed are the promised users who were taken out of the line, a bit each.
	removed uint8
	may     events
}

// isLive reports whether a row counts as a coupon at a version.
func (r row) isLive(version uint8) bool {
	switch r.outcome {
	case outcomeIssued, outcomeHeld, outcomeExpired:
		return r.inserted <= version
	case outcomeCancelled, outcomeSwept:
		return r.inserted <= version && r.ended > version
	}
	return false
}

// liveAt returns the live coupons at a version.
func (s *state) liveAt(version uint8) (n uint8) {
	for _, r := range s.rows {
		if r.isLive(version) {
			n++
		}
	}
	return n
}

// holding returns the live coupons of a user at a version.
func (s *state) holding(user, version uint8) (n uint8) {
	for _, r := range s.rows {
		if r.user == user && r.isLive(version) {
			n++
		}
	}
	return n
}

// settledAt returns the last settled ticket at a version.
func (s *state) settledAt(version uint8) (n uint8) {
	for k, r := range s.rows[:s.settled] {
		if r.inserted <= version {
			n = uint8(k + 1)
		}
	}
	return n
}

// answeredAfter reports whether a user has a row of a generation after another.
func (s *state) answeredAfter(user, generation uint8) bool {
	for _, r := range s.rows[:s.settled] {
		if r.user == user && r.generation > generation {
			return true
		}
	}
	return false
}

// leftAfter reports whether a user left the line of a gate after another.
func (s *state) leftAfter(user, generation uint8) bool {
	for _, l := range s.left {
		if l.user == user && l.generation > generation {
			return true
		}
	}
	return false
}

// promised returns the places that are set aside.
func (f figures) promised() int { return int(f.granted) - int(f.used) }

// nextVersion raises the version, and records what the row then says when it ends.
func (s *state) nextVersion() {
	s.version++
	if s.version == versionsMax {
		panic("too many versions: " + s.String())
	}
}

// record keeps what the row says at its version.
func (s *state) record() { s.history[s.version] = s.figures }

// waiting returns the length of the line.
func (g *gate) waiting() (n int) {
	for n < usersMax && g.line[n].ticket != 0 {
		n++
	}
	return n
}

// place returns the rank of a user in the line, or -1.
func (g *gate) place(user uint8) int {
	for k, q := range g.line {
		if q.ticket != 0 && q.user == user {
			return k
		}
	}
	return -1
}

// entryOf returns the generation of the entry of a ticket, or 0.
func (g *gate) entryOf(ticket uint8) uint8 {
	for _, e := range g.stream {
		if e.ticket == ticket {
			return e.generation
		}
	}
	return 0
}

// entries returns the length of the stream.
func (g *gate) entries() (n int) {
	for n < streamMax && g.stream[n].ticket != 0 {
		n++
	}
	return n
}

// add adds an entry to the stream.
func (g *gate) add(ticket, user, generation uint8) {
	g.stream[g.entries()] = entry{ticket: ticket, user: user, generation: generation}
}

// drop takes requests out of the line, and returns how many.
func (g *gate) drop(gone func(request) bool) (n int) {
	var kept [usersMax]request
	k := 0
	for _, q := range g.line {
		switch {
		case q.ticket == 0:
		case gone(q):
			n++
		default:
			kept[k] = q
			k++
		}
	}
	g.line = kept
	return n
}

// canonical replaces a state by one that behaves in the same way, so that fewer states
// are different: it clears what no later step reads, counts versions from the oldest
// that anything still shows, and orders the instances and the operators. It reports whether
// it swapped the instances.
func (m *model) canonical(s *state) (swapped bool) {
	if s.may[eventRollback]+s.may[eventLoss] == 0 {
		s.hasSnapshot, s.snapshot = false, gate{}
	}
	s.snapshot.thisRun = false
	m.rebase(s)
	for i := range s.all {
		h := &s.all[i]
		if h.issuer == issuerNone {
			h.owner = false
		}
		if h.issuer < issuerBatch {
			h.batch = [batchMax]item{}
		}
		if h.issuer != issuerBatch {
			h.read = 0
		}
	}
	if bytes.Compare(bytesOf(&s.admins[0]), bytesOf(&s.admins[1])) < 0 {
		s.admins[0], s.admins[1] = s.admins[1], s.admins[0]
	}
	a, b := &s.all[0], &s.all[1]
	if bytes.Compare(bytesOf(a), bytesOf(b)) >= 0 {
		return false
	}
	*a, *b = *b, *a
	for _, g := range []*gate{&s.gate, &s.snapshot} {
		if g.marker != 0 {
			g.marker = 3 - g.marker
		}
	}
	return true
}

// rebase counts versions from the oldest one that the gate, a snapshot or somebody
// still shows.
func (m *model) rebase(s *state) {
	oldest := s.version
	if s.gate.exists || m.without[onlySwapCreates] {
		oldest = min(oldest, s.gate.version)
	}
	if s.hasSnapshot {
		oldest = min(oldest, s.snapshot.version)
	}
	for _, version := range []uint8{s.covering, s.over} {
		if version > 0 {
			oldest = min(oldest, version-1)
		}
	}
	for i := range s.all {
		if l := &s.all[i].loader; l.phase == loaderRead {
			oldest = min(oldest, l.version)
		}
	}
	if oldest == 0 {
		return
	}
	lower := func(version *uint8) { *version -= min(*version, oldest) }
	copy(s.history[:], s.history[oldest:])
	s.version -= oldest
	clear(s.history[s.version+1:])
	lower(&s.gate.version)
	lower(&s.snapshot.version)
	lower(&s.covering)
	lower(&s.over)
	for k := range s.rows[:s.settled] {
		lower(&s.rows[k].inserted)
		lower(&s.rows[k].ended)
	}
	for k := range s.left {
		lower(&s.left[k].version)
	}
	for i := range s.all {
		lower(&s.all[i].loader.version)
	}
}

// bytesOf returns the memory of a value without pointers, which gives values an order.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// letter names a user.
func letter(user uint8) string { return string(rune('A' + user - 1)) }

func (s *state) String() string { return explore.Show(*s) }
