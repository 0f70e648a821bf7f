package coupon

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TestDraw checks that users who request before the opening are drawn in the
// verifiable order, and that later users get later tickets.
func TestDraw(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.startAll(2)
		opens := time.Now().Add(6 * time.Second)
		id := r.create(reward.CouponTemplate{
			TotalQuantity: 30, OpensAt: opens, Draw: reward.Draw{From: time.Now().Add(time.Second)}, ReissueAfterCancel: true,
		})
		few := r.create(reward.CouponTemplate{TotalQuantity: 30, OpensAt: opens, Draw: reward.Draw{From: time.Now().Add(time.Second)}})
		r.want(r.instances[0], id, "early", reward.CodeNotOpen)
		before, err := r.instances[0].Catalog.Get(r.Context(), id)
		if err != nil {
			r.Fatal(err)
		}
		r.until("the draw begins", func() bool {
			_, code := r.request(r.instances[0], id, "u0")
			return code == ""
		})
		var users []string
		var wg sync.WaitGroup
		for n := range 100 {
			user := fmt.Sprint("u", n)
			users = append(users, user)
			wg.Go(func() {
				if s, code := r.request(r.instances[n%2], id, user); code != "" || s.Kind != StatusWaiting || s.Ticket != 0 {
					r.Errorf("%s: %q %+v", user, code, s)
				}
			})
		}
		wg.Wait()
		r.until("the other draw begins", func() bool {
			_, code := r.request(r.instances[1], few, "u0")
			return code == ""
		})
		for n := range 10 {
			r.want(r.instances[1], few, fmt.Sprint("u", n), "")
		}
		if s, err := r.instances[1].Intake.Status(r.Context(), id, "u5"); err != nil || s.Kind != StatusWaiting {
			r.Errorf("before the draw: %+v, %v", s, err)
		}
		won, lost := 0, 0
		for _, user := range users {
			switch s := r.outcome(r.instances[0], id, user); {
			case s.Kind == StatusIssued:
				won++
			case s.Reason == reward.ReasonNotDrawn:
				lost++
			}
		}
		if won != 30 || lost != 70 {
			r.Errorf("%d won, %d lost", won, lost)
		}
		var after View
		r.until("the draw is done", func() bool {
			after, err = r.instances[0].Catalog.Get(r.Context(), id)
			return err == nil && after.Draw.State == reward.DrawDone
		})
		slices.Sort(users)
		if !bytes.Equal(Commitment(after.Draw.Seed), Commitment(before.Draw.Seed)) || !bytes.Equal(after.Draw.List, ListHash(users)) {
			r.Error("the seed or the list has changed")
		}
		order := DrawOrder(after.Draw.Seed, after.Draw.List, users)
		for n, c := range r.coupons(id) {
			if c.UserID != order[n] || c.Ticket != int64(n+1) {
				r.Errorf("ticket %d belongs to %s, the draw order has %s", c.Ticket, c.UserID, order[n])
			}
		}
		r.want(r.instances[1], id, "later", reward.CodeSoldOut)
		if c := r.take(r.instances[1], few, "later"); c.Ticket != 11 {
			r.Errorf("the later user has ticket %d", c.Ticket)
		}
		r.balanced(id)
		r.balanced(few)
	})
}

// TestDrawOrder checks that the order depends on the seed and the entrants only, and
// that all entrants have the same chance.
func TestDrawOrder(t *testing.T) {
	t.Parallel()
	users := []string{"a", "b", "c", "d"}
	first := make(map[string]int)
	for range 4000 {
		seed := NewSeed()
		order := DrawOrder(seed, ListHash(users), users)
		first[order[0]]++
		if again := DrawOrder(seed, ListHash(users), []string{"d", "c", "b", "a"}); !slices.Equal(order, again) {
			t.Fatalf("%v, then %v", order, again)
		}
	}
	for user, n := range first {
		if n < 800 || n > 1200 {
			t.Errorf("%s is first %d of 4000 times", user, n)
		}
	}
	if bytes.Equal(ListHash([]string{"ab", "c"}), ListHash([]string{"a", "bc"})) {
		t.Error("two lists have the same hash")
	}
}
