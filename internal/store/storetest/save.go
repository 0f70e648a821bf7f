package storetest

import (
	"math"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

func exerciseSave(t *testing.T, open Open) {
	run(t, open, "AConflictHoldsTheOffsets", func(b *bundle) {
		b.running(1)
		offset := int64(0)
		next := func(stored bool, rows ...store.NewPayout) {
			b.Helper()
			want := map[int32]int64{4: offset}
			offset++
			if stored {
				want[4] = offset
			}
			must(b.PayoutSave(b.ctx, store.PayoutSaveParams{
				Rows: rows, Offsets: []store.Offset{{Topic: "topic", Partition: 4, Next: offset}}, MaxLen: plenty, Now: epoch,
			}))(b)
			offsets := must(b.OffsetsGet(b.ctx, "topic"))(b)
			same(b, "offsets", want, offsets)
			offset = want[4]
		}
		other := func(change func(r *store.NewPayout)) store.NewPayout {
			r := row(1, 1)
			change(&r)
			return r
		}
		next(true, row(1, 1), row(1, 2))
		next(true, row(1, 1)) // a duplicate
		next(false, row(1, 3), other(func(r *store.NewPayout) { r.Amount++ }))
		next(false, other(func(r *store.NewPayout) { r.UserID = "x" }))
		next(false, other(func(r *store.NewPayout) { r.VoucherCode = "x" }))
		next(false, row(1, 4), store.NewPayout{PromotionID: 1, TargetID: 4, Amount: 7}) // within the batch
		next(true, other(func(r *store.NewPayout) { r.SummaryID++ }))
		next(true)
		next(true, row(1, 4), row(1, 5), row(1, 5))
		b.books(1)
	})
	run(t, open, "KeepsHostileText", func(b *bundle) {
		b.draft(1)
		rows := []store.NewPayout{
			{PromotionID: 1, TargetID: 0, UserID: hostile, VoucherCode: hostile},
			{PromotionID: 1, TargetID: math.MaxInt64, UserID: strings.Repeat("長", 20_000), Amount: 1, SummaryID: math.MaxInt64},
			{PromotionID: 1, TargetID: 2, UserID: "", Amount: 2, VoucherCode: "NULL"},
		}
		res := must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: rows, MaxLen: 9, Now: epoch}))(b)
		same(b, "outcomes", []store.SaveOutcome{store.Accepted, store.Accepted, store.Accepted}, res.Outcomes)
		for _, r := range rows {
			same(b, "payout", reward.Payout{
				PromotionID: 1, TargetID: r.TargetID, SummaryID: r.SummaryID, UserID: r.UserID, Amount: r.Amount,
				VoucherCode: r.VoucherCode, State: reward.Ready, DueAt: epoch, UpdatedAt: epoch,
			}, b.payout(1, r.TargetID))
		}
		b.books(1)
	})
	run(t, open, "CarriesTraces", func(b *bundle) {
		b.running(1)
		const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		traced := row(1, 3)
		traced.Trace = trace
		res := must(b.PayoutSave(b.ctx, store.PayoutSaveParams{
			Rows: []store.NewPayout{row(1, 1), row(1, 1), row(1, 2), traced, row(1, 4)}, MaxLen: 3, Now: epoch,
		}))(b)
		var queued []string
		for _, p := range res.Queued {
			queued = append(queued, p.Trace)
		}
		same(b, "queued", []string{"", "", trace}, queued)
		for target, want := range map[reward.TargetID]string{1: "", 2: "", 3: trace, 4: ""} {
			same(b, "trace", want, b.payout(1, target).Trace)
		}
		// A known row keeps its trace, and another one makes no conflict.
		again, late := row(1, 3), row(1, 4)
		late.Trace = trace
		res = must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{again, late}, MaxLen: plenty, Now: epoch}))(b)
		same(b, "outcomes", []store.SaveOutcome{store.Duplicate, store.Duplicate}, res.Outcomes)
		same(b, "trace of 3", trace, b.payout(1, 3).Trace)
		same(b, "trace of 4", "", b.payout(1, 4).Trace)
		b.books(1)
	})
	run(t, open, "RefusesWhatCannotBeStoredAsAWhole", func(b *bundle) {
		b.running(1)
		for name, bad := range map[string]store.NewPayout{
			"nul":          {PromotionID: 1, TargetID: 2, UserID: "a\x00b"},
			"utf8":         {PromotionID: 1, TargetID: 2, VoucherCode: "\xff\xfe"},
			"amount":       {PromotionID: 1, TargetID: 2, Amount: -1},
			"target":       {PromotionID: 1, TargetID: -2},
			"summary":      {PromotionID: 1, TargetID: 2, SummaryID: -1},
			"trace":        {PromotionID: 1, TargetID: 2, Trace: strings.Repeat("x", store.TraceMax+1)},
			"nul in trace": {PromotionID: 1, TargetID: 2, Trace: "a\x00b"},
			"no promotion": {PromotionID: 0, TargetID: 2},
		} {
			_, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{
				Rows: []store.NewPayout{row(1, 1), bad}, Offsets: []store.Offset{{Topic: "t", Next: 5}}, Now: epoch,
			})
			if reward.KindOf(err) != reward.KindInvalid {
				b.Errorf("%s: error is %v, want kind invalid", name, err)
			}
		}
		_, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{
			Rows: []store.NewPayout{row(1, 1), row(99, 1)}, Offsets: []store.Offset{{Topic: "t", Next: 5}}, Now: epoch,
		})
		b.wantCode(err, reward.CodeNotFound)
		same(b, "rows", 0, len(b.all(1)))
		offsets := must(b.OffsetsGet(b.ctx, "t"))(b)
		same(b, "offsets", map[int32]int64{}, offsets)
		b.books(1)
	})
	run(t, open, "RefusesAmountsThatOutgrowTheirSum", func(b *bundle) {
		b.running(1)
		huge := func(target reward.TargetID) store.NewPayout {
			return store.NewPayout{PromotionID: 1, TargetID: target, Amount: math.MaxInt64}
		}
		overflows := func(err error) {
			b.Helper()
			if !reward.HasCode(err, reward.CodeAmountOverflow) || !strings.Contains(err.Error(), "promotion 1 would exceed 9223372036854775807 minor units: split") {
				b.Errorf("the error is %v", err)
			}
		}
		_, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{huge(1), huge(2)}, Now: epoch})
		overflows(err)
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{huge(1)}, Now: epoch}))(b)
		// The row is in another state, so that no sum of one state is too large.
		_, err = b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{huge(2)}, MaxLen: 1, Now: epoch})
		overflows(err)
		same(b, "rows", 1, len(b.all(1)))
		b.books(1)
	})
	run(t, open, "TellsRepeatsFromConflicts", func(b *bundle) {
		b.running(1)
		b.saveReady(1, 1, 2)
		otherAmount, otherUser, otherCode := row(1, 1), row(1, 1), row(1, 1)
		otherAmount.Amount++
		otherUser.UserID += "x"
		otherCode.VoucherCode = "V"
		otherSummary := row(1, 2)
		otherSummary.SummaryID = 9 // the comparison ignores the summary
		fresh, freshOther := row(1, 3), row(1, 3)
		freshOther.Amount = 1
		res := must(b.PayoutSave(b.ctx, store.PayoutSaveParams{
			Rows:   []store.NewPayout{row(1, 1), otherAmount, otherUser, otherCode, otherSummary, fresh, freshOther, fresh, otherAmount},
			MaxLen: plenty, Now: at(1),
		}))(b)
		same(b, "outcomes", []store.SaveOutcome{
			store.Duplicate, store.Conflict, store.Conflict, store.Conflict, store.Duplicate,
			store.Accepted, store.Conflict, store.Duplicate, store.Conflict,
		}, res.Outcomes)
		same(b, "queued", 1, len(res.Queued))
		same(b, "amount of 1", 101, b.payout(1, 1).Amount)
		same(b, "amount of 3", 103, b.payout(1, 3).Amount)
		b.books(1)
	})
	run(t, open, "QueuesWhatHasRoomInARunningOne", func(b *bundle) {
		b.running(1)
		res := b.save(3, 1, 5, 4, 3, 2, 1)
		want := make([]reward.Payout, 0, 3)
		for _, target := range []reward.TargetID{5, 4, 3} {
			r := row(1, target)
			want = append(want, reward.Payout{
				PromotionID: 1, TargetID: target, SummaryID: r.SummaryID, UserID: r.UserID, Amount: r.Amount,
				State: reward.Queued, Dispatch: 1, DueAt: epoch, FirstDispatchedAt: epoch, UpdatedAt: epoch,
			})
		}
		sortPayouts(want)
		sortPayouts(res.Queued)
		same(b, "queued", want, res.Queued)
		for _, w := range want {
			same(b, "row", w, b.payout(1, w.TargetID))
		}
		b.wantState(1, 2, reward.Ready)
		b.wantState(1, 1, reward.Ready)
		same(b, "no room left", 0, len(b.save(3, 1, 6).Queued))
		// Known targets use no capacity.
		same(b, "room for one", 1, len(b.save(4, 1, 1, 2, 3, 7, 8).Queued))
		b.wantState(1, 7, reward.Queued)
		v := b.view(1)
		same(b, "last dispatch", epoch, v.LastDispatchedAt)
		same(b, "stream destroyed", false, v.StreamDestroyed)
		b.books(1)
	})
	run(t, open, "OffsetsNeverGoBack", func(b *bundle) {
		save := func(offsets ...store.Offset) {
			b.Helper()
			must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Offsets: offsets, Now: epoch}))(b)
		}
		save(store.Offset{Topic: "t", Partition: 1, Next: 5}, store.Offset{Topic: "t", Partition: 0, Next: 9},
			store.Offset{Topic: "t", Partition: 1, Next: 7}, store.Offset{Topic: "t", Partition: 1, Next: 6})
		save(store.Offset{Topic: "t", Partition: 1, Next: 3}, store.Offset{Topic: "u", Partition: 1, Next: 0})
		offsets := must(b.OffsetsGet(b.ctx, "t"))(b)
		same(b, "offsets", map[int32]int64{0: 9, 1: 7}, offsets)
		offsets = must(b.OffsetsGet(b.ctx, "none"))(b)
		same(b, "of an unknown topic", map[int32]int64{}, offsets)
	})
}
