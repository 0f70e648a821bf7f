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
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/tracing"
)

const (
	// retryBackoff is the backoff before the second charge of a payout, doubled for each
	// further one.
	retryBackoff    = time.Second
	retryBackoffMax = time.Minute
	// callBackoff is the pause before the second try of a call that was not sent or was
	// throttled, doubled for each further one.
	callBackoff    = 100 * time.Millisecond
	callBackoffMax = 5 * time.Second
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

// The reasons not to start a call.
var (
	errStale      = errors.New("payout: the view of the promotion is too old")
	errNotRunning = errors.New("payout: the promotion is not running")
	errCancelled  = errors.New("payout: the promotion is cancelled")
	errEnded      = errors.New("payout: the promotion has ended")
	errLease      = errors.New("payout: the lease does not outlast the call")
	errLate       = errors.New("payout: the dispatch is too old for a call")
	errForgotten  = errors.New("payout: the provider may have forgotten the key")
)

// payment is a payout that is being charged. A method that reports whether to try again
// has passed the entry on, or released it, if it reports false.
type payment struct {
	*Processor
	item *pool.Item
	row  reward.Payout
	// outcome is what is known so far. Its Sent means that an earlier charge of this
	// dispatch may have taken effect.
	outcome rules.Outcome
	tries   int // calls that were not sent or were throttled
	// looked means that a lookup had the result "not found" and that no charge was
	// throttled since.
	looked bool
}

// dueBatch is a batch of payouts that may be charged. Those that are charged at once share
// a goroutine, which saves its start and the growth of its stack.
type dueBatch struct {
	ctx      context.Context //nolint:containedctx // of the batch's handler
	payments []*payment
	begun    atomic.Int64 // payments that a goroutine has begun or is about to begin
	// standby means that a goroutine was started that has not begun a payment yet.
	standby atomic.Bool
}

// pay charges the payouts of the batch. A payout whose call takes long delays no other
// one: a goroutine that begins a payout makes sure that another one can begin the next.
func (b *dueBatch) pay() {
	for {
		i := int(b.begun.Add(1)) - 1
		if i >= len(b.payments) {
			return
		}
		if i+1 < len(b.payments) && b.standby.CompareAndSwap(false, true) {
			go func() {
				b.standby.Store(false)
				b.pay()
			}()
		}
		m := b.payments[i]
		b.payments[i] = nil // a call that hangs keeps no other payment in memory
		m.pay(b.ctx)
	}
}

// pay charges the payout. It tries again until there is an outcome, or until it must
// return the payout or leave the entry to be claimed. After a panic it leaves the entry
// to be claimed, as a crash would.
func (m *payment) pay(ctx context.Context) {
	defer func() {
		if r := recover(); r != nil {
			m.cfg.Log.For(obs.Processor).Error("payout handler panicked", fmt.Errorf("panic: %v\n%s", r, debug.Stack()),
				"promotion_id", m.row.PromotionID, "target_id", m.row.TargetID)
			m.item.Release()
		}
	}()
	ctx, span := m.cfg.Tracer.Payout(ctx, "pay payout", &m.row)
	defer span.End(nil)
	for m.try(ctx, span) {
	}
}

func (m *payment) try(ctx context.Context, span tracing.Span) bool {
	permit, ok := m.acquire()
	if !ok {
		return false
	}
	if m.mustLookUp(ctx) {
		return m.lookUpFirst(ctx, permit)
	}
	began := time.Now()
	ans, found := m.charge(ctx, permit)
	span.Set("largesse.answer", string(ans.Class))
	if found.Found {
		m.attempted(ans)
		m.paid(found.TransactionKey)
		return false
	}
	if permit.Probe() && ans.Class == reward.AnswerFailed && !found.NotFound {
		// The breaker is open: the provider fails for all payouts, so this
		// response says nothing about this one, and counts as no attempt. The
		// charge may have taken effect, as after a 503.
		ans.Class, ans.Status = reward.AnswerThrottled, http.StatusServiceUnavailable
	}
	switch ans.Class {
	case reward.AnswerNotSent:
		return m.unsent(ctx, ans.Err)
	case reward.AnswerThrottled:
		// This counts as no attempt. After a 503, the charge may have taken
		// effect all the same.
		m.outcome.Sent, m.looked = m.outcome.Sent || ans.Status == http.StatusServiceUnavailable, false
		return m.throttled(ctx, ans)
	case reward.AnswerMisconfigured:
		m.misconfigured(ctx, ans, began)
	default:
		m.conclude(ctx, ans)
	}
	return false
}

// acquire waits for a permit. If the promotion no longer runs, the pool ends or, in direct
// mode, the dispatch becomes too old for a call, it passes the entry on and returns false.
func (m *payment) acquire() (*governor.Permit, bool) {
	waiting := m.item.ReadContext()
	if m.cfg.Direct {
		// Stop waiting before the dispatch is too old: a permit would be wasted.
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(waiting, m.callableFor(waiting)-lateMargin)
		defer cancel()
	}
	for {
		permit, err := m.governor.Acquire(waiting, m.jobOf(&m.row))
		switch {
		case err == nil:
			return permit, true
		case m.knownAs(reward.PromotionCancelled):
			m.finish(rules.OutcomeCancelled)
			return nil, false
		case !errors.Is(err, governor.ErrWaitCancelled) || m.knownAs(reward.Paused):
			m.finisher.returnToReady(m.item)
			return nil, false
		}
		// The wait was cancelled, but the promotion runs again.
	}
}

// charge makes one charge under a permit and reports its outcome to the governor. If the
// charge is a probe that failed (5xx) or got no conclusive response, it also looks up the
// payout: a charge that is found means that the provider works, "not found" that it
// answers lookups but not charges.
func (m *payment) charge(ctx context.Context, permit *governor.Permit) (ans money.Answer, found money.LookupResult) {
	began, outcome := time.Now(), noSign
	defer func() { permit.Done(outcome) }()
	check := func() error { return m.mayCharge(ctx) }
	if currency, running := m.cache.currency(m.row.PromotionID); running {
		ans = kinds[m.item.Stream.Type].charge(m.cfg.Provider, ctx, money.Charge{
			PromotionID: m.row.PromotionID, TargetID: m.row.TargetID, UserID: m.row.UserID,
			Amount: m.row.Amount, Currency: currency, VoucherCode: m.row.VoucherCode,
		}, check)
	} else {
		ans = money.Answer{Class: reward.AnswerNotSent, Code: money.CodeNotAllowed, Err: cmp.Or(check(), errStale)}
	}
	outcome = outcomeOf(ans, time.Since(began))
	if ans.Class != reward.AnswerNotSent {
		m.cfg.Metrics.ChargeTook(m.row.PromotionID, time.Since(began))
	}
	if permit.Probe() && (ans.Class == reward.AnswerFailed || ans.Class == reward.AnswerUnknown) {
		if found = m.cfg.Provider.Lookup(ctx, m.row.PromotionID, m.row.TargetID); found.Found {
			outcome.Class = reward.AnswerRefused // the provider works: the charge took effect
		}
		outcome.LookupAnswered = found.NotFound
	}
	return ans, found
}

// mayCharge returns an error if a charge must not start. The client calls it right
// before it sends the first byte.
func (m *payment) mayCharge(ctx context.Context) error {
	switch {
	case m.mustLookUp(ctx):
		return errForgotten
	case m.cfg.Direct && m.callableFor(ctx) < 0:
		return errLate
	case m.ended(ctx):
		return errEnded
	}
	return m.mayCall()
}

// ended reports whether the promotion has ended for all that is known of the time of the
// database. The guard pauses it within a second, and the feeder dispatches it no more.
func (m *payment) ended(ctx context.Context) bool {
	v := m.cache.Views()[m.row.PromotionID]
	if v == nil || v.EndsAt.IsZero() {
		return false
	}
	now, err := m.rows.clock.latest(ctx)
	return err != nil || rules.Ended(&v.Promotion, now)
}

// mayCall returns an error if no call must start: the view is too old or shows that the
// promotion does not run, or the lease may end before the call.
func (m *payment) mayCall() error {
	status, age := m.cache.Status(m.row.PromotionID)
	switch {
	case age > viewAgeMax:
		return errStale
	case status == reward.PromotionCancelled:
		return errCancelled
	case status != reward.Running:
		return errNotRunning
	case m.item.LeaseLeft() < m.cfg.Limits.MoneyTimeout:
		return errLease
	}
	return nil
}

// knownAs reports whether the view shows the promotion in a status. An entry can arrive
// before the view has the promotion.
func (m *payment) knownAs(s reward.PromotionStatus) bool {
	status, _ := m.cache.Status(m.row.PromotionID)
	return status == s
}

// mustLookUp reports whether a charge could pay a second time, so that the payout must be
// looked up first: the provider may have forgotten the key, or the database was restored,
// so that an earlier charge may be missing in the rows. It is also true while the time of
// the database is not known.
func (m *payment) mustLookUp(ctx context.Context) bool {
	if m.looked {
		return false
	}
	age, known := m.since(ctx, m.row.FirstDispatchedAt)
	return !known || age > m.cfg.Limits.IdempotencyWindow-m.cfg.Limits.SettleAfter ||
		m.row.FirstDispatchedAt.Before(m.cache.LookupUntil())
}

// since returns an upper limit of the time since t, unless the clock of the database is
// unknown.
func (m *payment) since(ctx context.Context, t time.Time) (age time.Duration, known bool) {
	now, err := m.rows.clock.latest(ctx)
	return now.Sub(t), err == nil
}

// callableFor returns how long, in direct mode, a call for this dispatch may still
// start. It is negative if the dispatch is too old, or if its age is not known.
func (m *payment) callableFor(ctx context.Context) time.Duration {
	if age, known := m.since(ctx, m.row.DueAt); known {
		return m.cfg.Limits.DispatchHorizon()/2 - age
	}
	return -1
}

// overdue reports whether the first dispatch is longer ago than GiveUpAfter.
func (m *payment) overdue(ctx context.Context) bool {
	age, known := m.since(ctx, m.row.FirstDispatchedAt)
	return known && age > m.cfg.Limits.GiveUpAfter
}

// lookUpFirst looks up a payout that must not be charged before. After the result "not
// found", the next try is a charge.
func (m *payment) lookUpFirst(ctx context.Context, permit *governor.Permit) bool {
	if err := m.mayCall(); err != nil {
		permit.Done(noSign)
		return m.unsent(ctx, err)
	}
	began := time.Now()
	found := m.lookUpUnder(ctx, permit, m.row)
	switch ans := found.Answer; {
	case found.Found:
		m.answered()
		m.paid(found.TransactionKey)
	case found.NotFound:
		m.looked = true
		return true
	case ans.Class == reward.AnswerNotSent:
		return m.unsent(ctx, ans.Err)
	case ans.Class == reward.AnswerThrottled:
		return m.throttled(ctx, ans)
	case ans.Class == reward.AnswerMisconfigured:
		m.misconfigured(ctx, ans, began)
	default:
		// Nothing is known, and this round has sent no charge: look it up again
		// later, unless the row is overdue or the provider has no lookup.
		m.outcome.Code, m.outcome.Message = ans.Code, ans.Message
		m.outcome.GiveUp = ans.Code == money.CodeNoLookup
		if ans.WithoutKey() {
			m.noteKeyless(ctx, ans, began)
		}
		m.retryLater(ctx)
	}
	return false
}

// unsent handles a call that was not sent.
func (m *payment) unsent(ctx context.Context, err error) bool {
	try := m.tries
	m.tries++
	switch {
	case errors.Is(err, errForgotten):
		return true
	case errors.Is(err, errCancelled):
		m.finish(rules.OutcomeCancelled)
		return false
	case errors.Is(err, errNotRunning) && m.knownAs(reward.Paused), errors.Is(err, errLate), errors.Is(err, errEnded):
		m.finisher.returnToReady(m.item)
		return false
	case errors.Is(err, errLease):
		m.item.Release()
		return false
	case errors.Is(err, errStale), errors.Is(err, errNotRunning):
		return m.wait(ctx, refreshInterval)
	}
	m.warn(ctx, obs.Money, "Money API unavailable", err, "promotion_id", m.row.PromotionID, "target_id", m.row.TargetID)
	return m.wait(ctx, service.Backoff(try, callBackoff, callBackoffMax))
}

// throttled waits as the provider asks. If the wait is longer than the lease, the payout
// becomes RETRYING, and no attempt is counted. An overdue payout becomes UNKNOWN at once
// if a charge of this dispatch, perhaps the throttled one, may have taken effect.
func (m *payment) throttled(ctx context.Context, ans money.Answer) bool {
	pause := max(ans.RetryAfter, service.Backoff(m.tries, callBackoff, callBackoffMax))
	m.tries++
	giveUp := m.outcome.Sent && m.overdue(ctx)
	if pause <= m.cfg.Limits.Lease && !giveUp {
		return m.wait(ctx, pause)
	}
	m.attempted(ans)
	m.outcome.RetryAt, m.outcome.GiveUp = time.Now().Add(pause), giveUp
	m.finish(rules.OutcomeNoAnswer)
	return false
}

// wait waits for d, or until the promotion is paused or cancelled, and returns true. If
// the pool ends, or less of the lease is left than a call may take, it returns the payout
// or releases the item at once, because no call is in flight, and returns false.
func (m *payment) wait(ctx context.Context, d time.Duration) bool {
	// acquire passes the entry of such a promotion on.
	ended := func() bool { return m.knownAs(reward.Paused) || m.knownAs(reward.PromotionCancelled) }
	until := time.Now().Add(d)
	for left := d; left > 0; left = time.Until(until) {
		select {
		case <-time.After(min(left, refreshInterval)):
		case <-m.item.ReadContext().Done():
			if ended() {
				return true
			}
			m.finisher.returnToReady(m.item)
			return false
		case <-ctx.Done():
			m.finisher.returnToReady(m.item)
			return false
		}
		if m.item.LeaseLeft() < m.cfg.Limits.MoneyTimeout {
			m.item.Release()
			return false
		}
		if ended() {
			return true
		}
	}
	return true
}

// conclude passes on the outcome that follows from a response. After no response or an
// inconclusive one (not a 5xx) it looks the payout up once.
func (m *payment) conclude(ctx context.Context, ans money.Answer) {
	if ans.Class == reward.AnswerPaid {
		m.answered()
		m.paid(ans.TransactionKey)
		return
	}
	now := time.Now()
	m.attempted(ans)
	switch ans.Class {
	case reward.AnswerRefused:
		m.answered()
		m.finish(rules.OutcomeRefused)
	case reward.AnswerFailed:
		m.outcome.RetryAt = now.Add(service.Backoff(int(m.row.Attempts), retryBackoff, retryBackoffMax))
		m.finish(rules.OutcomeFailed)
	default:
		if key, paid := m.lookUpAfter(ctx); paid {
			m.answered()
			m.paid(key)
			return
		}
		if ans.WithoutKey() {
			m.noteKeyless(ctx, ans, now)
		}
		m.retryLater(ctx)
	}
}

// lookUpAfter looks up once whether a charge without a conclusive response has taken
// effect, unless the provider does not respond.
func (m *payment) lookUpAfter(ctx context.Context) (key string, paid bool) {
	if !m.governor.Responds() {
		return "", false
	}
	waiting, cancel := context.WithTimeout(m.item.ReadContext(), m.cfg.Limits.MoneyTimeout)
	defer cancel()
	permit, err := m.governor.Acquire(waiting, m.jobOf(&m.row))
	if err != nil {
		return "", false
	}
	found := m.lookUpUnder(ctx, permit, m.row)
	return found.TransactionKey, found.Found
}

// misconfigured handles a response that shows wrong settings: it pauses the promotion and
// returns the payout. If the response may be about this payee alone, the payout is
// retried, and the promotion continues until nobody else is paid.
func (m *payment) misconfigured(ctx context.Context, ans money.Answer, began time.Time) {
	payees, alone := 1, true
	if ans.OnePayee {
		payees, alone = m.misfits.addPayee(m.row.PromotionID, m.row.TargetID)
	}
	if !alone {
		m.attempted(ans)
		m.retryLater(ctx)
		return
	}
	m.pauseFor(ctx, m.row.PromotionID, began, pauseReason(m.row.TargetID, payees, ans))
	m.finisher.returnToReady(m.item)
}

// noteKeyless counts a success without a transaction key, and pauses the promotion if
// there are too many in a row. began is not before the start of the call.
func (m *payment) noteKeyless(ctx context.Context, ans money.Answer, began time.Time) {
	if m.misfits.addKeyless(m.item.Stream.Type) {
		m.pauseFor(ctx, m.row.PromotionID, began, fmt.Sprintf("the provider responded %d to %d calls in a row, but named no transaction: "+
			`such a response must have {"transactionKey": "…"}; correct the provider or money.url, then resume`, ans.Status, keylessMax))
	}
}

// answered records that the provider gave a conclusive response.
func (m *payment) answered() { m.misfits.reset(m.item.Stream.Type, m.row.PromotionID) }

func (m *payment) attempted(ans money.Answer) {
	m.outcome.Code, m.outcome.Message = ans.Code, ans.Message
	m.outcome.Attempts = []reward.Attempt{{Dispatch: m.row.Dispatch, At: time.Now(), Class: ans.Class, Code: ans.Code, Message: ans.Message}}
}

// paid passes on that the provider confirmed the charge.
func (m *payment) paid(key string) {
	m.outcome.TransactionKey, m.outcome.Code, m.outcome.Message = key, "", ""
	m.finish(rules.OutcomePaid)
}

// retryLater passes on that nothing conclusive is known. No attempt is counted, so the
// backoff depends on the number of dispatches.
func (m *payment) retryLater(ctx context.Context) {
	m.outcome.GiveUp = m.outcome.GiveUp || m.overdue(ctx)
	m.outcome.RetryAt = time.Now().Add(service.Backoff(min(int(m.row.Dispatch)-1, silentSteps), retryBackoff, retryBackoffMax))
	m.finish(rules.OutcomeNoAnswer)
}

func (m *payment) finish(kind rules.OutcomeKind) {
	m.outcome.Kind = kind
	m.finisher.finish(m.item, m.row.Amount, m.outcome)
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
		reason += fmt.Sprintf(", after %d others in a row got no better response", payees-1)
	}
	if ans.OnePayee {
		return reason + ", and paid nobody else since: if this is about the user, add the code to money.refusal-codes, so that such payouts fail and the others are paid; " +
			"otherwise check money.url and the credentials; then resume"
	}
	return reason + ": check money.url and the credentials, then resume"
}

const (
	// keylessMax is the number of calls in a row without a transaction key after which
	// the settings or the provider are wrong.
	keylessMax = 20
	// payeeErrorsMax is the number of payees in a row whose response may be about
	// themselves, after which it is about the settings.
	payeeErrorsMax = 20
)

// misfits counts responses in a row that may show wrong settings. It is safe for
// concurrent use.
type misfits struct {
	mu sync.Mutex // protects what follows
	// keyless counts calls that the provider answered with success but without a
	// transaction key, and that no lookup confirmed. Such a charge may have taken effect, so
	// its payout is looked up and charged again with the same key. If there are many, that
	// never ends. Each type of promotion has a path of its own, and so a count.
	keyless map[reward.PromotionType]int
	// payees are those with a response that is about them or about the settings. Nobody
	// else of the promotion was paid or refused in between.
	payees map[reward.PromotionID]map[reward.TargetID]bool
}

// addKeyless counts a call without a key, and reports whether there are too many.
func (x *misfits) addKeyless(t reward.PromotionType) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keyless[t] = min(x.keyless[t]+1, keylessMax)
	return x.keyless[t] == keylessMax
}

// addPayee adds a payee. It reports how many are in the row, and whether the promotion gets
// nowhere: the payee got such a response before, or there are payeeErrorsMax. The row
// then starts over.
func (x *misfits) addPayee(id reward.PromotionID, target reward.TargetID) (payees int, nowhere bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	row := x.payees[id]
	if row == nil {
		row = make(map[reward.TargetID]bool)
		x.payees[id] = row
	}
	nowhere = row[target]
	row[target] = true
	if nowhere = nowhere || len(row) >= payeeErrorsMax; nowhere {
		delete(x.payees, id)
	}
	return len(row), nowhere
}

// reset records a conclusive response for a payee of a promotion.
func (x *misfits) reset(t reward.PromotionType, id reward.PromotionID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.keyless, t)
	delete(x.payees, id)
}
