package money_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/reward"
)

func simulate(t testing.TB, faults moneysim.Faults, timeout time.Duration) (*moneysim.Server, *money.Client) {
	t.Helper()
	sim, err := moneysim.New(moneysim.Config{Faults: faults, Seed: 42})
	if err != nil {
		t.Fatal(err)
	}
	addr, err := sim.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	c, err := money.New(money.Config{URL: "http://" + addr, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return sim, c
}

func TestClassesMeetTheSimulatorsFaults(t *testing.T) {
	t.Parallel()
	pass := func() error { return nil }
	charge := money.Charge{PromotionID: 1, TargetID: 7, UserID: "u7", Amount: 10}
	for name, c := range map[string]struct {
		faults  moneysim.Faults
		class   reward.AnswerClass
		code    string
		charged bool
	}{
		"Paid":      {moneysim.Faults{}, reward.AnswerPaid, "", true},
		"Error":     {moneysim.Faults{ErrorRate: 1}, reward.AnswerFailed, "INTERNAL_ERROR", false},
		"LostReply": {moneysim.Faults{LostReplyRate: 1}, reward.AnswerUnknown, money.CodeReset, true},
		"SlowDrip":  {moneysim.Faults{SlowDripRate: 1}, reward.AnswerUnknown, money.CodeTimeout, true},
		"Duplicate": {moneysim.Faults{DuplicateRate: 1}, reward.AnswerPaid, "", true},
		"Throttled": {moneysim.Faults{ThrottleRate: 1}, reward.AnswerThrottled, "THROTTLED", false},

		"ResetBefore": {moneysim.Faults{ResetBeforeRate: 1}, reward.AnswerUnknown, money.CodeReset, false},
		"ResetAfter":  {moneysim.Faults{ResetAfterRate: 1}, reward.AnswerUnknown, money.CodeReset, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := simulate(t, c.faults, time.Second)
			a := client.ChargePoint(t.Context(), charge, pass)
			if a.Class != c.class || a.Code != c.code {
				t.Errorf("answer %+v", a)
			}
			l := client.Lookup(t.Context(), 1, 7)
			if l.Found != c.charged || l.NotFound == c.charged || (a.TransactionKey != "" && a.TransactionKey != l.TransactionKey) {
				t.Errorf("lookup %+v after %+v", l, a)
			}
		})
	}
	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		_, client := simulate(t, moneysim.Faults{RefuseRate: 1}, 0)
		if a := client.ChargePoint(t.Context(), charge, pass); a.Class != reward.AnswerRefused || a.Status != 422 || a.Message == "" {
			t.Errorf("answer %+v", a)
		}
	})
	t.Run("Misconfigured", func(t *testing.T) {
		t.Parallel()
		for _, status := range []int{401, 403, 404, 405, 407, 413, 415} {
			_, client := simulate(t, moneysim.Faults{MisconfiguredStatus: status}, 0)
			if a := client.ChargePoint(t.Context(), charge, pass); a.Class != reward.AnswerMisconfigured || a.Status != status {
				t.Errorf("answer %+v", a)
			}
			if l := client.Lookup(t.Context(), 1, 7); l.Found || l.NotFound || l.Answer.Class != reward.AnswerMisconfigured {
				t.Errorf("%d: lookup %+v", status, l)
			}
		}
	})
	t.Run("Away", func(t *testing.T) {
		t.Parallel()
		sim, client := simulate(t, moneysim.Faults{Away: true}, 0)
		if a := client.ChargePoint(t.Context(), charge, pass); a.Class != reward.AnswerUnknown || a.Code != money.CodeReset {
			t.Errorf("answer %+v", a)
		}
		if l := client.Lookup(t.Context(), 1, 7); l.Found || l.NotFound || l.Answer.Class != reward.AnswerUnknown {
			t.Errorf("lookup %+v", l)
		}
		if err := sim.SetFaults(moneysim.Faults{}); err != nil {
			t.Fatal(err)
		}
		if a := client.ChargePoint(t.Context(), charge, pass); a.Class != reward.AnswerPaid {
			t.Errorf("back again: %+v", a)
		}
	})
	t.Run("Unavailable", func(t *testing.T) {
		t.Parallel()
		_, client := simulate(t, moneysim.Faults{UnavailableRate: 1}, 0)
		found := 0
		for target := range reward.TargetID(60) {
			a := client.ChargePoint(t.Context(), money.Charge{PromotionID: 1, TargetID: target, UserID: "u", Amount: 10}, pass)
			if a.Class != reward.AnswerThrottled || a.RetryAfter != 0 {
				t.Errorf("answer %+v", a)
			}
			if l := client.Lookup(t.Context(), 1, target); l.Found {
				found++
			}
		}
		if found == 0 || found == 60 {
			t.Errorf("%d of 60 were charged", found)
		}
	})
	t.Run("RateLimited", func(t *testing.T) {
		t.Parallel()
		_, client := simulate(t, moneysim.Faults{RatePerSecond: 0.001}, 0)
		first, second := client.ChargePoint(t.Context(), charge, pass), client.ChargePoint(t.Context(), charge, pass)
		if first.Class != reward.AnswerPaid || second.Class != reward.AnswerThrottled || second.RetryAfter != time.Second {
			t.Errorf("answers %+v, %+v", first, second)
		}
	})
}

// A promotion is listed page by page, whatever else the provider has charged.
func TestChargesOfTheSimulator(t *testing.T) {
	t.Parallel()
	sim, client := simulate(t, moneysim.Faults{}, 0)
	pass := func() error { return nil }
	want := map[reward.TargetID]string{}
	for target := range reward.TargetID(1500) {
		for _, promotion := range []reward.PromotionID{3, 4} {
			a := client.ChargePoint(t.Context(), money.Charge{PromotionID: promotion, TargetID: target, UserID: "u", Amount: 10}, pass)
			if a.Class != reward.AnswerPaid {
				t.Fatalf("answer %+v", a)
			}
			if promotion == 3 {
				want[target] = a.TransactionKey
			}
		}
	}
	got, pages := map[reward.TargetID]string{}, 0
	for cursor := ""; ; pages++ {
		page, err := client.Charges(t.Context(), 3, cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Charges {
			if c.PromotionID != 3 || c.Amount != 10 {
				t.Errorf("%+v", c)
			}
			got[c.TargetID] = c.TransactionKey
		}
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || pages != 1 {
		t.Errorf("%d pages before the last (-want +got):\n%s", pages, diff)
	}
	if err := sim.SetFaults(moneysim.Faults{MisconfiguredStatus: 405}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Charges(t.Context(), 3, ""); !errors.Is(err, money.ErrNoCharges) {
		t.Errorf("without the capability: %v", err)
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

// 256 calls are open at a time over loopback, client and simulator in one
// process.
func BenchmarkCharge(b *testing.B) {
	const inFlight = 256
	sim, client := simulate(b, moneysim.Faults{}, 0)
	pass := func() error { return nil }
	var next atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range inFlight {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return
				}
				charge := money.Charge{PromotionID: 1, TargetID: reward.TargetID(n), UserID: "u", Amount: 10}
				if a := client.ChargePoint(context.Background(), charge, pass); a.Class != reward.AnswerPaid {
					b.Errorf("answer %+v", a)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	if got := sim.Stats(); got.Charges < int64(b.N) || sim.MaxChargesPerKey() != 1 {
		b.Errorf("books: %+v", got)
	}
}
