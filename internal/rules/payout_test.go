package rules

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// rowIn returns a row in a state. If called is true, the provider may have been called for it.
func rowIn(state reward.State, called bool) Row {
	return Row{Payout: reward.Payout{State: state, Dispatch: 2, Attempts: 1, MaybeCalled: called || state == reward.Unknown, DueAt: now.Add(-time.Minute), UpdatedAt: now.Add(-time.Minute)}}
}

func TestFinish(t *testing.T) {
	t.Parallel()
	running, cancelled := reward.Promotion{Status: reward.Running, MaxRetries: 2}, reward.Promotion{Status: reward.PromotionCancelled, MaxRetries: 2}
	for _, c := range []struct {
		row  Row
		kind OutcomeKind
		sent bool
		of   reward.Promotion
		want reward.State
	}{
		{rowIn(reward.Queued, false), OutcomePaid, false, running, reward.Succeeded},
		{rowIn(reward.Failed, false), OutcomePaid, false, cancelled, reward.Succeeded},
		{rowIn(reward.Queued, false), OutcomeRefused, false, running, reward.Failed},
		{rowIn(reward.Queued, true), OutcomeRefused, false, running, reward.Unknown},
		{rowIn(reward.Queued, false), OutcomeRefused, true, running, reward.Unknown},
		{rowIn(reward.Ready, false), OutcomeRefused, false, running, reward.Ready},
		{rowIn(reward.Queued, false), OutcomeFailed, false, running, reward.Retrying},
		{Row{Payout: reward.Payout{State: reward.Queued, Dispatch: 2, Attempts: 2}}, OutcomeFailed, false, running, reward.Unknown},
		{rowIn(reward.Queued, false), OutcomeFailed, false, cancelled, reward.Unknown},
		{rowIn(reward.Queued, false), OutcomeNoAnswer, false, running, reward.Retrying},
		{rowIn(reward.Queued, false), OutcomeNoAnswer, false, cancelled, reward.Unknown},
		{rowIn(reward.Queued, false), OutcomeNoLookup, false, running, reward.Unknown},
		{rowIn(reward.Queued, false), OutcomeCancelled, false, cancelled, reward.Cancelled},
		{rowIn(reward.Queued, true), OutcomeCancelled, false, cancelled, reward.Unknown},
	} {
		o := Outcome{Ref: reward.Ref{Dispatch: 2}, Kind: c.kind, Sent: c.sent}
		next, _, tally := Finish(c.row, o, c.of, lease, now)
		if next.State != c.want || tally.Changed != (c.row.State != c.want) {
			t.Errorf("%s row, maybe called %t, by kind %d, sent %t, of a %s promotion: %s, changed %t; want %s",
				c.row.State, c.row.MaybeCalled, c.kind, c.sent, c.of.Status, next.State, tally.Changed, c.want)
		}
		if next.State == reward.Retrying && !next.MaybeCalled || next.State == reward.Unknown && !next.SettleFrom.Equal(now.Add(lease)) {
			t.Errorf("a payout that may have been charged became %+v", next)
		}
		if o.Dispatch--; c.kind != OutcomePaid {
			if late, _, tally := Finish(c.row, o, c.of, lease, now); tally.Changed || late != c.row {
				t.Errorf("kind %d of an earlier dispatch changed %+v to %+v", c.kind, c.row, late)
			}
		}
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	const wait = time.Minute
	unknown := rowIn(reward.Unknown, true)
	unknown.SettleFrom = now.Add(-wait)
	decided := rowIn(reward.Failed, true)
	decided.Again = true
	for name, c := range map[string]struct {
		row             Row
		found, notFound bool
		began           time.Time
		of              reward.PromotionStatus
		want            reward.State
		again           bool
	}{
		"found":      {unknown, true, false, now.Add(-time.Hour), reward.Running, reward.Succeeded, false},
		"found late": {rowIn(reward.Cancelled, false), true, false, now, reward.PromotionCancelled, reward.Succeeded, false},
		"not found, asked when no charge can fly":  {unknown, false, true, now, reward.Running, reward.Failed, true},
		"not found, asked before, recorded now":    {unknown, false, true, now.Add(-time.Microsecond), reward.Running, reward.Unknown, false},
		"not found in a cancelled promotion":       {unknown, false, true, now, reward.PromotionCancelled, reward.Cancelled, true},
		"inconclusive":                             {unknown, false, false, now, reward.Running, reward.Unknown, false},
		"not found again, which confirms":          {decided, false, true, now, reward.Running, reward.Failed, false},
		"not found again, but asked before":        {decided, false, true, now.Add(-time.Hour), reward.Running, reward.Failed, true},
		"not found, of a row that is QUEUED again": {rowIn(reward.Queued, true), false, true, now, reward.Running, reward.Queued, false},
	} {
		l := Lookup{Ref: reward.Ref{Dispatch: 2}, Found: c.found, NotFound: c.notFound, BeganAt: c.began, NextAt: now.Add(wait)}
		next, _, _ := Settle(c.row, l, reward.Promotion{Status: c.of}, Terms{SettleAfter: wait, AgainAfter: wait}, now)
		if next.State != c.want || next.Again != c.again {
			t.Errorf("%s: %s, again %t; want %s, %t", name, next.State, next.Again, c.want, c.again)
		}
	}
}

func TestWithdraw(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		row  Row
		why  Withdrawal
		of   reward.PromotionStatus
		want reward.State
	}{
		{rowIn(reward.Queued, false), Withdrawal{Kind: WithdrawReturn, Dispatch: 2}, reward.Running, reward.Ready},
		{rowIn(reward.Queued, false), Withdrawal{Kind: WithdrawReturn, Dispatch: 1}, reward.Running, reward.Queued},
		{rowIn(reward.Queued, false), Withdrawal{Kind: WithdrawReturn, Dispatch: 2}, reward.PromotionCancelled, reward.Cancelled},
		{rowIn(reward.Queued, true), Withdrawal{Kind: WithdrawReturn, Dispatch: 2}, reward.PromotionCancelled, reward.Unknown},
		{rowIn(reward.Queued, false), Withdrawal{Kind: WithdrawReturn, Dispatch: 2, MaybeCalled: true}, reward.PromotionCancelled, reward.Unknown},
		{rowIn(reward.Queued, false), Withdrawal{Kind: WithdrawSweep, Before: now}, reward.Paused, reward.Ready},
		{rowIn(reward.Queued, false), Withdrawal{Kind: WithdrawSweep, Before: now}, reward.PromotionCancelled, reward.Unknown},
		{rowIn(reward.Queued, false), Withdrawal{Kind: WithdrawSweep, Before: now.Add(-time.Minute)}, reward.Running, reward.Queued},
		{rowIn(reward.Ready, false), Withdrawal{Kind: WithdrawCancel}, reward.PromotionCancelled, reward.Cancelled},
		{rowIn(reward.Ready, true), Withdrawal{Kind: WithdrawCancel}, reward.PromotionCancelled, reward.Unknown},
		{rowIn(reward.Retrying, true), Withdrawal{Kind: WithdrawCancel}, reward.PromotionCancelled, reward.Unknown},
		{rowIn(reward.Ready, false), Withdrawal{Kind: WithdrawCancel}, reward.Running, reward.Ready},
	} {
		next, tally := Withdraw(c.row, c.why, reward.Promotion{Status: c.of}, lease, now)
		if next.State != c.want || tally.Changed != (c.row.State != c.want) {
			t.Errorf("%s row, maybe called %t, by %+v, of a %s promotion: %s; want %s", c.row.State, c.row.MaybeCalled, c.why, c.of, next.State, c.want)
		}
		if c.why.Kind == WithdrawSweep && tally.Changed && !next.MaybeCalled {
			t.Errorf("a payout that a stream has lost became %+v", next)
		}
	}
}
