package payout

import (
	"context"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

// Provider charges and looks up payouts. Its methods must be safe for concurrent
// use. A charge calls check right before it sends the first byte, and sends
// nothing if check returns an error.
type Provider interface {
	ChargePoint(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
	ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
	Lookup(ctx context.Context, p reward.PromotionID, t reward.TargetID) money.LookupResult
}

// kind holds what depends on the type of a promotion.
type kind struct {
	promotionType reward.PromotionType
	publishTopic  string
	publishGroup  string
	retryTopic    string
	retryGroup    string
	charge        func(p Provider, ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
}

// pointKind pays points.
var pointKind = kind{
	promotionType: reward.Point,
	publishTopic:  bus.TopicPointPublish,
	publishGroup:  bus.GroupPoint,
	retryTopic:    bus.TopicPointRetry,
	retryGroup:    bus.GroupPointRetry,
	charge:        Provider.ChargePoint,
}

// voucherKind issues vouchers.
var voucherKind = kind{
	promotionType: reward.Voucher,
	publishTopic:  bus.TopicVoucherPublish,
	publishGroup:  bus.GroupVoucher,
	retryTopic:    bus.TopicVoucherRetry,
	retryGroup:    bus.GroupVoucherRetry,
	charge:        Provider.ChargeVoucher,
}

var kinds = []kind{pointKind, voucherKind}

// kindOf returns the kind of a promotion type.
func kindOf(t reward.PromotionType) kind {
	if t == reward.Voucher {
		return voucherKind
	}
	return pointKind
}
