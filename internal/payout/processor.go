package payout

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// Limits are the times and bounds that decide about calls.
type Limits struct {
	MoneyTimeout      time.Duration // of one call
	Lease             time.Duration // of an entry in hand
	SettleAfter       time.Duration // longest a request can be under way
	IdempotencyWindow time.Duration // past which a row is looked up before it is called
	GiveUpAfter       time.Duration // past which a row without an answer is settled

	direct bool // see Config.Direct
}

// Processor handles stream entries: check, call, outcome. It is the pools'
// handler.
//
// Before the call: the row is QUEUED under the entry's dispatch, the entry was
// read as new by its holder, the promotion runs, the view of it is fresh and
// the lease outlasts the call. After: one outcome, written by the finisher,
// which acknowledges. Dying in between leaves the entry to be claimed: a
// claimed entry is never called. [AbstractCampaignPromotionProcessor]
type Processor struct {
	Store    store.Store
	Provider Provider
	Governor *governor.Governor
	Cache    *StatusCache
	Finisher *Finisher
	Limits   Limits
	Metrics  *obs.Metrics
	Log      obs.Log

	warnedAt atomic.Int64 // Unix nanoseconds of the latest line of warn

	pausing  sync.Mutex // held while a promotion is being paused
	pausedAt map[reward.PromotionID]time.Time
}

// handoversMax is how many holders in a row may let go of a payout without an
// outcome before it is taken for poison. Deploys and crashes let go too, so it
// is more than they do to the same payout without any answer in between.
const handoversMax = 10

// unreadable says what is wrong with an entry that others have added.
const unreadable = "the entry has no readable key, message or dispatch"

// The reasons why a call is not opened right now.
var (
	errStale     = errors.New("payout: the view of the promotion is older than it may be")
	errPaused    = errors.New("payout: the promotion is not running")
	errCancelled = errors.New("payout: the promotion is cancelled")
	errLease     = errors.New("payout: the lease does not outlast the call")
	errLate      = errors.New("payout: it was dispatched too long ago")
	errForgotten = errors.New("payout: the provider may have forgotten the key")
)

// Handle takes items over; it returns at once.
func (p *Processor) Handle(ctx context.Context, items []*pool.Item) {
	go p.ProcessStreamMessages(ctx, items)
}

// ProcessStreamMessages checks a batch of entries with one read, and pays those
// that may be paid. [processStreamMessage]
func (p *Processor) ProcessStreamMessages(ctx context.Context, items []*pool.Item) {
	ids := make([]store.PayoutID, 0, len(items))
	for _, it := range items {
		if it.Readable {
			ids = append(ids, store.PayoutID{PromotionID: it.Stream.PromotionID, TargetID: it.TargetID})
		}
	}
	rows, err := p.heads(ctx, ids)
	if err != nil {
		// Nothing is known, so nothing is acknowledged: they are claimed later.
		for _, it := range items {
			it.Release()
		}
		return
	}
	for _, it := range items {
		row, found := rows[it.TargetID]
		status, _ := p.Cache.Status(it.Stream.PromotionID)
		switch {
		case !it.Readable:
			p.bury(ctx, it, reward.CodeMalformed, unreadable)
		case !found:
			p.bury(ctx, it, "NO_ROW", "the entry names a target that has no row in this promotion")
		case row.State != reward.Queued || row.Dispatch != it.Dispatch:
			// The dispatch is settled, and never comes back.
			p.Finisher.ack(it)
		case it.Claimed && row.Handovers+1 >= handoversMax:
			p.poison(ctx, it, row)
		case !it.Mine:
			p.Finisher.giveBack(it)
		case status == reward.PromotionCancelled:
			p.Finisher.finish(it, store.Outcome{Ref: row.Ref(), Kind: store.OutcomeCancelled})
		default:
			go p.pay(ctx, it, row)
		}
	}
}

// heads reads the rows, and goes on trying while the database is away.
func (p *Processor) heads(ctx context.Context, ids []store.PayoutID) (map[reward.TargetID]reward.Payout, error) {
	out := make(map[reward.TargetID]reward.Payout, len(ids))
	for len(ids) > 0 {
		chunk := ids[:min(len(ids), store.BatchMax)]
		rows, err := p.Store.PayoutHeads(ctx, chunk)
		if err != nil {
			p.warn(ctx, obs.Processor, databaseUnavailable, err, "count", len(chunk))
			if !service.Sleep(ctx, service.Jitter(500*time.Millisecond, 0.25)) {
				return nil, err
			}
			continue
		}
		for _, r := range rows {
			out[r.TargetID] = r
		}
		ids = ids[len(chunk):]
	}
	return out, nil
}

// bury puts an entry that can never be processed into the dead letters.
func (p *Processor) bury(ctx context.Context, it *pool.Item, reason, detail string) {
	if p.deadLetter(ctx, it, reason, detail) {
		p.Finisher.ack(it)
	}
}

// poison ends a payout that one holder after the other has let go of without an
// outcome: whatever it does to them, it must not go round for ever. It is
// looked up, like any payout that may have been called, and not called again by
// itself. Dying in between repeats it: a dead letter of the same entry is kept
// once.
func (p *Processor) poison(ctx context.Context, it *pool.Item, row reward.Payout) {
	detail := fmt.Sprintf("%d holders in a row let go of it without an outcome", row.Handovers+1)
	if p.deadLetter(ctx, it, reward.CodePoison, detail) {
		p.Finisher.finish(it, store.Outcome{Ref: row.Ref(), Kind: store.OutcomeNoLookup, Code: reward.CodePoison, Message: detail})
	}
}

// deadLetter keeps a copy of an entry; when that fails the entry is left, to be
// claimed, and it says false.
func (p *Processor) deadLetter(ctx context.Context, it *pool.Item, reason, detail string) bool {
	if err := p.Store.DeadLetterAdd(ctx, []reward.DeadLetter{deadEntry(it.Stream, it.Entry, reason, detail)}); err != nil {
		p.warn(ctx, obs.Consumer, databaseUnavailable, err, "promotion_id", it.Stream.PromotionID, "entry", it.ID)
		it.Release()
		return false
	}
	p.Metrics.DeadLettered(reason, 1)
	p.Log.For(obs.Consumer).Warn("entry dead-lettered", errors.New(detail), "promotion_id", it.Stream.PromotionID, "entry", it.ID)
	return true
}

func deadEntry(s queue.Stream, e queue.Entry, reason, detail string) reward.DeadLetter {
	return reward.DeadLetter{
		Source: s.Name(), Offset: e.ID,
		Value: e.Message, Reason: reason, Detail: detail, At: time.Now(),
	}
}

// pay holds one dispatch until it has an outcome, or until it must be left. What
// it panics on is left as by a holder that died, and is poison in the end.
func (p *Processor) pay(ctx context.Context, it *pool.Item, row reward.Payout) {
	defer func() {
		if r := recover(); r != nil {
			p.Log.For(obs.Processor).Error("payout handler panicked", fmt.Errorf("panic: %v\n%s", r, debug.Stack()),
				"promotion_id", row.PromotionID, "target_id", row.TargetID)
			it.Release()
		}
	}()
	out := store.Outcome{Ref: row.Ref()}
	// sent: an earlier call of this holder may have charged. looked: the
	// provider has said, since the latest of them, that it knows nothing.
	sent, looked := false, false
	check := func() error {
		if p.forgotten(row) && !looked {
			return errForgotten
		}
		if p.Limits.direct && time.Since(row.DueAt) > p.Limits.DispatchHorizon()/2 {
			return errLate
		}
		return p.check(it)
	}
	for try := 0; ; try++ {
		permit, ok := p.acquire(it, row, out, sent)
		if !ok {
			return
		}
		if p.forgotten(row) && !looked {
			done, again := p.lookBeforeCall(ctx, permit, it, row, out, sent, try)
			if done {
				return
			}
			if !again {
				looked = true
				try-- // the call itself is still to come
			}
			continue
		}
		began := time.Now()
		ans, found := p.call(ctx, permit, row, func() money.Answer {
			return kindOf(it.Stream.Type).charge(p.Provider, ctx, chargeOf(row), check)
		})
		if found.Found {
			out.Kind, out.TransactionKey = store.OutcomePaid, found.TransactionKey
			out.Attempts = []reward.Attempt{attemptOf(row, time.Now(), ans)}
			p.Finisher.finish(it, out)
			return
		}
		if permit.Probe() && ans.Class == reward.AnswerFailed && !found.NotFound {
			// Nothing of the provider works, so this was no answer to the payout. It
			// may have charged.
			ans.Class, ans.Status = reward.AnswerThrottled, http.StatusServiceUnavailable
		}
		switch ans.Class {
		case reward.AnswerUnsent:
			if !p.unsent(ctx, it, out, sent, try, ans.Err) {
				return
			}
			continue
		case reward.AnswerThrottled:
			// No attempt. A 503 may have charged all the same.
			sent, looked = sent || ans.Status == http.StatusServiceUnavailable, false
			if !p.throttled(ctx, it, row, out, ans, sent, try) {
				return
			}
			continue
		case reward.AnswerMisset:
			p.pause(ctx, row.PromotionID, began, ans)
			p.Finisher.giveBack(it) // to be paid after a resume
			return
		}
		p.conclude(ctx, it, row, out, ans, sent)
		return
	}
}

// acquire waits until a call may be opened; false when the entry has left the
// hand meanwhile, because its promotion does not run any more, the pool ends, or
// its dispatch gets too old for a call.
func (p *Processor) acquire(it *pool.Item, row reward.Payout, out store.Outcome, sent bool) (*governor.Permit, bool) {
	waiting := it.Taking()
	if p.Limits.direct {
		// Before it is too late, so that no turn is spent on one that is.
		var cancel context.CancelFunc
		waiting, cancel = context.WithDeadline(waiting, row.DueAt.Add(p.Limits.DispatchHorizon()/2-lateMargin))
		defer cancel()
	}
	for {
		permit, err := p.Governor.Acquire(waiting, p.Cache.job(it.Stream.PromotionID))
		switch {
		case err == nil:
			return permit, true
		case p.cancelled(it):
			out.Kind, out.Sent = store.OutcomeCancelled, sent
			p.Finisher.finish(it, out)
			return nil, false
		case !errors.Is(err, governor.ErrKicked) || p.pausedForSure(it):
			p.Finisher.giveBack(it)
			return nil, false
		}
		// Sent away, and running again by now.
	}
}

// call makes one call under a permit, and tells the governor what came of it,
// also when it panics. A probe that is not answered with a yes or a no is looked
// up at once, to tell a provider that is away from one that charges and does
// not say so, or fails at this payout alone.
func (p *Processor) call(ctx context.Context, permit *governor.Permit, row reward.Payout, charge func() money.Answer) (ans money.Answer, found money.LookupResult) {
	began := time.Now()
	outcome := governor.Outcome{Class: reward.AnswerUnsent, Ours: true}
	defer func() { permit.Done(outcome) }()
	ans = charge()
	outcome = outcomeOf(ans, time.Since(began))
	if permit.Probe() && (ans.Class == reward.AnswerFailed || ans.Class == reward.AnswerUnknown) {
		if found = p.Provider.Lookup(ctx, row.PromotionID, row.TargetID); found.Found {
			outcome.Class = reward.AnswerRefused // it charges: a sign of life
		}
		outcome.Knows = found.NotFound
	}
	return ans, found
}

// outcomeOf is what the governor has to know of an answer.
func outcomeOf(ans money.Answer, took time.Duration) governor.Outcome {
	return governor.Outcome{
		Class: ans.Class, Status: ans.Status, RetryAfter: ans.RetryAfter, Took: took,
		Ours: ans.Class == reward.AnswerUnsent && ans.Code != money.CodeNotConnected,
	}
}

// lookup asks for a payout's key under a permit.
func lookup(ctx context.Context, provider Provider, permit *governor.Permit, row reward.Payout) money.LookupResult {
	began := time.Now()
	outcome := governor.Outcome{Class: reward.AnswerUnsent, Ours: true}
	defer func() { permit.Done(outcome) }()
	found := provider.Lookup(ctx, row.PromotionID, row.TargetID)
	outcome = outcomeOf(found.Answer, time.Since(began))
	switch {
	case found.Found, found.NotFound && permit.Probe():
		outcome.Class = reward.AnswerRefused // a sign of life, whose latency is not that of charges
	case found.NotFound:
		// Whoever cannot charge may well know what it has not charged.
		outcome = governor.Outcome{Class: reward.AnswerUnsent, Ours: true}
	}
	return found
}

// forgotten says that the provider may not know the key of an earlier call any
// more, so that the same key could charge again; or that the rows may not know
// of an earlier call, because they come from a backup.
func (p *Processor) forgotten(row reward.Payout) bool {
	return time.Since(row.FirstDispatchedAt) > p.Limits.IdempotencyWindow-p.Limits.SettleAfter ||
		row.FirstDispatchedAt.Before(p.Cache.DistrustBefore())
}

// over says that a row has met no answer that counts for too long.
func (p *Processor) over(row reward.Payout) bool {
	return time.Since(row.FirstDispatchedAt) > p.Limits.GiveUpAfter
}

// lookBeforeCall asks for the key of a row that is too old to be called
// blindly. done: the entry is out of hand. again: the provider could not be
// asked now, for a reason that holds a call up and settles nothing. Neither:
// the provider knows nothing, and may be called.
func (p *Processor) lookBeforeCall(ctx context.Context, permit *governor.Permit, it *pool.Item, row reward.Payout, out store.Outcome, sent bool, try int) (done, again bool) {
	if err := p.check(it); err != nil {
		permit.Done(governor.Outcome{Class: reward.AnswerUnsent, Ours: true})
		again = p.unsent(ctx, it, out, sent, try, err)
		return !again, again
	}
	began := time.Now()
	found := lookup(ctx, p.Provider, permit, row)
	switch {
	case found.Found:
		out.Kind, out.TransactionKey = store.OutcomePaid, found.TransactionKey
	case found.NotFound:
		return false, false
	case found.Answer.Class == reward.AnswerUnsent:
		again = p.unsent(ctx, it, out, sent, try, found.Answer.Err)
		return !again, again
	case found.Answer.Class == reward.AnswerThrottled:
		again = p.throttled(ctx, it, row, out, found.Answer, sent, try)
		return !again, again
	case found.Answer.Class == reward.AnswerMisset:
		p.pause(ctx, row.PromotionID, began, found.Answer)
		p.Finisher.giveBack(it)
		return true, false
	default:
		// Nothing is known, and nothing was sent: it is asked for again, unless
		// that has gone on for too long.
		now := time.Now()
		out.Kind, out.Sent, out.GiveUp = store.OutcomeNoAnswer, sent, p.over(row)
		out.RetryAt = now.Add(service.Backoff(min(int(row.Dispatch)-1, silentSteps), retryBase, retryLimit))
		out.Code, out.Message = found.Answer.Code, found.Answer.Message
	}
	p.Finisher.finish(it, out)
	return true, false
}

// throttled waits as the provider asks; it says whether to try again. What has
// to wait for longer than an entry should be in hand waits in its row, and no
// attempt is counted. Only a row that may have been charged is ever given up:
// a provider that merely says "later" decides nothing.
func (p *Processor) throttled(ctx context.Context, it *pool.Item, row reward.Payout, out store.Outcome, ans money.Answer, sent bool, try int) bool {
	pause := max(ans.RetryAfter, service.Backoff(try, 100*time.Millisecond, 5*time.Second))
	giveUp := sent && p.over(row)
	if pause <= p.Limits.Lease && !giveUp {
		return p.hold(ctx, it, pause)
	}
	now := time.Now()
	out.Kind, out.RetryAt, out.GiveUp = store.OutcomeNoAnswer, now.Add(pause), giveUp
	out.Code, out.Message = ans.Code, ans.Message
	out.Attempts = []reward.Attempt{attemptOf(row, now, ans)}
	p.Finisher.finish(it, out)
	return false
}

func attemptOf(row reward.Payout, at time.Time, ans money.Answer) reward.Attempt {
	return reward.Attempt{Dispatch: row.Dispatch, At: at, Class: ans.Class, Code: ans.Code, Message: ans.Message}
}

func chargeOf(row reward.Payout) money.Charge {
	return money.Charge{
		PromotionID: row.PromotionID, TargetID: row.TargetID, UserID: row.UserID,
		Amount: row.Amount, VoucherCode: row.VoucherCode,
	}
}

// check decides, right at the socket, whether a call may be opened.
func (p *Processor) check(it *pool.Item) error {
	status, age := p.Cache.Status(it.Stream.PromotionID)
	switch {
	case age > viewAgeMax:
		return errStale
	case status == reward.PromotionCancelled:
		return errCancelled
	case status != reward.Running:
		return errPaused
	case it.LeaseLeft() < p.Limits.MoneyTimeout:
		return errLease
	}
	return nil
}

// unsent deals with a call that was not opened; it says whether to try again.
func (p *Processor) unsent(ctx context.Context, it *pool.Item, out store.Outcome, sent bool, try int, err error) bool {
	switch {
	case errors.Is(err, errForgotten):
		return true
	case errors.Is(err, errCancelled):
		out.Kind, out.Sent = store.OutcomeCancelled, sent
		p.Finisher.finish(it, out)
		return false
	case errors.Is(err, errPaused) && p.pausedForSure(it), errors.Is(err, errLate):
		p.Finisher.giveBack(it)
		return false
	case errors.Is(err, errLease):
		it.Release()
		return false
	case errors.Is(err, errStale), errors.Is(err, errPaused):
		return p.hold(ctx, it, refreshEvery)
	}
	p.warn(ctx, obs.Money, "Money API unavailable", err, "promotion_id", it.Stream.PromotionID, "target_id", it.TargetID)
	return p.hold(ctx, it, service.Backoff(try, 100*time.Millisecond, 5*time.Second))
}

// warnEvery bounds the lines that tell of a server that cannot be reached.
const warnEvery = 5 * time.Second

// databaseUnavailable is the log message for rows that cannot be read or
// written.
const databaseUnavailable = "database unavailable"

// warn writes one line now and then, however many entries are held.
func (p *Processor) warn(ctx context.Context, c obs.Component, message string, err error, attrs ...any) {
	last, now := p.warnedAt.Load(), time.Now().UnixNano()
	if ctx.Err() == nil && now-last > int64(warnEvery) && p.warnedAt.CompareAndSwap(last, now) {
		p.Log.For(c).Warn(message, err, attrs...)
	}
}

// pausedForSure tells a paused promotion from one that this instance's view
// does not hold yet: an entry can be here before the view has its promotion.
func (p *Processor) pausedForSure(it *pool.Item) bool {
	status, _ := p.Cache.Status(it.Stream.PromotionID)
	return status == reward.Paused
}

// hold waits for d with the entry in hand, or until its promotion does not run
// any more; false when the entry has left the hand, because the pool ends or
// the lease does not last. No call is open meanwhile, so a pool that ends gets
// the entry back at once, and nobody has to wait for its lease.
func (p *Processor) hold(ctx context.Context, it *pool.Item, d time.Duration) bool {
	until := time.Now().Add(d)
	for left := d; left > 0; left = time.Until(until) {
		timer := time.NewTimer(min(left, refreshEvery))
		select {
		case <-timer.C:
		case <-it.Taking().Done():
			timer.Stop()
			if p.pausedForSure(it) || p.cancelled(it) {
				return true // the next check says so
			}
			p.Finisher.giveBack(it)
			return false
		case <-ctx.Done():
			timer.Stop()
			p.Finisher.giveBack(it)
			return false
		}
		if it.LeaseLeft() < p.Limits.MoneyTimeout {
			it.Release()
			return false
		}
		if p.pausedForSure(it) || p.cancelled(it) {
			return true
		}
	}
	return true
}

func (p *Processor) cancelled(it *pool.Item) bool {
	status, _ := p.Cache.Status(it.Stream.PromotionID)
	return status == reward.PromotionCancelled
}

// conclude turns an answer into an outcome. After an unknown answer the key is
// looked up at once: what was paid is known without another call.
func (p *Processor) conclude(ctx context.Context, it *pool.Item, row reward.Payout, out store.Outcome, ans money.Answer, sent bool) {
	now := time.Now()
	out.Sent, out.Code, out.Message = sent, ans.Code, ans.Message
	out.RetryAt = now.Add(service.Backoff(int(row.Attempts), retryBase, retryLimit))
	switch ans.Class {
	case reward.AnswerPaid:
		out.Kind, out.TransactionKey, out.Code, out.Message = store.OutcomePaid, ans.TransactionKey, "", ""
		p.Finisher.finish(it, out)
		return
	case reward.AnswerRefused:
		out.Kind = store.OutcomeRefused
	case reward.AnswerFailed:
		out.Kind = store.OutcomeFailed
	default:
		out.Kind = store.OutcomeNoAnswer
		// No attempt is counted, so the dispatches tell, of which some were given
		// back uncalled.
		out.RetryAt = now.Add(service.Backoff(min(int(row.Dispatch)-1, silentSteps), retryBase, retryLimit))
		out.GiveUp = p.over(row)
		if key, paid := p.lookAfter(ctx, it, row); paid {
			out.Kind, out.TransactionKey = store.OutcomePaid, key
			out.Code, out.Message = "", ""
		}
	}
	out.Attempts = []reward.Attempt{attemptOf(row, now, ans)}
	p.Finisher.finish(it, out)
}

// lookAfter asks, once and if the provider takes calls, whether a call without
// an answer has charged.
func (p *Processor) lookAfter(ctx context.Context, it *pool.Item, row reward.Payout) (key string, paid bool) {
	if !p.Governor.Taking() {
		return "", false
	}
	waiting, cancel := context.WithTimeout(it.Taking(), p.Limits.MoneyTimeout)
	defer cancel()
	permit, err := p.Governor.Acquire(waiting, p.Cache.job(row.PromotionID))
	if err != nil {
		return "", false
	}
	found := lookup(ctx, p.Provider, permit, row)
	return found.TransactionKey, found.Found
}

// pause stops a promotion whose calls cannot succeed because our own settings
// are wrong, instead of failing its targets. A call that began before the
// latest pause, or under a view that may be older than it, says nothing new:
// its answer must not undo a resume.
func (p *Processor) pause(ctx context.Context, id reward.PromotionID, began time.Time, ans money.Answer) {
	p.pausing.Lock()
	defer p.pausing.Unlock()
	if began.Before(p.pausedAt[id].Add(viewAgeMax)) {
		return
	}
	reason := fmt.Sprintf("the provider answered %d %s %s: check money.url and the credentials, then resume", ans.Status, ans.Code, ans.Message)
	_, err := p.Store.PromotionMove(ctx, store.PromotionMoveParams{
		ID: id, From: []reward.PromotionStatus{reward.Running}, To: reward.Paused, Reason: reason, Now: time.Now(),
	})
	if err == nil || reward.HasCode(err, reward.CodeIllegalState) {
		if p.pausedAt == nil {
			p.pausedAt = make(map[reward.PromotionID]time.Time)
		}
		p.pausedAt[id] = time.Now()
	}
	if err == nil {
		p.Log.For(obs.Processor).Error("promotion paused", errors.New(reason), "promotion_id", id)
	} else if !reward.HasCode(err, reward.CodeIllegalState) {
		p.Log.For(obs.Processor).Warn("pausing promotion failed", err, "promotion_id", id)
	}
	p.Cache.Hint()
}

const (
	// retryBase and retryLimit bound the pause before a payout's next call.
	retryBase  = time.Second
	retryLimit = time.Minute
	// silentSteps bounds how often that pause doubles after calls without an
	// answer.
	silentSteps = 4
	// lateMargin is left between the end of a turn's wait and the age at which no
	// call is opened any more.
	lateMargin = 100 * time.Millisecond
)

var _ pool.Handler = (*Processor)(nil)
