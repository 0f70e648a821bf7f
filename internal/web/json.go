package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/reward"
)

var jsonFormats = map[string]huma.Format{"application/json": strictJSON, "json": strictJSON}

var strictJSON = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: unmarshalStrict}

// WriteJSON answers with a body, as huma does.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = strictJSON.Marshal(w, body) // the caller may have left
}

// fieldPrefix starts an error that names a field of a body: "field amount: must be
// …". huma passes on only the text of such an error.
const fieldPrefix = "field "

// valuesMax limits the values of a body. Each takes memory, however short it is: 64 KiB of
// empty objects take 3 MiB. The longest valid body, a thousand IDs, has a quarter as many.
const valuesMax = 4000

// unmarshalStrict parses JSON. It refuses invalid text, more than valuesMax values, and
// duplicate names, since parsers differ on which of two values counts. The schema refuses
// unknown names.
func unmarshalStrict(data []byte, v any) error {
	if values(data) > valuesMax {
		return fmt.Errorf("has more than %d values; send less at once", valuesMax)
	}
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
	if name, err := reward.CheckJSON(data); err != nil {
		if errors.Is(err, reward.ErrJSONTwice) {
			return fmt.Errorf("%s%s: %w", fieldPrefix, shown(name), err)
		}
		return err
	}
	return nil
}

// values returns how many values a JSON text has, at most.
func values(data []byte) int { return 1 + outsideStrings(data, ",[{") }

// outsideStrings counts those of some characters that are not within the strings of a
// JSON text.
func outsideStrings(data []byte, chars string) (n int) {
	quoted := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && strings.IndexByte(chars, c) >= 0:
			n++
		}
	}
	return n
}

// shown quotes a name that could be mistaken for more than a name.
func shown(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r > '~' }) || len(name) > 64 {
		return strings.ReplaceAll(reward.Quote(name), ": ", ":")
	}
	return name
}

// Clearable is a field of a change. It can be absent, which leaves the field; null,
// which clears it; or a value.
type Clearable[T any] struct {
	given bool
	value *T // nil: null or absent
}

// Schema returns the schema of T, with null, for huma.
func (Clearable[T]) Schema(r huma.Registry) *huma.Schema {
	s := huma.SchemaFromType(r, reflect.TypeFor[T]())
	s.Nullable = true
	return s
}

// UnmarshalJSON records the value, or null.
func (c *Clearable[T]) UnmarshalJSON(b []byte) error {
	c.given = true
	return json.Unmarshal(b, &c.value)
}

// MarshalJSON writes the value that was read.
func (c Clearable[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.value) }

// IsZero reports whether the field was absent.
func (c Clearable[T]) IsZero() bool { return !c.given }

// Value returns the value; nil if there is none.
func (c Clearable[T]) Value() *T { return c.value }

// With returns the field with a value instead of its own.
func (c Clearable[T]) With(value T) Clearable[T] { return Clearable[T]{given: true, value: &value} }

// Change returns the value to set: nil for no change, the zero value to clear.
func (c Clearable[T]) Change() *T {
	if c.given && c.value == nil {
		return new(T)
	}
	return c.value
}
