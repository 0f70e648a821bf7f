package queue

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
)

// The fields of a stream entry, which other systems may rely on.
const (
	FieldKey      = "key"      // target ID in decimal
	FieldMessage  = "message"  // publish message as JSON
	FieldDispatch = "dispatch" // dispatch number in decimal
)

// DecodeFields returns the Entry for the fields of a stream entry, given as
// name, value, name, value. Other systems can add to a stream: a malformed
// entry is not Readable, and its Message holds all fields as a JSON object, in
// their order.
func DecodeFields(id string, fields []string) Entry {
	var key, dispatch, message string
	for i := 0; i+1 < len(fields); i += 2 {
		switch fields[i] {
		case FieldKey:
			key = fields[i+1]
		case FieldDispatch:
			dispatch = fields[i+1]
		case FieldMessage:
			message = fields[i+1]
		}
	}
	target, errKey := reward.ParseTargetID(key)
	n, errDispatch := strconv.ParseInt(dispatch, 10, 32)
	body := []byte(message)
	if errKey != nil || errDispatch != nil || n < 0 || !json.Valid(body) {
		return Entry{ID: id, Message: rawFields(fields)}
	}
	return Entry{ID: id, TargetID: target, Dispatch: int32(n), Readable: true, Message: body}
}

// rawFields writes JSON itself, because a map would lose the order of fields
// and all but one of the fields with the same name.
func rawFields(fields []string) []byte {
	out := []byte{'{'}
	for i := 0; i+1 < len(fields); i += 2 {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, jsonText(fields[i])...)
		out = append(out, ':')
		out = append(out, jsonText(fields[i+1])...)
	}
	return append(out, '}')
}

// jsonText returns a JSON string, or {"base64": …} for bytes that are not
// UTF-8: a JSON string would replace them, and a dead letter must keep them.
func jsonText(s string) []byte {
	if !utf8.ValidString(s) {
		return []byte(`{"base64":"` + base64.StdEncoding.EncodeToString([]byte(s)) + `"}`)
	}
	out, err := json.Marshal(s)
	if err != nil {
		panic("queue: encode a string as JSON: " + err.Error()) // json.Marshal encodes every string
	}
	return out
}
