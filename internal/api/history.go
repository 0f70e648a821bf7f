package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// historyTemplatesMax limits the templates in one request.
const historyTemplatesMax = 100

// History shows why a user did or did not get coupons and payouts.
type History struct {
	UserID   string           `json:"userId"`
	Items    []HistoryItem    `json:"items" nullable:"false" doc:"The latest 1000 outcomes"`
	Refusals []HistoryRefusal `json:"refusals" nullable:"false" doc:"When the templates of items and templateId refused every request"`
	Payouts  []HistoryPayout  `json:"payouts" nullable:"false" doc:"At most 1000"`
}

// HistoryItem is the outcome of a coupon request.
type HistoryItem struct {
	RequestID  string    `json:"requestId"`
	TemplateID string    `json:"templateId"`
	Ticket     int64     `json:"ticket"`
	Status     string    `json:"status" enum:"ISSUED,REJECTED,LEFT"`
	Reason     string    `json:"reason,omitempty" example:"SOLD_OUT"`
	Coupon     *Coupon   `json:"coupon,omitempty"`
	At         time.Time `json:"at"`
}

// HistoryRefusal is an interval in which a template refused every request.
type HistoryRefusal struct {
	TemplateID string    `json:"templateId"`
	Reason     string    `json:"reason" example:"SOLD_OUT"`
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until,omitzero"`
}

// HistoryPayout is a payout with its promotion and attempts.
type HistoryPayout struct {
	PromotionID     string    `json:"promotionId"`
	PromotionName   string    `json:"promotionName"`
	PromotionStatus string    `json:"promotionStatus" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED"`
	PauseReason     string    `json:"pauseReason,omitempty"`
	TargetID        string    `json:"targetId"`
	Amount          int64     `json:"amount" maximum:"1000000000000000"`
	Currency        string    `json:"currency,omitempty"`
	VoucherCode     string    `json:"voucherCode,omitempty"`
	State           string    `json:"state" enum:"READY,QUEUED,RETRYING,UNKNOWN,SUCCEEDED,FAILED,CANCELLED"`
	Attempts        int32     `json:"attempts"`
	TransactionKey  string    `json:"transactionKey,omitempty"`
	ErrorCode       string    `json:"errorCode,omitempty"`
	ErrorMessage    string    `json:"errorMessage,omitempty"`
	UpdatedAt       time.Time `json:"updatedAt"`
	AttemptLog      []Attempt `json:"attemptLog" nullable:"false" doc:"The latest 50, oldest first"`
}

func historyPayoutFor(ctx context.Context, p campaign.UserPayout) HistoryPayout {
	return HistoryPayout{
		PromotionID: p.PromotionID.String(), PromotionName: p.Promotion.Name, PromotionStatus: string(p.Promotion.Status),
		PauseReason: p.Promotion.PauseReason, TargetID: p.TargetID.String(), Amount: int64(p.Amount), Currency: p.Promotion.Currency, VoucherCode: codeFor(ctx, p.VoucherCode),
		State: p.State.String(), Attempts: p.Attempts, TransactionKey: p.TransactionKey, ErrorCode: p.ErrorCode,
		ErrorMessage: p.ErrorMessage, UpdatedAt: p.UpdatedAt.UTC(), AttemptLog: attemptsOf(p.Answers),
	}
}

// historyFor returns the history of a user as the caller may see it.
func historyFor(ctx context.Context, user string, h coupon.History, payouts []campaign.UserPayout) History {
	out := History{
		UserID: user, Items: make([]HistoryItem, len(h.Outcomes)), Refusals: []HistoryRefusal{}, Payouts: make([]HistoryPayout, len(payouts)),
	}
	for i, p := range payouts {
		out.Payouts[i] = historyPayoutFor(ctx, p)
	}
	for i, o := range h.Outcomes {
		item := HistoryItem{
			RequestID: reward.RequestID(o.TemplateID, o.UserID), TemplateID: o.TemplateID.String(), Ticket: o.Ticket,
			Status: string(coupon.StatusRejected), Reason: o.Reason, At: o.At.UTC(),
		}
		switch {
		case o.Issued():
			item.Status, item.Reason, item.Coupon = string(coupon.StatusIssued), "", couponFor(ctx, &o.Coupon)
		case o.Left():
			item.Status, item.Reason = string(coupon.StatusLeft), ""
		}
		out.Items[i] = item
	}
	for id, refusals := range h.Refusals {
		for _, r := range refusals {
			out.Refusals = append(out.Refusals, HistoryRefusal{TemplateID: id.String(), Reason: r.Reason, Since: r.Since.UTC(), Until: r.Until.UTC()})
		}
	}
	slices.SortStableFunc(out.Refusals, func(a, b HistoryRefusal) int {
		// Longer IDs are greater.
		return cmp.Or(cmp.Compare(len(a.TemplateID), len(b.TemplateID)), cmp.Compare(a.TemplateID, b.TemplateID))
	})
	return out
}

type historyInput struct {
	UserID     string   `path:"userId"`
	TemplateID []string `query:"templateId,explode" doc:"At most 100, for refusals"`
}

type historyOutput struct {
	Body History
}

func (out *historyOutput) holdsCodes() bool {
	return slices.ContainsFunc(out.Body.Items, func(i HistoryItem) bool { return i.Coupon != nil && i.Coupon.Code != "" }) ||
		slices.ContainsFunc(out.Body.Payouts, func(p HistoryPayout) bool { return p.VoucherCode != "" })
}

func (a *API) addHistory() {
	call(a, operation{
		id: "get-user-history", method: http.MethodGet, path: "/v1/users/{userId}/history", tag: "coupons", roles: everyRole,
		summary: "Show why a user got coupons and payouts or not",
		errors:  []string{reward.CodeTemplateNotFound},
	}, a.getHistory)
}

func (a *API) getHistory(ctx context.Context, in *historyInput) (*historyOutput, error) {
	if err := checkUser(in.UserID); err != nil {
		return nil, err
	}
	if err := checkOwnUser(ctx, in.UserID); err != nil {
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
		return nil, web.Invalid("templateId", fmt.Sprintf("has %d templates; at most %d are allowed", len(ids), historyTemplatesMax))
	}
	h, err := a.cfg.Coupons.History(ctx, in.UserID, ids...)
	if err != nil {
		return nil, err
	}
	var payouts []campaign.UserPayout
	if slices.Contains(readers, callerOf(ctx).Role) {
		if payouts, err = a.cfg.Promotions.History(ctx, in.UserID); err != nil {
			return nil, err
		}
	}
	return &historyOutput{Body: historyFor(ctx, in.UserID, h, payouts)}, nil
}
