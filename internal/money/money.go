// Package money is the way to the provider that pays: a client for its Money
// API, the classes of its answers, and the bound on open calls. moneysim is a
// stand-in for tests and rehearsals; the two share no types.
package money

import (
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// Charge is what the provider is asked to pay. It is frozen in the payout's
// row: the same key always goes with the same body.
type Charge struct {
	PromotionID reward.PromotionID
	TargetID    reward.TargetID
	UserID      string
	Amount      reward.Amount
	VoucherCode string // VOUCHER only
}

// CheckFunc is asked right before the first byte of a request leaves, after
// the dial and the wait for a connection. An error stops the call: nothing was
// sent, the answer's class is UNSENT and its Err is that error. A nil return
// counts as having sent.
type CheckFunc func() error

// Answer is what came of one call.
type Answer struct {
	Class          reward.AnswerClass
	TransactionKey string        // PAID
	Status         int           // HTTP status, 0 without an answer
	Code           string        // the provider's, or ours: TIMEOUT, RESET, HTTP_500, …
	Message        string        // short, valid UTF-8, for people
	RetryAfter     time.Duration // THROTTLED (and whatever else carried it): 0 = not said
	Err            error         // UNSENT and UNKNOWN: the cause
}

// LookupResult is what the provider knows about an idempotency key. Neither
// Found nor NotFound: it could not be asked, or could not tell.
type LookupResult struct {
	Found          bool
	TransactionKey string
	NotFound       bool
	Answer         Answer // of the look-up itself, for the attempt's record
}

// class is how the look-up is counted.
func (r LookupResult) class() obs.LookupClass {
	switch {
	case r.Found:
		return obs.LookupFound
	case r.NotFound:
		return obs.LookupNotFound
	}
	return obs.LookupOpen
}
