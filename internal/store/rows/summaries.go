package rows

import (
	"context"

	"github.com/largesse/largesse/internal/reward"
)

// SummaryList returns the summaries of a promotion with an id above 0.
func (t *Tables) SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error) {
	return list(ctx, t.db.Read, "list summaries", func(scan Scan, s *reward.Summary) error {
		s.PromotionID = id
		return scan(append([]any{&s.ID}, CountsInto(&s.Counts)...)...)
	}, `SELECT s.summary_id, `+CountsSQL+` FROM summaries s
WHERE s.promotion_id = $1 AND s.summary_id > 0 ORDER BY s.summary_id LIMIT $2`, int64(id), limit)
}

// SummaryRecount counts the rows of a promotion.
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
