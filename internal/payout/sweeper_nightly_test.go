//go:build nightly

package payout

import (
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestAHugeCancelHoldsNoCompletionUp cancels a promotion with 1,500,000 READY
// payouts. Meanwhile, the last payouts of another promotion are recorded. That
// promotion completes long before the cancel has ended.
func TestAHugeCancelHoldsNoCompletionUp(t *testing.T) {
	t.Parallel()
	const (
		huge, other reward.PromotionID = 1, 2
		ready                          = 1_500_000
		targets                        = 100
		bound                          = 3 * time.Second
	)
	memory := queue.NewMemory()
	t.Cleanup(memory.Close)
	h := newHousekeeper(t, memory)
	if _, err := h.store.PromotionRegister(t.Context(), []store.Registration{{ID: huge, Type: reward.Point, Started: true}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	var saving sync.WaitGroup
	slots := make(chan struct{}, 4)
	for from := 1; from <= ready; from += store.BatchMax {
		slots <- struct{}{}
		saving.Go(func() {
			defer func() { <-slots }()
			h.save(huge, from, from+store.BatchMax-1, 0)
		})
	}
	saving.Wait()
	h.create(other, targets)
	h.start()
	began := time.Now()
	_, err := h.store.PromotionMove(t.Context(), store.PromotionMoveParams{
		ID: huge, From: []reward.PromotionStatus{reward.Running}, To: reward.PromotionCancelled, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	h.until("some payouts cancelled", time.Minute, func() bool { return h.view(huge).Counts.Payouts[reward.Cancelled] > 0 })
	h.pay(other, targets)
	took := h.until("the other promotion completed", 5*time.Minute, func() bool { return h.view(other).Status == reward.Completed })
	left := h.view(huge).Counts.Payouts[reward.Ready]
	h.until("the cancel over", 5*time.Minute, func() bool { return !h.view(huge).FinishedAt.IsZero() })
	t.Logf("the other promotion completed %.1f s after its last payout, with %d payouts left to cancel; the cancel took %.1f s",
		took.Seconds(), left, time.Since(began).Seconds())
	if took > bound || left == 0 {
		t.Errorf("completed after %v with %d payouts left to cancel, want within %v and before the cancel has ended", took, left, bound)
	}
}
