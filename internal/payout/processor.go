package payout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/tracing"
)

// Limits are the durations that decide whether and how a payout is charged.
type Limits struct {
	MoneyTimeout time.Duration // of one call
	Lease        time.Duration // of an entry
	// SettleAfter is how long a charge may still take effect at the provider after
	// it was sent. "Not found" decides a payout from SettleFrom + SettleAfter on.
	SettleAfter time.Duration
	// IdempotencyWindow is how long the provider remembers an idempotency key. A
	// payout that may outlive it is looked up before a charge; see
	// Processor.keyMayBeForgotten.
	IdempotencyWindow time.Duration
	// GiveUpAfter is how long after its first dispatch a payout without a
	// conclusive response becomes UNKNOWN: it is only looked up from then on.
	GiveUpAfter time.Duration

	direct bool // see Config.Direct
	local  bool // see Config.QueueIsLocal
}

// Processor handles the entries that the pools deliver: it checks them, charges
// the provider, and hands the outcomes to the finisher.
//
// It checks at delivery:
//   - The row is QUEUED under the entry's dispatch.
//   - This is the entry's first delivery.
//
// It checks right before the first byte of the call:
//   - The promotion is RUNNING, in a view that is at most viewAgeMax old.
//   - The lease of the entry lasts for a whole call.
//   - In direct mode (Config.Direct), the dispatch is not too old for a call.
//
// A payout whose key the provider may have forgotten is looked up first; see
// keyMayBeForgotten.
//
// After a crash, another consumer claims the entry. A claimed entry is never
// charged: its payout is returned (see rules.WithdrawReturn), or becomes UNKNOWN
// because it is poison.
type Processor struct {
	Store    store.Store
	Provider Provider
	Governor *governor.Governor
	Cache    *StatusCache
	Finisher *Finisher
	Limits   Limits
	Metrics  *obs.Metrics
	Tracer   *tracing.Tracer // nil makes no spans
	Log      obs.Log
	clock    *clock // of the database

	warnedAt atomic.Int64 // Unix nanoseconds of the latest line that warn wrote
	keyless  keyless
	payees   payeeErrors

	pausing  sync.Mutex // held while pausing a promotion; protects pausedAt
	pausedAt map[reward.PromotionID]time.Time
}

// poisonAfter is the number of failed deliveries in a row after which a payout is
// poison. Each of them belongs to another dispatch, because a failed delivery
// returns the payout to READY. A crash of an instance also fails a delivery, so
// poisonAfter is more than the crashes that one payout is likely to meet.
const poisonAfter = 10

// unreadable is the detail of a dead letter for an entry that another program
// added.
const unreadable = "the entry has no readable key, message or dispatch"

// The reasons not to start a call.
var (
	errStale      = errors.New("payout: the view of the promotion is too old")
	errNotRunning = errors.New("payout: the promotion is not running")
	errCancelled  = errors.New("payout: the promotion is cancelled")
	errLease      = errors.New("payout: the lease does not outlast the call")
	errLate       = errors.New("payout: the dispatch is too old for a call")
	errForgotten  = errors.New("payout: the provider may have forgotten the key")
)

// Handle takes ownership of items and returns immediately.
func (p *Processor) Handle(ctx context.Context, items []*pool.Item) {
	go p.ProcessStreamMessages(ctx, items)
}

// ProcessStreamMessages reads the rows of a batch of entries at once, and starts
// to charge the payouts that may be charged. Of the other entries,
// one whose dispatch is over is just acknowledged. The rest go to the finisher with an
// outcome or as a return, or are stored as dead letters. If the rows cannot be read, all entries are released.
func (p *Processor) ProcessStreamMessages(ctx context.Context, items []*pool.Item) {
	ids := make([]store.PayoutID, 0, len(items))
	for _, it := range items {
		if it.Readable {
			ids = append(ids, store.PayoutID{PromotionID: it.Stream.PromotionID, TargetID: it.TargetID})
		}
	}
	rows, err := p.heads(ctx, ids)
	if err != nil {
		// Without the rows nothing can be decided. Consumers claim the entries
		// when their leases expire.
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
			p.deadLetterEntry(ctx, it, reward.CodeMalformed, unreadable)
		case !found:
			p.deadLetterEntry(ctx, it, "NO_ROW", "the entry's target has no row in this promotion")
		case row.State != reward.Queued || row.Dispatch != it.Dispatch:
			// This dispatch is over: its row is never QUEUED under it again.
			p.Finisher.ack(it)
		case it.Claimed && row.FailedDeliveries+1 >= poisonAfter:
			p.poison(ctx, it, row)
		case !it.FirstDelivery:
			p.Finisher.returnToReady(it)
		case status == reward.PromotionCancelled:
			p.Finisher.finish(it, rules.Outcome{Ref: row.Ref(), Kind: rules.OutcomeCancelled})
		default:
			go p.pay(ctx, it, row)
		}
	}
}

// heads reads rows by target. It tries again until the database answers or ctx
// ends.
func (p *Processor) heads(ctx context.Context, ids []store.PayoutID) (map[reward.TargetID]reward.Payout, error) {
	out := make(map[reward.TargetID]reward.Payout, len(ids))
	for len(ids) > 0 {
		chunk := ids[:min(len(ids), store.BatchMax)]
		rows, err := p.Store.PayoutGetMany(ctx, chunk)
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

// deadLetterEntry stores an entry that can never be processed as a dead letter,
// and acknowledges it.
func (p *Processor) deadLetterEntry(ctx context.Context, it *pool.Item, reason, detail string) {
	if p.storeDeadLetter(ctx, it, reason, detail) {
		p.Finisher.ack(it)
	}
}

// poison moves a payout whose deliveries keep failing to UNKNOWN and stores a dead
// letter. The settler then looks the payout up. Nothing charges it again unless a
// person asks for a retry. After a crash in between, a later delivery does the
// same again; an entry has one dead letter at most.
func (p *Processor) poison(ctx context.Context, it *pool.Item, row reward.Payout) {
	detail := fmt.Sprintf("%d deliveries in a row ended without an outcome", row.FailedDeliveries+1)
	if p.storeDeadLetter(ctx, it, reward.CodePoison, detail) {
		p.Finisher.finish(it, rules.Outcome{
			Ref: row.Ref(), Kind: rules.OutcomeNoLookup, Code: reward.CodePoison, Message: detail,
		})
	}
}

// storeDeadLetter stores a copy of an entry as a dead letter. It reports false if
// that fails, and then leaves the entry pending until a consumer claims it.
func (p *Processor) storeDeadLetter(ctx context.Context, it *pool.Item, reason, detail string) bool {
	if err := p.Store.DeadLetterAdd(ctx, []reward.DeadLetter{deadEntry(it.Stream, it.Entry, reason, detail)}); err != nil {
		p.warn(ctx, obs.Consumer, databaseUnavailable, err, "promotion_id", it.Stream.PromotionID, "entry", it.ID)
		it.Release()
		return false
	}
	p.Metrics.DeadLettered(reason, 1)
	p.Log.For(obs.Consumer).Warn("entry dead-lettered", errors.New(detail), "promotion_id", it.Stream.PromotionID, "entry", it.ID)
	return true
}

// deadEntry returns a dead letter with the bytes of a stream entry.
func deadEntry(s queue.Stream, e queue.Entry, reason, detail string) reward.DeadLetter {
	return reward.DeadLetter{
		Source: s.Name(), Offset: e.ID,
		Value: e.Message, Reason: reason, Detail: detail, At: time.Now(),
	}
}

// pay charges one payout. It tries again until there is an outcome, or until it
// must return the payout or leave the entry to be claimed. After a panic it
// leaves the entry to be claimed, as a crash would; a payout that panics each time
// becomes poison.
func (p *Processor) pay(ctx context.Context, it *pool.Item, row reward.Payout) {
	defer func() {
		if r := recover(); r != nil {
			p.Log.For(obs.Processor).Error("payout handler panicked", fmt.Errorf("panic: %v\n%s", r, debug.Stack()),
				"promotion_id", row.PromotionID, "target_id", row.TargetID)
			it.Release()
		}
	}()
	ctx, span := p.Tracer.Payout(ctx, "pay payout", &row)
	defer span.End(nil)
	out := rules.Outcome{Ref: row.Ref()}
	// sent means that an earlier charge of this dispatch may have taken effect.
	// looked means that a lookup had the result "not found" and that no charge was
	// throttled since.
	sent, looked := false, false
	check := func() error {
		if p.keyMayBeForgotten(ctx, row) && !looked {
			return errForgotten
		}
		if p.Limits.direct && p.callableFor(ctx, row) < 0 {
			return errLate
		}
		return p.check(it)
	}
	for try := 0; ; try++ {
		permit, ok := p.acquire(it, row, out, sent)
		if !ok {
			return
		}
		if p.keyMayBeForgotten(ctx, row) && !looked {
			done, again := p.lookUpFirst(ctx, permit, it, row, out, sent, try)
			if done {
				return
			}
			if !again {
				looked = true
				try-- // the charge itself has not been tried
			}
			continue
		}
		began := time.Now()
		ans, found := p.call(ctx, permit, row, func() money.Answer {
			currency, running := p.Cache.currency(row.PromotionID)
			if !running {
				return money.Answer{Class: reward.AnswerNotSent, Code: money.CodeNotAllowed, Err: cmp.Or(check(), errStale)}
			}
			return kindOf(it.Stream.Type).charge(p.Provider, ctx, chargeOf(row, currency), check)
		})
		span.Set("largesse.answer", string(ans.Class))
		if found.Found {
			out.Kind, out.TransactionKey = rules.OutcomePaid, found.TransactionKey
			out.Attempts = []reward.Attempt{attemptOf(row, time.Now(), ans)}
			p.Finisher.finish(it, out)
			return
		}
		if permit.Probe() && ans.Class == reward.AnswerFailed && !found.NotFound {
			// The breaker is open: the provider fails for all payouts, so this
			// response says nothing about this one, and counts as no attempt. The
			// charge may have taken effect, as after a 503.
			ans.Class, ans.Status = reward.AnswerThrottled, http.StatusServiceUnavailable
		}
		switch ans.Class {
		case reward.AnswerNotSent:
			if !p.unsent(ctx, it, out, sent, try, ans.Err) {
				return
			}
			continue
		case reward.AnswerThrottled:
			// This counts as no attempt. After a 503, the charge may have taken
			// effect all the same.
			sent, looked = sent || ans.Status == http.StatusServiceUnavailable, false
			if !p.throttled(ctx, it, row, out, ans, sent, try) {
				return
			}
			continue
		case reward.AnswerMisconfigured:
			p.misconfigured(ctx, it, row, out, ans, began)
			return
		}
		p.conclude(ctx, it, row, out, ans, sent)
		return
	}
}

// jobOf returns what the governor must know about a call for a payout.
func jobOf(cache *StatusCache, row reward.Payout) governor.Job {
	job := cache.job(row.PromotionID)
	job.TargetID, job.HasTarget = row.TargetID, true
	job.Hangs = row.Dispatch > hangsAfter && row.ErrorCode == money.CodeTimeout
	return job
}

// acquire waits for a permit. If the promotion no longer runs or the pool ends, it
// passes the entry to the finisher and returns false. In direct mode it also does
// so if the dispatch becomes too old for a call.
func (p *Processor) acquire(it *pool.Item, row reward.Payout, out rules.Outcome, sent bool) (*governor.Permit, bool) {
	waiting := it.ReadContext()
	if p.Limits.direct {
		// Stop waiting before the dispatch is too old: a permit would be wasted.
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(waiting, p.callableFor(waiting, row)-lateMargin)
		defer cancel()
	}
	for {
		permit, err := p.Governor.Acquire(waiting, jobOf(p.Cache, row))
		switch {
		case err == nil:
			return permit, true
		case p.cancelled(it):
			out.Kind, out.Sent = rules.OutcomeCancelled, sent
			p.Finisher.finish(it, out)
			return nil, false
		case !errors.Is(err, governor.ErrWaitCancelled) || p.knownPaused(it):
			p.Finisher.returnToReady(it)
			return nil, false
		}
		// The wait was cancelled, but the promotion runs again.
	}
}

// call makes one charge under a permit and reports its outcome to the governor,
// even if charge panics. If the charge is a probe that failed (5xx) or got no
// conclusive response, call also looks up the payout for the governor. A charge that is found means
// that the provider works. "Not found" means that it answers lookups but not
// charges.
func (p *Processor) call(ctx context.Context, permit *governor.Permit, row reward.Payout, charge func() money.Answer) (ans money.Answer, found money.LookupResult) {
	began := time.Now()
	outcome := governor.Outcome{Class: reward.AnswerNotSent, Local: true}
	defer func() { permit.Done(outcome) }()
	ans = charge()
	outcome = outcomeOf(ans, time.Since(began))
	if ans.Class != reward.AnswerNotSent {
		p.Metrics.ChargeTook(row.PromotionID, time.Since(began))
	}
	if permit.Probe() && (ans.Class == reward.AnswerFailed || ans.Class == reward.AnswerUnknown) {
		if found = p.Provider.Lookup(ctx, row.PromotionID, row.TargetID); found.Found {
			outcome.Class = reward.AnswerRefused // the provider works: the charge took effect
		}
		outcome.LookupAnswered = found.NotFound
	}
	return ans, found
}

// outcomeOf returns what the governor must know about a response.
func outcomeOf(ans money.Answer, took time.Duration) governor.Outcome {
	return governor.Outcome{
		Class: ans.Class, Status: ans.Status, RetryAfter: ans.RetryAfter, Took: took,
		Local: ans.Class == reward.AnswerNotSent && ans.Code != money.CodeNotConnected,
	}
}

// lookup looks up a payout's key under a permit.
func lookup(ctx context.Context, provider Provider, permit *governor.Permit, row reward.Payout) money.LookupResult {
	began := time.Now()
	outcome := governor.Outcome{Class: reward.AnswerNotSent, Local: true}
	defer func() { permit.Done(outcome) }()
	found := provider.Lookup(ctx, row.PromotionID, row.TargetID)
	outcome = outcomeOf(found.Answer, time.Since(began))
	switch {
	case found.Found, found.NotFound && permit.Probe():
		outcome.Class = reward.AnswerRefused // the provider responds, which is all that a probe asks; a lookup's latency does not count
	case found.NotFound, found.Answer.Code == money.CodeNoLookup:
		// It proves nothing: a provider that cannot charge may still answer this, and
		// one that has no lookup was not asked.
		outcome = governor.Outcome{Class: reward.AnswerNotSent, Local: true}
	}
	return found
}

// keyMayBeForgotten reports whether a charge could pay a second time, so that the
// payout must be looked up first. One reason is that the provider may have
// forgotten the key. The other is that the database was restored: an earlier
// charge may be missing in the rows, and its key may be forgotten, too. The payout
// must also be looked up while the time of the database is not known.
func (p *Processor) keyMayBeForgotten(ctx context.Context, row reward.Payout) bool {
	age, known := p.since(ctx, row.FirstDispatchedAt)
	return !known || age > p.Limits.IdempotencyWindow-p.Limits.SettleAfter ||
		row.FirstDispatchedAt.Before(p.Cache.LookupUntil())
}

// since returns an upper limit of the time since t, by the clock of the database.
// known is false if that clock cannot be read.
func (p *Processor) since(ctx context.Context, t time.Time) (age time.Duration, known bool) {
	_, now, err := p.clock.between(ctx)
	return now.Sub(t), err == nil
}

// callableFor returns how long, in direct mode, a call for a dispatch may still
// start. It is negative if the dispatch is too old, or if its age is not known.
func (p *Processor) callableFor(ctx context.Context, row reward.Payout) time.Duration {
	age, known := p.since(ctx, row.DueAt)
	if !known {
		return -1
	}
	return p.Limits.DispatchHorizon()/2 - age
}

// overdue reports whether the first dispatch of a payout is longer ago than
// GiveUpAfter.
func (p *Processor) overdue(ctx context.Context, row reward.Payout) bool {
	age, known := p.since(ctx, row.FirstDispatchedAt)
	return known && age > p.Limits.GiveUpAfter
}

// lookUpFirst looks up a payout for which keyMayBeForgotten is true. If done is
// true, the entry was passed on or released. If again is true, the lookup was not
// sent or was throttled. If both are false, the result is "not found", and the
// payout may be charged.
func (p *Processor) lookUpFirst(ctx context.Context, permit *governor.Permit, it *pool.Item, row reward.Payout, out rules.Outcome, sent bool, try int) (done, again bool) {
	if err := p.check(it); err != nil {
		permit.Done(governor.Outcome{Class: reward.AnswerNotSent, Local: true})
		again = p.unsent(ctx, it, out, sent, try, err)
		return !again, again
	}
	began := time.Now()
	found := lookup(ctx, p.Provider, permit, row)
	switch {
	case found.Found:
		p.keyless.reset(it.Stream.Type)
		p.payees.reset(row.PromotionID)
		out.Kind, out.TransactionKey = rules.OutcomePaid, found.TransactionKey
	case found.NotFound:
		return false, false
	case found.Answer.Class == reward.AnswerNotSent:
		again = p.unsent(ctx, it, out, sent, try, found.Answer.Err)
		return !again, again
	case found.Answer.Class == reward.AnswerThrottled:
		again = p.throttled(ctx, it, row, out, found.Answer, sent, try)
		return !again, again
	case found.Answer.Class == reward.AnswerMisconfigured:
		p.misconfigured(ctx, it, row, out, found.Answer, began)
		return true, false
	default:
		// Nothing is known, and this round has sent no charge: look it up again
		// later, unless the row is overdue or the provider has no lookup.
		now := time.Now()
		out.Kind, out.Sent = rules.OutcomeNoAnswer, sent
		out.GiveUp = p.overdue(ctx, row) || found.Answer.Code == money.CodeNoLookup
		out.RetryAt = now.Add(service.Backoff(min(int(row.Dispatch)-1, silentSteps), retryBackoff, retryBackoffMax))
		out.Code, out.Message = found.Answer.Code, found.Answer.Message
		if found.Answer.WithoutKey() {
			p.noteKeyless(ctx, it, found.Answer, began)
		}
	}
	p.Finisher.finish(it, out)
	return true, false
}

// throttled waits as the provider asks, and reports whether to try again. If the
// wait is longer than the lease, the payout becomes RETRYING, and no attempt is
// counted. If sent is true, an overdue payout becomes UNKNOWN at once: a charge of
// this dispatch, perhaps the throttled one, may have taken effect.
func (p *Processor) throttled(ctx context.Context, it *pool.Item, row reward.Payout, out rules.Outcome, ans money.Answer, sent bool, try int) bool {
	pause := max(ans.RetryAfter, service.Backoff(try, 100*time.Millisecond, 5*time.Second))
	giveUp := sent && p.overdue(ctx, row)
	if pause <= p.Limits.Lease && !giveUp {
		return p.wait(ctx, it, pause)
	}
	now := time.Now()
	out.Kind, out.RetryAt, out.GiveUp = rules.OutcomeNoAnswer, now.Add(pause), giveUp
	out.Code, out.Message = ans.Code, ans.Message
	out.Attempts = []reward.Attempt{attemptOf(row, now, ans)}
	p.Finisher.finish(it, out)
	return false
}

// attemptOf returns the attempt that a response makes.
func attemptOf(row reward.Payout, at time.Time, ans money.Answer) reward.Attempt {
	return reward.Attempt{Dispatch: row.Dispatch, At: at, Class: ans.Class, Code: ans.Code, Message: ans.Message}
}

// chargeOf returns the charge of a payout.
func chargeOf(row reward.Payout, currency string) money.Charge {
	return money.Charge{
		PromotionID: row.PromotionID, TargetID: row.TargetID, UserID: row.UserID,
		Amount: row.Amount, Currency: currency, VoucherCode: row.VoucherCode,
	}
}

// check returns an error if a call must not start. The client calls it right
// before it sends the first byte.
func (p *Processor) check(it *pool.Item) error {
	status, age := p.Cache.Status(it.Stream.PromotionID)
	switch {
	case age > viewAgeMax:
		return errStale
	case status == reward.PromotionCancelled:
		return errCancelled
	case status != reward.Running:
		return errNotRunning
	case it.LeaseLeft() < p.Limits.MoneyTimeout:
		return errLease
	}
	return nil
}

// unsent handles a call that was not sent and reports whether to try again.
func (p *Processor) unsent(ctx context.Context, it *pool.Item, out rules.Outcome, sent bool, try int, err error) bool {
	switch {
	case errors.Is(err, errForgotten):
		return true
	case errors.Is(err, errCancelled):
		out.Kind, out.Sent = rules.OutcomeCancelled, sent
		p.Finisher.finish(it, out)
		return false
	case errors.Is(err, errNotRunning) && p.knownPaused(it), errors.Is(err, errLate):
		p.Finisher.returnToReady(it)
		return false
	case errors.Is(err, errLease):
		it.Release()
		return false
	case errors.Is(err, errStale), errors.Is(err, errNotRunning):
		return p.wait(ctx, it, refreshInterval)
	}
	p.warn(ctx, obs.Money, "Money API unavailable", err, "promotion_id", it.Stream.PromotionID, "target_id", it.TargetID)
	return p.wait(ctx, it, service.Backoff(try, 100*time.Millisecond, 5*time.Second))
}

// warnInterval separates log lines about unavailable servers.
const warnInterval = 5 * time.Second

// databaseUnavailable is the log message for failed reads and writes of rows.
const databaseUnavailable = "database unavailable"

// warn logs at most one line per warnInterval, however many entries wait.
func (p *Processor) warn(ctx context.Context, c obs.Component, message string, err error, attrs ...any) {
	last, now := p.warnedAt.Load(), time.Now().UnixNano()
	if ctx.Err() == nil && now-last > int64(warnInterval) && p.warnedAt.CompareAndSwap(last, now) {
		p.Log.For(c).Warn(message, err, attrs...)
	}
}

// knownPaused reports whether the view shows the promotion as PAUSED. It is false
// while the view does not have the promotion: an entry can arrive before that.
func (p *Processor) knownPaused(it *pool.Item) bool {
	status, _ := p.Cache.Status(it.Stream.PromotionID)
	return status == reward.Paused
}

// wait waits for d, or until the promotion is paused or cancelled, and returns
// true. If the pool ends, wait returns the payout to READY at once, because no
// call is in flight, and returns false. If less of the lease is left than a call may take,
// it releases the item and returns false.
func (p *Processor) wait(ctx context.Context, it *pool.Item, d time.Duration) bool {
	until := time.Now().Add(d)
	for left := d; left > 0; left = time.Until(until) {
		timer := time.NewTimer(min(left, refreshInterval))
		select {
		case <-timer.C:
		case <-it.ReadContext().Done():
			timer.Stop()
			if p.knownPaused(it) || p.cancelled(it) {
				return true // ReadContext has ended, so acquire passes the entry on
			}
			p.Finisher.returnToReady(it)
			return false
		case <-ctx.Done():
			timer.Stop()
			p.Finisher.returnToReady(it)
			return false
		}
		if it.LeaseLeft() < p.Limits.MoneyTimeout {
			it.Release()
			return false
		}
		if p.knownPaused(it) || p.cancelled(it) {
			return true
		}
	}
	return true
}

// cancelled reports whether the view has the promotion as CANCELLED.
func (p *Processor) cancelled(it *pool.Item) bool {
	status, _ := p.Cache.Status(it.Stream.PromotionID)
	return status == reward.PromotionCancelled
}

// conclude passes on the outcome that follows from a response. After no
// response or an inconclusive one (not a 5xx) it looks the payout up once: if the charge is confirmed,
// the payout needs no further charge.
func (p *Processor) conclude(ctx context.Context, it *pool.Item, row reward.Payout, out rules.Outcome, ans money.Answer, sent bool) {
	now := time.Now()
	out.Sent, out.Code, out.Message = sent, ans.Code, ans.Message
	out.RetryAt = now.Add(service.Backoff(int(row.Attempts), retryBackoff, retryBackoffMax))
	if ans.Class == reward.AnswerPaid || ans.Class == reward.AnswerRefused {
		p.keyless.reset(it.Stream.Type)
		p.payees.reset(row.PromotionID)
	}
	switch ans.Class {
	case reward.AnswerPaid:
		out.Kind, out.TransactionKey, out.Code, out.Message = rules.OutcomePaid, ans.TransactionKey, "", ""
		p.Finisher.finish(it, out)
		return
	case reward.AnswerRefused:
		out.Kind = rules.OutcomeRefused
	case reward.AnswerFailed:
		out.Kind = rules.OutcomeFailed
	default:
		out.Kind = rules.OutcomeNoAnswer
		// No attempt is counted, so the backoff depends on the number of
		// dispatches, although some of them may not have led to a charge.
		out.RetryAt = now.Add(service.Backoff(min(int(row.Dispatch)-1, silentSteps), retryBackoff, retryBackoffMax))
		out.GiveUp = p.overdue(ctx, row)
		switch key, paid := p.lookUpAfter(ctx, it, row); {
		case paid:
			p.keyless.reset(it.Stream.Type)
			p.payees.reset(row.PromotionID)
			out.Kind, out.TransactionKey = rules.OutcomePaid, key
			out.Code, out.Message = "", ""
		case ans.WithoutKey():
			p.noteKeyless(ctx, it, ans, now)
		}
	}
	out.Attempts = []reward.Attempt{attemptOf(row, now, ans)}
	p.Finisher.finish(it, out)
}

// noteKeyless counts a success without a transaction key, and pauses the promotion
// if there are too many in a row. began is a time at or after
// the start of the call.
func (p *Processor) noteKeyless(ctx context.Context, it *pool.Item, ans money.Answer, began time.Time) {
	if p.keyless.add(it.Stream.Type) {
		p.pauseFor(ctx, it.Stream.PromotionID, began, fmt.Sprintf("the provider responded %d to %d calls in a row, but named no transaction: "+
			`such a response must have {"transactionKey": "…"}; correct the provider or money.url, then resume`, ans.Status, keylessMax))
	}
}

// lookUpAfter looks up once whether a charge without a conclusive response has
// taken effect. It looks nothing up while the governor accepts no work.
func (p *Processor) lookUpAfter(ctx context.Context, it *pool.Item, row reward.Payout) (key string, paid bool) {
	if !p.Governor.Responds() {
		return "", false
	}
	waiting, cancel := context.WithTimeout(it.ReadContext(), p.Limits.MoneyTimeout)
	defer cancel()
	permit, err := p.Governor.Acquire(waiting, jobOf(p.Cache, row))
	if err != nil {
		return "", false
	}
	found := lookup(ctx, p.Provider, permit, row)
	return found.TransactionKey, found.Found
}

// misconfigured handles a response that shows wrong settings. It pauses the promotion
// and returns the payout, which is charged after a resume. If the response may be about
// this payee alone, the payout is retried, and the promotion continues until nobody
// else is paid.
func (p *Processor) misconfigured(ctx context.Context, it *pool.Item, row reward.Payout, out rules.Outcome, ans money.Answer, began time.Time) {
	payees, alone := 1, true
	if ans.OnePayee {
		payees, alone = p.payees.add(row.PromotionID, row.TargetID)
	}
	if !alone {
		now := time.Now()
		out.Kind, out.GiveUp = rules.OutcomeNoAnswer, p.overdue(ctx, row)
		out.RetryAt = now.Add(service.Backoff(min(int(row.Dispatch)-1, silentSteps), retryBackoff, retryBackoffMax))
		out.Code, out.Message = ans.Code, ans.Message
		out.Attempts = []reward.Attempt{attemptOf(row, now, ans)}
		p.Finisher.finish(it, out)
		return
	}
	p.pauseFor(ctx, row.PromotionID, began, pauseReason(row.TargetID, payees, ans))
	p.Finisher.returnToReady(it)
}

// pauseReason says why a response pauses a promotion, and what to do.
func pauseReason(target reward.TargetID, payees int, ans money.Answer) string {
	if ans.Status == 0 {
		return fmt.Sprintf("the payout of target %d cannot be sent to the provider (%s): correct the settings, then resume", target, ans.Message)
	}
	said := strings.TrimSpace(fmt.Sprintf("%d %s", ans.Status, ans.Code))
	if ans.Message != "" {
		said += " (" + ans.Message + ")"
	}
	reason := fmt.Sprintf("the provider responded %s to target %d", said, target)
	if payees > 1 {
		reason = fmt.Sprintf("the provider responded %s to target %d, after %d others in a row got no better response", said, target, payees-1)
	}
	if ans.OnePayee {
		return reason + ", and paid nobody else since: if this is about the user, add the code to money.refusal-codes, so that such payouts fail and the others are paid; " +
			"otherwise check money.url and the credentials; then resume"
	}
	return reason + ": check money.url and the credentials, then resume"
}

// pauseFor pauses a promotion. It ignores a call that began
// before the latest such pause or less than viewAgeMax after it. The call may not
// have seen that pause, and must not pause the promotion again after a resume.
func (p *Processor) pauseFor(ctx context.Context, id reward.PromotionID, began time.Time, reason string) {
	p.pausing.Lock()
	defer p.pausing.Unlock()
	if began.Before(p.pausedAt[id].Add(viewAgeMax)) {
		return
	}
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
	// retryBackoff is the backoff before the second charge of a payout. It
	// doubles for each further charge, up to retryBackoffMax.
	retryBackoff    = time.Second
	retryBackoffMax = time.Minute
	// hangsAfter is the number of dispatches after which a payout whose latest call
	// timed out counts as one that hangs; see governor.Job.
	hangsAfter = 2
	// silentSteps limits how often the backoff doubles after charges without a
	// conclusive response.
	silentSteps = 4
	// lateMargin is the time between the end of the wait for a permit and the
	// age at which a dispatch is too old for a call.
	lateMargin = 100 * time.Millisecond
)

var _ pool.Handler = (*Processor)(nil)
