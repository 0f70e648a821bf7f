package payout

import (
	"context"
	"errors"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

// chargeLister lists the provider's charges. A Provider may implement it.
type chargeLister interface {
	Charges(ctx context.Context, p reward.PromotionID, cursor string) (money.ChargesPage, error)
}

// Charges reads a page of the provider's list of charges. It waits for the
// governor like any call. The error is money.ErrNoCharges if the provider has
// no list.
func (f *Flow) Charges(ctx context.Context, p reward.PromotionID, cursor string) (money.ChargesPage, error) {
	list, has := f.cfg.Provider.(chargeLister)
	if !has {
		return money.ChargesPage{}, money.ErrNoCharges
	}
	permit, err := f.governor.Acquire(ctx, f.cache.job(p))
	for errors.Is(err, governor.ErrWaitCancelled) {
		permit, err = f.governor.Acquire(ctx, f.cache.job(p))
	}
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
