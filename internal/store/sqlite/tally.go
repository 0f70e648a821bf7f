package sqlite

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store/rows"
)

// addSQL adds to the counts of a summary row.
var addSQL = func() string {
	var sets []string
	for _, c := range rows.CountColumns {
		sets = append(sets, c+" = "+c+" + ?")
	}
	for _, c := range rows.CountColumns {
		sets = append(sets, c+"_amount = "+c+"_amount + ?")
	}
	return "UPDATE summaries SET " + strings.Join(append(sets, "attempts = attempts + ?"), ", ") + " WHERE promotion_id = ? AND summary_id = ?"
}()

// summaryKey identifies a summary row. The ID 0 stands for the whole promotion.
type summaryKey struct {
	promotion reward.PromotionID
	id        reward.SummaryID
}

// delta is what a transaction adds to a summary row.
type delta struct {
	reward.Counts
	overflow bool
}

// none stands for the state of a row before its insert.
const none reward.State = -1

// move records that a payout left the state was, which is none for a new row.
// answers is added to its counted attempts.
func (t *tx) move(p *reward.Payout, was reward.State, answers int64) {
	t.moveIn(summaryKey{p.PromotionID, 0}, p, was, answers)
	if p.SummaryID > 0 {
		t.moveIn(summaryKey{p.PromotionID, p.SummaryID}, p, was, answers)
	}
}

func (t *tx) moveIn(k summaryKey, p *reward.Payout, was reward.State, answers int64) {
	d := t.moves[k]
	if d == nil {
		d = &delta{}
		t.moves[k] = d
	}
	if was != none {
		d.Payouts[was]--
		d.Amounts[was] -= p.Amount
	}
	d.Payouts[p.State]++
	d.overflow = d.overflow || d.Amounts[p.State] > math.MaxInt64-p.Amount
	d.Amounts[p.State] += p.Amount
	d.Attempts += answers
}

// writeMoves adds the recorded moves to the summary rows, in key order.
func (t *tx) writeMoves() error {
	if len(t.moves) == 0 {
		return nil
	}
	keys := make([]summaryKey, 0, len(t.moves))
	for k := range t.moves {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b summaryKey) int {
		return cmp.Or(cmp.Compare(a.promotion, b.promotion), cmp.Compare(a.id, b.id))
	})
	stmt, err := t.PrepareContext(t.ctx, addSQL)
	if err != nil {
		return err
	}
	defer stmt.Close()
	for _, k := range keys {
		d := t.moves[k]
		if d.overflow {
			return errOverflow
		}
		args := make([]any, 0, 2*reward.StateCount+3)
		for _, n := range d.Payouts {
			args = append(args, n)
		}
		for _, n := range d.Amounts {
			args = append(args, int64(n))
		}
		args = append(args, d.Attempts, int64(k.promotion), int64(k.id))
		one, err := changesOne(t.ctx, stmt, args...)
		if err != nil {
			return err
		}
		if !one {
			return fmt.Errorf("promotion %d has no counts for summary %d", k.promotion, k.id)
		}
	}
	clear(t.moves)
	return nil
}

// errOverflow means that the amounts of a promotion exceed 63 bits.
var errOverflow = errors.New("the amounts of a promotion exceed 63 bits")
