package rows

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	// AddAuthor records author $2 of promotion $1. The drivers run it in the
	// transaction of a change.
	AddAuthor = `INSERT INTO promotion_authors (promotion_id, author) VALUES ($1, $2) ON CONFLICT DO NOTHING`

	// Unapproved sets the columns of a promotion as rules.Unapproved does, for an
	// UPDATE.
	Unapproved = `approved_by = '', approved_rounds = 0, approved_amount = 0, approved_count = 0, approved_until = NULL`

	// Unrejected sets the columns of a promotion that nobody has rejected.
	Unrejected = `rejected_by = '', reject_reason = ''`

	listAuthors = `SELECT author FROM promotion_authors WHERE promotion_id = $1`
)

// PromotionAuthorAdd records who changes a promotion or adds targets to it.
func (t *Tables) PromotionAuthorAdd(ctx context.Context, id reward.PromotionID, author string) error {
	if err := store.CheckText("author", author); err != nil {
		return err
	}
	return t.db.Write(ctx, "record an author", func() []Statement { return authored(id, author) })
}

// authored returns the statements that record an author before a change. They
// return nothing if there is no author.
func authored(id reward.PromotionID, author string) []Statement {
	if author == "" {
		return nil
	}
	return []Statement{
		{SQL: AddAuthor, Args: []any{int64(id), author}},
		{SQL: `UPDATE promotions SET revision = revision + 1, ` + Unrejected + `,
  day_granted = coalesce(day_granted, CASE WHEN status <> 'DRAFT' THEN 0 END) WHERE id = $1`, Args: []any{int64(id)}},
	}
}

// lockGrants has grants decided one after the other, so that each sees those before it.
const lockGrants = `INSERT INTO leases (name, owner, until) VALUES ('approval.above-per-day', '', $1)
ON CONFLICT (name) DO UPDATE SET until = excluded.until`

// Limits returns limits as a parameter of Limit: an object of JSON with those of the
// currencies by code, and that of all others as "*".
func Limits(l reward.Limits) string {
	all := map[string]reward.Amount{"*": l.Default}
	maps.Copy(all, l.Own)
	text, _ := json.Marshal(all) // a map of numbers never fails
	return string(text)
}

// Limit returns the limit of a currency, as SQL, from a parameter of Limits. It is
// Limits.Of of package reward. SQLite finds nothing by an empty text.
func (d Dialect) Limit(param, currency string) string {
	param += d.JSON
	return `CAST(coalesce(` + param + ` ->> ` + currencyOf(currency) + `, ` + param + ` ->> '*') AS bigint)`
}

// currencyOf returns the currency of a column, as SQL: an empty one is that of points.
func currencyOf(column string) string {
	return `coalesce(nullif(` + column + `, ''), '` + reward.NoCurrency + `')`
}

// grantSQL grants promotion $1 its worth if that, and the grants since $4 to the other
// promotions of its authors, are at most the limit of its currency in $2. It grants
// everything if there is no limit. A promotion without an author needs no grant.
func (d Dialect) grantSQL() string {
	return `WITH q AS MATERIALIZED (
  SELECT p.*, p.per_day <= 0 AS free, coalesce(p.day_granted < p.worth, true) AS asks,
    NOT EXISTS (SELECT 1 FROM promotion_authors a WHERE a.promotion_id = p.id) AS nobody,
    p.worth <= p.per_day - (SELECT coalesce(sum(o.day_granted), 0) FROM promotions o
      WHERE o.day_granted_at > $4 AND o.id <> p.id AND ` + currencyOf(`o.currency`) + ` = ` + currencyOf(`p.currency`) + ` AND EXISTS (
        SELECT 1 FROM promotion_authors a JOIN promotion_authors b ON b.promotion_id = o.id AND lower(b.author) = lower(a.author)
        WHERE a.promotion_id = p.id)) AS fits
  FROM (SELECT m.id, m.currency, m.day_granted, m.day_granted_at, ` + d.Limit(`$2`, `m.currency`) + ` AS per_day, ` + Worth + ` AS worth
    FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0 WHERE m.id = $1) p
), g AS MATERIALIZED (
  SELECT id, currency, CASE WHEN nobody THEN NULL WHEN free THEN 9223372036854775807 WHEN asks AND fits THEN worth ELSE coalesce(day_granted, 0) END AS granted,
    CASE WHEN nobody OR free THEN NULL WHEN asks AND fits THEN $3 ELSE day_granted_at END AS at
  FROM q
)
UPDATE promotions AS m SET day_granted = g.granted, day_granted_at = g.at
FROM g WHERE m.id = g.id AND m.currency = g.currency AND m.day_granted IS DISTINCT FROM g.granted`
}

var isGranted = `SELECT coalesce(m.day_granted >= ` + Worth + `, true)
FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0 WHERE m.id = $1`

// PromotionGrant grants a promotion its worth from the amount per day of its authors.
func (t *Tables) PromotionGrant(ctx context.Context, p store.PromotionGrantParams) (granted bool, err error) {
	err = t.db.Write(ctx, "grant a promotion its worth", func() []Statement {
		granted = false
		return []Statement{
			{SQL: lockGrants, Args: []any{p.Now}},
			{SQL: t.grantDay, Args: []any{int64(p.ID), Limits(p.PerDay), p.Now, p.Now.Add(-rules.GrantsDay)}},
			{SQL: isGranted, Args: []any{int64(p.ID)}, Row: func(scan Scan) error { return scan(&granted) }},
		}
	})
	return granted && err == nil, err
}

// PromotionAuthors returns the authors of a promotion.
func (t *Tables) PromotionAuthors(ctx context.Context, id reward.PromotionID) ([]string, error) {
	authors, err := list(ctx, t.db.Read, "list the authors of a promotion", scanText, listAuthors, int64(id))
	slices.Sort(authors)
	return authors, err
}
