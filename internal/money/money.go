// Package money calls the provider through its Money API. It classifies the
// responses and limits the calls in flight. Package moneysim simulates a
// provider; the two share no types.
package money

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// Charge is what the provider is asked to pay: the body of a charge of the Money API.
// The payout's row stores it unchanged: the same key always has the same body.
type Charge struct {
	PromotionID reward.PromotionID `json:"promotionId,string"`
	TargetID    reward.TargetID    `json:"targetId,string"`
	UserID      string             `json:"userId"`
	Amount      reward.Amount      `json:"amount"`
	Currency    string             `json:"currency,omitempty"`    // of the promotion, which names none for points: ""
	VoucherCode string             `json:"voucherCode,omitempty"` // VOUCHER only
}

// CheckFunc runs right before the first byte of a request leaves, after the
// dial and the wait for a connection. If it returns an error, nothing is sent,
// and the answer's class is UNSENT with that error as Err. If it returns nil,
// the request counts as sent.
type CheckFunc func() error

// Answer is the classified result of one call.
type Answer struct {
	Class          reward.AnswerClass
	TransactionKey string        // PAID
	Status         int           // HTTP status; 0: no response
	Code           string        // the provider's code, or one of Largesse: TIMEOUT, RESET, HTTP_500, …
	Message        string        // short, valid UTF-8, for humans
	RetryAfter     time.Duration // of any response that had it; 0: none
	Err            error         // UNSENT and UNKNOWN: the cause
	// OnePayee reports, with the class MISSET, that the response may be about the payee
	// and not about the settings: a 403 or 404 with a code of the provider, or a response
	// that is too long to read its code.
	OnePayee bool
	// Open reports that no rule of a Custom matches the response.
	Open bool
}

// WithoutKey reports whether a complete response says success but names no
// transaction that Largesse can read. The charge may have taken effect. The provider
// or the settings are wrong.
func (a Answer) WithoutKey() bool {
	return a.Class == reward.AnswerUnknown && !a.Open && a.Status >= 200 && a.Status <= 299 &&
		a.Code != CodeTimeout && a.Code != CodeReset && a.Code != CodeStopped
}

// LookupResult is what the provider knows about an idempotency key. If neither
// Found nor NotFound is set, the lookup was inconclusive.
type LookupResult struct {
	Found          bool
	TransactionKey string
	NotFound       bool
	Answer         Answer // of the lookup itself, for its attempt
}

func (r LookupResult) class() obs.LookupClass {
	switch {
	case r.Found:
		return obs.LookupFound
	case r.NotFound:
		return obs.LookupNotFound
	}
	return obs.LookupOpen
}

// payer is what Client and Local have in common. It refuses charges that cannot be
// paid, and counts calls.
type payer struct {
	cfg     Config
	payable reward.Payable
	reasons map[string]string // by code; none for Local
	log     obs.Log
	pay     func(ctx context.Context, t reward.PromotionType, ch Charge, check CheckFunc) Answer
	find    func(ctx context.Context, p reward.PromotionID, t reward.TargetID) LookupResult
}

func newPayer(cfg Config) payer {
	return payer{cfg: cfg, payable: reward.Payable{Currencies: cfg.Currencies}, log: cfg.Log.For(obs.Money)}
}

// ChargePoint asks the provider to pay points. CheckFunc explains check.
func (p *payer) ChargePoint(ctx context.Context, ch Charge, check CheckFunc) Answer {
	ch.VoucherCode = ""
	return p.charge(ctx, reward.Point, ch, check)
}

// ChargeVoucher asks the provider to give a voucher. CheckFunc explains check.
func (p *payer) ChargeVoucher(ctx context.Context, ch Charge, check CheckFunc) Answer {
	return p.charge(ctx, reward.Voucher, ch, check)
}

func (p *payer) charge(ctx context.Context, t reward.PromotionType, ch Charge, check CheckFunc) Answer {
	if check == nil {
		check = func() error { return nil } // without a check, a charge is still sent only once
	}
	var a Answer
	if wrong := p.payable.Check(t, ch.Currency); wrong == nil {
		a = p.pay(ctx, t, ch, check)
		p.explain(&a)
	} else {
		// The provider would pay it as something else. Promotions are checked when they are
		// created; this one may be older than the settings, or come from Kafka.
		a = unsendable(fmt.Errorf("the %s of the promotion %s", wrong.Field, wrong.Detail))
	}
	p.cfg.Metrics.Charged(a.Class)
	if a.Class != reward.AnswerPaid {
		p.log.Debug("charge did not succeed", "promotion_id", ch.PromotionID, "target_id", ch.TargetID,
			"class", a.Class, "status", a.Status, "code", a.Code, "error", a.Err)
	}
	return a
}

// Lookup asks the provider whether it has charged a payout's key.
func (p *payer) Lookup(ctx context.Context, id reward.PromotionID, t reward.TargetID) LookupResult {
	res := p.find(ctx, id, t)
	p.explain(&res.Answer)
	p.cfg.Metrics.LookedUp(res.class())
	return res
}

// explain replaces the message of a response by what the settings say of its code.
func (p *payer) explain(a *Answer) {
	if text := p.reasons[a.Code]; text != "" && a.Status != 0 {
		a.Message = text
	}
}
