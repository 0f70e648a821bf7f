package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
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
var errOverflow = errors.New("the amounts of a promotion exceed 63 bits")

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

// comparison is what a read of both sides found.
type comparison struct {
	store.Comparison
	differing map[reward.SummaryID]reward.Counts // what the rows have more than is stored
	repairs   int64                              // before the read
}

// SummaryCompare compares the stored counts with those of the rows. It reads the
// rows outside of the writing transaction, so others can write meanwhile.
// Every transaction moves rows and counts alike, so the difference stays the same
// until it is added, unless another repair adds it first.
func (s *Store) SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (store.Comparison, error) {
	var c comparison
	read := func() (store.Comparison, bool, error) {
		var err error
		c, err = s.readCounts(ctx, id)
		return c.Comparison, len(c.differing) > 0, err
	}
	return store.CompareCounts(id, repair, read, func() error { return s.correctCounts(ctx, id, &c) })
}

// readCounts reads both sides in one snapshot.
func (s *Store) readCounts(ctx context.Context, id reward.PromotionID) (c comparison, err error) {
	err = s.snapshot(ctx, "compare the counts of a promotion", func(ctx context.Context, q querier) error {
		c = comparison{differing: make(map[reward.SummaryID]reward.Counts)}
		found, archived := false, false
		_, err := collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
			var summary reward.SummaryID
			var counts reward.Counts
			var repairs int64
			err := rows.Scan(append(append([]any{&summary}, countsInto(&counts)...), &repairs, &c.Ended, &archived, &c.Currency)...)
			if summary == 0 {
				found, c.Kept, c.repairs = true, counts, repairs
			}
			c.differing[summary] = minus(reward.Counts{}, counts)
			return struct{}{}, err
		}, `SELECT s.summary_id, `+countsSQL+`, s.repairs, m.finished_at IS NOT NULL, m.archived_at IS NOT NULL, m.currency FROM summaries s JOIN promotions m ON m.id = s.promotion_id
WHERE s.promotion_id = ?`, int64(id))
		if err != nil {
			return err
		}
		if !found {
			return store.NoPromotion(id)
		}
		if archived { // its rows are removed
			c.Rows, c.differing = c.Kept, nil
			return nil
		}
		counted, err := recount(ctx, q, id)
		if err != nil {
			return err
		}
		c.Rows = counted[0]
		for summary, n := range counted {
			kept := minus(reward.Counts{}, c.differing[summary])
			c.differing[summary] = minus(n, kept)
		}
		maps.DeleteFunc(c.differing, func(_ reward.SummaryID, d reward.Counts) bool { return d == reward.Counts{} })
		return nil
	})
	return c, err
}

// minus returns a − b.
func minus(a, b reward.Counts) reward.Counts {
	for i := range a.Payouts {
		a.Payouts[i] -= b.Payouts[i]
		a.Amounts[i] -= b.Amounts[i]
	}
	a.Attempts -= b.Attempts
	return a
}

// correctCounts adds the differences to the stored counts unless they were
// repaired since the differences were read, and lets an ended promotion go on that
// has payouts left.
func (s *Store) correctCounts(ctx context.Context, id reward.PromotionID, c *comparison) error {
	return s.write(ctx, "repair the counts of a promotion", func(tx *tx) error {
		repairs, _, err := one(tx.ctx, tx, scanInt, `SELECT repairs FROM summaries WHERE promotion_id = ? AND summary_id = 0`, int64(id))
		if err != nil {
			return err
		}
		if repairs == c.repairs {
			for summary, d := range c.differing {
				if err := tx.exec(`INSERT INTO summaries (promotion_id, summary_id) VALUES (?, ?) ON CONFLICT DO NOTHING`, int64(id), int64(summary)); err != nil {
					return err
				}
				tx.moves[summaryKey{id, summary}] = &delta{Counts: d}
			}
			if err := tx.exec(`UPDATE summaries SET repairs = repairs + 1 WHERE promotion_id = ? AND summary_id = 0`, int64(id)); err != nil {
				return err
			}
			if err := tx.writeMoves(); err != nil {
				return err
			}
		}
		v, err := tx.view(id)
		if err != nil || v.FinishedAt.IsZero() || v.Counts.Undecided() == 0 {
			return err
		}
		reopened := rules.Reopen(v.Promotion)
		reopened.FinishedAt = time.Time{} // a CANCELLED promotion stays CANCELLED
		return tx.reopen(&reopened)
	})
}
