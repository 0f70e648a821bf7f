package campaign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// parseObject parses one object. A repeated name is an error, because JSON
// readers differ on which value counts.
func parseObject(text []byte) (cells, *lineFault) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	start, err := dec.Token()
	if err != nil {
		return cells{}, badJSON(err)
	}
	if start != json.Delim('{') {
		return cells{}, faultf(LineBadJSON, "the line is not a JSON object")
	}
	var c cells
	var first *lineFault // errors in the JSON itself come before it
	seen := make(map[string]bool, 4)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return cells{}, badJSON(err)
		}
		name, _ := key.(string)
		var value any
		if err := dec.Decode(&value); err != nil {
			return cells{}, badJSON(err)
		}
		if seen[name] {
			return cells{}, faultf(LineBadJSON, "field %s appears twice", reward.Quote(name))
		}
		seen[name] = true
		fault := c.set(name, value, text)
		if fault != nil && fault.code == LineBadJSON {
			return cells{}, fault
		}
		if first == nil {
			first = fault
		}
	}
	if _, err := dec.Token(); err != nil {
		return cells{}, badJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return cells{}, faultf(LineBadJSON, "the line has text after the object")
	}
	return c, first
}

// badJSON returns the fault of a line that is not JSON.
func badJSON(err error) *lineFault {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return faultf(LineBadJSON, "the JSON ends too early")
	}
	return faultf(LineBadJSON, "the line is not JSON: %s", reward.Quote(err.Error()))
}

// set sets a field to the text that a CSV cell would have. null counts as
// missing.
func (c *cells) set(name string, value any, line []byte) *lineFault {
	var into *string
	numbers, code := true, ""
	switch name {
	case columnTarget:
		into, code = &c.target, LineBadID
	case columnUser:
		into, code = &c.user, LineBadUser
	case columnAmount:
		into, code = &c.amount, LineBadAmount
	case columnVoucher:
		// A number would lose its leading zeros.
		into, code, numbers = &c.voucher, LineBadVoucher, false
	default:
		return faultf(LineBadJSON, "field %s is unknown; the fields are %s, %s, %s, %s", reward.Quote(name),
			columnTarget, columnUser, columnAmount, columnVoucher)
	}
	switch v := value.(type) {
	case nil:
	case string:
		if !faithful(v, line) {
			return faultf(LineInvalidUTF8, "%s contains U+0000 or a lone surrogate", name)
		}
		*into = v
	case json.Number:
		if !numbers || name == columnUser && strings.ContainsAny(v.String(), ".eE-") {
			return faultf(code, "%s must be a string", name)
		}
		*into = v.String()
	default:
		return faultf(code, "%s must be a string or a number, not %s", name, jsonKind(value))
	}
	return nil
}

// faithful reports whether a decoded string equals what the line contains. The
// decoder replaces a lone surrogate with U+FFFD.
func faithful(s string, line []byte) bool {
	if strings.IndexByte(s, 0) >= 0 {
		return false
	}
	return !strings.ContainsRune(s, '\uFFFD') || !bytes.Contains(bytes.ToLower(line), []byte(`\ud`))
}

// jsonKind describes the kind of a JSON value.
func jsonKind(v any) string {
	switch v.(type) {
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return fmt.Sprintf("%T", v)
}
