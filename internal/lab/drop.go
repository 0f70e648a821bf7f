package lab

import (
	"context"
	"fmt"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

type dropRows interface {
	CouponList(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error)
	TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
}

// CheckDrop checks the coupons of a template in mode STREAM without cancelled
// coupons. want is the number of coupons that must be issued.
func CheckDrop(ctx context.Context, rows dropRows, id reward.TemplateID, want int64) ([]Verdict, error) {
	users := make(map[string]bool)
	var count, holes, unordered int64
	var last reward.Coupon
	for {
		page, err := rows.CouponList(ctx, store.CouponListParams{TemplateID: id, After: store.CouponPlace{Ticket: last.Ticket, Generation: last.Generation}, Limit: store.BatchMax})
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
		{Invariant: "exactly the expected number of coupons is issued", Holds: count == want, Detail: fmt.Sprintf("%d of %d", count, want)},
		{Invariant: "every coupon has a different user", Holds: int64(len(users)) == count, Detail: fmt.Sprintf("%d users", len(users))},
		{Invariant: "tickets start at 1 and have no gap", Holds: holes == 0, Detail: fmt.Sprintf("%d gaps up to ticket %d", holes, last.Ticket)},
		{Invariant: "coupons are issued in the order of tickets", Holds: unordered == 0, Detail: fmt.Sprintf("%d out of order", unordered)},
		{
			Invariant: "the counters match the rows", Holds: t.Live == count && t.IssuedTotal == count,
			Detail: fmt.Sprintf("%d live, %d ever issued", t.Live, t.IssuedTotal),
		},
	}, nil
}
