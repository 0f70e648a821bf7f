package store

import "github.com/largesse/largesse/internal/reward"

// NoPromotion returns the error for a promotion that does not exist.
func NoPromotion(id reward.PromotionID) error {
	return reward.NewError(reward.KindNotFound, reward.CodeNotFound, "there is no promotion %d", id)
}

// NoPayout returns the error for a payout that does not exist.
func NoPayout(id PayoutID) error {
	return reward.NewError(reward.KindNotFound, reward.CodePayoutNotFound, "promotion %d has no target %d", id.PromotionID, id.TargetID)
}
