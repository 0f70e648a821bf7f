package storetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// bounded creates a RUNNING promotion with three retries, a budget and a
// canary.
func (b *bundle) bounded(id reward.PromotionID, budget reward.Amount, canary reward.Canary) {
	b.Helper()
	must(b.PromotionCreate(b.ctx, reward.Promotion{
		ID: id, Name: "summer", Type: reward.Point, MaxRetries: 3, MaxAmount: budget, Canary: canary, CreatedAt: epoch,
	}))(b)
	b.move(id, reward.Running)
}

// saveAmounts saves payouts with these amounts, in this order, for targets from
// on.
func (b *bundle) saveAmounts(maxLen int, id reward.PromotionID, from reward.TargetID, amounts ...reward.Amount) []reward.TargetID {
	b.Helper()
	rows := make([]store.NewPayout, len(amounts))
	for i, amount := range amounts {
		rows[i] = row(id, from+reward.TargetID(i))
		rows[i].Amount = amount
	}
	res := must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: rows, MaxLen: maxLen, Now: epoch}))(b)
	b.books(id)
	return targetsOf(res.Queued)
}

// dispatch dispatches as many rows as are allowed at second 20, and returns
// their targets.
func (b *bundle) dispatch(id reward.PromotionID, from reward.State, limit int, refs ...reward.Ref) []reward.TargetID {
	b.Helper()
	list := must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{
		PromotionID: id, From: from, Limit: limit, MaxLen: plenty, Now: at(20), Refs: refs,
	}))(b)
	b.books(id)
	return targetsOf(list)
}

// canary returns the canary of promotion 1.
func (b *bundle) canary() reward.Canary {
	b.Helper()
	v := b.view(1)
	return v.Canary
}

// exposed returns the amount that a promotion has paid or may have paid.
func exposed(c reward.Counts) reward.Amount {
	return c.Amounts[reward.Succeeded] + c.Amounts[reward.Queued] + c.Amounts[reward.Retrying] + c.Amounts[reward.Unknown]
}

func exerciseBudget(t *testing.T, open Open) {
	none := []reward.TargetID{}
	run(t, open, "DispatchStopsBeforeItWouldBePassed", func(b *bundle) {
		b.bounded(1, 100, reward.Canary{})
		b.saveAmounts(0, 1, 0, 40, 30, 20, 25, 5, 0)
		same(b, "as many as fit", []reward.TargetID{0, 1, 2}, b.dispatch(1, reward.Ready, 9))
		same(b, "no row overtakes one that does not fit", none, b.dispatch(1, reward.Ready, 9))
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeRefused})
		same(b, "after one was refused", []reward.TargetID{3, 4, 5}, b.dispatch(1, reward.Ready, 9))
	})
	run(t, open, "SaveQueuesABatchThatFits", func(b *bundle) {
		b.bounded(1, 100, reward.Canary{})
		same(b, "all fit", []reward.TargetID{5, 6}, b.saveAmounts(plenty, 1, 5, 60, 30))
		same(b, "not all fit", none, b.saveAmounts(plenty, 1, 7, 10, 1))
		same(b, "dispatched", []reward.TargetID{7}, b.dispatch(1, reward.Ready, 9))
		b.bounded(2, 100, reward.Canary{})
		same(b, "known targets do not count", []reward.TargetID{1}, b.saveAmounts(plenty, 2, 1, 60))
		same(b, "and the next", []reward.TargetID{2}, b.saveAmounts(plenty, 2, 1, 60, 40))
	})
	run(t, open, "WhatMayBePaidCounts", func(b *bundle) {
		b.bounded(1, 100, reward.Canary{})
		b.saveAmounts(0, 1, 0, 25, 25, 25, 25, 25)
		same(b, "queued", []reward.TargetID{0, 1, 2, 3}, b.dispatch(1, reward.Ready, 9))
		same(b, "all QUEUED", none, b.dispatch(1, reward.Ready, 9))
		for i, o := range []rules.Outcome{
			{Kind: rules.OutcomePaid}, {Kind: rules.OutcomeFailed, RetryAt: at(99)}, {Kind: rules.OutcomeNoLookup},
		} {
			o.Ref = ref(1, reward.TargetID(i), 1)
			b.finish(o)
			same(b, "after one more outcome", none, b.dispatch(1, reward.Ready, 9))
		}
		same(b, "and nothing is saved as QUEUED", none, b.saveAmounts(plenty, 1, 10, 1))
		b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeRefused})
		same(b, "FAILED does not", []reward.TargetID{4}, b.dispatch(1, reward.Ready, 1))
	})
	run(t, open, "GreatAmountsDoNotOverflow", func(b *bundle) {
		const most = 1<<63 - 1
		b.bounded(1, most, reward.Canary{})
		b.saveAmounts(0, 1, 0, most/2, most/2, 1)
		same(b, "dispatched", []reward.TargetID{0, 1, 2}, b.dispatch(1, reward.Ready, 9))
		b.bounded(2, 1, reward.Canary{})
		same(b, "queued", none, b.saveAmounts(plenty, 2, 0, most/2, most/2, 1))
		same(b, "dispatched", none, b.dispatch(2, reward.Ready, 9))
	})
}

func exerciseEnds(t *testing.T, open Open) {
	none := []reward.TargetID{}
	ending := func(b *bundle, second int) {
		b.bounded(1, 0, reward.Canary{})
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, EndsAt: new(at(second))}))(b)
	}
	end := func(b *bundle, second int) bool { return must(b.PromotionEnd(b.ctx, 1, at(second)))(b) }
	run(t, open, "NothingIsDispatchedFromItsEndOn", func(b *bundle) {
		ending(b, 21)
		b.saveReady(1, 1, 2)
		same(b, "before", []reward.TargetID{1}, b.dispatch(1, reward.Ready, 1))
		ends := func(second int) {
			must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, EndsAt: new(at(second))}))(b)
		}
		ends(20)
		same(b, "at its end", none, b.dispatch(1, reward.Ready, 9))
		ends(0)
		same(b, "saved", none, b.saveAmounts(plenty, 1, 3, 10)) // at second 0
		ends(99)
		same(b, "with a later end", []reward.TargetID{2, 3}, b.dispatch(1, reward.Ready, 9))
	})
	run(t, open, "ItPausesOnceWithPayoutsLeft", func(b *bundle) {
		ending(b, 30)
		same(b, "without payouts", false, end(b, 40))
		b.saveReady(1, 1, 2)
		same(b, "before", false, end(b, 29))
		same(b, "ended", true, end(b, 30))
		v := b.view(1)
		same(b, "status", reward.Paused, v.Status)
		same(b, "who, when and why", []string{"", at(30).String(), "true"},
			[]string{v.PausedBy, v.PausedAt.String(), fmt.Sprint(strings.HasPrefix(v.PauseReason, "ended at "))})
		same(b, "again", false, end(b, 31))
		resume := store.PromotionMoveParams{ID: 1, From: []reward.PromotionStatus{reward.Paused}, To: reward.Running, Now: at(40)}
		_, err := b.PromotionMove(b.ctx, resume)
		b.wantCode(err, reward.CodeIllegalState)
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, EndsAt: new(time.Time)}))(b)
		must(b.PromotionMove(b.ctx, resume))(b)
		same(b, "without an end", false, end(b, 99))
		v = b.view(1)
		same(b, "resumed", []any{reward.Running, true, true}, []any{v.Status, v.PausedAt.IsZero(), v.EndsAt.IsZero()})
	})
	run(t, open, "QueuedPayoutsEndFirst", func(b *bundle) {
		ending(b, 30)
		b.saveQueued(1, 1)
		same(b, "ended", false, end(b, 40))
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		same(b, "completed", true, b.complete(1, 41))
	})
}

func exerciseCanary(t *testing.T, open Open) {
	none := []reward.TargetID{}
	three := reward.Canary{Targets: 3, MaxFailureRate: 0.5}
	run(t, open, "NoMoreThanItsTargetsGoFirst", func(b *bundle) {
		b.bounded(1, 0, three)
		b.saveReady(1, 1, 2, 3, 4, 5)
		same(b, "some", []reward.TargetID{1, 2}, b.dispatch(1, reward.Ready, 2))
		same(b, "counted", 2, b.canary().Dispatched)
		same(b, "the last", []reward.TargetID{3}, b.dispatch(1, reward.Ready, 9))
		same(b, "no more", none, b.dispatch(1, reward.Ready, 9))
		same(b, "nor named", none, b.dispatch(1, reward.Ready, 9, ref(1, 4, 0)))
		same(b, "nor saved", none, b.saveAmounts(plenty, 1, 10, 1, 1))
		want := three
		want.Dispatched = 3
		same(b, "canary", want, b.canary())
		for target := reward.TargetID(1); target <= 3; target++ {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomePaid})
		}
		same(b, "nor before it is judged", none, b.dispatch(1, reward.Ready, 9))
	})
	run(t, open, "WhoWentBeforeGoesAgain", func(b *bundle) {
		b.bounded(1, 0, three)
		b.saveQueued(1, 5000, 5001, 5002)
		targets := firstTargets(store.BatchMax)
		b.saveReady(1, targets...) // all of them older than the rows that return
		b.finish(rules.Outcome{Ref: ref(1, 5002, 1), Kind: rules.OutcomeFailed, RetryAt: at(11)})
		n := must(b.PayoutReturn(b.ctx, store.PayoutReturnParams{
			Refs: []reward.Ref{ref(1, 5000, 1), ref(1, 5001, 1)}, Lease: lease, Now: at(12),
		}))(b)
		same(b, "given back", 2, n)
		same(b, "retried", []reward.TargetID{5002}, b.dispatch(1, reward.Retrying, 9))
		same(b, "the first of them", []reward.TargetID{5000}, b.dispatch(1, reward.Ready, 1))
		same(b, "named", []reward.TargetID{5001}, b.dispatch(1, reward.Ready, 9, ref(1, 1, 0), ref(1, 5001, 1), ref(1, 2, 0)))
		same(b, "no others", none, b.dispatch(1, reward.Ready, 9))
		same(b, "dispatched first", 3, b.canary().Dispatched)
	})
}

func exerciseJudge(t *testing.T, open Open) {
	judge := func(b *bundle) (reward.PromotionStatus, bool) {
		b.Helper()
		status, did, err := b.PromotionJudge(b.ctx, store.PromotionJudgeParams{ID: 1, Reason: hostile + "\x00", Now: at(50)})
		b.must(err)
		v := b.view(1)
		same(b, "status it returns", v.Status, status)
		return status, did
	}
	undecided := func(b *bundle, what string) {
		b.Helper()
		if status, did := judge(b); status != reward.Running || did {
			b.Fatalf("judged %s: %s, %v", what, status, did)
		}
	}
	three := reward.Canary{Targets: 3, MaxFailureRate: 0.5}
	run(t, open, "AGoodOneLetsTheOthersGo", func(b *bundle) {
		b.bounded(1, 0, three)
		undecided(b, "before anything")
		b.saveReady(1, 1, 2, 3, 4, 5)
		undecided(b, "before a dispatch")
		b.dispatch(1, reward.Ready, 9)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		undecided(b, "with QUEUED")
		b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(11)})
		b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeRefused})
		undecided(b, "with RETRYING")
		b.dispatch(1, reward.Retrying, 1)
		must(b.PayoutReturn(b.ctx, store.PayoutReturnParams{Refs: []reward.Ref{ref(1, 2, 2)}, MaybeCalled: true, Lease: lease, Now: at(21)}))(b)
		undecided(b, "with one that came back")
		same(b, "dispatched again", []reward.TargetID{2}, b.dispatch(1, reward.Ready, 9))
		b.finish(rules.Outcome{Ref: ref(1, 2, 3), Kind: rules.OutcomeNoLookup})
		undecided(b, "with UNKNOWN")
		b.settleLookups(store.PayoutSettleParams{Lookups: []rules.Lookup{{Ref: ref(1, 2, 3), Found: true}}, Now: at(40)})
		b.move(1, reward.Paused)
		status, did := judge(b)
		same(b, "a PAUSED one", []any{reward.Paused, false}, []any{status, did})
		b.move(1, reward.Running)
		status, did = judge(b)
		same(b, "decided", []any{reward.Running, true}, []any{status, did})
		undecided(b, "again")
		same(b, "the others", []reward.TargetID{4, 5}, b.dispatch(1, reward.Ready, 9))
		want := three
		want.Dispatched, want.Judged = 3, true
		same(b, "canary", want, b.canary())
		same(b, "saved after it", []reward.TargetID{9}, b.saveAmounts(plenty, 1, 9, 1))
		same(b, "canary, as before", want, b.canary())
	})
	run(t, open, "ABadOnePausesUntilSomebodyResumes", func(b *bundle) {
		b.bounded(1, 0, three)
		b.saveReady(1, 1, 2, 3, 4, 5)
		b.dispatch(1, reward.Ready, 9)
		for target, kind := range []rules.OutcomeKind{rules.OutcomePaid, rules.OutcomeRefused, rules.OutcomeRefused} {
			b.finish(rules.Outcome{Ref: ref(1, reward.TargetID(target+1), 1), Kind: kind})
		}
		status, did := judge(b)
		same(b, "bad", []any{reward.Paused, true}, []any{status, did})
		v := b.view(1)
		same(b, "reason", hostile, v.PauseReason)
		same(b, "judged", true, v.Canary.Judged)
		same(b, "others meanwhile", 0, len(b.dispatch(1, reward.Ready, 9)))
		b.move(1, reward.Running)
		undecided(b, "again")
		same(b, "the others", []reward.TargetID{4, 5}, b.dispatch(1, reward.Ready, 9))
	})
}

// exerciseBounds checks that budget and canary are never exceeded, however many
// workers dispatch, save, finish and judge at once.
func exerciseBounds(t *testing.T, open Open) {
	const workers, targets = 6, 300
	amount := func(target int) reward.Amount { return 1 + reward.Amount(target%17) }
	// busy lets workers save all targets of promotion 1 and dispatch them. It
	// calls also with the rows that each worker dispatched.
	busy := func(b *bundle, also func(worker int, got []reward.Payout) error) {
		b.Helper()
		b.must(together(workers, func(w int) error {
			for from := w * targets / workers; from < (w+1)*targets/workers; from += 10 {
				p := store.PayoutSaveParams{Now: epoch, MaxLen: 40 * (from / 10 % 2)}
				for target := from; target < from+10; target++ {
					r := row(1, reward.TargetID(target))
					r.Amount = amount(target)
					p.Rows = append(p.Rows, r)
				}
				res, err := b.PayoutSave(b.ctx, p)
				if err != nil {
					return err
				}
				list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 5 + w, MaxLen: plenty, Now: at(1)})
				if err != nil {
					return err
				}
				if err := also(w, append(res.Queued, list...)); err != nil {
					return err
				}
				v, err := b.PromotionGet(b.ctx, 1)
				if err != nil {
					return err
				}
				if v.MaxAmount > 0 && exposed(v.Counts) > v.MaxAmount {
					return fmt.Errorf("%d of a budget of %d are exposed", exposed(v.Counts), v.MaxAmount)
				}
				if c := v.Canary; c.Targets > 0 && !c.Judged && c.Dispatched > c.Targets {
					return fmt.Errorf("%d of a canary of %d were dispatched", c.Dispatched, c.Targets)
				}
			}
			return nil
		}))
		b.books(1)
	}
	run(t, open, "NobodyPassesTheBudget", func(b *bundle) {
		const budget = 500
		b.bounded(1, budget, reward.Canary{})
		busy(b, func(_ int, got []reward.Payout) error {
			outcomes := make([]rules.Outcome, 0, len(got))
			refs := make([]reward.Ref, 0, len(got))
			for _, p := range got {
				r := ref(1, p.TargetID, p.Dispatch)
				switch rand.IntN(4) {
				case 0:
					outcomes = append(outcomes, rules.Outcome{Ref: r, Kind: rules.OutcomePaid})
				case 1:
					outcomes = append(outcomes, rules.Outcome{Ref: r, Kind: rules.OutcomeRefused})
				case 2:
					refs = append(refs, r)
				}
			}
			if _, err := b.PayoutFinish(b.ctx, store.PayoutFinishParams{Outcomes: outcomes, Lease: lease, Now: at(2)}); err != nil {
				return err
			}
			_, err := b.PayoutReturn(b.ctx, store.PayoutReturnParams{Refs: refs, Lease: lease, Now: at(3)})
			return err
		})
		b.dispatch(1, reward.Ready, targets)
		v := b.view(1)
		if e := exposed(v.Counts); e > budget || (e <= budget-17 && v.Counts.Payouts[reward.Ready] > 0) {
			b.Fatalf("%d of a budget of %d are exposed in the end", e, budget)
		}
	})
	run(t, open, "NobodyPassesTheCanaryAndOneJudgesIt", func(b *bundle) {
		const canary = 25
		b.bounded(1, 0, reward.Canary{Targets: canary, MaxFailureRate: 1})
		var mu sync.Mutex // guards first, judged
		first, judged := make(map[reward.TargetID]bool), 0
		busy(b, func(_ int, got []reward.Payout) error {
			mu.Lock()
			for _, p := range got {
				if p.Dispatch == 1 && first[p.TargetID] {
					mu.Unlock()
					return fmt.Errorf("target %d was dispatched for the first time twice", p.TargetID)
				}
				first[p.TargetID] = true
			}
			mu.Unlock()
			outcomes := make([]rules.Outcome, 0, len(got))
			for _, p := range got {
				outcomes = append(outcomes, rules.Outcome{Ref: ref(1, p.TargetID, p.Dispatch), Kind: rules.OutcomePaid})
			}
			if _, err := b.PayoutFinish(b.ctx, store.PayoutFinishParams{Outcomes: outcomes, Lease: lease, Now: at(2)}); err != nil {
				return err
			}
			_, did, err := b.PromotionJudge(b.ctx, store.PromotionJudgeParams{ID: 1, Now: at(3)})
			if did {
				mu.Lock()
				judged++
				mu.Unlock()
			}
			return err
		})
		same(b, "judged", 1, judged)
		c := b.canary()
		same(b, "judged", true, c.Judged)
		if c.Dispatched > canary {
			b.Errorf("the canary of %d dispatched %d", canary, c.Dispatched)
		}
		b.dispatch(1, reward.Ready, targets)
		v := b.view(1)
		same(b, "held up after it", 0, v.Counts.Payouts[reward.Ready])
	})
}

func exerciseRetry(t *testing.T, open Open) {
	retry := func(b *bundle, code string) int {
		b.Helper()
		n := must(b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: 1, Code: code, Now: at(50)}))(b)
		b.books(1)
		return n
	}
	// failed makes a target FAILED, refused with a code.
	failed := func(b *bundle, target reward.TargetID, code string) {
		b.Helper()
		b.saveQueued(1, target)
		b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeRefused, Code: code, Message: "because"})
	}
	run(t, open, "ReopensWhatWasCompleted", func(b *bundle) {
		b.running(1)
		failed(b, 1, "A")
		moved := b.complete(1, 20)
		same(b, "completed", true, moved)
		gone := must(b.PromotionStreamDestroyed(b.ctx, 1, epoch))(b)
		same(b, "stream destroyed", true, gone)
		same(b, "nothing", 0, retry(b, "B"))
		v := b.view(1)
		same(b, "status", reward.Completed, v.Status)
		same(b, "finished", at(20), v.FinishedAt)
		same(b, "retried", 1, retry(b, "A"))
		v = b.view(1)
		same(b, "status", reward.Running, v.Status)
		same(b, "finished", time.Time{}, v.FinishedAt)
		same(b, "gone", false, v.StreamDestroyed)
	})
	run(t, open, "IsBoundedAndGoesByTarget", func(b *bundle) {
		b.running(1)
		b.running(2)
		var p store.PayoutFinishParams
		for from := 0; from < store.BatchMax+2; from += store.BatchMax {
			var targets []reward.TargetID
			p.Outcomes, p.Lease, p.Now = nil, lease, at(10)
			for target := from; target < min(from+store.BatchMax, store.BatchMax+2); target++ {
				targets = append(targets, reward.TargetID(target))
				p.Outcomes = append(p.Outcomes, rules.Outcome{Ref: ref(1, reward.TargetID(target), 1), Kind: rules.OutcomeRefused, Code: "A"})
			}
			b.saveQueued(1, targets...)
			must(b.PayoutFinish(b.ctx, p))(b)
		}
		b.saveQueued(2, 1)
		b.finish(rules.Outcome{Ref: ref(2, 1, 1), Kind: rules.OutcomeRefused, Code: "A"})
		same(b, "a full batch", store.BatchMax, retry(b, "A"))
		b.wantState(1, store.BatchMax-1, reward.Ready)
		b.wantState(1, store.BatchMax, reward.Failed)
		same(b, "the rest", 2, retry(b, ""))
		same(b, "no more", 0, retry(b, ""))
		b.wantState(2, 1, reward.Failed)
	})
	run(t, open, "EachIsRetriedByOneOfMany", func(b *bundle) {
		b.running(1)
		var p store.PayoutFinishParams
		var targets []reward.TargetID
		for target := range reward.TargetID(300) {
			targets = append(targets, target)
			p.Outcomes = append(p.Outcomes, rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeRefused})
		}
		p.Lease, p.Now = lease, at(10)
		b.saveQueued(1, targets...)
		must(b.PayoutFinish(b.ctx, p))(b)
		var mu sync.Mutex // guards moved
		moved := 0
		b.must(together(4, func(int) error {
			n, err := b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: 1, Now: at(50)})
			mu.Lock()
			moved += n
			mu.Unlock()
			if err == nil {
				_, err = b.PromotionComplete(b.ctx, 1, settleAfter, at(51))
			}
			return err
		}))
		same(b, "moved", 300, moved)
		b.books(1)
		v := b.view(1)
		same(b, "status", reward.Running, v.Status)
	})
}

func exerciseResolve(t *testing.T, open Open) {
	// unknown makes a target UNKNOWN at second 10, after an answer that counted.
	unknown := func(b *bundle, targets ...reward.TargetID) {
		b.Helper()
		b.saveQueued(1, targets...)
		for _, target := range targets {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeRefused, Sent: true, Code: "LIMIT", Message: "too much"})
			b.wantState(1, target, reward.Unknown)
		}
	}
	paid := func(target reward.TargetID) store.PayoutResolveParams {
		return store.PayoutResolveParams{
			PayoutID: store.PayoutID{PromotionID: 1, TargetID: target}, Paid: true, TransactionKey: "tx\x00" + hostile,
			Note: "seen in their books\x00", By: "kim", Now: at(50),
		}
	}
	run(t, open, "SettlesAsSomebodySaysAndKeepsWhoAndWhy", func(b *bundle) {
		b.running(1)
		unknown(b, 1, 2)
		want := b.payout(1, 1)
		want.State, want.DueAt, want.UpdatedAt = reward.Succeeded, at(50), at(50)
		want.TransactionKey, want.ErrorCode, want.ErrorMessage = "tx"+hostile, "", ""
		got := must(b.PayoutResolve(b.ctx, paid(1)))(b)
		same(b, "paid", want, got)
		same(b, "paid, as read", want, b.payout(1, 1))

		want = b.payout(1, 2)
		want.State, want.DueAt, want.UpdatedAt = reward.Failed, at(50), at(50)
		no := paid(2)
		no.Paid = false
		got = must(b.PayoutResolve(b.ctx, no))(b)
		same(b, "not paid", want, got)
		same(b, "what the provider said", "LIMIT", want.ErrorCode)
		same(b, "no key", "", want.TransactionKey)
		for target := reward.TargetID(1); target <= 2; target++ {
			p, attempts, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: target})
			b.must(err)
			same(b, "attempts", []reward.Attempt{
				{Dispatch: 1, At: at(50), Class: reward.AnswerResolved, Code: "kim", Message: "seen in their books"},
			}, attempts)
			same(b, "counted", 1, p.Attempts)
		}
		b.books(1)
		list := must(b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: 9, Until: at(9999), Now: at(5000)}))(b)
		same(b, "to look up", 0, len(list))
		moved := b.complete(1, 60)
		same(b, "completed", true, moved)
	})
	run(t, open, "OneOfManyResolves", func(b *bundle) {
		b.running(1)
		unknown(b, 1)
		var mu sync.Mutex // guards winners
		winners := 0
		b.must(together(6, func(w int) error {
			p := paid(1)
			p.Paid = w%2 == 0
			_, err := b.PayoutResolve(b.ctx, p)
			if err == nil {
				mu.Lock()
				winners++
				mu.Unlock()
			} else if reward.HasCode(err, reward.CodeIllegalState) {
				err = nil
			}
			return err
		}))
		same(b, "winners", 1, winners)
		b.books(1)
	})
}

// exerciseAgain checks the second lookup, after "not found" has decided a row.
func exerciseAgain(t *testing.T, open Open) {
	const after = 1000 * time.Second
	// settle writes lookups at a second.
	settle := func(b *bundle, seconds int, ls ...rules.Lookup) {
		b.Helper()
		b.settleLookups(store.PayoutSettleParams{
			Lookups: ls, SettleAfter: settleAfter, AgainAfter: after, Now: at(seconds),
		})
		b.books(1)
	}
	no := func(target reward.TargetID, began int) rules.Lookup {
		return rules.Lookup{Ref: ref(1, target, 1), NotFound: true, BeganAt: at(began), NextAt: at(began + 7)}
	}
	unknown := func(b *bundle, targets ...reward.TargetID) {
		b.Helper()
		b.running(1)
		b.saveQueued(1, targets...)
		for _, target := range targets {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeNoLookup})
		}
	}
	// decided makes targets FAILED at second 100. Their second lookup is due at
	// 1100.
	decided := func(b *bundle, targets ...reward.TargetID) {
		b.Helper()
		unknown(b, targets...)
		var ls []rules.Lookup
		for _, target := range targets {
			ls = append(ls, no(target, 90))
		}
		settle(b, 100, ls...)
	}
	take := func(b *bundle, seconds int) []reward.TargetID {
		b.Helper()
		list := must(b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: 9, Until: at(seconds + 50), Now: at(seconds)}))(b)
		for _, p := range list {
			same(b, "taken", b.payout(p.PromotionID, p.TargetID), p)
			same(b, "due", at(seconds+50), p.DueAt)
		}
		b.books(1)
		return targetsOf(list)
	}
	none := []reward.TargetID{}
	run(t, open, "OnceAndThatIsTheEnd", func(b *bundle) {
		decided(b, 1, 2)
		p := b.payout(1, 1)
		same(b, "state", reward.Failed, p.State)
		same(b, "due", at(1100), p.DueAt)
		same(b, "updated", at(100), p.UpdatedAt)
		same(b, "early", none, take(b, 1099))
		same(b, "due", []reward.TargetID{1, 2}, take(b, 1100))
		same(b, "held", none, take(b, 1149))
		same(b, "the holder died", []reward.TargetID{1, 2}, take(b, 1150))
		before := b.payout(1, 1)
		settle(b, 1160, no(1, 1155))
		same(b, "row", before, b.payout(1, 1))
		same(b, "the other", []reward.TargetID{2}, take(b, 9000))
		settle(b, 9010, no(2, 9005))
		same(b, "none", none, take(b, 99000))
	})
	run(t, open, "BesideWhatIsUnknown", func(b *bundle) {
		decided(b, 1, 2, 3)
		b.saveQueued(1, 4, 5)
		for _, target := range []reward.TargetID{4, 5} {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeNoLookup})
		}
		seen := make(map[reward.TargetID]int)
		for range 3 {
			list := must(b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: 2, Until: at(5000), Now: at(1100)}))(b)
			if len(list) > 2 {
				b.Fatalf("%d lookups were taken, more than the limit", len(list))
			}
			for _, p := range list {
				seen[p.TargetID]++
			}
		}
		same(b, "taken", map[reward.TargetID]int{1: 1, 2: 1, 3: 1, 4: 1, 5: 1}, seen)
	})
}

func exerciseCompare(t *testing.T, open Open) {
	run(t, open, "FindsNothingInGoodBooks", func(b *bundle) {
		_, err := b.SummaryCompare(b.ctx, 1, false)
		b.wantCode(err, reward.CodeNotFound)
		_, err = b.SummaryCompare(b.ctx, 1, true)
		b.wantCode(err, reward.CodeNotFound)
		b.running(1)
		b.running(2)
		compare := func() {
			b.Helper()
			v := b.view(1)
			for _, repair := range []bool{false, true} {
				c := b.compare(1, repair)
				same(b, "comparison", store.Comparison{Kept: v.Counts, Rows: v.Counts, Currency: v.Currency}, c)
			}
			b.books(1)
		}
		compare()
		b.saveQueued(1, 1, 2, 3, 4)
		b.saveReady(1, 5)
		b.saveQueued(2, 6)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(20)})
		compare()
	})
	run(t, open, "IsASnapshotWhoeverWrites", func(b *bundle) {
		b.running(1)
		targets := firstTargets(200)
		b.saveReady(1, targets...)
		b.must(together(4, func(w int) error {
			for n := range 12 {
				if w > 1 {
					c, err := b.SummaryCompare(b.ctx, 1, w == 3)
					if err != nil {
						return err
					}
					if c.Kept != c.Rows {
						return fmt.Errorf("%+v are stored, the rows have %+v", c.Kept, c.Rows)
					}
					continue
				}
				list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 9, MaxLen: plenty, Now: at(n)})
				if err != nil {
					return err
				}
				var p store.PayoutFinishParams
				for _, got := range list {
					p.Outcomes = append(p.Outcomes, rules.Outcome{
						Ref: ref(1, got.TargetID, got.Dispatch), Kind: kinds[rand.IntN(len(kinds))], RetryAt: at(20),
					})
				}
				p.Lease, p.Now = lease, at(10)
				if _, err := b.PayoutFinish(b.ctx, p); err != nil {
					return err
				}
			}
			return nil
		}))
		b.books(1)
	})
}
