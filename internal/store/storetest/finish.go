package storetest

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
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
	run(t, open, "SharedKeys", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveQueued(1, 1, 2, 3, 4, 5, 6, 7)
		b.saveQueued(2, 1)
		keys := func() store.SharedKeys {
			b.Helper()
			k, err := b.SharedKeys(b.ctx, 1)
			b.must(err)
			return k
		}
		paid := func(id reward.PromotionID, target reward.TargetID, key string) {
			b.Helper()
			b.finish(rules.Outcome{Ref: ref(id, target, 1), Kind: rules.OutcomePaid, TransactionKey: key})
		}
		paid(1, 1, "own")
		paid(1, 2, hostile)
		paid(2, 1, hostile)                                       // of another promotion
		for target := reward.TargetID(6); target <= 7; target++ { // one transfer by a person
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeNoAnswer, GiveUp: true})
			_, err := b.PayoutResolve(b.ctx, store.PayoutResolveParams{
				PayoutID: store.PayoutID{PromotionID: 1, TargetID: target}, Paid: true, TransactionKey: "transfer", By: "ann", Note: "by hand", Now: at(20),
			})
			b.must(err)
		}
		same(b, "different keys", store.SharedKeys{}, keys())
		paid(1, 5, hostile)
		paid(1, 3, hostile)
		paid(1, 4, "own")
		same(b, "two keys of five", store.SharedKeys{Payouts: 5, Keys: 2, Key: "own", First: 1, Last: 4}, keys())
	})
	run(t, open, "ABatchMayNameATargetTwice", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveQueued(1, 1, 2)
		b.saveQueued(2, 1)
		res := must(b.PayoutFinish(b.ctx, store.PayoutFinishParams{Lease: lease, Now: at(10), Outcomes: []rules.Outcome{
			{Ref: ref(2, 1, 1), Kind: rules.OutcomeRefused},
			{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(20)},
			{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "a"},
			{Ref: ref(2, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "b"},
			{Ref: ref(1, 2, 1), Kind: rules.OutcomeRefused},
			{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "c"},
		}}))(b)
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
		res := must(b.PayoutFinish(b.ctx, store.PayoutFinishParams{Now: at(1)}))(b)
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
			list := must(b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: limit, Until: at(60), Now: at(now)}))(b)
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

// exerciseRewrite writes a change of a row that another transaction has changed since it was read.
func exerciseRewrite(t *testing.T, open Open) {
	for name, moved := range map[string]func(c *rows.Change){
		"Status":      func(c *rows.Change) { c.Status = reward.PromotionCancelled },
		"State":       func(c *rows.Change) { c.Was.State = reward.Ready },
		"Dispatch":    func(c *rows.Change) { c.Was.Dispatch++ },
		"Attempts":    func(c *rows.Change) { c.Was.Attempts++ },
		"MaybeCalled": func(c *rows.Change) { c.Was.MaybeCalled = true },
		"Again":       func(c *rows.Change) { c.Was.Again = true },
		"LookedAt":    func(c *rows.Change) { c.Was.LookedAt = at(1) },
		"UpdatedAt":   func(c *rows.Change) { c.Was.UpdatedAt = at(1) },
	} {
		run(t, open, name+"Differs", func(b *bundle) {
			b.running(1)
			b.saveQueued(1, 1, 2)
			payouts, attempt := b.Driver.(rows.Payouts), reward.Attempt{Dispatch: 1, At: at(9), Class: reward.AnswerRefused}
			change := func(target reward.TargetID) rows.Change {
				id := store.PayoutID{PromotionID: 1, TargetID: target}
				found, promotions, err := payouts.RowsOf(b.ctx, "read", []store.PayoutID{id})
				b.must(err)
				c := rows.Change{Was: found[id], Status: promotions[1].Status, Attempts: []reward.Attempt{attempt}}
				c.Next, _, c.Tally = rules.Finish(c.Was, rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeRefused}, promotions[1], lease, at(10))
				return c
			}
			changes := []rows.Change{change(1), change(2)}
			moved(&changes[0])
			same(b, "stale", []int{0}, must(payouts.Rewrite(b.ctx, "write", false, changes))(b))
			b.wantState(1, 1, reward.Queued)
			b.wantState(1, 2, reward.Failed)
			for target, want := range map[reward.TargetID][]reward.Attempt{1: nil, 2: {attempt}} {
				_, attempts, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: target})
				b.must(err)
				same(b, "attempts", want, attempts)
			}
			b.books(1)
		})
	}
}
