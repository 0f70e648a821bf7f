package campaign

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/largesse/largesse/internal/reward"
)

// parseNDJSON parses a line with one JSON object.
func (t *TargetReader) parseNDJSON(l line) (cells, *lineFault, error) {
	if !storable(l.text) {
		return cells{}, faultf(LineInvalidUTF8, "the line is not UTF-8 text without U+0000"), nil
	}
	c, fault := parseObject(l.text)
	return c, fault, nil
}

// parseObject parses one object into the texts that the cells of a CSV line would have.
func parseObject(text []byte) (c cells, fault *lineFault) {
	if err := reward.CheckJSONText(text); err != nil {
		return cells{}, faultf(LineInvalidUTF8, "the line %v", err)
	}
	var o struct {
		Target  json.RawMessage `json:"targetId"`
		User    json.RawMessage `json:"userId"`
		Amount  json.RawMessage `json:"amount"`
		Voucher json.RawMessage `json:"voucherCode"`
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return cells{}, faultf(LineBadJSON, "the line is not a JSON object")
	}
	if err := reward.DecodeExactJSON(text, &o); err != nil {
		return cells{}, faultf(LineBadJSON, "the line is not the expected JSON: %v", err)
	}
	for _, field := range []struct {
		name string
		from json.RawMessage
		into *string
		code string
	}{
		{columnTarget, o.Target, &c.target, LineBadID},
		{columnUser, o.User, &c.user, LineBadUser},
		{columnAmount, o.Amount, &c.amount, LineBadAmount},
		{columnVoucher, o.Voucher, &c.voucher, LineBadVoucher},
	} {
		if fault = cellOf(field.from, field.name, field.code, field.into); fault != nil {
			return cells{}, fault
		}
	}
	return c, nil
}

// cellOf sets into to the text of a value. null counts as missing.
func cellOf(value json.RawMessage, name, code string, into *string) *lineFault {
	if len(value) == 0 {
		return nil
	}
	switch value[0] {
	case 'n':
	case '"':
		if err := json.Unmarshal(value, into); err != nil {
			return faultf(LineBadJSON, "%s: %v", name, err)
		}
		if strings.IndexByte(*into, 0) >= 0 {
			return faultf(LineInvalidUTF8, "%s contains U+0000", name)
		}
	case '{', '[', 't', 'f':
		return faultf(code, "%s must be a string or a number", name)
	default:
		// A voucher code would lose its leading zeros, and a user ID has no one way to be written.
		if name == columnVoucher || name == columnUser && strings.ContainsAny(string(value), ".eE-") {
			return faultf(code, "%s must be a string", name)
		}
		*into = string(value)
	}
	return nil
}
