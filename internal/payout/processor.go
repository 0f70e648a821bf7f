package payout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// Limits are the durations that decide whether and how a payout is charged.
type Limits struct {
	MoneyTimeout time.Duration // of one call
	Lease        time.Duration // of an entry
	// SettleAfter is how long a charge may still take effect at the provider after
	// it was sent. "Not found" decides a payout from SettleFrom + SettleAfter on.
	SettleAfter time.Duration
	// IdempotencyWindow is how long the provider remembers an idempotency key. A
	// payout that may outlive it is looked up before a charge; see payment.mustLookUp.
	IdempotencyWindow time.Duration
	// GiveUpAfter is how long after its first dispatch a payout without a
	// conclusive response becomes UNKNOWN: it is only looked up from then on.
	GiveUpAfter time.Duration
}

// Processor handles the entries that the pools deliver: it checks them, charges
// the provider, and hands the outcomes to the finisher.
//
// At delivery, the row must be QUEUED under the entry's dispatch, and this must be the
// entry's first delivery. Right before the first byte of the call, the checks of
// payment.mayCharge follow. A payout whose key the provider may have forgotten is looked up
// first; see payment.mustLookUp.
//
// After a crash, another consumer claims the entry. A claimed entry is never
// charged: its payout is returned (see rules.WithdrawReturn), or becomes UNKNOWN
// because it is poison.
type Processor struct {
	*shared
	finisher *Finisher

	warnedAt atomic.Int64 // Unix nanoseconds of the latest line that warn wrote
	misfits  misfits

	pausing  sync.Mutex // held while pausing a promotion; protects pausedAt
	pausedAt map[reward.PromotionID]time.Time
}

func newProcessor(s *shared, f *Finisher) *Processor {
	return &Processor{
		shared: s, finisher: f, pausedAt: make(map[reward.PromotionID]time.Time),
		misfits: misfits{keyless: make(map[reward.PromotionType]int), payees: make(map[reward.PromotionID]map[reward.TargetID]bool)},
	}
}

// poisonAfter is the number of failed deliveries in a row, each of another dispatch,
// after which a payout is poison. A crash of an instance also fails a delivery, so it is
// more than the crashes that one payout is likely to meet.
const poisonAfter = 10

// unreadable is the detail of the dead letter of an entry that another program added.
const unreadable = "the entry has no readable key, message or dispatch"

// ProcessStreamMessages reads the rows of a batch of entries at once, and starts
// to charge the payouts that may be charged. It acknowledges an entry whose dispatch is
// over. The rest go to the finisher with an outcome or as a return, or are stored as dead
// letters. If the rows cannot be read, all entries are released: nothing can be decided, and
// consumers claim them when their leases expire.
func (p *Processor) ProcessStreamMessages(ctx context.Context, items []*pool.Item) {
	ids := make([]store.PayoutID, 0, len(items))
	for _, it := range items {
		if it.Readable {
			ids = append(ids, store.PayoutID{PromotionID: it.Stream.PromotionID, TargetID: it.TargetID})
		}
	}
	rows, err := p.heads(ctx, ids)
	if err != nil {
		for _, it := range items {
			it.Release()
		}
		return
	}
	due := &dueBatch{ctx: ctx}
	for _, it := range items {
		row, found := rows[it.TargetID]
		status, _ := p.cache.Status(it.Stream.PromotionID)
		switch {
		case !it.Readable:
			p.bury(ctx, it, reward.CodeMalformed, unreadable)
		case !found:
			p.bury(ctx, it, "NO_ROW", "the entry's target has no row in this promotion")
		case row.State != reward.Queued || row.Dispatch != it.Dispatch:
			// This dispatch is over: its row is never QUEUED under it again.
			p.finisher.ack(it)
		case it.Claimed && row.FailedDeliveries+1 >= poisonAfter:
			p.poison(ctx, it, row)
		case !it.FirstDelivery:
			p.finisher.returnToReady(it)
		case status == reward.PromotionCancelled:
			p.finisher.finish(it, row.Amount, rules.Outcome{Ref: row.Ref(), Kind: rules.OutcomeCancelled})
		default:
			due.payments = append(due.payments, &payment{Processor: p, item: it, row: *row, outcome: rules.Outcome{Ref: row.Ref()}})
		}
	}
	due.pay()
}

// heads reads rows by target. It tries again until the database answers or ctx ends.
func (p *Processor) heads(ctx context.Context, ids []store.PayoutID) (map[reward.TargetID]*reward.Payout, error) {
	out := make(map[reward.TargetID]*reward.Payout, len(ids))
	for len(ids) > 0 {
		chunk := ids[:min(len(ids), store.BatchMax)]
		rows, err := p.rows.PayoutGetMany(ctx, chunk)
		if err != nil {
			p.warn(ctx, obs.Processor, databaseUnavailable, err, "count", len(chunk))
			if !service.Sleep(ctx, service.Jitter(500*time.Millisecond, 0.25)) {
				return nil, err
			}
			continue
		}
		for i := range rows {
			out[rows[i].TargetID] = &rows[i]
		}
		ids = ids[len(chunk):]
	}
	return out, nil
}

// bury stores an entry that can never be processed as a dead letter, and acknowledges it.
func (p *Processor) bury(ctx context.Context, it *pool.Item, reason, detail string) {
	if p.storeDeadLetter(ctx, it, reason, detail) {
		p.finisher.ack(it)
	}
}

// poison moves a payout whose deliveries keep failing to UNKNOWN and stores a dead
// letter. Only a person can have it charged again. After a crash in between, a later
// delivery does the same again; an entry has one dead letter at most.
func (p *Processor) poison(ctx context.Context, it *pool.Item, row *reward.Payout) {
	detail := fmt.Sprintf("%d deliveries in a row ended without an outcome", row.FailedDeliveries+1)
	if p.storeDeadLetter(ctx, it, reward.CodePoison, detail) {
		p.finisher.finish(it, row.Amount, rules.Outcome{
			Ref: row.Ref(), Kind: rules.OutcomeNoLookup, Code: reward.CodePoison, Message: detail,
		})
	}
}

// storeDeadLetter stores a copy of an entry as a dead letter. It reports false if
// that fails, and then leaves the entry pending until a consumer claims it.
func (p *Processor) storeDeadLetter(ctx context.Context, it *pool.Item, reason, detail string) bool {
	if err := p.rows.DeadLetterAdd(ctx, []reward.DeadLetter{deadEntry(it.Stream, it.Entry, reason, detail)}); err != nil {
		p.warn(ctx, obs.Consumer, databaseUnavailable, err, "promotion_id", it.Stream.PromotionID, "entry", it.ID)
		it.Release()
		return false
	}
	p.cfg.Metrics.DeadLettered(reason, 1)
	p.cfg.Log.For(obs.Consumer).Warn("entry dead-lettered", errors.New(detail), "promotion_id", it.Stream.PromotionID, "entry", it.ID)
	return true
}

func deadEntry(s queue.Stream, e queue.Entry, reason, detail string) reward.DeadLetter {
	return reward.DeadLetter{
		Source: s.Name(), Offset: e.ID,
		Value: e.Message, Reason: reason, Detail: detail, At: time.Now(),
	}
}

const (
	warnInterval        = 5 * time.Second // between log lines about unavailable servers
	databaseUnavailable = "database unavailable"
)

// warn logs at most one line per warnInterval.
func (p *Processor) warn(ctx context.Context, c obs.Component, message string, err error, attrs ...any) {
	last, now := p.warnedAt.Load(), time.Now().UnixNano()
	if ctx.Err() == nil && now-last > int64(warnInterval) && p.warnedAt.CompareAndSwap(last, now) {
		p.cfg.Log.For(c).Warn(message, err, attrs...)
	}
}

// pauseFor pauses a promotion, unless the call began before the latest such pause or less
// than viewAgeMax after it. Such a call may not have seen that pause, and must not pause
// the promotion again after a resume.
func (p *Processor) pauseFor(ctx context.Context, id reward.PromotionID, began time.Time, reason string) {
	p.pausing.Lock()
	defer p.pausing.Unlock()
	if began.Before(p.pausedAt[id].Add(viewAgeMax)) {
		return
	}
	if p.pause(ctx, id, reason) {
		p.pausedAt[id] = time.Now()
	}
}

// Provider charges and looks up payouts. Its methods must be safe for concurrent
// use. A charge calls check right before it sends the first byte, and sends
// nothing if check returns an error.
type Provider interface {
	ChargePoint(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
	ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
	Lookup(ctx context.Context, p reward.PromotionID, t reward.TargetID) money.LookupResult
}

// kind holds what depends on the type of a promotion.
type kind struct {
	promotionType reward.PromotionType
	publishTopic  string
	publishGroup  string
	retryTopic    string
	retryGroup    string
	charge        func(p Provider, ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
}

var kinds = map[reward.PromotionType]kind{
	reward.Point: {
		promotionType: reward.Point,
		publishTopic:  bus.TopicPointPublish,
		publishGroup:  bus.GroupPoint,
		retryTopic:    bus.TopicPointRetry,
		retryGroup:    bus.GroupPointRetry,
		charge:        Provider.ChargePoint,
	},
	reward.Voucher: {
		promotionType: reward.Voucher,
		publishTopic:  bus.TopicVoucherPublish,
		publishGroup:  bus.GroupVoucher,
		retryTopic:    bus.TopicVoucherRetry,
		retryGroup:    bus.GroupVoucherRetry,
		charge:        Provider.ChargeVoucher,
	},
}

// jobOf returns what the governor must know about a call for a payout.
func (s *shared) jobOf(row *reward.Payout) governor.Job {
	job := s.cache.job(row.PromotionID)
	job.TargetID, job.HasTarget = row.TargetID, true
	job.Hangs = row.Dispatch > hangsAfter && row.ErrorCode == money.CodeTimeout
	return job
}

func outcomeOf(ans money.Answer, took time.Duration) governor.Outcome {
	return governor.Outcome{
		Class: ans.Class, Status: ans.Status, RetryAfter: ans.RetryAfter, Took: took,
		Local: ans.Class == reward.AnswerNotSent && ans.Code != money.CodeNotConnected,
	}
}

// noSign is the outcome of a call that tells the governor nothing about the provider.
var noSign = governor.Outcome{Class: reward.AnswerNotSent, Local: true}

// lookUpUnder looks up a payout's key under a permit.
func (s *shared) lookUpUnder(ctx context.Context, permit *governor.Permit, row reward.Payout) money.LookupResult {
	began, outcome := time.Now(), noSign
	defer func() { permit.Done(outcome) }()
	found := s.cfg.Provider.Lookup(ctx, row.PromotionID, row.TargetID)
	outcome = outcomeOf(found.Answer, time.Since(began))
	switch {
	case found.Found, found.NotFound && permit.Probe():
		outcome.Class = reward.AnswerRefused // the provider responds, which is all that a probe asks; a lookup's latency does not count
	case found.NotFound, found.Answer.Code == money.CodeNoLookup:
		// It proves nothing: a provider that cannot charge may still answer this, and
		// one that has no lookup was not asked.
		outcome = noSign
	}
	return found
}

// awaitPermit waits for a permit for a call that is no charge. A pause or cancel stops charges
// only, so it waits again.
func (s *shared) awaitPermit(ctx context.Context, job func() governor.Job) (*governor.Permit, error) {
	for {
		permit, err := s.governor.Acquire(ctx, job())
		if !errors.Is(err, governor.ErrWaitCancelled) {
			return permit, err
		}
	}
}

// chargeLister lists the provider's charges. A Provider may implement it.
type chargeLister interface {
	Charges(ctx context.Context, p reward.PromotionID, cursor string) (money.ChargesPage, error)
}

// Charges reads a page of the provider's list of charges, when the governor permits it.
// The error is money.ErrNoCharges if the provider has no list.
func (f *Flow) Charges(ctx context.Context, p reward.PromotionID, cursor string) (money.ChargesPage, error) {
	list, has := f.cfg.Provider.(chargeLister)
	if !has {
		return money.ChargesPage{}, money.ErrNoCharges
	}
	permit, err := f.awaitPermit(ctx, func() governor.Job { return f.cache.job(p) })
	if err != nil {
		return money.ChargesPage{}, err
	}
	// A failure tells the governor nothing about charges, unless the provider
	// answered it.
	outcome := noSign
	defer func() { permit.Done(outcome) }()
	page, err := list.Charges(ctx, p, cursor)
	var answered *money.ChargesError
	switch {
	case err == nil:
		outcome = governor.Outcome{Class: reward.AnswerRefused}
	case errors.As(err, &answered):
		outcome = outcomeOf(answered.Answer, 0)
	}
	return page, err
}
