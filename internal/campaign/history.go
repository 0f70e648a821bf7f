package campaign

import (
	"context"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// historyMax limits the payouts in a user's history.
const historyMax = store.BatchMax

// UserPayout is a user's payout with its attempts and its promotion.
type UserPayout struct {
	store.UserPayout
	Promotion reward.Promotion
}

// History returns at most 1000 payouts of a user, by descending promotion id.
func (s *Promotions) History(ctx context.Context, user string) ([]UserPayout, error) {
	list, err := s.cfg.Store.PayoutHistory(ctx, user, historyMax)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	ids := make([]reward.PromotionID, len(list))
	for i, p := range list {
		ids[i] = p.PromotionID
	}
	views, err := s.cfg.Store.PromotionViews(ctx, slices.Compact(ids))
	if err != nil {
		return nil, err
	}
	promotions := make(map[reward.PromotionID]reward.Promotion, len(views))
	for _, v := range views {
		promotions[v.ID] = v.Promotion
	}
	out := make([]UserPayout, 0, len(list))
	for _, p := range list {
		// Skip payouts of a promotion that was deleted in the meantime.
		if promotion, ok := promotions[p.PromotionID]; ok {
			out = append(out, UserPayout{UserPayout: p, Promotion: promotion})
		}
	}
	return out, nil
}
