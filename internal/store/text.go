package store

import (
	"strings"

	"github.com/largesse/largesse/internal/reward"
)

// Text makes foreign prose (error messages, details, reasons) storable in
// every database: what is not valid UTF-8 becomes U+FFFD and U+0000 leaves.
// Text that decides about money is never changed; it is refused (CheckText).
func Text(s string) string {
	if storable(s) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// CheckText refuses text that no database can hold as it is.
func CheckText(field, s string) error {
	if storable(s) {
		return nil
	}
	return reward.NewError(reward.KindInvalid, reward.CodeInvalid,
		"%s %s is not valid UTF-8 without U+0000", field, reward.Quote(s))
}

func storable(s string) bool { return reward.CheckText(s) == nil }

// Check refuses a payout that no driver can store; the intake then finds the
// culprit by halving its batch.
func (r NewPayout) Check() error {
	switch {
	case r.PromotionID <= 0:
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "promotion id %d is not above 0", r.PromotionID)
	case r.TargetID < 0:
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "target id %d is below 0", r.TargetID)
	case r.SummaryID < 0:
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "promotion summary id %d is below 0", r.SummaryID)
	case r.Amount < 0:
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "amount %d is below 0", r.Amount)
	}
	if err := CheckText("user id", r.UserID); err != nil {
		return err
	}
	return CheckText("voucher code", r.VoucherCode)
}

// CheckPromotion refuses a promotion that no driver can store.
func CheckPromotion(p reward.Promotion) error {
	switch {
	case p.ID <= 0:
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "promotion id %d is not above 0", p.ID)
	case p.Amount < 0:
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "amount %d is below 0", p.Amount)
	case p.MaxRetries < 0 || p.MaxRetries > 1<<30:
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "max retries %d is out of range", p.MaxRetries)
	case p.ConsumersPerInstance < 0 || p.ConsumersPerInstance > 1<<30:
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid,
			"consumers per instance %d is out of range", p.ConsumersPerInstance)
	}
	for field, s := range map[string]string{"name": p.Name, "voucher code": p.VoucherCode, "currency": p.Currency} {
		if err := CheckText(field, s); err != nil {
			return err
		}
	}
	return nil
}
