package books

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

// Charges is what a provider may offer beside Provider: the list of what it has
// charged for a promotion, page by page. cursor is "" at first and then the
// NextCursor of the page before; the order of the list does not change, and new
// charges come at its end at most confirmAfter later. The error is
// money.ErrNoCharges when it has no such list, otherwise the page may be asked
// for again.
type Charges interface {
	Charges(ctx context.Context, p reward.PromotionID, cursor string) (money.ChargesPage, error)
}

// worth is how many, and what they are worth.
type worth struct {
	count  int64
	amount reward.Amount
}

func (t worth) plus(o worth) worth {
	t.count += o.count
	if t.amount += o.amount; t.amount < 0 { // a list from outside may say anything
		t.amount = math.MaxInt64
	}
	return t
}

// covers says that neither number of o is above that of t.
func (t worth) covers(o worth) bool { return t.count >= o.count && t.amount >= o.amount }

// in adds up payouts by state.
func in(c *reward.Counts, states ...reward.State) worth {
	var t worth
	for _, s := range states {
		t = t.plus(worth{c.Payouts[s], c.Amounts[s]})
	}
	return t
}

// chargeBook is what a provider has charged for a promotion, as far as its list
// was read. It keeps the place, so that reading on reads what is new: the last
// page is read again, for it may have grown.
type chargeBook struct {
	cursor string // of the last page
	before worth  // on the pages before it
	last   worth  // on that one
}

func (b *chargeBook) total() worth { return b.before.plus(b.last) }

// read goes on to the end of the list, or to where enough is true, or for so
// many pages (0 = any number). A place that the provider does not know any more
// is forgotten: the next reading begins anew.
func (b *chargeBook) read(ctx context.Context, c Charges, id reward.PromotionID, pages int, enough func(worth) bool) error {
	for n := 1; ; n++ {
		page, err := c.Charges(ctx, id, b.cursor)
		if err != nil {
			var refused *money.ChargesError
			if b.cursor != "" && errors.As(err, &refused) && refused.Answer.Class == reward.AnswerRefused {
				*b = chargeBook{}
			}
			return err
		}
		b.last = worth{}
		for _, charge := range page.Charges {
			b.last = b.last.plus(worth{1, charge.Amount})
		}
		if page.NextCursor == "" || n == pages || enough(b.total()) {
			return nil
		}
		b.before, b.last, b.cursor = b.total(), worth{}, page.NextCursor
	}
}

// Drift is a difference between two sides of the books.
type Drift struct {
	PromotionID reward.PromotionID `json:"promotionId,string"`
	// What differs: "counts.<state>", "amounts.<state>" or "attempts" (Kept
	// against Store, the rows), "stream" (Redis against Store, QUEUED rows),
	// "charges.above", "charges.below", and the same in "charges.amount.…"
	// (Provider against Store, the bound of the rows).
	What     string `json:"what"`
	Store    *int64 `json:"store"`
	Redis    *int64 `json:"redis"`
	Kept     *int64 `json:"kept,omitempty"`
	Provider *int64 `json:"provider,omitempty"`
	Detail   string `json:"detail"` // the numbers in a sentence
	Repaired bool   `json:"repaired"`
}

// What differs between the provider and the rows, and between Redis and them.
const (
	driftAbove       = "charges.above"
	driftBelow       = "charges.below"
	driftAmountAbove = "charges.amount.above"
	driftAmountBelow = "charges.amount.below"
	driftStream      = "stream"
)

// ofCharges says that the provider's list is one side of the drift.
func (d Drift) ofCharges() bool { return strings.HasPrefix(d.What, "charges.") }

// size is by how much it differs.
func (d Drift) size() int64 {
	for _, other := range []*int64{d.Redis, d.Kept, d.Provider} {
		if other != nil {
			if *other > *d.Store {
				return *other - *d.Store
			}
			return *d.Store - *other
		}
	}
	return 0
}

// find returns the drift about what.
func find(drifts []Drift, what string) (Drift, bool) {
	for _, d := range drifts {
		if d.What == what {
			return d, true
		}
	}
	return Drift{}, false
}

// confirmed returns those of now that were found before and still stand. A list
// may be late by less than confirmAfter, all the time while money moves: what it
// lacks counts only if it was SUCCEEDED when the list was looked at before.
func confirmed(before, now []Drift) []Drift {
	var again []Drift
	for _, d := range now {
		old, ok := find(before, d.What)
		if !ok || (d.What == driftBelow || d.What == driftAmountBelow) && *d.Provider >= *old.Store {
			continue
		}
		again = append(again, d)
	}
	return again
}

// grew says that now differs in something, or by more, than before did.
func grew(before, now []Drift) bool {
	for _, d := range now {
		if old, ok := find(before, d.What); !ok || d.size() > old.size() {
			return true
		}
	}
	return false
}

// compareCounts compares the counts that are kept with those of the rows.
func compareCounts(id reward.PromotionID, kept, rows *reward.Counts) []Drift {
	var drifts []Drift
	compare := func(what, detail string, kept, rows int64) {
		if kept != rows {
			drifts = append(drifts, Drift{PromotionID: id, What: what, Store: &rows, Kept: &kept, Detail: fmt.Sprintf(detail, kept, rows)})
		}
	}
	for s := range reward.StateCount {
		compare("counts."+s.JSONName(), "the kept count of "+s.String()+" is %d, there are %d rows", kept.Payouts[s], rows.Payouts[s])
		compare("amounts."+s.JSONName(), "the kept amount of "+s.String()+" is %d, the rows add up to %d", int64(kept.Amounts[s]), int64(rows.Amounts[s]))
	}
	compare("attempts", "the kept count of attempts is %d, the rows add up to %d", kept.Attempts, rows.Attempts)
	return drifts
}

// compareCharges compares what the provider had charged before the counts were
// read, and after it, with them. Charges only grow, so at any time
//
//	first ≤ SUCCEEDED + everything that may have been called, SUCCEEDED ≤ then
//
// READY is among what may have been called: a payout that was given back is.
func compareCharges(id reward.PromotionID, first worth, rows *reward.Counts, then worth) []Drift {
	var drifts []Drift
	add := func(what, detail string, rows, provider int64) {
		drifts = append(drifts, Drift{PromotionID: id, What: what, Store: &rows, Provider: &provider, Detail: fmt.Sprintf(detail, provider, rows)})
	}
	most, paid := mayBeCharged(rows), in(rows, reward.Succeeded)
	if first.count > most.count {
		add(driftAbove, "the provider has charged %d payouts, the rows explain at most %d", most.count, first.count)
	}
	if first.amount > most.amount {
		add(driftAmountAbove, "the provider has charged %d in all, the rows explain at most %d", int64(most.amount), int64(first.amount))
	}
	if then.count < paid.count {
		add(driftBelow, "the provider has charged %d payouts, the rows say that %d are SUCCEEDED", paid.count, then.count)
	}
	if then.amount < paid.amount {
		add(driftAmountBelow, "the provider has charged %d in all, the rows say that %d is SUCCEEDED", int64(paid.amount), int64(then.amount))
	}
	return drifts
}

func mayBeCharged(rows *reward.Counts) worth {
	return in(rows, reward.Succeeded, reward.Queued, reward.Retrying, reward.Unknown, reward.Ready)
}
