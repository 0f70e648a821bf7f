package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
)

// historyTemplatesMax bounds how many templates one call may name.
const historyTemplatesMax = 100

// History says why a user did or did not get coupons.
type History struct {
	UserID   string           `json:"userId"`
	Items    []HistoryItem    `json:"items" nullable:"false" doc:"What became of each request that was accepted, the latest first, the latest 1000"`
	Refusals []HistoryRefusal `json:"refusals" nullable:"false" doc:"When the templates that he asked at, or that were named, refused everybody: who is refused at once leaves nothing of his own. By template, the latest first"`
}

// HistoryItem is how one request ended.
type HistoryItem struct {
	RequestID  string    `json:"requestId" example:"42:u7"`
	TemplateID string    `json:"templateId"`
	Ticket     int64     `json:"ticket" doc:"Place in line"`
	Status     string    `json:"status" enum:"ISSUED,REJECTED"`
	Reason     string    `json:"reason,omitempty" doc:"Of REJECTED" example:"SOLD_OUT"`
	Coupon     *Coupon   `json:"coupon,omitempty" doc:"Of ISSUED, as it is now"`
	At         time.Time `json:"at" doc:"When it was decided"`
}

// HistoryRefusal is an interval in which a template refused everybody.
type HistoryRefusal struct {
	TemplateID string    `json:"templateId"`
	Reason     string    `json:"reason" example:"SOLD_OUT"`
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until,omitzero" doc:"Absent: to this day"`
}

func historyOf(user string, h coupon.History) History {
	out := History{UserID: user, Items: make([]HistoryItem, len(h.Outcomes)), Refusals: []HistoryRefusal{}}
	for i, o := range h.Outcomes {
		item := HistoryItem{
			RequestID: reward.RequestID(o.TemplateID, o.UserID), TemplateID: o.TemplateID.String(), Ticket: o.Ticket,
			Status: string(coupon.Rejected), Reason: o.Reason, At: o.At.UTC(),
		}
		if o.Issued() {
			item.Status, item.Reason, item.Coupon = string(coupon.Issued), "", couponOf(&o.Coupon)
		}
		out.Items[i] = item
	}
	for id, refusals := range h.Refusals {
		for _, r := range refusals {
			out.Refusals = append(out.Refusals, HistoryRefusal{TemplateID: id.String(), Reason: r.Reason, Since: r.Since.UTC(), Until: r.Until.UTC()})
		}
	}
	slices.SortStableFunc(out.Refusals, func(a, b HistoryRefusal) int {
		// Longer ids are greater ones.
		return cmp.Or(cmp.Compare(len(a.TemplateID), len(b.TemplateID)), cmp.Compare(a.TemplateID, b.TemplateID))
	})
	return out
}

type historyInput struct {
	UserID     string   `path:"userId" doc:"Percent-encoded"`
	TemplateID []string `query:"templateId,explode" doc:"Templates that the user says to have asked at, repeated or separated by commas, at most 100"`
}

type historyOutput struct {
	Body History
}

func (a *API) addHistory() {
	call(a, huma.Operation{
		OperationID: "get-user-history", Method: http.MethodGet, Path: "/v1/users/{userId}/history", Tags: []string{"coupons"},
		Summary: "Show why a user did or did not get coupons", Errors: []int{http.StatusBadRequest},
	}, a.getHistory)
}

func (a *API) getHistory(ctx context.Context, in *historyInput) (*historyOutput, error) {
	if err := checkUser(in.UserID); err != nil {
		return nil, err
	}
	var ids []reward.TemplateID
	for _, list := range in.TemplateID {
		for text := range strings.SplitSeq(list, ",") {
			id, err := templateID("templateId", strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
	}
	if len(ids) > historyTemplatesMax {
		return nil, invalid("templateId", fmt.Sprintf("names %d templates, more than %d", len(ids), historyTemplatesMax))
	}
	h, err := a.cfg.Coupons.History(ctx, in.UserID, ids...)
	if err != nil {
		return nil, err
	}
	return &historyOutput{Body: historyOf(in.UserID, h)}, nil
}
