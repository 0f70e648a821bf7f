package largesse

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

// Provider makes charges. The Engine calls its methods concurrently, as often as the
// settings money.max-concurrency and money.rate-per-second allow.
//
// Charge explains a failure by an error that is or wraps one of ErrRefused,
// ErrFailed, ErrThrottled, ErrMisconfigured and ErrNotSent, optionally in a
// ProviderError. After any other error, a panic, or a call longer than
// money.timeout, the Engine does not know whether the charge was made. It then
// calls Lookup. If that does not confirm the charge, it may call Charge again with
// the same key. So a Provider that charges each key once never pays twice, even if it
// returns its errors unchanged.
type Provider interface {
	// Charge charges once per c.Key, however often it is called with that key. A nil
	// error means that this call or an earlier one made the charge. Charge should
	// return when ctx ends. If it continues, it must end within the setting
	// money.settle-after, because the result of a later Lookup is final.
	Charge(ctx context.Context, c Charge) (transactionKey string, err error)
	// Lookup returns a nil error if the key was charged. It returns
	// ErrNotCharged if it was not.
	Lookup(ctx context.Context, key string) (transactionKey string, err error)
}

// Charge describes one charge. All calls with the same key have the same values.
type Charge struct {
	Key         string // idempotency key
	Type        string // POINT or VOUCHER
	UserID      string
	VoucherCode string // only if Type is VOUCHER
	PromotionID int64
	TargetID    int64
	Amount      int64  // minor units of Currency, or points
	Currency    string // of the promotion, e.g. EUR; empty for points

	confirm *func() error
}

// Confirm returns an error if the charge must not be sent any more. The Engine checks
// this before it calls Charge. A Provider that waits before it sends, for example
// for a connection, may call Confirm immediately before it sends the first byte,
// so that a promotion that was paused in the meantime makes no more charges. After
// an error, the Provider must send nothing and return that error.
func (c Charge) Confirm() error {
	if c.confirm == nil {
		return nil
	}
	return (*c.confirm)()
}

// The errors with which a Provider explains a failure.
var (
	// ErrRefused means that the provider refused the charge. The payout becomes
	// FAILED, or is looked up if an earlier call may have charged it.
	ErrRefused = errors.New("refused")
	// ErrFailed means that the provider failed and may have made the charge. The
	// Engine retries the charge, and fails it permanently only after a lookup.
	ErrFailed = errors.New("failed")
	// ErrThrottled means that the provider wants fewer or later calls. The Engine
	// retries the charge and does not count an attempt.
	ErrThrottled = errors.New("throttled")
	// ErrMisconfigured means that no call can succeed until an operator corrects the
	// configuration, such as the credentials. The Engine pauses the promotion.
	ErrMisconfigured = errors.New("misconfigured")
	// ErrNotSent means that the charge did not leave this process. The Engine retries
	// it.
	ErrNotSent = errors.New("not sent")
	// ErrNotCharged is the result of Lookup for a key that was never charged. If Charge
	// returns it, the Engine does not know whether the charge was made.
	ErrNotCharged = errors.New("not charged")
)

// ProviderError is an error of a Provider with details.
type ProviderError struct {
	Err        error         // is or wraps one of the six errors
	Code       string        // the provider's code, for operators and filters
	Message    string        // the provider's message, for operators
	RetryAfter time.Duration // only with ErrThrottled: time to wait; 0: unknown
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

// classes maps the errors that explain a failure to their meaning.
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

// adapter implements money.LocalProvider with a Provider.
type adapter struct{ provider Provider }

// Charge implements money.LocalProvider.
func (a adapter) Charge(ctx context.Context, c money.LocalCharge) (string, error) {
	key, err := a.provider.Charge(ctx, Charge{
		Key: c.Key, Type: string(c.Type), UserID: c.UserID, VoucherCode: c.VoucherCode,
		PromotionID: int64(c.PromotionID), TargetID: int64(c.TargetID), Amount: int64(c.Amount), Currency: c.Currency, confirm: &c.Confirm,
	})
	return key, meaning(err)
}

// Lookup implements money.LocalProvider.
func (a adapter) Lookup(ctx context.Context, key string) (string, error) {
	tx, err := a.provider.Lookup(ctx, key)
	return tx, meaning(err)
}

// meaning returns a *money.LocalError for an error that wraps exactly one of the six
// errors, and any other error unchanged.
func meaning(err error) error {
	var said *money.LocalError
	for _, class := range classes {
		if !errors.Is(err, class.err) {
			continue
		}
		if said != nil {
			return err // it is ambiguous, so it explains nothing
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
