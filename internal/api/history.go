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
	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// historyTemplatesMax bounds how many templates one call may name.
const historyTemplatesMax = 100

// History says why a user did or did not get coupons and payouts.
type History struct {
	UserID   string           `json:"userId"`
	Items    []HistoryItem    `json:"items" nullable:"false" doc:"What became of each request that was accepted, the latest first, the latest 1000"`
	Refusals []HistoryRefusal `json:"refusals" nullable:"false" doc:"When the templates that he asked at, or that were named, refused everybody: who is refused at once leaves nothing of his own. By template, the latest first"`
	Payouts  []HistoryPayout  `json:"payouts" nullable:"false" doc:"His payouts, at most 1000: those of the promotion with the highest id first, then by targetId"`
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

// HistoryPayout is a payout, with its promotion and what the provider said.
type HistoryPayout struct {
	PromotionID     string    `json:"promotionId"`
	PromotionName   string    `json:"promotionName" doc:"Empty while Kafka alone has told of the promotion"`
	PromotionStatus string    `json:"promotionStatus" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED"`
	PauseReason     string    `json:"pauseReason,omitempty" doc:"Why the promotion is PAUSED"`
	TargetID        string    `json:"targetId"`
	Amount          int64     `json:"amount" doc:"In minor units"`
	VoucherCode     string    `json:"voucherCode,omitempty"`
	State           string    `json:"state" enum:"READY,QUEUED,RETRYING,UNKNOWN,SUCCEEDED,FAILED,CANCELLED"`
	Attempts        int32     `json:"attempts" doc:"Answers of the provider that were counted"`
	TransactionKey  string    `json:"transactionKey,omitempty" doc:"The provider's, once it has paid"`
	ErrorCode       string    `json:"errorCode,omitempty"`
	ErrorMessage    string    `json:"errorMessage,omitempty"`
	UpdatedAt       time.Time `json:"updatedAt"`
	AttemptLog      []Attempt `json:"attemptLog" nullable:"false" doc:"As get-payout shows it, the latest 50, oldest first"`
}

func historyPayoutOf(p payout.UserPayout) HistoryPayout {
	return HistoryPayout{
		PromotionID: p.PromotionID.String(), PromotionName: p.Promotion.Name, PromotionStatus: string(p.Promotion.Status),
		PauseReason: p.Promotion.PauseReason, TargetID: p.TargetID.String(), Amount: int64(p.Amount), VoucherCode: p.VoucherCode,
		State: p.State.String(), Attempts: p.Attempts, TransactionKey: p.TransactionKey, ErrorCode: p.ErrorCode,
		ErrorMessage: p.ErrorMessage, UpdatedAt: p.UpdatedAt.UTC(), AttemptLog: attemptsOf(p.Answers),
	}
}

func historyOf(user string, h coupon.History, payouts []payout.UserPayout) History {
	out := History{
		UserID: user, Items: make([]HistoryItem, len(h.Outcomes)), Refusals: []HistoryRefusal{}, Payouts: make([]HistoryPayout, len(payouts)),
	}
	for i, p := range payouts {
		out.Payouts[i] = historyPayoutOf(p)
	}
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
		Summary: "Show why a user did or did not get coupons and payouts",
	}, a.getHistory)
}

func (a *API) getHistory(ctx context.Context, in *historyInput) (*historyOutput, error) {
	if err := checkUser(in.UserID); err != nil {
		return nil, err
	}
	if err := onlyOwn(ctx, in.UserID); err != nil {
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
		return nil, web.Invalid("templateId", fmt.Sprintf("names %d templates, more than %d", len(ids), historyTemplatesMax))
	}
	h, err := a.cfg.Coupons.History(ctx, in.UserID, ids...)
	if err != nil {
		return nil, err
	}
	var payouts []payout.UserPayout
	if slices.Contains(readers, callerOf(ctx).Role) {
		if payouts, err = a.cfg.Promotions.History(ctx, in.UserID); err != nil {
			return nil, err
		}
	}
	return &historyOutput{Body: historyOf(in.UserID, h, payouts)}, nil
}
