package storetest

import (
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// kinds are all the ways a dispatch ends.
var kinds = []rules.OutcomeKind{
	rules.OutcomePaid, rules.OutcomeRefused, rules.OutcomeFailed, rules.OutcomeNoAnswer, rules.OutcomeNoLookup, rules.OutcomeCancelled,
}

func exerciseFinish(t *testing.T, open Open) {
	run(t, open, "PaidIsOneAttempt", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1)
		res := b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: hostile})
		same(b, "result", store.FinishResult{State: reward.Succeeded, Attempts: 1, DueAt: at(10), Changed: true}, res)
		r := row(1, 1)
		paid := reward.Payout{
			PromotionID: 1, TargetID: 1, SummaryID: r.SummaryID, UserID: r.UserID, Amount: r.Amount, State: reward.Succeeded,
			Dispatch: 1, Attempts: 1, DueAt: at(10), FirstDispatchedAt: epoch, TransactionKey: hostile, UpdatedAt: at(10),
		}
		same(b, "row", paid, b.payout(1, 1))
		for _, kind := range kinds {
			res = b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: kind, TransactionKey: "other", Code: "X", RetryAt: at(99)})
			want := store.FinishResult{State: reward.Succeeded, Attempts: 1, DueAt: at(10)}
			if kind == rules.OutcomePaid {
				want.Recorded = hostile // by another transaction: charged twice
			}
			same(b, "late", want, res)
		}
		same(b, "row after late ones", paid, b.payout(1, 1))
		for _, key := range []string{hostile, ""} {
			res = b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: key})
			same(b, "the same charge", "", res.Recorded)
		}
		twice := b.settleLookups(store.PayoutSettleParams{Now: at(20), Lookups: []rules.Lookup{
			{Ref: ref(1, 1, 1), Found: true, TransactionKey: "third", BeganAt: at(19)},
		}})
		same(b, "found by a lookup", []store.SecondCharge{{Ref: ref(1, 1, 1), Recorded: hostile, TransactionKey: "third"}}, twice)
		same(b, "row after all", paid, b.payout(1, 1))
		_, attempts, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: 1})
		b.must(err)
		same(b, "attempts", []reward.Attempt{
			{Dispatch: 1, At: at(10), Class: reward.AnswerPaid, Code: reward.CodeSecondCharge, Message: "other"},
			{Dispatch: 1, At: at(20), Class: reward.AnswerPaid, Code: reward.CodeSecondCharge, Message: "third"},
		}, attempts)
		b.books(1)
	})
	run(t, open, "LateWritersChangeNothing", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1)
		b.saveReady(1, 2)
		for _, kind := range []rules.OutcomeKind{
			rules.OutcomeRefused, rules.OutcomeFailed, rules.OutcomeNoAnswer, rules.OutcomeNoLookup, rules.OutcomeCancelled,
		} {
			for _, r := range []reward.Ref{ref(1, 1, 0), ref(1, 1, 2), ref(1, 2, 0)} {
				before := b.payout(1, r.TargetID)
				res := b.finish(rules.Outcome{Ref: r, Kind: kind, Code: "LATE", RetryAt: at(99), Sent: true})
				same(b, "result", store.FinishResult{State: before.State, DueAt: epoch}, res)
				same(b, "row", before, b.payout(1, r.TargetID))
			}
		}
		res := b.finish(rules.Outcome{Ref: ref(1, 99, 1), Kind: rules.OutcomePaid})
		same(b, "no such row", store.FinishResult{}, res)
		b.books(1)
	})
	run(t, open, "SuccessAbsorbsFromEveryState", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3, 4, 5)
		b.saveReady(1, 6)
		b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(20)})
		b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeNoLookup})
		b.finish(rules.Outcome{Ref: ref(1, 4, 1), Kind: rules.OutcomeRefused, Code: "NO"})
		b.finish(rules.Outcome{Ref: ref(1, 5, 1), Kind: rules.OutcomeCancelled})
		for target, was := range map[reward.TargetID]reward.State{
			1: reward.Queued, 2: reward.Retrying, 3: reward.Unknown, 4: reward.Failed, 5: reward.Cancelled, 6: reward.Ready,
		} {
			before := b.payout(1, target)
			same(b, "state before", was, before.State)
			res := b.finish(rules.Outcome{Ref: ref(1, target, 77), Kind: rules.OutcomePaid, TransactionKey: "tx"})
			same(b, "changed", true, res.Changed)
			same(b, "attempts", before.Attempts+1, res.Attempts)
			after := b.payout(1, target)
			same(b, "state", reward.Succeeded, after.State)
			same(b, "key", "tx", after.TransactionKey)
			same(b, "error", "", after.ErrorCode)
			b.books(1)
		}
		v, err := b.PromotionGet(b.ctx, 1)
		b.must(err)
		same(b, "succeeded", 6, v.Counts.Payouts[reward.Succeeded])
		same(b, "attempts", 8, v.Counts.Attempts)
	})
	run(t, open, "ARefusalIsFinalOnlyForWhoSurelyDidNotCall", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3)
		res := b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeRefused, Code: "LIMIT", Message: hostile})
		same(b, "refused", store.FinishResult{State: reward.Failed, Attempts: 1, DueAt: at(10), Changed: true}, res)
		p := b.payout(1, 1)
		same(b, "code", "LIMIT", p.ErrorCode)
		same(b, "message", hostile, p.ErrorMessage)
		same(b, "flag", false, p.MaybeCalled)

		res = b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeRefused, Sent: true, Code: "LIMIT"})
		same(b, "sent before", store.FinishResult{State: reward.Unknown, Attempts: 1, DueAt: at(10), Changed: true}, res)
		p = b.payout(1, 2)
		same(b, "flag", true, p.MaybeCalled)
		same(b, "settles from", at(25), p.SettleFrom)

		_, err := b.PayoutReturn(b.ctx, store.PayoutReturnParams{Refs: []reward.Ref{ref(1, 3, 1)}, MaybeCalled: true, Lease: lease, Now: at(5)})
		b.must(err)
		_, err = b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 1, MaxLen: plenty, Now: at(6)})
		b.must(err)
		res = b.finish(rules.Outcome{Ref: ref(1, 3, 2), Kind: rules.OutcomeRefused, Code: "LIMIT"})
		same(b, "flagged", reward.Unknown, res.State)
		b.books(1)
	})
	run(t, open, "FailuresRetryUpToTheLimit", func(b *bundle) {
		b.running(1) // three retries allow four attempts
		b.saveQueued(1, 1)
		for n := int32(1); n <= 3; n++ {
			res := b.finish(rules.Outcome{Ref: ref(1, 1, n), Kind: rules.OutcomeFailed, RetryAt: at(20), Code: "HTTP_500"})
			same(b, "failed", store.FinishResult{State: reward.Retrying, Attempts: n, DueAt: at(20), Changed: true}, res)
			p := b.payout(1, 1)
			same(b, "flag", true, p.MaybeCalled)
			same(b, "settles from", time.Time{}, p.SettleFrom)
			list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
				PromotionID: 1, From: reward.Retrying, Limit: 1, MaxLen: 1, Now: at(20), Refs: []reward.Ref{ref(1, 1, n)},
			})
			b.must(err)
			same(b, "dispatched", 1, len(list))
		}
		res := b.finish(rules.Outcome{Ref: ref(1, 1, 4), Kind: rules.OutcomeFailed, RetryAt: at(20), Code: "HTTP_500"})
		same(b, "the last", store.FinishResult{State: reward.Unknown, Attempts: 4, DueAt: at(10), Changed: true}, res)
		same(b, "settles from", at(25), b.payout(1, 1).SettleFrom)
		same(b, "code", "HTTP_500", b.payout(1, 1).ErrorCode)
		b.books(1)
	})
	run(t, open, "NoAnswerCountsNoAttempt", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3)
		res := b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeNoAnswer, RetryAt: at(20)})
		same(b, "no answer", store.FinishResult{State: reward.Retrying, DueAt: at(20), Changed: true}, res)
		same(b, "flag", true, b.payout(1, 1).MaybeCalled)
		res = b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeNoAnswer, RetryAt: at(20), GiveUp: true})
		same(b, "given up", store.FinishResult{State: reward.Unknown, DueAt: at(10), Changed: true}, res)
		res = b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeNoLookup})
		same(b, "no lookup", store.FinishResult{State: reward.Unknown, DueAt: at(10), Changed: true}, res)
		same(b, "settles from", at(25), b.payout(1, 3).SettleFrom)
		b.books(1)
	})
	run(t, open, "ACancelledOneRetriesNothing", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3, 4, 5)
		b.move(1, reward.PromotionCancelled)
		for target, want := range map[reward.TargetID]struct {
			outcome rules.Outcome
			state   reward.State
		}{
			1: {rules.Outcome{Kind: rules.OutcomeFailed, RetryAt: at(20)}, reward.Unknown},
			2: {rules.Outcome{Kind: rules.OutcomeNoAnswer, RetryAt: at(20)}, reward.Unknown},
			3: {rules.Outcome{Kind: rules.OutcomeCancelled}, reward.Cancelled},
			4: {rules.Outcome{Kind: rules.OutcomeCancelled, Sent: true}, reward.Unknown},
			5: {rules.Outcome{Kind: rules.OutcomePaid}, reward.Succeeded},
		} {
			want.outcome.Ref = ref(1, target, 1)
			res := b.finish(want.outcome)
			same(b, "state", want.state, res.State)
			if want.state == reward.Unknown {
				same(b, "settles from", at(25), b.payout(1, target).SettleFrom)
			}
		}
		same(b, "an attempt", 1, b.payout(1, 1).Attempts)
		b.books(1)
	})
	run(t, open, "ABatchMayNameATargetTwice", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveQueued(1, 1, 2)
		b.saveQueued(2, 1)
		res, err := b.PayoutFinish(b.ctx, store.PayoutFinishParams{Lease: lease, Now: at(10), Outcomes: []rules.Outcome{
			{Ref: ref(2, 1, 1), Kind: rules.OutcomeRefused},
			{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(20)},
			{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "a"},
			{Ref: ref(2, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "b"},
			{Ref: ref(1, 2, 1), Kind: rules.OutcomeRefused},
			{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "c"},
		}})
		b.must(err)
		same(b, "results", []store.FinishResult{
			{State: reward.Failed, Attempts: 1, DueAt: at(10), Changed: true},
			{State: reward.Retrying, Attempts: 1, DueAt: at(20), Changed: true},
			{State: reward.Succeeded, Attempts: 1, DueAt: at(10), Changed: true},
			{State: reward.Succeeded, Attempts: 2, DueAt: at(10), Changed: true},
			{State: reward.Retrying, Attempts: 1, DueAt: at(20)},
			{State: reward.Succeeded, Attempts: 1, DueAt: at(10), Recorded: "a"},
		}, res)
		same(b, "key", "a", b.payout(1, 1).TransactionKey)
		b.books(1)
		b.books(2)
	})
	run(t, open, "AttemptsAreKeptOnceWhateverTheRowDid", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1)
		answers := []reward.Attempt{
			{Dispatch: 1, At: at(8), Class: reward.AnswerThrottled, Code: "HTTP_503", Message: hostile},
			{Dispatch: 1, At: at(8), Class: reward.AnswerThrottled, Code: "HTTP_503", Message: hostile},
			{Dispatch: 1, At: at(9), Class: reward.AnswerFailed, Code: "HTTP_500", Message: "no"},
		}
		first := rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeFailed, RetryAt: at(20), Attempts: answers}
		b.finish(first)
		b.finish(first) // a repeat, as after a lost reply
		late := reward.Attempt{Dispatch: 0, At: at(10), Class: reward.AnswerRefused, Code: "LATE"}
		b.finish(rules.Outcome{Ref: ref(1, 1, 0), Kind: rules.OutcomeRefused, Attempts: []reward.Attempt{late}})
		b.finish(rules.Outcome{Ref: ref(1, 9, 1), Kind: rules.OutcomeRefused, Attempts: []reward.Attempt{late}})
		p, attempts, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: 1})
		b.must(err)
		same(b, "attempts", append(answers, late), attempts)
		same(b, "counted", 1, p.Attempts)
	})
	run(t, open, "MessagesOfAProviderNeverStopABatch", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1)
		message := "nul\x00 broken\xff " + strings.Repeat("x", 10_000)
		b.finish(rules.Outcome{
			Ref: ref(1, 1, 1), Kind: rules.OutcomeRefused, Code: "A\x00", Message: message,
			Attempts: []reward.Attempt{{Dispatch: 1, At: at(9), Class: reward.AnswerRefused, Code: "A\x00", Message: message}},
		})
		p, attempts, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: 1})
		b.must(err)
		same(b, "code", "A", p.ErrorCode)
		same(b, "message", "nul broken\uFFFD "+strings.Repeat("x", 10_000), p.ErrorMessage)
		same(b, "attempt", p.ErrorMessage, attempts[0].Message)
	})
	run(t, open, "NothingToFinish", func(b *bundle) {
		res, err := b.PayoutFinish(b.ctx, store.PayoutFinishParams{Now: at(1)})
		b.must(err)
		same(b, "results", 0, len(res))
		b.settleLookups(store.PayoutSettleParams{Now: at(1)})
	})
}

func exerciseLookups(t *testing.T, open Open) {
	// unknown makes targets UNKNOWN at second 10. Their SettleFrom is 25, so "not
	// found" decides them if the lookup began at 85 or later.
	unknown := func(b *bundle, targets ...reward.TargetID) {
		b.Helper()
		b.running(1)
		b.saveQueued(1, targets...)
		for _, target := range targets {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeNoLookup})
		}
	}
	settle := func(b *bundle, ls ...rules.Lookup) {
		b.Helper()
		b.settleLookups(store.PayoutSettleParams{Lookups: ls, SettleAfter: settleAfter, Now: at(100)})
		b.books(1)
	}
	run(t, open, "AreTakenOnceWhenDue", func(b *bundle) {
		unknown(b, 1, 2, 3)
		b.running(2)
		b.saveQueued(2, 1)
		b.finish(rules.Outcome{Ref: ref(2, 1, 1), Kind: rules.OutcomeNoLookup})
		b.move(2, reward.Paused)
		take := func(limit, now int) []reward.Payout {
			b.Helper()
			list, err := b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: limit, Until: at(60), Now: at(now)})
			b.must(err)
			for _, p := range list {
				same(b, "due", at(60), p.DueAt)
				same(b, "state", reward.Unknown, p.State)
			}
			return list
		}
		same(b, "not due", 0, len(take(9, 9)))
		same(b, "no limit", 0, len(take(0, 10)))
		first := take(3, 10)
		same(b, "due", 3, len(first))
		rest := take(9, 10)
		same(b, "the rest", 1, len(rest))
		seen := make(map[store.PayoutID]bool)
		for _, p := range append(first, rest...) {
			seen[store.PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}] = true
		}
		same(b, "different ones", 4, len(seen))
		same(b, "none left", 0, len(take(9, 59)))
		same(b, "due again", 4, len(take(9, 60)))
		b.books(1)
	})
	run(t, open, "FoundAbsorbsAndCountsNoAttempt", func(b *bundle) {
		unknown(b, 1)
		b.saveReady(1, 2)
		b.saveQueued(1, 3)
		b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeRefused, Code: "NO"})
		settle(b,
			rules.Lookup{Ref: ref(1, 1, 1), Found: true, TransactionKey: "a", BeganAt: at(11)},
			rules.Lookup{Ref: ref(1, 2, 5), Found: true, TransactionKey: "b", BeganAt: at(11)},
			rules.Lookup{Ref: ref(1, 3, 9), Found: true, TransactionKey: "c", BeganAt: at(11)},
			rules.Lookup{Ref: ref(1, 9, 1), Found: true, TransactionKey: "d", BeganAt: at(11)},
			rules.Lookup{Ref: ref(1, 1, 1), Found: true, TransactionKey: "e", BeganAt: at(11)},
		)
		for target, want := range map[reward.TargetID]string{1: "a", 2: "b", 3: "c"} {
			p := b.payout(1, target)
			same(b, "state", reward.Succeeded, p.State)
			same(b, "key", want, p.TransactionKey)
			same(b, "error", "", p.ErrorCode)
		}
		same(b, "attempts of 1", 0, b.payout(1, 1).Attempts)
		same(b, "attempts of 3", 1, b.payout(1, 3).Attempts)
	})
	run(t, open, "NotFoundCountsOnlyWhenBegunAfterTheWait", func(b *bundle) {
		unknown(b, 1, 2)
		early := at(85).Add(-time.Microsecond)
		settle(b,
			rules.Lookup{Ref: ref(1, 1, 1), NotFound: true, BeganAt: early, NextAt: at(200)},
			rules.Lookup{Ref: ref(1, 2, 1), NotFound: true, BeganAt: at(85), NextAt: at(200)},
		)
		p := b.payout(1, 1)
		same(b, "early", reward.Unknown, p.State)
		same(b, "next lookup", at(200), p.DueAt)
		same(b, "settles from, as before", at(25), p.SettleFrom)
		p = b.payout(1, 2)
		same(b, "after the wait", reward.Failed, p.State)
		same(b, "updated", at(100), p.UpdatedAt)
	})
	run(t, open, "NoAnswerIsLookedUpAgain", func(b *bundle) {
		unknown(b, 1)
		settle(b, rules.Lookup{Ref: ref(1, 1, 1), BeganAt: at(99), NextAt: at(300)})
		b.wantState(1, 1, reward.Unknown)
		same(b, "next lookup", at(300), b.payout(1, 1).DueAt)
	})
	run(t, open, "NotFoundNamesUnknownAndItsDispatch", func(b *bundle) {
		unknown(b, 1)
		b.saveQueued(1, 2)
		settle(b,
			rules.Lookup{Ref: ref(1, 1, 2), NotFound: true, BeganAt: at(99), NextAt: at(200)},
			rules.Lookup{Ref: ref(1, 2, 1), NotFound: true, BeganAt: at(99), NextAt: at(200)},
		)
		b.wantState(1, 1, reward.Unknown)
		same(b, "due, as before", at(10), b.payout(1, 1).DueAt)
		b.wantState(1, 2, reward.Queued)
		same(b, "due, as before", epoch, b.payout(1, 2).DueAt)
	})
	run(t, open, "NotFoundInACancelledOneIsCancelled", func(b *bundle) {
		unknown(b, 1)
		b.move(1, reward.PromotionCancelled)
		settle(b, rules.Lookup{Ref: ref(1, 1, 1), NotFound: true, BeganAt: at(85), NextAt: at(200)})
		b.wantState(1, 1, reward.Cancelled)
		// A late confirmation still wins.
		settle(b, rules.Lookup{Ref: ref(1, 1, 1), Found: true, TransactionKey: "late", BeganAt: at(90)})
		b.wantState(1, 1, reward.Succeeded)
	})
	run(t, open, "TheirAnswersAreKept", func(b *bundle) {
		unknown(b, 1)
		answer := reward.Attempt{Dispatch: 1, At: at(86), Class: reward.AnswerRefused, Code: "NOT_FOUND", Message: hostile}
		l := rules.Lookup{Ref: ref(1, 1, 1), NotFound: true, BeganAt: at(85), NextAt: at(200), Attempt: &answer}
		settle(b, l)
		settle(b, l)
		p, attempts, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: 1})
		b.must(err)
		same(b, "attempts", []reward.Attempt{answer}, attempts)
		same(b, "code", "NOT_FOUND", p.ErrorCode)
		same(b, "counted", 0, p.Attempts)
	})
}
