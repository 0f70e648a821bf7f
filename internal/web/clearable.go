package web

import (
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

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
