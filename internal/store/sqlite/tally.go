package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/reward"
)

// countColumns are the columns of summaries in the order of reward.State.
var countColumns = [reward.StateCount]string{
	"ready", "queued", "retrying", "unknown", "succeeded", "failed", "cancelled",
}

// countsSQL reads the counts of summary row s; addSQL adds to them.
var countsSQL, addSQL = func() (string, string) {
	var cols, sets []string
	for _, c := range countColumns {
		cols, sets = append(cols, "s."+c), append(sets, c+" = "+c+" + ?")
	}
	for _, c := range countColumns {
		cols, sets = append(cols, "s."+c+"_amount"), append(sets, c+"_amount = "+c+"_amount + ?")
	}
	cols, sets = append(cols, "s.attempts"), append(sets, "attempts = attempts + ?")
	return strings.Join(cols, ", "),
		"UPDATE summaries SET " + strings.Join(sets, ", ") + " WHERE promotion_id = ? AND summary_id = ?"
}()

// countsInto returns where to scan countsSQL to.
func countsInto(c *reward.Counts) []any {
	into := make([]any, 0, 2*reward.StateCount+1)
	for i := range c.Payouts {
		into = append(into, &c.Payouts[i])
	}
	for i := range c.Amounts {
		into = append(into, (*int64)(&c.Amounts[i]))
	}
	return append(into, &c.Attempts)
}

// summaryKey names a summary row.
type summaryKey struct {
	promotion reward.PromotionID
	id        reward.SummaryID
}

// delta is what a transaction adds to a summary row.
type delta struct {
	reward.Counts
	overflow bool
}

// none is the state before an insert.
const none reward.State = -1

// move notes that a payout changed from one state to another (none: it is
// new), with answers to count as attempts.
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

// writeMoves adds the noted moves to the summary rows.
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
			return errTooMuch
		}
		args := make([]any, 0, 2*reward.StateCount+3)
		for _, n := range d.Payouts {
			args = append(args, n)
		}
		for _, n := range d.Amounts {
			args = append(args, int64(n))
		}
		args = append(args, d.Attempts, int64(k.promotion), int64(k.id))
		res, err := stmt.ExecContext(t.ctx, args...)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		if n != 1 {
			return fmt.Errorf("promotion %d has no counts for summary %d", k.promotion, k.id)
		}
	}
	clear(t.moves)
	return nil
}

// errTooMuch says that a promotion's amounts outgrow 63 bits.
var errTooMuch = reward.NewError(reward.KindInvalid, reward.CodeInvalid, "the amounts of a promotion outgrow 63 bits")

// SummaryList returns the summaries of a promotion with an id above 0.
func (s *Store) SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error) {
	list, err := collect(ctx, s.reader, func(rows *sql.Rows) (reward.Summary, error) {
		sum := reward.Summary{PromotionID: id}
		err := rows.Scan(append([]any{&sum.ID}, countsInto(&sum.Counts)...)...)
		return sum, err
	}, `SELECT s.summary_id, `+countsSQL+` FROM summaries s
WHERE s.promotion_id = ? AND s.summary_id > 0 ORDER BY s.summary_id LIMIT ?`, int64(id), limit)
	if err != nil {
		return nil, fmt.Errorf("list summaries: %w", err)
	}
	return list, nil
}

// SummaryRecount counts the rows of a promotion.
func (s *Store) SummaryRecount(ctx context.Context, id reward.PromotionID) (reward.Counts, error) {
	var c reward.Counts
	_, err := collect(ctx, s.reader, func(rows *sql.Rows) (struct{}, error) {
		var state int16
		var n, amount, attempts int64
		err := rows.Scan(&state, &n, &amount, &attempts)
		if err == nil {
			c.Payouts[state], c.Amounts[state] = n, reward.Amount(amount)
			c.Attempts += attempts
		}
		return struct{}{}, err
	}, `SELECT state, count(*), sum(amount), sum(attempts) FROM payouts WHERE promotion_id = ? GROUP BY state`, int64(id))
	if err != nil {
		return reward.Counts{}, fmt.Errorf("recount a promotion: %w", err)
	}
	return c, nil
}
