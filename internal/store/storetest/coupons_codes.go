package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// beginImport opens an import at second 0.
func (b *bundle) beginImport(id reward.TemplateID, importID int64) {
	b.Helper()
	b.must(b.CodesBegin(b.ctx, id, importID, at(0)))
}

// stage adds codes to an import that has so many already.
func (b *bundle) stage(id reward.TemplateID, importID, staged int64, codes ...string) (store.TakenCode, error) {
	b.Helper()
	return b.CodesStage(b.ctx, store.CodesStageParams{TemplateID: id, ImportID: importID, Staged: staged, Codes: codes, Now: at(0)})
}

// staged adds codes, none of which is taken.
func (b *bundle) staged(id reward.TemplateID, importID, staged int64, codes ...string) {
	b.Helper()
	taken := must(b.stage(id, importID, staged, codes...))(b)
	same(b, "taken", store.TakenCode{At: -1}, taken)
}

// imports gives codes to a template.
func (b *bundle) imports(id reward.TemplateID, importID int64, codes ...string) {
	b.Helper()
	b.beginImport(id, importID)
	b.staged(id, importID, 0, codes...)
	must(b.CodesPublish(b.ctx, id, importID, int64(len(codes)), 0))(b)
}

// codesOf returns the codes of a template's coupons, by coupon ID.
func (b *bundle) codesOf(id reward.TemplateID) []string { //nolint:unparam // reads better
	b.Helper()
	list := b.coupons(id)
	slices.SortFunc(list, func(a, b reward.Coupon) int { return int(a.ID - b.ID) })
	codes := []string{}
	for _, c := range list {
		codes = append(codes, c.Code)
	}
	return codes
}

func exerciseCodes(t *testing.T, open Open) {
	run(t, open, "AnImportIsWholeOrNothing", func(b *bundle) {
		b.template(1, quantity(3))
		b.wantCode(b.CodesBegin(b.ctx, 9, 1, at(0)), reward.CodeTemplateNotFound)
		b.beginImport(1, 10)
		b.staged(1, 10, 0, "A", "B")
		for _, codes := range [][]string{{"C", "A"}, {"B", "C", "A"}} {
			taken := must(b.stage(1, 10, 2, codes...))(b)
			same(b, "a repeat in the file", store.TakenCode{At: slices.IndexFunc(codes, func(s string) bool { return s != "C" })}, taken)
		}
		for _, wrong := range []int64{0, 1, 3} {
			_, err := b.stage(1, 10, wrong, "D")
			b.wantCode(err, reward.CodeConflict)
		}
		_, err := b.stage(2, 10, 2, "D") // of another template
		b.wantCode(err, reward.CodeConflict)
		before := b.stands(1)
		_, err = b.CodesPublish(b.ctx, 1, 10, 2, 0)
		b.wantCode(err, reward.CodeCodesExhausted)
		_, err = b.CodesPublish(b.ctx, 1, 10, 3, 0)
		b.wantCode(err, reward.CodeConflict)
		_, err = b.CodesPublish(b.ctx, 9, 10, 2, 0)
		b.wantCode(err, reward.CodeTemplateNotFound)
		same(b, "before the end of the import", before, b.stands(1))
		b.staged(1, 10, 2, "C")
		change := must(b.CodesPublish(b.ctx, 1, 10, 3, 0))(b)
		want := before
		want.CodesImported, want.Version = 3, before.Version+1
		same(b, "change", store.CouponChange{From: before.Version, To: want.Version, Template: want}, change)
		same(b, "kept", want, b.stands(1))
		_, err = b.CodesPublish(b.ctx, 1, 10, 3, 0)
		b.wantCode(err, reward.CodeConflict) // once
		b.must(b.CodesDiscard(b.ctx, 10))    // does nothing to a published one
		same(b, "kept", want, b.stands(1))
	})
	run(t, open, "TheLatestImportGoesOn", func(b *bundle) {
		b.template(1, quantity(1))
		b.template(2, quantity(1))
		b.beginImport(1, 10)
		b.beginImport(2, 20) // imports of templates do not meet
		b.staged(1, 10, 0, "A")
		b.beginImport(1, 11) // the sender has crashed, and sends the same file again
		_, err := b.stage(1, 10, 1, "B")
		b.wantCode(err, reward.CodeConflict)
		_, err = b.CodesPublish(b.ctx, 1, 10, 1, 0)
		b.wantCode(err, reward.CodeConflict)
		b.staged(1, 11, 0, "A")
		b.staged(2, 20, 0, "A")
		b.must(b.CodesDiscard(b.ctx, 11))
		_, err = b.stage(1, 11, 1, "B")
		b.wantCode(err, reward.CodeConflict)
		_, err = b.CodesPublish(b.ctx, 1, 11, 1, 0)
		b.wantCode(err, reward.CodeConflict)
		must(b.CodesPublish(b.ctx, 2, 20, 1, 0))(b)
		b.imports(1, 12, "A")
		same(b, "codes", []int64{1, 1}, []int64{b.stands(1).CodesImported, b.stands(2).CodesImported})
	})
	run(t, open, "EachCodeIsGivenOnceInOrder", func(b *bundle) {
		b.template(1, quantity(4), limit(2), reissue)
		b.imports(1, 10, "A", "B", "C", "D")
		res := b.inOrder(1, asks(1, "a", "b", "a", "a")...) // the last is beyond the limit, and uses no code
		same(b, "first", []string{"issued", "issued", "issued", userLimit}, told(res))
		same(b, "codes", []string{"A", "B", "C"}, b.codesOf(1))
		again := ask("c", 5)
		again.CouponID = 1 // in use: the batch changes nothing
		_, err := b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 1, Requests: []rules.CouponRequest{again}, Now: at(10)})
		b.wantCode(err, reward.CodeConflict)

		b.cancelCoupon(1, 20)
		t := b.stands(1)
		same(b, "live, at most, left, missing", []int64{2, 3, 1, 1}, []int64{t.Live, t.LiveMax(), t.CodesLeft(), t.CodesMissing()})
		same(b, "after a cancel", []string{"issued", soldOut}, told(b.inOrder(1, asks(5, "c", "d")...)))
		same(b, "codes", []string{"A", "B", "C", "D"}, b.codesOf(1))
		t = b.stands(1)
		same(b, "live, at most, left, missing", []int64{3, 3, 0, 1}, []int64{t.Live, t.LiveMax(), t.CodesLeft(), t.CodesMissing()})

		for _, n := range []int64{5, 1000} {
			_, err = b.TemplateChange(b.ctx, rules.TemplateChange{ID: 1, TotalQuantity: &n})
			b.wantCode(err, reward.CodeCodesExhausted)
		}
		b.changeTemplate(rules.TemplateChange{ID: 1, Name: new("without codes")})

		b.beginImport(1, 11)
		taken := must(b.stage(1, 11, 0, "E", "F", "B", "A"))(b)
		same(b, "a known code", store.TakenCode{At: 2, Template: true}, taken)
		b.staged(1, 11, 0, "E", "F", "G")
		same(b, "before the end of the import", []string{soldOut}, told(b.inOrder(1, ask("d", 7))))
		must(b.CodesPublish(b.ctx, 1, 11, 3, 0))(b)
		b.changeTemplate(rules.TemplateChange{ID: 1, TotalQuantity: new(int64(6))})
		_, err = b.TemplateChange(b.ctx, rules.TemplateChange{ID: 1, TotalQuantity: new(int64(7))})
		b.wantCode(err, reward.CodeCodesExhausted)
		late := ask("e", 12) // with gaps
		b.must(second(b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleListed, Requests: []rules.CouponRequest{late}, Now: at(10)})))
		same(b, "once", []string{"before"}, told(b.settle(store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleListed, Requests: []rules.CouponRequest{late}})))
		same(b, "without tickets", []string{"issued", "issued", soldOut}, told(b.direct(1, asks(21, "f", "g", "h")...)))
		same(b, "codes", []string{"A", "B", "C", "D", "E", "F", "G"}, b.codesOf(1))
		found := must(b.CouponsByCode(b.ctx, "E", 10))(b)
		same(b, "found", []reward.Coupon{b.coupon(12)}, found)
	})
	run(t, open, "ASweepRemovesWhatWasNotPublished", func(b *bundle) {
		b.template(1, quantity(2))
		b.imports(1, 10, "A", "B")
		b.beginImport(1, 11)
		b.staged(1, 11, 0, "C", "D", "E")
		n := must(b.CodesSweep(b.ctx, at(0), plenty))(b)
		same(b, "too early", 0, n)
		b.staged(1, 11, 3, "F") // still open
		var removed []int
		for {
			n := must(b.CodesSweep(b.ctx, at(1), 3))(b)
			removed = append(removed, n)
			if n == 0 {
				break
			}
		}
		same(b, "removed", []int{3, 2, 0}, removed) // four codes and the import
		_, err := b.stage(1, 11, 4, "G")
		b.wantCode(err, reward.CodeConflict)
		b.imports(1, 12, "C")
		b.inOrder(1, asks(1, "a", "b")...)
		same(b, "codes", []string{"A", "B"}, b.codesOf(1))
	})
	run(t, open, "CodesMeetEverythingElse", raceOfCodes)
}

// raceOfCodes lets issues, cancels, imports and sweeps meet. Each code is given
// once, and in the order of the file.
func raceOfCodes(b *bundle) {
	const workers, rounds, codes = 6, 20, 100
	b.template(1, quantity(codes), reissue, limit(100))
	var all []string
	for i := range codes + rounds {
		all = append(all, fmt.Sprintf("I%05d", i))
	}
	b.imports(1, 1, all[:codes]...)
	var issued, next atomic.Int64
	next.Store(100)
	b.must(together(workers, func(w int) error {
		for n := range rounds {
			switch w {
			case 0:
				id := int64(10 + n)
				if err := b.CodesBegin(b.ctx, 1, id, at(0)); err != nil {
					return err
				}
				if _, err := b.CodesStage(b.ctx, store.CodesStageParams{TemplateID: 1, ImportID: id, Codes: all[codes+n : codes+n+1], Now: at(2)}); err != nil {
					return err
				}
				if _, err := b.CodesPublish(b.ctx, 1, id, 1, 0); err != nil {
					return err
				}
			case 1:
				if _, err := b.CodesSweep(b.ctx, at(-1), 10); err != nil {
					return err
				}
			default:
				var batch []rules.CouponRequest
				for range 3 {
					id := reward.CouponID(next.Add(1))
					batch = append(batch, rules.CouponRequest{UserID: fmt.Sprint("u", w), CouponID: id, Code: fmt.Sprint("generated", id)})
				}
				res, err := b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 1, Kind: rules.SettleDirect, Path: reward.PathGate, Requests: batch, Now: time.Now()})
				if err != nil {
					return err
				}
				for i, r := range res.Results {
					if r.Outcome != rules.RequestIssued {
						continue
					}
					issued.Add(1)
					if i == 0 {
						if _, err := cancelOne(b.ctx, b.Tables, r.Coupon.ID, time.Now()); err != nil {
							return err
						}
					}
				}
			}
		}
		return nil
	}))
	for range codes + rounds - issued.Load() {
		id := next.Add(1)
		same(b, "the rest", []string{"issued"}, told(b.direct(1, ask(fmt.Sprint("late", id), id))))
		issued.Add(1)
	}
	t := b.stands(1)
	given := b.codesOf(1)
	slices.Sort(given)
	same(b, "codes", all, given)
	same(b, "imported and issued", []int64{codes + rounds, issued.Load()}, []int64{t.CodesImported, t.IssuedTotal})
	b.couponBooks(1)
}

// second drops the first result of a call.
func second[T any](_ T, err error) error { return err }
