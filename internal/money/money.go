// Package money calls the provider through its Money API. It classifies the
// responses and limits the calls in flight. Package moneysim simulates a
// provider; the two share no types.
package money

import (
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// Charge is what the provider is asked to pay. The payout's row stores it
// unchanged: the same key always has the same body.
type Charge struct {
	PromotionID reward.PromotionID
	TargetID    reward.TargetID
	UserID      string
	Amount      reward.Amount
	Currency    string // of the promotion, which names none for points: ""
	VoucherCode string // VOUCHER only
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
