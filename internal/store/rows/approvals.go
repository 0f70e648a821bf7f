package rows

import (
	"context"
	"slices"

	"github.com/largesse/largesse/internal/reward"
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
		{SQL: `UPDATE promotions SET revision = revision + 1, ` + Unrejected + ` WHERE id = $1`, Args: []any{int64(id)}},
	}
}

// PromotionAuthors returns the authors of a promotion.
func (t *Tables) PromotionAuthors(ctx context.Context, id reward.PromotionID) ([]string, error) {
	authors, err := list(ctx, t.db.Read, "list the authors of a promotion", scanText, listAuthors, int64(id))
	slices.Sort(authors)
	return authors, err
}
