package payout

import (
	"fmt"
	"strings"

	"github.com/largesse/largesse/internal/models/explore"
)

// fault is something that goes wrong, or that an operator does, at any step. A run
// allows each fault a number of times; see options.faults.
type fault uint8

const (
	faultCrash             fault = iota // an instance ends without warning, and starts again
	faultStall                          // an instance makes no progress, and continues later
	faultFlush                          // Redis loses everything
	faultNoResponse                     // a call gets no response, but may arrive
	faultServerError                    // the provider answers 5xx, charged or not
	faultRefusal                        // the provider refuses the payout
	faultCancel                         // an operator cancels the promotion
	faultPause                          // an operator pauses it; resuming is no fault
	faultWindow                         // the idempotency window passes, so the provider forgets its keys
	faultRetry                          // an operator retries FAILED payouts
	faultNoLookup                       // the lookup before a charge gets no conclusive response
	faultForgottenDelivery              // Redis loses its last second: a delivery
	faultRepeatedAdd                    // the reply of an add is lost, and something repeats the add
	faultGroupLost                      // the stream's group is lost and created again
	faultOrphan                         // somebody runs XGROUP DELCONSUMER
	faultForgottenAck                   // Redis loses its last second: an acknowledgement, or the destruction of the stream
	faultLostReply                      // a command or statement takes effect, or not, and nobody learns it
	faultReread                         // the topic, or a file, is read again from its beginning
	faultCount
)

// faults are numbers of faults, by kind.
type faults [faultCount]uint8

var faultNames = [faultCount]string{
	"crash", "stall", "flush", "no response", "5xx", "refusal", "cancel", "pause", "window", "retry", "no lookup",
	"forgotten delivery", "repeated add", "group lost", "orphan", "forgotten ack", "lost reply", "reread",
}

func (f faults) String() string { return explore.Words(faultNames[:], f[:], "no fault") }

// rule is something that the protocol requires. The model follows all rules, unless
// options.without names one. Without any of them the model finds a breach.
type rule uint8

const (
	// claimedIsReturned: a claimed entry is never charged. Its row is returned, so a
	// dispatch has one caller at most.
	claimedIsReturned rule = iota
	// refusalNeedsOneCaller: a refusal makes a row FAILED only if no other call can
	// have reached the provider: the row is not flagged as maybe called, and this is
	// the first charge of a first delivery. Otherwise the row becomes UNKNOWN.
	refusalNeedsOneCaller
	// returnFlags: a return by a consumer flags the row as maybe called.
	returnFlags
	// sweepFlags: a sweep flags it.
	sweepFlags
	// cancelLooksUpFlagged: a cancel makes flagged READY rows UNKNOWN, not CANCELLED.
	cancelLooksUpFlagged
	// cancelLooksUpSent: so does the cancel of a row whose consumer has sent a charge
	// that was answered with 503.
	cancelLooksUpSent
	// notFoundWaits: "not found" decides a row only settle-after after SettleFrom.
	notFoundWaits
	// settleFromLeaseEnd: SettleFrom is a lease after the row became UNKNOWN.
	settleFromLeaseEnd
	// leaseOutlastsCall: a consumer starts no call without a valid lease.
	leaseOutlastsCall
	// addHasDeadline: the stream refuses entries after half of the dispatch horizon.
	addHasDeadline
	// sweepReadsStream: the sweeper takes rows that were dispatched a dispatch horizon
	// before the oldest entry was added.
	sweepReadsStream
	// destroyWaitsHorizon: a stream is destroyed one dispatch horizon after the last dispatch.
	destroyWaitsHorizon
	// finalIsCleared: the entries of a final promotion are read and acknowledged.
	finalIsCleared
	// entryNamesRun: an entry names the run of the server that stored it. Under another
	// run it is no first delivery.
	entryNamesRun
	// groupMarksEntries: entries that were there when the group was created again are
	// no first deliveries.
	groupMarksEntries
	// orphansAreAdopted: an entry that is pending with no consumer becomes pending with
	// one, for a lease.
	orphansAreAdopted
	// orphansAreFlagged: the row of an orphaned entry is flagged when it is returned.
	// Adopting does that by the claim that follows. Without this rule, the row is
	// returned at once and without the flag.
	orphansAreFlagged
	// onlyAddCreates: reading, claiming and creating a group do not create a stream.
	onlyAddCreates
	// destroyIsConfirmed: the row says that the stream is destroyed only when a second
	// destroy, 10 s after the first, finds no stream.
	destroyIsConfirmed
	// countsFromFoundState: a statement moves the counts from the state that it found.
	countsFromFoundState
	// windowIsChecked: a row whose idempotency window is over is looked up before a
	// charge.
	windowIsChecked
	// everyChargeIsChecked: so it is before each charge, not once per delivery.
	everyChargeIsChecked
	// paidIsAbsorbing: a confirmed charge makes a row SUCCEEDED whatever its state and
	// dispatch are.
	paidIsAbsorbing
	// archivedTakesNothing: no row of an archived promotion is inserted, and none is
	// retried. A save and a retry look at the mark in their transaction.
	archivedTakesNothing
	// archiveLocksCounts: an archive sees that nothing is open under the lock of the
	// counts, in the transaction that writes the mark. Without it, these are two steps.
	archiveLocksCounts
	ruleCount
)

var ruleNames = [ruleCount]string{
	"claimedIsReturned", "refusalNeedsOneCaller", "returnFlags", "sweepFlags", "cancelLooksUpFlagged", "cancelLooksUpSent",
	"notFoundWaits", "settleFromLeaseEnd", "leaseOutlastsCall", "addHasDeadline", "sweepReadsStream", "destroyWaitsHorizon",
	"finalIsCleared", "entryNamesRun", "groupMarksEntries", "orphansAreAdopted", "orphansAreFlagged", "onlyAddCreates",
	"destroyIsConfirmed", "countsFromFoundState", "windowIsChecked", "everyChargeIsChecked", "paidIsAbsorbing",
	"archivedTakesNothing", "archiveLocksCounts",
}

// options are the size of a run, its faults, and the parts of the system that it
// leaves out to stay small.
type options struct {
	rows       uint8 // targets, 1 or 2
	maxLen     uint8 // of the stream
	maxRetries uint8
	faults     faults
	// repeatedRecord delivers the record of the first target twice.
	repeatedRecord bool
	// direct is direct mode: each instance has a queue of its own.
	direct bool
	// draft begins with a DRAFT, which may be started or deleted.
	draft bool
	// pools lets pools start, poll and end. Otherwise instances read at any time.
	pools bool
	// destroyInSteps splits the destruction of a stream into its steps.
	destroyInSteps bool
	// stallAtSocket allows stalls between the last check before a charge and its first
	// byte. No rule makes these safe.
	stallAtSocket bool
	// archives lets the promotion be archived at any time after its end, and its rows be
	// removed one by one. The settings allow both only after the idempotency window.
	archives bool
	without  [ruleCount]bool
}

// small is the smallest run: one target, a stream with two places, one retry.
func small(f faults) options {
	return options{rows: 1, maxLen: 2, maxRetries: 1, faults: f}
}

// lacking returns the options without some rules.
func (o options) lacking(rules ...rule) options {
	for _, r := range rules {
		o.without[r] = true
	}
	return o
}

func (o options) String() string {
	words := []string{o.faults.String()}
	if o.rows > 1 {
		words = append(words, fmt.Sprintf("%d targets", o.rows))
	}
	for _, part := range []struct {
		set  bool
		name string
	}{{o.repeatedRecord, "repeated record"}, {o.direct, "direct"}, {o.draft, "draft"}, {o.pools, "pools"}, {o.destroyInSteps, "destroy in steps"}, {o.stallAtSocket, "stall at the socket"}, {o.archives, "archives"}} {
		if part.set {
			words = append(words, part.name)
		}
	}
	if o.maxLen != 2 {
		words = append(words, fmt.Sprintf("stream of %d", o.maxLen))
	}
	for r, gone := range o.without {
		if gone {
			words = append(words, "without "+ruleNames[r])
		}
	}
	return strings.Join(words, ", ")
}
