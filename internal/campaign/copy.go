package campaign

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/largesse/largesse/internal/reward"
)

// CopyOf returns the command that creates a promotion with the settings of another one. An
// empty name is that of the other one, followed by (copy).
//
// Its times are not copied: the copy of a scheduled promotion must not start by itself.
// Nor are its targets, approvals and notes, which are about the other one.
func (s *Promotions) CopyOf(ctx context.Context, id reward.PromotionID, name string) (CreateCommand, error) {
	v, err := s.cfg.Store.PromotionGet(ctx, id)
	if err != nil {
		return CreateCommand{}, err
	}
	if name == "" {
		name = reward.CopyName(cmp.Or(v.Name, "promotion "+id.String()))
	}
	c := CreateCommand{Type: string(v.Type), ConsumersPerInstance: v.ConsumersPerInstance, WebhookURL: v.WebhookURL}
	c.Name, c.VoucherCode, c.Currency = &name, &v.VoucherCode, &v.Currency
	c.MaxRetries, c.Weight, c.RatePerSecond = &v.MaxRetries, &v.Weight, unlessZero(&v.RatePerSecond)
	c.Amount, c.MaxAmount = unlessZero(&v.Amount), unlessZero(&v.MaxAmount)
	if v.Canary.Targets > 0 {
		c.Canary = &reward.Canary{Targets: v.Canary.Targets, MaxFailureRate: v.Canary.MaxFailureRate}
	}
	entries := make(reward.MetadataChange)
	for key, value := range v.Metadata.Map() {
		entries[key] = &value
	}
	c.Metadata = &entries
	return c, nil
}

// TestPayment is a payment to one person, to try a promotion.
type TestPayment struct {
	TargetID string `json:"targetId"`
	UserID   string `json:"userId"`
	// Amount and VoucherCode are those of the promotion if they are absent.
	Amount      *int64 `json:"amount,omitempty"`
	VoucherCode string `json:"voucherCode,omitempty"`
}

// testKey is the entry of metadata that names the promotion of a test payment.
const testKey = "testOf"

// TestOf returns the command that creates the promotion of a test payment, with books of
// its own, and its target as a line of FormatNDJSON.
func (s *Promotions) TestOf(ctx context.Context, id reward.PromotionID, t TestPayment) (CreateCommand, []byte, error) {
	c, err := s.CopyOf(ctx, id, "-")
	if err != nil {
		return CreateCommand{}, nil, err
	}
	v, err := s.cfg.Store.PromotionGet(ctx, id)
	if err != nil {
		return CreateCommand{}, nil, err
	}
	name := []rune("Test of " + cmp.Or(v.Name, "promotion "+id.String()))
	c.Name = new(string(name[:min(len(name), reward.PromotionNameMax)]))
	c.Canary, c.MaxAmount, c.RatePerSecond, c.WebhookURL = nil, nil, nil, ""
	c.Metadata = &reward.MetadataChange{testKey: new(id.String())}
	line, err := json.Marshal(t)
	if err != nil { // it has texts and a number
		return CreateCommand{}, nil, fmt.Errorf("encode a target: %w", err)
	}
	text, fault := reward.ParseTargetText(line)
	if fault == nil {
		_, fault = text.Target(&v.Promotion)
	}
	if fault != nil {
		field := map[string]string{reward.LineBadID: columnTarget, reward.LineBadUser: columnUser, reward.LineBadVoucher: columnVoucher}[fault.Code]
		return CreateCommand{}, nil, reward.InvalidFields("the test payment", []reward.FieldError{{Field: cmp.Or(field, columnAmount), Detail: fault.Detail}})
	}
	return c, line, nil
}
