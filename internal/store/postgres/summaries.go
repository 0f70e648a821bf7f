package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
)

// SummaryList returns the summaries of a promotion with an id above 0.
func (s *Store) SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error) {
	var list []reward.Summary
	err := s.query(ctx, "list summaries", `SELECT s.summary_id, `+countsSQL+` FROM summaries s
WHERE s.promotion_id = $1 AND s.summary_id > 0 ORDER BY s.summary_id LIMIT $2`, func(rows pgx.Rows) error {
		sum := reward.Summary{PromotionID: id}
		if err := rows.Scan(append([]any{&sum.ID}, countsInto(&sum.Counts)...)...); err != nil {
			return err
		}
		list = append(list, sum)
		return nil
	}, int64(id), limit)
	if err != nil {
		return nil, err
	}
	return list, nil
}

// SummaryRecount counts the rows of a promotion.
func (s *Store) SummaryRecount(ctx context.Context, id reward.PromotionID) (reward.Counts, error) {
	var c reward.Counts
	err := s.sendLong(ctx, "recount a promotion", func(b *pgx.Batch) {
		c = reward.Counts{}
		b.Queue(`SELECT state, count(*), sum(amount)::int8, sum(attempts)::int8
FROM payouts WHERE promotion_id = $1 GROUP BY state`, int64(id)).Query(each(func(rows pgx.Rows) error {
			var state int16
			var n, amount, attempts int64
			if err := rows.Scan(&state, &n, &amount, &attempts); err != nil {
				return err
			}
			c.Payouts[state], c.Amounts[state] = n, reward.Amount(amount)
			c.Attempts += attempts
			return nil
		}))
	})
	if err != nil {
		return reward.Counts{}, err
	}
	return c, nil
}
