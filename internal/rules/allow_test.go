package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

// allowed returns the rows that a promotion lets through, and which.
func allowed(p reward.Promotion, c reward.Counts, above reward.Limits, capacity int64, list []Row) string {
	var flagged reward.Amount
	for _, r := range list {
		if r.State == reward.Ready && r.MaybeCalled {
			flagged += r.Amount
		}
	}
	a := Allow(p, c, flagged, ApprovalNeeded(p, c.AmountTotal(), above), capacity, now)
	var took strings.Builder
	for _, r := range list {
		if a.Take(r) {
			fmt.Fprint(&took, r.TargetID)
		}
	}
	return took.String()
}

func TestWhichRowsMayBeQueued(t *testing.T) {
	t.Parallel()
	row := func(target reward.TargetID, state reward.State, amount reward.Amount, dispatch int32, maybeCalled bool, round int32) Row {
		return Row{Payout: reward.Payout{TargetID: target, State: state, Amount: amount, Dispatch: dispatch, MaybeCalled: maybeCalled}, ApprovalRound: round}
	}
	ready := []Row{
		row(1, reward.Ready, 40, 0, false, 0), row(2, reward.Ready, 40, 1, true, 0), row(3, reward.Ready, 40, 1, false, 1),
		row(4, reward.Ready, 40, 0, false, 1), row(5, reward.Ready, 1, 0, false, 0),
	}
	retries := []Row{row(6, reward.Retrying, 40, 1, false, 0), row(7, reward.Retrying, 40, 1, false, 1)}
	var counts reward.Counts
	counts.Amounts[reward.Ready], counts.Amounts[reward.Retrying], counts.Amounts[reward.Succeeded] = 161, 80, 100
	above := reward.Limits{Default: 300}
	for name, tt := range map[string]struct {
		p        reward.Promotion
		above    reward.Limits
		capacity int64
		want     string
	}{
		"all":                                 {reward.Promotion{}, reward.Limits{}, 9, "1234567"},
		"paused":                              {reward.Promotion{Status: reward.Paused}, reward.Limits{}, 9, ""},
		"before its end":                      {reward.Promotion{EndsAt: now.Add(1)}, reward.Limits{}, 9, "1234567"},
		"from its end on":                     {reward.Promotion{EndsAt: now}, reward.Limits{}, 9, ""},
		"as many as there is room for":        {reward.Promotion{}, reward.Limits{}, 3, "123"},
		"no room":                             {reward.Promotion{}, reward.Limits{}, -1, ""},
		"the budget counts what may be paid":  {reward.Promotion{MaxAmount: 260}, reward.Limits{}, 9, "12"},
		"a budget that is used up":            {reward.Promotion{MaxAmount: 220}, reward.Limits{}, 9, ""},
		"a budget for what was charged":       {reward.Promotion{MaxAmount: 259}, reward.Limits{}, 9, ""},
		"a budget that is exceeded":           {reward.Promotion{MaxAmount: 219}, reward.Limits{}, 9, ""},
		"a budget for all":                    {reward.Promotion{MaxAmount: 341}, reward.Limits{}, 9, "1234567"},
		"an open canary":                      {reward.Promotion{Canary: reward.Canary{Targets: 3, Dispatched: 2}}, reward.Limits{}, 9, "12367"},
		"a canary that has gone":              {reward.Promotion{Canary: reward.Canary{Targets: 3, Dispatched: 3}}, reward.Limits{}, 9, "2367"},
		"a canary that is judged":             {reward.Promotion{Canary: reward.Canary{Targets: 3, Dispatched: 3, Judged: true}}, reward.Limits{}, 9, "1234567"},
		"below the limit":                     {reward.Promotion{}, reward.Limits{Default: 341}, 9, "1234567"},
		"above it":                            {reward.Promotion{}, above, 9, ""},
		"approved":                            {reward.Promotion{Approval: reward.Approval{Rounds: 2, Amount: 341}}, above, 9, "1234567"},
		"only those of round 0 are approved":  {reward.Promotion{Approval: reward.Approval{Rounds: 1, Amount: 121}}, above, 9, "1256"},
		"its authors have less for the day":   {reward.Promotion{Approval: reward.Approval{Granted: new(reward.Amount(340))}}, reward.Limits{Default: 999}, 9, ""},
		"a target without an amount":          {reward.Promotion{Approval: reward.Approval{Unvalued: 1}}, reward.Limits{Default: 999}, 9, ""},
		"approved with one without an amount": {reward.Promotion{Approval: reward.Approval{Unvalued: 1, Rounds: 2}}, reward.Limits{Default: 999}, 9, "1234567"},
		"an approval and a budget":            {reward.Promotion{MaxAmount: 300, Approval: reward.Approval{Rounds: 1}}, above, 9, "1256"},
	} {
		if tt.p.Status == "" {
			tt.p.Status = reward.Running
		}
		all := append(ready[:len(ready):len(ready)], retries...)
		got := allowed(tt.p, counts, tt.above, tt.capacity, all)
		if got != tt.want {
			t.Errorf("%s: rows %q may be queued, want %q", name, got, tt.want)
		}
		// Within its bounds, a promotion lets all rows through.
		if BoundsOf(tt.p, tt.above, now).Hold(counts) && allowed(tt.p, counts, tt.above, 9, all) != "1234567" {
			t.Errorf("%s: it is within its bounds %+v, and does not let all through", name, BoundsOf(tt.p, tt.above, now))
		}
	}
}

func TestMayBePaid(t *testing.T) {
	t.Parallel()
	called, again := Row{Payout: reward.Payout{MaybeCalled: true}}, Row{Again: true}
	for state, want := range map[reward.State]struct{ plain, called, again bool }{
		reward.Ready: {false, true, false}, reward.Queued: {true, true, true}, reward.Retrying: {true, true, true}, reward.Unknown: {true, true, true},
		reward.Succeeded: {}, // it is paid
		reward.Failed:    {again: true}, reward.Cancelled: {again: true},
	} {
		for _, c := range []struct {
			row  Row
			want bool
		}{{Row{}, want.plain}, {called, want.called}, {again, want.again}} {
			if c.row.State = state; MayBePaid(c.row) != c.want {
				t.Errorf("%s, maybe called %t, looked up again %t: want %t", state, c.row.MaybeCalled, c.row.Again, c.want)
			}
		}
	}
	if n := int(reward.StateCount); n != 7 {
		t.Errorf("there are %d states", n)
	}
}
