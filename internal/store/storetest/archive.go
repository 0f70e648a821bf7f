package storetest

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// completes ends a promotion at a time, if nothing of it is open, and destroys its
// stream.
func (b *bundle) completes(id reward.PromotionID, now time.Time) {
	b.Helper()
	fixture.Must(b.PromotionComplete(b.ctx, id, settleAfter, now))(b)
	v := b.view(id)
	if v.FinishedAt.IsZero() {
		return
	}
	must(b.PromotionStreamDestroyed(b.ctx, id, v.LastDispatchedAt))(b)
}

func (b *bundle) archive(id reward.PromotionID, before int) bool {
	b.Helper()
	return must(b.PromotionArchive(b.ctx, id, at(before), at(1000)))(b)
}

// forget removes payouts of a promotion that changed before a time, page by page, and
// returns how many.
func (b *bundle) forget(id reward.PromotionID, before, limit int) (removed int) {
	b.Helper()
	p := store.PayoutForgetParams{PromotionID: id, Limit: limit, Before: at(before)}
	for {
		page := must(b.PayoutForget(b.ctx, p))(b)
		removed += page.Removed
		if page.Removed > limit {
			b.Fatalf("a page of %d removed %d payouts", limit, page.Removed)
		}
		if p.After = page.Last; p.After == nil {
			return removed
		}
	}
}

func (b *bundle) endedIDs(before, limit int) []reward.PromotionID {
	b.Helper()
	ids := []reward.PromotionID{}
	var last store.EndedPromotion
	for {
		page := must(b.PromotionEnded(b.ctx, at(before), last, limit))(b)
		for _, p := range page {
			last = p
			ids = append(ids, p.ID)
		}
		if len(page) < limit {
			return ids
		}
	}
}

// paid pays targets of a promotion that are QUEUED under their first dispatch.
func (b *bundle) paid(id reward.PromotionID, targets ...reward.TargetID) {
	b.Helper()
	for _, target := range targets {
		o := rules.Outcome{Ref: ref(id, target, 1), Kind: rules.OutcomePaid, TransactionKey: "t"}
		o.Attempts = []reward.Attempt{{At: at(9), Dispatch: 1, Class: reward.AnswerPaid}}
		b.finish(o)
	}
}

func exerciseArchive(t *testing.T, open Open) {
	run(t, open, "OnlyWhatIsOver", func(b *bundle) {
		for id := reward.PromotionID(1); id <= 9; id++ {
			b.running(id)
			b.saveQueued(id, 1, 2)
		}
		for id := reward.PromotionID(2); id <= 9; id++ {
			b.paid(id, 1)
		}
		b.finish(rules.Outcome{Ref: ref(2, 2, 1), Kind: rules.OutcomeNoLookup})
		for id := reward.PromotionID(3); id <= 8; id++ {
			b.paid(id, 2)
		}
		b.completes(2, at(20))                                      // one is UNKNOWN
		must(b.PromotionComplete(b.ctx, 3, settleAfter, at(20)))(b) // its stream exists
		b.completes(4, at(60))                                      // not long enough ago
		b.completes(5, at(20))
		b.must(b.UploadOpen(b.ctx, store.Upload{ID: 7, PromotionID: 5, CreatedAt: at(990), LeasedUntil: at(1010)}))
		b.completes(6, at(30))
		b.completes(7, at(20))
		b.saveReady(7, 9) // RUNNING again
		b.completes(8, at(20))
		b.move(9, reward.PromotionCancelled) // not finished
		b.draft(10)
		for id := reward.PromotionID(1); id <= 11; id++ {
			if got, want := b.archive(id, 50), id == 6 || id == 8; got != want {
				b.Errorf("promotion %d: archived %v, want %v", id, got, want)
			}
			if b.archive(id, 50) {
				b.Errorf("promotion %d is archived twice", id)
			}
		}
		for id := reward.PromotionID(1); id <= 9; id++ {
			b.books(id) // what is not archived is as it was
		}
		same(b, "ended", []reward.PromotionID{2, 3, 5, 8, 6}, b.endedIDs(50, 2))
		v := b.view(6)
		same(b, "archived at", at(1000), v.ArchivedAt)
		b.save(0, 5, 3)
		b.saveQueued(9) // nothing
		v = b.view(5)
		same(b, "status with a new target", reward.Running, v.Status)
	})
	run(t, open, "ForgetsRefusedLines", func(b *bundle) {
		lines := []store.LineError{{Line: 2, Code: "BAD_USER", Detail: "ann", Cells: []string{"ann", "1"}}, {Line: 4, Code: "BAD_USER"}, {Line: 6, Code: "BAD_USER"}}
		for id := reward.PromotionID(1); id <= 3; id++ {
			b.running(id)
			b.saveQueued(id, 1)
			b.paid(id, 1)
			b.must(b.UploadOpen(b.ctx, store.Upload{ID: int64(id), PromotionID: id, CreatedAt: at(5), LeasedUntil: at(10)}))
			b.must(b.UploadAddErrors(b.ctx, int64(id), lines))
			b.completes(id, at(20))
		}
		b.archive(1, 50)
		b.archive(2, 50)
		same(b, "removed", 4, b.forget(1, 50, 2))
		same(b, "removed of one that is not archived", 0, b.forget(3, 50, 2))
		for id, want := range []int{0, 3, 3} {
			same(b, "refused lines", want, len(must(b.UploadErrors(b.ctx, int64(id+1), 0, 10))(b)))
		}
		same(b, "removed again", 0, b.forget(1, 50, 2))
		same(b, "ended", []reward.PromotionID{2, 3}, b.endedIDs(50, 2))
	})
	run(t, open, "TakesNothingAnyMore", func(b *bundle) {
		for id := reward.PromotionID(1); id <= 2; id++ {
			b.running(id)
			b.saveQueued(id, 0, 1, 2, 3, 4)
			b.paid(id, 0, 1, 2, 3)
			b.finish(rules.Outcome{Ref: ref(id, 4, 1), Kind: rules.OutcomeRefused, Code: "NO"})
			b.completes(id, at(20))
		}
		if !b.archive(1, 50) {
			b.Fatal("the promotion is not archived")
		}
		before := b.view(1)
		for _, removed := range []int{0, 5, 0} {
			known := store.Duplicate
			if removed > 0 || len(b.all(1)) == 0 {
				same(b, "removed", removed, b.forget(1, 50, 2))
				known = store.Archived
			}
			res := must(b.PayoutSave(b.ctx, store.PayoutSaveParams{
				Rows: []store.NewPayout{row(1, 1), row(1, 77), row(2, 77)}, MaxLen: plenty, Now: at(30),
				Offsets: []store.Offset{{Topic: "log", Partition: 0, Next: 5}}, DeadLetters: []reward.DeadLetter{{Source: "s", Offset: "1", At: at(1)}},
			}))(b)
			fresh := store.Accepted
			if removed > 0 || known == store.Archived {
				fresh = store.Duplicate // of the other promotion, from the save before
			}
			same(b, "outcomes", []store.SaveOutcome{known, store.Archived, fresh}, res.Outcomes)
			offsets := must(b.OffsetsGet(b.ctx, "log"))(b)
			same(b, "offsets", 0, len(offsets))
			_, err := b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: 1, Now: at(40)})
			b.wantCode(err, reward.CodeArchived)
			_, err = b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: 1, Targets: []reward.TargetID{4}, Now: at(40)})
			b.wantCode(err, reward.CodeArchived)
			for _, repair := range []bool{false, true} {
				c := b.compare(1, repair)
				same(b, "compared", c.Kept, c.Rows)
			}
			after := b.view(1)
			same(b, "the promotion", before, after)
		}
		_, _, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: 1})
		b.wantCode(err, reward.CodePayoutNotFound)
		history := must(b.PayoutHistory(b.ctx, "u1", 10))(b)
		same(b, "history", 1, len(history))
		same(b, "promotions with payouts", []reward.PromotionID{}, b.endedIDs(50, 10)) // the other one is RUNNING again
		b.books(2)
		same(b, "of a promotion that is not archived", 0, b.forget(2, 50, 2))
	})
	run(t, open, "WhatMayStillChangeStays", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2, 3)
		b.paid(1, 1)
		for target := reward.TargetID(2); target <= 3; target++ {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeNoLookup})
		}
		b.settleLookups(store.PayoutSettleParams{
			Lookups:     []rules.Lookup{{Ref: ref(1, 2, 1), NotFound: true, BeganAt: at(100), NextAt: at(110)}},
			SettleAfter: settleAfter, AgainAfter: time.Hour, Now: at(101),
		})
		must(b.PayoutResolve(b.ctx, store.PayoutResolveParams{PayoutID: store.PayoutID{PromotionID: 1, TargetID: 3}, By: "kim", Now: at(400)}))(b)
		b.completes(1, at(20))
		if !b.archive(1, 300) {
			b.Fatal("the promotion is not archived")
		}
		same(b, "removed", 1, b.forget(1, 300, 10))
		b.wantState(1, 2, reward.Failed) // it is looked up once more
		b.wantState(1, 3, reward.Failed) // a person has just decided it
		b.settleLookups(store.PayoutSettleParams{
			Lookups:     []rules.Lookup{{Ref: ref(1, 2, 1), Found: true, TransactionKey: "late", BeganAt: at(450), NextAt: at(460)}},
			SettleAfter: settleAfter, Now: at(451),
		})
		v := b.view(1)
		same(b, "succeeded", 2, v.Counts.Payouts[reward.Succeeded])
		same(b, "failed", 1, v.Counts.Payouts[reward.Failed])
		same(b, "removed later", 1, b.forget(1, 440, 10))
		same(b, "with payouts", []reward.PromotionID{1}, b.endedIDs(440, 10))
		same(b, "removed at last", 1, b.forget(1, 500, 10))
		same(b, "with payouts", []reward.PromotionID{}, b.endedIDs(500, 10))
	})
	run(t, open, "SavesAtTheSameTime", func(b *bundle) {
		for id := reward.PromotionID(1); id <= 20; id++ {
			b.running(id)
			b.saveQueued(id, 1)
			b.paid(id, 1)
			b.completes(id, at(20))
			var archived bool
			var res store.PayoutSaveResult
			var errs [2]error
			var both sync.WaitGroup
			both.Go(func() { archived, errs[0] = b.PromotionArchive(b.ctx, id, at(50), at(1000)) })
			both.Go(func() {
				res, errs[1] = b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(id, 2)}, MaxLen: plenty, Now: at(30)})
			})
			both.Wait()
			b.must(errs[0])
			b.must(errs[1])
			if want := map[bool]store.SaveOutcome{true: store.Archived, false: store.Accepted}[archived]; res.Outcomes[0] != want {
				b.Fatalf("archived: %v, and the outcome of the target is %d", archived, res.Outcomes[0])
			}
			b.books(id)
		}
	})
	run(t, open, "NobodyIsPaidTwice", func(b *bundle) {
		for seed := range uint64(12) {
			b.repeats(reward.PromotionID(seed+1), rand.New(rand.NewPCG(seed, 21)))
		}
	})
}

// repeats sends the targets of a promotion again and again, while it is paid, ends, is
// archived and loses its payouts. The provider has forgotten every key, so each call
// would pay: no target may be called twice.
func (b *bundle) repeats(id reward.PromotionID, random *rand.Rand) {
	const targets = 6
	b.running(id)
	calls := make(map[reward.TargetID]int)
	amount := reward.Amount(0)
	call := func(list []reward.Payout) {
		for _, p := range list {
			calls[p.TargetID]++
			if calls[p.TargetID] > 1 {
				b.Fatalf("promotion %d: target %d is paid twice", id, p.TargetID)
			}
			amount += p.Amount
			b.finish(rules.Outcome{Ref: p.Ref(), Kind: rules.OutcomePaid, TransactionKey: "t"})
		}
	}
	archived := false
	for now := 20; now < 60; now++ {
		switch random.IntN(6) {
		case 0, 1:
			rows := []store.NewPayout{row(id, reward.TargetID(random.IntN(targets))), row(id, reward.TargetID(random.IntN(targets)))}
			res, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: rows, MaxLen: random.IntN(2) * plenty, Now: at(now)})
			b.must(err)
			call(res.Queued)
		case 2:
			list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: id, From: reward.Ready, Limit: 3, MaxLen: plenty, Now: at(now)})
			b.must(err)
			call(list)
		case 3:
			b.completes(id, at(now))
		case 4:
			archived = b.archive(id, now) || archived
		case 5:
			b.forget(id, now, 1+random.IntN(3))
		}
		v := b.view(id)
		same(b, "paid", int64(len(calls)), v.Counts.Payouts[reward.Succeeded])
		same(b, "amount", amount, v.Counts.Amounts[reward.Succeeded])
		same(b, "archived", archived, !v.ArchivedAt.IsZero())
		if !archived {
			b.books(id)
		}
	}
}
