package storetest

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func exercisePayoutHistory(t *testing.T, open Open) {
	run(t, open, "PayoutsOfAUserTheLatestPromotionFirst", func(b *bundle) {
		for _, id := range []reward.PromotionID{1, 3, 1<<63 - 1} {
			b.running(id)
		}
		b.saveFor("ann", store.PayoutID{PromotionID: 3, TargetID: 9}, store.PayoutID{PromotionID: 1, TargetID: 1<<63 - 1},
			store.PayoutID{PromotionID: 3, TargetID: 0}, store.PayoutID{PromotionID: 1<<63 - 1, TargetID: 7})
		b.saveFor("bob", store.PayoutID{PromotionID: 3, TargetID: 5}, store.PayoutID{PromotionID: 1, TargetID: 2})
		want := []store.PayoutID{{PromotionID: 1<<63 - 1, TargetID: 7}, {PromotionID: 3, TargetID: 0}, {PromotionID: 3, TargetID: 9}, {PromotionID: 1, TargetID: 1<<63 - 1}}
		b.wantHistory("ann", 10, want...)
		b.wantHistory("ann", 4, want...)
		b.wantHistory("ann", 3, want[:3]...)
		b.wantHistory("ann", 0)
		b.wantHistory("ann", -1)
		b.wantHistory("bob", 10, store.PayoutID{PromotionID: 3, TargetID: 5}, store.PayoutID{PromotionID: 1, TargetID: 2})
	})
	run(t, open, "PromotionsThatPaidUsers", func(b *bundle) {
		for id := reward.PromotionID(1); id <= 2; id++ {
			b.running(id)
			b.saveFor("ann", store.PayoutID{PromotionID: id, TargetID: 1}, store.PayoutID{PromotionID: id, TargetID: 2})
			b.saveFor("bob", store.PayoutID{PromotionID: id, TargetID: 3})
		}
		for target := reward.TargetID(1); target <= 3; target++ {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomePaid, TransactionKey: "t"})
		}
		b.finish(rules.Outcome{Ref: ref(2, 3, 1), Kind: rules.OutcomePaid, TransactionKey: "t"})
		paid := must(b.PromotionsPaid(b.ctx, []string{"ann", "bob", "eve", "\xff", ""}))(b)
		same(b, "people by promotion", map[reward.PromotionID]int64{1: 2, 2: 1}, paid)
		same(b, "nobody", 0, len(must(b.PromotionsPaid(b.ctx, nil))(b)))
	})
	run(t, open, "AsTheyStandWithTheirAnswers", func(b *bundle) {
		b.running(1)
		b.running(2)
		first, second, third := store.PayoutID{PromotionID: 1, TargetID: 1}, store.PayoutID{PromotionID: 1, TargetID: 2}, store.PayoutID{PromotionID: 2, TargetID: 1}
		b.saveFor("ann", first, second, third)
		answer := func(dispatch int32, second int, class reward.AnswerClass, code string) reward.Attempt {
			return reward.Attempt{Dispatch: dispatch, At: at(second), Class: class, Code: code, Message: "said " + code}
		}
		b.finish(rules.Outcome{
			Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(11), Code: "B", Message: "later",
			Attempts: []reward.Attempt{answer(1, 5, reward.AnswerFailed, "A"), answer(1, 6, reward.AnswerFailed, "B")},
		})
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid, TransactionKey: "t-1"})
		must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, From: reward.Retrying, Limit: 1, MaxLen: plenty, Now: at(12)}))(b)
		b.finish(rules.Outcome{Ref: ref(1, 2, 2), Kind: rules.OutcomeNoLookup, Attempts: []reward.Attempt{answer(2, 13, reward.AnswerUnknown, "TIMEOUT")}})
		must(b.PayoutResolve(b.ctx, store.PayoutResolveParams{PayoutID: second, Note: "asked the bank", By: "eve", Now: at(20)}))(b)
		b.finish(rules.Outcome{Ref: ref(2, 1, 1), Kind: rules.OutcomeNoLookup, Attempts: []reward.Attempt{answer(1, 9, reward.AnswerUnknown, "RESET")}})

		list := b.wantHistory("ann", 10, third, first, second)
		for i, state := range []reward.State{reward.Unknown, reward.Succeeded, reward.Failed} {
			same(b, "state", state, list[i].State)
		}
		same(b, "answers", []int{1, 0, 4}, []int{len(list[0].Answers), len(list[1].Answers), len(list[2].Answers)})
		same(b, "last answer", reward.Attempt{Dispatch: 2, At: at(20), Class: reward.AnswerResolved, Code: "eve", Message: "asked the bank"}, list[2].Answers[3])
	})
	run(t, open, "TheLatestAnswersOfEach", func(b *bundle) {
		b.running(1)
		b.saveFor("ann", store.PayoutID{PromotionID: 1, TargetID: 1}, store.PayoutID{PromotionID: 1, TargetID: 2})
		for target := reward.TargetID(1); target <= 2; target++ {
			many := make([]reward.Attempt, store.UserAnswersMax+7)
			for i := range many {
				many[i] = reward.Attempt{Dispatch: 1, At: at(60 - i), Class: reward.AnswerThrottled, Code: "BUSY"} // newest first
			}
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeNoAnswer, RetryAt: at(90), Attempts: many})
		}
		list := must(b.PayoutHistory(b.ctx, "ann", 10))(b)
		same(b, "payouts", 2, len(list))
		for _, p := range list {
			_, all, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: p.TargetID})
			b.must(err)
			same(b, "answers", all[7:], p.Answers)
		}
	})
	run(t, open, "OnlyOfExactlyThatUser", func(b *bundle) {
		b.running(1)
		long := strings.Repeat("ü", reward.UserIDMax/2)
		users := []string{"ann", "Ann", "ann ", "a%", "é", "e\u0301", "\uFFFD", "'; DROP TABLE payouts; --", long}
		rows := []store.NewPayout{{PromotionID: 1, TargetID: 99, Amount: 1}}
		for i, user := range users {
			rows = append(rows, store.NewPayout{PromotionID: 1, TargetID: reward.TargetID(i), UserID: user, Amount: 1})
		}
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: rows, Now: epoch}))(b)
		for i, user := range users {
			b.wantHistory(user, 10, store.PayoutID{PromotionID: 1, TargetID: reward.TargetID(i)})
		}
		for _, user := range []string{"", "an", "\xff", "ann\x00", "bob"} {
			b.wantHistory(user, 10)
		}
	})
	run(t, open, "OnceHoweverOftenItIsSaved", func(b *bundle) {
		b.running(1)
		id := store.PayoutID{PromotionID: 1, TargetID: 1}
		b.saveFor("ann", id, id)
		b.saveFor("ann", id)
		b.saveFor("bob", id) // refused as a conflict
		b.wantHistory("ann", 10, id)
		b.wantHistory("bob", 10)
		b.move(1, reward.PromotionCancelled)
		late := store.PayoutID{PromotionID: 1, TargetID: 2}
		b.saveFor("ann", late)
		b.wantHistory("ann", 10, id, late)
	})
	run(t, open, "GoneWithThePromotion", func(b *bundle) {
		b.draft(1)
		b.draft(2)
		mine, kept := store.PayoutID{PromotionID: 1, TargetID: 1}, store.PayoutID{PromotionID: 2, TargetID: 1}
		b.saveFor("ann", mine, kept)
		b.saveFor("ann", mine)
		b.must(b.PromotionDelete(b.ctx, 1))
		b.wantHistory("ann", 10, kept)
		b.draft(1)
		b.saveFor("bob", mine)
		b.wantHistory("ann", 10, kept)
		b.wantHistory("bob", 10, mine)
	})
}

// saveFor saves payouts of a user. They are QUEUED if their promotion is
// RUNNING.
func (b *bundle) saveFor(user string, ids ...store.PayoutID) {
	b.Helper()
	rows := make([]store.NewPayout, len(ids))
	for i, id := range ids {
		rows[i] = store.NewPayout{PromotionID: id.PromotionID, TargetID: id.TargetID, UserID: user, Amount: 100}
	}
	must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: rows, MaxLen: plenty, Now: epoch}))(b)
}

// wantHistory fails the test unless a user has these payouts, each as PayoutGet
// returns it.
func (b *bundle) wantHistory(user string, limit int, ids ...store.PayoutID) []store.UserPayout {
	b.Helper()
	list := must(b.PayoutHistory(b.ctx, user, limit))(b)
	want := []store.UserPayout{}
	for _, id := range ids {
		p, answers, err := b.PayoutGet(b.ctx, id)
		b.must(err)
		want = append(want, store.UserPayout{Row: rules.Row{Payout: p}, Answers: answers})
	}
	same(b, "history of "+reward.Quote(user), want, append([]store.UserPayout{}, list...))
	for _, p := range list {
		same(b, "zone", "UTC", p.UpdatedAt.Location().String())
		for _, a := range p.Answers {
			same(b, "zone of an answer", "UTC", a.At.Location().String())
		}
	}
	return list
}
