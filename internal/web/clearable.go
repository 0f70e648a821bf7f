package web

import (
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// Clearable is a field of a change that may be absent (leave it), null (clear
// it) or a value.
type Clearable[T any] struct {
	given bool
	value *T // nil: null
}

// Schema tells huma what it is made of.
func (Clearable[T]) Schema(r huma.Registry) *huma.Schema {
	s := huma.SchemaFromType(r, reflect.TypeFor[T]())
	s.Nullable = true
	return s
}

// UnmarshalJSON is called for null too.
func (c *Clearable[T]) UnmarshalJSON(b []byte) error {
	c.given = true
	return json.Unmarshal(b, &c.value)
}

// MarshalJSON writes what was read.
func (c Clearable[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.value) }

// IsZero says that it was absent.
func (c Clearable[T]) IsZero() bool { return !c.given }

// Change is what to set; nil = nothing, a zero value clears.
func (c Clearable[T]) Change() *T {
	if c.given && c.value == nil {
		return new(T)
	}
	return c.value
}
