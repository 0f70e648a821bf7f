package rules

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

var (
	now   = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	lease = 15 * time.Second
)

// everyRow calls check for every state, flagged or not, with a promotion of every
// status.
func everyRow(check func(r Row, p reward.Promotion)) {
	for state := range reward.StateCount {
		for _, flagged := range []bool{false, true} {
			for _, status := range []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed, reward.PromotionCancelled} {
				check(Row{Payout: reward.Payout{
					State: state, Dispatch: 2, Attempts: 1, MaybeCalled: flagged, DueAt: now, UpdatedAt: now, SettleFrom: now,
				}}, reward.Promotion{Status: status, MaxRetries: 3})
			}
		}
	}
}

// changes calls check with the result of each rule for a row.
func changes(r Row, p reward.Promotion, check func(rule string, next Row, t Tally)) {
	ref := reward.Ref{Dispatch: r.Dispatch}
	for kind := OutcomePaid; kind <= OutcomeCancelled+1; kind++ {
		for _, o := range []Outcome{{Ref: ref, Kind: kind}, {Ref: ref, Kind: kind, Sent: true, GiveUp: true}} {
			next, _, t := Finish(r, o, p, lease, now)
			check("Finish", next, t)
		}
	}
	for _, l := range []Lookup{{Ref: ref, Found: true}, {Ref: ref, NotFound: true, BeganAt: now.Add(time.Hour)}, {Ref: ref, BeganAt: now}} {
		next, _, t := Settle(r, l, p, Terms{SettleAfter: time.Minute, AgainAfter: time.Hour}, now)
		check("Settle", next, t)
	}
	for kind := WithdrawReturn; kind <= WithdrawCancel+1; kind++ {
		for _, called := range []bool{false, true} {
			next, t := Withdraw(r, Withdrawal{Kind: kind, Dispatch: r.Dispatch, Before: now.Add(1), MaybeCalled: called}, p, lease, now)
			check("Withdraw", next, t)
		}
	}
	next, t := Retry(r, "", now)
	check("Retry", next, t)
	for _, paid := range []bool{false, true} {
		if next, _, t, err := Resolve(r, Resolution{Paid: paid}, now); err == nil {
			check("Resolve", next, t)
		}
	}
}

// TestNoRuleTakesMoneyBack checks what must hold after every rule.
func TestNoRuleTakesMoneyBack(t *testing.T) {
	t.Parallel()
	everyRow(func(r Row, p reward.Promotion) {
		changes(r, p, func(rule string, next Row, tally Tally) {
			bad := ""
			switch {
			case r.State == reward.Succeeded && next != r:
				bad = "SUCCEEDED must be permanent"
			case r.MaybeCalled && !next.MaybeCalled:
				bad = "the flag of a row must stay"
			case r.MaybeCalled && rule != "Settle" && rule != "Resolve" && next.State != r.State && (next.State == reward.Failed || next.State == reward.Cancelled):
				bad = "only a lookup or an operator may end a flagged row as FAILED or CANCELLED"
			case next.State == reward.Unknown && r.State != reward.Unknown && !next.SettleFrom.Equal(now.Add(lease)):
				bad = "SettleFrom of an UNKNOWN row must be the end of the lease"
			case tally.Was != r.State || tally.Became != next.State || !tally.Changed && next != r:
				bad = "the tally does not match the change"
			case next.Dispatch != r.Dispatch:
				bad = "the dispatch number must not change"
			}
			if bad != "" {
				t.Errorf("%s of %+v in %s gives %+v, %+v: %s", rule, r, p.Status, next, tally, bad)
			}
		})
	})
}

// TestCancelledPromotionsPayNobody checks that no rule leaves a row of a CANCELLED
// promotion waiting for a dispatch.
func TestCancelledPromotionsPayNobody(t *testing.T) {
	t.Parallel()
	everyRow(func(r Row, p reward.Promotion) {
		if p.Status != reward.PromotionCancelled {
			return
		}
		changes(r, p, func(rule string, next Row, tally Tally) {
			if rule != "Retry" && tally.Changed && !next.State.Final() && next.State != reward.Unknown { // CheckRetry refuses that one
				t.Errorf("%s of %+v gives %+v", rule, r, next)
			}
		})
		if CheckRetry(1, p.Status) == nil {
			t.Error("a CANCELLED promotion allows a retry")
		}
		if Allow(p, reward.Counts{}, 0, false, 9, now).Take(r) {
			t.Errorf("%+v may be dispatched in a CANCELLED promotion", r)
		}
	})
}
