package books

import (
	"context"
	"math"
	"strconv"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// growing is a list that grows faster than it is read.
type growing struct{ amount reward.Amount }

func (e growing) Charges(_ context.Context, _ reward.PromotionID, cursor string) (money.ChargesPage, error) {
	n, _ := strconv.Atoi(cursor)
	return money.ChargesPage{Charges: []money.ListedCharge{{Amount: e.amount}, {Amount: e.amount}}, NextCursor: strconv.Itoa(n + 1)}, nil
}

func TestChargeBook(t *testing.T) {
	t.Parallel()
	never := func(worth) bool { return false }

	t.Run("ReadsNoFurtherThanIsNeeded", func(t *testing.T) {
		t.Parallel()
		var b chargeBook
		for range 3 { // the last page is read again each time
			fixture.OK(t, b.read(t.Context(), growing{100}, promotion, 5, never))
		}
		if got := b.total(); got != (worth{26, 2600}) {
			t.Errorf("%+v", got)
		}
		err := b.read(t.Context(), growing{100}, promotion, 0, func(w worth) bool { return w.covers(worth{31, 50}) })
		if got := b.total(); err != nil || got != (worth{32, 3200}) {
			t.Errorf("%+v, %v", got, err)
		}
	})

	t.Run("AmountsThatOutgrowOurNumbersStayAboveEverything", func(t *testing.T) {
		t.Parallel()
		var b chargeBook
		if err := b.read(t.Context(), growing{math.MaxInt64 / 3}, promotion, 9, never); err != nil || b.total().amount != math.MaxInt64 {
			t.Errorf("%+v, %v", b.total(), err)
		}
	})

	t.Run("APlaceThatIsNotKnownAnyMoreIsForgotten", func(t *testing.T) {
		t.Parallel()
		l := &chargeList{}
		for i := range 35 {
			l.add(i)
		}
		var b chargeBook
		if err := b.read(t.Context(), l, promotion, 0, never); err != nil || b.total().count != 35 {
			t.Fatalf("%+v, %v", b, err)
		}
		l.change(func() { l.charges = l.charges[:12] })
		if err := b.read(t.Context(), l, promotion, 0, never); err == nil || b != (chargeBook{}) {
			t.Errorf("%+v, %v", b, err)
		}
		if err := b.read(t.Context(), l, promotion, 0, never); err != nil || b.total().count != 12 {
			t.Errorf("%+v, %v", b, err)
		}
	})
}

func TestDifferencesOfAmountsAreInTheCurrency(t *testing.T) {
	t.Parallel()
	c := store.Comparison{Currency: "EUR"}
	c.Kept.Amounts[reward.Succeeded], c.Rows.Amounts[reward.Succeeded] = 1050, 2000
	drifts := compareCounts(promotion, &c)
	if len(drifts) != 1 || *drifts[0].Kept != 1050 || drifts[0].Detail != "the stored amount of SUCCEEDED is 10.50 EUR, but the rows add up to 20.00 EUR" {
		t.Errorf("%+v", drifts)
	}
}

func TestOpenPayoutsOfAnEndedPromotionAreADrift(t *testing.T) {
	t.Parallel()
	var c store.Comparison
	c.Rows.Payouts[reward.Ready], c.Rows.Payouts[reward.Queued], c.Rows.Payouts[reward.Unknown] = 3, 2, 9
	c.Kept = c.Rows
	if drifts := compareCounts(promotion, &c); len(drifts) > 0 {
		t.Errorf("a promotion that goes on has the differences %+v", drifts)
	}
	c.Ended = true
	drifts := compareCounts(promotion, &c)
	if len(drifts) != 1 || drifts[0].What != driftOpen || *drifts[0].Kept != 0 || *drifts[0].Store != 5 {
		t.Errorf("an ended promotion with 5 payouts left has the differences %+v", drifts)
	}
}
