package payout

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

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
func jobOf(cache *StatusCache, row reward.Payout) governor.Job {
	job := cache.job(row.PromotionID)
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
	outcome := governor.Outcome{Class: reward.AnswerNotSent, Local: true}
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
