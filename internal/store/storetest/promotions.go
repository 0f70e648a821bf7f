package storetest

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const hostile = "O'Brien \"; DROP TABLE payouts; -- \\ 🎁 \u202e 한국어 {$1} %s ?"

func exercisePromotions(t *testing.T, open Open) {
	run(t, open, "CreateKeepsEveryField", func(b *bundle) {
		want := reward.Promotion{
			ID: 1<<63 - 1, Name: hostile, Type: reward.Voucher, Status: reward.Draft, Amount: 7, VoucherCode: hostile,
			Currency: "KRW", MaxRetries: 2, ConsumersPerInstance: 3, RatePerSecond: 1 << 30, Weight: 1 << 30,
			MaxAmount: 1<<63 - 1, Canary: reward.Canary{Targets: 1<<63 - 1, MaxFailureRate: 0.07}, StartsAt: at(7), EndsAt: at(8), Notes: hostile,
			WebhookURL: hostile, Metadata: reward.NewMetadata(map[string]string{hostile: hostile}), Version: 1,
			CreatedBy: hostile, CreatedAt: epoch, StreamDestroyed: true, Revision: rules.FirstRevision(epoch),
		}
		given := want
		given.Version = 7 // the store ignores this
		given.Status, given.StreamDestroyed = reward.Running, false
		given.Canary.Dispatched, given.Canary.Judged, given.ApprovedBy = 5, true, "lee" // the store ignores these
		made := must(b.PromotionCreate(b.ctx, given))(b)
		same(b, "made", want, made)
		v := b.view(want.ID)
		same(b, "read", store.PromotionView{Promotion: want}, v)
	})
	run(t, open, "CreateRefusesKnownIDsAndBadFields", func(b *bundle) {
		b.draft(1)
		_, err := b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, CreatedAt: epoch})
		b.wantCode(err, reward.CodeExists)
		_, err = b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Voucher, CreatedAt: epoch})
		b.wantCode(err, reward.CodeTypeMismatch)
		for _, p := range []reward.Promotion{
			{ID: 0, Type: reward.Point},
			{ID: 2, Type: reward.Point, Amount: -1},
			{ID: 2, Type: reward.Point, ConsumersPerInstance: -1},
			{ID: 2, Type: reward.Point, ConsumersPerInstance: 1<<30 + 1},
			{ID: 2, Type: reward.Point, RatePerSecond: -1},
			{ID: 2, Type: reward.Point, RatePerSecond: 1<<30 + 1},
			{ID: 2, Type: reward.Point, Weight: -1},
			{ID: 2, Type: reward.Point, Weight: 1<<30 + 1},
			{ID: 2, Type: reward.Point, MaxAmount: -1},
			{ID: 2, Type: reward.Point, Canary: reward.Canary{Targets: -1}},
			{ID: 2, Type: reward.Point, Canary: reward.Canary{MaxFailureRate: -0.01}},
			{ID: 2, Type: reward.Point, Canary: reward.Canary{MaxFailureRate: 1.01}},
			{ID: 2, Type: reward.Point, Canary: reward.Canary{MaxFailureRate: math.NaN()}},
			{ID: 2, Type: reward.Point, WebhookURL: "nul\x00"},
			{ID: 2, Type: reward.Point, CreatedBy: "\xff"},
			{ID: 2, Type: reward.Point, Name: "nul\x00"},
			{ID: 2, Type: reward.Point, Currency: "\xff"},
		} {
			_, err = b.PromotionCreate(b.ctx, p)
			b.wantCode(err, reward.CodeInvalid)
		}
		v := b.view(1)
		same(b, "name", "summer", v.Name)
	})
	run(t, open, "TheActiveListIsTheCallersOwn", func(b *bundle) {
		two := int64(2)
		_, err := b.PromotionRegister(b.ctx, []store.Registration{
			{ID: 1, Type: reward.Point, Started: true, ExpectedCount: &two}, {ID: 2, Type: reward.Voucher, Started: true},
		}, reward.Limits{}, epoch)
		b.must(err)
		list := must(b.PromotionActive(b.ctx))(b)
		clear(list)
		list, err = b.PromotionActive(b.ctx)
		b.must(err)
		same(b, "first", reward.PromotionID(1), list[0].ID)
		same(b, "expected of the first", &two, list[0].ExpectedCount)
		same(b, "second", reward.PromotionID(2), list[1].ID)
		same(b, "expected of the second", (*int64)(nil), list[1].ExpectedCount)
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		if _, err = b.PromotionActive(ctx); !errors.Is(err, context.Canceled) {
			b.Fatalf("error is %v, want context.Canceled", err)
		}
		list = must(b.PromotionActive(b.ctx))(b)
		same(b, "after a caller who left", 2, len(list))
	})
	// A driver may cache its latest result. Every change must invalidate it.
	run(t, open, "TheActiveListFollowsEveryChange", func(b *bundle) {
		list := func() []store.PromotionView {
			b.Helper()
			list := must(b.PromotionActive(b.ctx))(b)
			for _, v := range list {
				same(b, "promotion "+v.ID.String(), b.asRead(v.ID), v)
			}
			return list
		}
		same(b, "nothing", 0, len(list()))
		b.running(1)
		b.running(2)
		same(b, "two run", 2, len(list()))
		b.saveReady(1, 1, 2)
		same(b, "ready", int64(2), list()[0].Counts.Payouts[reward.Ready])
		same(b, "ready, asked again", int64(2), list()[0].Counts.Payouts[reward.Ready])
		b.saveQueued(1, 3)
		same(b, "queued", int64(1), list()[0].Counts.Payouts[reward.Queued])
		b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomePaid})
		same(b, "paid", int64(1), list()[0].Counts.Payouts[reward.Succeeded])
		b.move(1, reward.Paused)
		same(b, "paused", reward.Paused, list()[0].Status)
		b.move(1, reward.Running)
		same(b, "resumed", reward.Running, list()[0].Status)
		must(b.PromotionClose(b.ctx, 2))(b)
		same(b, "closed", true, list()[1].Closed)
		b.move(2, reward.PromotionCancelled)
		b.complete(2, 20)
		same(b, "over", false, list()[1].FinishedAt.IsZero())
		must(b.PromotionStreamDestroyed(b.ctx, 2, time.Time{}))(b)
		same(b, "one is left", 1, len(list()))
	})
	run(t, open, "ActiveIsWhatNeedsCare", func(b *bundle) {
		active := func() []reward.PromotionID {
			b.Helper()
			list := must(b.PromotionActive(b.ctx))(b)
			ids := []reward.PromotionID{}
			for _, v := range list {
				ids = append(ids, v.ID)
			}
			return ids
		}
		b.draft(1) // not active
		b.running(3)
		b.running(2)
		b.draft(4)
		b.move(4, reward.PromotionCancelled) // active until it is finished
		b.running(5)
		b.saveQueued(5, 1)
		b.move(5, reward.Paused) // its stream exists
		same(b, "active", []reward.PromotionID{2, 3, 4, 5}, active())

		moved := b.complete(4, 2)
		same(b, "4 finished", true, moved)
		moved = b.complete(2, 2)
		same(b, "2 completed", true, moved)
		same(b, "active", []reward.PromotionID{2, 3, 5}, active())
		gone := must(b.PromotionStreamDestroyed(b.ctx, 2, time.Time{}))(b)
		same(b, "stream of 2 destroyed", true, gone)
		same(b, "active", []reward.PromotionID{3, 5}, active())
	})
	run(t, open, "StreamGoneNamesTheLastDispatch", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1)
		gone := func(last time.Time) bool {
			b.Helper()
			return must(b.PromotionStreamDestroyed(b.ctx, 1, last))(b)
		}
		same(b, "of a running one", false, gone(epoch))
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		if moved, err := b.PromotionComplete(b.ctx, 1, settleAfter, at(20)); err != nil || !moved {
			b.Fatalf("completed: %v, %v", moved, err)
		}
		same(b, "with another time", false, gone(at(1)))
		same(b, "with no time", false, gone(time.Time{}))
		same(b, "with its time", true, gone(epoch))
		same(b, "again", false, gone(epoch))

		// New rows make the promotion RUNNING again, and its stream exists again.
		res := must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(1, 2)}, MaxLen: 9, Now: at(30)}))(b)
		same(b, "queued of a completed one", 0, len(res.Queued))
		v := b.view(1)
		same(b, "status", reward.Running, v.Status)
		same(b, "finished", time.Time{}, v.FinishedAt)
		same(b, "gone", false, v.StreamDestroyed)
	})
	run(t, open, "DeleteTakesADraftWithEverything", func(b *bundle) {
		b.draft(1)
		b.saveReady(1, 1, 2, 3)
		b.must(b.UploadOpen(b.ctx, store.Upload{ID: 7, PromotionID: 1, LeasedUntil: at(60), CreatedAt: epoch}))
		b.must(b.UploadAddErrors(b.ctx, 7, []store.LineError{{Line: 1, Code: "MALFORMED"}}))
		b.must(b.PromotionDelete(b.ctx, 1))
		_, err := b.PromotionGet(b.ctx, 1)
		b.wantCode(err, reward.CodeNotFound)
		_, err = b.UploadGet(b.ctx, 1, 7)
		b.wantCode(err, reward.CodeUploadNotFound)
		b.wantCode(b.PromotionDelete(b.ctx, 1), reward.CodeNotFound)

		b.running(1) // the ID is free, and no row of the old promotion is left
		b.books(1)
		same(b, "rows", 0, len(b.all(1)))
		b.wantCode(b.PromotionDelete(b.ctx, 1), reward.CodeIllegalState)
	})
}

func exerciseRegistrations(t *testing.T, open Open) {
	count := func(n int64) *int64 { return &n }
	run(t, open, "ARecordMakesADraftAndAStartRunsItOnce", func(b *bundle) {
		register := func(now time.Time, rs ...store.Registration) []reward.Promotion {
			b.Helper()
			list := must(b.PromotionRegister(b.ctx, rs, reward.Limits{}, now))(b)
			same(b, "results", len(rs), len(list))
			return list
		}
		draft := reward.Promotion{
			ID: 7, Type: reward.Point, Status: reward.Draft, MaxRetries: reward.MaxRetries, Weight: 1, Version: 1, Registered: true,
			CreatedAt: epoch, StreamDestroyed: true, Revision: rules.FirstRevision(epoch),
		}
		same(b, "registered", []reward.Promotion{draft}, register(epoch, store.Registration{ID: 7, Type: reward.Point}))
		same(b, "again", []reward.Promotion{draft}, register(at(5), store.Registration{ID: 7, Type: reward.Point}))

		started := draft
		started.Status, started.StartedAt, started.ExpectedCount, started.StreamDestroyed = reward.Running, at(6), count(10), false
		start := store.Registration{ID: 7, Type: reward.Point, Started: true, ExpectedCount: count(10)}
		same(b, "started", []reward.Promotion{started}, register(at(6), start))
		start.ExpectedCount = count(99)
		same(b, "started again", []reward.Promotion{started, started}, register(at(7), start, start))
		same(b, "no start of another type", []reward.Promotion{started},
			register(at(8), store.Registration{ID: 7, Type: reward.Voucher, Started: true}))

		b.move(7, reward.PromotionCancelled)
		same(b, "not revived", reward.PromotionCancelled, register(at(9), start)[0].Status)
	})
	run(t, open, "ABatchKnowsManyAndTheFirstTypeCounts", func(b *bundle) {
		b.draft(3)
		list := must(b.PromotionRegister(b.ctx, []store.Registration{
			{ID: 9, Type: reward.Voucher, Started: true, ExpectedCount: count(2)},
			{ID: 8, Type: reward.Point},
			{ID: 9, Type: reward.Point},
			{ID: 3, Type: reward.Voucher, Started: true},
			{ID: 8, Type: reward.Point, Started: true},
			{ID: 3, Type: reward.Point, Started: true, ExpectedCount: count(4)},
		}, reward.Limits{}, epoch))(b)
		var got []string
		for _, p := range list {
			got = append(got, p.ID.String()+" "+string(p.Type)+" "+string(p.Status))
		}
		same(b, "results", []string{
			"9 VOUCHER RUNNING", "8 POINT RUNNING", "9 VOUCHER RUNNING", "3 POINT RUNNING", "8 POINT RUNNING", "3 POINT RUNNING",
		}, got)
		same(b, "expected of 3", *count(4), *list[5].ExpectedCount)
		list = must(b.PromotionRegister(b.ctx, nil, reward.Limits{}, epoch))(b)
		same(b, "nothing", 0, len(list))
	})
	run(t, open, "CreateCompletesARegisteredDraftOnce", func(b *bundle) {
		must(b.PromotionRegister(b.ctx, []store.Registration{
			{ID: 7, Type: reward.Point},
			{ID: 8, Type: reward.Point, Started: true, ExpectedCount: count(10)},
		}, reward.Limits{}, epoch))(b)
		_, err := b.PromotionCreate(b.ctx, reward.Promotion{ID: 7, Type: reward.Voucher, CreatedAt: at(1)})
		b.wantCode(err, reward.CodeTypeMismatch)
		want := reward.Promotion{
			ID: 7, Name: "autumn", Type: reward.Point, Status: reward.Draft, Amount: 5, Currency: "KRW", MaxRetries: 1,
			ConsumersPerInstance: 2, RatePerSecond: 6, Weight: 7, MaxAmount: 8, Canary: reward.Canary{Targets: 9, MaxFailureRate: 0.5},
			StartsAt: at(7), EndsAt: at(8), Notes: "n", WebhookURL: "https://hook", Metadata: `{"season":"autumn"}`, Version: 2, CreatedBy: "kim",
			CreatedAt: epoch, StreamDestroyed: true, Revision: rules.FirstRevision(epoch) + 1,
		}
		given := want
		given.CreatedAt = at(1)
		p := must(b.PromotionCreate(b.ctx, given))(b)
		same(b, "completed", want, p)
		v := b.view(7)
		same(b, "read", want, v.Promotion)
		for _, id := range []reward.PromotionID{7, 8} { // COMPLETED already; RUNNING already
			_, err = b.PromotionCreate(b.ctx, reward.Promotion{ID: id, Name: "again", Type: reward.Point, CreatedAt: at(1)})
			b.wantCode(err, reward.CodeExists)
		}
	})
}

func exerciseCompletion(t *testing.T, open Open) {
	run(t, open, "ARepeatDoesNotReopen", func(b *bundle) {
		_, err := b.PromotionComplete(b.ctx, 1, settleAfter, at(20))
		b.wantCode(err, reward.CodeNotFound)
		b.running(1)
		b.saveQueued(1, 1)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		completed := b.complete(1, 20)
		same(b, "completed", true, completed)
		res := b.save(plenty, 1, 1)
		same(b, "outcome", []store.SaveOutcome{store.Duplicate}, res.Outcomes)
		same(b, "status", reward.Completed, b.asRead(1).Status)
	})
	run(t, open, "AnOpenUploadComesFirst", func(b *bundle) {
		b.running(1)
		clock := must(b.Clock(b.ctx))(b)
		u := store.Upload{ID: 7, PromotionID: 1, LeasedUntil: clock.Add(time.Minute), CreatedAt: epoch}
		b.must(b.UploadOpen(b.ctx, u))
		end := func(now time.Time) bool {
			b.Helper()
			return must(b.PromotionComplete(b.ctx, 1, settleAfter, now))(b)
		}
		same(b, "completed during an upload", false, end(clock))
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(1, 1)}, Now: epoch}))(b)
		same(b, "completed with a target", false, end(clock.Add(time.Hour)))
		b.dispatch(1, reward.Ready, 1)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		same(b, "completed after its lease", true, end(clock.Add(time.Hour)))
		b.running(2)
		u.ID, u.PromotionID = 8, 2
		b.must(b.UploadOpen(b.ctx, u))
		b.must(b.UploadClose(b.ctx, u, at(5)))
		same(b, "completed after the upload", true, must(b.PromotionComplete(b.ctx, 2, settleAfter, clock))(b))
	})
	run(t, open, "ACancelledOneWaitsForLookups", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1)
		b.move(1, reward.PromotionCancelled)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeNoAnswer}) // UNKNOWN at 10, with a lease until 25
		same(b, "finished before a lookup", false, b.complete(1, 900))
		look := func(began time.Time) {
			b.settleLookups(store.PayoutSettleParams{Lookups: []rules.Lookup{{Ref: ref(1, 1, 1), BeganAt: began, NextAt: at(999)}}, SettleAfter: settleAfter, Now: at(900)})
		}
		from := b.payout(1, 1).SettleFrom.Add(settleAfter)
		look(from.Add(-time.Microsecond))
		same(b, "finished after an early lookup", false, b.complete(1, 900))
		look(from)
		same(b, "finished after a lookup", true, b.complete(1, 900))
		same(b, "finished", at(900), b.view(1).FinishedAt)
	})
}
