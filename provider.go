package largesse

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

// Provider pays. The Engine calls its methods concurrently, as often as the
// settings money.max-concurrency and money.rate-per-second allow.
//
// An error that is or wraps one of ErrRefused, ErrFailed, ErrThrottled,
// ErrMisconfigured and ErrNotSent says what happened, best in a ProviderError.
// After any other error, after a panic, and when the call has not returned
// after money.timeout, nobody knows whether the charge was made: the Engine
// calls Lookup until it knows. So a Provider that returns every error as it is
// never pays twice.
type Provider interface {
	// Charge pays once per c.Key, however often it is called with that key. A
	// nil error means that the charge is made, now or before. Charge should
	// return when ctx ends. One that goes on must be done within the setting
	// money.settle-after, because then the answer of Lookup is final.
	Charge(ctx context.Context, c Charge) (transactionKey string, err error)
	// Lookup returns a nil error if the key was charged. It returns
	// ErrNotCharged if it was not.
	Lookup(ctx context.Context, key string) (transactionKey string, err error)
}

// Charge is what a Provider is asked to pay. It is the same each time for the
// same key.
type Charge struct {
	Key         string // idempotency key
	Type        string // POINT or VOUCHER
	UserID      string
	VoucherCode string // of a VOUCHER
	PromotionID int64
	TargetID    int64
	Amount      int64 // minor units

	confirm *func() error
}

// Confirm reports whether the charge may still be sent. The Engine has asked
// the same before it called Charge. A Provider that waits before it sends, for a
// connection say, may call Confirm right before the first byte leaves, so that
// a promotion paused meanwhile pays nothing more. After an error it must send
// nothing and return that error.
func (c Charge) Confirm() error {
	if c.confirm == nil {
		return nil
	}
	return (*c.confirm)()
}

// What the error of a Provider means.
var (
	// ErrRefused means that the provider has decided not to pay: final.
	ErrRefused = errors.New("refused")
	// ErrFailed means that the provider has failed and may have paid. The charge
	// is repeated, and fails for good only after a lookup.
	ErrFailed = errors.New("failed")
	// ErrThrottled means that the provider wants fewer calls, or later ones. The
	// charge is repeated and no attempt is counted.
	ErrThrottled = errors.New("throttled")
	// ErrMisconfigured means that no call can succeed before somebody corrects
	// the settings, such as credentials. The promotion pauses.
	ErrMisconfigured = errors.New("misconfigured")
	// ErrNotSent means that nothing has left this process. The charge is
	// repeated.
	ErrNotSent = errors.New("not sent")
	// ErrNotCharged is the answer of Lookup about a key that was never charged.
	// From Charge it means nothing, like any other error.
	ErrNotCharged = errors.New("not charged")
)

// ProviderError is an error of a Provider with what is known about it.
type ProviderError struct {
	Err        error         // one of the six errors, or wraps one
	Code       string        // the provider's code, for people and filters
	Message    string        // what it said, for people
	RetryAfter time.Duration // of ErrThrottled: how long to wait; 0: not known
}

// Error returns the error, the code and the message.
func (e *ProviderError) Error() string {
	text := "provider error"
	if e.Err != nil {
		text = e.Err.Error()
	}
	for _, part := range []string{e.Code, e.Message} {
		if part != "" {
			text += ": " + part
		}
	}
	return text
}

// Unwrap returns Err.
func (e *ProviderError) Unwrap() error { return e.Err }

// classes are the errors of a Provider that say what they mean.
var classes = []struct {
	err  error
	said money.LocalError
}{
	{ErrRefused, money.LocalError{Class: reward.AnswerRefused}},
	{ErrFailed, money.LocalError{Class: reward.AnswerFailed}},
	{ErrThrottled, money.LocalError{Class: reward.AnswerThrottled}},
	{ErrMisconfigured, money.LocalError{Class: reward.AnswerMisconfigured}},
	{ErrNotSent, money.LocalError{Class: reward.AnswerNotSent}},
	{ErrNotCharged, money.LocalError{NotCharged: true}},
}

// adapter makes a Provider the money.LocalProvider of the engine.
type adapter struct{ provider Provider }

// Charge implements money.LocalProvider.
func (a adapter) Charge(ctx context.Context, c money.LocalCharge) (string, error) {
	key, err := a.provider.Charge(ctx, Charge{
		Key: c.Key, Type: string(c.Type), UserID: c.UserID, VoucherCode: c.VoucherCode,
		PromotionID: int64(c.PromotionID), TargetID: int64(c.TargetID), Amount: int64(c.Amount), confirm: &c.Confirm,
	})
	return key, meaning(err)
}

// Lookup implements money.LocalProvider.
func (a adapter) Lookup(ctx context.Context, key string) (string, error) {
	tx, err := a.provider.Lookup(ctx, key)
	return tx, meaning(err)
}

// meaning returns a *money.LocalError for an error that means exactly one
// thing, and any other error as it is.
func meaning(err error) error {
	var said *money.LocalError
	for _, class := range classes {
		if !errors.Is(err, class.err) {
			continue
		}
		if said != nil {
			return err // it means two things, so it means nothing
		}
		copied := class.said
		copied.Err, said = err, &copied
	}
	if said == nil {
		return err
	}
	if e, ok := errors.AsType[*ProviderError](err); ok {
		said.Code, said.Message, said.RetryAfter = e.Code, e.Message, e.RetryAfter
	}
	return said
}
