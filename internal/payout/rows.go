package payout

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// Store is what a flow needs of the database.
type Store interface {
	store.Leases

	Clock(ctx context.Context) (time.Time, error)
	RestoreMark(ctx context.Context) (time.Time, error)
	OffsetsGet(ctx context.Context, log string) (map[int32]int64, error)
	DeadLetterAdd(ctx context.Context, letters []reward.DeadLetter) error
	InstanceAlive(ctx context.Context) ([]string, error)
	InstanceList(ctx context.Context) ([]store.Instance, error)

	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
	PromotionAwaitApproval(ctx context.Context, p store.PromotionAwaitApprovalParams) (bool, error)
	PromotionAskApproval(ctx context.Context, id reward.PromotionID, above reward.Limits) (bool, error)
	PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error)
	PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration, now time.Time) (bool, error)
	PromotionDue(ctx context.Context, now time.Time, limit int) ([]store.PromotionView, error)
	PromotionEnd(ctx context.Context, id reward.PromotionID, now time.Time) (bool, error)
	PromotionGrant(ctx context.Context, p store.PromotionGrantParams) (bool, error)
	PromotionJudge(ctx context.Context, p store.PromotionJudgeParams) (reward.PromotionStatus, bool, error)
	PromotionMove(ctx context.Context, p store.PromotionMoveParams) (reward.Promotion, error)
	PromotionRegister(ctx context.Context, rs []store.Registration, approvalAbove reward.Limits, now time.Time) ([]reward.Promotion, error)
	PromotionStreamDestroyed(ctx context.Context, id reward.PromotionID, lastDispatchedAt time.Time) (bool, error)
	PromotionUnasked(ctx context.Context, now time.Time, limit int) ([]store.PromotionView, error)
	PromotionViews(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error)

	PayoutCancelStep(ctx context.Context, p store.PayoutCancelStepParams) (int, error)
	PayoutClaimLookups(ctx context.Context, p store.PayoutClaimLookupsParams) ([]reward.Payout, error)
	PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) ([]reward.Payout, error)
	PayoutFinish(ctx context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error)
	PayoutGetMany(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error)
	PayoutReturn(ctx context.Context, p store.PayoutReturnParams) (int, error)
	PayoutSave(ctx context.Context, p store.PayoutSaveParams) (store.PayoutSaveResult, error)
	PayoutSettle(ctx context.Context, p store.PayoutSettleParams) ([]store.SecondCharge, error)
	PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (int, error)
}

// flowStore is the store of a flow. It writes and reads all times of payouts by the clock
// of the database: another instance decides by them when a dispatch is lost, when a key
// may be forgotten, and when "not found" settles a payout. It also reports payouts that
// were charged twice, or with the transaction key of another one.
type flowStore struct {
	Store
	clock *clock
	// approvalAbove is the setting approval.above, which every start by a record, save
	// and dispatch obeys.
	approvalAbove reward.Limits
	breaches      Breaches
	latest        confirmations
}

// Breaches handle confirmations of the provider that contradict an earlier one. Each may
// be nil.
type Breaches struct {
	// ChargedTwice is called for a payout that was confirmed with another transaction
	// key before.
	ChargedTwice func(ctx context.Context, c store.SecondCharge)
	// KeyShared is called for a payout that was confirmed with the transaction key of
	// another one, the first.
	KeyShared func(ctx context.Context, key string, first, second store.PayoutID)
}

func newFlowStore(s Store, approvalAbove reward.Limits, breaches Breaches) *flowStore {
	return &flowStore{Store: s, clock: &clock{read: s.Clock}, approvalAbove: approvalAbove, breaches: breaches}
}

// confirmationsMax limits the confirmations that each half of confirmations has.
const confirmationsMax = 20_000

// confirmations has the payouts of the latest confirmations by transaction key. It is
// safe for concurrent use.
type confirmations struct {
	mu          sync.Mutex // protects what follows
	now, before map[string]store.PayoutID
}

// add adds a confirmation. If another payout has the key, it returns that one.
func (c *confirmations) add(key string, id store.PayoutID) (other store.PayoutID, shared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, half := range []map[string]store.PayoutID{c.now, c.before} {
		if known, ok := half[key]; ok {
			return known, known != id
		}
	}
	if c.now == nil || len(c.now) == confirmationsMax {
		if c.now, c.before = c.before, c.now; c.now == nil {
			c.now = make(map[string]store.PayoutID)
		}
		clear(c.now)
	}
	c.now[key] = id
	return id, false
}

// PromotionRegister registers promotions, and starts none early.
func (s *flowStore) PromotionRegister(ctx context.Context, rs []store.Registration) ([]reward.Promotion, error) {
	now, err := s.clock.earliest(ctx)
	if err != nil {
		return nil, err
	}
	return s.Store.PromotionRegister(ctx, rs, s.approvalAbove, now)
}

// PromotionDue returns the DRAFTs whose StartsAt has passed.
func (s *flowStore) PromotionDue(ctx context.Context, limit int) ([]store.PromotionView, error) {
	now, err := s.clock.earliest(ctx)
	if err != nil {
		return nil, err
	}
	return s.Store.PromotionDue(ctx, now, limit)
}

// PromotionEnd pauses promotions that have ended.
func (s *flowStore) PromotionEnd(ctx context.Context, id reward.PromotionID) (bool, error) {
	now, err := s.clock.earliest(ctx)
	if err != nil {
		return false, err
	}
	return s.Store.PromotionEnd(ctx, id, now)
}

// PromotionComplete ends promotions. It takes no lease of an upload for expired too
// early.
func (s *flowStore) PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration) (bool, error) {
	now, err := s.clock.earliest(ctx)
	if err != nil {
		return false, err
	}
	return s.Store.PromotionComplete(ctx, id, settleAfter, now)
}

func (s *flowStore) PayoutSave(ctx context.Context, p store.PayoutSaveParams) (_ store.PayoutSaveResult, err error) {
	if p.Now, err = s.clock.earliest(ctx); err != nil {
		return store.PayoutSaveResult{}, err
	}
	p.ApprovalAbove = s.approvalAbove
	return s.Store.PayoutSave(ctx, p)
}

func (s *flowStore) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) (_ []reward.Payout, err error) {
	if p.Now, err = s.clock.earliest(ctx); err != nil {
		return nil, err
	}
	p.ApprovalAbove = s.approvalAbove
	return s.Store.PayoutDispatch(ctx, p)
}

// PayoutFinish writes outcomes. The time of a retry keeps its distance from the
// present: it is changed in p.Outcomes, so the caller passes a new slice each time.
func (s *flowStore) PayoutFinish(ctx context.Context, p store.PayoutFinishParams) (_ []store.FinishResult, err error) {
	if p.Now, err = s.clock.latest(ctx); err != nil {
		return nil, err
	}
	for i, o := range p.Outcomes {
		if !o.RetryAt.IsZero() {
			p.Outcomes[i].RetryAt = p.Now.Add(time.Until(o.RetryAt))
		}
	}
	results, err := s.Store.PayoutFinish(ctx, p)
	reported := make(map[reward.PromotionID]bool)
	for i, r := range results {
		o := &p.Outcomes[i]
		if r.Recorded != "" {
			s.chargedTwice(ctx, store.SecondCharge{Ref: o.Ref, Recorded: r.Recorded, TransactionKey: o.TransactionKey})
		}
		if o.Kind == rules.OutcomePaid {
			s.confirmed(ctx, o.Ref, o.TransactionKey, reported)
		}
	}
	return results, err
}

func (s *flowStore) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) (twice []store.SecondCharge, err error) {
	if p.Now, err = s.clock.latest(ctx); err != nil {
		return nil, err
	}
	twice, err = s.Store.PayoutSettle(ctx, p)
	for _, c := range twice {
		s.chargedTwice(ctx, c)
	}
	if err != nil {
		return twice, err
	}
	reported := make(map[reward.PromotionID]bool)
	for _, l := range p.Lookups {
		if l.Found {
			s.confirmed(ctx, l.Ref, l.TransactionKey, reported)
		}
	}
	return twice, nil
}

func (s *flowStore) PayoutReturn(ctx context.Context, p store.PayoutReturnParams) (_ int, err error) {
	if p.Now, err = s.clock.latest(ctx); err != nil {
		return 0, err
	}
	return s.Store.PayoutReturn(ctx, p)
}

func (s *flowStore) PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (_ int, err error) {
	if p.Now, err = s.clock.latest(ctx); err != nil {
		return 0, err
	}
	return s.Store.PayoutSweep(ctx, p)
}

func (s *flowStore) PayoutCancelStep(ctx context.Context, p store.PayoutCancelStepParams) (_ int, err error) {
	if p.Now, err = s.clock.latest(ctx); err != nil {
		return 0, err
	}
	return s.Store.PayoutCancelStep(ctx, p)
}

func (s *flowStore) chargedTwice(ctx context.Context, c store.SecondCharge) {
	if s.breaches.ChargedTwice != nil {
		s.breaches.ChargedTwice(context.WithoutCancel(ctx), c)
	}
}

// confirmed notes the transaction key of a confirmation, and reports one of another
// payout. Per batch it reports one for each promotion, which reported notes, so that a
// provider whose keys are all the same holds up the outcomes of no other promotion.
func (s *flowStore) confirmed(ctx context.Context, ref reward.Ref, key string, reported map[reward.PromotionID]bool) {
	if s.breaches.KeyShared == nil || key == "" {
		return
	}
	id := store.PayoutID{PromotionID: ref.PromotionID, TargetID: ref.TargetID}
	if other, shared := s.latest.add(key, id); shared && !reported[id.PromotionID] {
		reported[id.PromotionID] = true
		s.breaches.KeyShared(context.WithoutCancel(ctx), key, other, id)
	}
}

const (
	clockInterval = 10 * time.Second // between reads of the database's clock
	clockTimeout  = 2 * time.Second  // of a read
	clockBackoff  = time.Second      // after a failed read
	// clockAgeMax is the age of a read above which the time is not known any more.
	clockAgeMax = 5 * time.Minute
	// clockJump is the difference between the wall clock of this host and the time that
	// has passed above which the clock was set or the host was suspended.
	clockJump = time.Second
)

// clock tells the time of the database: instances have clocks of their own, which may be
// wrong. It reads the time of the database now and then, and adds the time that has
// passed since. It is safe for concurrent use.
type clock struct {
	read func(ctx context.Context) (time.Time, error)

	mu           sync.Mutex // protects the fields below
	at           time.Time  // of the database, at the latest read
	began, ended time.Time  // of that read, on this host; zero before the first one
	failedAt     time.Time  // the latest failed read since
	reading      bool       // a call reads the clock
}

// between returns two times. The database's clock is not before the first and not
// after the second one. They differ by the duration of the latest read.
func (c *clock) between(ctx context.Context) (earliest, latest time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	unknown := !c.known(now)
	if unknown || now.Sub(c.ended) > clockInterval && !c.reading && now.Sub(c.failedAt) > clockBackoff {
		c.reading = true
		c.mu.Unlock() // others use the time that is known
		at, began, ended, err := c.ask(ctx)
		c.mu.Lock()
		c.reading = false
		now = time.Now()
		switch {
		case err == nil:
			c.at, c.began, c.ended = at, began, ended
		case unknown && !c.known(now): // no other call has read it meanwhile
			return time.Time{}, time.Time{}, err
		default:
			c.failedAt = now
		}
	}
	return c.at.Add(now.Sub(c.ended)), c.at.Add(now.Sub(c.began)), nil
}

// earliest returns a time that the database's clock has reached.
func (c *clock) earliest(ctx context.Context) (time.Time, error) {
	at, _, err := c.between(ctx)
	return at, err
}

// latest returns a time that the database's clock has not passed.
func (c *clock) latest(ctx context.Context) (time.Time, error) {
	_, at, err := c.between(ctx)
	return at, err
}

// known reports whether the latest read still tells the time. The caller holds mu.
func (c *clock) known(now time.Time) bool {
	passed := now.Sub(c.ended) // by the monotonic clock
	jump := now.Round(0).Sub(c.ended.Round(0)) - passed
	return !c.ended.IsZero() && passed <= clockAgeMax && jump.Abs() <= clockJump
}

func (c *clock) ask(ctx context.Context) (at, began, ended time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	began = time.Now()
	at, err = c.read(ctx)
	if err != nil {
		return at, began, ended, fmt.Errorf("read the clock of the database: %w", err)
	}
	return at, began, time.Now(), nil
}
