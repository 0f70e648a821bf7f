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
	// compareSQL returns two rows for the whole promotion, the stored counts
	// first, and reports whether any summary differs.
	compareSQL = summedSQL + `, differing AS (
  SELECT 1 FROM (` + overSummaries("-%[1]s AS %[1]s", "sum(%[1]s) AS %[1]s") + `) d
  WHERE (` + prefixed("d.", summaryColumns) + `) IS DISTINCT FROM (` + strings.Join(slices.Repeat([]string{"0"}, len(summaryColumns)), ", ") + `)
)
SELECT * FROM (
  SELECT 0 AS side, EXISTS (SELECT 1 FROM differing), ` + countsSQL + ` FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0
  UNION ALL SELECT 1, EXISTS (SELECT 1 FROM differing), ` + countsSQL + ` FROM summed s WHERE s.summary_id = 0
) c ORDER BY side`

	// repairSQL sets the stored counts to those of the rows. The caller holds
	// their lock.
	repairSQL = summedSQL + `
INSERT INTO summaries AS s (promotion_id, summary_id, ` + prefixed("", summaryColumns) + `)
SELECT $1, r.* FROM (` + overSummaries("0 AS %[1]s", "sum(%[1]s)::int8") + `) r ORDER BY r.summary_id
ON CONFLICT (promotion_id, summary_id) DO UPDATE SET
  (` + prefixed("", summaryColumns) + `) = ROW (` + prefixed("excluded.", summaryColumns) + `)
WHERE (` + prefixed("s.", summaryColumns) + `) IS DISTINCT FROM (` + prefixed("excluded.", summaryColumns) + `)`
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

// SummaryCompare compares the stored counts with those of the rows. It locks
// the counts only if they differ and repair is set, because it then holds the
// lock while it reads all rows.
func (s *Store) SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (kept, rows reward.Counts, err error) {
	var sides []reward.Counts
	var differ bool
	compare := func(b *pgx.Batch) {
		sides, differ = nil, false
		b.Queue(compareSQL, int64(id)).Query(each(func(rows pgx.Rows) error {
			var side int32
			var c reward.Counts
			err := rows.Scan(append([]any{&side, &differ}, countsInto(&c)...)...)
			sides = append(sides, c)
			return err
		}))
	}
	if err := s.sendLong(ctx, "compare the counts of a promotion", compare); err != nil {
		return reward.Counts{}, reward.Counts{}, err
	}
	if len(sides) < 2 {
		return reward.Counts{}, reward.Counts{}, store.NoPromotion(id)
	}
	if !repair || !differ {
		return sides[0], sides[1], nil
	}
	err = s.sendLong(ctx, "repair the counts of a promotion", func(b *pgx.Batch) {
		b.Queue(lockTotals, []int64{int64(id)})
		compare(b)
		b.Queue(repairSQL, int64(id))
	})
	if err != nil {
		return reward.Counts{}, reward.Counts{}, err
	}
	if len(sides) < 2 {
		return reward.Counts{}, reward.Counts{}, store.NoPromotion(id)
	}
	return sides[0], sides[1], nil
}
