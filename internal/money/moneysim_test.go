package money_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/reward"
)

func simulate(t *testing.T, faults moneysim.Faults, timeout time.Duration) (*moneysim.Server, *money.Client) {
	t.Helper()
	sim := fixture.Must(moneysim.New(moneysim.Config{Faults: faults, Seed: 42}))(t)
	addr := fixture.Must(sim.Start("127.0.0.1:0"))(t)
	t.Cleanup(sim.Close)
	c := fixture.Must(money.New(money.Config{URL: "http://" + addr, Timeout: timeout}))(t)
	t.Cleanup(c.Close)
	return sim, c
}

// The faults whose answers take a while, or come for the rate.
func TestSlowAnswersOfTheSimulator(t *testing.T) {
	t.Parallel()
	pass := func() error { return nil }
	charge := money.Charge{PromotionID: 1, TargetID: 7, UserID: "u7", Amount: 10}
	_, client := simulate(t, moneysim.Faults{SlowDripRate: 1}, time.Second)
	if a := client.ChargePoint(t.Context(), charge, pass); a.Class != reward.AnswerUnknown || a.Code != money.CodeTimeout {
		t.Errorf("answer %+v", a)
	}
	if l := client.Lookup(t.Context(), 1, 7); !l.Found {
		t.Errorf("lookup %+v", l)
	}
	_, client = simulate(t, moneysim.Faults{RatePerSecond: 0.001}, 0)
	first, second := client.ChargePoint(t.Context(), charge, pass), client.ChargePoint(t.Context(), charge, pass)
	if first.Class != reward.AnswerPaid || second.Class != reward.AnswerThrottled || second.RetryAfter != time.Second {
		t.Errorf("answers %+v, %+v", first, second)
	}
}

// Whatever the provider does, calling again under the same key ends with each
// target charged once, and the ledger matches the responses that the client got.
func TestRepeatsPayOnce(t *testing.T) {
	t.Parallel()
	sim, client := simulate(t, moneysim.Faults{
		JitterMs: 3, ErrorRate: 0.2, RefuseRate: 0.1, TimeoutRate: 0.02, LostReplyRate: 0.1,
		SlowDripRate: 0.02, DuplicateRate: 0.3, ThrottleRate: 0.1, ResetBeforeRate: 0.1, ResetAfterRate: 0.1, UnavailableRate: 0.1,
	}, 500*time.Millisecond)
	const targets = 600
	var paid, refused, calls, unknown atomic.Int64
	// A busy machine can take longer for a lookup than the client waits.
	found := func(ctx context.Context, target reward.TargetID) (l money.LookupResult) {
		for range 50 {
			if l = client.Lookup(ctx, 3, target); l.Found || l.NotFound {
				break
			}
		}
		return l
	}
	pay := func(ctx context.Context, target reward.TargetID) {
		charge := money.Charge{PromotionID: 3, TargetID: target, UserID: "u", Amount: 10, VoucherCode: "V"}
		for range 50 {
			calls.Add(1)
			a := client.ChargeVoucher(ctx, charge, func() error { return nil })
			switch a.Class {
			case reward.AnswerPaid:
				paid.Add(1)
				if l := found(ctx, target); l.TransactionKey != a.TransactionKey {
					t.Errorf("target %v: response %q, lookup %+v", target, a.TransactionKey, l)
				}
				return
			case reward.AnswerRefused:
				refused.Add(1)
				if l := found(ctx, target); !l.NotFound {
					t.Errorf("target %v: refused, looked up %+v", target, l)
				}
				return
			case reward.AnswerUnknown:
				unknown.Add(1)
			case reward.AnswerFailed, reward.AnswerThrottled, reward.AnswerNotSent:
			default:
				t.Errorf("target %v: %+v", target, a)
				return
			}
		}
		t.Errorf("target %v: no end after 50 calls", target)
	}
	var wg sync.WaitGroup
	for w := range 30 {
		wg.Go(func() {
			for i := range targets / 30 {
				pay(t.Context(), reward.TargetID(w*targets+i))
			}
		})
	}
	wg.Wait()
	n, amount := sim.Charges(3)
	if n != paid.Load() || amount != 10*n || n+refused.Load() != targets || sim.MaxChargesPerKey() != 1 {
		t.Errorf("%d charged worth %d, but responses report %d paid and %d refused, at most %d per key",
			n, amount, paid.Load(), refused.Load(), sim.MaxChargesPerKey())
	}
	if unknown.Load() == 0 || sim.Stats().DuplicateKeys == 0 || refused.Load() == 0 {
		t.Errorf("the faults did not bite: %d unknown, %+v", unknown.Load(), sim.Stats())
	}
	t.Logf("%d calls for %d targets, %d without an answer", calls.Load(), targets, unknown.Load())
}
