package postgres

import (
	"fmt"
	"strings"

	"github.com/largesse/largesse/internal/store/rows"
)

// tally returns the CTEs that move counts and amounts, for each promotion and
// for each summary ID above 0. source names a CTE with one row per moved
// payout: promotion_id, summary_id, amount, was, became and answers. was and
// became are the states before and after, NULL if there is none. answers is
// added to the counted attempts. The summary rows are locked in key order
// before the first one is written.
//
// The new counts are computed where the rows are locked, not in the UPDATE. An
// UPDATE checks constraints against the row version of its snapshot, before it
// notices a newer one. A count that is correct by now could be negative in that
// version.
func tally(source string) string {
	var deltas, sums, sets []string
	for i, c := range rows.CountColumns {
		deltas = append(deltas, fmt.Sprintf(`(coalesce(sum(n) FILTER (WHERE became = %[1]d), 0)
      - coalesce(sum(n) FILTER (WHERE was = %[1]d), 0))::int8 AS %[2]s,
    (coalesce(sum(worth) FILTER (WHERE became = %[1]d), 0)
      - coalesce(sum(worth) FILTER (WHERE was = %[1]d), 0))::int8 AS %[2]s_amount`, i, c))
		for _, c := range []string{c, c + "_amount"} {
			sums = append(sums, fmt.Sprintf("s.%[1]s + d.%[1]s AS %[1]s", c))
			sets = append(sets, fmt.Sprintf("%[1]s = g.%[1]s", c))
		}
	}
	return fmt.Sprintf(`moves AS MATERIALIZED (
  SELECT promotion_id, summary_id, was, became, count(*) AS n, sum(amount) AS worth, sum(answers) AS answers
  FROM %s GROUP BY promotion_id, summary_id, was, became
), deltas AS MATERIALIZED (
  SELECT promotion_id, coalesce(summary_id, 0) AS summary_id, sum(answers)::int8 AS answers,
    %s
  FROM moves GROUP BY GROUPING SETS ((promotion_id), (promotion_id, summary_id))
  HAVING GROUPING(summary_id) = 1 OR summary_id > 0
), gates AS MATERIALIZED (
  SELECT s.promotion_id, s.summary_id, s.attempts + d.answers AS attempts, %s
  FROM deltas d JOIN summaries s ON s.promotion_id = d.promotion_id AND s.summary_id = d.summary_id
  ORDER BY s.promotion_id, s.summary_id FOR NO KEY UPDATE OF s
), counted AS (
  UPDATE summaries s SET attempts = g.attempts, %s
  FROM gates g WHERE s.promotion_id = g.promotion_id AND s.summary_id = g.summary_id
)`, source, strings.Join(deltas, ",\n    "), strings.Join(sums, ", "), strings.Join(sets, ", "))
}

// lockTotals locks the summary rows of whole promotions, by ID.
const lockTotals = `SELECT promotion_id FROM summaries
WHERE promotion_id = ANY($1::int8[]) AND summary_id = 0 ORDER BY promotion_id FOR NO KEY UPDATE`
