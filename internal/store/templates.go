package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/largesse/largesse/internal/reward"
)

// CloneTemplate returns a copy of a template that shares no memory with it.
func CloneTemplate(t reward.CouponTemplate) reward.CouponTemplate {
	t.Draw.Seed, t.Draw.List = bytes.Clone(t.Draw.Seed), bytes.Clone(t.Draw.List)
	t.Ends = maps.Clone(t.Ends)
	return t
}

// EncodeEnds returns end offsets as the JSON that drivers store.
func EncodeEnds(ends map[int32]int64) (string, error) {
	b, err := json.Marshal(ends)
	if err != nil {
		return "", fmt.Errorf("encode end offsets: %w", err)
	}
	return string(b), nil
}

// DecodeEnds returns the end offsets that EncodeEnds encoded; "" gives nil.
func DecodeEnds(s string) (map[int32]int64, error) {
	if s == "" {
		return nil, nil
	}
	var ends map[int32]int64
	if err := json.Unmarshal([]byte(s), &ends); err != nil {
		return nil, fmt.Errorf("decode the end offsets of a template: %w", err)
	}
	return ends, nil
}

// NoTemplate returns the error for a template that does not exist.
func NoTemplate(id reward.TemplateID) error {
	return reward.NewError(reward.KindNotFound, reward.CodeTemplateNotFound, "there is no coupon template %d", id)
}
