package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

const historyTemplatesMax = 100

func historyPayoutFor(ctx context.Context, p campaign.UserPayout) client.HistoryPayout {
	return client.HistoryPayout{
		PromotionID: p.PromotionID.String(), PromotionName: p.Promotion.Name, PromotionStatus: string(p.Promotion.Status),
		PauseReason: p.Promotion.PauseReason, TargetID: p.TargetID.String(), Amount: int64(p.Amount), Currency: p.Promotion.Currency, VoucherCode: codeFor(ctx, p.VoucherCode),
		State: p.State.String(), AttemptCount: int64(p.Attempts), TransactionKey: p.TransactionKey, ErrorCode: p.ErrorCode,
		ErrorMessage: p.ErrorMessage, UpdatedAt: p.UpdatedAt.UTC(), Log: attemptsOf(p.Answers),
	}
}

func historyFor(ctx context.Context, user string, h coupon.History, payouts []campaign.UserPayout) client.History {
	out := client.History{
		UserID: user, Items: make([]client.HistoryItem, len(h.Outcomes)), Refusals: []client.HistoryRefusal{},
		Payouts: mapped(payouts, func(p campaign.UserPayout) client.HistoryPayout { return historyPayoutFor(ctx, p) }),
	}
	for i, o := range h.Outcomes {
		item := client.HistoryItem{
			RequestID: reward.RequestID(o.TemplateID, o.UserID), TemplateID: o.TemplateID.String(), Ticket: o.Ticket,
			Status: string(coupon.StatusRejected), Reason: o.Reason, At: o.At.UTC(),
		}
		switch {
		case o.Issued():
			item.Status, item.Reason, item.Coupon = string(coupon.StatusIssued), "", couponFor(ctx, o.Coupon)
		case o.Left():
			item.Status, item.Reason = string(coupon.StatusLeft), ""
		}
		out.Items[i] = item
	}
	for id, refusals := range h.Refusals {
		for _, r := range refusals {
			out.Refusals = append(out.Refusals, client.HistoryRefusal{TemplateID: id.String(), Reason: r.Reason, Since: r.Since.UTC(), Until: timeOf(r.Until)})
		}
	}
	slices.SortStableFunc(out.Refusals, func(a, b client.HistoryRefusal) int {
		// Longer IDs are greater.
		return cmp.Or(cmp.Compare(len(a.TemplateID), len(b.TemplateID)), cmp.Compare(a.TemplateID, b.TemplateID))
	})
	return out
}

type historyInput struct {
	UserPath
	TemplateID []string `query:"templateId,explode" doc:"At most 100, for refusals"`
}

func (a *API) addHistory() {
	call(a, operation{
		id: "get-user-history", method: http.MethodGet, path: "/v1/users/{userId}/history", tag: "coupons", roles: everyRole,
		summary: "Show why a user got coupons and payouts or not",
		errors:  []string{reward.CodeTemplateNotFound},
	}, a.getHistory)
}

func (a *API) getHistory(ctx context.Context, in *historyInput) (*output[client.History], error) {
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
	return &output[client.History]{Body: historyFor(ctx, in.UserID, h, payouts)}, nil
}
