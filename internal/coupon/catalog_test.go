package coupon

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// copied has a template to copy.
type copied struct {
	Store
	of reward.CouponTemplate
}

func (c *copied) TemplateGet(context.Context, reward.TemplateID) (reward.CouponTemplate, error) {
	return c.of, nil
}

// TestCopyOf checks that the times of a copy keep their distance to its opening, and that it
// does not open at once.
func TestCopyOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		of := reward.CouponTemplate{
			ID: 42, Name: "Spring", TotalQuantity: 9, AwaitingQuantity: 20, PerUserLimit: 2, CreatedAt: now, Notes: "n", Live: 3, CodesImported: 4,
			OpensAt: now.Add(2 * time.Hour), ClosesAt: now.Add(5 * time.Hour), Draw: reward.Draw{State: reward.DrawDone, From: now.Add(time.Hour)},
		}
		c := &Catalog{parts: parts{rows: &copied{of: of}}}
		got, err := c.CopyOf(t.Context(), 42, "", nil)
		if opens := now.Add(copyOpens); err != nil || got.Name != "Spring (copy)" || got.TotalQuantity != 20 || got.Notes != "" || got.CodesImported != 0 ||
			!got.OpensAt.Equal(opens) || !got.ClosesAt.Equal(opens.Add(3*time.Hour)) || !got.Draw.From.Equal(opens.Add(-time.Hour)) {
			t.Errorf("%v, %+v", err, got)
		}
		at := now.Add(time.Minute)
		c = &Catalog{parts: parts{rows: &copied{of: reward.CouponTemplate{Name: "Spring", CreatedAt: now}}}}
		if got, _ := c.CopyOf(t.Context(), 42, "Summer", &at); got.Name != "Summer" || !got.OpensAt.Equal(at) || !got.ClosesAt.IsZero() || !got.Draw.From.IsZero() {
			t.Errorf("%+v", got)
		}
	})
}

// numbered has the templates 1 to its value.
type numbered struct {
	Store
	count reward.TemplateID
}

func (n *numbered) TemplateList(_ context.Context, before reward.TemplateID, limit int) ([]reward.CouponTemplate, error) {
	var list []reward.CouponTemplate
	if before == 0 {
		before = n.count + 1
	}
	for id := before - 1; id > 0 && len(list) < limit; id-- {
		list = append(list, reward.CouponTemplate{ID: id})
	}
	return list, nil
}

// TestListSelects finds templates among more than one read returns, and no more than it
// was asked for.
func TestListSelects(t *testing.T) {
	t.Parallel()
	const count = 2*store.BatchMax + 500
	c := &Catalog{parts: parts{rows: &numbered{count: count}, gate: gate.NewMemory()}}
	every := func(n reward.TemplateID) func(*reward.CouponTemplate) bool {
		return func(t *reward.CouponTemplate) bool { return t.ID%n == 0 }
	}
	for _, tt := range []struct {
		before  reward.TemplateID
		limit   int
		selects func(*reward.CouponTemplate) bool
		want    []reward.TemplateID
	}{
		{0, 2, nil, []reward.TemplateID{count, count - 1}},
		{0, 2, every(1), []reward.TemplateID{count, count - 1}},
		{0, 10, every(1000), []reward.TemplateID{2000, 1000}},
		{2000, 10, every(1000), []reward.TemplateID{1000}},
		{0, 1, every(1000), []reward.TemplateID{2000}},
		{0, 10, every(count + 1), nil},
	} {
		views, err := c.List(t.Context(), tt.before, tt.limit, tt.selects)
		var got []reward.TemplateID
		for _, v := range views {
			got = append(got, v.ID)
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("before %d, at most %d: %v, %v, want %v", tt.before, tt.limit, got, err, tt.want)
		}
	}
}

func TestSoldOutSince(t *testing.T) {
	t.Parallel()
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	lasts := store.Refusal{Reason: reward.CodeSoldOut, Since: at(5)}
	ended := store.Refusal{Reason: reward.CodeSoldOut, Since: at(5), Until: at(9)}
	for _, c := range []struct {
		latest []store.Refusal
		want   time.Time
	}{
		{nil, time.Time{}},
		{[]store.Refusal{lasts}, at(5)},
		{[]store.Refusal{ended}, time.Time{}},
		{[]store.Refusal{lasts, {Reason: reward.CodeSoldOut, Since: at(1), Until: at(2)}}, at(5)},
		{[]store.Refusal{{Reason: reward.CodeClosed, Since: at(9)}, ended}, at(5)}, // sold out until it closed
		{[]store.Refusal{{Reason: reward.CodeClosed, Since: at(20)}, ended}, time.Time{}},
		{[]store.Refusal{{Reason: reward.CodeClosed, Since: at(20)}}, time.Time{}},
	} {
		if got := soldOutSince(c.latest); !got.Equal(c.want) {
			t.Errorf("%v: %v, want %v", c.latest, got, c.want)
		}
	}
}
