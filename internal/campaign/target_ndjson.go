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

func (t *TargetReader) parseNDJSON(l line) (cells, *lineFault, error) {
	if !storable(l.text) {
		return cells{}, faultf(LineInvalidUTF8, "the line is not UTF-8 text without U+0000"), nil
	}
	c, fault := parseObject(l.text)
	return c, fault, nil
}

// parseObject reads one object. A name that is there twice is an error, since
// readers differ on which one counts.
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
	var first *lineFault // the JSON as such is judged before its values
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
			return cells{}, faultf(LineBadJSON, "field %s is there twice", reward.Quote(name))
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
		return cells{}, faultf(LineBadJSON, "something follows the object")
	}
	return c, first
}

func badJSON(err error) *lineFault {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return faultf(LineBadJSON, "the JSON ends too early")
	}
	return faultf(LineBadJSON, "the line is not JSON: %s", reward.Quote(err.Error()))
}

// set keeps a field's value as the text that a CSV cell would have. null
// counts as none.
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
		// A number would lose the zeros in front.
		into, code, numbers = &c.voucher, LineBadVoucher, false
	default:
		return faultf(LineBadJSON, "field %s is not known; known are %s, %s, %s, %s", reward.Quote(name),
			columnTarget, columnUser, columnAmount, columnVoucher)
	}
	switch v := value.(type) {
	case nil:
	case string:
		if !faithful(v, line) {
			return faultf(LineInvalidUTF8, "%s holds U+0000 or half a surrogate pair", name)
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

// faithful says whether a decoded string is what the line meant: the decoder
// puts U+FFFD where an escape was half a surrogate pair.
func faithful(s string, line []byte) bool {
	if strings.IndexByte(s, 0) >= 0 {
		return false
	}
	return !strings.ContainsRune(s, '\uFFFD') || !bytes.Contains(bytes.ToLower(line), []byte(`\ud`))
}

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
