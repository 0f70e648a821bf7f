package lab

import (
	"context"
	"fmt"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// CheckDrop holds the coupons of a template in STREAM mode, of which none was
// cancelled, against what must be true when so many were issued.
func CheckDrop(ctx context.Context, rows store.Coupons, id reward.TemplateID, want int64) ([]Verdict, error) {
	users := make(map[string]bool)
	var count, holes, unordered int64
	var last reward.Coupon
	for {
		page, err := rows.CouponList(ctx, store.CouponListParams{TemplateID: id, AfterTicket: last.Ticket, Limit: store.BatchMax})
		if err != nil {
			return nil, err
		}
		for _, c := range page {
			if c.Ticket != last.Ticket+1 {
				holes++
			}
			if c.IssuedAt.Before(last.IssuedAt) {
				unordered++
			}
			users[c.UserID] = true
			count++
			last = c
		}
		if len(page) < store.BatchMax {
			break
		}
	}
	t, err := rows.TemplateGet(ctx, id)
	if err != nil {
		return nil, err
	}
	return []Verdict{
		{Invariant: "exactly as many coupons as there should be", Holds: count == want, Detail: fmt.Sprintf("%d of %d", count, want)},
		{Invariant: "each to another person", Holds: int64(len(users)) == count, Detail: fmt.Sprintf("%d people", len(users))},
		{Invariant: "tickets from 1 on without a hole", Holds: holes == 0, Detail: fmt.Sprintf("%d holes up to %d", holes, last.Ticket)},
		{Invariant: "issued in the order of tickets", Holds: unordered == 0, Detail: fmt.Sprintf("%d out of order", unordered)},
		{
			Invariant: "the counters say what the rows do", Holds: t.Live == count && t.IssuedTotal == count,
			Detail: fmt.Sprintf("live %d, issued in all %d", t.Live, t.IssuedTotal),
		},
	}, nil
}
