package api

import (
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// clearable is a field of a change that may be absent (leave it), null (clear
// it) or a value.
type clearable[T any] struct {
	given bool
	value *T // nil: null
}

// Schema tells huma what it is made of.
func (clearable[T]) Schema(r huma.Registry) *huma.Schema {
	s := huma.SchemaFromType(r, reflect.TypeFor[T]())
	s.Nullable = true
	return s
}

// UnmarshalJSON is called for null too.
func (c *clearable[T]) UnmarshalJSON(b []byte) error {
	c.given = true
	return json.Unmarshal(b, &c.value)
}

// MarshalJSON writes what was read.
func (c clearable[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.value) }

// IsZero says that it was absent.
func (c clearable[T]) IsZero() bool { return !c.given }

// change is what to set; nil = nothing, a zero value clears.
func (c clearable[T]) change() *T {
	if c.given && c.value == nil {
		return new(T)
	}
	return c.value
}
