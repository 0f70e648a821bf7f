package payout

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestNoCallStartsUnderAnOldView lets the provider ask for a pause of 3 s, during which
// the promotions cannot be read any more. The consumer, which still has the entry, calls
// again only when they can.
func TestNoCallStartsUnderAnOldView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		later := money.Answer{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 3 * time.Second}
		provider := payingBut(later, func(_ reward.TargetID, n int) bool { return n == 0 })
		s := newStage(t, provider)
		rows := &faultyStore{Store: s.store}
		s.with(func(cfg *Config) { cfg.Store = rows }, dropPublisher{})
		s.create(1, 5)
		s.start()
		s.until("throttled", func(store.PromotionView) bool { return provider.callsOf(1) == 1 })
		rows.blind.Store(true)
		time.Sleep(8 * time.Second)
		if n := provider.callsOf(1); n != 1 {
			t.Errorf("%d calls under a view that is older than a second", n-1)
		}
		rows.blind.Store(false)
		s.until("paid", paidOut)
		s.balance(1)
	})
}
