package rows

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// SummaryList returns at most limit summaries of a promotion, ordered by ID.
func (t *Tables) SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error) {
	return list(ctx, t.db.Read, "list summaries", func(scan Scan, s *reward.Summary) error {
		s.PromotionID = id
		return scan(append([]any{&s.ID}, countsInto(&s.Counts)...)...)
	}, `SELECT s.summary_id, `+countsSQL+` FROM summaries s
WHERE s.promotion_id = $1 AND s.summary_id > 0 ORDER BY s.summary_id LIMIT $2`, int64(id), limit)
}

// SummaryRecount returns the counts that the rows of a promotion add up to. It
// changes nothing.
func (t *Tables) SummaryRecount(ctx context.Context, id reward.PromotionID) (reward.Counts, error) {
	var c reward.Counts
	err := t.db.ReadLong(ctx, "recount a promotion", func() Statement {
		c = reward.Counts{}
		return Statement{
			SQL: `SELECT state, count(*), CAST(sum(amount) AS bigint), CAST(sum(attempts) AS bigint)
FROM payouts WHERE promotion_id = $1 GROUP BY state`,
			Args: []any{int64(id)},
			Row: func(scan Scan) error {
				var state int16
				var n, amount, attempts int64
				if err := scan(&state, &n, &amount, &attempts); err != nil {
					return err
				}
				c.Payouts[state], c.Amounts[state] = n, reward.Amount(amount)
				c.Attempts += attempts
				return nil
			},
		}
	})
	if err != nil {
		return reward.Counts{}, err
	}
	return c, nil
}

// sharedKeys finds the transaction keys that several payouts of promotion $1 have, without
// those that a person has settled. Only if there are any does it look at who settled them.
// It joins nothing with the keys: there may be as many as payouts.
const sharedKeys = `WITH counted AS (
  SELECT p.transaction_key, count(*) AS n, min(p.target_id) AS first, max(p.target_id) AS last
  FROM payouts p
  WHERE p.promotion_id = $1 AND p.transaction_key <> '' AND (SELECT count(*) FROM (
    SELECT 1 FROM payouts WHERE promotion_id = $1 AND transaction_key <> '' GROUP BY transaction_key HAVING count(*) > 1 LIMIT 1
  ) several) > 0 AND NOT EXISTS (
    SELECT 1 FROM attempts a WHERE a.promotion_id = p.promotion_id AND a.target_id = p.target_id AND a.class = '` + string(reward.AnswerResolved) + `')
  GROUP BY p.transaction_key HAVING count(*) > 1
)
SELECT CAST(sum(n) OVER () AS bigint), count(*) OVER (), transaction_key, first, last FROM counted ORDER BY first LIMIT 1`

// SharedKeys returns what payouts of a promotion have the transaction key of another
// one. It reads all rows of the promotion.
func (t *Tables) SharedKeys(ctx context.Context, id reward.PromotionID) (store.SharedKeys, error) {
	return one(ctx, t.db.ReadLong, "look for shared transaction keys", nil, func(scan Scan, k *store.SharedKeys) error {
		return scan(&k.Payouts, &k.Keys, &k.Key, (*int64)(&k.First), (*int64)(&k.Last))
	}, sharedKeys, int64(id))
}

// eachSummed returns the columns of summaryColumns, each as a text with its name for %[1]s.
func eachSummed(format, separator string) string {
	all := make([]string, len(summaryColumns))
	for i, c := range summaryColumns {
		all[i] = fmt.Sprintf(format, c)
	}
	return strings.Join(all, separator)
}

var (
	// compareCounts returns, from one snapshot, the stored counts of the whole promotion $1
	// (side 0), those of its rows (side 1), and for every summary that differs what its rows
	// have more than is stored (side 2). It includes summaries that only one side has. It
	// joins nothing with the rows, because PostgreSQL would nest the join.
	compareCounts = func() string {
		var sums []string
		for _, of := range []string{"n", "worth"} {
			for state, c := range CountColumns {
				if of == "worth" {
					c += "_amount"
				}
				sums = append(sums, fmt.Sprintf("CAST(coalesce(sum(%s) FILTER (WHERE state = %d), 0) AS bigint) AS %s", of, state, c))
			}
		}
		summed := strings.Join(append(sums, "CAST(coalesce(sum(answers), 0) AS bigint) AS attempts"), ",\n    ")
		return `WITH grouped AS MATERIALIZED (
  SELECT summary_id, state, count(*) AS n, sum(amount) AS worth, sum(attempts) AS answers
  FROM payouts WHERE promotion_id = $1 GROUP BY summary_id, state
), summed AS MATERIALIZED (
  SELECT 0 AS summary_id, ` + summed + ` FROM grouped
  UNION ALL SELECT summary_id, ` + summed + ` FROM grouped WHERE summary_id > 0 GROUP BY summary_id
), differing AS MATERIALIZED (
  SELECT * FROM (SELECT summary_id, ` + eachSummed("CAST(sum(%[1]s) AS bigint) AS %[1]s", ", ") + ` FROM (
    SELECT summary_id, ` + eachSummed("-%[1]s AS %[1]s", ", ") + ` FROM summaries WHERE promotion_id = $1
    UNION ALL SELECT summary_id, ` + eachSummed("%s", ", ") + ` FROM summed
  ) u GROUP BY summary_id) d WHERE ` + eachSummed("%s <> 0", " OR ") + `
)
SELECT c.*, f.repairs, m.finished_at IS NOT NULL, m.archived_at IS NOT NULL, m.currency FROM (
  SELECT 0 AS side, s.summary_id, ` + countsSQL + ` FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0
  UNION ALL SELECT 1, s.summary_id, ` + countsSQL + ` FROM summed s WHERE s.summary_id = 0
  UNION ALL SELECT 2, s.summary_id, ` + countsSQL + ` FROM differing s
) c
JOIN summaries f ON f.promotion_id = $1 AND f.summary_id = 0
JOIN promotions m ON m.id = $1
ORDER BY c.side, c.summary_id`
	}()

	// correctCounts adds differences to the counts of summary $2 of promotion $1, unless they
	// were repaired since the differences were read: $3 is the number of repairs before that.
	// The caller holds the lock of the counts.
	correctCounts = func() string {
		var sets []string
		for i, c := range summaryColumns {
			sets = append(sets, c+" = "+c+" + $"+strconv.Itoa(4+i))
		}
		return `UPDATE summaries SET ` + strings.Join(sets, ", ") + `
WHERE promotion_id = $1 AND summary_id = $2
  AND (SELECT f.repairs FROM summaries f WHERE f.promotion_id = $1 AND f.summary_id = 0) = $3`
	}()
)

const (
	insertSummary = `INSERT INTO summaries (promotion_id, summary_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`

	// countRepair follows the corrections of promotion $1.
	countRepair = `UPDATE summaries SET repairs = repairs + 1 WHERE promotion_id = $1 AND summary_id = 0 AND repairs = $2`

	// repairsMax limits how often SummaryCompare corrects counts before it fails.
	repairsMax = 4
)

// comparison is what a read of both sides found.
type comparison struct {
	store.Comparison
	differing []reward.Summary // what the rows have more than is stored
	repairs   int64            // before the read
}

// SummaryCompare returns the stored counts of a promotion and those that its
// rows add up to, from one snapshot.
//
// With repair it then corrects the stored counts that differ, including those
// of each summary. It adds the difference to them, because every other change
// moves rows and counts alike. So it holds no lock while it reads the rows. An
// ended promotion that has payouts left continues: a COMPLETED one becomes RUNNING
// again, in the same transaction. Before it returns, it compares again. If
// other programs keep changing the counts, it fails after a few tries.
func (t *Tables) SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (store.Comparison, error) {
	// A transaction that changes rows moves their counts alike, so the difference stays the
	// same if other transactions commit between the read and the repair. Adding it is
	// therefore exact. Only two things change it: another repair, which correctCounts
	// notices, and a transaction that found no row for a summary and did not count there.
	// Such a row is inserted by the repair, and the next read shows what was missed.
	first, err := t.readCounts(ctx, id)
	c := first
	for n := 0; err == nil && repair && (len(c.differing) > 0 || c.Ended && c.Rows.Undecided() > 0); n++ {
		if n == repairsMax {
			return store.Comparison{}, fmt.Errorf("the counts of promotion %d changed during each of %d repairs; "+
				"end the programs that change the tables of the database, then repair again", id, repairsMax)
		}
		if err = t.addDifferences(ctx, id, c); err == nil {
			c, err = t.readCounts(ctx, id)
		}
	}
	if err != nil {
		return store.Comparison{}, err
	}
	return first.Comparison, nil
}

// readCounts reads both sides in one snapshot.
func (t *Tables) readCounts(ctx context.Context, id reward.PromotionID) (c comparison, err error) {
	var found, archived bool
	err = t.db.ReadLong(ctx, "compare the counts of a promotion", func() Statement {
		c, found = comparison{}, false
		return Statement{SQL: compareCounts, Args: []any{int64(id)}, Row: func(scan Scan) error {
			found = true
			var side int32
			var sum reward.Summary
			err := scan(slices.Concat([]any{&side, (*int64)(&sum.ID)}, countsInto(&sum.Counts), []any{&c.repairs, &c.Ended, &archived, &c.Currency})...)
			switch side {
			case 0:
				c.Kept = sum.Counts
			case 1:
				c.Rows = sum.Counts
			default:
				c.differing = append(c.differing, sum)
			}
			return err
		}}
	})
	if err == nil && !found {
		err = store.NoPromotion(id)
	}
	if archived {
		c.Rows, c.differing = c.Kept, nil // its rows are removed
	}
	return c, err
}

// addDifferences adds the differences to the stored counts, and lets an ended promotion
// continue that has payouts left.
func (t *Tables) addDifferences(ctx context.Context, id reward.PromotionID, c comparison) error {
	of := []any{int64(id)}
	return t.db.Write(ctx, "repair the counts of a promotion", func() []Statement {
		all := []Statement{{SQL: lockCounts, Args: of}}
		for _, d := range c.differing {
			values := []any{int64(id), int64(d.ID), c.repairs}
			for _, n := range d.Payouts {
				values = append(values, n)
			}
			for _, n := range d.Amounts {
				values = append(values, int64(n))
			}
			all = append(all, Statement{SQL: insertSummary, Args: values[:2]}, Statement{SQL: correctCounts, Args: append(values, d.Attempts)})
		}
		if len(c.differing) > 0 {
			all = append(all, Statement{SQL: countRepair, Args: []any{int64(id), c.repairs}})
		}
		return append(all, ContinueEnded(id)...)
	})
}
