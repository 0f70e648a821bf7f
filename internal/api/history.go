package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const historyTemplatesMax = 100

// historyPayoutsMax limits the payouts in a user's history.
const historyPayoutsMax = store.BatchMax

func historyPayoutFor(ctx context.Context, p store.UserPayout, of reward.Promotion) client.HistoryPayout {
	return client.HistoryPayout{
		PromotionID: p.PromotionID.String(), PromotionName: of.Name, PromotionStatus: string(of.Status),
		PauseReason: of.PauseReason, PauseCause: reward.PauseCause(&of), TargetID: p.TargetID.String(), Amount: int64(p.Amount), Currency: of.Currency, VoucherCode: codeFor(ctx, p.VoucherCode),
		State: p.State.String(), AttemptCount: int64(p.Attempts), TransactionKey: p.TransactionKey, ErrorCode: p.ErrorCode,
		ErrorMessage: p.ErrorMessage, UpdatedAt: p.UpdatedAt.UTC(), Log: attemptsOf(p.Answers),
		MayBePaid: rules.MayBePaid(p.Row), PausedBy: of.PausedBy,
	}
}

func historyFor(ctx context.Context, user string, h coupon.History, payouts []client.HistoryPayout) client.History {
	out := client.History{
		UserID: user, Items: make([]client.HistoryItem, len(h.Outcomes)), Refusals: []client.HistoryRefusal{}, Payouts: payouts,
	}
	for i, o := range h.Outcomes {
		s := coupon.StatusOf(o)
		out.Items[i] = client.HistoryItem{
			RequestID: s.RequestID, TemplateID: o.TemplateID.String(), Ticket: s.Ticket, Status: string(s.Kind), Reason: s.Reason, At: o.At.UTC(),
		}
		if s.Kind == coupon.StatusIssued {
			out.Items[i].Coupon = couponFor(ctx, s.Coupon)
		}
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
	payouts := []client.HistoryPayout{}
	if slices.Contains(readers, callerOf(ctx).Role) {
		if payouts, err = a.historyPayouts(ctx, in.UserID); err != nil {
			return nil, err
		}
	}
	return &output[client.History]{Body: historyFor(ctx, in.UserID, h, payouts)}, nil
}

// historyPayouts returns payouts of a user, by descending promotion ID.
func (a *API) historyPayouts(ctx context.Context, user string) ([]client.HistoryPayout, error) {
	payouts, err := a.cfg.Rows.PayoutHistory(ctx, user, historyPayoutsMax)
	if err != nil {
		return nil, err
	}
	promotions, err := a.promotionsOf(ctx, mapped(payouts, func(p store.UserPayout) reward.PromotionID { return p.PromotionID }))
	out := make([]client.HistoryPayout, 0, len(payouts))
	for _, p := range payouts {
		// Skip payouts of a promotion that was deleted in the meantime.
		if promotion, ok := promotions[p.PromotionID]; ok {
			out = append(out, historyPayoutFor(ctx, p, promotion))
		}
	}
	return out, err
}
