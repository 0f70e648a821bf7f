package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func exercisePromotionPages(t *testing.T, open Open) {
	run(t, open, "EveryFilterInEveryOrderByPages", func(b *bundle) {
		all := b.manyPromotions()
		for _, sort := range []store.PromotionSort{
			"", store.SortIDDown, store.SortID, store.SortCreatedDown, store.SortCreated, store.SortNameDown, store.SortName, store.SortStarts,
		} {
			for i := range 3 * 3 * 4 * 4 {
				o := odometer(i)
				p := store.PromotionListParams{
					Limit: 4, Sort: sort, Status: oneOf(&o, "", reward.Draft, reward.Running), CreatedBy: oneOf(&o, "", "kim", "lee"),
					Search: oneOf(&o, "", "B%_\\", "season=SUMMER", "12"),
				}
				switch o.pick(4) {
				case 1:
					p.CreatedAfter = at(2)
				case 2:
					p.CreatedBefore = at(3)
				case 3:
					p.CreatedAfter, p.CreatedBefore = at(1), at(3)
				}
				same(b, fmt.Sprintf("%+v", p), pageOf(all, p), b.pages(p))
			}
		}
	})
	run(t, open, "ASearchIsLiteralAndIgnoresTheCase", func(b *bundle) {
		b.manyPromotions()
		for search, want := range map[string][]reward.PromotionID{
			"b%_\\c": {9}, "%": {9}, "_": {9}, `\`: {9}, "ÄRGER": {8}, "ärger": {8}, "cost=1": {7}, "'": nil, "nothing": nil, "121": {121},
		} {
			same(b, search, want, b.pages(store.PromotionListParams{Limit: 4, Search: search}))
		}
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 9, Name: new("Renamed"), Metadata: &reward.MetadataChange{"k": new("%")}}))(b)
		for search, want := range map[string][]reward.PromotionID{"b%_": nil, "renamed": {9}, "k=%": {9}} {
			same(b, search, want, b.pages(store.PromotionListParams{Limit: 4, Search: search}))
		}
		for _, p := range []store.PromotionListParams{{Search: "nul\x00"}, {CreatedBy: "\xff"}, {Sort: store.SortName, Last: store.PromotionPosition{ID: 1, Name: "\xff"}}} {
			_, err := b.PromotionList(b.ctx, p)
			b.wantCode(err, reward.CodeInvalid)
		}
	})
}

// manyPromotions creates promotions of two creators. Three share each name, and
// several each time. One is named by Kafka records only.
func (b *bundle) manyPromotions() []store.PromotionView {
	b.Helper()
	names := []string{"b%_\\C", "B", "bb", "Ärger"}
	for i := range 12 {
		id := reward.PromotionID(i + 1)
		if i == 11 {
			id = 121
		}
		p := reward.Promotion{ID: id, Name: "Alpha", Type: reward.Point, CreatedBy: "kim", CreatedAt: at(i * 7 % 5)}
		if i%2 == 1 {
			p.CreatedBy, p.StartsAt = "lee", at(60+i%4)
		}
		switch i {
		case 7, 8:
			p.Name = names[i%2*3]
		case 6:
			p.Name, p.Metadata = names[1], `{"cost":"1","season":"Summer"}`
		case 2, 3:
			p.Name, p.Metadata = names[2], `{"season":"summer 12"}`
		}
		must(b.PromotionCreate(b.ctx, p))(b)
		if i%3 == 0 {
			b.move(id, reward.Running)
		}
	}
	must(b.PromotionRegister(b.ctx, []store.Registration{{ID: 12, Type: reward.Point}}, reward.Limits{}, at(2)))(b)
	var all []store.PromotionView
	for id := range reward.PromotionID(122) {
		if v, err := b.PromotionGet(b.ctx, id); err == nil {
			all = append(all, v)
		}
	}
	same(b, "promotions", 13, len(all))
	return all
}

// pages reads a list page by page.
func (b *bundle) pages(p store.PromotionListParams) []reward.PromotionID {
	b.Helper()
	var ids []reward.PromotionID
	for {
		page := must(b.PromotionList(b.ctx, p))(b)
		for _, v := range page {
			ids = append(ids, v.ID)
		}
		if len(page) < p.Limit {
			return ids
		}
		last := page[len(page)-1]
		p.Last = store.PromotionPosition{ID: last.ID, Name: last.Name, CreatedAt: last.CreatedAt, StartsAt: last.StartsAt}
	}
}

// pageOf selects and orders promotions as PromotionList must.
func pageOf(all []store.PromotionView, p store.PromotionListParams) []reward.PromotionID {
	var found []store.PromotionView
	for _, v := range all {
		text := []string{v.Name, v.ID.String()}
		for key, value := range v.Metadata.Map() {
			text = append(text, key+"="+value)
		}
		hit := slices.ContainsFunc(text, func(s string) bool { return strings.Contains(strings.ToLower(s), strings.ToLower(p.Search)) })
		if hit && (p.Status == "" || v.Status == p.Status) && (p.CreatedBy == "" || v.CreatedBy == p.CreatedBy) &&
			!v.CreatedAt.Before(p.CreatedAfter) && (p.CreatedBefore.Equal(time.Time{}) || v.CreatedAt.Before(p.CreatedBefore)) {
			found = append(found, v)
		}
	}
	if p.Sort == store.SortStarts {
		found = slices.DeleteFunc(found, func(v store.PromotionView) bool { return v.Status != reward.Draft || v.StartsAt.IsZero() })
	}
	by, down := strings.CutPrefix(string(p.Sort), "-")
	slices.SortFunc(found, func(a, b store.PromotionView) int {
		order := cmp.Compare(a.ID, b.ID)
		switch by {
		case "name":
			order = cmp.Or(strings.Compare(a.Name, b.Name), order)
		case "createdAt":
			order = cmp.Or(a.CreatedAt.Compare(b.CreatedAt), order)
		case "startsAt":
			order = cmp.Or(a.StartsAt.Compare(b.StartsAt), order)
		}
		if down || p.Sort == "" {
			return -order
		}
		return order
	})
	var ids []reward.PromotionID
	for _, v := range found {
		ids = append(ids, v.ID)
	}
	return ids
}
