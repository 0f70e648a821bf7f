package rows

import (
	"context"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// SummaryList returns at most limit summaries of a promotion, ordered by ID.
func (t *Tables) SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error) {
	return list(ctx, t.db.Read, "list summaries", func(scan Scan, s *reward.Summary) error {
		s.PromotionID = id
		return scan(append([]any{&s.ID}, CountsInto(&s.Counts)...)...)
	}, `SELECT s.summary_id, `+CountsSQL+` FROM summaries s
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
	var k store.SharedKeys
	err := t.db.ReadLong(ctx, "look for shared transaction keys", func() Statement {
		k = store.SharedKeys{}
		return Statement{SQL: sharedKeys, Args: []any{int64(id)}, Row: func(scan Scan) error {
			return scan(&k.Payouts, &k.Keys, &k.Key, (*int64)(&k.First), (*int64)(&k.Last))
		}}
	})
	return k, err
}
