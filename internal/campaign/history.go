package campaign

import (
	"context"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// historyMax bounds the payouts in the history of a user.
const historyMax = store.BatchMax

// UserPayout is a payout of a user, what the provider said of it, and the
// promotion it is of.
type UserPayout struct {
	store.UserPayout
	Promotion reward.Promotion
}

// History returns the payouts of a user: those of the latest promotion first
// (by id), then by target id, at most 1000.
func (s *Promotions) History(ctx context.Context, user string) ([]UserPayout, error) {
	list, err := s.cfg.Store.PayoutHistory(ctx, user, historyMax)
	if err != nil {
		return nil, err
	}
	var ids []reward.PromotionID
	for _, p := range list {
		if len(ids) == 0 || ids[len(ids)-1] != p.PromotionID {
			ids = append(ids, p.PromotionID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	views, err := s.cfg.Store.PromotionViews(ctx, ids)
	if err != nil {
		return nil, err
	}
	promotions := make(map[reward.PromotionID]reward.Promotion, len(views))
	for _, v := range views {
		promotions[v.ID] = v.Promotion
	}
	out := make([]UserPayout, 0, len(list))
	for _, p := range list {
		// One that was deleted meanwhile has taken its payouts along.
		if promotion, ok := promotions[p.PromotionID]; ok {
			out = append(out, UserPayout{UserPayout: p, Promotion: promotion})
		}
	}
	return out, nil
}
