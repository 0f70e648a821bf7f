package money

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// LocalCharge is a charge as a LocalProvider gets it.
type LocalCharge struct {
	Charge
	Key  string // the idempotency key
	Type reward.PromotionType
	// Confirm reports whether the charge may still be sent. A provider may call
	// it right before the first byte leaves. After an error nothing may be sent.
	Confirm func() error
}

// LocalProvider pays from within this process. Its methods are called
// concurrently.
type LocalProvider interface {
	// Charge pays once per key. A nil error means that it has paid. A
	// *LocalError says what an error means. After any other error nobody knows
	// whether it has paid, so the key is looked up.
	Charge(ctx context.Context, c LocalCharge) (transactionKey string, err error)
	// Lookup reports whether the key was charged. A nil error means that it was,
	// a *LocalError with NotCharged that it was not.
	Lookup(ctx context.Context, key string) (transactionKey string, err error)
}

// LocalError is an error of a LocalProvider whose meaning is known.
type LocalError struct {
	// Class is the class of the answer, "" for errors of Lookup with NotCharged.
	Class      reward.AnswerClass
	NotCharged bool
	Code       string        // "": one of ours
	Message    string        // "": Err's text
	RetryAfter time.Duration // 0: not known
	Err        error
}

// Error returns the text of the cause.
func (e *LocalError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *LocalError) Unwrap() error { return e.Err }

// Local calls a LocalProvider and gives its results the classes that answers of
// a Money API have. It bounds each call: one that takes longer than Timeout is
// UNKNOWN even if the provider continues it. It is safe for concurrent use.
type Local struct {
	payer
	called  LocalProvider
	charges chan struct{} // holds one item per Charge that has not returned
	lookups chan struct{} // the same for Lookup
}

const (
	// localGrace is how long a call may take to return once its context has
	// ended, at most a tenth of Timeout. It is part of Timeout.
	localGrace = 100 * time.Millisecond
	// CodePanic is the code of a call that has panicked.
	CodePanic = "PANIC"
	// CodeError is the code of an error that does not say what it means.
	CodeError = "ERROR"
)

var (
	errLocalFull = errors.New("as many calls as money.max-concurrency allows have not returned; the provider should return when its context ends")
	errGoexit    = errors.New("the provider ended its goroutine instead of returning")
)

// NewLocal returns a Local. It calls nothing. What cfg says about the Money API has no effect.
func NewLocal(called LocalProvider, cfg Config) *Local {
	cfg = cfg.withDefaults()
	l := &Local{
		payer: newPayer(cfg), called: called,
		charges: make(chan struct{}, cfg.MaxConcurrency), lookups: make(chan struct{}, cfg.MaxConcurrency),
	}
	l.pay, l.find = l.chargeOnce, l.lookupOnce
	return l
}

// Close waits until all calls have returned, but not longer than Timeout. Start
// no call after it.
func (l *Local) Close() {
	timer := time.NewTimer(l.cfg.Timeout)
	defer timer.Stop()
	for _, slots := range []chan struct{}{l.charges, l.lookups} {
		for range cap(slots) {
			select {
			case slots <- struct{}{}:
			case <-timer.C:
				l.log.Warn("provider calls have not returned", errLocalFull, "charges", len(l.charges), "lookups", len(l.lookups))
				return
			}
		}
	}
}

func (l *Local) chargeOnce(ctx context.Context, t reward.PromotionType, c Charge, check CheckFunc) Answer {
	if full := l.acquire(ctx, l.charges); full != nil {
		return *full
	}
	gate := &localGate{check: check}
	if err := check(); err != nil {
		<-l.charges
		return unsent(CodeNotAllowed, fmt.Errorf("not sent: %w", err))
	}
	r, cause := l.run(ctx, l.charges, func(ctx context.Context) (string, error) {
		return l.called.Charge(ctx, LocalCharge{
			Charge: c, Key: reward.IdempotencyKey(c.PromotionID, c.TargetID), Type: t, Confirm: func() error { return gate.confirm(ctx) },
		})
	})
	refused := gate.close()
	if refused != nil && r.err != nil && errors.Is(r.err, refused) {
		return unsent(CodeNotAllowed, fmt.Errorf("not sent: %w", refused))
	}
	return r.answer(cause)
}

func (l *Local) lookupOnce(ctx context.Context, p reward.PromotionID, t reward.TargetID) LookupResult {
	key := reward.IdempotencyKey(p, t)
	if full := l.acquire(ctx, l.lookups); full != nil {
		return LookupResult{Answer: *full}
	}
	r, cause := l.run(ctx, l.lookups, func(ctx context.Context) (string, error) { return l.called.Lookup(ctx, key) })
	a := r.answer(cause)
	said, known := errors.AsType[*LocalError](r.err)
	switch {
	case r.err == nil:
		return LookupResult{Found: true, TransactionKey: a.TransactionKey, Answer: a}
	case known && said.NotCharged:
		a.Class, a.Status = reward.AnswerRefused, http.StatusNotFound
		return LookupResult{NotFound: true, Answer: a}
	case a.Class == reward.AnswerRefused:
		// Right for a charge; it says nothing about the key that was asked for.
		a.Class, a.Err = reward.AnswerUnknown, fmt.Errorf("a refusal does not answer a lookup: %w", r.err)
	}
	return LookupResult{Answer: a}
}

// acquire waits for a free slot, for at most Timeout, or returns the answer to the call.
// Calls that do not return would otherwise be started without end.
func (l *Local) acquire(ctx context.Context, slots chan struct{}) *Answer {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(l.cfg.Timeout)
	defer timer.Stop()
	code, err := CodeStopped, error(nil)
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		code, err = CodeNotConnected, errLocalFull // the provider's fault, not ours
	}
	a := unsent(code, fmt.Errorf("not sent, waited for a free call: %w", err))
	return &a
}

// run runs f, whose slot is taken, for at most Timeout. cause is why the
// context of f ended before f returned, nil if it did not.
func (l *Local) run(ctx context.Context, slots chan struct{}, f func(ctx context.Context) (string, error)) (r localResult, cause error) {
	began := time.Now()
	l.cfg.Metrics.CallOpened()
	defer func() { l.cfg.Metrics.CallEnded(true, time.Since(began)) }()
	wait := min(localGrace, l.cfg.Timeout/10)
	ctx, cancel := context.WithTimeoutCause(ctx, l.cfg.Timeout-wait, errTimeout)
	defer cancel()
	done := make(chan localResult, 1)
	go func() {
		r := localResult{err: errGoexit, code: CodePanic}
		defer func() {
			if v := recover(); v != nil {
				r = localResult{err: fmt.Errorf("the provider panicked: %v", v), code: CodePanic}
				l.log.Error("provider panicked", r.err, "stack", string(debug.Stack()))
			}
			<-slots
			done <- r
		}()
		key, err := f(ctx)
		r = localResult{key: key, err: err}
	}()
	select {
	case r := <-done:
		return r, context.Cause(ctx)
	case <-ctx.Done():
	}
	grace := time.NewTimer(wait)
	defer grace.Stop()
	select {
	case r := <-done:
		return r, context.Cause(ctx)
	case <-grace.C:
		return localResult{err: context.Cause(ctx)}, context.Cause(ctx)
	}
}

type localResult struct {
	key  string
	err  error
	code string // of an error that does not say what it means; "": CodeError
}

// localStatus is the HTTP status that an answer of the same class would have
// had. What is decided by the status is decided for a LocalProvider too: a
// throttled call counts as one that may have charged.
var localStatus = map[reward.AnswerClass]int{
	reward.AnswerRefused:       http.StatusUnprocessableEntity,
	reward.AnswerFailed:        http.StatusInternalServerError,
	reward.AnswerThrottled:     http.StatusServiceUnavailable,
	reward.AnswerMisconfigured: http.StatusUnauthorized,
}

func (r localResult) answer(cause error) Answer {
	if r.err == nil {
		return Answer{Class: reward.AnswerPaid, Status: http.StatusOK, TransactionKey: clean(r.key, textMax)}
	}
	said, known := errors.AsType[*LocalError](r.err)
	if !known || said.Class == "" {
		return r.unknown(cause)
	}
	if said.Class == reward.AnswerNotSent {
		// By this code the governor knows that the provider could not be reached.
		return unsent(CodeNotConnected, fmt.Errorf("not sent: %w", r.err))
	}
	a := Answer{
		Class: said.Class, Status: localStatus[said.Class], Code: clean(said.Code, codeMax), Message: clean(said.Message, textMax),
		RetryAfter: min(max(said.RetryAfter, 0), retryAfterMax),
	}
	if a.Code == "" {
		a.Code = string(said.Class)
	}
	if a.Message == "" {
		a.Message = clean(r.err.Error(), textMax)
	}
	return a
}

// unknown is the answer of a call after which nobody knows whether it has
// charged.
func (r localResult) unknown(cause error) Answer {
	code := r.code
	switch {
	case code != "":
	case errors.Is(cause, errTimeout):
		code = CodeTimeout
	case cause != nil:
		code = CodeStopped
	default:
		code = CodeError
	}
	err := fmt.Errorf("sent, no answer: %w", r.err)
	return Answer{Class: reward.AnswerUnknown, Code: code, Message: clean(err.Error(), textMax), Err: err}
}

// localGate asks the check of a call, and lets nothing leave after the call.
type localGate struct {
	check CheckFunc

	mu        sync.Mutex // protects the rest; the check is asked while it is held
	confirmed bool       // by the provider: bytes may have left
	over      error      // why nothing may leave any more
	refused   error      // what the check said before anything left
}

// confirm asks the check for the provider. ctx is that of the call.
func (g *localGate) confirm(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over != nil {
		return g.over
	}
	err := g.check()
	if cause := context.Cause(ctx); cause != nil {
		// A value of its own: the provider may return ctx's error for other reasons.
		err = fmt.Errorf("%w: %w", errCallOver, cause)
	}
	if err != nil {
		g.over = err
		if !g.confirmed {
			g.refused = err
		}
		return err
	}
	g.confirmed = true
	return nil
}

// close ends the call. It returns what the check said if that kept the call
// from leaving.
func (g *localGate) close() (refused error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over == nil {
		g.over = errCallOver
	}
	return g.refused
}
