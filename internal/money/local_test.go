package money

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// localFuncs is a LocalProvider of two functions.
type localFuncs struct {
	charge func(ctx context.Context, c LocalCharge) (string, error)
	lookup func(ctx context.Context, key string) (string, error)
}

func (f localFuncs) Charge(ctx context.Context, c LocalCharge) (string, error) {
	return f.charge(ctx, c)
}

func (f localFuncs) Lookup(ctx context.Context, key string) (string, error) {
	return f.lookup(ctx, key)
}

var errPlain = errors.New("broken pipe")

// What the errors of a provider mean for a charge and for a lookup.
func TestLocalClasses(t *testing.T) {
	t.Parallel()
	classed := func(class reward.AnswerClass) error { return &LocalError{Class: class, Err: errPlain} }
	for name, tc := range map[string]struct {
		key    string
		err    error
		charge Answer
		lookup LookupResult
	}{
		"Paid":         {"T1", nil, Answer{Class: reward.AnswerPaid, Status: 200, TransactionKey: "T1"}, LookupResult{Found: true, TransactionKey: "T1"}},
		"PaidNoKey":    {"", nil, Answer{Class: reward.AnswerPaid, Status: 200}, LookupResult{Found: true}},
		"KeyIsCleaned": {" T\x001\n", nil, Answer{Class: reward.AnswerPaid, Status: 200, TransactionKey: "T 1"}, LookupResult{Found: true, TransactionKey: "T 1"}},
		"Refused": {
			"", &LocalError{Class: reward.AnswerRefused, Code: "CLOSED", Message: "account closed", Err: errPlain},
			Answer{Class: reward.AnswerRefused, Status: 422, Code: "CLOSED", Message: "account closed"},
			LookupResult{Answer: Answer{Class: reward.AnswerUnknown, Status: 422, Code: "CLOSED", Message: "account closed"}},
		},
		"Failed": {
			"", classed(reward.AnswerFailed),
			Answer{Class: reward.AnswerFailed, Status: 500, Code: "FAILED", Message: "broken pipe"},
			LookupResult{Answer: Answer{Class: reward.AnswerFailed, Status: 500, Code: "FAILED", Message: "broken pipe"}},
		},
		// 503: the call counts as one that may have charged.
		"Throttled": {
			"", &LocalError{Class: reward.AnswerThrottled, RetryAfter: time.Minute, Err: errPlain},
			Answer{Class: reward.AnswerThrottled, Status: 503, Code: "THROTTLED", Message: "broken pipe", RetryAfter: time.Minute},
			LookupResult{Answer: Answer{Class: reward.AnswerThrottled, Status: 503, Code: "THROTTLED", Message: "broken pipe", RetryAfter: time.Minute}},
		},
		"RetryAfterIsBounded": {
			"", &LocalError{Class: reward.AnswerThrottled, RetryAfter: 1000 * time.Hour, Err: errPlain},
			Answer{Class: reward.AnswerThrottled, Status: 503, Code: "THROTTLED", Message: "broken pipe", RetryAfter: retryAfterMax},
			LookupResult{Answer: Answer{Class: reward.AnswerThrottled, Status: 503, Code: "THROTTLED", Message: "broken pipe", RetryAfter: retryAfterMax}},
		},
		"Misconfigured": {
			"", classed(reward.AnswerMisconfigured),
			Answer{Class: reward.AnswerMisconfigured, Status: 401, Code: string(reward.AnswerMisconfigured), Message: "broken pipe"},
			LookupResult{Answer: Answer{Class: reward.AnswerMisconfigured, Status: 401, Code: string(reward.AnswerMisconfigured), Message: "broken pipe"}},
		},
		// From the code, the governor learns that the provider could not be reached.
		"NotSent": {
			"", &LocalError{Class: reward.AnswerNotSent, Code: "DNS", Err: errPlain},
			Answer{Class: reward.AnswerNotSent, Code: CodeNotConnected, Message: "not sent: broken pipe"},
			LookupResult{Answer: Answer{Class: reward.AnswerNotSent, Code: CodeNotConnected, Message: "not sent: broken pipe"}},
		},
		"NotCharged": {
			"", &LocalError{NotCharged: true, Err: errPlain},
			Answer{Class: reward.AnswerUnknown, Code: CodeError, Message: "sent, no answer: broken pipe"},
			LookupResult{NotFound: true, Answer: Answer{Class: reward.AnswerRefused, Status: 404, Code: CodeError, Message: "sent, no answer: broken pipe"}},
		},
		"AnyOther": {
			"T1", fmt.Errorf("write: %w", errPlain),
			Answer{Class: reward.AnswerUnknown, Code: CodeError, Message: "sent, no answer: write: broken pipe"},
			LookupResult{Answer: Answer{Class: reward.AnswerUnknown, Code: CodeError, Message: "sent, no answer: write: broken pipe"}},
		},
		"Wrapped": {
			"", fmt.Errorf("bank: %w", &LocalError{Class: reward.AnswerRefused, Code: "C", Err: errPlain}),
			Answer{Class: reward.AnswerRefused, Status: 422, Code: "C", Message: "bank: broken pipe"},
			LookupResult{Answer: Answer{Class: reward.AnswerUnknown, Status: 422, Code: "C", Message: "bank: broken pipe"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := NewLocal(localFuncs{
				func(context.Context, LocalCharge) (string, error) { return tc.key, tc.err },
				func(context.Context, string) (string, error) { return tc.key, tc.err },
			}, Config{})
			defer l.Close()
			cause := cmpopts.IgnoreFields(Answer{}, "Err")
			got := l.ChargePoint(t.Context(), Charge{PromotionID: 1, TargetID: 7}, nil)
			fixture.Equal(t, tc.charge, got, cause)
			if must := got.Class == reward.AnswerUnknown || got.Class == reward.AnswerNotSent; must != (got.Err != nil) || must && !errors.Is(got.Err, tc.err) {
				t.Errorf("class %s with the cause %v", got.Class, got.Err)
			}
			found := l.Lookup(t.Context(), 1, 7)
			if tc.lookup.Found {
				tc.lookup.Answer = tc.charge
			}
			fixture.Equal(t, tc.lookup, found, cause)
		})
	}
}

func TestLocalPassesTheChargeOn(t *testing.T) {
	t.Parallel()
	var got []LocalCharge
	var looked []string
	l := NewLocal(localFuncs{
		func(_ context.Context, c LocalCharge) (string, error) {
			c.Confirm = nil
			got = append(got, c)
			return "T", nil
		},
		func(_ context.Context, key string) (string, error) { looked = append(looked, key); return "T", nil },
	}, Config{Currencies: []string{"EUR"}})
	c := Charge{PromotionID: 3, TargetID: 9, UserID: "u", Amount: 5, Currency: "EUR", VoucherCode: "V"}
	yen := c
	if yen.Currency = "JPY"; l.ChargePoint(t.Context(), yen, nil).Class != reward.AnswerMisconfigured {
		t.Error("a charge in a currency that the provider does not pay is not refused")
	}
	l.ChargePoint(t.Context(), c, nil)
	l.ChargeVoucher(t.Context(), c, nil)
	l.Lookup(t.Context(), 3, 9)
	points := c
	points.VoucherCode = ""
	want := []LocalCharge{{Charge: points, Key: "3:9", Type: reward.Point}, {Charge: c, Key: "3:9", Type: reward.Voucher}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(LocalCharge{}, "Confirm")); diff != "" || len(looked) != 1 || looked[0] != "3:9" {
		t.Errorf("looked up %q, charged %s", looked, diff)
	}
}

// What the check says keeps a charge from being sent, before the provider is
// called and when the provider confirms.
func TestLocalChecks(t *testing.T) {
	t.Parallel()
	paused := errors.New("paused")
	for name, tc := range map[string]struct {
		checks []error // in the order they are asked; nil after them
		charge func(c LocalCharge) (string, error)
		want   reward.AnswerClass
		called bool
	}{
		"BeforeTheCall":      {[]error{paused}, func(LocalCharge) (string, error) { return "T", nil }, reward.AnswerNotSent, false},
		"NobodyConfirms":     {nil, func(LocalCharge) (string, error) { return "T", nil }, reward.AnswerPaid, true},
		"Confirmed":          {nil, func(c LocalCharge) (string, error) { return "T", c.Confirm() }, reward.AnswerPaid, true},
		"ConfirmedThenOther": {nil, func(c LocalCharge) (string, error) { return "", errors.Join(c.Confirm(), errPlain) }, reward.AnswerUnknown, true},
		"Refused":            {[]error{nil, paused}, func(c LocalCharge) (string, error) { return "", fmt.Errorf("bank: %w", c.Confirm()) }, reward.AnswerNotSent, true},
		"RefusedButPaid":     {[]error{nil, paused}, func(c LocalCharge) (string, error) { _ = c.Confirm(); return "T", nil }, reward.AnswerPaid, true},
		"RefusedButOther":    {[]error{nil, paused}, func(c LocalCharge) (string, error) { _ = c.Confirm(); return "", errPlain }, reward.AnswerUnknown, true},
		// The first try may have been sent.
		"RefusedAgain": {[]error{nil, nil, paused}, func(c LocalCharge) (string, error) {
			if err := c.Confirm(); err != nil {
				return "", err
			}
			return "", c.Confirm()
		}, reward.AnswerUnknown, true},
		"StaysRefused": {[]error{nil, paused}, func(c LocalCharge) (string, error) {
			if err := c.Confirm(); err == nil {
				return "T", nil
			}
			return "T", c.Confirm()
		}, reward.AnswerNotSent, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			called, asked := false, 0
			l := NewLocal(localFuncs{charge: func(_ context.Context, c LocalCharge) (string, error) {
				called = true
				return tc.charge(c)
			}}, Config{})
			defer l.Close()
			a := l.ChargePoint(t.Context(), Charge{}, func() error {
				asked++
				if asked <= len(tc.checks) {
					return tc.checks[asked-1]
				}
				return nil
			})
			if a.Class != tc.want || called != tc.called {
				t.Errorf("%+v, called %v; want %s, %v", a, called, tc.want, tc.called)
			}
			if a.Class == reward.AnswerNotSent && (!errors.Is(a.Err, paused) || a.Code != CodeNotAllowed) {
				t.Errorf("code %s, cause %v", a.Code, a.Err)
			}
		})
	}
}

// However a provider fails to return, the call ends in time and its charge is
// looked up.
func TestLocalThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		charge func(ctx context.Context) (string, error)
		code   string
		after  time.Duration // the least
		before time.Duration // the most
	}{
		"Panics":      {func(context.Context) (string, error) { panic("nil map") }, CodePanic, 0, 0},
		"Exits":       {func(context.Context) (string, error) { runtime.Goexit(); return "T", nil }, CodePanic, 0, 0},
		"Obeys":       {func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }, CodeTimeout, 900 * time.Millisecond, time.Second},
		"IgnoresIt":   {func(context.Context) (string, error) { time.Sleep(time.Minute); return "T", nil }, CodeTimeout, time.Second, time.Second},
		"LateButPays": {func(ctx context.Context) (string, error) { <-ctx.Done(); return "T", nil }, "", 900 * time.Millisecond, time.Second},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			l := NewLocal(localFuncs{
				charge: func(ctx context.Context, _ LocalCharge) (string, error) { return tc.charge(ctx) },
				lookup: func(ctx context.Context, _ string) (string, error) { return tc.charge(ctx) },
			}, Config{Timeout: time.Second})
			class := reward.AnswerUnknown
			if tc.code == "" {
				class = reward.AnswerPaid
			}
			began := time.Now()
			a := l.ChargePoint(t.Context(), Charge{}, nil)
			took := time.Since(began)
			if a.Class != class || a.Code != tc.code || took < tc.after || took > tc.before {
				t.Errorf("%+v after %s", a, took)
			}
			if found := l.Lookup(t.Context(), 1, 1); found.Found != (tc.code == "") || found.NotFound || found.Answer.Code != tc.code {
				t.Errorf("looked up: %+v", found)
			}
			time.Sleep(2 * time.Minute) // for those that sleep
			l.Close()
		})
	}
}

// A provider that continues after its call was cut must not send any more.
func TestLocalConfirmsNothingLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := make(chan error, 1)
		l := NewLocal(localFuncs{charge: func(_ context.Context, c LocalCharge) (string, error) {
			time.Sleep(time.Minute)
			late <- c.Confirm()
			return "T", nil
		}}, Config{Timeout: time.Second})
		if a := l.ChargePoint(t.Context(), Charge{}, func() error { return nil }); a.Class != reward.AnswerUnknown {
			t.Errorf("%+v", a)
		}
		if err := <-late; err == nil {
			t.Error("a charge was confirmed after its call had ended")
		}
		l.Close()
	})
}

// The end of the caller's context ends the call at once.
func TestLocalIsStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := NewLocal(localFuncs{charge: func(ctx context.Context, c LocalCharge) (string, error) {
			cancel()
			<-ctx.Done() // the second has to wait for its timeout
			err := c.Confirm()
			if err == nil {
				t.Error("confirmed after the end")
			}
			if c.TargetID == 1 {
				return "", err
			}
			return "", ctx.Err()
		}}, Config{Timeout: time.Hour})
		if a := l.ChargePoint(ctx, Charge{TargetID: 1}, nil); a.Class != reward.AnswerNotSent || !strings.Contains(a.Message, context.Canceled.Error()) {
			t.Errorf("%+v", a)
		}
		if a := l.ChargePoint(t.Context(), Charge{TargetID: 2}, nil); a.Class != reward.AnswerUnknown || a.Code != CodeTimeout {
			t.Errorf("%+v", a)
		}
		l.Close()
	})
}

// Calls that do not return are not started without end.
func TestLocalIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		end := make(chan struct{})
		l := NewLocal(localFuncs{
			charge: func(context.Context, LocalCharge) (string, error) {
				open.Add(1)
				<-end
				return "T", nil
			},
			lookup: func(context.Context, string) (string, error) { return "T", nil },
		}, Config{Timeout: time.Second, MaxConcurrency: 2})
		for range 2 {
			if a := l.ChargePoint(t.Context(), Charge{}, nil); a.Class != reward.AnswerUnknown {
				t.Errorf("%+v", a)
			}
		}
		if a := l.ChargePoint(t.Context(), Charge{}, nil); a.Class != reward.AnswerNotSent || a.Code != CodeNotConnected || open.Load() != 2 {
			t.Errorf("%+v with %d open", a, open.Load())
		}
		if found := l.Lookup(t.Context(), 1, 1); !found.Found {
			t.Errorf("lookups wait for charges: %+v", found)
		}
		close(end)
		l.Close()
	})
}
