package coupon

import (
	"fmt"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

// TestDrop checks a rush for a hundred coupons on three instances, in each mode:
// exactly a hundred users get one, with a code in the style of the template, and all others
// are refused. In STREAM mode the tickets are 1…100 and the order of issue is the order of
// tickets.
func TestDrop(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		r.startAll(3)
		exerciseDrop(r, mode, 700)
	})
	onServers(t, func(r *rig) {
		r.startAll(3)
		for _, mode := range allModes {
			exerciseDrop(r, mode, 200)
		}
	})
}

func exerciseDrop(r *rig, mode reward.IssueMode, perInstance int) {
	r.Helper()
	id := r.create(reward.CouponTemplate{TotalQuantity: 100, Mode: mode, Codes: reward.CodeStyle{Prefix: "MAY-", Length: 8, Alphabet: "0123456789"}})
	var wg sync.WaitGroup
	told := make([][]string, len(r.instances))
	for n, i := range r.instances {
		wg.Go(func() { told[n] = r.rush(i, id, fmt.Sprint("u", n, "-"), perInstance) })
	}
	wg.Wait()
	if n := len(slices.Concat(told...)); n != 100 {
		r.Errorf("%d users were not refused", n)
	}
	for n, i := range r.instances {
		for _, user := range told[n] {
			if s := r.outcome(i, id, user); s.Kind != StatusIssued || s.Coupon.UserID != user {
				r.Errorf("%s: %+v", user, s)
			}
		}
	}
	list := r.coupons(id)
	if len(list) != 100 {
		r.Fatalf("%d coupons", len(list))
	}
	users, codesSeen := make(map[string]bool), make(map[string]bool)
	for n, c := range list {
		users[c.UserID], codesSeen[c.Code] = true, true
		if !regexp.MustCompile(`^MAY-[0-9]{8}$`).MatchString(c.Code) {
			r.Errorf("ticket %d has the code %s", c.Ticket, c.Code)
		}
		if mode == reward.ModeStream && c.Ticket != int64(n+1) {
			r.Errorf("ticket %d is %d", n+1, c.Ticket)
		}
		if mode == reward.ModeStream && n > 0 && c.IssuedAt.Before(list[n-1].IssuedAt) {
			r.Errorf("ticket %d was issued before the previous one", c.Ticket)
		}
	}
	if len(users) != 100 || len(codesSeen) != 100 {
		r.Errorf("%d users, %d codes", len(users), len(codesSeen))
	}
	r.balanced(id)
}
