package store

import (
	"cmp"
	"slices"

	"github.com/largesse/largesse/internal/reward"
)

// Rounds cuts a batch into rounds and returns the positions of their items. Each
// round names a payout at most once and is ordered by PayoutID.Compare. Items of
// one payout stay in order.
//
// A statement reads all its rows before it changes the first one. With rounds,
// two items of one payout still take effect one after the other. Most batches
// have one round.
func Rounds[T any](items []T, idOf func(*T) PayoutID) [][]int {
	var rounds [][]int
	seen := make(map[PayoutID]int, len(items))
	for i := range items {
		id := idOf(&items[i])
		n := seen[id]
		seen[id] = n + 1
		if n == len(rounds) {
			rounds = append(rounds, make([]int, 0, len(items)-i))
		}
		rounds[n] = append(rounds[n], i)
	}
	for _, round := range rounds {
		slices.SortFunc(round, func(a, b int) int {
			return idOf(&items[a]).Compare(idOf(&items[b]))
		})
	}
	return rounds
}

// Compare orders payouts by promotion, then target. Transactions lock rows in
// this order.
func (id PayoutID) Compare(other PayoutID) int {
	return cmp.Or(cmp.Compare(id.PromotionID, other.PromotionID), cmp.Compare(id.TargetID, other.TargetID))
}

// MergeRegistrations merges a batch into one registration per promotion and
// type, ordered by promotion ID. If a batch names several types of one ID, the
// type named first comes first: a new promotion gets that one.
func MergeRegistrations(rs []Registration) []Registration {
	type key struct {
		id  reward.PromotionID
		typ reward.PromotionType
	}
	merged := make([]Registration, 0, len(rs))
	at := make(map[key]int, len(rs))
	for _, r := range rs {
		k := key{r.ID, r.Type}
		i, ok := at[k]
		if !ok {
			i = len(merged)
			at[k] = i
			merged = append(merged, Registration{ID: r.ID, Type: r.Type})
		}
		if m := &merged[i]; r.Started {
			m.Started = true
			if m.ExpectedCount == nil {
				m.ExpectedCount = r.ExpectedCount
			}
		}
	}
	slices.SortStableFunc(merged, func(a, b Registration) int { return cmp.Compare(a.ID, b.ID) })
	return merged
}
