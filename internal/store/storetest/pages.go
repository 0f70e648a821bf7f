package storetest

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// recorder is a DB that keeps the first statement it gets, and runs none.
type recorder struct{ sql string }

func (r *recorder) Run(_ context.Context, _ string, _ rows.Mode, build func() []rows.Statement) error {
	r.sql = build()[0].SQL
	return errors.New("recorded")
}

// pages returns the first statement of a call with each of some filters, by the names of these.
func pages[P, T any](d rows.Dialect, list func(*rows.Tables, context.Context, P) ([]T, error), filters map[string]P) map[string]string {
	all := make(map[string]string)
	for name, p := range filters {
		var r recorder
		_, _ = list(rows.New(&r, nil, d), context.Background(), p) // it fails after the statement
		all[name] = r.sql
	}
	return all
}

// PromotionPages returns the statements that read a page of promotions with each filter and
// each order, by name. Tests of the drivers check their query plans.
func PromotionPages(d rows.Dialect) map[string]string {
	epoch := time.Unix(0, 0)
	filters := map[string]store.PromotionListParams{
		"list promotions": {}, "list promotions in a status": {Status: "DRAFT"}, "list promotions that await an approval": {AwaitingApproval: true}, "list promotions of a creator": {CreatedBy: "a"},
		"list promotions of a creator in a status": {CreatedBy: "a", Status: "DRAFT"}, "search promotions": {Search: "a"},
		"list promotions by ID": {Sort: store.SortID}, "list promotions by name": {Sort: store.SortName},
		"list promotions by name, down": {Sort: store.SortNameDown}, "list promotions by time": {Sort: store.SortCreated},
		"list promotions by time, down":          {Sort: store.SortCreatedDown},
		"list promotions that are scheduled":     {Sort: store.SortStarts},
		"list promotions of a time":              {Sort: store.SortCreatedDown, CreatedAfter: epoch, CreatedBefore: epoch},
		"search promotions of a creator by name": {Sort: store.SortName, CreatedBy: "a", Search: "a"},
	}
	for name, p := range maps.Clone(filters) {
		p.Last.ID = 7
		filters[name+", next page"] = p
	}
	return pages(d, (*rows.Tables).PromotionList, filters)
}

// OtherPages is PromotionPages for the audit, for dead letters, and for the coupons of a
// template.
func OtherPages(d rows.Dialect) map[string]string {
	all := pages(d, (*rows.Tables).AuditList, map[string]store.AuditListParams{
		"audit": {}, "audit of a subject": {Subject: "/a"}, "audit below": {Subject: "/a/"}, "audit below by an actor": {Subject: "/a/", Actor: "a"},
		"audit of an actor": {Actor: "a"}, "audit of an action": {Action: "a"}, "audit of an actor with an action": {Actor: "a", Action: "a"},
	})
	maps.Copy(all, pages(d, (*rows.Tables).DeadLetterList, map[string]store.DeadLetterListParams{
		"dead letters": {}, "dead letters of a source": {Source: "a"}, "dead letters with a reason": {Reason: "a"}, "dead letters of a source with a reason": {Source: "a", Reason: "a"},
		"dead letters with a status": {Status: "OPEN"}, "dead letters of a source with a status": {Source: "a", Status: "OPEN"},
		"dead letters with a reason and a status":             {Reason: "a", Status: "OPEN"},
		"dead letters of a source with a reason and a status": {Source: "a", Reason: "a", Status: "OPEN"},
	}))
	const t = "coupons of a template"
	coupons := map[string]store.CouponListParams{t + ", of a user": {UserID: "a"}, t + ", with a code": {Code: "a"}, t: {}}
	for s := reward.CouponIssued; s <= reward.CouponHeld; s++ {
		coupons[t+", "+s.String()] = store.CouponListParams{Status: &s}
	}
	for name, p := range maps.Clone(coupons) {
		p.TemplateID = 1
		coupons[name], p.Newest = p, true
		coupons[name+", down"] = p
	}
	maps.Copy(all, pages(d, (*rows.Tables).CouponList, coupons))
	return all
}
