package payout

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestNoCallStartsUnderAnOldView lets the provider ask for a pause of 3 s, during which
// the promotions cannot be read any more. The consumer, which still has the entry, calls
// again only when they can.
func TestNoCallStartsUnderAnOldView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rows *faultyStore
		provider := newProvider(func(_ reward.TargetID, n int) money.Answer {
			if n == 0 {
				return money.Answer{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 3 * time.Second}
			}
			return money.Answer{Class: reward.AnswerPaid}
		})
		s := newStage(t, provider, func(of store.Store, q queue.Queue) (store.Store, queue.Queue) {
			rows = &faultyStore{Store: of}
			return rows, q
		})
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
