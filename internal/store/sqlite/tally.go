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
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// countsSQL and countsInto read the counts of a summary row with the alias s.
// addSQL adds to them.
var (
	countsSQL  = rows.CountsSQL
	countsInto = rows.CountsInto

	addSQL = func() string {
		var sets []string
		for _, c := range rows.CountColumns {
			sets = append(sets, c+" = "+c+" + ?")
		}
		for _, c := range rows.CountColumns {
			sets = append(sets, c+"_amount = "+c+"_amount + ?")
		}
		return "UPDATE summaries SET " + strings.Join(append(sets, "attempts = attempts + ?"), ", ") + " WHERE promotion_id = ? AND summary_id = ?"
	}()
)

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
var errOverflow = reward.NewError(reward.KindInvalid, reward.CodeInvalid, "the amounts of a promotion exceed 63 bits")

// recount adds up the rows of a promotion, by summary. The ID 0 has the sum of
// all rows.
func recount(ctx context.Context, q querier, id reward.PromotionID) (map[reward.SummaryID]reward.Counts, error) {
	sums := map[reward.SummaryID]reward.Counts{0: {}}
	add := func(summary reward.SummaryID, state int16, payouts, amount, attempts int64) {
		c := sums[summary]
		c.Payouts[state] += payouts
		c.Amounts[state] += reward.Amount(amount)
		c.Attempts += attempts
		sums[summary] = c
	}
	_, err := collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
		var summary, payouts, amount, attempts int64
		var state int16
		err := rows.Scan(&summary, &state, &payouts, &amount, &attempts)
		if err == nil {
			add(0, state, payouts, amount, attempts)
			if summary > 0 {
				add(reward.SummaryID(summary), state, payouts, amount, attempts)
			}
		}
		return struct{}{}, err
	}, `SELECT summary_id, state, count(*), sum(amount), sum(attempts) FROM payouts WHERE promotion_id = ?
GROUP BY summary_id, state`, int64(id))
	return sums, err
}

// comparison has the stored counts of a promotion and those of its rows, by
// summary.
type comparison struct {
	kept, rows map[reward.SummaryID]reward.Counts
}

// compare reads both sides. q must read from one snapshot.
func compare(ctx context.Context, q querier, id reward.PromotionID) (comparison, error) {
	c := comparison{kept: make(map[reward.SummaryID]reward.Counts)}
	_, err := collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
		var summary reward.SummaryID
		var counts reward.Counts
		err := rows.Scan(append([]any{&summary}, countsInto(&counts)...)...)
		c.kept[summary] = counts
		return struct{}{}, err
	}, `SELECT s.summary_id, `+countsSQL+` FROM summaries s WHERE s.promotion_id = ?`, int64(id))
	if err != nil {
		return c, err
	}
	if _, ok := c.kept[0]; !ok {
		return c, store.NoPromotion(id)
	}
	c.rows, err = recount(ctx, q, id)
	return c, err
}

// drifts returns the summaries whose counts differ. A summary without rows has
// no counts.
func (c comparison) drifts() []reward.SummaryID {
	var ids []reward.SummaryID
	for id, kept := range c.kept {
		if kept != c.rows[id] {
			ids = append(ids, id)
		}
	}
	for id := range c.rows {
		if _, ok := c.kept[id]; !ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// SummaryCompare compares the stored counts with those of the rows. It opens a
// writing transaction only if they differ and repair is set.
func (s *Store) SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (kept, rows reward.Counts, err error) {
	c, err := s.compared(ctx, id)
	if err == nil && repair && len(c.drifts()) > 0 {
		err = s.write(ctx, "repair the counts of a promotion", func(tx *tx) (err error) {
			if c, err = compare(tx.ctx, tx, id); err != nil {
				return err
			}
			for _, summary := range c.drifts() {
				if err := tx.setCounts(summaryKey{id, summary}, c.rows[summary]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return reward.Counts{}, reward.Counts{}, err
	}
	return c.kept[0], c.rows[0], nil
}

func (s *Store) compared(ctx context.Context, id reward.PromotionID) (comparison, error) {
	tx, err := s.reader.BeginTx(ctx, nil)
	if err != nil {
		return comparison{}, fmt.Errorf("compare the counts of a promotion: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	c, err := compare(ctx, tx, id)
	if err != nil {
		return c, fmt.Errorf("compare the counts of a promotion: %w", err)
	}
	return c, nil
}

// setCounts replaces the counts of a summary.
func (t *tx) setCounts(k summaryKey, c reward.Counts) error {
	if err := t.exec(`DELETE FROM summaries WHERE promotion_id = ? AND summary_id = ?`, int64(k.promotion), int64(k.id)); err != nil {
		return err
	}
	if err := t.exec(`INSERT INTO summaries (promotion_id, summary_id) VALUES (?, ?)`, int64(k.promotion), int64(k.id)); err != nil {
		return err
	}
	t.moves[k] = &delta{Counts: c}
	return nil
}
