package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/largesse/largesse/internal/reward"
)

// CloneTemplate copies a template, so that whoever has the copy may change it.
func CloneTemplate(t reward.CouponTemplate) reward.CouponTemplate {
	t.Draw.Seed, t.Draw.List = bytes.Clone(t.Draw.Seed), bytes.Clone(t.Draw.List)
	t.Ends = maps.Clone(t.Ends)
	return t
}

// EncodeEnds returns end offsets as the JSON that drivers keep.
func EncodeEnds(ends map[int32]int64) (string, error) {
	b, err := json.Marshal(ends)
	if err != nil {
		return "", fmt.Errorf("encode end offsets: %w", err)
	}
	return string(b), nil
}

// DecodeEnds reads what EncodeEnds wrote; "" is none.
func DecodeEnds(s string) (map[int32]int64, error) {
	if s == "" {
		return nil, nil
	}
	var ends map[int32]int64
	if err := json.Unmarshal([]byte(s), &ends); err != nil {
		return nil, fmt.Errorf("read the end offsets of a template: %w", err)
	}
	return ends, nil
}

// NoTemplate is the error of an id that no template has.
func NoTemplate(id reward.TemplateID) error {
	return reward.NewError(reward.KindNotFound, reward.CodeTemplateNotFound, "there is no coupon template %d", id)
}
