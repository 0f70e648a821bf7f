package coupon

import (
	"fmt"
	"strings"

	"github.com/largesse/largesse/internal/models/explore"
)

// event is something that goes wrong, or that a user or an operator does, at any step.
// A run allows each event a number of times.
type event uint8

const (
	eventFlush       event = iota // Redis loses everything
	eventRollback                 // Redis restarts from a snapshot that it wrote at any earlier step
	eventLoss                     // one of these two
	eventCrash                    // an instance ends without warning, and starts again
	eventSteal                    // an instance takes the lease of a living issuer, which stalls
	eventLostRead                 // the reply of a read from the stream is lost
	eventCancel                   // a coupon is cancelled
	eventRequest                  // a user requests again; the first request of each user is free
	eventBypass                   // requests go through the rows (path DATABASE) although Redis answers
	eventGrant                    // the template sets places aside for the gate; 0 stands for twice
	eventLower                    // an operator lowers the quantity
	eventRaise                    // an operator raises it
	eventLeave                    // a user leaves the waiting line
	eventConfirm                  // a held coupon is confirmed
	eventExpire                   // the hold of a coupon expires
	eventReload                   // a load without a cause
	eventBrokerLoss               // Kafka loses a record
	eventForged                   // a record comes from elsewhere
	eventRestart                  // a load starts over before the one before it ends
	eventClock                    // the clock of Redis steps back
	eventLostReply                // a script takes effect, and nobody learns it
	eventRemoval                  // somebody takes a user out of the line at the gate
	eventLeaseExpiry              // a lock expires while its holder still believes it has it
	eventArchive                  // the template closes, and is archived once it is over
	eventReopen                   // an operator opens the closed template again
	eventReread                   // a record that the consumers have passed is read again
	eventCount
)

var eventNames = [eventCount]string{
	"flush", "rollback", "loss", "crash", "steal", "lost read", "cancel", "request", "bypass", "grant", "lower", "raise", "leave",
	"confirm", "expiry", "reload", "broker loss", "forged record", "restart", "clock", "lost reply", "removal", "lease expiry",
	"archive", "reopening", "reread",
}

// events are numbers of events, by kind.
type events [eventCount]uint8

func (f events) String() string { return explore.Words(eventNames[:], f[:], "no event") }

// rule is something that the protocol requires. The models follow all rules, unless
// options.without names one.
type rule uint8

const (
	// batchNamesGate: the transaction refuses a batch unless the generation of the gate
	// that it was read from is the row's.
	batchNamesGate rule = iota
	// gateCloses: a load closes the gate before it trims or copies its line.
	gateCloses
	// gateKeepsNext: a load that keeps the line keeps the number of the last ticket too.
	gateKeepsNext
	// copyAsksRows: a load that copies the line leaves out who has a row under that
	// ticket, of the old gate's generation or an earlier one.
	copyAsksRows
	// answeredAreLeftOut: so it does with users whose request was answered past the gate.
	answeredAreLeftOut
	// leftIsAnAnswer: so it does with users who left the line of a later gate.
	leftIsAnAnswer
	// snapshotNamesGeneration: a load ends when its snapshot of the rows shows another
	// generation.
	snapshotNamesGeneration
	// reloadBeginsNumbering: a load that copies without need begins a numbering, so
	// that older gates are never kept.
	reloadBeginsNumbering
	// rowsBeginNumbering: issuing through the rows begins a numbering too.
	rowsBeginNumbering
	// scriptsAreShort: no script touches more than a chunk of the line.
	scriptsAreShort
	// placesAreSetAside: a ticket is given only for a place that the row has set aside,
	// and nobody else gets that place.
	placesAreSetAside
	// applyNamesNumbering: a gate refuses an apply of a later numbering.
	applyNamesNumbering
	// applyTakesNewGrants: an apply changes what the gate may give only with a higher
	// grant number.
	applyTakesNewGrants
	// shrinkNamesGrant: the row takes back the places that a gate has given up only if
	// its grant number is still the one that the gate had.
	shrinkNamesGrant
	// shrinkNamesGate: the row takes them back only if the generation and the path are
	// those of that gate.
	shrinkNamesGate
	// grantRepeatsShrink: a grant of nothing repairs a gate whose shrink was not followed
	// by its transaction.
	grantRepeatsShrink
	// usedHasLimit: used never exceeds granted.
	usedHasLimit
	// shrinkOnlyLowers: a shrink never raises the places, at the gate or in the row.
	shrinkOnlyLowers
	// leftIsCountedOnce: a place that was left is not counted as used again when its
	// ticket is settled.
	leftIsCountedOnce
	// leaveNamesGate: the transaction of a leave is refused unless the gate's generation
	// is the row's.
	leaveNamesGate
	// leaveNamesTicket: it is refused if the ticket is settled.
	leaveNamesTicket
	// leftNamesEntry: a rejection LEFT is of one entry, ticket and generation. A later
	// entry with the same ticket is not left.
	leftNamesEntry
	// missingComeBack: a load that copies the line puts those back before whose requests
	// wait in the stream.
	missingComeBack
	// loadDropsLeft: a load takes out who has left.
	loadDropsLeft
	// sweepCountsItsOwn: a sweep of expired holds counts the rows that its own statement
	// has changed.
	sweepCountsItsOwn
	// unseenCodesGoBack: the imported code of a coupon that is HELD until it ends goes back
	// to the template.
	unseenCodesGoBack
	// seenCodesStay: the imported code of a coupon that was not HELD when it was cancelled
	// stays its own.
	seenCodesStay
	// archivedTakesNothing: no transaction changes anything of an archived template.
	archivedTakesNothing
	// archiveNamesVersion: an archive sees that the template is over, and then takes
	// effect only if the row still has the version that it had.
	archiveNamesVersion
	// archiveRaisesGeneration: an archive raises the generation and the epoch.
	archiveRaisesGeneration

	// batchIsClaimedAgain: an issuer claims everything pending after a gap or a refusal,
	// and when nothing new comes although the stream has entries.
	batchIsClaimedAgain
	// gateIsLevel: a gate whose generation is below the row's is loaded.
	gateIsLevel
	// scriptsCheckRun: scripts serve only a gate of the server run that answers them.
	scriptsCheckRun
	// loadHasMarker: a load sets a marker before it raises the generation. The swap is
	// refused if the marker is not its own.
	loadHasMarker
	// swapChecksRun: the swap is refused if the server run is not that of the marker.
	swapChecksRun
	// swapNamesGate: the load ends if the gate is not the one that it found.
	swapNamesGate
	// onlySwapCreates: only the swap creates a gate.
	onlySwapCreates
	// appliesHaveNoGaps: an apply is refused if the gate lacks versions before it.
	appliesHaveNoGaps
	// readNeedsGate: an issuer reads only from a gate that is served.
	readNeedsGate
	// idsNameGeneration: the ID of an entry has its generation, so that an
	// acknowledgement deletes that entry only.
	idsNameGeneration

	// ackNeedsOpenGate: KAFKA: a record's acknowledgement at a closed gate is no 202.
	ackNeedsOpenGate
	// floorVoidsRecords: KAFKA: a record of a generation below the floor is dropped.
	floorVoidsRecords
	// floorIsRecordedLast: KAFKA: the generation is raised and the floor recorded after the
	// consumers have passed the end offsets, not before.
	floorIsRecordedLast
	// strandedAreReloaded: KAFKA: a gate whose line waits for records that do not exist
	// is loaded.
	strandedAreReloaded
	// ticketsHaveBound: KAFKA: a record whose ticket was never given is a dead letter.
	ticketsHaveBound
	// boundIsQuantity: KAFKA: such a ticket is above the highest settled one by more than
	// the quantity, not by more than the promised places.
	boundIsQuantity

	// lockHasFloor: SYNC: a lock's token is above the fence of the row.
	lockHasFloor
	// lockIsRepeatable: SYNC: a repeated lock of the same caller returns the same token.
	lockIsRepeatable
	ruleCount
)

var ruleNames = [ruleCount]string{
	"batchNamesGate", "gateCloses", "gateKeepsNext", "copyAsksRows", "answeredAreLeftOut", "leftIsAnAnswer", "snapshotNamesGeneration",
	"reloadBeginsNumbering", "rowsBeginNumbering", "scriptsAreShort", "placesAreSetAside", "applyNamesNumbering", "applyTakesNewGrants", "shrinkNamesGrant",
	"shrinkNamesGate", "grantRepeatsShrink", "usedHasLimit", "shrinkOnlyLowers", "leftIsCountedOnce", "leaveNamesGate", "leaveNamesTicket", "leftNamesEntry", "missingComeBack", "loadDropsLeft",
	"sweepCountsItsOwn", "unseenCodesGoBack", "seenCodesStay", "archivedTakesNothing", "archiveNamesVersion", "archiveRaisesGeneration", "batchIsClaimedAgain", "gateIsLevel", "scriptsCheckRun", "loadHasMarker", "swapChecksRun", "swapNamesGate", "onlySwapCreates",
	"appliesHaveNoGaps", "readNeedsGate", "idsNameGeneration", "ackNeedsOpenGate", "floorVoidsRecords", "floorIsRecordedLast",
	"strandedAreReloaded", "ticketsHaveBound", "boundIsQuantity", "lockHasFloor", "lockIsRepeatable",
}

// ruleSet are the rules that a run leaves out.
type ruleSet [ruleCount]bool

// options are the size of a run and its events.
type options struct {
	limit   uint8 // coupons per user
	total   uint8 // the template's quantity
	granted uint8 // places that are set aside for the gate when a run begins
	block   uint8 // places of a grant
	loads   uint8 // loads that the run tries in every order, with the one before it begins
	users   uint8 // at most three
	events  events
	// empty begins without a gate.
	empty bool
	// grantsAnyTime allows grants that nobody needs.
	grantsAnyTime bool
	// hold issues coupons HELD.
	hold bool
	// codes imports a code for each coupon, and for each that may be cancelled.
	codes   bool
	without ruleSet
}

// small is the usual run: a quantity of two, of which each user may have one.
func small(e events) options {
	return options{limit: 1, total: 2, granted: 2, block: 2, loads: 3, users: 3, events: e}
}

func limitTwo(o options) options            { o.limit = 2; return o }
func total(n uint8, o options) options      { o.total = n; return o }
func granted(n, b uint8, o options) options { o.granted, o.block = n, b; return o }
func fourLoads(o options) options           { o.loads = 4; return o }
func twoUsers(o options) options            { o.users = 2; return o }
func held(o options) options                { o.hold = true; return o }
func imported(o options) options            { o.codes = true; return o }

// lacking returns the options without some rules.
func (o options) lacking(all ...rule) options {
	for _, r := range all {
		o.without[r] = true
	}
	return o
}

func (o options) String() string {
	words := []string{o.events.String(), fmt.Sprintf("total %d", o.total)}
	for _, part := range []struct {
		set  bool
		name string
	}{
		{o.limit != 1, fmt.Sprintf("limit %d", o.limit)},
		{o.granted != o.total, fmt.Sprintf("%d granted", o.granted)},
		{o.loads != 3, fmt.Sprintf("%d loads", o.loads)},
		{o.users != 3, fmt.Sprintf("%d users", o.users)},
		{o.empty, "no gate"},
		{o.grantsAnyTime, "grants at any time"},
		{o.hold, "held"},
		{o.codes, "imported codes"},
	} {
		if part.set {
			words = append(words, part.name)
		}
	}
	for r, gone := range o.without {
		if gone {
			words = append(words, "without "+ruleNames[r])
		}
	}
	return strings.Join(words, ", ")
}
