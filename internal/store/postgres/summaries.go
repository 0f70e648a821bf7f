package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// summedSQL are the CTEs that add up the rows of promotion $1: per summary, and
// all rows under the ID 0.
var summedSQL = func() string {
	var sums []string
	for i, c := range countColumns {
		sums = append(sums, fmt.Sprintf(`coalesce(sum(n) FILTER (WHERE state = %[1]d), 0)::int8 AS %[2]s,
    coalesce(sum(worth) FILTER (WHERE state = %[1]d), 0)::int8 AS %[2]s_amount`, i, c))
	}
	return `WITH grouped AS MATERIALIZED (
  SELECT summary_id, state, count(*) AS n, sum(amount) AS worth, sum(attempts) AS answers
  FROM payouts WHERE promotion_id = $1 GROUP BY summary_id, state
), summed AS MATERIALIZED (
  SELECT coalesce(summary_id, 0) AS summary_id,
    ` + strings.Join(sums, ",\n    ") + `, coalesce(sum(answers), 0)::int8 AS attempts
  FROM grouped GROUP BY GROUPING SETS ((), (summary_id)) HAVING GROUPING(summary_id) = 1 OR summary_id > 0
)`
}()

// overSummaries returns a SELECT that combines, column by column, the stored
// counts of each summary with those of its rows. It includes summaries that
// only one side has. It uses no join, because the planner would nest it.
func overSummaries(kept, combine string) string {
	var as, was, sums []string
	for _, c := range summaryColumns {
		as, was = append(as, fmt.Sprintf(kept, c)), append(was, c)
		sums = append(sums, fmt.Sprintf(combine, c))
	}
	return `SELECT summary_id, ` + strings.Join(sums, ", ") + ` FROM (
  SELECT summary_id, ` + strings.Join(as, ", ") + ` FROM summaries WHERE promotion_id = $1
  UNION ALL SELECT summary_id, ` + strings.Join(was, ", ") + ` FROM summed
) u GROUP BY summary_id`
}

var (
	// compareSQL returns, from one snapshot, the stored counts of the whole
	// promotion (side 0), those of its rows (side 1), and for every summary that
	// differs what its rows have more than is stored (side 2).
	compareSQL = summedSQL + `, differing AS MATERIALIZED (
  SELECT * FROM (` + overSummaries("-%[1]s AS %[1]s", "sum(%[1]s)::int8 AS %[1]s") + `) d
  WHERE (` + prefixed("d.", summaryColumns) + `) IS DISTINCT FROM (` + strings.Join(slices.Repeat([]string{"0"}, len(summaryColumns)), ", ") + `)
)
SELECT c.*, f.repairs, m.finished_at IS NOT NULL, m.archived_at IS NOT NULL, m.currency FROM (
  SELECT 0 AS side, s.summary_id, ` + countsSQL + ` FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0
  UNION ALL SELECT 1, s.summary_id, ` + countsSQL + ` FROM summed s WHERE s.summary_id = 0
  UNION ALL SELECT 2, s.summary_id, ` + countsSQL + ` FROM differing s
) c
JOIN summaries f ON f.promotion_id = $1 AND f.summary_id = 0
JOIN promotions m ON m.id = $1
ORDER BY c.side, c.summary_id`

	// correctSQL adds differences to the stored counts, unless they were repaired
	// since the differences were read: $2 is the number of repairs before that. The
	// caller holds the lock of the counts. As in tally, the new counts are computed
	// where the rows are locked.
	correctSQL = func() string {
		var params, sums, sets []string
		for i, c := range summaryColumns {
			params = append(params, fmt.Sprintf("$%d::int8[]", i+4))
			sums = append(sums, fmt.Sprintf("s.%[1]s + d.%[1]s AS %[1]s", c))
			sets = append(sets, fmt.Sprintf("%[1]s = g.%[1]s", c))
		}
		return `WITH gates AS MATERIALIZED (
  SELECT s.promotion_id, s.summary_id, ` + strings.Join(sums, ", ") + `
  FROM (SELECT $1::int8 AS promotion_id, d.* FROM unnest($3::int8[], ` + strings.Join(params, ", ") + `)
    AS d(summary_id, ` + prefixed("", summaryColumns) + `)) d
  JOIN summaries f ON f.promotion_id = d.promotion_id AND f.summary_id = 0 AND f.repairs = $2
  JOIN summaries s ON s.promotion_id = d.promotion_id AND s.summary_id = d.summary_id
  ORDER BY s.promotion_id, s.summary_id FOR NO KEY UPDATE OF s
)
UPDATE summaries s SET repairs = s.repairs + 1, ` + strings.Join(sets, ", ") + `
FROM gates g WHERE s.promotion_id = g.promotion_id AND s.summary_id = g.summary_id`
	}()
)

// summaryColumns are the columns with counts and amounts, and the attempts.
var summaryColumns = func() []string {
	var all []string
	for _, c := range countColumns {
		all = append(all, c, c+"_amount")
	}
	return append(all, "attempts")
}()

func prefixed(prefix string, columns []string) string {
	return prefix + strings.Join(columns, ", "+prefix)
}

// comparison is what a read of both sides found.
type comparison struct {
	store.Comparison
	differing []reward.Summary // what the rows have more than is stored
	repairs   int64            // before the read
}

// SummaryCompare compares the stored counts with those of the rows, and repairs
// them without a lock while it reads.
//
// A transaction that changes rows moves their counts alike, so the difference
// stays the same if other transactions commit between the read and the repair. Adding it is
// therefore exact. Only two things change it: another repair, which correctSQL
// notices, and a transaction that found no row for a summary and did not count
// there. Such a row is inserted here, and the next read shows what was missed.
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
func (s *Store) readCounts(ctx context.Context, id reward.PromotionID) (comparison, error) {
	var c comparison
	var archived bool
	found := 0
	err := s.sendLong(ctx, "compare the counts of a promotion", func(b *pgx.Batch) {
		c, found = comparison{}, 0
		b.Queue(compareSQL, int64(id)).Query(each(func(rows pgx.Rows) error {
			var side int32
			var sum reward.Summary
			err := rows.Scan(append(append([]any{&side, &sum.ID}, countsInto(&sum.Counts)...), &c.repairs, &c.Ended, &archived, &c.Currency)...)
			switch found++; side {
			case 0:
				c.Kept = sum.Counts
			case 1:
				c.Rows = sum.Counts
			default:
				c.differing = append(c.differing, sum)
			}
			return err
		}))
	})
	if err == nil && found == 0 {
		err = store.NoPromotion(id)
	}
	if archived {
		c.Rows, c.differing = c.Kept, nil // its rows are removed
	}
	return c, err
}

// correctCounts adds the differences to the stored counts, and lets an ended
// promotion go on that has payouts left.
func (s *Store) correctCounts(ctx context.Context, id reward.PromotionID, c *comparison) error {
	differing := c.differing
	if len(differing) > 0 && differing[0].ID != 0 {
		differing = append([]reward.Summary{{}}, differing...) // its row counts the repairs
	}
	columns := make([][]int64, 1+len(summaryColumns)) // the summary IDs and the differences
	promotions := make([]int64, len(differing))
	args := []any{int64(id), c.repairs}
	for i, d := range differing {
		promotions[i] = int64(id)
		values := []int64{int64(d.ID)}
		for state := range d.Payouts {
			values = append(values, d.Payouts[state], int64(d.Amounts[state]))
		}
		for at, v := range append(values, d.Attempts) {
			columns[at] = append(columns[at], v)
		}
	}
	for _, column := range columns {
		args = append(args, column)
	}
	return s.send(ctx, "repair the counts of a promotion", func(b *pgx.Batch) {
		b.Queue(lockTotals, []int64{int64(id)})
		if len(differing) > 0 {
			b.Queue(addSummaries, promotions, columns[0])
			b.Queue(correctSQL, args...)
		}
		b.Queue(reopenSQL, []int64{int64(id)})
	})
}
