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

// The data of messages. /openapi.json describes them by these types. IDs are strings,
// because they can exceed 2^53. Fields other than IDs are absent if their subject does
// not exist any more.
type (
	// PromotionData describes a promotion.
	PromotionData struct {
		ID              string           `json:"id"`
		Name            string           `json:"name"`
		Type            string           `json:"type,omitempty" enum:"POINT,VOUCHER"`
		Status          string           `json:"status,omitempty" enum:"DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED"`
		PauseReason     string           `json:"pauseReason,omitempty"`
		TotalCount      int64            `json:"totalCount"`
		ExpectedCount   *int64           `json:"expectedCount,omitempty"`
		Counts          map[string]int64 `json:"counts,omitempty" doc:"By state"`
		AmountTotal     int64            `json:"amountTotal" doc:"May exceed 2^53"`
		AmountSucceeded int64            `json:"amountSucceeded" doc:"May exceed 2^53"`
		Currency        string           `json:"currency,omitempty"`
		StartedAt       time.Time        `json:"startedAt,omitzero"`
		FinishedAt      time.Time        `json:"finishedAt,omitzero"`
		StartsAt        time.Time        `json:"startsAt,omitzero" doc:"Of a draft that starts by itself"`
		CreatedBy       string           `json:"createdBy,omitempty"`
		PausedBy        string           `json:"pausedBy,omitempty" doc:"Absent if Largesse paused it"`
		ApprovedCount   int64            `json:"approvedCount,omitempty" doc:"Targets that are approved"`
		ApprovedAmount  int64            `json:"approvedAmount,omitempty" doc:"May exceed 2^53"`
	}
	// PayoutData describes a payout.
	PayoutData struct {
		PromotionID  string `json:"promotionId"`
		TargetID     string `json:"targetId"`
		UserID       string `json:"userId,omitempty"`
		State        string `json:"state,omitempty" enum:"READY,QUEUED,RETRYING,UNKNOWN,SUCCEEDED,FAILED,CANCELLED"`
		Amount       int64  `json:"amount" maximum:"1000000000000000"`
		Attempts     int    `json:"attempts"`
		ErrorCode    string `json:"errorCode,omitempty"`
		ErrorMessage string `json:"errorMessage,omitempty"`
	}
	// CouponData describes a coupon.
	CouponData struct {
		ID           string    `json:"id"`
		Code         string    `json:"code,omitempty"`
		TemplateID   string    `json:"templateId,omitempty"`
		UserID       string    `json:"userId,omitempty"`
		Status       string    `json:"status,omitempty"`
		IssuedAt     time.Time `json:"issuedAt,omitzero"`
		UsedAt       time.Time `json:"usedAt,omitzero"`
		CancelledAt  time.Time `json:"cancelledAt,omitzero"`
		CancelReason string    `json:"cancelReason,omitempty"`
		ExpiresAt    time.Time `json:"expiresAt,omitzero"`
	}
	// TemplateData describes a coupon template.
	TemplateData struct {
		ID               string    `json:"id"`
		Name             string    `json:"name"`
		TotalQuantity    int64     `json:"totalQuantity"`
		AwaitingQuantity int64     `json:"awaitingQuantity,omitempty" doc:"Replaces totalQuantity once another person approves it"`
		IssuedTotal      int64     `json:"issuedTotal" doc:"Coupons that were ever issued"`
		Live             int64     `json:"live" doc:"Issued coupons without cancelled ones"`
		OpensAt          time.Time `json:"opensAt,omitzero"`
		ClosesAt         time.Time `json:"closesAt,omitzero"`
	}
	// EndpointData names the endpoint that is tested.
	EndpointData struct {
		EndpointID string `json:"endpointId"`
	}
)

// compose returns the body of a delivery, with its subject as of now, or as it was sent
// before.
func (d *Deliverer) compose(ctx context.Context, e store.EndpointDelivery) ([]byte, error) {
	if e.Body != nil {
		return e.Body, nil
	}
	ctx, cancel := context.WithTimeout(ctx, RowsTimeout)
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
	case e.TemplateID != 0:
		return d.template(ctx, e.TemplateID)
	}
	return EndpointData{strconv.FormatInt(e.EndpointID, 10)}, nil
}

func (d *Deliverer) promotion(ctx context.Context, id reward.PromotionID) (PromotionData, error) {
	v, err := d.cfg.Rows.PromotionGet(ctx, id)
	if err != nil {
		return PromotionData{ID: id.String()}, unlessMissing(err)
	}
	return DescribePromotion(v), nil
}

// DescribePromotion returns the data of a promotion.
func DescribePromotion(v store.PromotionView) PromotionData {
	counts := make(map[string]int64, reward.StateCount)
	for s, n := range v.Counts.Payouts {
		counts[reward.State(s).JSONName()] = n
	}
	data := PromotionData{
		ID: v.ID.String(), Name: v.Name, Type: string(v.Type), Status: string(v.Status), PauseReason: v.PauseReason,
		TotalCount: v.Counts.Total(), ExpectedCount: v.ExpectedCount, Counts: counts,
		AmountTotal: int64(v.Counts.AmountTotal()), AmountSucceeded: int64(v.Counts.Amounts[reward.Succeeded]), Currency: v.Currency,
		StartedAt: v.StartedAt.UTC(), FinishedAt: v.FinishedAt.UTC(), CreatedBy: v.CreatedBy, PausedBy: v.PausedBy,
		ApprovedCount: v.Approval.Count, ApprovedAmount: int64(v.Approval.Amount),
	}
	if v.Status == reward.Draft {
		data.StartsAt = v.StartsAt.UTC()
	}
	return data
}

func (d *Deliverer) payout(ctx context.Context, id store.PayoutID) (PayoutData, error) {
	p, _, err := d.cfg.Rows.PayoutGet(ctx, id)
	if err != nil {
		return PayoutData{PromotionID: id.PromotionID.String(), TargetID: id.TargetID.String()}, unlessMissing(err)
	}
	return PayoutData{
		PromotionID: id.PromotionID.String(), TargetID: id.TargetID.String(), UserID: p.UserID, State: p.State.String(), Amount: int64(p.Amount),
		Attempts: int(p.Attempts), ErrorCode: p.ErrorCode, ErrorMessage: p.ErrorMessage,
	}, nil
}

func (d *Deliverer) coupon(ctx context.Context, id reward.CouponID) (CouponData, error) {
	c, err := d.cfg.Rows.CouponGet(ctx, id)
	if err != nil {
		return CouponData{ID: id.String()}, unlessMissing(err)
	}
	return CouponData{
		ID: id.String(), Code: c.Code, TemplateID: c.TemplateID.String(), UserID: c.UserID, Status: c.Status.String(), IssuedAt: c.IssuedAt.UTC(), UsedAt: c.UsedAt.UTC(),
		CancelledAt: c.CancelledAt.UTC(), CancelReason: c.CancelReason, ExpiresAt: c.ExpiresAt.UTC(),
	}, nil
}

func (d *Deliverer) template(ctx context.Context, id reward.TemplateID) (TemplateData, error) {
	t, err := d.cfg.Rows.TemplateGet(ctx, id)
	if err != nil {
		return TemplateData{ID: id.String()}, unlessMissing(err)
	}
	data := TemplateData{
		ID: id.String(), Name: t.Name, TotalQuantity: t.TotalQuantity, IssuedTotal: t.IssuedTotal, Live: t.Live, OpensAt: t.OpensAt.UTC(), ClosesAt: t.ClosesAt.UTC(),
	}
	if t.AwaitsApproval() {
		data.AwaitingQuantity = t.AwaitingQuantity
	}
	return data, nil
}

func unlessMissing(err error) error {
	if reward.HasCode(err, reward.CodeNotFound) || reward.HasCode(err, reward.CodeCouponNotFound) || reward.HasCode(err, reward.CodeTemplateNotFound) {
		return nil
	}
	return err
}
