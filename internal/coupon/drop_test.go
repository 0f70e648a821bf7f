package coupon

import (
	"fmt"
	"sync"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

// TestDrop checks a rush for a hundred coupons on three instances, in each mode:
// exactly a hundred users get one, and all others are refused. In STREAM mode the
// tickets are 1…100 and the order of issue is the order of tickets.
func TestDrop(t *testing.T) {
	t.Parallel()
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka, reward.ModeSync} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			each(t, func(r *rig) {
				r.startAll(3)
				id := r.create(reward.CouponTemplate{TotalQuantity: 100, Mode: mode})
				const perInstance = 700
				var (
					wg    sync.WaitGroup
					mu    sync.Mutex // protects codes and in
					codes = make(map[string]int)
					in    = make(map[string]*instance)
				)
				for n, i := range r.instances {
					for u := range perInstance {
						user := fmt.Sprintf("u%d-%d", n, u)
						wg.Go(func() {
							_, code := r.request(i, id, user)
							mu.Lock()
							defer mu.Unlock()
							codes[code]++
							if code == "" {
								in[user] = i
							}
						})
					}
				}
				wg.Wait()
				if codes[""] != 100 || codes[reward.CodeSoldOut] != 3*perInstance-100 {
					t.Errorf("answers: %v", codes)
				}
				for user, i := range in {
					if s := r.outcome(i, id, user); s.Kind != StatusIssued || s.Coupon.UserID != user {
						t.Errorf("%s: %+v", user, s)
					}
				}
				list := r.coupons(id)
				if len(list) != 100 {
					t.Fatalf("%d coupons", len(list))
				}
				users, codesSeen := make(map[string]bool), make(map[string]bool)
				for n, c := range list {
					users[c.UserID], codesSeen[c.Code] = true, true
					if mode == reward.ModeStream && c.Ticket != int64(n+1) {
						t.Errorf("ticket %d is %d", n+1, c.Ticket)
					}
					if mode == reward.ModeStream && n > 0 && c.IssuedAt.Before(list[n-1].IssuedAt) {
						t.Errorf("ticket %d was issued before the previous one", c.Ticket)
					}
				}
				if len(users) != 100 || len(codesSeen) != 100 {
					t.Errorf("%d users, %d codes", len(users), len(codesSeen))
				}
				r.balanced(id)
			})
		})
	}
}
