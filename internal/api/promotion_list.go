package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

type promotionListInput struct {
	LongItemsInput
	Status        string    `query:"status" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED"`
	Search        string    `query:"q" maxLength:"200" doc:"In name, ID or metadata (key=value), in any case"`
	CreatedAfter  time.Time `query:"createdAfter"`
	CreatedBefore time.Time `query:"createdBefore"`
	CreatedBy     string    `query:"createdBy" maxLength:"200"`
	Awaiting      bool      `query:"awaitingApproval"`
	Sort          string    `query:"sort" enum:"-id,id,-createdAt,createdAt,-name,name,startsAt" doc:"Absent: -id; with created…, -createdAt. startsAt: only scheduled ones, soonest first"`
}

func (a *API) addPromotionList() {
	call(a, operation{
		id: "list-promotions", method: http.MethodGet, path: "/v1/promotions", tag: "promotions", roles: readers,
		summary:     "List promotions",
		description: "All filters apply. With a cursor, send filters and sort again.",
	}, a.listPromotions)
}

func (a *API) listPromotions(ctx context.Context, in *promotionListInput) (*output[listOf[*client.Promotion]], error) {
	p := store.PromotionListParams{
		Limit: pageRead(in.Limit), Status: reward.PromotionStatus(in.Status), Search: in.Search, CreatedBy: in.CreatedBy,
		CreatedAfter: in.CreatedAfter.UTC(), CreatedBefore: in.CreatedBefore.UTC(), Sort: store.PromotionSort(in.Sort),
		AwaitingApproval: in.Awaiting, ApprovalAbove: a.cfg.ApprovalAbove,
	}
	if p.Sort == "" {
		p.Sort = store.SortIDDown
		if !in.CreatedAfter.IsZero() || !in.CreatedBefore.IsZero() {
			p.Sort = store.SortCreatedDown
		}
	}
	if in.Cursor != "" {
		var err error
		if p.Last, err = decodePosition(p.Sort, in.Cursor); err != nil {
			return nil, err
		}
	}
	views, err := a.cfg.Rows.PromotionList(ctx, p)
	if err != nil {
		return nil, err
	}
	show := func(v store.PromotionView) *client.Promotion { return a.promotionFor(ctx, v) }
	return page(views, in.Limit, show, func(last store.PromotionView) string { return encodePosition(p.Sort, last.Promotion) }), nil
}

// encodePosition returns the cursor of a list in an order, after a promotion. It
// contains the order and what that compares.
func encodePosition(sort store.PromotionSort, p reward.Promotion) string {
	last := p.ID.String()
	switch sort {
	case store.SortIDDown:
		return encodeCursor(cursorPromotions, int64(p.ID))
	case store.SortCreated, store.SortCreatedDown:
		last += ":" + strconv.FormatInt(p.CreatedAt.UnixMicro(), 10)
	case store.SortName, store.SortNameDown:
		last += ":" + p.Name
	case store.SortStarts:
		last += ":" + strconv.FormatInt(p.StartsAt.UnixMicro(), 10)
	}
	return encodeUserCursor(cursorPromotions+string(sort), last)
}

// decodePosition parses a cursor of encodePosition for the same order, and refuses all
// other texts.
func decodePosition(sort store.PromotionSort, cursor string) (store.PromotionPosition, error) {
	var at store.PromotionPosition
	list := cursorPromotions + string(sort)
	if sort == store.SortIDDown {
		list = cursorPromotions
	}
	id, rest, _ := strings.Cut(cursorText(list, cursor), ":")
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n < 0 {
		return at, noCursor()
	}
	at.ID = reward.PromotionID(n)
	switch sort {
	case store.SortCreated, store.SortCreatedDown, store.SortStarts:
		micros, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return at, noCursor()
		}
		at.CreatedAt = time.UnixMicro(micros).UTC()
		at.StartsAt = at.CreatedAt
	case store.SortName, store.SortNameDown:
		at.Name = rest
	}
	if reward.CheckText(at.Name) != nil || encodePosition(sort, reward.Promotion{ID: at.ID, Name: at.Name, CreatedAt: at.CreatedAt, StartsAt: at.StartsAt}) != cursor {
		return at, noCursor()
	}
	return at, nil
}
