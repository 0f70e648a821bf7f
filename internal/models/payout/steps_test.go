package payout

import (
	"fmt"
	"strings"
)

// step is a kind of step.
type step uint8

// The steps of the code. steps says which functions take them.
const (
	savesReady step = iota
	savesQueued
	savesCancelled
	savesKnown
	savesNothing
	dispatches
	adds
	addRefusedLate
	addRefusedFull
	returnsRefused
	sweepReads
	sweepWrites
	readsView
	poolStarts
	poolEnds
	lastConsumerDestroys
	reads
	claims
	adopts
	releases
	checksOver
	checksCharge
	returnsClaimed
	returnsOwn
	returnsLate
	poisons
	cancelsPending
	looksUpPaid
	looksUpNotFound
	looksUpNothing
	looksUpAfterPaid
	arms
	sends
	waitsLong
	writesSucceeded
	writesFailed
	writesRefusedUnknown
	writesRetrying
	writesRetryingLate
	writesUnknown
	writesTooLate
	acknowledges
	lookupConfirmed
	lookupNotFound
	settles
	cancelsReady
	cancelsToUnknown
	completes
	destroyBegins
	destroys
	destroyFindsNone
	destroyRefused
	destroyWaits
	marksGone
	destroysAtOnce
	clears
	operatorStarts
	operatorDeletes
	operatorCancels
	operatorPauses
	operatorResumes
	operatorRetries
	archives
	removesRow
	savesArchived

	// The steps of everything else: the provider, Redis, time, and faults.
	pays
	paysAgain
	paysBut500
	paysBut503
	fails500
	fails500Stray
	fails503
	throttles
	refuses
	timesOut
	strayPays
	strayPaysAgain
	strayIsLost
	leaseExpires
	horizonPasses
	halfHorizonPasses
	settleAfterPasses
	windowPasses
	crashes
	stalls
	continues
	continuesTooLate
	losesAll
	losesDelivery
	losesAck
	losesDestroy
	losesGroup
	losesConsumer
	losesReply
	losesCommand
	rereads

	// What the code would do without a rule.
	poolCreatesStream
	returnsOrphan
	addRepeated
	archiveReads
	archivesLate
	stepCount
)

// firstOutside is the first step that no code takes.
const firstOutside = pays

// steps says for each step what it does, as a trace shows it, and which functions,
// methods and scripts of the module take it.
var steps = [stepCount]struct{ text, code string }{
	savesReady:           {"saves the row as READY", "payout.Producer.Save store/rows.Tables.PayoutSave rules.BoundsOf rules.Reopen"},
	savesQueued:          {"saves the row as QUEUED under dispatch 1", "payout.Producer.Save store/rows.Tables.PayoutSave rules.BoundsOf rules.Reopen"},
	savesCancelled:       {"saves the row as CANCELLED", "payout.Producer.Save store/rows.Tables.PayoutSave"},
	savesKnown:           {"reads the record of a row that exists", "payout.PublishListener.ProcessTopicMessages store/rows.Tables.PayoutSave"},
	savesNothing:         {"reads a record of a deleted promotion", "payout.PublishListener.ProcessTopicMessages store/rows.Tables.PayoutSave"},
	dispatches:           {"dispatches the row", "payout.Feeder.feed payout.RetryProcessor.dispatch store/rows.Tables.PayoutDispatch"},
	adds:                 {"adds the entry", "payout.Producer.add queue.Queue.Add queue/redisstream/add_entries.lua"},
	addRefusedLate:       {"adds nothing: too late", "payout.Producer.add queue.AddParams.Deadline queue/redisstream/add_entries.lua"},
	addRefusedFull:       {"adds nothing: the stream is full", "payout.Producer.add queue.AddParams.MaxLen queue/redisstream/add_entries.lua"},
	returnsRefused:       {"returns the row that was not added", "payout.Producer.add store/rows.Tables.PayoutReturn rules.WithdrawReturn"},
	sweepReads:           {"sweeper reads the stream, then the row", "payout.Sweeper.sweep queue.Queue.Info"},
	sweepWrites:          {"sweeper returns the row if it still has the dispatch", "payout.Sweeper.sweepBefore store/rows.Tables.PayoutSweep rules.WithdrawSweep"},
	readsView:            {"reads the promotion", "payout.StatusCache.read"},
	poolStarts:           {"starts a pool", "pool.Manager.Converge"},
	poolEnds:             {"ends its pool, and destroys the stream if it is empty", "pool.Manager.Converge pool.Pool.removeConsumers"},
	lastConsumerDestroys: {"destroys the empty stream as its pool ends", "pool.Pool.removeConsumers queue.Queue.Destroy"},
	reads:                {"reads the entry", "pool.Pool.poll queue.Queue.Read queue.Entry queue/redisstream/read_entries.lua queue/redisstream/tell_run.lua"},
	claims:               {"claims the entry", "pool.Pool.claim queue.Queue.Claim"},
	adopts:               {"adopts the entry that is pending with no consumer", "pool.Pool.adopt queue.Queue.Adopt queue/redisstream/adopt_entries.lua"},
	releases:             {"releases the entry", "pool.Item.Release payout.payment.unsent payout.payment.wait"},
	checksOver:           {"sees that the dispatch is over", "payout.Processor.ProcessStreamMessages payout.Finisher.ack"},
	checksCharge:         {"sees that the row is to be charged", "payout.Processor.ProcessStreamMessages payout.Processor.heads"},
	returnsClaimed:       {"returns the row of the claimed entry", "payout.Processor.ProcessStreamMessages payout.Finisher.writeReturns rules.WithdrawReturn"},
	returnsOwn:           {"returns the row: no call is in flight", "payout.payment.acquire payout.payment.wait payout.Finisher.writeReturns rules.WithdrawReturn"},
	returnsLate:          {"returns the row by a statement that began before the cancel", "store/rows.Tables.PayoutReturn store/rows.Tables.PayoutSweep"},
	poisons:              {"makes the poison payout UNKNOWN", "payout.Processor.poison rules.OutcomeNoLookup"},
	cancelsPending:       {"ends the dispatch: cancelled", "payout.Processor.ProcessStreamMessages payout.payment.acquire payout.payment.unsent rules.OutcomeCancelled"},
	looksUpPaid:          {"looks up before the charge: confirmed", "payout.payment.lookUpFirst"},
	looksUpNotFound:      {"looks up before the charge: not found", "payout.payment.lookUpFirst"},
	looksUpNothing:       {"looks up before the charge: inconclusive", "payout.payment.lookUpFirst rules.OutcomeNoAnswer"},
	looksUpAfterPaid:     {"looks up after the charge: confirmed", "payout.payment.lookUpAfter payout.payment.charge"},
	arms:                 {"passes the last check before the charge", "payout.payment.mayCharge"},
	sends:                {"SENDS the charge", "payout.payment.pay payout.payment.mayCharge payout.payment.charge"},
	waitsLong:            {"has to wait for long: no answer", "payout.payment.throttled rules.OutcomeNoAnswer"},
	writesSucceeded:      {"writes SUCCEEDED", "payout.Finisher.write store/rows.Tables.PayoutFinish rules.OutcomePaid"},
	writesFailed:         {"writes FAILED: refused", "payout.Finisher.write store/rows.Tables.PayoutFinish rules.OutcomeRefused"},
	writesRefusedUnknown: {"writes UNKNOWN: refused, but another charge is possible", "payout.Finisher.write store/rows.Tables.PayoutFinish rules.OutcomeRefused"},
	writesRetrying:       {"writes RETRYING", "payout.Finisher.write store/rows.Tables.PayoutFinish rules.OutcomeFailed rules.OutcomeNoAnswer"},
	writesRetryingLate:   {"writes RETRYING by a statement that began before the cancel", "payout.Finisher.write store/rows.Tables.PayoutFinish"},
	writesUnknown:        {"writes UNKNOWN", "payout.Finisher.write store/rows.Tables.PayoutFinish rules.OutcomeFailed rules.OutcomeNoAnswer"},
	writesTooLate:        {"writes nothing: the dispatch is over", "payout.Finisher.write store/rows.Tables.PayoutFinish rules.Finish"},
	acknowledges:         {"acknowledges the entry", "payout.Finisher.acknowledge queue.Queue.Ack"},
	lookupConfirmed:      {"settler looks up: confirmed", "payout.Settler.lookup payout.Settler.query"},
	lookupNotFound:       {"settler looks up: not found", "payout.Settler.lookup payout.Settler.query"},
	settles:              {"settler writes the result", "payout.Settler.settle store/rows.Tables.PayoutSettle rules.Settle"},
	cancelsReady:         {"cancel: READY becomes CANCELLED", "payout.Sweeper.cancelRows store/rows.Tables.PayoutCancelStep rules.WithdrawCancel"},
	cancelsToUnknown:     {"cancel: the row becomes UNKNOWN", "payout.Sweeper.cancelRows store/rows.Tables.PayoutCancelStep rules.WithdrawCancel"},
	completes:            {"the promotion is COMPLETED", "payout.Sweeper.complete store/rows.Tables.PromotionComplete rules.Complete"},
	destroyBegins:        {"sweeper sees that the stream may be destroyed", "payout.Sweeper.destroyable payout.Sweeper.destroy"},
	destroys:             {"destroys the empty stream", "payout.Sweeper.destroy queue.Queue.Destroy queue/redisstream/destroy_stream.lua"},
	destroyFindsNone:     {"finds no stream to destroy", "payout.Sweeper.destroy queue.Queue.Destroy queue.Queue.Info"},
	destroyRefused:       {"does not destroy: the stream has entries", "payout.Sweeper.destroy queue.Queue.Destroy queue/redisstream/destroy_stream.lua"},
	destroyWaits:         {"10 s pass since the first destroy", "payout.Sweeper.destroy payout.destroyedTwice payout.destroyedStream"},
	marksGone:            {"writes that the stream is destroyed, if nothing was dispatched", "payout.Sweeper.destroy store/rows.Tables.PromotionStreamDestroyed"},
	destroysAtOnce:       {"the stream is destroyed, and the row says so", "payout.Sweeper.destroy store/rows.Tables.PromotionStreamDestroyed"},
	clears:               {"sweeper acknowledges what needs no outcome", "payout.Sweeper.clear queue.Queue.Range queue.Queue.Ack"},
	operatorStarts:       {"operator starts the draft", "campaign.Promotions.Start rules.Move"},
	operatorDeletes:      {"operator deletes the draft", "campaign.Promotions.Delete"},
	operatorCancels:      {"operator cancels", "campaign.Promotions.Cancel rules.Move"},
	operatorPauses:       {"operator pauses", "campaign.Promotions.Pause payout.payment.misconfigured rules.Move"},
	operatorResumes:      {"operator resumes", "campaign.Promotions.Resume rules.Move"},
	operatorRetries:      {"operator retries", "campaign.Promotions.RetryFailed store/rows.Tables.PayoutRetry rules.Retry rules.Reopen"},
	archives:             {"the promotion is archived: nothing of it is open", "engine.retention.payoutsOf store/rows.Tables.PromotionArchive"},
	removesRow:           {"removes the row", "engine.retention.payoutsOf store/rows.Tables.PayoutForget"},
	savesArchived:        {"refuses the record: archived", "payout.PublishListener.ProcessTopicMessages store/rows.Tables.PayoutSave store.Archived rules.CheckArchived"},

	pays:              {"provider pays: 200", ""},
	paysAgain:         {"provider knows the key: 200", ""},
	paysBut500:        {"provider pays: 500", ""},
	paysBut503:        {"provider pays: 503", ""},
	fails500:          {"provider does not pay: 500", ""},
	fails500Stray:     {"gateway: 500, and the request is still on its way", ""},
	fails503:          {"provider does not pay: 503", ""},
	throttles:         {"provider does not pay: 429", ""},
	refuses:           {"provider refuses", ""},
	timesOut:          {"no response, and the request is still on its way", ""},
	strayPays:         {"a late request arrives: the provider pays", ""},
	strayPaysAgain:    {"a late request arrives: the provider knows the key", ""},
	strayIsLost:       {"a late request is lost", ""},
	leaseExpires:      {"the lease expires", ""},
	horizonPasses:     {"the dispatch horizon passes", ""},
	halfHorizonPasses: {"half of the dispatch horizon passes", ""},
	settleAfterPasses: {"settle-after passes", ""},
	windowPasses:      {"THE IDEMPOTENCY WINDOW PASSES: the provider forgets the keys", ""},
	crashes:           {"CRASHES, and starts again", ""},
	stalls:            {"STALLS", ""},
	continues:         {"continues", ""},
	continuesTooLate:  {"continues after the time limit of its call", ""},
	losesAll:          {"REDIS LOSES ALL", ""},
	losesDelivery:     {"REDIS LOSES ITS LAST SECOND: the delivery", ""},
	losesAck:          {"REDIS LOSES ITS LAST SECOND: the acknowledgement", ""},
	losesDestroy:      {"REDIS LOSES ITS LAST SECOND: the destruction of the stream", ""},
	losesGroup:        {"THE GROUP IS LOST, and created again", ""},
	losesConsumer:     {"SOMEBODY DELETES THE CONSUMER: the entry is pending with nobody", ""},
	losesReply:        {"NO REPLY of a write or a read: it took effect", ""},
	losesCommand:      {"NO REPLY of an add: it took no effect", ""},

	rereads: {"THE TOPIC IS READ AGAIN from its beginning", ""},

	poolCreatesStream: {"polls, and creates an empty stream", ""},
	returnsOrphan:     {"returns the row of the orphaned entry, unflagged", ""},
	addRepeated:       {"adds the entry, loses the reply, and will repeat the add", ""},
	archiveReads:      {"sees that nothing of the promotion is open", ""},
	archivesLate:      {"archives what it saw before", ""},
}

// label says which step was taken, by which instance and for which row.
type label struct {
	step     step
	instance uint8
	row      uint8
	// swapped reports whether the instances changed places after the step; see
	// model.canonical.
	swapped bool
}

// none stands for no instance, or no row.
const none = 0xff

func (l label) String() string {
	var b strings.Builder
	if l.instance != none {
		fmt.Fprintf(&b, "%c ", 'A'+l.instance)
	}
	b.WriteString(steps[l.step].text)
	if l.row != none {
		fmt.Fprintf(&b, " (r%d)", l.row)
	}
	return b.String()
}
