package payout

import (
	"context"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

// Provider is the Money API as the flow needs it.
// [CampaignMoneyApiCallService]
type Provider interface {
	ChargePoint(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
	ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
	Lookup(ctx context.Context, p reward.PromotionID, t reward.TargetID) money.LookupResult
}

// kind is what differs between the types of promotion.
type kind struct {
	promotionType reward.PromotionType
	publishTopic  string
	publishGroup  string
	retryTopic    string
	retryGroup    string
	charge        func(p Provider, ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer
}

// pointKind pays points. [CampaignPromotionPointProcessor]
var pointKind = kind{
	promotionType: reward.Point,
	publishTopic:  bus.TopicPointPublish,
	publishGroup:  bus.GroupPoint,
	retryTopic:    bus.TopicPointRetry,
	retryGroup:    bus.GroupPointRetry,
	charge:        Provider.ChargePoint,
}

// voucherKind gives vouchers. [CampaignPromotionVoucherProcessor]
var voucherKind = kind{
	promotionType: reward.Voucher,
	publishTopic:  bus.TopicVoucherPublish,
	publishGroup:  bus.GroupVoucher,
	retryTopic:    bus.TopicVoucherRetry,
	retryGroup:    bus.GroupVoucherRetry,
	charge:        Provider.ChargeVoucher,
}

var kinds = []kind{pointKind, voucherKind}

// kindOf finds the kind of a type. [CampaignPromotionProcessorResolver]
func kindOf(t reward.PromotionType) kind {
	if t == reward.Voucher {
		return voucherKind
	}
	return pointKind
}
