package rows

import (
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// PromotionCreate inserts a DRAFT promotion and returns it as stored.
//
// A DRAFT that Kafka registered is completed with the fields of p (name,
// amount and so on), but only once. A known ID of another type is
// CodeTypeMismatch. Any other known ID is CodeExists.
//
// Weight 0 becomes 1. Version is ignored: a new promotion has 1, and a
// completion counts as a change. CreatedBy becomes an author (PromotionAuthors).
// Nothing is approved afterwards, even if the registered DRAFT was. The progress
// fields of p.Canary are ignored.
func (t *Tables) PromotionCreate(ctx context.Context, p reward.Promotion) (reward.Promotion, error) {
	if err := store.CheckPromotion(p); err != nil {
		return reward.Promotion{}, err
	}
	const what = "create a promotion"
	var v store.PromotionView
	err := whileStale(what, func() error {
		was, err := t.promotion(ctx, what, p.ID)
		c, existing := promotionChange{author: p.CreatedBy}, &was.Promotion
		if reward.HasCode(err, reward.CodeNotFound) {
			c.next, existing, err = rules.NewPromotion(p), nil, nil
		} else if err == nil {
			c.next, err = rules.FillRegistered(was.Promotion, p)
		}
		if err != nil {
			return err
		}
		v, err = t.writePromotion(ctx, what, existing, c)
		return err
	})
	if err != nil {
		return reward.Promotion{}, err
	}
	return v.Promotion, nil
}

// PromotionRegister makes sure that the promotions named by Kafka records
// exist. store.Registration says what changes. No DRAFT starts that is
// rejected or, with approvalAbove, rules.StartsEarly at now.
//
// It returns one promotion per registration, in order, as it is afterwards. A
// registration of another type changes nothing and is no error: the caller
// compares the types.
//
// It inserts them first, and starts them in a second transaction, which sees their
// authors. If the process dies between the two, the record is delivered again.
func (t *Tables) PromotionRegister(ctx context.Context, rs []store.Registration, approvalAbove reward.Limits, now time.Time) ([]reward.Promotion, error) {
	const what = "register promotions"
	merged := store.MergeRegistrations(rs)
	var stand map[reward.PromotionID]reward.Promotion
	err := whileStale(what, func() error {
		views, err := t.registered(ctx, what, merged)
		if err != nil {
			return err
		}
		stand = make(map[reward.PromotionID]reward.Promotion, len(views))
		var inserts, updates []Statement
		for _, r := range merged {
			v, exists := views[r.ID]
			switch {
			case !exists:
				p := rules.NewRegistered(r.ID, r.Type, now)
				inserts = append(inserts, insertion(&p, false)...)
			case r.Type == v.Type && r.Started:
				next := rules.StartByRecord(v.Promotion, v.Counts, r.ExpectedCount, v.authored, approvalAbove, now)
				if next != v.Promotion {
					updates = append(updates, update(&v.Promotion, &next)...)
				}
				stand[r.ID] = next
			default:
				if _, done := stand[r.ID]; !done {
					stand[r.ID] = v.Promotion
				}
			}
		}
		if len(inserts) > 0 {
			if err := t.db.Write(ctx, what, func() []Statement { return inserts }); err != nil {
				return err
			}
			return ErrStale
		}
		if len(updates) == 0 {
			return nil
		}
		return t.db.Write(ctx, what, func() []Statement { return updates })
	})
	if err != nil {
		return nil, err
	}
	result := make([]reward.Promotion, len(rs))
	for i, r := range rs {
		result[i] = stand[r.ID]
	}
	return result, nil
}

// registered is a promotion that a record names.
type registered struct {
	store.PromotionView
	authored bool // it has an author
}

// registered returns the promotions of registrations that exist.
func (t *Tables) registered(ctx context.Context, what string, rs []store.Registration) (map[reward.PromotionID]registered, error) {
	found := make(map[reward.PromotionID]registered, len(rs))
	for some := range slices.Chunk(rs, store.BatchMax) {
		ids := make([]reward.PromotionID, len(some))
		for i, r := range some {
			ids[i] = r.ID
		}
		views, err := list(ctx, t.db.Read, what, func(scan Scan, r *registered) error {
			return ScanView(scan, &r.PromotionView, &r.authored)
		}, registeredPromotions, ids)
		if err != nil {
			return nil, err
		}
		for _, v := range views {
			found[v.ID] = v
		}
	}
	return found, nil
}

// registeredPromotions reads the promotions among the IDs $1, and whether they have authors.
var registeredPromotions = `SELECT ` + ViewColumns + `, EXISTS (SELECT 1 FROM promotion_authors a WHERE a.promotion_id = m.id)
FROM ` + joinCounts + ` WHERE m.id :among ORDER BY m.id`

// PromotionDelete removes a DRAFT and all its rows. Another status is
// CodeIllegalState.
//
// The lock of its counts keeps payouts from being saved meanwhile.
func (t *Tables) PromotionDelete(ctx context.Context, id reward.PromotionID) error {
	const what = "delete a promotion"
	return whileStale(what, func() error {
		v, err := t.promotion(ctx, what, id)
		switch {
		case err != nil:
			return err
		case v.Status != reward.Draft:
			return reward.NewError(reward.KindConflict, reward.CodeIllegalState, "promotion %d is %s; only a DRAFT can be deleted", id, v.Status)
		}
		args := []any{int64(id)}
		return t.db.WriteLong(ctx, what, func() []Statement {
			return []Statement{
				{SQL: lockCounts, Args: args},
				{SQL: `DELETE FROM attempts WHERE promotion_id = $1`, Args: args},
				{SQL: `DELETE FROM payouts WHERE promotion_id = $1`, Args: args},
				{SQL: `DELETE FROM promotions WHERE id = $1 AND status = 'DRAFT' RETURNING id`, Args: args, Must: true},
			}
		})
	})
}
