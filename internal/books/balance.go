package books

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Charges is a provider's list of charges.
type Charges interface {
	// Charges returns a page of a promotion's charges. cursor is "" for the
	// first page and then the NextCursor of the previous page. The order of the
	// list must not change, and a new charge must appear at its end within
	// 10 s (confirmAfter). The error is money.ErrNoCharges if the provider has no
	// list. After any other error the page can be read again.
	Charges(ctx context.Context, p reward.PromotionID, cursor string) (money.ChargesPage, error)
}

type worth struct {
	count  int64
	amount reward.Amount
}

func (t worth) plus(o worth) worth {
	t.count += o.count
	if t.amount += o.amount; t.amount < 0 { // an external list may contain any amount
		t.amount = math.MaxInt64
	}
	return t
}

func (t worth) covers(o worth) bool { return t.count >= o.count && t.amount >= o.amount }

// in returns the worth of the payouts in some states.
func in(c *reward.Counts, states ...reward.State) worth {
	var t worth
	for _, s := range states {
		t = t.plus(worth{c.Payouts[s], c.Amounts[s]})
	}
	return t
}

// chargeBook is the worth of a promotion's charges, as far as the list was read. The
// last page is read again, because it may have grown.
type chargeBook struct {
	cursor string // of the last page
	before worth  // of the pages before it
	last   worth  // of the last page
}

func (b *chargeBook) total() worth { return b.before.plus(b.last) }

// read continues until the end of the list, until enough (if any) returns true, or for
// some pages (0: no limit). If the provider refuses the position, the next read starts
// over.
func (b *chargeBook) read(ctx context.Context, c Charges, id reward.PromotionID, pages int, enough func(worth) bool) error {
	for n := 1; ; n++ {
		page, err := c.Charges(ctx, id, b.cursor)
		if err != nil {
			if refused, ok := errors.AsType[*money.ChargesError](err); b.cursor != "" && ok && refused.Answer.Class == reward.AnswerRefused {
				*b = chargeBook{}
			}
			return err
		}
		b.last = worth{}
		for _, charge := range page.Charges {
			b.last = b.last.plus(worth{1, charge.Amount})
		}
		if page.NextCursor == "" || n == pages || enough != nil && enough(b.total()) {
			return nil
		}
		b.before, b.last, b.cursor = b.total(), worth{}, page.NextCursor
	}
}

// Values of What of a drift for the provider, the stream, and ended promotions.
const (
	driftAbove       = "charges.above"
	driftBelow       = "charges.below"
	driftAmountAbove = "charges.amount.above"
	driftAmountBelow = "charges.amount.below"
	driftStream      = "stream"
	driftOpen        = "open"
	driftTwice       = "charges.twice"
	driftShared      = "transactions"
)

// ofCharges reports whether the drift concerns the provider's charges.
func ofCharges(d store.Drift) bool { return strings.HasPrefix(d.What, "charges.") }

func size(d store.Drift) int64 {
	other := cmp.Or(d.Redis, d.Kept, d.Provider)
	if other == nil {
		return 0
	}
	return max(*other-*d.Store, *d.Store-*other)
}

func find(drifts []store.Drift, what string) (store.Drift, bool) {
	for _, d := range drifts {
		if d.What == what {
			return d, true
		}
	}
	return store.Drift{}, false
}

// confirmed returns the drifts of now that were found before too. While payouts
// are charged, the list may always lag by less than confirmAfter, so a missing
// charge counts only if its payout was SUCCEEDED at the previous check.
func confirmed(before, now []store.Drift) []store.Drift {
	return slices.DeleteFunc(slices.Clone(now), func(d store.Drift) bool {
		old, ok := find(before, d.What)
		return !ok || (d.What == driftBelow || d.What == driftAmountBelow) && *d.Provider >= *old.Store
	})
}

// grew reports whether now has a drift that before lacks, or a larger one.
func grew(before, now []store.Drift) bool {
	return slices.ContainsFunc(now, func(d store.Drift) bool {
		old, ok := find(before, d.What)
		return !ok || size(d) > size(old)
	})
}

// compareCounts compares the stored counts with the rows, and the payouts that still
// need work with the status: in an ended promotion there are none.
func compareCounts(id reward.PromotionID, c *store.Comparison) []store.Drift {
	var drifts []store.Drift
	kept, rows := &c.Kept, &c.Rows
	compare := func(what, detail string, kept, rows int64, numbers ...any) {
		if kept != rows {
			if numbers == nil {
				numbers = []any{kept, rows}
			}
			drifts = append(drifts, store.Drift{
				PromotionID: id, What: what, Store: &rows, Kept: &kept, Detail: fmt.Sprintf(detail, numbers...),
			})
		}
	}
	for s := range reward.StateCount {
		compare("counts."+s.JSONName(), "the stored count of "+s.String()+" is %d, but there are %d rows", kept.Payouts[s], rows.Payouts[s])
		compare("amounts."+s.JSONName(), "the stored amount of "+s.String()+" is %s, but the rows add up to %s",
			int64(kept.Amounts[s]), int64(rows.Amounts[s]), kept.Amounts[s].In(c.Currency), rows.Amounts[s].In(c.Currency))
	}
	compare("attempts", "the stored count of attempts is %d, but the rows add up to %d", kept.Attempts, rows.Attempts)
	if c.Ended {
		compare(driftOpen, "the promotion has ended and should have %d payouts left, but %d rows are READY, QUEUED or RETRYING", 0, rows.Undecided())
	}
	return drifts
}

// compareKeys returns the difference if payouts share transaction keys.
func compareKeys(id reward.PromotionID, k store.SharedKeys) []store.Drift {
	if k.Payouts == 0 {
		return nil
	}
	return []store.Drift{{PromotionID: id, What: driftShared, Store: &k.Payouts, Provider: &k.Keys, Detail: fmt.Sprintf(
		"%d payouts have the transaction key of another one, so the provider may not have paid all of them: for example, targets %s and %s have %s",
		k.Payouts, k.First, k.Last, reward.Quote(k.Key))}}
}

// compareCharges compares the counts with the charges as read before and after them.
// Charges only grow, so always
//
//	first ≤ SUCCEEDED + every payout that may have been charged
//	SUCCEEDED ≤ then
func compareCharges(p reward.Promotion, first worth, rows *reward.Counts, then worth) []store.Drift {
	var drifts []store.Drift
	add := func(what string, rows, provider int64, detail string, numbers ...any) {
		drifts = append(drifts, store.Drift{PromotionID: p.ID, What: what, Store: &rows, Provider: &provider, Detail: fmt.Sprintf(detail, numbers...)})
	}
	limit, paid := mayBeCharged(rows), in(rows, reward.Succeeded)
	if first.count > limit.count {
		add(driftAbove, limit.count, first.count, "the provider has charged %d payouts, but the rows explain at most %d", first.count, limit.count)
	}
	if first.amount > limit.amount {
		add(driftAmountAbove, int64(limit.amount), int64(first.amount), "the provider has charged %s in total, but the rows explain at most %s",
			first.amount.In(p.Currency), limit.amount.In(p.Currency))
	}
	if then.count < paid.count {
		add(driftBelow, paid.count, then.count, "the provider has charged %d payouts, but %d rows are SUCCEEDED", then.count, paid.count)
	}
	if then.amount < paid.amount {
		add(driftAmountBelow, int64(paid.amount), int64(then.amount), "the provider has charged %s in total, but the SUCCEEDED rows add up to %s",
			then.amount.In(p.Currency), paid.amount.In(p.Currency))
	}
	return drifts
}

func mayBeCharged(rows *reward.Counts) worth {
	return in(rows, reward.Succeeded, reward.Queued, reward.Retrying, reward.Unknown, reward.Ready)
}
