package money_test

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/reward"
)

func simulate(t *testing.T, faults moneysim.Faults, timeout time.Duration) *money.Client {
	t.Helper()
	sim := fixture.Must(moneysim.New(moneysim.Config{Faults: faults, Seed: 42}))(t)
	addr := fixture.Must(sim.Start("127.0.0.1:0"))(t)
	t.Cleanup(sim.Close)
	c := fixture.Must(money.New(money.Config{URL: "http://" + addr, Timeout: timeout}))(t)
	t.Cleanup(c.Close)
	return c
}

// The faults whose answers take a while, or come for the rate.
func TestSlowAnswersOfTheSimulator(t *testing.T) {
	t.Parallel()
	pass := func() error { return nil }
	charge := money.Charge{PromotionID: 1, TargetID: 7, UserID: "u7", Amount: 10}
	client := simulate(t, moneysim.Faults{SlowDripRate: 1}, time.Second)
	if a := client.ChargePoint(t.Context(), charge, pass); a.Class != reward.AnswerUnknown || a.Code != money.CodeTimeout {
		t.Errorf("answer %+v", a)
	}
	if l := client.Lookup(t.Context(), 1, 7); !l.Found {
		t.Errorf("lookup %+v", l)
	}
	client = simulate(t, moneysim.Faults{RatePerSecond: 0.001}, 0)
	first, second := client.ChargePoint(t.Context(), charge, pass), client.ChargePoint(t.Context(), charge, pass)
	if first.Class != reward.AnswerPaid || second.Class != reward.AnswerThrottled || second.RetryAfter != time.Second {
		t.Errorf("answers %+v, %+v", first, second)
	}
}
