package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/reward"
)

// jsonFormats is how bodies are read and written.
var jsonFormats = map[string]huma.Format{"application/json": strictJSON, "json": strictJSON}

var strictJSON = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: unmarshalStrict}

// fieldPrefix begins an error of reading a body that names a field, since huma
// passes on nothing but its text: "field amount: must be …".
const fieldPrefix = "field "

// unmarshalStrict refuses what is no text, and names that are there twice, since
// readers differ on which one counts. Names that are unknown are the schema's affair.
func unmarshalStrict(data []byte, v any) error {
	if err := reward.CheckJSONText(data); err != nil {
		return fmt.Errorf("the body %w", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		field, err := reward.JSONError(err)
		if field == "" {
			return err
		}
		return fmt.Errorf("%s%s: %w", fieldPrefix, field, err)
	}
	return checkNames(json.NewDecoder(bytes.NewReader(data)))
}

// checkNames reads one value of JSON that is known to be whole.
func checkNames(dec *json.Decoder) error {
	start, err := dec.Token()
	if err != nil {
		return err
	}
	if start != json.Delim('{') && start != json.Delim('[') {
		return nil
	}
	seen := make(map[string]bool)
	for dec.More() {
		if start == json.Delim('{') {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			name, _ := key.(string) // a name is always a string
			if seen[name] {
				return fmt.Errorf("%s%s: is there twice", fieldPrefix, shown(name))
			}
			seen[name] = true
		}
		if err := checkNames(dec); err != nil {
			return err
		}
	}
	_, err = dec.Token() // its end
	return err
}

// shown keeps a hostile name from looking like more than a name.
func shown(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r > '~' }) || len(name) > 64 {
		return strings.ReplaceAll(reward.Quote(name), ": ", ":")
	}
	return name
}
