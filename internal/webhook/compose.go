package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// message is the body of a delivery, by the Standard Webhooks specification.
type message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // of the event
	Data      any       `json:"data"`
}

// The data of messages. IDs are strings, because they can exceed 2^53. Fields other
// than IDs are absent if their subject does not exist any more.
type (
	promotionData struct {
		ID              reward.PromotionID     `json:"id,string"`
		Name            string                 `json:"name"`
		Type            reward.PromotionType   `json:"type,omitempty"`
		Status          reward.PromotionStatus `json:"status,omitempty"`
		PauseReason     string                 `json:"pauseReason,omitempty"`
		TotalCount      int64                  `json:"totalCount"`
		ExpectedCount   *int64                 `json:"expectedCount,omitempty"`
		Counts          map[string]int64       `json:"counts,omitempty"`
		AmountTotal     reward.Amount          `json:"amountTotal"`
		AmountSucceeded reward.Amount          `json:"amountSucceeded"`
		Currency        string                 `json:"currency,omitempty"`
		StartedAt       time.Time              `json:"startedAt,omitzero"`
		FinishedAt      time.Time              `json:"finishedAt,omitzero"`
	}
	payoutData struct {
		PromotionID  reward.PromotionID `json:"promotionId,string"`
		TargetID     reward.TargetID    `json:"targetId,string"`
		UserID       string             `json:"userId,omitempty"`
		State        string             `json:"state,omitempty"`
		Amount       reward.Amount      `json:"amount"`
		Attempts     int                `json:"attempts"`
		ErrorCode    string             `json:"errorCode,omitempty"`
		ErrorMessage string             `json:"errorMessage,omitempty"`
	}
	couponData struct {
		ID           reward.CouponID   `json:"id,string"`
		Code         string            `json:"code,omitempty"`
		TemplateID   reward.TemplateID `json:"templateId,string,omitempty"`
		UserID       string            `json:"userId,omitempty"`
		Status       string            `json:"status,omitempty"`
		IssuedAt     time.Time         `json:"issuedAt,omitzero"`
		UsedAt       time.Time         `json:"usedAt,omitzero"`
		CancelledAt  time.Time         `json:"cancelledAt,omitzero"`
		CancelReason string            `json:"cancelReason,omitempty"`
		ExpiresAt    time.Time         `json:"expiresAt,omitzero"`
	}
	testData struct {
		EndpointID string `json:"endpointId"`
	}
)

// compose returns the body of a delivery. It describes the subject as of now, which may
// be later than the event. Later attempts send the same body.
func (d *Deliverer) compose(ctx context.Context, e store.EndpointDelivery) ([]byte, error) {
	if e.Body != nil {
		return e.Body, nil
	}
	ctx, cancel := context.WithTimeout(ctx, rowsTimeout)
	defer cancel()
	data, err := d.dataOf(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("read the subject of a webhook: %w", err)
	}
	return json.Marshal(message{Type: e.Event, Timestamp: e.At.UTC(), Data: data})
}

func (d *Deliverer) dataOf(ctx context.Context, e store.EndpointDelivery) (any, error) {
	switch {
	case e.TargetID != nil:
		return d.payout(ctx, store.PayoutID{PromotionID: e.PromotionID, TargetID: *e.TargetID})
	case e.PromotionID != 0:
		return d.promotion(ctx, e.PromotionID)
	case e.CouponID != 0:
		return d.coupon(ctx, e.CouponID)
	}
	return testData{strconv.FormatInt(e.EndpointID, 10)}, nil
}

func (d *Deliverer) promotion(ctx context.Context, id reward.PromotionID) (promotionData, error) {
	v, err := d.cfg.Rows.PromotionGet(ctx, id)
	if err != nil {
		return promotionData{ID: id}, unlessMissing(err)
	}
	counts := make(map[string]int64, reward.StateCount)
	for s, n := range v.Counts.Payouts {
		counts[reward.State(s).JSONName()] = n
	}
	return promotionData{
		ID: id, Name: v.Name, Type: v.Type, Status: v.Status, PauseReason: v.PauseReason,
		TotalCount: v.Counts.Total(), ExpectedCount: v.ExpectedCount, Counts: counts,
		AmountTotal: v.Counts.AmountTotal(), AmountSucceeded: v.Counts.Amounts[reward.Succeeded], Currency: v.Currency,
		StartedAt: v.StartedAt.UTC(), FinishedAt: v.FinishedAt.UTC(),
	}, nil
}

func (d *Deliverer) payout(ctx context.Context, id store.PayoutID) (payoutData, error) {
	p, _, err := d.cfg.Rows.PayoutGet(ctx, id)
	if err != nil {
		return payoutData{PromotionID: id.PromotionID, TargetID: id.TargetID}, unlessMissing(err)
	}
	return payoutData{
		PromotionID: id.PromotionID, TargetID: id.TargetID, UserID: p.UserID, State: p.State.String(), Amount: p.Amount,
		Attempts: int(p.Attempts), ErrorCode: p.ErrorCode, ErrorMessage: p.ErrorMessage,
	}, nil
}

func (d *Deliverer) coupon(ctx context.Context, id reward.CouponID) (couponData, error) {
	c, err := d.cfg.Rows.CouponGet(ctx, id)
	if err != nil {
		return couponData{ID: id}, unlessMissing(err)
	}
	return couponData{
		ID: id, Code: c.Code, TemplateID: c.TemplateID, UserID: c.UserID, Status: c.Status.String(), IssuedAt: c.IssuedAt.UTC(), UsedAt: c.UsedAt.UTC(),
		CancelledAt: c.CancelledAt.UTC(), CancelReason: c.CancelReason, ExpiresAt: c.ExpiresAt.UTC(),
	}, nil
}

// unlessMissing returns nil if err says that something does not exist any more.
func unlessMissing(err error) error {
	if reward.HasCode(err, reward.CodeNotFound) || reward.HasCode(err, reward.CodeCouponNotFound) {
		return nil
	}
	return err
}
